use std::sync::Arc;

use super::FeedEvent;
use super::lane::EventLane;
use super::lane_key::{LaneKey, LaneSelectorTerm};
use indexmap::IndexMap;
use kubeapi::SelectableAttributes;

/// The lanes of one feed that hold only a part of its events. They find the readers of an event in a few look-ups,
/// independent of the number of readers.
#[derive(Debug)]
pub(super) struct NarrowLanes {
    /// The lanes that span all namespaces.
    everywhere: LaneIndex,
    namespaces: IndexMap<Box<str>, LaneIndex>,
    /// The number of open lanes.
    open: usize,
    /// The number of events that each lane holds.
    events_max: usize,
}

/// The narrow lanes of one namespace, or those of all namespaces, indexed by the terms that an event can match.
///
/// An event only looks up keys that have an open lane: if no lane is open for any label, thirty labels cost no look-up.
/// The object bounds the number of look-ups, not the lanes. It needs one for its name, two for each field of the table,
/// and two for each of its labels.
#[derive(Debug, Default)]
struct LaneIndex {
    whole: Option<Arc<EventLane>>,
    names: LanesByValue,
    /// The lanes by the field's index in the table. A table has a dozen fields at most.
    fields: Vec<(usize, LanesByValue)>,
    labels: IndexMap<Box<str>, LabelLanes>,
}

type LanesByValue = IndexMap<Box<str>, Arc<EventLane>>;

/// The lanes for one label key.
#[derive(Debug, Default)]
struct LabelLanes {
    present: Option<Arc<EventLane>>,
    equal: LanesByValue,
    sets: IndexMap<Box<[Box<str>]>, Arc<EventLane>>,
    /// The lanes of value sets, by each of their values.
    members: IndexMap<Box<str>, Vec<Arc<EventLane>>>,
}

impl NarrowLanes {
    pub(super) fn new(events_max: usize) -> Self {
        Self { everywhere: LaneIndex::default(), namespaces: IndexMap::default(), open: 0, events_max }
    }

    /// Drops all lanes.
    pub(super) fn clear(&mut self) {
        *self = Self::new(self.events_max);
    }

    /// Returns the lane for `key`, created on demand. A new lane begins at `next_seq`.
    pub(super) fn open(&mut self, key: &LaneKey, next_seq: u64) -> Arc<EventLane> {
        let make_lane = || {
            self.open += 1;
            Arc::new(EventLane::new(key.clone(), next_seq, self.events_max))
        };
        match &key.namespace {
            None => self.everywhere.open(&key.term, make_lane),
            Some(namespace) => self.namespaces.entry(namespace.clone()).or_default().open(&key.term, make_lane),
        }
    }

    /// Drops the lane if it has no readers left.
    pub(super) fn release(&mut self, key: &LaneKey) {
        let dropped = match &key.namespace {
            None => self.everywhere.release(&key.term),
            Some(namespace) => {
                let Some(index) = self.namespaces.get_mut(namespace) else { return };
                let dropped = index.release(&key.term);
                if index.is_empty() {
                    self.namespaces.swap_remove(namespace);
                }
                dropped
            }
        };
        self.open -= usize::from(dropped);
    }

    /// Returns the number of open lanes.
    pub(super) fn len(&self) -> usize {
        self.open
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<EventLane>> {
        std::iter::once(&self.everywhere).chain(self.namespaces.values()).flat_map(LaneIndex::iter)
    }

    /// Visits the lanes of an event. A lane of a value set may be visited twice.
    pub(super) fn for_each_of(&self, event: &FeedEvent, mut visit: impl FnMut(&EventLane)) {
        if self.open == 0 {
            return;
        }
        let (namespace, name) = event.object.key.parts();
        self.everywhere.visit(event, name, &mut visit);
        if let Some(index) = (!self.namespaces.is_empty()).then(|| self.namespaces.get(namespace)).flatten() {
            index.visit(event, name, &mut visit);
        }
    }
}

impl LaneIndex {
    /// Returns the lane for a term; if there is none, it is created with `make_lane`.
    fn open(&mut self, term: &LaneSelectorTerm, make_lane: impl FnOnce() -> Arc<EventLane>) -> Arc<EventLane> {
        match term {
            LaneSelectorTerm::Whole => self.whole.get_or_insert_with(make_lane).clone(),
            LaneSelectorTerm::Name(name) => self.names.entry(name.clone()).or_insert_with(make_lane).clone(),
            LaneSelectorTerm::Field(position, value) => {
                let at = self.fields.iter().position(|(field, _)| field == position).unwrap_or_else(|| {
                    self.fields.push((*position, IndexMap::default()));
                    self.fields.len() - 1
                });
                self.fields[at].1.entry(value.clone()).or_insert_with(make_lane).clone()
            }
            LaneSelectorTerm::Label(key, value) => {
                self.label(key).equal.entry(value.clone()).or_insert_with(make_lane).clone()
            }
            LaneSelectorTerm::LabelIn(key, values) => self.label(key).open_set(values, make_lane),
            LaneSelectorTerm::HasLabel(key) => self.label(key).present.get_or_insert_with(make_lane).clone(),
        }
    }

    /// Drops the lane for a term if it has no readers. Returns whether it was dropped.
    fn release(&mut self, term: &LaneSelectorTerm) -> bool {
        match term {
            LaneSelectorTerm::Whole => self.whole.take_if(|lane| !lane.has_readers()).is_some(),
            LaneSelectorTerm::Name(name) => drop_unread(&mut self.names, name),
            LaneSelectorTerm::Field(position, value) => {
                let Some(at) = self.fields.iter().position(|(field, _)| field == position) else { return false };
                let dropped = drop_unread(&mut self.fields[at].1, value);
                if self.fields[at].1.is_empty() {
                    self.fields.swap_remove(at);
                }
                dropped
            }
            LaneSelectorTerm::Label(key, _) | LaneSelectorTerm::LabelIn(key, _) | LaneSelectorTerm::HasLabel(key) => {
                let Some(lanes) = self.labels.get_mut(key) else { return false };
                let dropped = lanes.release(term);
                if lanes.is_empty() {
                    self.labels.swap_remove(key);
                }
                dropped
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.whole.is_none() && self.names.is_empty() && self.fields.is_empty() && self.labels.is_empty()
    }

    /// Iterates over every lane once.
    fn iter(&self) -> impl Iterator<Item = &Arc<EventLane>> {
        let fields = self.fields.iter().flat_map(|(_, lanes)| lanes.values());
        let labels = self.labels.values().flat_map(LabelLanes::iter);
        self.whole.iter().chain(self.names.values()).chain(fields).chain(labels)
    }

    /// Visits the lanes that the object matches before or after the event. A lane of a value set may be visited twice.
    fn visit(&self, event: &FeedEvent, name: &str, visit: &mut impl FnMut(&EventLane)) {
        self.whole.iter().for_each(|lane| visit(lane));
        find(&self.names, name, visit);
        let (now, before) = (&event.object.attributes, event.previous.as_ref().map(|before| &before.attributes));
        for (position, lanes) in &self.fields {
            let after = now.field(*position);
            find(lanes, after, visit);
            if let Some(before) = before.map(|before| before.field(*position)).filter(|before| *before != after) {
                find(lanes, before, visit);
            }
        }
        if !self.labels.is_empty() {
            self.visit_labels(now, before, visit);
        }
    }

    /// Iterates over the label keys that have lanes or over those of the object, whichever are fewer.
    fn visit_labels(
        &self,
        now: &SelectableAttributes,
        before: Option<&SelectableAttributes>,
        visit: &mut impl FnMut(&EventLane),
    ) {
        let value_before = |key: &str| before.and_then(|before| before.label(key));
        if self.labels.len() <= now.labels().len() {
            for (key, lanes) in &self.labels {
                lanes.visit(now.label(key), value_before(key), visit);
            }
            return;
        }
        for (key, value) in now.labels() {
            if let Some(lanes) = self.labels.get(key) {
                lanes.visit(Some(value), value_before(key), visit);
            }
        }
        for (key, value) in before.into_iter().flat_map(SelectableAttributes::labels) {
            if let Some(lanes) = self.labels.get(key).filter(|_| now.label(key).is_none()) {
                lanes.visit(None, Some(value), visit);
            }
        }
    }

    fn label(&mut self, key: &str) -> &mut LabelLanes {
        self.labels.entry(key.into()).or_default()
    }
}

impl LabelLanes {
    fn open_set(&mut self, values: &[Box<str>], make_lane: impl FnOnce() -> Arc<EventLane>) -> Arc<EventLane> {
        if let Some(lane) = self.sets.get(values) {
            return lane.clone();
        }
        let lane = make_lane();
        self.sets.insert(values.into(), lane.clone());
        for value in values {
            self.members.entry(value.clone()).or_default().push(lane.clone());
        }
        lane
    }

    fn release(&mut self, term: &LaneSelectorTerm) -> bool {
        match term {
            LaneSelectorTerm::Label(_, value) => drop_unread(&mut self.equal, value),
            LaneSelectorTerm::LabelIn(_, values) => {
                let Some(lane) = self.sets.get(values).filter(|lane| !lane.has_readers()).cloned() else {
                    return false;
                };
                self.sets.swap_remove(values);
                for value in values {
                    let Some(lanes) = self.members.get_mut(value) else { continue };
                    lanes.retain(|member| !Arc::ptr_eq(member, &lane));
                    if lanes.is_empty() {
                        self.members.swap_remove(value);
                    }
                }
                true
            }
            _ => self.present.take_if(|lane| !lane.has_readers()).is_some(),
        }
    }

    fn is_empty(&self) -> bool {
        self.present.is_none() && self.equal.is_empty() && self.sets.is_empty()
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<EventLane>> {
        self.present.iter().chain(self.equal.values()).chain(self.sets.values())
    }

    fn visit(&self, now: Option<&str>, before: Option<&str>, visit: &mut impl FnMut(&EventLane)) {
        if now.is_none() && before.is_none() {
            return;
        }
        self.present.iter().for_each(|lane| visit(lane));
        for value in now.into_iter().chain(before.filter(|_| before != now)) {
            find(&self.equal, value, visit);
            if !self.members.is_empty() {
                self.members.get(value).into_iter().flatten().for_each(|lane| visit(lane));
            }
        }
    }
}

fn find(lanes: &LanesByValue, key: &str, visit: &mut impl FnMut(&EventLane)) {
    // Avoids hashing the key, which even an empty map would do.
    if let Some(lane) = (!lanes.is_empty()).then(|| lanes.get(key)).flatten() {
        visit(lane);
    }
}

fn drop_unread(lanes: &mut LanesByValue, key: &str) -> bool {
    lanes.get(key).is_some_and(|lane| !lane.has_readers()) && lanes.swap_remove(key).is_some()
}
