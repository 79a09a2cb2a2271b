use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::AffectedNamespaces;
use base::random;

/// The times at which the namespaces of a readable watch are reviewed again. They are spread over the period, and
/// earlier for a namespace whose policy has changed.
#[derive(Debug)]
pub(super) struct NamespaceRecheckSchedule {
    period: Duration,
    items: BTreeMap<Arc<str>, ScheduledNamespaceRecheck>,
    due: BTreeSet<(Instant, Arc<str>)>,
}

#[derive(Debug, Clone)]
struct ScheduledNamespaceRecheck {
    /// The time at which the namespace's last answered review was sent.
    asserted: Instant,
    /// Whether upstream has answered a review of the namespace.
    is_known: bool,
    /// The time at which the namespace's next review is due; `None` while it is being reviewed.
    due: Option<Instant>,
    /// The time at which the policy of the namespace changed. A decision from before is not accepted.
    changed: Option<Instant>,
}

impl NamespaceRecheckSchedule {
    /// Creates an empty schedule. A decision is valid for at most `period`.
    pub(super) fn new(period: Duration) -> Self {
        Self { period, items: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// Adds an unknown namespace before its review is sent, so that no policy change is missed between the two.
    pub(super) fn begin(&mut self, namespace: &Arc<str>, now: Instant) {
        if !self.items.contains_key(namespace) {
            self.put(namespace, ScheduledNamespaceRecheck { asserted: now, is_known: false, due: None, changed: None });
        }
    }

    /// Removes a namespace without a result, unless a concurrent review had one.
    pub(super) fn forget(&mut self, namespace: &Arc<str>) {
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

    /// Records the answer to a namespace's review that was sent at `sent`.
    pub(super) fn answered(&mut self, namespace: &Arc<str>, sent: Instant) {
        let before = self.items.get(namespace);
        // The first recheck is at a random time within the period, so that namespaces found together are reviewed at
        // different times. Later ones follow once per period.
        let share = if before.is_some_and(|item| item.is_known) { 0.8 + 0.2 * random::f64() } else { random::f64() };
        let changed = before.and_then(|item| item.changed).filter(|changed| *changed > sent);
        let due = changed.unwrap_or(sent + self.period.mul_f64(share));
        self.put(namespace, ScheduledNamespaceRecheck { asserted: sent, is_known: true, due: Some(due), changed });
    }

    /// Records the result for a namespace that [began](Self::begin), by a review that was sent at `began` or shortly
    /// before.
    pub(super) fn reviewed(&mut self, namespace: &Arc<str>, began: Instant) {
        if !self.items.contains_key(namespace) {
            // A concurrent review has removed it, so changes since then were not tracked.
            let now = Instant::now();
            self.put(
                namespace,
                ScheduledNamespaceRecheck { asserted: began, is_known: true, due: None, changed: Some(now) },
            );
        }
        self.answered(namespace, began);
    }

    /// Records that upstream did not answer a namespace's review. The namespace is reviewed at `again`.
    pub(super) fn unanswered(&mut self, namespace: &Arc<str>, again: Instant) {
        if let Some(item) = self.items.get(namespace).cloned() {
            self.put(namespace, ScheduledNamespaceRecheck { due: Some(again), ..item });
        }
    }

    /// Records a policy change. Returns whether it affects a known namespace.
    pub(super) fn change(&mut self, reach: &AffectedNamespaces, at: Instant) -> bool {
        let touched: Vec<_> = match reach {
            AffectedNamespaces::Everywhere => self.items.keys().cloned().collect(),
            AffectedNamespaces::Within(namespaces) => {
                namespaces.iter().filter(|of| self.items.contains_key(*of)).cloned().collect()
            }
        };
        for namespace in &touched {
            if let Some(item) = self.items.get(namespace).cloned() {
                self.put(
                    namespace,
                    ScheduledNamespaceRecheck { due: item.due.map(|due| due.min(at)), changed: Some(at), ..item },
                );
            }
        }
        !touched.is_empty()
    }

    /// Returns the time at which the next namespace is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Takes the due namespaces, up to `count_max`, each with the time before which no decision is accepted. They stay
    /// in the schedule without a due time.
    pub(super) fn take(&mut self, now: Instant, slack: Duration, count_max: usize) -> Vec<(Arc<str>, Instant)> {
        let mut taken = Vec::new();
        while taken.len() < count_max && self.due.first().is_some_and(|(due, _)| *due <= now) {
            let Some((_, namespace)) = self.due.pop_first() else { break };
            if let Some(item) = self.items.get_mut(&namespace) {
                item.due = None;
                let since = item.changed.unwrap_or_else(|| now.checked_sub(slack).unwrap_or(now));
                taken.push((namespace, since));
            }
        }
        taken
    }

    /// Postpones all reviews until `until`, because upstream does not answer.
    pub(super) fn put_off(&mut self, until: Instant) {
        while let Some((due, namespace)) = self.due.pop_first() {
            if due >= until {
                self.due.insert((due, namespace));
                break;
            }
            if let Some(item) = self.items.get_mut(&namespace) {
                item.due = Some(until);
                // Its new time is `until`, so the loop ends.
                self.due.insert((until, namespace));
            }
        }
    }

    /// Returns the time at which the oldest review was sent among those whose verdicts are in use.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.items.values().filter(|item| item.is_known).map(|item| item.asserted).min()
    }

    fn put(&mut self, namespace: &Arc<str>, item: ScheduledNamespaceRecheck) {
        let due = item.due;
        if let Some(ScheduledNamespaceRecheck { due: Some(before), .. }) = self.items.insert(namespace.clone(), item) {
            self.due.remove(&(before, namespace.clone()));
        }
        if let Some(due) = due {
            self.due.insert((due, namespace.clone()));
        }
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
        (0..count).for_each(|number| schedule.answered(&Arc::from(format!("t{number}")), now));
        schedule
    }

    fn names(taken: &[(Arc<str>, Instant)]) -> Vec<&str> {
        taken.iter().map(|(namespace, _)| &**namespace).collect()
    }

    /// Each is reviewed once per period, and never many at once.
    #[tokio::test(start_paused = true)]
    async fn namespace_reviews_are_spread_over_the_period() {
        let mut schedule = schedule(600, Instant::now());
        let mut last: BTreeMap<Arc<str>, Instant> =
            schedule.items.iter().map(|(name, item)| (name.clone(), item.asserted)).collect();
        for second in 1..=240 {
            advance(Duration::from_secs(1)).await;
            let now = Instant::now();
            let taken = schedule.take(now, SLACK, usize::MAX);
            assert!(taken.len() < 40, "second {second}: {} at once", taken.len());
            for (namespace, since) in taken {
                assert_eq!(Some(since), now.checked_sub(SLACK));
                let before = last.insert(namespace.clone(), now).expect("it is known");
                assert!(now - before <= PERIOD + Duration::from_secs(1), "{namespace}");
                schedule.answered(&namespace, now);
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
        assert!(!schedule.change(&within(&["t", "t20", "t1-x"]), now), "nothing is known of these");
        assert!(schedule.change(&within(&["t1", "t10", "unknown"]), now));
        let taken = schedule.take(now, SLACK, usize::MAX);
        assert_eq!(taken.iter().filter(|(_, since)| *since == now).count(), 2, "an older answer will not do");
        assert!(names(&taken).contains(&"t1") && names(&taken).contains(&"t10"));
        // It has changed once more during the review.
        advance(Duration::from_millis(1)).await;
        let again = Instant::now();
        schedule.change(&within(&["t10"]), again);
        taken.iter().for_each(|(namespace, _)| schedule.answered(namespace, now));
        assert_eq!(schedule.take(again, SLACK, usize::MAX), [(Arc::from("t10"), again)]);
        schedule.answered(&Arc::from("t10"), again);
        assert!(schedule.take(again, SLACK, usize::MAX).is_empty());
        schedule.change(&AffectedNamespaces::Everywhere, again);
        assert_eq!(schedule.take(again, SLACK, usize::MAX).len(), 20);
    }

    #[tokio::test]
    async fn failed_namespace_reviews_are_retried_and_keep_their_age() {
        pause();
        let began = Instant::now();
        let mut schedule = schedule(5, began);
        advance(PERIOD).await;
        let now = Instant::now();
        let taken = schedule.take(now, SLACK, 2);
        assert_eq!(taken.len(), 2);
        let again = now + SLACK;
        taken.iter().for_each(|(namespace, _)| schedule.unanswered(namespace, again));
        schedule.put_off(again);
        assert_eq!((schedule.next(), schedule.oldest()), (Some(again), Some(began)));
        advance(SLACK).await;
        let taken = schedule.take(again, SLACK, usize::MAX);
        taken.iter().for_each(|(namespace, _)| schedule.answered(namespace, again));
        assert_eq!((taken.len(), schedule.oldest()), (5, Some(again)));
    }
}
