//! The memory limit of all feeds together, and the eviction when it is reached.
//!
//! Everything that a feed holds is charged to a [`MemoryAccount`] for as long as it is alive, regardless of its holder.
//! An object that left the store stays charged while the ring, a snapshot or a slow client still references it. A
//! component that adds memory checks whether the total still fits. If it does not, `MemoryBudget::make_room` frees
//! memory in this order: derived bytes, snapshots of paging clients, states that are being sent, history.
//!
//! **Invariants.** No thread frees memory while it holds a lock of a feed. One thread at a time frees memory.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::SnapshotPins;
use base::MemoryAccount;

/// The memory limit of all feeds.
#[derive(Debug)]
pub struct MemoryBudget {
    bytes_max: usize,
    total: Arc<MemoryAccount>,
    /// The accounts of all feeds, including ended feeds for as long as any memory is charged to them.
    accounts: Mutex<Vec<(MemoryKind, Weak<MemoryAccount>)>>,
    feeds: Mutex<Vec<Weak<dyn BudgetedFeed>>>,
    pins: SnapshotPins,
    pending_release: Mutex<PendingMemoryRelease>,
    /// The number of evictions of each kind.
    reclaimed: [AtomicU64; ReclaimableMemoryKind::ALL.len()],
}

/// Memory that is about to become free.
#[derive(Debug)]
struct PendingMemoryRelease {
    bytes: usize,
    since: Instant,
}

/// One feed's part of the memory budget.
#[derive(Debug)]
pub(super) struct FeedMemoryShare {
    pub(super) budget: Arc<MemoryBudget>,
    pub(super) accounts: FeedMemoryAccounts,
    /// The number of bytes that the feed held when its first state was complete, updated after each relist.
    admitted: AtomicUsize,
    /// The number of bytes that the feed needed when it did not fit.
    required_bytes: AtomicUsize,
    /// A signal that is cancelled when the feed has outgrown the budget and must end.
    pub(super) over_budget: CancellationToken,
}

/// One account for each [`MemoryKind`].
#[derive(Debug)]
pub(super) struct FeedMemoryAccounts([Arc<MemoryAccount>; MemoryKind::ALL.len()]);

base::labelled_enum! {
    /// A kind of memory in the budget.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum MemoryKind {
        /// Objects and their received frames: in the store, in the ring, and in states that are still being read.
        Objects = "objects",
        /// The memory of recorded events, without their objects.
        Events = "events",
        /// Bytes that were derived from objects and events.
        Derived = "derived",
        /// The memory of older states that are still in use, without their objects.
        States = "states",
        /// Pages of lists that are still being received from upstream.
        Staged = "staged",
    }
}

base::labelled_enum! {
    /// The kinds of memory that can be freed.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum ReclaimableMemoryKind {
        /// Derived bytes, least recently used first.
        Derived = "derived",
        /// Snapshots of paging clients, oldest first.
        Paging = "paging",
        /// States being sent to watches and LISTs, oldest first.
        Watches = "watches",
        /// History, from the largest ring first.
        History = "history",
        /// The feed that has outgrown the others.
        Feed = "feed",
    }
}

/// The memory use of all feeds at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryUse {
    pub bytes_max: usize,
    pub used: [(MemoryKind, usize); MemoryKind::ALL.len()],
    pub reclaimed: [(ReclaimableMemoryKind, u64); ReclaimableMemoryKind::ALL.len()],
}

/// A cache that drops its least recently used entry first.
pub(super) trait LruEviction {
    /// Returns the approximate time at which the next entry to drop was last used.
    fn oldest(&self) -> Option<Instant>;
    /// Drops the entry that was used least recently, unless it was used in between.
    fn drop_oldest(&self);
}

/// A feed as the budget sees it.
pub(super) trait BudgetedFeed: fmt::Debug + Send + Sync {
    /// Returns the feed's part of the memory budget.
    fn share(&self) -> &FeedMemoryShare;
    /// Returns the caches of derived bytes, except bytes that are kept with events.
    fn derived(&self) -> Vec<&dyn LruEviction>;
    /// Returns the size of the history in bytes.
    fn ring_bytes(&self) -> usize;
    /// Returns roughly how many bytes become free if only the current state is kept. `pinned` is the size of older
    /// states that are still being sent to watches.
    fn reclaimable(&self, pinned: usize) -> usize;
    /// Shortens the history to `bytes`. It holds the lock for `events_at_once` events at a time.
    fn shrink_ring(&self, bytes: usize, events_at_once: usize);
    /// Returns the snapshots of paging clients.
    fn paging(&self) -> &dyn LruEviction;
}

/// The time to wait for ended watches to release their states.
const PENDING_MAX: Duration = Duration::from_millis(250);
/// The divisor of the budget that gives the extra room to free at once. This avoids scanning every feed for every event
/// when the budget is full.
const SLACK: usize = 16;
/// The number of bytes of history that a ring keeps however full the memory is. A watch can lag this far without
/// stalling.
const HISTORY_BYTES_MIN: usize = 256 << 10;
/// The divisor of a ring's size that gives the smallest step in which it shrinks before the total is checked again.
const SHRINK_PART: usize = 8;
/// The number of events that leave a ring in one critical section.
pub(super) const SHRINK_EVENTS_MAX: usize = 1_024;

impl MemoryBudget {
    pub fn new(bytes_max: usize, pins: SnapshotPins) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            total: MemoryAccount::new(),
            accounts: Mutex::default(),
            feeds: Mutex::default(),
            pins,
            pending_release: Mutex::new(PendingMemoryRelease { bytes: 0, since: Instant::now() }),
            reclaimed: Default::default(),
        })
    }

    /// Creates the share of a new feed.
    pub(super) fn share(self: &Arc<Self>) -> FeedMemoryShare {
        let accounts = FeedMemoryAccounts(MemoryKind::ALL.map(|_| MemoryAccount::child_of(&self.total)));
        let mut all = self.accounts.lock();
        all.retain(|(_, account)| account.strong_count() > 0);
        all.extend(MemoryKind::ALL.into_iter().zip(accounts.0.iter().map(Arc::downgrade)));
        let (admitted, required_bytes, over_budget) =
            (AtomicUsize::new(0), AtomicUsize::new(0), CancellationToken::new());
        FeedMemoryShare { budget: self.clone(), accounts, admitted, required_bytes, over_budget }
    }

    /// Registers a feed whose memory can be freed.
    pub(super) fn add(&self, feed: Weak<dyn BudgetedFeed>) {
        let mut feeds = self.feeds.lock();
        feeds.retain(|feed| feed.strong_count() > 0);
        feeds.push(feed);
    }

    /// Returns whether `bytes` more fit after all evictable memory was dropped. If that would not be enough, nothing is
    /// dropped.
    pub(super) fn has_room(&self, bytes: usize) -> bool {
        if self.fits(bytes) {
            return true;
        }
        let mut pending = self.pending_release.lock();
        let used = self.total.bytes().saturating_add(bytes);
        // Watches release the states being sent to them within moments. Only a small excess can wait for that.
        let pinned = if used <= self.tolerable() { self.pins.bytes_by_feed() } else { HashMap::new() };
        let pinned = |feed: &Arc<dyn BudgetedFeed>| pinned.get(&Arc::as_ptr(feed).cast()).copied().unwrap_or(0);
        let feeds = self.feeds();
        let reclaimable: usize = feeds.iter().map(|feed| feed.reclaimable(pinned(feed))).sum();
        if used.saturating_sub(reclaimable) > self.bytes_max {
            return false;
        }
        self.make_room(&feeds, self.goal().saturating_sub(bytes), &mut pending);
        self.fits(bytes) || self.is_tolerable(bytes, &pending)
    }

    /// Frees memory until the total fits again after the growth of `by`. If nothing else is left to drop, it ends a
    /// feed.
    pub(super) fn enforce(&self, by: &FeedMemoryShare) {
        if self.fits(0) {
            return;
        }
        let mut pending = self.pending_release.lock();
        if self.fits(0) {
            return;
        }
        let feeds = self.feeds();
        self.make_room(&feeds, self.goal(), &mut pending);
        if !self.fits(0) {
            self.end_one(&feeds, by, &pending);
        }
    }

    /// Drops derived bytes until the total fits again. It never blocks: if another thread is freeing memory, it
    /// returns.
    pub(super) fn trim_derived(&self) {
        if !self.fits(0)
            && let Some(_one) = self.pending_release.try_lock()
        {
            self.drop_derived(&self.feeds(), self.goal());
        }
    }

    /// Returns the number of free bytes.
    pub fn free(&self) -> usize {
        self.bytes_max.saturating_sub(self.total.bytes())
    }

    pub fn memory(&self) -> MemoryUse {
        let mut used = MemoryKind::ALL.map(|kind| (kind, 0));
        for (kind, account) in &*self.accounts.lock() {
            used[*kind as usize].1 += account.upgrade().map_or(0, |account| account.bytes());
        }
        let reclaimed = ReclaimableMemoryKind::ALL
            .map(|kind: ReclaimableMemoryKind| (kind, self.reclaimed[kind as usize].load(Ordering::Relaxed)));
        MemoryUse { bytes_max: self.bytes_max, used, reclaimed }
    }

    fn fits(&self, bytes: usize) -> bool {
        self.total.bytes().saturating_add(bytes) <= self.bytes_max
    }

    /// Returns whether `bytes` more are a small excess that memory about to become free will cover.
    fn is_tolerable(&self, bytes: usize, pending: &PendingMemoryRelease) -> bool {
        let used = self.total.bytes().saturating_add(bytes);
        used.saturating_sub(pending.bytes) <= self.bytes_max && used <= self.tolerable()
    }

    fn tolerable(&self) -> usize {
        self.bytes_max + self.bytes_max / SLACK
    }

    fn goal(&self) -> usize {
        self.bytes_max - self.bytes_max / SLACK
    }

    fn feeds(&self) -> Vec<Arc<dyn BudgetedFeed>> {
        self.feeds.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Returns the pins on states that are being sent to watches.
    pub fn pins(&self) -> &SnapshotPins {
        &self.pins
    }

    /// Drops memory until at most `goal` bytes are in use, or will be once ended watches release their states.
    ///
    /// The order is by what clients lose: derived bytes are rendered again, the next pages of a paging client pass
    /// through, watches and LISTs that still send an old state start over, and watches that lag behind the shortened
    /// history get 410. Only [`enforce`](Self::enforce) ends a feed, and only if none of this is enough.
    fn make_room(&self, feeds: &[Arc<dyn BudgetedFeed>], goal: usize, pending: &mut PendingMemoryRelease) {
        self.drop_derived(feeds, goal);
        let paging: Vec<_> = feeds.iter().map(|feed| feed.paging()).collect();
        self.drop_oldest(&paging, goal, ReclaimableMemoryKind::Paging);
        self.end_watches(goal, pending);
        self.shrink_rings(feeds, goal.saturating_add(pending.bytes));
    }

    fn drop_derived(&self, feeds: &[Arc<dyn BudgetedFeed>], goal: usize) {
        let derived: Vec<_> = feeds.iter().flat_map(|feed| feed.derived()).collect();
        self.drop_oldest(&derived, goal, ReclaimableMemoryKind::Derived);
    }

    /// Drops the oldest entries of all caches until at most `goal` bytes are in use.
    fn drop_oldest(&self, caches: &[&dyn LruEviction], goal: usize, kind: ReclaimableMemoryKind) {
        let first = |(place, cache): (usize, &&dyn LruEviction)| cache.oldest().map(|since| Reverse((since, place)));
        let mut order: BinaryHeap<_> = caches.iter().enumerate().filter_map(first).collect();
        while self.total.bytes() > goal
            && let Some(Reverse((_, place))) = order.pop()
        {
            caches[place].drop_oldest();
            order.extend(first((place, &caches[place])));
            self.count(kind);
        }
    }

    /// Ends watches that are still receiving an older state, oldest first, until enough memory is about to become free.
    /// They release it when their tasks run next.
    fn end_watches(&self, goal: usize, pending: &mut PendingMemoryRelease) {
        let now = Instant::now();
        if now.duration_since(pending.since) >= PENDING_MAX {
            pending.bytes = 0;
        }
        let excess = self.total.bytes().saturating_sub(goal).saturating_sub(pending.bytes);
        if excess == 0 {
            return;
        }
        let bytes = self.pins.free(excess);
        if bytes > 0 {
            *pending = PendingMemoryRelease { bytes: pending.bytes + bytes, since: now };
            self.count(ReclaimableMemoryKind::Watches);
        }
    }

    /// Shortens the largest ring first, down to the size of the next.
    fn shrink_rings(&self, feeds: &[Arc<dyn BudgetedFeed>], goal: usize) {
        let mut rings: Vec<_> = feeds.iter().map(|feed| (feed.ring_bytes(), feed)).collect();
        rings.sort_by_key(|(bytes, _)| Reverse(*bytes));
        let mut level = 1;
        while self.total.bytes() > goal && rings.first().is_some_and(|(bytes, _)| *bytes > HISTORY_BYTES_MIN) {
            while rings.get(level).is_some_and(|(bytes, _)| *bytes >= rings[0].0) {
                level += 1;
            }
            let next = rings.get(level).map_or(0, |(bytes, _)| *bytes);
            // An event may share its bytes with the store, so less memory may become free than was dropped.
            let excess = self.total.bytes().saturating_sub(goal).div_ceil(level).max(rings[0].0 / SHRINK_PART);
            let to = rings[0].0.saturating_sub(excess).max(next).max(HISTORY_BYTES_MIN);
            for (bytes, feed) in &mut rings[..level] {
                feed.shrink_ring(to, SHRINK_EVENTS_MAX);
                *bytes = to;
            }
            self.count(ReclaimableMemoryKind::History);
        }
    }

    /// Ends the feed that has outgrown the others, unless a feed is already ending or memory is about to become free.
    fn end_one(&self, feeds: &[Arc<dyn BudgetedFeed>], by: &FeedMemoryShare, pending: &PendingMemoryRelease) {
        if feeds.iter().map(|feed| feed.share()).any(|share| share.over_budget.is_cancelled() && share.used() > 0)
            || self.is_tolerable(0, pending)
        {
            return;
        }
        let weight = |share: &FeedMemoryShare| share.weight(std::ptr::eq(share, by));
        let weights: Vec<_> = feeds.iter().map(|feed| weight(feed.share())).collect();
        if let Some(share) = outgrown(&weights).map(|index| feeds[index].share()) {
            share.record_required(0, 0);
            share.over_budget.cancel();
            self.count(ReclaimableMemoryKind::Feed);
        }
    }

    fn count(&self, kind: ReclaimableMemoryKind) {
        self.reclaimed[kind as usize].fetch_add(1, Ordering::Relaxed);
    }
}

impl FeedMemoryShare {
    /// Returns the number of bytes of everything of the feed that is alive.
    pub(super) fn used(&self) -> usize {
        self.accounts.0.iter().map(|account| account.bytes()).sum()
    }

    /// Records that the feed's state is complete. Growth counts from here.
    pub(super) fn admit(&self) {
        self.admitted.store(self.used(), Ordering::Relaxed);
    }

    /// Records the bytes that the feed would hold with `more` bytes added and `less` bytes freed, which did not fit.
    pub(super) fn record_required(&self, more: usize, less: usize) {
        let weight = self.used().saturating_add(more).saturating_sub(less);
        self.required_bytes.fetch_max(weight, Ordering::Relaxed);
    }

    /// Returns the bytes that the feed needed when it did not fit.
    pub(super) fn required_bytes(&self) -> usize {
        self.required_bytes.load(Ordering::Relaxed)
    }

    fn weight(&self, has_crossed: bool) -> FeedMemoryWeight {
        FeedMemoryWeight { used: self.used(), admitted: self.admitted.load(Ordering::Relaxed), has_crossed }
    }
}

impl FeedMemoryAccounts {
    pub(super) fn of(&self, kind: MemoryKind) -> &Arc<MemoryAccount> {
        &self.0[kind as usize]
    }
}

/// The memory use of one feed, for the decision which feed to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FeedMemoryWeight {
    /// The number of bytes that the feed holds.
    used: usize,
    /// The bytes that the feed held when its state was complete; 0 while its first list is incomplete.
    admitted: usize,
    /// Whether the growth of this feed crossed the limit.
    has_crossed: bool,
}

/// Returns the index of the feed to end: the one that has grown the most since its state was complete. Among equals it
/// is the one whose growth crossed the limit, then the larger one. A feed that has not grown never makes room for
/// feeds that have. If none has grown, the largest ends.
fn outgrown(feeds: &[FeedMemoryWeight]) -> Option<usize> {
    let grown = |feed: &FeedMemoryWeight| (feed.used.saturating_sub(feed.admitted), feed.has_crossed, feed.used);
    let has_grown = feeds.iter().any(|feed| grown(feed).0 > 0);
    let key = |feed: &FeedMemoryWeight| if has_grown { grown(feed) } else { (feed.used, feed.has_crossed, 0) };
    let holding = feeds.iter().enumerate().filter(|(_, feed)| feed.used > 0);
    holding.max_by_key(|(_, feed)| key(feed)).map(|(index, _)| index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(used: usize, admitted: usize, has_crossed: bool) -> FeedMemoryWeight {
        FeedMemoryWeight { used, admitted, has_crossed }
    }

    #[test]
    fn memory_pressure_ends_the_feed_with_the_most_growth() {
        for (why, feeds, ends) in [
            ("none there", vec![], None),
            ("the one that grew", vec![weight(10, 10, false), weight(90, 20, true)], Some(1)),
            ("not a small one that happened to cross", vec![weight(90, 20, false), weight(11, 10, true)], Some(0)),
            ("not a large one that was always so", vec![weight(70, 70, false), weight(30, 10, true)], Some(1)),
            ("the one that is being listed", vec![weight(50, 40, true), weight(50, 0, false)], Some(1)),
            ("of equals the one that crossed", vec![weight(50, 30, true), weight(50, 30, false)], Some(0)),
            ("and else the larger", vec![weight(50, 30, false), weight(40, 20, false)], Some(0)),
            ("none has grown: the largest", vec![weight(50, 50, false), weight(60, 60, false)], Some(1)),
            ("one that shrank has not grown", vec![weight(50, 60, false), weight(20, 19, false)], Some(1)),
            ("one that holds nothing frees nothing", vec![weight(0, 0, true)], None),
        ] {
            assert_eq!(outgrown(&feeds), ends, "{why}");
        }
    }
}
