//! Pins on states that are being sent to clients.
//!
//! A state shares unchanged objects with the store and keeps the others alive. So each watch or list that sends a state
//! holds a [`SnapshotPin`] on it. If the memory is needed, the oldest pins cut their owners. The memory is then freed
//! even if the owner is never polled again.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::FeedSnapshot;
use super::snapshot::SnapshotCapturePoint;
use base::AbortSignal;

/// The pins on states of all feeds. Clones share them.
///
/// The concurrency limits of watches and lists bound the number of pins.
#[derive(Debug, Clone, Default)]
pub struct SnapshotPins(Arc<Mutex<SnapshotPinTable>>);

/// The registration of a state that is being sent. Dropping it removes the registration.
#[derive(Debug)]
pub struct SnapshotPin {
    pins: SnapshotPins,
    id: u64,
}

/// A feed whose states can be pinned.
pub(super) trait PinnableFeed: fmt::Debug + Send + Sync {
    /// Returns an upper bound of the bytes that only a state taken then keeps alive. If the feed has ended, that is all
    /// of the state's bytes.
    fn kept_by(&self, taken: SnapshotCapturePoint) -> usize;
}

#[derive(Debug, Default)]
struct SnapshotPinTable {
    /// The pins of states that are being sent, oldest first.
    entries: BTreeMap<u64, Arc<SnapshotPinEntry>>,
    next: u64,
}

#[derive(Debug)]
struct SnapshotPinEntry {
    feed: Arc<dyn PinnableFeed>,
    capture_point: SnapshotCapturePoint,
    abort: AbortSignal,
}

/// The reason for cutting an owner whose memory was needed.
const MEMORY: &str = "memory_pressure";

impl SnapshotPins {
    /// Registers a state of `feed` that is being sent. The signal `abort` ends its sender.
    pub(super) fn pin(&self, feed: Arc<dyn PinnableFeed>, snapshot: &FeedSnapshot, abort: AbortSignal) -> SnapshotPin {
        let entry = Arc::new(SnapshotPinEntry { feed, capture_point: snapshot.capture_point, abort });
        let mut pinned = self.0.lock();
        let id = pinned.next;
        pinned.next += 1;
        pinned.entries.insert(id, entry);
        SnapshotPin { pins: self.clone(), id }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.0.lock().entries.len()
    }

    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of pins on states of one feed.
    pub(super) fn of(&self, feed: *const ()) -> usize {
        self.0.lock().entries.values().filter(|entry| entry.feed() == feed).count()
    }

    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        self.bytes_by_feed().values().sum()
    }

    /// Returns for each feed an upper bound of the bytes of objects that only pins keep alive: those of its oldest pin.
    /// Pins whose senders have been aborted do not count, because they are about to be dropped.
    pub(super) fn bytes_by_feed(&self) -> HashMap<*const (), usize> {
        let mut oldest = HashMap::new();
        for entry in self.entries() {
            oldest.entry(entry.feed()).or_insert_with(|| entry.bytes());
        }
        oldest
    }

    /// Ends the oldest senders until `bytes` are freed, or none is left. Returns an upper bound of the freed bytes.
    pub fn free(&self, bytes: usize) -> usize {
        let mut freed = 0;
        for (entry, frees) in with_freed_bytes(self.entries()) {
            if freed >= bytes {
                break;
            }
            entry.abort.abort(MEMORY);
            freed += frees;
        }
        freed
    }

    /// Returns the pins whose senders have not been aborted, oldest first. The caller aborts senders without the lock,
    /// because they drop their pins.
    fn entries(&self) -> Vec<Arc<SnapshotPinEntry>> {
        let pinned = self.0.lock();
        pinned.entries.values().filter(|entry| !entry.abort.is_aborted()).cloned().collect()
    }
}

impl Drop for SnapshotPin {
    fn drop(&mut self) {
        // Dropped after the lock is released: this may be the last holder of the feed.
        let _entry = self.pins.0.lock().entries.remove(&self.id);
    }
}

impl SnapshotPinEntry {
    /// Returns an upper bound of the bytes that only this pin keeps alive.
    fn bytes(&self) -> usize {
        self.feed.kept_by(self.capture_point)
    }

    /// Returns an address that identifies the pinned feed.
    fn feed(&self) -> *const () {
        Arc::as_ptr(&self.feed).cast()
    }
}

/// Returns each pin with the bytes that become free once it and all pins before it are dropped. These are the bytes
/// that it keeps beyond the next pin of its feed.
fn with_freed_bytes(entries: Vec<Arc<SnapshotPinEntry>>) -> Vec<(Arc<SnapshotPinEntry>, usize)> {
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
