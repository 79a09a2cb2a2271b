use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// A rate limit of reviews per second for each holder, with a burst. A holder's turns come in the order of its
/// requests.
#[derive(Debug)]
pub(super) struct ReviewRateLimit<K> {
    /// The long-term time between two turns.
    interval: Duration,
    /// How far ahead of that rate a holder may be.
    ahead: Duration,
    /// One lock for all holders: a look-up takes 0.1 µs and a review 1,000 µs.
    holders: Mutex<Holders<K>>,
}

#[derive(Debug)]
struct Holders<K> {
    /// When each holder's next turn would be if none had been early.
    next: HashMap<K, Instant>,
    /// The number of tracked holders above which idle ones are dropped.
    kept_max: usize,
}

/// This many holders are tracked even if they are idle.
const KEPT_MAX: usize = 1_024;

impl<K: Eq + Hash + Clone> ReviewRateLimit<K> {
    pub(super) fn new(per_second: u32, at_once: u32) -> Self {
        let interval = Duration::from_secs(1) / per_second.max(1);
        let holders = Holders { next: HashMap::new(), kept_max: KEPT_MAX };
        Self { interval, ahead: interval * at_once.saturating_sub(1), holders: Mutex::new(holders) }
    }

    /// Takes the holder's next turn and returns its time; `None` if that is later than `by`.
    pub(super) fn turn(&self, holder: &K, by: Instant) -> Option<Instant> {
        let now = Instant::now();
        let mut holders = self.holders.lock();
        let next = holders.next.get(holder).copied().unwrap_or(now).max(now);
        let turn = next.checked_sub(self.ahead).unwrap_or(now).max(now);
        if turn > by {
            return None;
        }
        if holders.next.len() >= holders.kept_max {
            holders.next.retain(|_, next| *next > now);
            holders.kept_max = (2 * holders.next.len()).max(KEPT_MAX);
        }
        holders.next.insert(holder.clone(), next + self.interval);
        Some(turn)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rate_limit_allows_a_burst_then_paces_each_holder() {
        let pace = ReviewRateLimit::new(10, 3);
        let began = Instant::now();
        let late = began + Duration::from_secs(60);
        let turn = |holder| pace.turn(&holder, late).map(|turn| turn - began);
        let milliseconds = |count| Some(Duration::from_millis(count));
        assert_eq!([turn(1), turn(1), turn(1), turn(1)], [0, 0, 0, 100].map(milliseconds));
        assert_eq!(turn(2), milliseconds(0), "others have turns of their own");
        assert_eq!(pace.turn(&1, began), None, "its turn is later");
        assert_eq!(turn(1), milliseconds(200), "what was not wanted was not taken");
        advance(Duration::from_secs(10)).await;
        assert_eq!([turn(1), turn(1), turn(1), turn(1)], [10_000, 10_000, 10_000, 10_100].map(milliseconds));
    }

    #[tokio::test(start_paused = true)]
    async fn rate_limit_evicts_idle_holders() {
        let pace = ReviewRateLimit::new(1_000, 1);
        for holder in 0..10 * KEPT_MAX {
            pace.turn(&holder, Instant::now());
            advance(Duration::from_millis(1)).await;
        }
        assert!(pace.holders.lock().next.len() <= KEPT_MAX);
    }
}
