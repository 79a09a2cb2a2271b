use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::FeedKey;
use super::refused_for::{REFUSED_MAX, refused_for};
use crate::base::Waits;
use crate::cache::FeedEnd;

/// Feeds that ended for a reason that does not go away at once, and when each may be tried again.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<FeedKey, Refusal>);

/// A feed ended so.
#[derive(Debug)]
struct Refusal {
    end: FeedEnd,
    at: Instant,
    /// How often it ended so, in a row.
    times: u32,
    /// How long it is left alone.
    wait: Duration,
    /// What it weighed.
    weighed: usize,
}

/// Feeds that are remembered as refused.
const REFUSALS_MAX: usize = super::FEEDS_MAX;
/// How long a feed is left alone that upstream does not have, or not in this form.
const REFUSED_FOR: Duration = Duration::from_secs(30);

impl Refusals {
    /// Why there is no feed for `key` now, with so much memory free.
    pub(super) fn find(&mut self, key: &FeedKey, free: usize) -> Option<FeedEnd> {
        self.0.retain(|_, refusal| !refusal.is_forgotten());
        self.0.get(key).filter(|refusal| refusal.stands(free)).map(|refusal| refusal.end)
    }

    /// A feed has ended so. What our identity may not read is tried again ever more rarely, by `waits`, unless it has
    /// been served since the last time.
    pub(super) fn put(&mut self, key: &FeedKey, end: FeedEnd, (weighed, served): (usize, bool), waits: Waits) {
        let before = self.0.remove(key).filter(|before| before.end == end).map_or(0, |before| before.times);
        // The one that has waited the longest is tried again too early.
        if self.0.len() >= REFUSALS_MAX
            && let Some(oldest) = self.0.iter().min_by_key(|(_, refusal)| refusal.at).map(|(key, _)| key.clone())
        {
            self.0.remove(&oldest);
        }
        let before = if end == FeedEnd::Forbidden && served { 0 } else { before };
        let times = before.saturating_add(1);
        let wait = match end {
            FeedEnd::OverBudget => refused_for(times),
            FeedEnd::Forbidden => waits.after(times),
            _ => REFUSED_FOR,
        };
        self.0.insert(key.clone(), Refusal { end, at: Instant::now(), times, wait, weighed });
    }

    /// What is served has changed. What does not fit into the memory fits no better now, and what our identity may not
    /// read it may read no more than before.
    pub(super) fn forget(&mut self) {
        self.0.retain(|_, refusal| matches!(refusal.end, FeedEnd::OverBudget | FeedEnd::Forbidden));
    }

    /// Upstream may have learned of what it did not know.
    pub(super) fn forget_gone(&mut self) {
        self.0.retain(|_, refusal| refusal.end != FeedEnd::Gone);
    }

    /// What our identity may read may have changed: it is asked again as if it had been refused once. However often
    /// that is said, nothing is asked more often than after the first wait.
    pub(super) fn rights_changed(&mut self, waits: Waits) {
        for refusal in self.0.values_mut().filter(|refusal| refusal.end == FeedEnd::Forbidden) {
            (refusal.times, refusal.wait) = (0, waits.first);
        }
    }
}

impl Refusal {
    /// Whether it is too early to try again. What did not fit is also left alone for as long as there is no room for
    /// what it weighed; but not for ever, for it may weigh less by now.
    fn stands(&self, free: usize) -> bool {
        let elapsed = self.at.elapsed();
        elapsed < self.wait || (self.end == FeedEnd::OverBudget && free < self.weighed && elapsed < REFUSED_MAX)
    }

    /// Whether it says nothing of the next time.
    fn is_forgotten(&self) -> bool {
        let kept = match self.end {
            FeedEnd::OverBudget => 2 * REFUSED_MAX,
            FeedEnd::Forbidden => self.wait + REFUSED_MAX,
            _ => self.wait,
        };
        self.at.elapsed() >= kept
    }
}
