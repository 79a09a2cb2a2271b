use std::collections::VecDeque;

use super::ledger::WriteLedger;

/// The objects of one informer, and the changes that it received since the last comparison with the ledger.
#[derive(Debug)]
pub(super) struct InformerStore {
    /// The version of each stored object; 0 if the object is absent.
    versions: Vec<u64>,
    /// The versions of the initial state while it is incomplete.
    staged: Option<Vec<u64>>,
    /// The version to resume from; `None` if the informer must relist.
    at: Option<u64>,
    received: VecDeque<u64>,
    judged_to: u64,
    pub(super) counts: InformerCounts,
}

/// The counts of one informer of a trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct InformerCounts {
    pub(super) delivered: u64,
    pub(super) lost: u64,
    /// The number of changes that were never written, or that were received twice.
    pub(super) wrong: u64,
    /// The number of initial states received.
    pub(super) states: u64,
}

impl InformerStore {
    pub(super) fn new(objects: usize) -> Self {
        let (versions, received) = (vec![0; objects], VecDeque::new());
        Self { versions, staged: None, at: None, received, judged_to: 0, counts: InformerCounts::default() }
    }

    /// Returns the version to resume from; `None` if the informer must relist.
    pub(super) fn at(&self) -> Option<u64> {
        self.at
    }

    /// Records the start of a stream. It begins with the initial state if there is no version to resume from.
    pub(super) fn begins(&mut self) {
        self.staged = self.at.is_none().then(|| vec![0; self.versions.len()]);
    }

    /// Records a change, or an object of the initial state. `is_gone` means that the change is a deletion.
    pub(super) fn takes(&mut self, object: usize, version: u64, is_gone: bool) {
        let stored = if is_gone { 0 } else { version };
        if let Some(staged) = &mut self.staged {
            if let Some(place) = staged.get_mut(object) {
                *place = stored;
            }
            return;
        }
        self.counts.delivered += 1;
        if self.at.is_some_and(|at| version <= at) {
            self.counts.wrong += 1;
            return;
        }
        match self.versions.get_mut(object) {
            Some(place) => *place = stored,
            None => self.counts.wrong += 1,
        }
        self.received.push_back(version);
        self.at = Some(version);
    }

    /// Records a bookmark: all events up to its version were received. `ends_state` means that the initial state is
    /// complete.
    pub(super) fn reaches(&mut self, version: u64, ends_state: bool) {
        if let Some(staged) = self.staged.take_if(|_| ends_state) {
            // The initial state includes all earlier events.
            (self.versions, self.judged_to) = (staged, version);
            self.received.clear();
            self.counts.states += 1;
            self.at = Some(version);
        } else if self.staged.is_none() && self.at.is_none_or(|at| version > at) {
            self.at = Some(version);
        }
    }

    /// Forgets the position, so that the informer relists.
    pub(super) fn expires(&mut self) {
        self.at = None;
    }

    /// Compares the received changes with the written ones, up to the version to which both are complete.
    pub(super) fn judge(&mut self, ledger: &WriteLedger) {
        let to = ledger.whole_to().min(self.at.unwrap_or_default());
        self.judge_to(ledger, to);
    }

    /// Compares the received changes and the final state with the ledger. A change that has not arrived yet counts as
    /// lost.
    pub(super) fn judge_all(&mut self, ledger: &WriteLedger) {
        self.judge_to(ledger, ledger.newest());
        let differs = |(versions, latest): (&u64, &u64)| versions != latest;
        let different = self.versions.iter().zip(&ledger.latest()).filter(|pair| differs(*pair)).count() as u64;
        // An object may be stale because of a lost change that is counted already, so the counts are not added.
        self.counts.lost = self.counts.lost.max(different);
    }

    fn judge_to(&mut self, ledger: &WriteLedger, to: u64) {
        if to <= self.judged_to {
            return;
        }
        for version in ledger.between(self.judged_to, to) {
            while self.received.front().is_some_and(|received| *received < version) {
                self.received.pop_front();
                self.counts.wrong += 1;
            }
            match self.received.front() {
                Some(received) if *received == version => drop(self.received.pop_front()),
                _ => self.counts.lost += 1,
            }
        }
        while self.received.front().is_some_and(|received| *received <= to) {
            self.received.pop_front();
            self.counts.wrong += 1;
        }
        self.judged_to = to;
    }

    pub(super) fn judged_to(&self) -> u64 {
        self.judged_to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns two objects at versions 1 and 2. The ledger also has changes of the first one at 10, 20 and 30.
    fn world() -> (WriteLedger, InformerStore) {
        let ledger = WriteLedger::new(2, 1);
        ledger.created(0, 1);
        ledger.created(1, 2);
        let mut seen = InformerStore::new(2);
        seen.begins();
        seen.takes(0, 1, false);
        seen.takes(1, 2, false);
        seen.reaches(2, true);
        for version in [10, 20, 30] {
            ledger.sends(0);
            ledger.found(0, 0, version);
        }
        (ledger, seen)
    }

    fn judged(received: &[u64]) -> (u64, u64) {
        let (ledger, mut seen) = world();
        received.iter().for_each(|version| seen.takes(0, *version, false));
        seen.judge_all(&ledger);
        (seen.counts.lost, seen.counts.wrong)
    }

    #[test]
    fn lost_change_is_found_by_its_version() {
        assert_eq!(judged(&[10, 20, 30]), (0, 0));
        assert_eq!(judged(&[10, 30]), (1, 0), "in the middle, and the state is right");
        assert_eq!(judged(&[10, 20]), (1, 0), "at the end");
        assert_eq!(judged(&[]), (3, 0));
        assert_eq!(judged(&[10, 20, 20, 30]), (0, 1), "received twice");
        assert_eq!(judged(&[10, 20, 25, 30]), (0, 1), "never written");
    }

    #[test]
    fn pending_change_is_not_lost() {
        let (ledger, mut seen) = world();
        seen.takes(0, 10, false);
        seen.judge(&ledger);
        assert_eq!((seen.counts.lost, seen.judged_to()), (0, 10));
        // The bookmark passes a version whose change has not arrived, so the change is lost.
        seen.reaches(20, false);
        seen.judge(&ledger);
        assert_eq!((seen.counts.lost, seen.judged_to()), (1, 20));
    }

    #[test]
    fn relist_replaces_earlier_events() {
        let (ledger, mut seen) = world();
        seen.expires();
        seen.begins();
        seen.takes(0, 30, false);
        seen.takes(1, 2, false);
        seen.reaches(25, false);
        assert_eq!(seen.at(), None, "a bookmark amid the state is no end of it");
        seen.reaches(30, true);
        seen.judge_all(&ledger);
        assert_eq!((seen.counts.lost, seen.counts.wrong, seen.counts.states), (0, 0, 2));
    }

    #[test]
    fn state_that_differs_from_upstream_counts_as_lost() {
        let (ledger, mut seen) = world();
        seen.expires();
        seen.begins();
        seen.takes(0, 30, false);
        seen.reaches(30, true);
        seen.judge_all(&ledger);
        assert_eq!(seen.counts.lost, 1, "the second object is not there");
    }
}
