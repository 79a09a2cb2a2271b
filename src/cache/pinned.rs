//! States that are kept for clients that are being told them.
//!
//! A state shares with the store what has not changed since, and keeps the rest alive for as long as somebody has it. A
//! client that does not read would keep it for ever. So whoever is told a state has a [`Pin`] on it. The pin says when
//! something was last told, and ends its owner by its terms or because the memory is needed: the owner is cut, and what
//! it held is free whether or not anybody polls it again.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};

use super::Snapshot;
use super::snapshot::Taken;
use base::Cut;

/// The pins on states of all feeds. Cloning shares.
///
/// There are no more pins than watches and lists have places.
#[derive(Debug, Clone, Default)]
pub struct Pins {
    shared: Arc<Shared>,
}

/// Keeps a state for as long as it lives.
#[derive(Debug)]
pub struct Pin {
    pins: Pins,
    id: u64,
    entry: Arc<Entry>,
}

/// What ends a pin's owner, besides a need of memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct PinTerms {
    /// The owner ends at this time, for this reason.
    pub until: Option<(Instant, &'static str)>,
    /// The owner ends when it was told nothing for so long.
    pub idle_max: Option<Duration>,
}

/// A feed whose states are told.
pub(super) trait KeepsStates: fmt::Debug + Send + Sync {
    /// How many bytes at most are kept alive by a state that was taken then, and by nothing else. Once the feed is
    /// over, that is all of its bytes.
    fn kept_by(&self, taken: Taken) -> usize;
}

#[derive(Debug, Default)]
struct Shared {
    pinned: Mutex<Pinned>,
    /// Wakes the task that holds owners to their terms, when there is a first pin again.
    any: Notify,
}

#[derive(Debug, Default)]
struct Pinned {
    /// The pins, oldest first.
    entries: BTreeMap<u64, Arc<Entry>>,
    next: u64,
}

#[derive(Debug)]
struct Entry {
    feed: Arc<dyn KeepsStates>,
    taken: Taken,
    cut: Cut,
    terms: PinTerms,
    since: Instant,
    /// When its owner was last told something, in milliseconds after that.
    told: AtomicU64,
}

/// The reason for cutting an owner that was told nothing for too long.
const STALLED: &str = "stalled";
/// The reason for cutting an owner whose memory was needed.
const MEMORY: &str = "memory";
/// How often pins are checked while there are any.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Pins {
    /// Keeps a state of `feed` for somebody who is being told it. `cut` ends that somebody.
    pub(super) fn pin(&self, feed: Arc<dyn KeepsStates>, snapshot: &Snapshot, cut: Cut, terms: PinTerms) -> Pin {
        let taken = snapshot.taken();
        let (since, told) = (Instant::now(), AtomicU64::new(0));
        let entry = Arc::new(Entry { feed, taken, cut, terms, since, told });
        let mut pinned = self.shared.pinned.lock();
        let id = pinned.next;
        pinned.next += 1;
        if pinned.entries.is_empty() {
            self.shared.any.notify_one();
        }
        pinned.entries.insert(id, entry.clone());
        drop(pinned);
        Pin { pins: self.clone(), id, entry }
    }

    /// Holds owners to their terms; never completes.
    pub async fn keep(self) {
        loop {
            if self.is_empty() {
                self.shared.any.notified().await;
            }
            sleep(LOOK_EVERY).await;
            self.look(Instant::now());
        }
    }

    pub fn len(&self) -> usize {
        self.shared.pinned.lock().entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many pins there are on states of one feed.
    pub(super) fn of(&self, feed: *const ()) -> usize {
        self.shared.pinned.lock().entries.values().filter(|entry| entry.feed() == feed).count()
    }

    /// How many bytes of objects at most are kept alive by pins and by nothing else: for each feed, what its oldest pin
    /// keeps. Pins whose owners have been cut do not count, for they are about to go.
    pub fn bytes(&self) -> usize {
        self.bytes_by_feed().values().sum()
    }

    /// The same, for each feed.
    pub(super) fn bytes_by_feed(&self) -> HashMap<*const (), usize> {
        let mut oldest = HashMap::new();
        for entry in self.entries() {
            oldest.entry(entry.feed()).or_insert_with(|| entry.bytes());
        }
        oldest
    }

    /// Cuts the oldest owners until `bytes` are free, or none is left. Returns how many bytes that frees at most.
    pub fn free(&self, bytes: usize) -> usize {
        let mut freed = 0;
        for (entry, frees) in with_what_they_free(self.entries()) {
            if freed >= bytes {
                break;
            }
            entry.cut.cut(MEMORY);
            freed += frees;
        }
        freed
    }

    fn look(&self, now: Instant) {
        for entry in self.entries() {
            if let Some(why) = entry.overdue(now) {
                entry.cut.cut(why);
            }
        }
    }

    /// The pins whose owners have not been cut, oldest first. Owners are cut without the lock, for they give their pins
    /// back.
    fn entries(&self) -> Vec<Arc<Entry>> {
        let pinned = self.shared.pinned.lock();
        pinned.entries.values().filter(|entry| !entry.cut.is_cut()).cloned().collect()
    }
}

impl Pin {
    /// Says that the owner waits for something else than its client. It is not idle until it is told something.
    pub fn rests(&self) {
        self.entry.told.store(u64::MAX, Ordering::Relaxed);
    }

    /// Says that the owner has been told something more.
    pub fn told(&self) {
        let age = u64::try_from(self.entry.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.entry.told.store(age, Ordering::Relaxed);
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        // Dropped after the lock is released: this may be the last holder of the feed.
        let _entry = self.pins.shared.pinned.lock().entries.remove(&self.id);
    }
}

impl Entry {
    /// Why the owner must end now, if it must.
    fn overdue(&self, now: Instant) -> Option<&'static str> {
        let PinTerms { until, idle_max } = self.terms;
        let over = until.filter(|(until, _)| *until <= now).map(|(_, why)| why);
        over.or_else(|| idle_max.is_some_and(|max| self.idle() >= max).then_some(STALLED))
    }

    fn idle(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_millis(self.told.load(Ordering::Relaxed)))
    }

    /// How many bytes at most are kept alive by this pin and by nothing else.
    fn bytes(&self) -> usize {
        self.feed.kept_by(self.taken)
    }

    /// An address that identifies the feed.
    fn feed(&self) -> *const () {
        Arc::as_ptr(&self.feed).cast()
    }
}

/// Each pin with what becomes free once it and all before it are gone: what it keeps beyond the next pin of its feed.
fn with_what_they_free(entries: Vec<Arc<Entry>>) -> Vec<(Arc<Entry>, usize)> {
    let mut newer = HashMap::new();
    let mut freeing: Vec<_> = entries
        .into_iter()
        .rev()
        .map(|entry| {
            let bytes = entry.bytes();
            let before = newer.insert(entry.feed(), bytes).unwrap_or(0);
            (entry, bytes.saturating_sub(before))
        })
        .collect();
    freeing.reverse();
    freeing
}
