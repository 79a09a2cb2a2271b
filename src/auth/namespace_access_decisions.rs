use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::{FutureExt, Stream, StreamExt, stream};
use imbl::OrdMap;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use super::authenticator::Authenticator;
use super::rbac_authorizer::RulesUnknown;
use super::recheck_schedule::{NamespaceRecheckSchedule, ReviewOutage};
use super::review_queue::{ReviewPurpose, ReviewedNamespacePermits};
use super::{AffectedNamespaces, GrantError, ObjectNames};
use base::sleep_until_opt;
use kubeapi::{AccessAttributes, User};
use tokio::sync::watch;

/// The decisions on a collection's namespaces: which of them a user may read, as far as they were reviewed.
///
/// They belong to one request or watch, and determine what is visible and when it is reviewed again. The decisions
/// themselves are cached by `AccessReviewer`, with those of other watches and requests.
pub(super) struct NamespaceDecisions {
    authenticator: Arc<Authenticator>,
    /// The access to review in each namespace.
    access: Arc<AccessAttributes>,
    /// The last known user. Groups may change while a watch is open.
    user: Mutex<Arc<User>>,
    decisions: watch::Sender<NamespaceAccessMap>,
    /// The number of names in the decisions.
    name_count: AtomicUsize,
    /// The namespaces that occurred in an open watch and wait for a review.
    pending: Mutex<BTreeSet<Arc<str>>>,
    occurred: Notify,
    /// The review times of each namespace; set for a watch only.
    rechecks: Option<NamespaceRecheckState>,
}

/// The additional state of an open watch.
struct NamespaceRecheckState {
    permits: ReviewedNamespacePermits,
    schedule: Mutex<NamespaceRecheckSchedule>,
    /// Notified when a namespace's review becomes due earlier than before.
    changed: Notify,
}

/// The known access to one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NamespaceAccess {
    Allowed,
    Denied,
    /// Access to all objects of the namespace is denied. The rules that are known here allow to get those with these
    /// names.
    Named(ObjectNames),
    /// The review of the namespace was sent and not answered.
    Unanswered,
}

pub(super) type NamespaceAccessMap = OrdMap<Arc<str>, NamespaceAccess>;

/// The decision on a namespace, and the time until which it is certain.
type NamespaceAccessResult = Result<(NamespaceAccess, Instant), GrantError>;

/// The maximum number of namespaces by which one request is filtered. Each costs a review.
pub(super) const NAMESPACES_MAX: usize = 2_000;
/// The maximum number of names in the decisions of one request or watch. Further namespaces show no object by name.
const NAMES_MAX: usize = 2_000;
/// The maximum number of concurrent namespace reviews of one request or watch.
const IN_FLIGHT_MAX: usize = 32;
/// How long an open watch may pause for an unknown namespace.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(1);
/// The pause before a failed review is retried.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// The maximum number of namespaces reviewed in one batch. A policy change waits for at most one batch.
const BATCH_MAX: usize = 64;
/// The maximum age of a decision for a namespace that no change has affected. Watches of one user share the decision.
const SLACK: Duration = Duration::from_secs(5);
/// How long reads that may lack objects shown by name are refused after the rules were lost. Usually they return within
/// seconds. A proxy that cannot watch them shows nothing by name.
const RULES_WAIT_MAX: Duration = Duration::from_secs(60);
/// The maximum delay of a namespace's review, apart from upstream failures. A namespace that cannot be checked in time
/// is no longer served.
const DELAY_MAX: Duration = Duration::from_secs(10);

impl NamespaceDecisions {
    /// Creates the decisions of a request, or of a `watch`: [`run_rechecks`](Self::run_rechecks) reviews its namespaces
    /// again within each period.
    pub(super) fn new(
        authenticator: Arc<Authenticator>,
        user: Arc<User>,
        access: Arc<AccessAttributes>,
        watch: Option<ReviewedNamespacePermits>,
    ) -> Self {
        let rechecks = watch.map(|permits| NamespaceRecheckState {
            permits,
            schedule: Mutex::new(NamespaceRecheckSchedule::new(authenticator.config.recheck)),
            changed: Notify::new(),
        });
        Self {
            authenticator,
            access,
            user: Mutex::new(user),
            decisions: watch::Sender::default(),
            name_count: AtomicUsize::new(0),
            pending: Mutex::default(),
            occurred: Notify::new(),
            rechecks,
        }
    }

    pub(super) fn decision(&self, namespace: &str) -> Option<NamespaceAccess> {
        self.decisions.borrow().get(namespace).cloned()
    }

    /// Whether there is a namespace in which only named objects are readable.
    pub(super) fn has_names(&self) -> bool {
        self.name_count.load(Ordering::Relaxed) > 0
    }

    pub(super) fn subscribe(&self) -> watch::Receiver<NamespaceAccessMap> {
        self.decisions.subscribe()
    }

    /// Reviews the namespaces without a decision.
    ///
    /// # Errors
    /// Upstream did not answer, or there are too many namespaces.
    pub(super) async fn review_all(&self, namespaces: BTreeSet<Arc<str>>) -> Result<(), GrantError> {
        if namespaces.len() > NAMESPACES_MAX {
            return Err(GrantError::TooManyNamespaces { max: NAMESPACES_MAX });
        }
        let known = self.decisions.borrow().clone();
        let unknown: Vec<_> = namespaces.into_iter().filter(|namespace| !is_known(&known, namespace)).collect();
        let reviewed = self.review(&unknown, true).await;
        unknown.iter().for_each(|namespace| self.remove_unreviewed(namespace));
        reviewed
    }

    /// Reviews namespaces without a decision and stores the results. Without `needs_all`, those whose review fails stay
    /// without a decision.
    ///
    /// # Errors
    /// Upstream did not answer one of all, or there are too many namespaces.
    async fn review(&self, namespaces: &[Arc<str>], needs_all: bool) -> Result<(), GrantError> {
        self.reserve(namespaces)?;
        let (user, since) = (self.user.lock().clone(), Instant::now());
        let from_now = namespaces.iter().map(|namespace| (namespace.clone(), since)).collect();
        let mut reviews = pin!(self.decide(&user, from_now, ReviewPurpose::Request));
        while let Some((namespace, began, outcome)) = reviews.next().await {
            match outcome {
                Ok(decision) => self.record(namespace, began, decision),
                Err(error) if needs_all => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Sets the current user. If the user differs, all namespaces are reviewed again.
    pub(super) fn set_user(&self, user: &Arc<User>) {
        let before = std::mem::replace(&mut *self.user.lock(), user.clone());
        if before != *user {
            self.refresh_names(false);
            self.recheck(&AffectedNamespaces::Everywhere, Instant::now());
        }
    }

    /// Records a policy change. Only the namespaces that the change affects are reviewed again.
    pub(super) fn recheck(&self, affected: &AffectedNamespaces, at: Instant) {
        if let Some(rechecks) = &self.rechecks
            && rechecks.schedule.lock().policy_changed(affected, at)
        {
            rechecks.changed.notify_one();
        }
    }

    /// Reviews known namespaces again, each in its time.
    ///
    /// Completes when nothing may be served any more, because upstream has not answered for longer than the grace of an
    /// outage, or because there is too much to review.
    pub(super) async fn run_rechecks(&self) -> GrantError {
        let Some(rechecks) = &self.rechecks else { return std::future::pending().await };
        let Authenticator { config, outages, .. } = &*self.authenticator;
        let (mut busy_since, mut outage) = (None, None);
        loop {
            if rechecks.changed.notified().now_or_never().is_some() {
                self.refresh_names(true);
            }
            let (now, due) = (Instant::now(), rechecks.schedule.lock().next());
            let Some(due) = due.filter(|due| *due <= now) else {
                busy_since = None;
                tokio::select! {
                    biased;
                    () = sleep_until_opt(due) => {}
                    () = rechecks.changed.notified() => self.refresh_names(true),
                }
                continue;
            };
            if now > due.max(*busy_since.get_or_insert(now)) + DELAY_MAX {
                return self.authenticator.access_reviewer.queue.limit_error();
            }
            match self.review_due(rechecks, now).await {
                Ok(()) => outage = None,
                Err(error @ GrantError::TooMany { .. }) => return error,
                Err(error) => {
                    let outage = outage.get_or_insert_with(|| ReviewOutage::begin(outages));
                    // Upstream caused the delay.
                    busy_since = None;
                    let ends = match error {
                        // Upstream answers, so this is no outage of it.
                        GrantError::RulesUnknown { since } => Some(since + config.recheck),
                        _ => {
                            let oldest = rechecks.schedule.lock().oldest();
                            oldest.map(|oldest| outage.ends(&error, oldest, config.outage_grace))
                        }
                    };
                    if ends.is_some_and(|ends| ends <= Instant::now()) {
                        return error;
                    }
                }
            }
        }
    }

    /// Reviews the next batch of due namespaces. Returns an error if a review was not answered.
    async fn review_due(&self, rechecks: &NamespaceRecheckState, now: Instant) -> Result<(), GrantError> {
        let batch =
            rechecks.schedule.lock().take_due(now, SLACK.min(self.authenticator.config.recheck / 12), BATCH_MAX);
        let user = self.user.lock().clone();
        let retry_at = now + RETRY_DELAY;
        let (mut result, mut any_answered) = (Ok(()), false);
        let mut reviews = pin!(self.decide(&user, batch, ReviewPurpose::Namespace));
        while let Some((namespace, since, outcome)) = reviews.next().await {
            match outcome {
                Ok((decision, certain_until)) => {
                    rechecks.schedule.lock().record_review(&namespace, since, certain_until);
                    self.set(namespace, decision);
                    any_answered = true;
                }
                Err(error) => {
                    rechecks.schedule.lock().retry_at(&namespace, retry_at);
                    // An outage of upstream ends the watch in its own time, also if the rules are unknown.
                    if result.is_ok() || !matches!(error, GrantError::RulesUnknown { .. }) {
                        result = Err(error);
                    }
                }
            }
        }
        // As long as upstream answers some reviews, a failing one does not delay the others.
        if result.is_err() && !any_answered {
            rechecks.schedule.lock().postpone(Instant::now() + RETRY_DELAY);
        }
        result
    }

    /// Hides the objects that the rules no longer allow by name. They do not wait for upstream's review of the namespace.
    /// While the rules are not known, `keeps` says whether the objects stay visible.
    fn refresh_names(&self, keeps: bool) {
        let (user, decisions) = (self.user.lock().clone(), self.decisions.borrow().clone());
        for namespace in decisions.iter().filter(|(_, access)| access.name_count() > 0).map(|(namespace, _)| namespace)
        {
            let access = self.access.in_namespace(namespace);
            match self.authenticator.access_reviewer.names(&user, &access) {
                Ok(Some(names)) => self.set(namespace.clone(), NamespaceAccess::Named(names)),
                Err(_) if keeps => {}
                Ok(None) | Err(_) => self.set(namespace.clone(), NamespaceAccess::Denied),
            }
        }
    }

    /// Reserves room for the decisions of namespaces before the namespaces are reviewed.
    fn reserve(&self, namespaces: &[Arc<str>]) -> Result<(), GrantError> {
        let Some(rechecks) = &self.rechecks else { return Ok(()) };
        let mut schedule = rechecks.schedule.lock();
        let more = namespaces.iter().filter(|namespace| !schedule.contains(namespace)).count();
        if !rechecks.permits.try_resize(schedule.len() + more) {
            return Err(self.authenticator.access_reviewer.queue.limit_error());
        }
        namespaces.iter().for_each(|namespace| schedule.add(namespace, Instant::now()));
        Ok(())
    }

    /// Removes a namespace whose review had no result.
    fn remove_unreviewed(&self, namespace: &Arc<str>) {
        if let Some(rechecks) = &self.rechecks {
            rechecks.schedule.lock().remove_unreviewed(namespace);
        }
    }

    /// Schedules the review of a namespace that occurred in a watch.
    ///
    /// # Errors
    /// There are too many namespaces.
    pub(super) fn request_review(&self, namespace: &str) -> Result<(), GrantError> {
        let mut pending = self.pending.lock();
        let count = self.decisions.borrow().len() + pending.len() + 1;
        if count > NAMESPACES_MAX {
            return Err(GrantError::TooManyNamespaces { max: NAMESPACES_MAX });
        }
        if !pending.contains(namespace) {
            let namespace = Arc::from(namespace);
            self.reserve(std::slice::from_ref(&namespace))?;
            pending.insert(namespace);
            self.occurred.notify_one();
        }
        Ok(())
    }

    /// Reviews namespaces as they occur in a watch, for as long as the future is polled.
    pub(super) async fn run_reviews(&self) -> std::convert::Infallible {
        loop {
            let unanswered: Vec<_> = {
                let decisions = self.decisions.borrow();
                let unanswered = decisions.iter().filter(|(_, decision)| **decision == NamespaceAccess::Unanswered);
                unanswered.map(|(namespace, _)| namespace.clone()).collect()
            };
            tokio::select! {
                biased;
                () = self.occurred.notified() => {}
                () = sleep(RETRY_DELAY), if !unanswered.is_empty() => {}
            }
            let mut pending = self.pending.lock().clone();
            pending.extend(unanswered);
            let batch: Vec<_> = pending.iter().cloned().collect();
            // A namespace whose review is late is not served, and does not delay others.
            let _ = timeout(REVIEW_TIMEOUT, self.review(&batch, false)).await;
            for namespace in batch {
                self.pending.lock().remove(&namespace);
                self.remove_unreviewed(&namespace);
                if !is_known(&self.decisions.borrow(), &namespace) {
                    self.set(namespace, NamespaceAccess::Unanswered);
                }
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_pending(&self, namespace: &str) -> bool {
        self.pending.lock().contains(namespace)
    }

    /// Reviews each namespace. A denial is `Ok` too. Each decision has the time until which it is certain, which is
    /// earlier than now if it is by stale rules.
    fn decide(
        &self,
        user: &Arc<User>,
        namespaces: Vec<(Arc<str>, Instant)>,
        purpose: ReviewPurpose,
    ) -> impl Stream<Item = (Arc<str>, Instant, NamespaceAccessResult)> {
        let review = move |(namespace, since): (Arc<str>, Instant)| async move {
            let oldest = Some(since).filter(|_| purpose != ReviewPurpose::Request);
            let access = Arc::new(self.access.in_namespace(&namespace));
            let outcome = match self.authenticator.access_reviewer.decide(user, &access, purpose, oldest).await {
                Ok(decision) => Ok((NamespaceAccess::Allowed, decision.certain_until())),
                Err(GrantError::Denied(_)) => self.denied(user, &namespace, (&access, since), purpose),
                Err(error) => Err(error),
            };
            (namespace, since, outcome)
        };
        stream::iter(namespaces).map(review).buffer_unordered(IN_FLIGHT_MAX)
    }

    /// Returns the decision on a namespace of which upstream has denied to read all objects.
    ///
    /// # Errors
    /// Objects are shown by name, or may have to be, and the rules are not known.
    fn denied(
        &self,
        user: &Arc<User>,
        namespace: &str,
        (access, since): (&AccessAttributes, Instant),
        purpose: ReviewPurpose,
    ) -> NamespaceAccessResult {
        let reviewer = &self.authenticator.access_reviewer;
        match reviewer.names(user, access) {
            Ok(None) => Ok((NamespaceAccess::Denied, since)),
            Ok(Some(names)) => {
                let certain_until = reviewer.names_certain_until(user, access, purpose, &names);
                Ok((NamespaceAccess::Named(names), certain_until.unwrap_or(since)))
            }
            Err(RulesUnknown { since: unknown_since, is_readable }) => {
                let is_named = matches!(self.decision(namespace), Some(NamespaceAccess::Named(_)));
                let may_return = is_readable && unknown_since.elapsed() < RULES_WAIT_MAX;
                if is_named || purpose == ReviewPurpose::Request && may_return {
                    return Err(GrantError::RulesUnknown { since: unknown_since });
                }
                Ok((NamespaceAccess::Denied, since))
            }
        }
    }

    /// Stores the decision on a namespace, unless one is known.
    fn record(&self, namespace: Arc<str>, began: Instant, (decision, certain_until): (NamespaceAccess, Instant)) {
        self.pending.lock().remove(&namespace);
        if is_known(&self.decisions.borrow(), &namespace) {
            return;
        }
        if let Some(rechecks) = &self.rechecks {
            rechecks.schedule.lock().record_first_review(&namespace, began, certain_until);
            rechecks.changed.notify_one();
        }
        self.set(namespace, decision);
    }

    /// Stores the decision on a namespace. Without room for its names, it is a denial.
    pub(super) fn set(&self, namespace: Arc<str>, mut decision: NamespaceAccess) {
        self.decisions.send_if_modified(|decisions| {
            let before = decisions.get(&namespace).map_or(0, NamespaceAccess::name_count);
            let others = self.name_count.load(Ordering::Relaxed) - before;
            if others + decision.name_count() > NAMES_MAX {
                decision = NamespaceAccess::Denied;
            }
            self.name_count.store(others + decision.name_count(), Ordering::Relaxed);
            decisions.insert(namespace, decision.clone()) != Some(decision)
        });
    }
}

impl NamespaceAccess {
    /// Whether an object with this name is readable in the namespace.
    pub fn allows(&self, name: &str) -> bool {
        match self {
            Self::Allowed => true,
            Self::Named(names) => names.contains(name),
            Self::Denied | Self::Unanswered => false,
        }
    }

    fn name_count(&self) -> usize {
        if let Self::Named(names) = self { names.len() } else { 0 }
    }
}

fn is_known(decisions: &NamespaceAccessMap, namespace: &str) -> bool {
    !matches!(decisions.get(namespace), None | Some(NamespaceAccess::Unanswered))
}

impl std::fmt::Debug for NamespaceDecisions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamespaceDecisions").field("namespaces", &self.decisions.borrow().len()).finish_non_exhaustive()
    }
}
