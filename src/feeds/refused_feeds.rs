use std::time::Duration;

use tokio::time::Instant;

use crate::cache::FeedEndReason;
use base::BackoffBounds;

/// The reason and the time of a feed's end, for a reason that lasts.
#[derive(Debug)]
pub(super) struct FeedRefusal {
    pub(super) end: FeedEndReason,
    at: Instant,
    /// The number of consecutive ends for the same reason.
    times: u32,
    /// The delay before the next attempt to start the feed.
    wait: Duration,
    /// The number of bytes that the feed needed when it did not fit.
    weighed: usize,
}

/// The delays before a feed is retried: a resource that does not fit or cannot be decoded is tried once an hour.
const WAITS: BackoffBounds = BackoffBounds::REFUSED;

impl FeedRefusal {
    /// Creates the refusal of a feed that has ended after the refusal `before`. If the feed does not fit, is not offered
    /// or cannot be read, the delay grows with each consecutive end. If the proxy's identity may not read it, `waits`
    /// determines the delay. The count starts over if the feed has been served since, except for a feed that does not
    /// fit.
    pub(super) fn new(
        before: Option<Self>,
        end: FeedEndReason,
        (weighed, served): (usize, bool),
        waits: BackoffBounds,
    ) -> Self {
        let counts = end == FeedEndReason::OverBudget || !served;
        let before = before.filter(|before| before.end == end && counts).map_or(0, |before| before.times);
        let times = before.saturating_add(1);
        let wait = match end {
            FeedEndReason::OverBudget | FeedEndReason::Unreadable | FeedEndReason::NotOffered => WAITS.doubled(times),
            FeedEndReason::Forbidden => waits.after(times),
            _ => WAITS.first,
        };
        Self { end, at: Instant::now(), times, wait, weighed }
    }

    /// Records that the permissions of the proxy's identity may have changed.
    pub(super) fn on_permissions_changed(&mut self, waits: BackoffBounds) {
        if self.end == FeedEndReason::Forbidden {
            (self.times, self.wait) = (0, waits.first);
        }
    }

    /// Returns whether the refusal still prevents a retry. A feed that did not fit also waits until the memory that it
    /// needed is free. That wait is bounded, because the feed may need less by then.
    pub(super) fn is_in_effect(&self, free: usize) -> bool {
        let elapsed = self.at.elapsed();
        elapsed < self.wait || (self.end == FeedEndReason::OverBudget && free < self.weighed && elapsed < WAITS.longest)
    }

    /// Returns whether the refusal is too old to affect the next attempt.
    pub(super) fn is_forgotten(&self) -> bool {
        let kept = match self.end {
            FeedEndReason::OverBudget | FeedEndReason::Unreadable | FeedEndReason::NotOffered => 2 * WAITS.longest,
            FeedEndReason::Forbidden => self.wait + WAITS.longest,
            _ => self.wait,
        };
        self.at.elapsed() >= kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_budget_feed_retries_with_capped_exponential_backoff() {
        let waits: Vec<_> = (1..=9).map(|times| WAITS.doubled(times).as_secs()).collect();
        assert_eq!(waits, [30, 60, 120, 240, 480, 960, 1920, 3600, 3600]);
        assert_eq!(WAITS.doubled(u32::MAX), WAITS.longest);
    }
}
