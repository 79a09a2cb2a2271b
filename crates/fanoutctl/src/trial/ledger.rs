use std::collections::BTreeSet;

use parking_lot::Mutex;

/// The resourceVersions of all writes, with which the informers are compared.
///
/// The outcome of a pending write is unknown. If it succeeds, its version is above every version that was known when it
/// was sent. Therefore the ledger is complete up to the lowest such version.
#[derive(Debug)]
pub struct WriteLedger(Mutex<WriteLedgerState>);

#[derive(Debug)]
struct WriteLedgerState {
    /// The versions of all changes, except those that were compared with every informer.
    versions: BTreeSet<u64>,
    /// The latest version of each object.
    latest: Vec<u64>,
    /// The newest known version at the time when each writer sent its pending write; `None` without a pending write.
    sent_at: Vec<Option<u64>>,
    newest: u64,
    written: u64,
}

/// The maximum number of changes that the ledger keeps. At this limit, writers pause until every informer was compared
/// with the changes.
const VERSIONS_MAX: usize = 1_000_000;

impl WriteLedger {
    pub fn new(objects: usize, writers: usize) -> Self {
        let versions = BTreeSet::new();
        let (latest, sent_at) = (vec![0; objects], vec![None; writers]);
        Self(Mutex::new(WriteLedgerState { versions, latest, sent_at, newest: 0, written: 0 }))
    }

    /// Records an object that was created before the informers started.
    pub(super) fn created(&self, object: usize, version: u64) {
        let mut books = self.0.lock();
        books.latest[object] = version;
        books.newest = books.newest.max(version);
    }

    /// Records that a writer is about to send a change. Returns `false` if it must not, because the ledger is full.
    pub(super) fn sends(&self, writer: usize) -> bool {
        let mut books = self.0.lock();
        let has_room = books.versions.len() < VERSIONS_MAX;
        if has_room {
            books.sent_at[writer] = Some(books.newest);
        }
        has_room
    }

    /// Records the end of a writer's pending write, and the version that the object has now. If the version is not new,
    /// the write did not take effect.
    pub(super) fn found(&self, writer: usize, object: usize, version: u64) {
        let mut books = self.0.lock();
        books.sent_at[writer] = None;
        if version > books.latest[object] {
            books.latest[object] = version;
            books.newest = books.newest.max(version);
            books.versions.insert(version);
            books.written += 1;
        }
    }

    /// Returns the version up to which every change is known.
    pub fn whole_to(&self) -> u64 {
        let books = self.0.lock();
        books.sent_at.iter().flatten().copied().min().unwrap_or(books.newest)
    }

    /// Returns the newest resourceVersion that a write returned.
    pub fn newest(&self) -> u64 {
        self.0.lock().newest
    }

    pub fn written(&self) -> u64 {
        self.0.lock().written
    }

    /// Whether the outcome of a write is unknown.
    pub fn is_open(&self) -> bool {
        self.0.lock().sent_at.iter().any(Option::is_some)
    }

    /// Returns the versions of changes above `from`, up to and including `to`.
    pub(super) fn between(&self, from: u64, to: u64) -> Vec<u64> {
        if to <= from { Vec::new() } else { self.0.lock().versions.range(from + 1..=to).copied().collect() }
    }

    pub(super) fn latest(&self) -> Vec<u64> {
        self.0.lock().latest.clone()
    }

    /// Removes the changes up to a version to which every informer was compared.
    pub(super) fn forget_to(&self, version: u64) {
        let mut books = self.0.lock();
        books.versions = books.versions.split_off(&(version + 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_is_complete_up_to_the_oldest_open_write() {
        let ledger = WriteLedger::new(2, 2);
        ledger.created(0, 5);
        ledger.created(1, 6);
        assert_eq!((ledger.whole_to(), ledger.between(0, 100)), (6, vec![]));
        assert!(ledger.sends(0) && ledger.sends(1));
        ledger.found(1, 1, 9);
        assert_eq!((ledger.whole_to(), ledger.newest(), ledger.is_open()), (6, 9, true));
        // The write did not take effect, because the object still has its old version.
        ledger.found(0, 0, 5);
        assert_eq!((ledger.whole_to(), ledger.is_open(), ledger.written()), (9, false, 1));
        ledger.sends(0);
        ledger.found(0, 0, 12);
        assert_eq!(
            (ledger.between(6, 12), ledger.between(9, 12), ledger.latest()),
            (vec![9, 12], vec![12], vec![12, 9])
        );
        ledger.forget_to(9);
        assert_eq!(ledger.between(0, 12), [12]);
    }
}
