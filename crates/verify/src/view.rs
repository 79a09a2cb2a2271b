//! A resource seen through one selection: the events that a watch of it must get, and its state at every version.

use super::interner::{InternedKeys, ObjectKeyId};
use super::record::RecordedEventType;
use super::selection::{LabelsAndFields, ObjectSelection};
use super::truth::{GroundTruthChange, ResourceGroundTruth};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An event that each watch of the selection must get.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedEvent {
    pub(super) version: u64,
    /// The index of the expected event's change in the true history.
    pub(super) change: u32,
    /// The event type of the change for this selection.
    pub(super) kind: RecordedEventType,
    sum: ObjectStateFingerprint,
}

/// A fingerprint of a state: two states with the same count and mix are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ObjectStateFingerprint {
    pub(super) count: u32,
    mix: u64,
}

impl ObjectStateFingerprint {
    pub(super) fn add(&mut self, key: ObjectKeyId, version: u64) {
        self.count = self.count.wrapping_add(1);
        self.mix ^= mixed(key, version);
    }

    pub(super) fn take(&mut self, key: ObjectKeyId, version: u64) {
        self.count = self.count.wrapping_sub(1);
        self.mix ^= mixed(key, version);
    }
}

/// Hashes a key and a version to 64 bits, as splitmix64 does.
fn mixed(key: ObjectKeyId, version: u64) -> u64 {
    let mut mix = version.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(key.0).wrapping_mul(0xd1b5_4a32_d192_ed03);
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
        mix = (mix ^ mix >> shift).wrapping_mul(factor);
    }
    mix ^ mix >> 31
}

/// One selection of a resource, with the events that its watches must deliver.
#[derive(Debug)]
pub(super) struct SelectionView {
    /// The index of the resource's true history.
    pub(super) truth: usize,
    pub(super) selection: ObjectSelection,
    /// The matching objects at the beginning of the truth, by change.
    initial: Vec<u32>,
    initial_sum: ObjectStateFingerprint,
    /// The expected events, in the order of the true history.
    pub(super) events: Vec<ExpectedEvent>,
}

impl SelectionView {
    pub(super) fn new(
        at: usize,
        truth: &ResourceGroundTruth,
        selection: ObjectSelection,
        attributes: &[Arc<LabelsAndFields>],
        keys: &InternedKeys,
    ) -> Self {
        let admitted: Vec<bool> = attributes.iter().map(|attributes| selection.admits(attributes)).collect();
        let matches = |change: &GroundTruthChange| {
            !change.is_deletion()
                && admitted.get(change.attributes as usize) == Some(&true)
                && selection.covers(keys.text(change.key))
        };
        let mut sum = ObjectStateFingerprint::default();
        let mut initial = Vec::new();
        let mut events = Vec::new();
        let mut initial_sum = sum;
        for (number, change) in (0..).zip(&truth.changes) {
            let now = matches(change);
            if change.version <= truth.from {
                if now {
                    initial.push(number);
                    sum.add(change.key, change.version);
                }
                initial_sum = sum;
                continue;
            }
            let before = change.before.map(|before| &truth.changes[before as usize]).filter(|before| matches(before));
            if let Some(before) = before {
                sum.take(change.key, before.version);
            }
            if now {
                sum.add(change.key, change.version);
            }
            let kind = match (before.is_some(), now) {
                (false, true) => RecordedEventType::Added,
                (true, true) => RecordedEventType::Modified,
                (true, false) => RecordedEventType::Deleted,
                (false, false) => continue,
            };
            events.push(ExpectedEvent { version: change.version, change: number, kind, sum });
        }
        Self { truth: at, selection, initial, initial_sum, events }
    }

    /// Returns the index of the first event after a version.
    pub(super) fn index_behind(&self, version: u64) -> usize {
        self.events.partition_point(|event| event.version <= version)
    }

    /// Returns the index of a change's event, if there is one.
    pub(super) fn position(&self, change: u32) -> Option<usize> {
        self.events.binary_search_by_key(&change, |event| event.change).ok()
    }

    /// Whether the result of a change is part of the truth's initial state.
    pub(super) fn is_initial(&self, change: u32) -> bool {
        self.initial.binary_search(&change).is_ok()
    }

    /// Returns the state at a version that the true history contains.
    pub(super) fn sum_at(&self, version: u64) -> ObjectStateFingerprint {
        self.index_behind(version).checked_sub(1).map_or(self.initial_sum, |last| self.events[last].sum)
    }

    /// Returns an iterator over states. The requested versions must not decrease.
    pub(super) fn replay<'a>(&'a self, truth: &'a ResourceGroundTruth) -> StateReplay<'a> {
        let state = self.initial.iter().map(|change| (truth.changes[*change as usize].key, *change)).collect();
        StateReplay { view: self, truth, next: 0, state }
    }
}

/// A state that advances from version to version.
pub(super) struct StateReplay<'a> {
    view: &'a SelectionView,
    truth: &'a ResourceGroundTruth,
    next: usize,
    /// The last change of each object, in the order of lists.
    state: BTreeMap<ObjectKeyId, u32>,
}

impl StateReplay<'_> {
    /// Returns the objects at a version, each with its last change.
    pub(super) fn at(&mut self, version: u64) -> &BTreeMap<ObjectKeyId, u32> {
        while let Some(event) = self.view.events.get(self.next).filter(|event| event.version <= version) {
            let key = self.truth.changes[event.change as usize].key;
            if event.kind == RecordedEventType::Deleted {
                self.state.remove(&key);
            } else {
                self.state.insert(key, event.change);
            }
            self.next += 1;
        }
        &self.state
    }
}
