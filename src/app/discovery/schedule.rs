use std::time::Duration;

use tokio::time::Instant;

use super::REACTION_DELAY;
use base::random;

/// Decides when upstream's resources are requested next.
///
/// After a change, they are requested soon and twice more. Upstream's discovery lags slightly behind its own
/// definitions, and each of several servers has its own lag.
#[derive(Debug)]
pub(super) struct DiscoverySchedule {
    /// The time at which the last discovery request was sent, and the one at which it was answered.
    sent: Instant,
    received: Instant,
    /// The time of the first change since the last discovery request.
    pending: Option<Instant>,
    /// The time of the last change, whether or not a discovery request has followed it.
    changed: Option<Instant>,
    coverage: DefinitionWatchCoverage,
    /// The fraction of the period until the next request, between `1 - EARLIER` and 1. It is random, so that thousands
    /// of proxies that started together do not send their requests together.
    jitter: f64,
}

/// How completely changes are observed between requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DefinitionWatchCoverage {
    All,
    /// Some changes may be missed, or the last discovery request failed.
    Part,
    /// The proxy's identity may read none of the objects that declare further resources. Then only the apiserver's own
    /// resources are cached, which change with its release. `retry_after` is when those objects may be requested again.
    Nothing {
        retry_after: Option<Instant>,
    },
}

/// The delays from the last change to two further discovery requests, which find changes that upstream's discovery
/// serves late, and to comparisons of feeds with the catalog, which send no requests.
const RECHECK_DELAYS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(3)];
/// The minimum time between a discovery response and the next request, however many changes there are. It is also at
/// least `SPACING_TIMES` as long as the response took, so that a slow upstream receives fewer requests.
const SPACING: Duration = Duration::from_millis(200);
const SPACING_TIMES: u32 = 4;
/// The polling period if changes may be missed.
const PERIOD: Duration = Duration::from_secs(30);
/// The polling period if all changes are observed, or only the apiserver's own resources are cached. Polling finds
/// changes that no definition declares, such as an upgrade of upstream. Most of these are found sooner, by a request
/// for an unknown resource or by a lost stream. The remaining case is the upgrade of one of several servers at one
/// address. The period is long because the proxy of every node polls.
const PERIOD_OF_BUILT_INS: Duration = Duration::from_secs(60 * 60);
/// The maximum fraction of a period by which the random jitter shortens it.
const EARLIER: f64 = 0.2;

/// Returns the first recheck after the last change, at `changed`, that is later than `done`.
pub(super) fn next_recheck(changed: Option<Instant>, done: Instant) -> Option<Instant> {
    changed.and_then(|at| RECHECK_DELAYS.iter().map(|after| at + *after).find(|at| *at > done))
}

impl DiscoverySchedule {
    /// Creates the schedule after a first discovery request.
    pub(super) fn new(sent: Instant, received: Instant) -> Self {
        Self { sent, received, pending: None, changed: None, coverage: DefinitionWatchCoverage::Part, jitter: 1.0 }
    }

    /// Records that upstream's resources have changed, or may have changed unobserved.
    pub(super) fn change(&mut self, now: Instant) {
        self.pending.get_or_insert(now);
        self.changed = Some(now);
    }

    /// Records that a discovery request was sent and answered.
    pub(super) fn refresh(&mut self, sent: Instant, received: Instant) {
        (self.sent, self.received, self.pending) = (sent, received, None);
        self.jitter = 1.0 - EARLIER * random::f64();
    }

    /// Sets how completely changes are observed.
    pub(super) fn set_coverage(&mut self, coverage: DefinitionWatchCoverage) {
        self.coverage = coverage;
    }

    /// Whether a change is the reason for the next discovery request.
    pub(super) fn has_pending_change(&self) -> bool {
        self.change_due().is_some()
    }

    /// Returns the time at which the next discovery request is due.
    pub(super) fn due(&self) -> Instant {
        let rarely = self.sent + PERIOD_OF_BUILT_INS.mul_f64(self.jitter);
        let routine = match self.coverage {
            DefinitionWatchCoverage::All => rarely,
            DefinitionWatchCoverage::Part => self.sent + PERIOD.mul_f64(self.jitter),
            DefinitionWatchCoverage::Nothing { retry_after } => {
                retry_after.map_or(rarely, |retry_after| retry_after.max(self.received + SPACING).min(rarely))
            }
        };
        let spacing = SPACING.max((self.received - self.sent) * SPACING_TIMES);
        let change_due = self.change_due().map(|at| at.max(self.received + spacing));
        change_due.map_or(routine, |due| due.min(routine))
    }

    fn change_due(&self) -> Option<Instant> {
        let soon = self.pending.map(|at| at + REACTION_DELAY);
        soon.into_iter().chain(next_recheck(self.changed, self.sent)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A name, whether changes are observed, the times of the changes, the end, and the expected times of the requests,
    /// all in milliseconds.
    type Case = (&'static str, bool, &'static [u64], u64, &'static [u64]);

    /// Simulates the changes, answers each request immediately, and returns the times of the requests in milliseconds.
    fn sent(is_reported: bool, changes: &[u64], until: u64) -> Vec<u64> {
        let start = Instant::now();
        let at = |ms: u64| start + Duration::from_millis(ms);
        let mut schedule = DiscoverySchedule::new(start, start);
        schedule.set_coverage(if is_reported { DefinitionWatchCoverage::All } else { DefinitionWatchCoverage::Part });
        let (mut changes, mut sent) = (changes.iter().copied().peekable(), Vec::new());
        loop {
            let due = u64::try_from(schedule.due().duration_since(start).as_millis()).expect("soon");
            if let Some(change) = changes.next_if(|change| *change <= due) {
                schedule.change(at(change));
            } else if due > until {
                return sent;
            } else {
                schedule.refresh(at(due), at(due));
                sent.push(due);
            }
        }
    }

    #[test]
    fn polls_follow_changes_and_are_debounced() {
        let cases: [Case; 4] = [
            ("a change: soon, and twice to make sure", true, &[5000], 60_000, &[5100, 6000, 8000]),
            ("a group of changes is one", true, &[5000, 5020, 5090], 60_000, &[5100, 6090, 8090]),
            ("a change right after an answer waits its turn", true, &[5000, 5150], 60_000, &[5100, 5300, 6150, 8150]),
            ("two changes apart", true, &[5000, 7000], 60_000, &[5100, 6000, 7100, 8000, 10_000]),
        ];
        for (what, is_reported, changes, until, expected) in cases {
            assert_eq!(sent(is_reported, changes, until), expected, "{what}");
        }
    }

    /// Thousands of proxies that started together do not send requests together.
    #[test]
    fn periodic_polls_are_jittered() {
        let second = 1000;
        for _ in 0..100 {
            let [first, next] = sent(false, &[], 65 * second)[..2] else { panic!("two questions") };
            assert!(first <= 30 * second && (24 * second..=30 * second).contains(&(next - first)), "nothing tells");
            let after = sent(false, &[5000], 45 * second);
            assert_eq!(after[..3], [5100, 6000, 8000], "a poll goes on beside changes");
            assert!((32 * second..=38 * second).contains(&after[3]), "{after:?}");
            let hour = sent(true, &[], 7500 * second);
            assert!(
                (2880 * second..=3600 * second).contains(&(hour[1] - hour[0])),
                "all changes are observed: {hour:?}"
            );
        }
    }

    #[test]
    fn discovery_is_rechecked_one_and_three_seconds_after_change() {
        let now = Instant::now();
        assert_eq!(next_recheck(None, now), None);
        let mut done = now;
        for after in RECHECK_DELAYS {
            assert_eq!(next_recheck(Some(now), done), Some(now + after));
            done = now + after;
        }
        assert_eq!(next_recheck(Some(now), done), None);
    }

    #[test]
    fn builtin_only_cache_polls_hourly_or_at_refusal_retry() {
        let start = Instant::now();
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        let mut schedule = DiscoverySchedule::new(start, start);
        for _ in 0..100 {
            schedule.refresh(start, start);
            schedule.set_coverage(DefinitionWatchCoverage::Nothing { retry_after: None });
            assert!((after(2880)..=after(3600)).contains(&schedule.due()));
            schedule.set_coverage(DefinitionWatchCoverage::Nothing { retry_after: Some(after(30)) });
            assert_eq!(schedule.due(), after(30));
            schedule.set_coverage(DefinitionWatchCoverage::Nothing { retry_after: Some(after(7200)) });
            assert!(schedule.due() <= after(3600));
        }
    }

    #[test]
    fn change_storm_polls_discovery_at_most_five_times_a_second() {
        let storm: Vec<u64> = (5000..15_000).step_by(7).collect();
        let sent = sent(true, &storm, 30_000);
        assert!(sent.windows(2).all(|pair| pair[1] - pair[0] >= 200), "{sent:?}");
        assert!((50..=54).contains(&sent.len()), "not starved either: {sent:?}");
    }

    #[test]
    fn slow_poll_delays_next_poll_in_proportion() {
        let start = Instant::now();
        let mut schedule = DiscoverySchedule::new(start, start);
        // Otherwise the periodic request, whose time is random, may be due first.
        schedule.set_coverage(DefinitionWatchCoverage::All);
        schedule.change(start);
        let (sent, received) = (schedule.due(), schedule.due() + Duration::from_secs(5));
        schedule.refresh(sent, received);
        schedule.change(received);
        assert!(schedule.has_pending_change());
        assert_eq!(schedule.due(), received + Duration::from_secs(20));
    }
}
