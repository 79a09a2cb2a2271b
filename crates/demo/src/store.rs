//! The demo's store: for each resource its current objects and a bounded ring of events, and one revision for all.
//!
//! Writers apply their change under the lock and wake the watches afterwards. Each watch has a position in the ring and
//! pulls from there.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::RwLock;
use tokio::time::timeout;

use super::json::JsonMembers;
use super::kinds::{DemoResourceKind, KINDS};
use super::object::{DemoObjectMeta, StoredObject};
use super::status::DemoStatus;
use tokio::sync::watch;

/// The objects of a resource at one revision, in the order of their keys.
pub(crate) type ObjectMap = Arc<[Arc<StoredObject>]>;

#[derive(Debug)]
pub(crate) struct ObjectStore {
    state: RwLock<ObjectStoreState>,
    /// The sequence number of the next event of each resource.
    changed: Vec<watch::Sender<u64>>,
    revised: watch::Sender<u64>,
    ring_events_max: usize,
}

#[derive(Clone, Debug)]
struct ObjectStoreState {
    revision: u64,
    tables: Vec<ResourceTable>,
}

/// A copy of a storage's contents.
#[derive(Clone, Debug)]
pub struct StoreBackup(ObjectStoreState);

#[derive(Clone, Debug, Default)]
struct ResourceTable {
    objects: BTreeMap<String, Arc<StoredObject>>,
    /// The objects as a slice, built at most once between two writes.
    listed: OnceLock<ObjectMap>,
    ring: VecDeque<Arc<StoreEvent>>,
    /// The sequence number of the first event in the ring.
    first: u64,
    /// The oldest revision that a watch or an exact list may start from.
    floor: u64,
    /// The oldest revision that a watch may start from, if it is above `floor`. Exact lists find older revisions in
    /// storage.
    window: u64,
}

/// A change of one object. It has the object before and after, because a selector may match only one of the two.
#[derive(Debug)]
pub(crate) struct StoreEvent {
    pub(crate) rv: u64,
    pub(crate) previous: Option<Arc<StoredObject>>,
    pub(crate) current: Option<Arc<StoredObject>>,
    frames: [OnceLock<Bytes>; 3],
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StoreEventType {
    Added,
    Modified,
    Deleted,
}

/// The decision of a writer after it saw the current object.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "lives on the stack of one write")]
pub(crate) enum WriteDecision {
    Put(DemoObjectMeta, JsonMembers),
    Remove,
}

/// The result of a write: the object's new state, or its last state if it was removed.
#[derive(Debug)]
pub(crate) struct WriteResult {
    pub(crate) object: Arc<StoredObject>,
    pub(crate) revision: u64,
    pub(crate) created: bool,
}

#[derive(Debug)]
pub(crate) struct EventBatch {
    pub(crate) events: Vec<Arc<StoreEvent>>,
    /// The position to pull from next.
    pub(crate) next: u64,
    /// The revision of the store. If `events` is empty, everything up to that revision has been pulled.
    pub(crate) revision: u64,
}

impl ObjectStore {
    pub(crate) fn new(ring_events_max: usize) -> Self {
        let tables = KINDS.iter().map(|_| ResourceTable::default()).collect();
        Self {
            state: RwLock::new(ObjectStoreState { revision: 1, tables }),
            changed: KINDS.iter().map(|_| watch::Sender::new(0)).collect(),
            revised: watch::Sender::new(1),
            ring_events_max: ring_events_max.max(1),
        }
    }

    pub(crate) fn revision(&self) -> u64 {
        self.state.read().revision
    }

    /// Returns how many events the resource has had, including those that are no longer in the ring.
    pub(crate) fn events(&self, kind: usize) -> u64 {
        self.state.read().tables[kind].next()
    }

    /// Returns a receiver that is woken whenever the resource gets an event.
    pub(crate) fn subscribe(&self, kind: usize) -> watch::Receiver<u64> {
        self.changed[kind].subscribe()
    }

    /// Waits until the store is at least at `rv`; returns the apiserver's 504 if that takes longer than `patience`.
    pub(crate) async fn reach(&self, rv: u64, patience: Duration) -> Result<(), DemoStatus> {
        let mut revised = self.revised.subscribe();
        let reached = timeout(patience, revised.wait_for(|revision| *revision >= rv)).await.is_ok();
        if reached { Ok(()) } else { Err(DemoStatus::too_large(rv, self.revision())) }
    }

    pub(crate) fn get(&self, kind: usize, key: &str) -> Option<Arc<StoredObject>> {
        self.state.read().tables[kind].objects.get(key).cloned()
    }

    /// Returns the current objects, their revision, and the ring position after it.
    pub(crate) fn now(&self, kind: usize) -> (ObjectMap, u64, u64) {
        let state = self.state.read();
        let table = &state.tables[kind];
        (table.listed(), state.revision, table.next())
    }

    /// Returns the objects at exactly `rv`, reconstructed by undoing the later events.
    pub(crate) fn at(&self, kind: usize, rv: u64) -> Result<ObjectMap, DemoStatus> {
        let state = self.state.read();
        let table = &state.tables[kind];
        if rv > state.revision {
            return Err(DemoStatus::too_large(rv, state.revision));
        }
        if rv < table.floor {
            return Err(DemoStatus::expired("The resourceVersion for the provided list is too old."));
        }
        if table.ring.back().is_none_or(|event| event.rv <= rv) {
            return Ok(table.listed());
        }
        let mut objects = table.objects.clone();
        for event in table.ring.iter().rev().take_while(|event| event.rv > rv) {
            match (&event.previous, &event.current) {
                (Some(previous), _) => drop(objects.insert(previous.meta.key(), previous.clone())),
                (None, Some(current)) => drop(objects.remove(&current.meta.key())),
                (None, None) => {}
            }
        }
        Ok(objects.into_values().collect())
    }

    /// Returns the ring position of the first event after `rv`.
    pub(crate) fn since(&self, kind: usize, rv: u64) -> Result<u64, DemoStatus> {
        let state = self.state.read();
        let table = &state.tables[kind];
        let oldest = table.floor.max(table.window);
        if rv < oldest {
            return Err(DemoStatus::too_old(&KINDS[kind], rv, oldest));
        }
        Ok(table.first + table.ring.partition_point(|event| event.rv <= rv) as u64)
    }

    /// Returns up to `max` events from a ring position on; `None` if the ring no longer holds that position.
    pub(crate) fn pull(&self, kind: usize, from: u64, max: usize) -> Option<EventBatch> {
        let state = self.state.read();
        let table = &state.tables[kind];
        let skip = usize::try_from(from.checked_sub(table.first)?).ok()?;
        let events: Vec<_> = table.ring.iter().skip(skip).take(max).cloned().collect();
        Some(EventBatch { next: from + events.len() as u64, events, revision: state.revision })
    }

    /// Reads, decides and applies in one critical section. If `decide` returns `None`, nothing is written.
    pub(crate) fn write<D>(&self, kind: usize, key: &str, decide: D) -> Result<Option<WriteResult>, DemoStatus>
    where
        D: FnOnce(Option<&Arc<StoredObject>>) -> Result<Option<WriteDecision>, DemoStatus>,
    {
        let (written, next) = {
            let mut state = self.state.write();
            let previous = state.tables[kind].objects.get(key).cloned();
            let Some(change) = decide(previous.as_ref())? else {
                let revision = state.revision;
                return Ok(previous.map(|object| WriteResult { object, revision, created: false }));
            };
            state.revision += 1;
            let revision = state.revision;
            let table = &mut state.tables[kind];
            let written = table.apply(&KINDS[kind], key, revision, previous, change);
            table.trim(self.ring_events_max);
            (written, table.next())
        };
        if let Some(written) = &written {
            self.changed[kind].send_modify(|seen| *seen = next.max(*seen));
            self.revised.send_modify(|seen| *seen = written.revision.max(*seen));
        }
        Ok(written)
    }

    /// Removes the given objects that exist, all at one revision, as etcd does when a lease expires. Returns the
    /// revision.
    pub(crate) fn remove_all<'a>(&self, kind: usize, keys: impl IntoIterator<Item = &'a str>) -> u64 {
        let (revision, next) = {
            let mut state = self.state.write();
            state.revision += 1;
            let revision = state.revision;
            let table = &mut state.tables[kind];
            for key in keys {
                let previous = table.objects.get(key).cloned();
                table.apply(&KINDS[kind], key, revision, previous, WriteDecision::Remove);
            }
            table.trim(self.ring_events_max);
            (revision, table.next())
        };
        self.changed[kind].send_modify(|seen| *seen = next.max(*seen));
        self.revised.send_modify(|seen| *seen = revision.max(*seen));
        revision
    }

    /// Forgets all history up to `rv`, as etcd does when it compacts.
    pub(crate) fn compact(&self, rv: u64) {
        let mut state = self.state.write();
        let upto = rv.min(state.revision);
        for table in &mut state.tables {
            while table.ring.front().is_some_and(|event| event.rv <= upto) {
                table.ring.pop_front();
                table.first += 1;
            }
            table.floor = table.floor.max(upto);
        }
    }

    pub(crate) fn backup(&self) -> StoreBackup {
        StoreBackup(self.state.read().clone())
    }

    /// Restores a backup. Later revisions are assigned a second time; open watches get no event.
    pub(crate) fn restore(&self, StoreBackup(state): &StoreBackup) {
        let mut now = self.state.write();
        *now = state.clone();
        self.revised.send_replace(now.revision);
        for (table, changed) in now.tables.iter().zip(&self.changed) {
            changed.send_replace(table.next());
        }
    }

    /// Forgets all history, as an apiserver does that has started on a compacted storage.
    pub(crate) fn forget(&self) {
        self.compact(self.revision());
    }

    /// Changes the bytes of the objects that `is_meant` selects, and keeps their versions. A server of another release
    /// does so with objects that it reads from storage. There is no event, and the history stays the same.
    pub(crate) fn rewrite(&self, is_meant: impl Fn(usize, &str) -> bool, change: impl Fn(&mut DemoObjectMeta)) {
        let mut state = self.state.write();
        for (number, (kind, table)) in KINDS.iter().zip(&mut state.tables).enumerate() {
            for (_, object) in table.objects.iter_mut().filter(|(key, _)| is_meant(number, key)) {
                let (mut meta, rest) = (object.meta.clone(), object.rest());
                change(&mut meta);
                *object = Arc::new(StoredObject::new(kind, meta, rest));
            }
            table.listed = OnceLock::new();
        }
    }

    /// Lets watches start only from the current revision on, as after a restart; exact lists still find older
    /// revisions.
    pub(crate) fn forget_window(&self) {
        let mut state = self.state.write();
        let revision = state.revision;
        state.tables.iter_mut().for_each(|table| table.window = revision);
    }
}

impl ResourceTable {
    fn listed(&self) -> ObjectMap {
        self.listed.get_or_init(|| self.objects.values().cloned().collect()).clone()
    }

    fn next(&self) -> u64 {
        self.first + self.ring.len() as u64
    }

    fn apply(
        &mut self,
        kind: &DemoResourceKind,
        key: &str,
        revision: u64,
        previous: Option<Arc<StoredObject>>,
        change: WriteDecision,
    ) -> Option<WriteResult> {
        let current = match change {
            WriteDecision::Put(meta, rest) => {
                Some(Arc::new(StoredObject::new(kind, DemoObjectMeta { rv: revision, ..meta }, rest)))
            }
            WriteDecision::Remove => None,
        };
        let object = current.clone().or_else(|| previous.clone())?;
        match &current {
            Some(current) => self.objects.insert(key.to_owned(), current.clone()),
            None => self.objects.remove(key),
        };
        let created = previous.is_none();
        self.listed = OnceLock::new();
        self.ring.push_back(Arc::new(StoreEvent::new(revision, previous, current)));
        Some(WriteResult { object, revision, created })
    }

    fn trim(&mut self, events_max: usize) {
        while self.ring.len() > events_max {
            self.ring.pop_front();
            self.first += 1;
            self.floor = self.floor.max(self.ring.front().map_or(0, |oldest| oldest.rv - 1));
        }
    }
}

impl StoreEvent {
    fn new(rv: u64, previous: Option<Arc<StoredObject>>, current: Option<Arc<StoredObject>>) -> Self {
        Self { rv, previous, current, frames: [const { OnceLock::new() }; 3] }
    }

    /// Returns the line of the event in plain JSON, built at most once for each type. It is empty if the event has no
    /// object for this type.
    pub(crate) fn frame(&self, as_type: StoreEventType) -> Bytes {
        let make = || self.body(as_type).map(|body| as_type.frame(&body)).unwrap_or_default();
        self.frames[as_type as usize].get_or_init(make).clone()
    }

    /// Returns the object of the event. A deletion has the last state, at the revision of the deletion.
    fn body(&self, as_type: StoreEventType) -> Option<Bytes> {
        match as_type {
            StoreEventType::Deleted => self.previous.as_ref().map(|object| object.restamped(self.rv)),
            _ => self.current.as_ref().map(|object| object.body.clone()),
        }
    }

    pub(crate) fn subject(&self, as_type: StoreEventType) -> Option<&Arc<StoredObject>> {
        match as_type {
            StoreEventType::Deleted => self.previous.as_ref(),
            _ => self.current.as_ref(),
        }
    }
}

impl StoreEventType {
    pub(crate) fn wire(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }

    pub(crate) fn frame(self, body: &[u8]) -> Bytes {
        frame(self.wire(), body)
    }
}

/// Writes one line of a watch stream.
pub(crate) fn frame(wire_type: &str, body: &[u8]) -> Bytes {
    [br#"{"type":""#, wire_type.as_bytes(), br#"","object":"#, body, b"}\n"].concat().into()
}
