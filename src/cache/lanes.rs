use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;

use super::lane::Lane;
use super::{Event, View};
use crate::kube::ObjectKey;
use crate::wire::Object;

/// The lanes of one feed: which readers an event concerns, found in a few look-ups however many readers there are.
#[derive(Debug)]
pub(super) struct Lanes {
    /// Every event: the ring itself.
    pub(super) all: Arc<Lane>,
    namespaces: HashMap<Box<str>, Arc<Lane>>,
    objects: HashMap<ObjectKey, Arc<Lane>>,
    /// By the value of the lane field (`spec.nodeName` of pods), before and after the change.
    values: HashMap<Box<str>, Arc<Lane>>,
    /// Index of the lane field in the resource's field table, if it has one.
    field: Option<usize>,
}

/// Which lane a reader follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LaneKey {
    All,
    Namespace(Box<str>),
    Object(ObjectKey),
    Value(Box<str>),
}

impl Lanes {
    pub(super) fn new(field: Option<usize>, from: u64) -> Self {
        Self {
            all: Arc::new(Lane::starting_at(from)),
            namespaces: HashMap::new(),
            objects: HashMap::new(),
            values: HashMap::new(),
            field,
        }
    }

    /// The narrowest lane that holds everything this view can see.
    pub(super) fn key_for(view: &View, namespaced: bool, field: Option<&str>) -> LaneKey {
        if let Some(key) = view.single(namespaced) {
            return LaneKey::Object(key);
        }
        if let Some(value) = field.and_then(|field| view.selector().fields.required_field(field)) {
            return LaneKey::Value(value.into());
        }
        view.namespace().map_or(LaneKey::All, |namespace| LaneKey::Namespace(namespace.into()))
    }

    /// The lane for `key`, made on demand and complete from `from` on.
    pub(super) fn open(&mut self, key: &LaneKey, from: u64, next_seq: u64) -> Arc<Lane> {
        let fresh = || Arc::new(Lane::starting_at(next_seq));
        let lane = match key {
            LaneKey::All => return self.all.clone(),
            LaneKey::Namespace(namespace) => self.namespaces.entry(namespace.clone()).or_insert_with(fresh).clone(),
            LaneKey::Object(object) => self.objects.entry(object.clone()).or_insert_with(fresh).clone(),
            LaneKey::Value(value) => self.values.entry(value.clone()).or_insert_with(fresh).clone(),
        };
        let field = self.field;
        self.all.with_events(|events| {
            let first = events.partition_point(|event| event.seq < from);
            lane.backfill(from, events.range(first..).filter(|event| concerns(event, key, field)));
        });
        lane
    }

    /// Drops the lane if its last reader has gone.
    pub(super) fn release(&mut self, key: &LaneKey) {
        match key {
            LaneKey::All => {}
            LaneKey::Namespace(namespace) => drop_unread(&mut self.namespaces, namespace),
            LaneKey::Object(object) => drop_unread(&mut self.objects, object),
            LaneKey::Value(value) => drop_unread(&mut self.values, value),
        }
    }

    pub(super) fn push(&self, event: &Arc<Event>, wake: &mut Vec<Waker>) {
        self.all.push(event.clone(), wake);
        self.for_each_narrow(event, |lane| lane.push(event.clone(), wake));
    }

    pub(super) fn evict(&self, event: &Event) {
        self.all.evict(event.seq);
        self.for_each_narrow(event, |lane| lane.evict(event.seq));
    }

    pub(super) fn nudge(&self, wake: &mut Vec<Waker>) {
        self.each().for_each(|lane| lane.nudge(wake));
    }

    pub(super) fn close(&self, wake: &mut Vec<Waker>) {
        self.each().for_each(|lane| lane.close(wake));
    }

    /// Starts over with empty lanes, complete from `from` on. Readers of the old ones keep those, closed.
    pub(super) fn reopen(&mut self, from: u64) {
        *self = Self::new(self.field, from);
    }

    /// How many narrow lanes are open.
    pub(super) fn len(&self) -> usize {
        self.namespaces.len() + self.objects.len() + self.values.len()
    }

    fn each(&self) -> impl Iterator<Item = &Arc<Lane>> {
        let narrow = self.namespaces.values().chain(self.objects.values()).chain(self.values.values());
        std::iter::once(&self.all).chain(narrow)
    }

    fn for_each_narrow(&self, event: &Event, mut visit: impl FnMut(&Lane)) {
        if !self.namespaces.is_empty()
            && let Some(lane) = self.namespaces.get(event.object.key.namespace())
        {
            visit(lane);
        }
        if let Some(lane) = self.objects.get(&event.object.key) {
            visit(lane);
        }
        if let (Some(field), false) = (self.field, self.values.is_empty()) {
            let after = value_of(&event.object, field);
            let before = event.previous.as_deref().map(|previous| value_of(previous, field));
            if let Some(lane) = self.values.get(after) {
                visit(lane);
            }
            if let Some(lane) = before.filter(|before| *before != after).and_then(|before| self.values.get(before)) {
                visit(lane);
            }
        }
    }
}

fn value_of(object: &Object, field: usize) -> &str {
    object.attributes.fields.get(field).map_or("", |value| value)
}

fn concerns(event: &Event, key: &LaneKey, field: Option<usize>) -> bool {
    let has_value = |object: &Object, value: &str| field.is_some_and(|field| value_of(object, field) == value);
    match key {
        LaneKey::All => true,
        LaneKey::Namespace(namespace) => event.object.key.namespace() == &**namespace,
        LaneKey::Object(object) => event.object.key == *object,
        LaneKey::Value(value) => {
            has_value(&event.object, value)
                || event.previous.as_ref().is_some_and(|previous| has_value(previous, value))
        }
    }
}

fn drop_unread<K, Q>(lanes: &mut HashMap<K, Arc<Lane>>, key: &Q)
where
    K: std::hash::Hash + Eq + std::borrow::Borrow<Q>,
    Q: std::hash::Hash + Eq + ?Sized,
{
    if lanes.get(key).is_some_and(|lane| !lane.has_readers()) {
        lanes.remove(key);
    }
}
