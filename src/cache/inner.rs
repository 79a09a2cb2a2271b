mod renew;

use std::sync::Arc;
use std::task::Waker;

use imbl::OrdMap;
use tokio::time::Instant;

use super::budget::Accounts;
use super::chunks::ChunkIndex;
use super::lanes::Lanes;
use super::reader::CacheStats;
use super::snapshot::Taken;
use super::states::States;
use super::transaction::Transaction;
use super::writer::{Applied, Change, OutOfOrder};
use super::{CacheConfig, Event, Snapshot};
use crate::base::{Account, Charge};
use crate::kube::{EventType, Gvr, ObjectKey, ResourceVersion};
use crate::wire::{Envelope, Object};

/// What a feed holds: store, ring and lanes, which change together.
#[derive(Debug)]
pub(super) struct Inner {
    objects: OrdMap<ObjectKey, Arc<Object>>,
    object_bytes: usize,
    /// Bytes of bodies that have left the store.
    left_bytes: u64,
    pub(super) lanes: Lanes,
    pub(super) next_seq: u64,
    /// Version of the list that the history starts with: it contains every change at that version.
    base: ResourceVersion,
    /// Watches may start from here: nothing after it has been evicted.
    pub(super) floor: ResourceVersion,
    pub(super) progress: ResourceVersion,
    /// Version of the newest event, or of the state that the history starts with.
    pub(super) last_event: ResourceVersion,
    /// That version, while more of its events may come.
    pub(super) open: Option<Transaction>,
    event_bytes: usize,
    events: usize,
    /// What events take besides their objects and frames.
    events_charge: Charge,
    /// Where frames are charged that upstream did not send.
    frames: Arc<Account>,
    /// How many times the feed has started over.
    pub(super) history: u64,
    /// Counts what versions have stood for: each history, and each time that bodies were renewed.
    content: u64,
    /// The runs of the state as it is.
    cut: Arc<ChunkIndex>,
    /// What older states keep alive.
    states: Arc<States>,
    /// The feed has ended: there is no state any more, and no history.
    pub(super) is_over: bool,
}

impl Inner {
    pub(super) fn new(accounts: &Accounts) -> Self {
        Self {
            objects: OrdMap::new(),
            object_bytes: 0,
            left_bytes: 0,
            lanes: Lanes::new(0),
            next_seq: 0,
            base: ResourceVersion::default(),
            floor: ResourceVersion::default(),
            progress: ResourceVersion::default(),
            last_event: ResourceVersion::default(),
            open: None,
            event_bytes: 0,
            events: 0,
            events_charge: accounts.events.charge(0),
            frames: accounts.objects.clone(),
            history: 0,
            content: 0,
            cut: Arc::default(),
            states: States::new(&accounts.states),
            is_over: false,
        }
    }

    /// Returns the objects from before.
    pub(super) fn restart(&mut self, list: Snapshot) -> OrdMap<ObjectKey, Arc<Object>> {
        let rv = list.rv;
        self.open = None;
        self.left_bytes += self.object_bytes as u64;
        self.object_bytes = list.iter().map(|object| object.body().len()).sum();
        let before = std::mem::replace(&mut self.objects, list.into_objects());
        self.lanes.reopen(self.next_seq);
        self.history += 1;
        self.content += 1;
        self.leave_state();
        self.states.replaced(before.len());
        self.cut = Arc::new(ChunkIndex::of_content(self.content));
        (self.base, self.floor) = (rv, rv);
        (self.progress, self.last_event) = (rv, rv);
        self.no_events();
        before
    }

    /// Nothing of the feed is held from here on. Returns what was.
    pub(super) fn end(&mut self, wake: &mut Vec<Waker>) -> impl Sized + use<> {
        let events = self.lanes.close(wake);
        self.is_over = true;
        self.open = None;
        self.leave_state();
        let objects = std::mem::take(&mut self.objects);
        self.states.replaced(objects.len());
        self.cut = Arc::new(ChunkIndex::of_content(self.content + 1));
        self.left_bytes += self.object_bytes as u64;
        self.object_bytes = 0;
        self.no_events();
        (events, objects)
    }

    fn no_events(&mut self) {
        (self.events, self.event_bytes) = (0, 0);
        self.events_charge.set(0);
    }

    /// Whoever has the present state has an older one from here on.
    fn leave_state(&self) {
        if Arc::strong_count(&self.cut) > 1 {
            self.cut.left(self.states.left());
        }
    }

    /// `Ok(None)`: new. `Ok(Some(Duplicate))`: known. Otherwise it contradicts the history.
    pub(super) fn admit(&self, change: &Change) -> Result<Option<Applied>, OutOfOrder> {
        let (key, rv) = (&change.object.key, change.object.rv);
        let sibling = rv == self.last_event && rv == self.progress && rv > self.base;
        if rv > self.progress || (sibling && !self.has(key, rv) && !self.shows(change)) {
            return Ok(None);
        }
        if self.has(key, rv) || rv <= self.floor {
            return Ok(Some(Applied::Duplicate));
        }
        Err(OutOfOrder { key: key.clone(), rv, progress: self.progress })
    }

    /// Whether the store is as the change left it: how one that was evicted among its siblings is known again.
    fn shows(&self, change: &Change) -> bool {
        match self.objects.get(&change.object.key) {
            Some(object) => object.rv == change.object.rv,
            None => change.event_type == EventType::Deleted && change.object.rv <= self.floor,
        }
    }

    fn has(&self, key: &ObjectKey, rv: ResourceVersion) -> bool {
        self.lanes.all.with_events(|events| {
            let first = events.partition_point(|event| event.rv < rv);
            events.range(first..).take_while(|event| event.rv == rv).any(|event| event.object.key == *key)
        })
    }

    /// Types the change by what the store knows, which is how a selector sees it too.
    pub(super) fn event(&self, change: Change, envelope: &Envelope, now: Instant) -> Event {
        let Change { event_type, object, frame } = change;
        let previous = self.objects.get(&object.key).cloned();
        let known_as = match (event_type, &previous) {
            (EventType::Added, Some(_)) => EventType::Modified,
            (EventType::Modified, None) => EventType::Added,
            (event_type, _) => event_type,
        };
        let frame = match frame {
            Some(frame) if known_as == event_type => frame,
            _ => self.frames.keep(envelope.frame(known_as, object.body())),
        };
        Event::new(self.next_seq, known_as, Arc::new(object), previous, frame, now)
    }

    pub(super) fn record(&mut self, event: &Arc<Event>, gvr: &Gvr) {
        match &mut self.open {
            Some(open) if open.rv() == event.rv => open.goes_on(event),
            _ if event.rv == self.last_event => {}
            open => *open = Some(Transaction::new(event, gvr, self.last_event)),
        }
        let gone = event.previous.as_ref().map_or(0, |previous| previous.body().len());
        self.object_bytes = self.object_bytes.saturating_sub(gone);
        self.left_bytes += gone as u64;
        if event.event_type == EventType::Deleted {
            self.objects.remove(&event.object.key);
        } else {
            self.object_bytes += event.object.body().len();
            self.objects.insert(event.object.key.clone(), event.object.clone());
        }
        // Whoever has it, has it for the state before.
        if self.cut.is_made() || Arc::strong_count(&self.cut) > 1 {
            self.leave_state();
            self.cut = Arc::new(ChunkIndex::of_content(self.content));
        }
        self.states.changed(self.objects.len());
        self.next_seq = event.seq + 1;
        self.last_event = event.rv;
        self.progress = self.progress.max(event.rv);
        self.events += 1;
        self.event_bytes += event.charge();
        self.events_charge.set(self.events * Event::OVERHEAD_BYTES);
    }

    /// `alternates`: bytes of the frames that were made of events besides those that came.
    pub(super) fn evict(&mut self, config: &CacheConfig, now: Instant, mut alternates: usize) {
        loop {
            let Some(oldest) = self.lanes.all.with_events(|events| events.front().cloned()) else { return };
            let over = self.events > config.window_events_max
                || self.event_bytes + alternates > config.window_bytes_max
                || now.duration_since(oldest.at) > config.window_age_max;
            if !over {
                return;
            }
            self.evict_one(&oldest);
            alternates = alternates.saturating_sub(oldest.alternate_bytes());
        }
    }

    fn evict_one(&mut self, oldest: &Event) {
        self.lanes.evict(oldest);
        self.floor = oldest.rv;
        self.events -= 1;
        self.event_bytes -= oldest.charge();
        self.events_charge.set(self.events * Event::OVERHEAD_BYTES);
    }

    /// Evicts all but so many bytes of history, some events at a time, and never the last one. Returns them.
    pub(super) fn shrink(&mut self, bytes: usize, events_max: usize) -> Vec<Arc<Event>> {
        let mut gone = Vec::new();
        while gone.len() < events_max && self.event_bytes > bytes && self.events > 1 {
            let Some(oldest) = self.lanes.all.with_events(|events| events.front().cloned()) else { break };
            self.evict_one(&oldest);
            gone.push(oldest);
        }
        gone
    }

    /// Everything up to here has been applied, and can be announced: no more events of it will come.
    pub(super) fn whole(&self) -> ResourceVersion {
        self.open.as_ref().map_or(self.progress, Transaction::whole)
    }

    /// The state of the newest version that is whole.
    pub(super) fn snapshot(&self) -> Snapshot {
        let Some(open) = &self.open else { return self.applied() };
        // Nobody has it as the present state, so it is left from the beginning.
        let cut = || {
            let cut = ChunkIndex::of_content(self.content);
            cut.left(self.states.left());
            Arc::new(cut)
        };
        open.before(|| self.applied().cut_by(cut())).clone()
    }

    /// The state with everything that has come. While its version is not whole it says the one before.
    pub(super) fn applied(&self) -> Snapshot {
        let taken = Taken { left: self.left_bytes, bytes: self.object_bytes };
        Snapshot::new(self.whole(), self.objects.clone()).cut_by(self.cut.clone()).taken_at(taken)
    }

    /// The state of exactly `rv`, if nothing has changed between then and the newest version that is whole.
    pub(super) fn snapshot_at(&self, rv: ResourceVersion) -> Option<Snapshot> {
        let since = self.open.as_ref().map_or(self.last_event, Transaction::event_before);
        (!self.is_over && since <= rv && rv <= self.whole()).then(|| self.snapshot().at(rv))
    }

    pub(super) fn is_whole(&self) -> bool {
        self.open.is_none()
    }

    /// Whether more events of `rv` may come.
    pub(super) fn is_open(&self, rv: ResourceVersion) -> bool {
        self.open.as_ref().is_some_and(|open| open.rv() == rv)
    }

    /// At most so many bytes are kept alive by a state that was taken then, and by nothing else.
    pub(super) fn kept_by(&self, taken: Taken) -> usize {
        usize::try_from(self.left_bytes.saturating_sub(taken.left)).unwrap_or(usize::MAX).min(taken.bytes)
    }

    pub(super) fn object_bytes(&self) -> usize {
        self.object_bytes
    }

    pub(super) fn event_bytes(&self) -> usize {
        self.event_bytes
    }

    /// The position behind every event up to `rv`.
    pub(super) fn seq_after(&self, rv: ResourceVersion) -> u64 {
        self.lanes.all.with_events(|events| {
            let at = events.partition_point(|event| event.rv <= rv);
            events.get(at).map_or(self.next_seq, |event| event.seq)
        })
    }

    pub(super) fn stats(&self) -> CacheStats {
        let span = self.lanes.all.with_events(|events| match (events.front(), events.back()) {
            (Some(first), Some(last)) => last.at.duration_since(first.at).as_secs_f64(),
            _ => 0.0,
        });
        CacheStats {
            objects: self.objects.len(),
            object_bytes: self.object_bytes,
            events: self.events,
            event_bytes: self.event_bytes,
            derived_bytes: 0,
            memory_bytes: 0,
            floor: self.floor,
            progress: self.progress,
            lanes: self.lanes.len(),
            span_seconds: span,
        }
    }
}
