use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use imbl::OrdMap;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep, timeout};

use super::access_reviewer::AccessPurpose;
use super::authenticator::Authenticator;
use super::namespace_quota::NamespaceShare;
use super::recheck_schedule::RecheckSchedule;
use super::{AffectedScope, NotGranted};
use base::until;
use kubeapi::{Access, User};
use tokio::sync::watch;

/// The verdicts on a collection's namespaces: which of them somebody may read, as far as that was found out.
pub(super) struct NamespaceVerdicts {
    authenticator: Arc<Authenticator>,
    /// The access that is asked about for each namespace.
    access: Arc<Access>,
    /// The user as last seen: groups may change while a watch is open.
    user: Mutex<Arc<User>>,
    verdicts: watch::Sender<VerdictMap>,
    /// Namespaces that came up in an open watch.
    wanted: Mutex<BTreeSet<Arc<str>>>,
    asked: Notify,
    /// How many questions one user's requests may have under way.
    slots: Arc<Semaphore>,
    /// For a watch: when each namespace is asked about again.
    kept: Option<Kept>,
}

/// What the verdicts of an open watch have besides.
struct Kept {
    period: Duration,
    share: NamespaceShare,
    agenda: Mutex<RecheckSchedule>,
    /// Notified when something becomes due earlier than it was.
    changed: Notify,
}

/// What is known of one namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Allowed,
    Denied,
    /// Upstream was asked, and has not said.
    Unclear,
}

pub(super) type VerdictMap = OrdMap<Arc<str>, Verdict>;

/// Who pays for a question about a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pays {
    /// The caller: for a request, or for a namespace that came up in an open watch.
    Caller,
    /// A lease that is checked again.
    Lease,
}

/// How many namespaces one request is filtered by at most: each costs a question.
pub(super) const NAMESPACES_MAX: usize = 2_000;
/// How many questions about namespaces one user may have under way.
pub(super) const IN_FLIGHT_MAX: usize = 32;
/// How long an open watch may stand still for a namespace of which nothing is known.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// When a question is put again that nobody could answer.
const AGAIN: Duration = Duration::from_secs(5);
/// How many namespaces are asked about in one go. A change of policy that comes meanwhile waits for no more than these.
const TAKEN_MAX: usize = 64;
/// How old an answer may be for a namespace that no change has touched: watches of one user share it.
const SLACK: Duration = Duration::from_secs(5);
/// How late a namespace may be asked about, if the reason is not that upstream does not answer. A namespace that cannot
/// be checked in time is not shown any more.
const LATE_MAX: Duration = Duration::from_secs(10);

impl NamespaceVerdicts {
    pub(super) fn new(
        authenticator: Arc<Authenticator>,
        user: Arc<User>,
        access: Arc<Access>,
        slots: Arc<Semaphore>,
    ) -> Self {
        Self {
            authenticator,
            access,
            user: Mutex::new(user),
            verdicts: watch::Sender::default(),
            wanted: Mutex::default(),
            asked: Notify::new(),
            slots,
            kept: None,
        }
    }

    /// The verdicts of a watch. [`keep`](Self::keep) asks about its namespaces again within each `period`.
    #[must_use]
    pub(super) fn of_watch(self, share: NamespaceShare, period: Duration) -> Self {
        let kept = Kept { period, share, agenda: Mutex::new(RecheckSchedule::new(period)), changed: Notify::new() };
        Self { kept: Some(kept), ..self }
    }

    pub(super) fn verdict(&self, namespace: &str) -> Option<Verdict> {
        self.verdicts.borrow().get(namespace).copied()
    }

    pub(super) fn changes(&self) -> watch::Receiver<VerdictMap> {
        self.verdicts.subscribe()
    }

    /// Finds out about the namespaces of which nothing is known.
    ///
    /// # Errors
    /// Upstream did not say, or there are too many.
    pub(super) async fn find_out(&self, namespaces: BTreeSet<Arc<str>>) -> Result<(), NotGranted> {
        if namespaces.len() > NAMESPACES_MAX {
            return Err(too_many());
        }
        let user = self.user.lock().clone();
        let known = self.verdicts.borrow().clone();
        let unknown: Vec<_> = namespaces.into_iter().filter(|namespace| !is_known(&known, namespace)).collect();
        self.begin(&unknown)?;
        let found_out = self.decide(&user, from_now(&unknown), Pays::Caller, |namespace, began, outcome| {
            self.learn(namespace, began, outcome?);
            Ok(())
        });
        let found_out = found_out.await;
        unknown.iter().for_each(|namespace| self.drop_out(namespace));
        found_out
    }

    /// Sets the user as it is now. Whatever another user was allowed is asked about again.
    pub(super) fn is_of(&self, user: &Arc<User>) {
        let before = std::mem::replace(&mut *self.user.lock(), user.clone());
        if before != *user {
            self.doubt(&AffectedScope::Everywhere, Instant::now());
        }
    }

    /// Notes that policy changed at that moment: the namespaces that it touches are asked about again, and no others.
    pub(super) fn doubt(&self, reach: &AffectedScope, at: Instant) {
        if let Some(kept) = &self.kept
            && kept.agenda.lock().change(reach, at)
        {
            kept.changed.notify_one();
        }
    }

    /// Asks again about what is known, each namespace in its time. Completes when nothing may be shown any more,
    /// because upstream has not answered for longer than `grace`, or because there is too much to ask about. `in_doubt`
    /// is told whether upstream answers.
    pub(super) async fn keep(&self, grace: Duration, in_doubt: impl Fn(bool)) -> NotGranted {
        let Some(kept) = &self.kept else { return std::future::pending().await };
        let mut busy_since = None;
        loop {
            let (now, due) = (Instant::now(), kept.agenda.lock().next());
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
                return self.authenticator.access_reviewer.over_budget();
            }
            match self.assert_due(kept, now).await {
                Ok(()) => in_doubt(false),
                Err(why @ NotGranted::TooMany { .. }) => return why,
                Err(why) => {
                    in_doubt(true);
                    // The delay was upstream's.
                    busy_since = None;
                    let oldest = kept.agenda.lock().oldest();
                    if oldest.is_some_and(|oldest| oldest.elapsed() >= why.grace(grace)) {
                        return why;
                    }
                }
            }
        }
    }

    /// Asks about the namespaces that are due, or the first of them. Returns an error if one was not answered.
    async fn assert_due(&self, kept: &Kept, now: Instant) -> Result<(), NotGranted> {
        let taken = kept.agenda.lock().take(now, SLACK.min(kept.period / 12), TAKEN_MAX);
        let user = self.user.lock().clone();
        let again = now + AGAIN;
        let (mut doubt, mut answers) = (Ok(()), false);
        let asserting = self.decide(&user, taken, Pays::Lease, |namespace, since, outcome| {
            match outcome {
                Ok(verdict) => {
                    kept.agenda.lock().answered(&namespace, since);
                    self.put(namespace, verdict);
                    answers = true;
                }
                Err(why) => {
                    kept.agenda.lock().unanswered(&namespace, again);
                    doubt = Err(why);
                }
            }
            Ok(())
        });
        asserting.await?;
        // As long as upstream answers, the others do not wait for the one about which it does not.
        if doubt.is_err() && !answers {
            kept.agenda.lock().put_off(Instant::now() + AGAIN);
        }
        doubt
    }

    /// Makes room for namespaces that are about to be asked about.
    fn begin(&self, namespaces: &[Arc<str>]) -> Result<(), NotGranted> {
        let Some(kept) = &self.kept else { return Ok(()) };
        let mut agenda = kept.agenda.lock();
        let more = namespaces.iter().filter(|namespace| !agenda.contains(namespace)).count();
        if !kept.share.reach(agenda.len() + more) {
            return Err(self.authenticator.access_reviewer.over_budget());
        }
        namespaces.iter().for_each(|namespace| agenda.begin(namespace, Instant::now()));
        Ok(())
    }

    /// Notes that nothing was found out about a namespace.
    fn drop_out(&self, namespace: &Arc<str>) {
        if let Some(kept) = &self.kept {
            kept.agenda.lock().forget(namespace);
        }
    }

    /// Asks for a namespace that came up.
    ///
    /// # Errors
    /// There are too many.
    pub(super) fn want(&self, namespace: &str) -> Result<(), NotGranted> {
        let mut wanted = self.wanted.lock();
        let count = self.verdicts.borrow().len() + wanted.len() + 1;
        if count > NAMESPACES_MAX {
            return Err(too_many());
        }
        if !wanted.contains(namespace) {
            let namespace = Arc::from(namespace);
            self.begin(std::slice::from_ref(&namespace))?;
            wanted.insert(namespace);
            self.asked.notify_one();
        }
        Ok(())
    }

    /// Answers about namespaces as they come up, for as long as this is polled.
    pub(super) async fn answer(&self) -> std::convert::Infallible {
        loop {
            let unclear = self.unclear();
            tokio::select! {
                biased;
                () = self.asked.notified() => {}
                () = sleep(AGAIN), if !unclear.is_empty() => {}
            }
            let mut wanted = self.wanted.lock().clone();
            wanted.extend(unclear);
            let user = self.user.lock().clone();
            let asked: Vec<_> = wanted.iter().cloned().collect();
            let answering = async {
                self.begin(&asked)?;
                self.decide(&user, from_now(&asked), Pays::Caller, |namespace, began, outcome| {
                    if let Ok(verdict) = outcome {
                        self.wanted.lock().remove(&namespace);
                        self.learn(namespace, began, verdict);
                    }
                    Ok(())
                })
                .await
            };
            // A namespace that was not answered in time is not shown, and holds up no others.
            let _: Result<_, _> = timeout(ANSWER_MAX, answering).await;
            for namespace in asked {
                self.wanted.lock().remove(&namespace);
                self.drop_out(&namespace);
                self.learn_nothing(namespace);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn is_wanted(&self, namespace: &str) -> bool {
        self.wanted.lock().contains(namespace)
    }

    fn unclear(&self) -> Vec<Arc<str>> {
        let verdicts = self.verdicts.borrow();
        let unclear = verdicts.iter().filter(|(_, verdict)| **verdict == Verdict::Unclear);
        unclear.map(|(namespace, _)| namespace.clone()).collect()
    }

    /// Asks about each namespace, until `take` has had enough. A verdict is `Ok`, also if it is no.
    async fn decide(
        &self,
        user: &Arc<User>,
        namespaces: Vec<(Arc<str>, Instant)>,
        pays: Pays,
        mut take: impl FnMut(Arc<str>, Instant, Result<Verdict, NotGranted>) -> Result<(), NotGranted>,
    ) -> Result<(), NotGranted> {
        let mut asking = FuturesUnordered::new();
        for (namespace, since) in namespaces {
            if asking.len() >= IN_FLIGHT_MAX
                && let Some((namespace, since, outcome)) = asking.next().await
            {
                take(namespace, since, outcome)?;
            }
            asking.push(self.ask(user, namespace, since, pays));
        }
        while let Some((namespace, since, outcome)) = asking.next().await {
            take(namespace, since, outcome)?;
        }
        Ok(())
    }

    async fn ask(
        &self,
        user: &Arc<User>,
        namespace: Arc<str>,
        since: Instant,
        pays: Pays,
    ) -> (Arc<str>, Instant, Result<Verdict, NotGranted>) {
        // A lease does not wait for the caller's own requests.
        let (_slot, asks) = match pays {
            Pays::Caller => (self.slots.acquire().await.ok(), AccessPurpose::Request),
            Pays::Lease => (None, AccessPurpose::Namespace { since }),
        };
        let access = Arc::new(self.access.within(&namespace));
        let outcome = match self.authenticator.access_reviewer.decide(user, &access, asks).await {
            Ok(_) => Ok(Verdict::Allowed),
            Err(NotGranted::Denied(_)) => Ok(Verdict::Denied),
            Err(why) => Err(why),
        };
        (namespace, since, outcome)
    }

    /// Notes a verdict, unless a newer one is known.
    fn learn(&self, namespace: Arc<str>, began: Instant, verdict: Verdict) {
        if is_known(&self.verdicts.borrow(), &namespace) {
            return;
        }
        if let Some(kept) = &self.kept {
            kept.agenda.lock().found_out(&namespace, began);
            kept.changed.notify_one();
        }
        self.put(namespace, verdict);
    }

    fn learn_nothing(&self, namespace: Arc<str>) {
        if !is_known(&self.verdicts.borrow(), &namespace) {
            self.put(namespace, Verdict::Unclear);
        }
    }

    pub(super) fn put(&self, namespace: Arc<str>, verdict: Verdict) {
        self.verdicts.send_if_modified(|verdicts| verdicts.insert(namespace, verdict) != Some(verdict));
    }
}

/// Each namespace with this moment, at which it begins to be asked about.
fn from_now(namespaces: &[Arc<str>]) -> Vec<(Arc<str>, Instant)> {
    let since = Instant::now();
    namespaces.iter().map(|namespace| (namespace.clone(), since)).collect()
}

fn is_known(verdicts: &VerdictMap, namespace: &str) -> bool {
    !matches!(verdicts.get(namespace), None | Some(Verdict::Unclear))
}

fn too_many() -> NotGranted {
    NotGranted::Denied(
        format!("its objects are in more than {NAMESPACES_MAX} namespaces, too many to ask about").into(),
    )
}

impl std::fmt::Debug for NamespaceVerdicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NamespaceVerdicts").field("namespaces", &self.verdicts.borrow().len()).finish_non_exhaustive()
    }
}
