use std::time::Duration;

use tokio::time::Instant;

use base::random;
use kubeapi::WatchTimeout;

/// The timers of a watch.
pub(super) struct Clock {
    deadline: Instant,
    next_bookmark: Instant,
}

/// A bookmark per minute (KEP-956), and one two seconds before the end (KEP-1904; R-BOOKMARK-1).
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);
/// The maximum timeout, one year, so that no arithmetic overflows.
const LASTS_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl Clock {
    /// Creates the clock of a watch that was requested at `received`. Without a client timeout, the watch lasts between
    /// `min` and twice `min`.
    pub(super) fn new(received: Instant, timeout_seconds: Option<i64>, min: Duration) -> Self {
        let lasts = match WatchTimeout::of(timeout_seconds) {
            WatchTimeout::Unset => min.mul_f64(1.0 + random::f64()),
            WatchTimeout::Over => Duration::ZERO,
            WatchTimeout::Lasts(length) => length.min(LASTS_MAX),
        };
        let deadline = received + lasts;
        Self { deadline, next_bookmark: (received + BOOKMARK_PERIOD).min(Self::last_bookmark(received, deadline)) }
    }

    pub(super) fn is_over(&self, now: Instant) -> bool {
        self.deadline <= now
    }

    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Returns the next timer.
    pub(super) fn next(&self) -> Instant {
        self.next_bookmark.min(self.deadline)
    }

    /// Returns when the bookmark before the end is due. Watches shorter than that have none.
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
