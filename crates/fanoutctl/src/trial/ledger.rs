use std::collections::BTreeSet;

use parking_lot::Mutex;

/// What was written, by its versions: the truth that informers are judged by.
///
/// A write that is under way may be made or not. Its version, if it gets one, is above every version that was known
/// when it was sent; so up to the lowest of these the ledger is whole.
#[derive(Debug)]
pub struct WriteLedger(Mutex<LedgerState>);

#[derive(Debug)]
struct LedgerState {
    /// The changes since the start, but for those that everybody has been judged by.
    versions: BTreeSet<u64>,
    /// The version of the newest change of each object.
    latest: Vec<u64>,
    /// The newest version when each writer sent what is under way.
    sent_at: Vec<Option<u64>>,
    newest: u64,
    written: u64,
}

/// The maximum number of changes kept. At this limit, writers wait until informers were judged by them.
const VERSIONS_MAX: usize = 1_000_000;

impl WriteLedger {
    pub fn new(objects: usize, writers: usize) -> Self {
        let versions = BTreeSet::new();
        let (latest, sent_at) = (vec![0; objects], vec![None; writers]);
        Self(Mutex::new(LedgerState { versions, latest, sent_at, newest: 0, written: 0 }))
    }

    /// Notes an object that is there before anybody watches.
    pub(super) fn created(&self, object: usize, version: u64) {
        let mut books = self.0.lock();
        books.latest[object] = version;
        books.newest = books.newest.max(version);
    }

    /// Notes that a writer sends a change; `false` if it may not, for there is no room to note it.
    pub(super) fn sends(&self, writer: usize) -> bool {
        let mut books = self.0.lock();
        let has_room = books.versions.len() < VERSIONS_MAX;
        if has_room {
            books.sent_at[writer] = Some(books.newest);
        }
        has_room
    }

    /// Notes the version that the object of a writer has now, whose change is not under way any more.
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

    /// The version up to which every change is known.
    pub fn whole_to(&self) -> u64 {
        let books = self.0.lock();
        books.sent_at.iter().flatten().copied().min().unwrap_or(books.newest)
    }

    /// The newest version that is known.
    pub fn newest(&self) -> u64 {
        self.0.lock().newest
    }

    pub fn written(&self) -> u64 {
        self.0.lock().written
    }

    /// Whether it is unknown of some change whether it was made.
    pub fn is_open(&self) -> bool {
        self.0.lock().sent_at.iter().any(Option::is_some)
    }

    /// The versions behind one, up to another.
    pub(super) fn between(&self, from: u64, to: u64) -> Vec<u64> {
        if to <= from { Vec::new() } else { self.0.lock().versions.range(from + 1..=to).copied().collect() }
    }

    pub(super) fn latest(&self) -> Vec<u64> {
        self.0.lock().latest.clone()
    }

    /// Forgets the changes up to a version, by which everybody has been judged.
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
        // It was not made: the object is as it was.
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
