use std::collections::HashMap;
use std::time::Duration;

use tokio::time::Instant;

use super::FeedKey;
use super::refused_for::{REFUSED_MAX, refused_for};
use crate::cache::FeedEnd;
use base::Waits;

/// Feeds that ended for a reason that lasts, and when each may be tried again.
#[derive(Debug, Default)]
pub(super) struct Refusals(HashMap<FeedKey, Refusal>);

/// Why and when a feed ended.
#[derive(Debug)]
struct Refusal {
    end: FeedEnd,
    at: Instant,
    /// How many times in a row it ended for this reason.
    times: u32,
    /// How long it is not tried again.
    wait: Duration,
    /// What it held when it did not fit.
    weighed: usize,
}

/// How many refused feeds are remembered.
const REFUSALS_MAX: usize = super::FEEDS_MAX;
/// How long a feed is not tried again that upstream does not have: it may have it soon.
const REFUSED_FOR: Duration = Duration::from_secs(30);

impl Refusals {
    /// Why there is no feed for `key` now, with `free` bytes of memory.
    pub(super) fn find(&mut self, key: &FeedKey, free: usize) -> Option<FeedEnd> {
        self.0.retain(|_, refusal| !refusal.is_forgotten());
        self.0.get(key).filter(|refusal| refusal.stands(free)).map(|refusal| refusal.end)
    }

    /// Notes that a feed has ended. If our identity may not read it (by `waits`), or if it does not fit, is not offered
    /// or cannot be read, it is tried again ever more rarely, unless it has been served since the last time.
    pub(super) fn put(&mut self, key: &FeedKey, end: FeedEnd, (weighed, served): (usize, bool), waits: Waits) {
        let before = self.0.remove(key).filter(|before| before.end == end).map_or(0, |before| before.times);
        // The one that has waited the longest may be tried again too early.
        if self.0.len() >= REFUSALS_MAX
            && let Some(oldest) = self.0.iter().min_by_key(|(_, refusal)| refusal.at).map(|(key, _)| key.clone())
        {
            self.0.remove(&oldest);
        }
        let before = if end != FeedEnd::OverBudget && served { 0 } else { before };
        let times = before.saturating_add(1);
        let wait = match end {
            FeedEnd::OverBudget | FeedEnd::Unreadable | FeedEnd::NotOffered => refused_for(times),
            FeedEnd::Forbidden => waits.after(times),
            _ => REFUSED_FOR,
        };
        self.0.insert(key.clone(), Refusal { end, at: Instant::now(), times, wait, weighed });
    }

    /// Forgets refusals, because upstream serves other resources now. It keeps those of feeds that do not fit into the
    /// memory or that our identity may not read: they are not concerned.
    pub(super) fn forget(&mut self) {
        self.0.retain(|_, refusal| matches!(refusal.end, FeedEnd::OverBudget | FeedEnd::Forbidden));
    }

    /// Forgets which resources upstream did not know, because it may have learned of them.
    pub(super) fn forget_gone(&mut self) {
        self.0.retain(|_, refusal| refusal.end != FeedEnd::Gone);
    }

    /// Notes that our identity may have other rights now. Feeds that it could not read are asked for again as if they
    /// had been refused once. However often this is called, nothing is asked more often than after the first wait.
    pub(super) fn rights_changed(&mut self, waits: Waits) {
        for refusal in self.0.values_mut().filter(|refusal| refusal.end == FeedEnd::Forbidden) {
            (refusal.times, refusal.wait) = (0, waits.first);
        }
    }
}

impl Refusal {
    /// Whether it is too early to try again. A feed that did not fit also waits until there is room for what it held;
    /// but not for ever, for it may need less by now.
    fn stands(&self, free: usize) -> bool {
        let elapsed = self.at.elapsed();
        elapsed < self.wait || (self.end == FeedEnd::OverBudget && free < self.weighed && elapsed < REFUSED_MAX)
    }

    /// Whether it is too old to say anything about the next attempt.
    fn is_forgotten(&self) -> bool {
        let kept = match self.end {
            FeedEnd::OverBudget | FeedEnd::Unreadable | FeedEnd::NotOffered => 2 * REFUSED_MAX,
            FeedEnd::Forbidden => self.wait + REFUSED_MAX,
            _ => self.wait,
        };
        self.at.elapsed() >= kept
    }
}
