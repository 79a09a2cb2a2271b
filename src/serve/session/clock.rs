use std::time::Duration;

use tokio::time::Instant;

use base::{mutant, random};
use kubeapi::WatchTimeout;

/// The moments that a watch waits for besides events.
pub(super) struct Clock {
    deadline: Instant,
    next_bookmark: Instant,
}

/// A bookmark a minute (KEP-956), and one two seconds before the end (KEP-1904; R-BOOKMARK-1).
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// Longer requests are cut to this, so that no arithmetic overflows: a year.
const LASTS_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl Clock {
    /// Makes the clock of a watch that was asked for at `received`. A watch without a timeout of its own lasts `min` at
    /// least.
    pub(super) fn new(received: Instant, timeout_seconds: Option<i64>, min: Duration) -> Self {
        let lasts = match WatchTimeout::of(timeout_seconds) {
            WatchTimeout::Unset => min.mul_f64(1.0 + random::f64()),
            WatchTimeout::Over => Duration::ZERO,
            WatchTimeout::Lasts(length) => length.min(LASTS_MAX),
        };
        let lasts = if mutant(27) { lasts / 1000 } else { lasts };
        let deadline = received + lasts;
        Self { deadline, next_bookmark: (received + BOOKMARK_PERIOD).min(Self::last_bookmark(received, deadline)) }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.deadline <= now
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The next of these moments.
    pub(super) fn next(&self) -> Instant {
        self.next_bookmark.min(self.deadline)
    }

    /// When the bookmark before the end is due. Watches that are shorter get none.
    fn last_bookmark(now: Instant, deadline: Instant) -> Instant {
        deadline.checked_sub(BOOKMARK_BEFORE_END).filter(|at| *at > now).unwrap_or(deadline)
    }

    /// Whether a bookmark is due. If so, the next one is scheduled.
    pub(super) fn bookmark_due(&mut self, now: Instant) -> bool {
        if now < self.next_bookmark {
            return false;
        }
        let last = Self::last_bookmark(now, self.deadline);
        self.next_bookmark = if last > now { (now + BOOKMARK_PERIOD).min(last) } else { self.deadline };
        true
    }
}
