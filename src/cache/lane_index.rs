use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, BuildHasherDefault, Hash, Hasher};
use std::sync::Arc;

use super::FeedEvent;
use super::lane::{EventLane, LaneKey, LaneTerm, shard_node};
use indexmap::IndexMap;
use indexmap::map::Entry;
use kubeapi::SelectableAttributes;

/// The lanes of one feed that hold only a part of its events. They find the readers of an event in a few look-ups,
/// independent of the number of readers.
///
/// An event only looks up terms of a kind that has an open lane: if no lane is open for any label, thirty labels cost no
/// look-up. The object bounds the number of look-ups, not the lanes: for its name, each field of the table, and each of
/// its labels, before and after the event.
#[derive(Debug)]
pub(super) struct NarrowLanes {
    /// The lanes by the hash of a namespace and a term. A lane of a value set has an entry for each value. If hashes
    /// collide, a lane holds events that none of its readers matches.
    lanes: IndexMap<u64, Vec<Arc<EventLane>>, BuildHasherDefault<IdentityHasher>>,
    hasher: RandomState,
    /// The number of terms of each kind. The first part of a key is whether their lanes span one namespace.
    kinds: IndexMap<(bool, LaneTerm<()>), usize>,
    /// The number of terms for each label key.
    label_keys: IndexMap<Box<str>, usize>,
    /// The number of open lanes.
    open: usize,
    /// The number of events that each lane holds.
    events_max: usize,
}

/// The hasher of keys that are hashes.
#[derive(Debug, Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("the keys are numbers")
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl NarrowLanes {
    pub(super) fn new(events_max: usize) -> Self {
        Self {
            lanes: IndexMap::default(),
            hasher: RandomState::new(),
            kinds: IndexMap::default(),
            label_keys: IndexMap::default(),
            open: 0,
            events_max,
        }
    }

    /// Drops all lanes.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.events_max);
    }

    /// Returns the lane for `key`, created on demand. A new lane begins at `next_seq`.
    pub(super) fn open(&mut self, key: &LaneKey, next_seq: u64) -> Arc<EventLane> {
        let hashes = self.hashes(key);
        if let Some(lane) = self.find(&hashes, key) {
            return lane.clone();
        }
        let lane = Arc::new(EventLane::new(key.clone(), next_seq, self.events_max));
        for hash in hashes {
            self.lanes.entry(hash).or_default().push(lane.clone());
        }
        self.count(key, 1);
        lane
    }

    /// Drops the lane if it has no readers left.
    pub(super) fn release(&mut self, key: &LaneKey) {
        let hashes = self.hashes(key);
        if self.find(&hashes, key).is_none_or(|lane| lane.has_readers()) {
            return;
        }
        for hash in hashes {
            let Entry::Occupied(mut lanes) = self.lanes.entry(hash) else { continue };
            lanes.get_mut().retain(|lane| lane.key() != key);
            if lanes.get().is_empty() {
                lanes.swap_remove();
            }
        }
        self.count(key, -1);
    }

    /// Returns the number of open lanes.
    pub(super) fn len(&self) -> usize {
        self.open
    }

    /// Iterates over the lanes. A lane of a value set occurs once for each value.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<EventLane>> {
        self.lanes.values().flatten()
    }

    /// Visits the lanes that the object matches before or after the event. A lane may be visited twice.
    pub(super) fn for_each_of(&self, event: &FeedEvent, mut visit: impl FnMut(&EventLane)) {
        if self.open == 0 {
            return;
        }
        let (namespace, name) = event.object.key.parts();
        let now = &event.object.attributes;
        let before = event.previous.as_ref().map(|before| &before.attributes).filter(|before| *before != now);
        let both = || [now].into_iter().chain(before);
        for (is_namespaced, kind) in self.kinds.keys() {
            let namespace = is_namespaced.then_some(namespace);
            let mut look_up = |term| {
                let lanes = self.lanes.get(&self.hash(namespace, &term));
                lanes.into_iter().flatten().for_each(|lane| visit(lane));
            };
            match kind {
                LaneTerm::Whole => look_up(LaneTerm::Whole),
                LaneTerm::Name(()) => look_up(LaneTerm::Name(name)),
                LaneTerm::Field(at, ()) => both().for_each(|object| look_up(LaneTerm::Field(*at, object.field(*at)))),
                LaneTerm::Label((), ()) => {
                    let labels = both().flat_map(|object| self.labels(object));
                    labels.for_each(|(key, value)| look_up(LaneTerm::Label(key, value)));
                }
                LaneTerm::HasLabel(()) => {
                    let labels = both().flat_map(|object| self.labels(object));
                    labels.for_each(|(key, _)| look_up(LaneTerm::HasLabel(key)));
                }
                // An object never changes its UID and namespace.
                LaneTerm::Shard(key, first) => {
                    let hash = key.hash_of(&event.object.key, now);
                    look_up(LaneTerm::Shard(*key, shard_node(hash, *first)));
                }
            }
        }
    }

    /// Returns the object's labels that have lanes. Looks up the label keys that have lanes or those of the object,
    /// whichever are fewer.
    fn labels<'a>(&'a self, object: &'a SelectableAttributes) -> impl Iterator<Item = (&'a str, &'a str)> {
        let is_few = self.label_keys.len() <= object.labels().len();
        let few = is_few.then(|| self.label_keys.keys().filter_map(|key| Some((&**key, object.label(key)?))));
        let many = (!is_few).then(|| object.labels().filter(|(key, _)| self.label_keys.contains_key(*key)));
        few.into_iter().flatten().chain(many.into_iter().flatten())
    }

    fn find(&self, hashes: &[u64], key: &LaneKey) -> Option<&Arc<EventLane>> {
        self.lanes.get(hashes.first()?)?.iter().find(|lane| lane.key() == key)
    }

    /// Returns the hashes of the events of a lane.
    fn hashes(&self, key: &LaneKey) -> Vec<u64> {
        key.terms.iter().map(|term| self.hash(key.namespace.as_deref(), term)).collect()
    }

    /// Returns the hash of a namespace and a term, whether a lane or an event has it.
    fn hash(&self, namespace: Option<&str>, term: &LaneTerm<impl Hash>) -> u64 {
        self.hasher.hash_one((namespace, term))
    }

    /// Counts a lane that was opened (`1`) or dropped (`-1`).
    fn count(&mut self, key: &LaneKey, change: isize) {
        for term in &key.terms {
            let (kind, label_key) = match term {
                LaneTerm::Whole => (LaneTerm::Whole, None),
                LaneTerm::Name(_) => (LaneTerm::Name(()), None),
                LaneTerm::Field(at, _) => (LaneTerm::Field(*at, ()), None),
                LaneTerm::Label(key, _) => (LaneTerm::Label((), ()), Some(key)),
                LaneTerm::HasLabel(key) => (LaneTerm::HasLabel(()), Some(key)),
                LaneTerm::Shard(key, node) => (LaneTerm::Shard(*key, 1 << node.ilog2()), None),
            };
            if let Some(key) = label_key {
                add(&mut self.label_keys, key.clone(), change);
            }
            add(&mut self.kinds, (key.namespace.is_some(), kind), change);
        }
        self.open = self.open.saturating_add_signed(change);
    }
}

/// Adds to a count, and removes it if it is then zero.
fn add<K: Hash + Eq>(counts: &mut IndexMap<K, usize>, key: K, change: isize) {
    let entry = counts.entry(key);
    let at = entry.index();
    let count = entry.or_default();
    *count = count.saturating_add_signed(change);
    if *count == 0 {
        counts.swap_remove_index(at);
    }
}
