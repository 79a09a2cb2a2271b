use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{AffectedNamespaces, GrantError, metrics};
use base::random;

/// The times at which the namespaces of a readable watch are reviewed again. They are spread over the period, and
/// earlier for a namespace whose policy has changed.
#[derive(Debug)]
pub(super) struct NamespaceRecheckSchedule {
    period: Duration,
    items: BTreeMap<Arc<str>, ScheduledNamespaceRecheck>,
}

#[derive(Debug)]
struct ScheduledNamespaceRecheck {
    /// The time at which the namespace's last answered review was sent, or until which the rules were current.
    last_reviewed: Instant,
    /// Whether upstream has answered a review of the namespace.
    is_known: bool,
    /// The time at which the namespace's next review is due; `None` while it is being reviewed.
    due: Option<Instant>,
    /// The time at which the policy of the namespace changed. A decision from before is not accepted.
    changed: Option<Instant>,
}

/// The policy changes for which a lease must be reviewed. One review covers all of them until it is sent.
#[derive(Debug, Default)]
pub(super) struct RecheckRequests {
    pending: Mutex<Option<RecheckRequest>>,
    added: Notify,
}

/// A policy change that may affect a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecheckRequest {
    /// The time at which the change was received. A decision of an earlier review is not accepted.
    pub(super) since: Instant,
    /// The time at which the review is sent.
    pub(super) begins_at: Instant,
    /// The time until which the permission was certain.
    pub(super) certain_until: Instant,
    /// Whether the access was allowed by rules that have changed.
    pub(super) lost_rule: bool,
    /// Whether a review that all leases need can wait until `begins_at`, because the rules may be known again by then.
    pub(super) is_deferred: bool,
}

/// The time in which an open watch continues although its permissions cannot be checked. A review with an answer ends it.
#[derive(Debug)]
pub(super) struct ReviewOutage<'a> {
    /// The number of outages.
    count: &'a Mutex<usize>,
    /// The time since which upstream rejects the proxy's reviews without another result in between.
    forbidden_since: Option<Instant>,
}

/// How long open watches continue after upstream begins to reject the proxy's reviews. An apiserver that starts does so
/// for some seconds (R-UPSTREAM-5).
const FORBIDDEN_GRACE: Duration = Duration::from_secs(30);

impl NamespaceRecheckSchedule {
    /// Creates an empty schedule. A decision is valid for at most `period`.
    pub(super) fn new(period: Duration) -> Self {
        Self { period, items: BTreeMap::new() }
    }

    /// Adds an unknown namespace before its review is sent, so that no policy change is missed between the two.
    pub(super) fn add(&mut self, namespace: &Arc<str>, now: Instant) {
        self.items.entry(namespace.clone()).or_insert_with(|| ScheduledNamespaceRecheck::new(now));
    }

    /// Removes a namespace without a result, unless a concurrent review had one.
    pub(super) fn remove_unreviewed(&mut self, namespace: &Arc<str>) {
        if self.items.get(namespace).is_some_and(|item| !item.is_known) {
            self.items.remove(namespace);
        }
    }

    /// Returns the number of namespaces in the schedule.
    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn contains(&self, namespace: &str) -> bool {
        self.items.contains_key(namespace)
    }

    /// Records the answer to a namespace's review that was sent at `sent`, by rules that were current until `certain_until`.
    pub(super) fn record_review(&mut self, namespace: &Arc<str>, sent: Instant, certain_until: Instant) {
        let item = self.items.entry(namespace.clone()).or_insert_with(|| ScheduledNamespaceRecheck::new(sent));
        // The first recheck is at a random time within the period, so that namespaces found together are reviewed at
        // different times. Later ones follow once per period.
        let share = if item.is_known { 0.8 + 0.2 * random::f64() } else { random::f64() };
        item.changed = item.changed.filter(|changed| *changed > sent);
        item.due = Some(item.changed.unwrap_or(sent + self.period.mul_f64(share)));
        (item.last_reviewed, item.is_known) = (certain_until.min(sent), true);
    }

    /// Records the first result for a namespace, of a review that was sent at `began` or shortly
    /// before.
    pub(super) fn record_first_review(&mut self, namespace: &Arc<str>, began: Instant, certain_until: Instant) {
        // If a concurrent review has removed it, changes since then were not tracked.
        let (now, began_at) = (Some(Instant::now()), ScheduledNamespaceRecheck::new(began));
        let untracked = ScheduledNamespaceRecheck { changed: now, is_known: true, ..began_at };
        self.items.entry(namespace.clone()).or_insert(untracked);
        self.record_review(namespace, began, certain_until);
    }

    /// Records that upstream did not answer a namespace's review. The namespace is reviewed at `at`.
    pub(super) fn retry_at(&mut self, namespace: &Arc<str>, at: Instant) {
        if let Some(item) = self.items.get_mut(namespace) {
            item.due = Some(at);
        }
    }

    /// Records a policy change. Returns whether it affects a known namespace.
    pub(super) fn policy_changed(&mut self, affected: &AffectedNamespaces, at: Instant) -> bool {
        let mut is_any_affected = false;
        for (_, item) in self.items.iter_mut().filter(|(namespace, _)| affected.contains(namespace)) {
            (item.due, item.changed) = (item.due.map(|due| due.min(at)), Some(at));
            is_any_affected = true;
        }
        is_any_affected
    }

    /// Returns the time at which the next namespace is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.items.values().filter_map(|item| item.due).min()
    }

    /// Takes the due namespaces, the earliest first, up to `count_max`, each with the time before which no decision is
    /// accepted. They stay in the schedule without a due time.
    pub(super) fn take_due(&mut self, now: Instant, slack: Duration, count_max: usize) -> Vec<(Arc<str>, Instant)> {
        let is_due = |item: &ScheduledNamespaceRecheck| item.due.is_some_and(|due| due <= now);
        let mut due_now: Vec<_> = self.items.iter_mut().filter(|(_, item)| is_due(item)).collect();
        due_now.sort_by_key(|(_, item)| item.due);
        due_now.truncate(count_max);
        let take = |(namespace, item): (&Arc<str>, &mut ScheduledNamespaceRecheck)| {
            item.due = None;
            (namespace.clone(), item.changed.unwrap_or_else(|| now.checked_sub(slack).unwrap_or(now)))
        };
        due_now.into_iter().map(take).collect()
    }

    /// Postpones all reviews until `until`, because upstream does not answer.
    pub(super) fn postpone(&mut self, until: Instant) {
        self.items.values_mut().for_each(|item| item.due = item.due.map(|due| due.max(until)));
    }

    /// Returns the time at which the oldest review was sent among those whose decisions are in use.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.items.values().filter(|item| item.is_known).map(|item| item.last_reviewed).min()
    }
}

impl ScheduledNamespaceRecheck {
    fn new(now: Instant) -> Self {
        Self { last_reviewed: now, is_known: false, due: None, changed: None }
    }
}

impl RecheckRequest {
    /// Returns the request for a change that was received at `now`, and whose review is sent at once.
    pub(super) fn at(now: Instant) -> Self {
        Self { since: now, begins_at: now, certain_until: now, lost_rule: false, is_deferred: false }
    }
}

impl RecheckRequests {
    pub(super) fn add(&self, request: RecheckRequest) {
        let mut pending = self.pending.lock();
        let before = pending.unwrap_or(request);
        *pending = Some(RecheckRequest {
            since: before.since.max(request.since),
            begins_at: before.begins_at.min(request.begins_at),
            certain_until: before.certain_until.min(request.certain_until),
            lost_rule: before.lost_rule || request.lost_rule,
            is_deferred: before.is_deferred && request.is_deferred,
        });
        drop(pending);
        self.added.notify_one();
    }

    /// Accepts no decision from before `since` if a deferred review is pending. Returns whether one is.
    pub(super) fn defer(&self, since: Instant) -> bool {
        let mut pending = self.pending.lock();
        let deferred = pending.as_mut().filter(|pending| pending.is_deferred);
        deferred.map(|pending| pending.since = pending.since.max(since)).is_some()
    }

    /// Sends the pending review at once, if there is one.
    pub(super) fn expedite(&self) {
        if let Some(pending) = &mut *self.pending.lock() {
            pending.begins_at = Instant::now();
            self.added.notify_one();
        }
    }

    /// Completes when a policy change requires a review.
    pub(super) async fn due(&self) -> RecheckRequest {
        loop {
            let Some(begins_at) = self.pending.lock().map(|request| request.begins_at) else {
                self.added.notified().await;
                continue;
            };
            tokio::select! {
                biased;
                () = sleep_until(begins_at) => {}
                () = self.added.notified() => continue,
            }
            if let Some(request) = self.pending.lock().take() {
                return request;
            }
        }
    }
}

impl<'a> ReviewOutage<'a> {
    /// Begins an outage, which `count` includes until it is dropped.
    pub(super) fn begin(count: &'a Mutex<usize>) -> Self {
        let mut outages = count.lock();
        *outages += 1;
        metrics::outage(*outages);
        Self { count, forbidden_since: None }
    }

    /// Returns the time at which watches end if `error` remains the only result. The first failed check was due at
    /// `since`, and `outage` is the grace of an outage. If the proxy's account may not create reviews, that does not
    /// count as an outage (docs/SECURITY.md, "When the apiserver is unreachable"), but an outage may precede it.
    pub(super) fn ends(&mut self, error: &GrantError, since: Instant, outage: Duration) -> Instant {
        let outage_ends = since + outage;
        if !matches!(error, GrantError::ReviewsForbidden(_)) {
            self.forbidden_since = None;
            return outage_ends;
        }
        outage_ends.min(*self.forbidden_since.get_or_insert_with(Instant::now) + FORBIDDEN_GRACE)
    }
}

impl Drop for ReviewOutage<'_> {
    fn drop(&mut self) {
        let mut outages = self.count.lock();
        *outages -= 1;
        metrics::outage(*outages);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{advance, pause};

    use super::*;

    const PERIOD: Duration = Duration::from_secs(60);
    const SLACK: Duration = Duration::from_secs(5);

    fn within(namespaces: &[&str]) -> AffectedNamespaces {
        AffectedNamespaces::Within(namespaces.iter().map(|&namespace| Arc::from(namespace)).collect())
    }

    fn schedule(count: usize, now: Instant) -> NamespaceRecheckSchedule {
        let mut schedule = NamespaceRecheckSchedule::new(PERIOD);
        (0..count).for_each(|number| schedule.record_review(&Arc::from(format!("t{number}")), now, now));
        schedule
    }

    fn names(due_now: &[(Arc<str>, Instant)]) -> Vec<&str> {
        due_now.iter().map(|(namespace, _)| &**namespace).collect()
    }

    /// Each is reviewed once per period, and never many at once.
    #[tokio::test(start_paused = true)]
    async fn namespace_reviews_are_spread_over_the_period() {
        let mut schedule = schedule(600, Instant::now());
        let mut last: BTreeMap<Arc<str>, Instant> =
            schedule.items.iter().map(|(name, item)| (name.clone(), item.last_reviewed)).collect();
        for second in 1..=240 {
            advance(Duration::from_secs(1)).await;
            let now = Instant::now();
            let due_now = schedule.take_due(now, SLACK, usize::MAX);
            assert!(due_now.len() < 40, "second {second}: {} at once", due_now.len());
            for (namespace, since) in due_now {
                assert_eq!(Some(since), now.checked_sub(SLACK));
                let before = last.insert(namespace.clone(), now).expect("it is known");
                assert!(now - before <= PERIOD + Duration::from_secs(1), "{namespace}");
                schedule.record_review(&namespace, now, now);
            }
        }
        assert!(last.values().all(|sent| sent.elapsed() <= PERIOD), "all of them");
    }

    #[tokio::test]
    async fn policy_change_reviews_only_affected_namespaces() {
        pause();
        let mut schedule = schedule(20, Instant::now());
        advance(Duration::from_millis(1)).await;
        let now = Instant::now();
        assert!(!schedule.policy_changed(&within(&["t", "t20", "t1-x"]), now), "nothing is known of these");
        assert!(schedule.policy_changed(&within(&["t1", "t10", "unknown"]), now));
        let due_now = schedule.take_due(now, SLACK, usize::MAX);
        assert_eq!(due_now.iter().filter(|(_, since)| *since == now).count(), 2, "an older answer will not do");
        assert!(names(&due_now).contains(&"t1") && names(&due_now).contains(&"t10"));
        // It has changed once more during the review.
        advance(Duration::from_millis(1)).await;
        let at = Instant::now();
        schedule.policy_changed(&within(&["t10"]), at);
        due_now.iter().for_each(|(namespace, _)| schedule.record_review(namespace, now, now));
        assert_eq!(schedule.take_due(at, SLACK, usize::MAX), [(Arc::from("t10"), at)]);
        schedule.record_review(&Arc::from("t10"), at, at);
        assert!(schedule.take_due(at, SLACK, usize::MAX).is_empty());
        schedule.policy_changed(&AffectedNamespaces::Everywhere, at);
        assert_eq!(schedule.take_due(at, SLACK, usize::MAX).len(), 20);
    }

    #[tokio::test]
    async fn failed_namespace_reviews_are_retried_and_keep_their_age() {
        pause();
        let began = Instant::now();
        let mut schedule = schedule(5, began);
        advance(PERIOD).await;
        let now = Instant::now();
        let due_now = schedule.take_due(now, SLACK, 2);
        assert_eq!(due_now.len(), 2);
        let at = now + SLACK;
        due_now.iter().for_each(|(namespace, _)| schedule.retry_at(namespace, at));
        schedule.postpone(at);
        assert_eq!((schedule.next(), schedule.oldest()), (Some(at), Some(began)));
        advance(SLACK).await;
        let due_now = schedule.take_due(at, SLACK, usize::MAX);
        due_now.iter().for_each(|(namespace, _)| schedule.record_review(namespace, at, at));
        assert_eq!((due_now.len(), schedule.oldest()), (5, Some(at)));
    }
}
