use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::FeedKey;
use crate::cache::FeedEndReason;
use base::BackoffBounds;

/// The feeds that ended for a lasting reason, with the time of their next attempt.
#[derive(Debug, Default)]
pub(super) struct RefusedFeeds(HashMap<FeedKey, FeedRefusal>);

/// The reason and the time of a feed's end.
#[derive(Debug)]
struct FeedRefusal {
    end: FeedEndReason,
    at: Instant,
    /// The number of consecutive ends for the same reason.
    times: u32,
    /// The delay before the next attempt to start the feed.
    wait: Duration,
    /// The number of bytes that the feed needed when it did not fit.
    weighed: usize,
}

/// The maximum number of refused feeds that are remembered.
const REFUSALS_MAX: usize = super::FEEDS_MAX;
/// The delays before a feed is retried: a resource that does not fit or cannot be decoded is tried once an hour.
const WAITS: BackoffBounds = BackoffBounds::REFUSED;

impl RefusedFeeds {
    /// Returns the reason why no feed may be started for `key` now, with `free` bytes of memory.
    pub(super) fn find(&mut self, key: &FeedKey, free: usize) -> Option<FeedEndReason> {
        self.0.retain(|_, refusal| !refusal.is_forgotten());
        self.0.get(key).filter(|refusal| refusal.is_in_effect(free)).map(|refusal| refusal.end)
    }

    /// Records that a feed has ended. If the feed does not fit, is not offered or cannot be read, the delay grows with
    /// each consecutive end. If the proxy's identity may not read it, `waits` determines the delay. The count starts
    /// over if the feed has been served since, except for a feed that does not fit.
    pub(super) fn put(
        &mut self,
        key: &FeedKey,
        end: FeedEndReason,
        (weighed, served): (usize, bool),
        waits: BackoffBounds,
    ) {
        let before = self.0.remove(key).filter(|before| before.end == end).map_or(0, |before| before.times);
        // Above the limit the oldest refusal is dropped, so its feed may be retried too early.
        if self.0.len() >= REFUSALS_MAX
            && let Some(oldest) = self.0.iter().min_by_key(|(_, refusal)| refusal.at).map(|(key, _)| key.clone())
        {
            self.0.remove(&oldest);
        }
        let before = if end != FeedEndReason::OverBudget && served { 0 } else { before };
        let times = before.saturating_add(1);
        let wait = match end {
            FeedEndReason::OverBudget | FeedEndReason::Unreadable | FeedEndReason::NotOffered => WAITS.doubled(times),
            FeedEndReason::Forbidden => waits.after(times),
            _ => WAITS.first,
        };
        self.0.insert(key.clone(), FeedRefusal { end, at: Instant::now(), times, wait, weighed });
    }

    /// Discards refusals, because upstream serves other resources now. Refusals for memory or for missing permissions
    /// stay, because they are not affected.
    pub(super) fn forget(&mut self) {
        self.0.retain(|_, refusal| matches!(refusal.end, FeedEndReason::OverBudget | FeedEndReason::Forbidden));
    }

    /// Discards refusals for resources that upstream did not serve, because it may serve them now.
    pub(super) fn clear_not_found(&mut self) {
        self.0.retain(|_, refusal| refusal.end != FeedEndReason::Gone);
    }

    /// Records that the permissions of the proxy's identity may have changed. Forbidden feeds are retried with the
    /// delay of a first refusal. Frequent calls do not cause more frequent retries.
    pub(super) fn on_permissions_changed(&mut self, waits: BackoffBounds) {
        for refusal in self.0.values_mut().filter(|refusal| refusal.end == FeedEndReason::Forbidden) {
            (refusal.times, refusal.wait) = (0, waits.first);
        }
    }
}

impl FeedRefusal {
    /// Returns whether the refusal still prevents a retry. A feed that did not fit also waits until the memory that it
    /// needed is free. That wait is bounded, because the feed may need less by then.
    fn is_in_effect(&self, free: usize) -> bool {
        let elapsed = self.at.elapsed();
        elapsed < self.wait || (self.end == FeedEndReason::OverBudget && free < self.weighed && elapsed < WAITS.longest)
    }

    /// Returns whether the refusal is too old to affect the next attempt.
    fn is_forgotten(&self) -> bool {
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
