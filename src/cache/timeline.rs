use std::sync::Arc;

use imbl::OrdMap;
use tokio::time::Instant;

use super::backfilled_events::RingRoom;
use super::budget::Accounts;
use super::change::{Applied, Change, OutOfOrder};
use super::confirmed::Confirmed;
use super::ring::Ring;
use super::state_mark::StateMark;
use super::stats::CacheStats;
use super::store::Store;
use super::transaction::Transaction;
use super::wakes::Wakes;
use super::{BackfilledEvents, CacheConfig, Event, Snapshot};
use crate::wire::{Envelope, Object};
use base::{Account, mutant};
use kubeapi::{EventType, Gvr, ObjectKey, ResourceVersion};

/// A feed's present and its recent past: store and ring, which change together, and their versions.
#[derive(Debug)]
pub(super) struct Timeline {
    pub(super) store: Store,
    pub(super) ring: Ring,
    /// The version of the list that the history starts with. The list contains every change at that version.
    pub(super) base: ResourceVersion,
    /// The version that the history begins behind: that of the list, or where its prehistory begins.
    begins: ResourceVersion,
    pub(super) progress: ResourceVersion,
    /// The version of the newest event, or of the state that the history starts with.
    pub(super) last_event: ResourceVersion,
    /// The newest version, while more of its events may come.
    pub(super) open: Option<Transaction>,
    /// A version that the stream has not reached yet, at which upstream had the same objects.
    confirmed: Option<Confirmed>,
    /// The account for frames that upstream did not send.
    frames: Arc<Account>,
    /// How many times the feed has started over.
    pub(super) number: u64,
    /// Whether the feed has ended: there is no state any more, and no history.
    pub(super) is_over: bool,
}

impl Timeline {
    pub(super) fn new(accounts: &Accounts, config: &CacheConfig) -> Self {
        Self {
            store: Store::new(accounts),
            ring: Ring::new(accounts, config),
            base: ResourceVersion::default(),
            begins: ResourceVersion::default(),
            progress: ResourceVersion::default(),
            last_event: ResourceVersion::default(),
            open: None,
            confirmed: None,
            frames: accounts.objects.clone(),
            number: 0,
            is_over: false,
        }
    }

    /// Starts a new history with `list`. Returns the objects from before.
    pub(super) fn restart(&mut self, list: Snapshot) -> OrdMap<ObjectKey, Arc<Object>> {
        let rv = list.rv;
        (self.open, self.confirmed) = (None, None);
        self.number += 1;
        (self.base, self.begins) = (rv, rv);
        (self.progress, self.last_event) = (rv, rv);
        self.ring.restart(rv);
        self.store.restart(list)
    }

    /// Drops everything for good. Returns what was held.
    pub(super) fn end(&mut self, wakes: &mut Wakes) -> impl Sized + use<> {
        self.is_over = true;
        (self.open, self.confirmed) = (None, None);
        (self.ring.end(wakes), self.store.end())
    }

    /// Says whether a change is new (`Ok(None)`), known (`Ok(Some(Duplicate))`) or contradicts the history.
    pub(super) fn admit(&self, change: &Change) -> Result<Option<Applied>, OutOfOrder> {
        let (key, rv) = (&change.object.key, change.object.rv);
        let sibling = rv == self.last_event && rv == self.progress && rv > self.base;
        if rv > self.progress || (sibling && !self.ring.has(key, rv) && !self.shows(change)) || mutant(6) {
            return Ok(None);
        }
        if self.ring.has(key, rv) || rv <= self.told_from() {
            return Ok(Some(Applied::Duplicate));
        }
        Err(OutOfOrder { key: key.clone(), rv, progress: self.progress })
    }

    /// The version behind which the ring has all that our own stream has told. A prehistory is no part of that.
    pub(super) fn told_from(&self) -> ResourceVersion {
        self.base.max(self.ring.floor)
    }

    /// Whether earlier events could be put in front of the history. They must join it, so it must be whole; and it must
    /// be the feed's first, for a later one began because what was before could not be proven, or never happened.
    pub(super) fn may_begin_earlier(&self) -> bool {
        !self.is_over && self.number == 1 && self.ring.floor == self.begins
    }

    /// Puts events in front of the history. Gives them back if they do not join it any more, or there is no room.
    pub(super) fn begin_earlier(&mut self, past: BackfilledEvents, room: RingRoom) -> Result<(), BackfilledEvents> {
        if !self.may_begin_earlier() || past.until != self.begins || !room.has(&past) {
            return Err(past);
        }
        self.begins = past.from;
        self.ring.prepend(past);
        Ok(())
    }

    /// Whether the store is as the change left it. This recognises a change whose event was evicted before others of
    /// its version.
    fn shows(&self, change: &Change) -> bool {
        match self.store.get(&change.object.key) {
            Some(object) => object.rv == change.object.rv,
            None => change.event_type == EventType::Deleted && change.object.rv <= self.told_from(),
        }
    }

    /// Makes an event of a change. Its type follows from what the store knows, which is how a selector sees it too.
    pub(super) fn event(&self, change: Change, envelope: &Envelope, now: Instant) -> Event {
        let Change { event_type, object, frame } = change;
        let previous = self.store.get(&object.key).cloned();
        let known_as = match (event_type, &previous) {
            (EventType::Added, Some(_)) => EventType::Modified,
            (EventType::Modified, None) => EventType::Added,
            (event_type, _) => event_type,
        };
        let frame = match frame {
            Some(frame) if known_as == event_type => frame,
            _ => self.frames.keep(envelope.frame(known_as, object.body())),
        };
        Event::new(self.ring.next_seq, known_as, Arc::new(object), previous, frame, now)
    }

    pub(super) fn record(&mut self, event: &Arc<Event>, gvr: &Gvr) {
        let store = &self.store;
        match &mut self.confirmed {
            Some(confirmed) if event.rv <= confirmed.rv => confirmed.keep(|rv| store.state(rv)),
            confirmed => *confirmed = None,
        }
        match &mut self.open {
            Some(open) if open.rv() == event.rv => open.goes_on(event),
            _ if event.rv == self.last_event => {}
            open => *open = Some(Transaction::new(event, gvr, self.last_event)),
        }
        self.store.apply(event);
        self.last_event = event.rv;
        self.progress = self.progress.max(event.rv);
        self.ring.admit(event);
    }

    /// The newest version that is whole: everything up to here has been applied and no more of it will come.
    pub(super) fn whole(&self) -> ResourceVersion {
        self.open.as_ref().map_or(self.progress, Transaction::whole)
    }

    /// Records that upstream had the state of `mark` at version `at`. Returns whether that is the present state.
    pub(super) fn confirm(&mut self, mark: StateMark, at: ResourceVersion) -> bool {
        let is_present = !self.is_over && mark.is_whole && mark == self.mark();
        if is_present && at > self.shown_at() {
            self.confirmed = Some(Confirmed::new(at));
        }
        is_present
    }

    /// Forgets the confirmed version.
    pub(super) fn unconfirm(&mut self) {
        self.confirmed = None;
    }

    /// Forgets a confirmed version that the stream has reached.
    pub(super) fn settle_confirmed(&mut self) {
        let whole = self.whole();
        self.confirmed.take_if(|confirmed| confirmed.rv <= whole);
    }

    /// Forgets a confirmed state whose objects have been exchanged for newly encoded ones.
    pub(super) fn forget_kept(&mut self) {
        self.confirmed.take_if(|confirmed| confirmed.is_kept());
    }

    /// The version of the state that readers get.
    pub(super) fn shown_at(&self) -> ResourceVersion {
        self.confirmed.as_ref().map_or_else(|| self.whole(), |confirmed| confirmed.rv)
    }

    /// The version at which upstream had the same objects, if the stream has not reached it.
    pub(super) fn confirmed_at(&self) -> Option<ResourceVersion> {
        self.confirmed.as_ref().map(|confirmed| confirmed.rv)
    }

    /// The state that readers get, at the latest version that it is known to have.
    pub(super) fn shown(&self) -> Snapshot {
        match &self.confirmed {
            Some(confirmed) => confirmed.state(|rv| self.store.state(rv)),
            None => self.snapshot(),
        }
    }

    /// The state of the newest version that is whole. While the next version is open it stays as it is, whatever
    /// happens to the store.
    pub(super) fn snapshot(&self) -> Snapshot {
        let Some(open) = &self.open else { return self.applied() };
        open.before(|| self.applied().cut_by(self.store.chunks_of_past_state())).clone()
    }

    /// The state with everything that has come. While its version is not whole it is given the one before.
    pub(super) fn applied(&self) -> Snapshot {
        self.store.state(self.whole())
    }

    /// The state of exactly `rv`, if nothing has changed between `rv` and the newest version that is whole.
    pub(super) fn snapshot_at(&self, rv: ResourceVersion) -> Option<Snapshot> {
        if !self.is_over && self.confirmed_at() == Some(rv) {
            return Some(self.shown());
        }
        let since = self.open.as_ref().map_or(self.last_event, Transaction::event_before);
        (!self.is_over && since <= rv && rv <= self.whole()).then(|| self.snapshot().at(rv))
    }

    /// The state of exactly `rv`, if what has changed since is known and no more than `events_max` changes.
    pub(super) fn past_at(&self, rv: ResourceVersion, events_max: usize) -> Option<Snapshot> {
        if self.is_over || rv < self.ring.known() || rv < self.base || rv > self.whole() {
            return None;
        }
        let since = self.ring.behind(rv, events_max)?;
        Some(self.store.state(rv).cut_by(self.store.chunks_of_past_state()).without(&since))
    }

    pub(super) fn is_whole(&self) -> bool {
        self.open.is_none()
    }

    pub(super) fn mark(&self) -> StateMark {
        StateMark { history: self.number, next_seq: self.ring.next_seq, is_whole: self.is_whole() }
    }

    /// Whether more events of `rv` may come.
    pub(super) fn is_open(&self, rv: ResourceVersion) -> bool {
        self.open.as_ref().is_some_and(|open| open.rv() == rv)
    }

    pub(super) fn stats(&self) -> CacheStats {
        CacheStats {
            objects: self.store.len(),
            object_bytes: self.store.bytes(),
            events: self.ring.len(),
            event_bytes: self.ring.bytes(),
            derived_bytes: 0,
            memory_bytes: 0,
            floor: self.ring.floor,
            progress: self.progress,
            lanes: self.ring.lanes.len(),
            span_seconds: self.ring.span_seconds(),
        }
    }
}
