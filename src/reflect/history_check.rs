//! Checks whether upstream's history is still the one that a feed holds, when there is reason to doubt it.
//!
//! A check runs concurrently with the stream, which stays open: one lagging server must not cost a client its watch. It
//! lists the current state once. That is a consistent read, so a version below ours proves a rollback. A later state is
//! compared with what the feed had when the check began.
//!
//! If the history is confirmed, the check has no effect and the next one is delayed: ten seconds, then twice as long
//! each time. If the history differs, the feed gives it up: nothing is served until the restored state is loaded, and
//! watches end with 410. The other feeds of the same upstream list as well, within three seconds, and continue if
//! nothing of theirs differs.

use std::future::pending;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout};

use super::continuity::{HistoryComparison, compare, object_versions};
use super::feed_client::FeedTaskContext;
use super::initial_state::{FeedInitialState, RequestedListVersion};
use super::metrics::FeedRequestPurpose;
use base::random;

base::labelled_enum! {
    /// The reason for a history check, in ascending urgency.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub(super) enum HistoryCheckReason {
        /// The stream was lost and reopened, and has not shown that the history is the same. The check begins with a
        /// cheap request for upstream's position.
        Reopened = "watch_reopened",
        /// The stream was reopened and upstream's storage has reached the feed's version. But the stream does not begin
        /// with the change that it should repeat first.
        Unconfirmed = "newest_event_missing",
        /// An upstream response contradicts the cached state.
        Suspected = "response_mismatch",
        /// Another feed found that upstream's storage went back.
        StorageRolledBack = "storage_rolled_back",
    }
}

/// The result of a history check.
#[derive(Debug)]
pub(super) enum HistoryCheckOutcome {
    /// Upstream's storage has reached the feed's version. The histories were not compared.
    Reached,
    /// Upstream has the feed's history.
    Continues,
    /// Upstream has another history, or that must be assumed: the evidence, and upstream's current state.
    Other(&'static str, Box<FeedInitialState>),
    /// The histories can no longer be compared.
    Unproven(HistoryCheckReason),
    /// Upstream did not respond to the check.
    Failed(HistoryCheckReason),
}

/// The history checks of one feed, which run one at a time.
#[derive(Default)]
pub(super) struct HistoryChecks {
    due: Option<(Instant, HistoryCheckReason)>,
    /// The running check. The lock is never contended; it only makes the type `Sync`.
    running: Mutex<Option<BoxFuture<'static, HistoryCheckOutcome>>>,
    /// Limits the rate of history checks, so that an upstream that keeps triggering unfounded ones is not listed
    /// repeatedly.
    false_alarm_backoff: RecurrenceBackoff<10, 300>,
}

/// The earliest time of an action that was in vain the last time. The wait doubles each time, from `FIRST` to `LONGEST`
/// seconds, and starts over after twice the wait.
#[derive(Debug, Default)]
pub(super) struct RecurrenceBackoff<const FIRST: u64, const LONGEST: u64> {
    /// When it happened last, and how many times in a row before that.
    last: Option<(Instant, u32)>,
}

/// The timeout of the position request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);

impl HistoryChecks {
    /// Schedules a check within `from..from + spread`. The spread matters because thousands of feeds may have the same
    /// reason at the same moment.
    pub(super) fn schedule(&mut self, reason: HistoryCheckReason, from: Duration, spread: Duration) {
        let mut when = Instant::now() + from + spread.mul_f64(random::f64());
        if reason == HistoryCheckReason::Suspected {
            when = self.false_alarm_backoff.earliest().map_or(when, |earliest| earliest.max(when));
        }
        // A scheduled check is never delayed, and the more urgent reason covers the other.
        self.due = Some(self.due.map_or((when, reason), |(at, due)| (at.min(when), due.max(reason))));
    }

    /// Cancels a check that was scheduled because the stream was lost, once the stream has shown that the history is
    /// the same.
    pub(super) fn cancel_reopened(&mut self) {
        self.due
            .take_if(|(_, reason)| matches!(reason, HistoryCheckReason::Reopened | HistoryCheckReason::Unconfirmed));
    }

    /// Cancels all checks, because another history has begun.
    pub(super) fn cancel_all(&mut self) {
        *self = Self::default();
    }

    /// Completes with the next outcome of a history check. Cancel-safe.
    pub(super) async fn next(&mut self, upstream: &FeedTaskContext) -> HistoryCheckOutcome {
        loop {
            if let Some(running) = self.running.get_mut() {
                let outcome = running.await;
                *self.running.get_mut() = None;
                if matches!(
                    outcome,
                    HistoryCheckOutcome::Continues
                        | HistoryCheckOutcome::Failed(_)
                        | HistoryCheckOutcome::Unproven(HistoryCheckReason::Suspected)
                ) {
                    self.false_alarm_backoff.record(Instant::now());
                }
                return outcome;
            }
            let Some((when, reason)) = self.due else { return pending().await };
            sleep_until(when).await;
            self.due = None;
            let upstream = upstream.clone();
            *self.running.get_mut() = Some(async move { upstream.check_history(reason).await }.boxed());
        }
    }
}

impl<const FIRST: u64, const LONGEST: u64> RecurrenceBackoff<FIRST, LONGEST> {
    fn delay(times: u32) -> Duration {
        Duration::from_secs(FIRST).saturating_mul(1 << times.min(10)).min(Duration::from_secs(LONGEST))
    }

    /// The earliest time of the next one.
    pub(super) fn earliest(&self) -> Option<Instant> {
        self.last.map(|(at, times)| at + Self::delay(times))
    }

    pub(super) fn record(&mut self, now: Instant) {
        let again = self.last.filter(|(at, times)| now.duration_since(*at) < 2 * Self::delay(*times));
        self.last = Some((now, again.map_or(0, |(_, times)| times + 1)));
    }
}

impl FeedTaskContext {
    /// Sends the requests of one history check to upstream.
    async fn check_history(&self, reason: HistoryCheckReason) -> HistoryCheckOutcome {
        if reason == HistoryCheckReason::Reopened {
            let reached = self.feed.reader.progress().rv;
            self.count_request(FeedRequestPurpose::Position);
            match timeout(REQUEST_TIMEOUT, self.lister(FeedRequestPurpose::Position).storage_position(reached)).await {
                Ok(Ok(at)) if at >= reached => return HistoryCheckOutcome::Reached,
                Ok(Ok(at)) => {
                    let feed = &self.feed.spec.key;
                    tracing::info!(
                        %feed, upstream_rv = %at, rv = %reached,
                        "upstream is behind the cache: restored storage, or a lagging server"
                    );
                }
                Ok(Err(_)) | Err(_) => return HistoryCheckOutcome::Failed(reason),
            }
        }
        self.compare_histories(reason).await
    }

    async fn compare_histories(&self, reason: HistoryCheckReason) -> HistoryCheckOutcome {
        self.count_request(FeedRequestPurpose::Mismatch);
        let cached = self.feed.reader.snapshot();
        let lister = self.lister(FeedRequestPurpose::Mismatch);
        let initial = match async { lister.not_before(cached.rv, lister.current().await?).await }.await {
            Ok(initial) => initial,
            Err(error) => {
                let feed = &self.feed.spec.key;
                tracing::info!(%feed, %error, "cannot list upstream's state to compare histories; retrying");
                return HistoryCheckOutcome::Failed(reason);
            }
        };
        let listed = &initial.snapshot;
        let finding = match compare(&cached, object_versions(listed), listed.rv) {
            // Later changes hide earlier ones, but upstream may still have the state at our version.
            HistoryComparison::Later => match lister.list(RequestedListVersion::Exact(cached.rv)).await {
                Ok(then) => compare(&cached, object_versions(&then.snapshot), then.snapshot.rv),
                Err(_) => HistoryComparison::Later,
            },
            finding => finding,
        };
        let (feed, at, reached) = (&self.feed.spec.key, listed.rv, cached.rv);
        let result = finding.as_str();
        tracing::info!(
            %feed, reason = reason.as_str(), result, upstream_rv = %at, rv = %reached,
            "compared the cache with upstream"
        );
        let evidence = match (finding, reason) {
            (HistoryComparison::Same, _) => return HistoryCheckOutcome::Continues,
            (HistoryComparison::Other, _) => "the current state cannot follow from earlier events",
            // The storage went back, and whether this feed is affected cannot be determined.
            (HistoryComparison::Later, HistoryCheckReason::StorageRolledBack) => {
                "storage was restored, and the effect on this resource is unknown"
            }
            (HistoryComparison::Later, reason) => return HistoryCheckOutcome::Unproven(reason),
        };
        HistoryCheckOutcome::Other(evidence, Box::new(initial))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn history_check_keeps_earliest_due_time_and_strongest_reason() {
        let mut history_checks = HistoryChecks::default();
        let (now, second) = (Instant::now(), Duration::from_secs(1));
        history_checks.schedule(HistoryCheckReason::Reopened, second, Duration::ZERO);
        history_checks.schedule(HistoryCheckReason::StorageRolledBack, 3 * second, Duration::ZERO);
        history_checks.schedule(HistoryCheckReason::Suspected, 2 * second, Duration::ZERO);
        assert_eq!(history_checks.due, Some((now + second, HistoryCheckReason::StorageRolledBack)));
        history_checks.cancel_reopened();
        assert!(history_checks.due.is_some(), "there is another reason");
        history_checks.due = None;
        for reason in [HistoryCheckReason::Reopened, HistoryCheckReason::Unconfirmed] {
            history_checks.schedule(reason, second, Duration::ZERO);
            history_checks.cancel_reopened();
            assert_eq!(history_checks.due, None);
        }
        history_checks.false_alarm_backoff.record(now);
        history_checks.schedule(HistoryCheckReason::Suspected, Duration::ZERO, Duration::ZERO);
        assert_eq!(history_checks.due, Some((now + Duration::from_secs(10), HistoryCheckReason::Suspected)), "paced");
        history_checks.cancel_all();
        history_checks.schedule(HistoryCheckReason::Suspected, Duration::ZERO, Duration::ZERO);
        assert_eq!(history_checks.due, Some((now, HistoryCheckReason::Suspected)), "another history, another doubt");
    }

    #[test]
    fn recurring_actions_back_off_until_a_quiet_period() {
        let (mut recurrence, mut now) = (RecurrenceBackoff::<10, 300>::default(), Instant::now());
        assert_eq!(recurrence.earliest(), None);
        for delay in [10, 20, 40, 80, 160, 300, 300] {
            recurrence.record(now);
            now += Duration::from_secs(delay);
            assert_eq!(recurrence.earliest(), Some(now));
        }
        now += Duration::from_secs(600);
        recurrence.record(now);
        assert_eq!(recurrence.earliest(), Some(now + Duration::from_secs(10)), "long after, it is the first one");
    }
}
