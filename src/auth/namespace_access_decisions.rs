use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use imbl::OrdMap;
use parking_lot::Mutex;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use super::authenticator::Authenticator;
use super::recheck_schedule::NamespaceRecheckSchedule;
use super::review_cache::ReviewPurpose;
use super::{AffectedNamespaces, GrantError};
use base::{KeyedSemaphores, until};
use kubeapi::{AccessAttributes, FlowDistinguisher, User};
use tokio::sync::watch;

/// The verdicts on a collection's namespaces: which of them a user may read, as far as they were reviewed.
///
/// They belong to one request or watch, and determine what is visible and when it is reviewed again. The decisions
/// themselves are cached by `AccessReviewer`, with those of other watches and requests.
pub(super) struct NamespaceDecisions {
    authenticator: Arc<Authenticator>,
    /// The access to review in each namespace.
    access: Arc<AccessAttributes>,
    /// The last known user. Groups may change while a watch is open.
    user: Mutex<Arc<User>>,
    verdicts: watch::Sender<NamespaceAccessMap>,
    /// The namespaces that occurred in an open watch and wait for a review.
    pending: Mutex<BTreeSet<Arc<str>>>,
    occurred: Notify,
    /// The review times of each namespace; set for a watch only.
    kept: Option<NamespaceRecheckState>,
}

/// The additional state of an open watch.
struct NamespaceRecheckState {
    period: Duration,
    share: ReviewedNamespacePermits,
    schedule: Mutex<NamespaceRecheckSchedule>,
    /// Notified when a namespace's review becomes due earlier than before.
    changed: Notify,
}

/// A limit on the namespaces that open readable watches depend on, in all and for each user. It keeps their number
/// within what can be reviewed in time after a policy change.
#[derive(Debug)]
pub(super) struct ReviewedNamespaceLimit {
    all: Arc<Semaphore>,
    each: KeyedSemaphores<FlowDistinguisher>,
}

/// The namespaces that one watch depends on: permits of the user's limit, and of that of all users. The permits are
/// returned on drop.
#[derive(Debug)]
pub(super) struct ReviewedNamespacePermits(Mutex<[OwnedSemaphorePermit; 2]>);

/// The known access to one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceAccess {
    Allowed,
    Denied,
    /// The review of the namespace was sent and not answered.
    Unclear,
}

pub(super) type NamespaceAccessMap = OrdMap<Arc<str>, NamespaceAccess>;

/// The maximum number of namespaces by which one request is filtered. Each costs a review.
pub(super) const NAMESPACES_MAX: usize = 2_000;
/// The maximum number of concurrent namespace reviews of one request or watch.
const IN_FLIGHT_MAX: usize = 32;
/// How long an open watch may pause for an unknown namespace.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// The pause before a failed review is retried.
const AGAIN: Duration = Duration::from_secs(5);
/// The maximum number of namespaces reviewed in one batch. A policy change waits for at most one batch.
const TAKEN_MAX: usize = 64;
/// The maximum age of a decision for a namespace that no change has affected. Watches of one user share the decision.
const SLACK: Duration = Duration::from_secs(5);
/// The maximum delay of a namespace's review, apart from upstream failures. A namespace that cannot be checked in time
/// is no longer served.
const LATE_MAX: Duration = Duration::from_secs(10);

impl NamespaceDecisions {
    /// Creates the verdicts of a request, or of a `watch`: [`keep`](Self::keep) reviews its namespaces again within
    /// each period.
    pub(super) fn new(
        authenticator: Arc<Authenticator>,
        user: Arc<User>,
        access: Arc<AccessAttributes>,
        watch: Option<(ReviewedNamespacePermits, Duration)>,
    ) -> Self {
        let kept = watch.map(|(share, period)| NamespaceRecheckState {
            period,
            share,
            schedule: Mutex::new(NamespaceRecheckSchedule::new(period)),
            changed: Notify::new(),
        });
        Self {
            authenticator,
            access,
            user: Mutex::new(user),
            verdicts: watch::Sender::default(),
            pending: Mutex::default(),
            occurred: Notify::new(),
            kept,
        }
    }

    pub(super) fn verdict(&self, namespace: &str) -> Option<NamespaceAccess> {
        self.verdicts.borrow().get(namespace).copied()
    }

    pub(super) fn changes(&self) -> watch::Receiver<NamespaceAccessMap> {
        self.verdicts.subscribe()
    }

    /// Reviews the namespaces without a verdict.
    ///
    /// # Errors
    /// Upstream did not answer, or there are too many namespaces.
    pub(super) async fn find_out(&self, namespaces: BTreeSet<Arc<str>>) -> Result<(), GrantError> {
        if namespaces.len() > NAMESPACES_MAX {
            return Err(too_many());
        }
        let user = self.user.lock().clone();
        let known = self.verdicts.borrow().clone();
        let unknown: Vec<_> = namespaces.into_iter().filter(|namespace| !is_known(&known, namespace)).collect();
        self.begin(&unknown)?;
        let decided = self.decide(&user, from_now(&unknown), ReviewPurpose::Request, |namespace, began, outcome| {
            self.learn(namespace, began, outcome?);
            Ok(())
        });
        let decided = decided.await;
        unknown.iter().for_each(|namespace| self.drop_out(namespace));
        decided
    }

    /// Sets the current user. If the user differs, all namespaces are reviewed again.
    pub(super) fn is_of(&self, user: &Arc<User>) {
        let before = std::mem::replace(&mut *self.user.lock(), user.clone());
        if before != *user {
            self.recheck(&AffectedNamespaces::Everywhere, Instant::now());
        }
    }

    /// Records a policy change. Only the namespaces that the change affects are reviewed again.
    pub(super) fn recheck(&self, reach: &AffectedNamespaces, at: Instant) {
        if let Some(kept) = &self.kept
            && kept.schedule.lock().change(reach, at)
        {
            kept.changed.notify_one();
        }
    }

    /// Reviews known namespaces again, each in its time.
    ///
    /// Completes when nothing may be served any more, because upstream has not answered for longer than `grace`, or
    /// because there is too much to review. It calls `is_failing` with whether reviews fail.
    pub(super) async fn keep(&self, grace: Duration, is_failing: impl Fn(bool)) -> GrantError {
        let Some(kept) = &self.kept else { return std::future::pending().await };
        let mut busy_since = None;
        loop {
            let (now, due) = (Instant::now(), kept.schedule.lock().next());
            let Some(due) = due.filter(|due| *due <= now) else {
                busy_since = None;
                tokio::select! {
                    biased;
                    () = until(due) => {}
                    () = kept.changed.notified() => {}
                }
                continue;
            };
            if now > due.max(*busy_since.get_or_insert(now)) + LATE_MAX {
                return self.authenticator.access_reviewer.queue.over_budget();
            }
            match self.assert_due(kept, now).await {
                Ok(()) => is_failing(false),
                Err(why @ GrantError::TooMany { .. }) => return why,
                Err(why) => {
                    is_failing(true);
                    // Upstream caused the delay.
                    busy_since = None;
                    let oldest = kept.schedule.lock().oldest();
                    if oldest.is_some_and(|oldest| oldest.elapsed() >= why.grace(grace)) {
                        return why;
                    }
                }
            }
        }
    }

    /// Reviews the next batch of due namespaces. Returns an error if a review was not answered.
    async fn assert_due(&self, kept: &NamespaceRecheckState, now: Instant) -> Result<(), GrantError> {
        let taken = kept.schedule.lock().take(now, SLACK.min(kept.period / 12), TAKEN_MAX);
        let user = self.user.lock().clone();
        let again = now + AGAIN;
        let (mut result, mut answers) = (Ok(()), false);
        let reviews = self.decide(&user, taken, ReviewPurpose::Namespace, |namespace, since, outcome| {
            match outcome {
                Ok(verdict) => {
                    kept.schedule.lock().answered(&namespace, since);
                    self.put(namespace, verdict);
                    answers = true;
                }
                Err(why) => {
                    kept.schedule.lock().unanswered(&namespace, again);
                    result = Err(why);
                }
            }
            Ok(())
        });
        reviews.await?;
        // As long as upstream answers some reviews, a failing one does not delay the others.
        if result.is_err() && !answers {
            kept.schedule.lock().put_off(Instant::now() + AGAIN);
        }
        result
    }

    /// Reserves room for the verdicts of namespaces before the namespaces are reviewed.
    fn begin(&self, namespaces: &[Arc<str>]) -> Result<(), GrantError> {
        let Some(kept) = &self.kept else { return Ok(()) };
        let mut schedule = kept.schedule.lock();
        let more = namespaces.iter().filter(|namespace| !schedule.contains(namespace)).count();
        if !kept.share.reach(schedule.len() + more) {
            return Err(self.authenticator.access_reviewer.queue.over_budget());
        }
        namespaces.iter().for_each(|namespace| schedule.begin(namespace, Instant::now()));
        Ok(())
    }

    /// Removes a namespace whose review had no result.
    fn drop_out(&self, namespace: &Arc<str>) {
        if let Some(kept) = &self.kept {
            kept.schedule.lock().forget(namespace);
        }
    }

    /// Schedules the review of a namespace that occurred in a watch.
    ///
    /// # Errors
    /// There are too many namespaces.
    pub(super) fn want(&self, namespace: &str) -> Result<(), GrantError> {
        let mut pending = self.pending.lock();
        let count = self.verdicts.borrow().len() + pending.len() + 1;
        if count > NAMESPACES_MAX {
            return Err(too_many());
        }
        if !pending.contains(namespace) {
            let namespace = Arc::from(namespace);
            self.begin(std::slice::from_ref(&namespace))?;
            pending.insert(namespace);
            self.occurred.notify_one();
        }
        Ok(())
    }

    /// Reviews namespaces as they occur in a watch, for as long as the future is polled.
    pub(super) async fn answer(&self) -> std::convert::Infallible {
        loop {
            let unclear: Vec<_> = {
                let verdicts = self.verdicts.borrow();
                let unclear = verdicts.iter().filter(|(_, verdict)| **verdict == NamespaceAccess::Unclear);
                unclear.map(|(namespace, _)| namespace.clone()).collect()
            };
            tokio::select! {
                biased;
                () = self.occurred.notified() => {}
                () = sleep(AGAIN), if !unclear.is_empty() => {}
            }
            let mut pending = self.pending.lock().clone();
            pending.extend(unclear);
            let user = self.user.lock().clone();
            let batch: Vec<_> = pending.iter().cloned().collect();
            let reviews = async {
                self.begin(&batch)?;
                self.decide(&user, from_now(&batch), ReviewPurpose::Request, |namespace, began, outcome| {
                    if let Ok(verdict) = outcome {
                        self.pending.lock().remove(&namespace);
                        self.learn(namespace, began, verdict);
                    }
                    Ok(())
                })
                .await
            };
            // A namespace whose review is late is not served, and does not delay others.
            let _: Result<_, _> = timeout(ANSWER_MAX, reviews).await;
            for namespace in batch {
                self.pending.lock().remove(&namespace);
                self.drop_out(&namespace);
                if !is_known(&self.verdicts.borrow(), &namespace) {
                    self.put(namespace, NamespaceAccess::Unclear);
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_pending(&self, namespace: &str) -> bool {
        self.pending.lock().contains(namespace)
    }

    /// Reviews each namespace, until `take` returns an error. A denial is `Ok` too.
    async fn decide(
        &self,
        user: &Arc<User>,
        namespaces: Vec<(Arc<str>, Instant)>,
        purpose: ReviewPurpose,
        mut take: impl FnMut(Arc<str>, Instant, Result<NamespaceAccess, GrantError>) -> Result<(), GrantError>,
    ) -> Result<(), GrantError> {
        let review = |namespace: Arc<str>, since| async move {
            let oldest = Some(since).filter(|_| purpose != ReviewPurpose::Request);
            let access = Arc::new(self.access.within(&namespace));
            let outcome = match self.authenticator.access_reviewer.decide(user, &access, purpose, oldest).await {
                Ok(_) => Ok(NamespaceAccess::Allowed),
                Err(GrantError::Denied(_)) => Ok(NamespaceAccess::Denied),
                Err(why) => Err(why),
            };
            (namespace, since, outcome)
        };
        let mut reviews = FuturesUnordered::new();
        for (namespace, since) in namespaces {
            if reviews.len() >= IN_FLIGHT_MAX
                && let Some((namespace, since, outcome)) = reviews.next().await
            {
                take(namespace, since, outcome)?;
            }
            reviews.push(review(namespace, since));
        }
        while let Some((namespace, since, outcome)) = reviews.next().await {
            take(namespace, since, outcome)?;
        }
        Ok(())
    }

    /// Stores the verdict on a namespace, unless one is known.
    fn learn(&self, namespace: Arc<str>, began: Instant, verdict: NamespaceAccess) {
        if is_known(&self.verdicts.borrow(), &namespace) {
            return;
        }
        if let Some(kept) = &self.kept {
            kept.schedule.lock().reviewed(&namespace, began);
            kept.changed.notify_one();
        }
        self.put(namespace, verdict);
    }

    pub(super) fn put(&self, namespace: Arc<str>, verdict: NamespaceAccess) {
        self.verdicts.send_if_modified(|verdicts| verdicts.insert(namespace, verdict) != Some(verdict));
    }
}

impl ReviewedNamespaceLimit {
    pub(super) fn new(all_max: usize, each_max: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all_max.min(Semaphore::MAX_PERMITS))),
            each: KeyedSemaphores::new(each_max),
        }
    }

    /// Creates a caller's share of the quota, without namespaces.
    pub(super) fn share(&self, payer: &FlowDistinguisher) -> ReviewedNamespacePermits {
        let limits = [self.each.of(payer), self.all.clone()];
        ReviewedNamespacePermits(Mutex::new(
            limits.map(|limit| limit.try_acquire_many_owned(0).expect("nothing is acquired")),
        ))
    }
}

impl ReviewedNamespacePermits {
    /// Changes the share to `count` namespaces in all. If these are too many, it returns false and changes nothing.
    pub(super) fn reach(&self, count: usize) -> bool {
        let mut permits = self.0.lock();
        let Ok(more) = u32::try_from(count.saturating_sub(permits[0].num_permits())) else { return false };
        let acquire = |permit: &OwnedSemaphorePermit| permit.semaphore().clone().try_acquire_many_owned(more);
        // One after the other, because a user above its own limit must not take permits of all, not even briefly.
        let Ok(own) = acquire(&permits[0]) else { return false };
        let Ok(all) = acquire(&permits[1]) else { return false };
        permits[0].merge(own);
        permits[1].merge(all);
        true
    }
}

/// Pairs each namespace with the current time, at which its review begins.
fn from_now(namespaces: &[Arc<str>]) -> Vec<(Arc<str>, Instant)> {
    let since = Instant::now();
    namespaces.iter().map(|namespace| (namespace.clone(), since)).collect()
}

fn is_known(verdicts: &NamespaceAccessMap, namespace: &str) -> bool {
    !matches!(verdicts.get(namespace), None | Some(NamespaceAccess::Unclear))
}

fn too_many() -> GrantError {
    GrantError::Denied(
        format!("the collection spans more than {NAMESPACES_MAX} namespaces, too many to authorize one by one").into(),
    )
}

impl std::fmt::Debug for NamespaceDecisions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamespaceDecisions").field("namespaces", &self.verdicts.borrow().len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kubeapi::User;

    #[test]
    fn namespace_quota_limits_each_user_and_the_total() {
        let quota = ReviewedNamespaceLimit::new(10, 6);
        let of = |name: &str| quota.share(&FlowDistinguisher::of(&User { name: name.to_owned(), ..User::default() }));
        let (first, second, bob) = (of("ada"), of("ada"), of("bob"));
        assert!(first.reach(4) && first.reach(4), "what is there is counted once");
        assert!(!second.reach(3) && second.reach(2), "two watches of one user");
        assert!(!bob.reach(5) && bob.reach(4), "all together");
        assert!(!first.reach(5));
        drop(second);
        assert!(first.reach(6) && bob.reach(4) && !bob.reach(5));
        drop((first, bob));
        assert_eq!(quota.all.available_permits(), 10);
    }
}
