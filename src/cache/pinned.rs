//! Pins on states that are being sent to clients.
//!
//! A state shares unchanged objects with the store and keeps the others alive. A client that does not read would keep
//! them forever. So each watch or list that sends a state holds a [`Pin`] on it. The pin records the time of the last
//! progress. If its terms are exceeded or the memory is needed, it cuts its owner. The memory is then freed even if the
//! owner is never polled again.

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

/// The pins on states of all feeds. Clones share them.
///
/// The concurrency limits of watches and lists bound the number of pins.
#[derive(Debug, Clone, Default)]
pub struct Pins {
    shared: Arc<Shared>,
}

/// Registration of a state that is in use. Dropping it removes the registration.
#[derive(Debug)]
pub struct Pin {
    pins: Pins,
    id: u64,
    entry: Arc<Entry>,
}

/// Limits that end a pin's owner, besides a shortage of memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct PinTerms {
    /// Time at which the owner ends, and the reason.
    pub until: Option<(Instant, &'static str)>,
    /// The owner ends if it made no progress for this long.
    pub idle_max: Option<Duration>,
}

/// A feed whose states can be pinned.
pub(super) trait KeepsStates: fmt::Debug + Send + Sync {
    /// Returns an upper bound of the bytes that only a state taken then keeps alive. If the feed has ended, that is all
    /// of the state's bytes.
    fn kept_by(&self, taken: Taken) -> usize;
}

#[derive(Debug, Default)]
struct Shared {
    pinned: Mutex<Pinned>,
    /// Wakes the task that enforces the terms, once the first pin is added.
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
    /// Time of the owner's last progress, in milliseconds after `since`.
    told: AtomicU64,
}

/// Reason for cutting an owner that made no progress.
const STALLED: &str = "stalled";
/// The reason for cutting an owner whose memory was needed.
const MEMORY: &str = "memory_pressure";
/// How often pins are checked while there are any.
const LOOK_EVERY: Duration = Duration::from_secs(1);

impl Pins {
    /// Registers a state of `feed` that is being sent. `cut` ends the sender.
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

    /// Enforces the terms of all pins; never completes.
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

    /// Returns the number of pins on states of one feed.
    pub(super) fn of(&self, feed: *const ()) -> usize {
        self.shared.pinned.lock().entries.values().filter(|entry| entry.feed() == feed).count()
    }

    /// Returns an upper bound of the bytes of objects that only pins keep alive: for each feed, those of its oldest
    /// pin. Pins whose owners have been cut do not count, because they are about to be dropped.
    pub fn bytes(&self) -> usize {
        self.bytes_by_feed().values().sum()
    }

    /// Returns the same bound for each feed.
    pub(super) fn bytes_by_feed(&self) -> HashMap<*const (), usize> {
        let mut oldest = HashMap::new();
        for entry in self.entries() {
            oldest.entry(entry.feed()).or_insert_with(|| entry.bytes());
        }
        oldest
    }

    /// Cuts the oldest owners until `bytes` are freed, or none is left. Returns an upper bound of the freed bytes.
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

    /// Returns the pins whose owners have not been cut, oldest first. The caller cuts owners without the lock, because
    /// they drop their pins.
    fn entries(&self) -> Vec<Arc<Entry>> {
        let pinned = self.shared.pinned.lock();
        pinned.entries.values().filter(|entry| !entry.cut.is_cut()).cloned().collect()
    }
}

impl Pin {
    /// Records that the owner waits for something other than its client. It does not count as idle until its next
    /// progress.
    pub fn rests(&self) {
        self.entry.told.store(u64::MAX, Ordering::Relaxed);
    }

    /// Records progress of the owner.
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
    /// Returns the reason why the owner must end now, if any.
    fn overdue(&self, now: Instant) -> Option<&'static str> {
        let PinTerms { until, idle_max } = self.terms;
        let over = until.filter(|(until, _)| *until <= now).map(|(_, why)| why);
        over.or_else(|| idle_max.is_some_and(|max| self.idle() >= max).then_some(STALLED))
    }

    fn idle(&self) -> Duration {
        self.since.elapsed().saturating_sub(Duration::from_millis(self.told.load(Ordering::Relaxed)))
    }

    /// Returns an upper bound of the bytes that only this pin keeps alive.
    fn bytes(&self) -> usize {
        self.feed.kept_by(self.taken)
    }

    /// Returns an address that identifies the feed.
    fn feed(&self) -> *const () {
        Arc::as_ptr(&self.feed).cast()
    }
}

/// Returns each pin with the bytes that become free once it and all pins before it are dropped. These are the bytes
/// that it keeps beyond the next pin of its feed.
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
