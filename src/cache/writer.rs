use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use imbl::OrdMap;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::Instant;

use super::budget::{Accounts, Budget, WINDOW_PART};
use super::event::Made;
use super::held::Held;
use super::kept::Kept;
use super::lanes::Lanes;
use super::reader::{CacheReader, CacheStats, End, Progress, Reached, Shared, State};
use super::runs::Cut;
use super::snapshot::Taken;
use super::states::States;
use super::{Config, Encodings, Event, Pins, Snapshot};
use crate::base::{Account, Charge};
use crate::kube::{EventType, Gvr, ObjectKey, ResourceVersion};
use crate::wire::{BookmarkTemplate, Envelope, Object, Renderer};

/// The only hand that changes a feed's cache. Not `Clone`: one reflector per feed.
#[derive(Debug)]
pub struct CacheWriter {
    shared: Arc<Shared>,
}

/// One change as upstream's stream reported it.
#[derive(Debug)]
pub struct Change {
    /// `Added`, `Modified` or `Deleted`.
    pub event_type: EventType,
    pub object: Object,
    /// The frame it came in, if it came in one; `object.body()` is a slice of it.
    pub frame: Option<Bytes>,
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is in the store and in the ring.
    Fresh,
    /// The ring had it already: two streams of one history overlap.
    Duplicate,
}

/// A change that contradicts what is known: older than the state that upstream vouched for, yet not seen before. The
/// stream that brought it cannot be trusted (reliability.md U11, U17).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("change of {key} at {rv} is out of order: everything up to {progress} was already vouched for")]
pub struct OutOfOrder {
    pub key: ObjectKey,
    pub rv: ResourceVersion,
    pub progress: ResourceVersion,
}

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
    last_event: ResourceVersion,
    event_bytes: usize,
    events: usize,
    /// What events take besides their objects and frames.
    events_charge: Charge,
    /// Where frames are charged that upstream did not send.
    frames: Arc<Account>,
    /// How many times the feed has started over.
    pub(super) history: u64,
    /// The runs of the state as it is.
    cut: Arc<Cut>,
    /// What older states keep alive.
    states: Arc<States>,
    /// The feed has ended: there is no state any more, and no history.
    pub(super) is_over: bool,
}

impl CacheWriter {
    /// An empty cache for one feed that has all of the memory, and the handle that its readers clone.
    pub fn new(config: Config, gvr: Gvr, envelope: Envelope, namespaced: bool) -> (Self, CacheReader) {
        Self::within(&Budget::new(config.memory_bytes_max, Pins::default()), config, gvr, envelope, namespaced)
    }

    /// The same within a memory that other feeds share.
    pub(super) fn within(
        budget: &Arc<Budget>,
        mut config: Config,
        gvr: Gvr,
        envelope: Envelope,
        namespaced: bool,
    ) -> (Self, CacheReader) {
        let share = budget.share();
        let derived = || share.accounts.derived.clone();
        config.window_bytes_max = config.window_bytes_max.min(config.memory_bytes_max / WINDOW_PART);
        let shared = Arc::new(Shared {
            config,
            gvr,
            bookmark: RwLock::new(BookmarkTemplate::minimal(&envelope)),
            verbatim: Renderer::verbatim(&envelope),
            envelope,
            namespaced,
            inner: RwLock::new(Inner::new(&share.accounts)),
            made: Made { bytes: Arc::default(), account: derived() },
            kept: Kept::new(budget.clone(), derived()),
            encodings: Encodings::new(budget.clone(), derived()),
            held: Mutex::new(Held::default()),
            progress: watch::Sender::new(Progress::default()),
            reached: Reached::default(),
            state: watch::Sender::new(State::Syncing),
            share,
        });
        budget.add(&shared);
        (Self { shared: shared.clone() }, CacheReader { shared })
    }

    /// How the feed's objects are framed.
    pub fn envelope(&self) -> &Envelope {
        &self.shared.envelope
    }

    pub fn reader(&self) -> CacheReader {
        CacheReader { shared: self.shared.clone() }
    }

    /// Starts a new history with this state. Readers of the old one find their position expired: what happened between
    /// is not known, and is not made up (reliability.md F6).
    pub fn replace(&mut self, list: Snapshot) {
        let rv = list.rv;
        let mut wake = Vec::new();
        let gone = {
            let mut inner = self.shared.inner.write();
            let events = inner.lanes.close(&mut wake);
            let objects = inner.restart(list);
            self.shared.held.lock().clear();
            self.shared.encodings.clear();
            (events, objects)
        };
        drop(gone);
        self.shared.kept.clear();
        self.shared.share.admit();
        self.shared.publish(|progress| progress.rv = rv);
        wake_all(wake);
    }

    /// Applies one change: store, ring and lanes in one critical section, then the readers are woken.
    pub fn apply(&mut self, change: Change) -> Result<Applied, OutOfOrder> {
        let now = Instant::now();
        let mut wake = Vec::new();
        let rv = {
            let mut inner = self.shared.inner.write();
            if let Some(known) = inner.admit(&change)? {
                return Ok(known);
            }
            let event = Arc::new(inner.event(change, &self.shared.envelope, now));
            inner.record(&event);
            inner.evict(&self.shared.config, now, self.shared.alternate_bytes());
            inner.lanes.push(&event, &mut wake);
            event.rv
        };
        self.shared.encodings.expire(now);
        self.shared.publish(|progress| progress.rv = rv);
        wake_all(wake);
        self.enforce_budget();
        Ok(Applied::Fresh)
    }

    /// Everything up to `rv` is known to have been applied. With `announce` the readers are told, so that bookmarks
    /// cross a tier at once (reliability.md W10).
    pub fn advance(&mut self, rv: ResourceVersion, announce: bool) {
        let now = Instant::now();
        {
            let mut inner = self.shared.inner.write();
            inner.progress = inner.progress.max(rv);
            inner.evict(&self.shared.config, now, self.shared.alternate_bytes());
        }
        self.shared.encodings.expire(now);
        self.shared.publish(|progress| {
            progress.rv = progress.rv.max(rv);
            if announce {
                progress.bookmarks += 1;
            }
        });
        self.enforce_budget();
        if announce {
            // Only now: whoever parks from here on has seen the bookmark, and everybody else is woken.
            let mut wake = Vec::new();
            self.shared.inner.read().lanes.nudge(&mut wake);
            wake_all(wake);
        }
    }

    /// The feed has outgrown the memory, and is to end.
    pub fn is_outgrown(&self) -> bool {
        self.shared.share.outgrown.is_cancelled()
    }

    /// Behind every critical section: room is made in other feeds as well.
    fn enforce_budget(&self) {
        self.shared.share.budget.enforce(&self.shared);
    }

    /// Remembers how upstream lays out a bookmark of this resource.
    pub fn set_bookmark(&mut self, template: BookmarkTemplate) {
        *self.shared.bookmark.write() = template;
    }

    pub fn set_state(&mut self, state: State) {
        self.shared.state.send_if_modified(|current| {
            // Staleness counts from the first moment.
            let keep = matches!((*current, state), (State::Stale { .. }, State::Stale { .. })) || *current == state;
            if !keep {
                *current = state;
            }
            !keep
        });
    }
}

impl Drop for CacheWriter {
    /// The feed has ended: its readers are told that no more will come, whatever made it end. What it held is let go,
    /// however long they stay.
    fn drop(&mut self) {
        if !matches!(*self.shared.state.borrow(), State::Ended(_)) {
            self.set_state(State::Ended(End::Shutdown));
        }
        let mut wake = Vec::new();
        let gone = self.shared.inner.write().end(&mut wake);
        wake_all(wake);
        drop(gone);
        self.shared.held.lock().clear();
        self.shared.encodings.clear();
        self.shared.kept.clear();
    }
}

impl Inner {
    fn new(accounts: &Accounts) -> Self {
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
            event_bytes: 0,
            events: 0,
            events_charge: accounts.events.charge(0),
            frames: accounts.objects.clone(),
            history: 0,
            cut: Arc::default(),
            states: States::new(&accounts.states),
            is_over: false,
        }
    }

    /// Returns the objects from before.
    fn restart(&mut self, list: Snapshot) -> OrdMap<ObjectKey, Arc<Object>> {
        let rv = list.rv;
        self.left_bytes += self.object_bytes as u64;
        self.object_bytes = list.iter().map(|object| object.body().len()).sum();
        let before = std::mem::replace(&mut self.objects, list.into_objects());
        self.lanes.reopen(self.next_seq);
        self.history += 1;
        self.leave_state();
        self.states.replaced(before.len());
        self.cut = Arc::new(Cut::of_history(self.history));
        (self.base, self.floor) = (rv, rv);
        (self.progress, self.last_event) = (rv, rv);
        self.no_events();
        before
    }

    /// Nothing of the feed is held from here on. Returns what was.
    fn end(&mut self, wake: &mut Vec<Waker>) -> impl Sized + use<> {
        let events = self.lanes.close(wake);
        self.is_over = true;
        self.leave_state();
        let objects = std::mem::take(&mut self.objects);
        self.states.replaced(objects.len());
        self.cut = Arc::new(Cut::of_history(self.history + 1));
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
    fn admit(&self, change: &Change) -> Result<Option<Applied>, OutOfOrder> {
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
    fn event(&self, change: Change, envelope: &Envelope, now: Instant) -> Event {
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

    fn record(&mut self, event: &Arc<Event>) {
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
            self.cut = Arc::new(Cut::of_history(self.history));
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
    fn evict(&mut self, config: &Config, now: Instant, mut alternates: usize) {
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

    pub(super) fn snapshot(&self) -> Snapshot {
        let taken = Taken { left: self.left_bytes, bytes: self.object_bytes };
        Snapshot::new(self.progress, self.objects.clone()).cut_by(self.cut.clone()).taken_at(taken)
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

    pub(super) fn last_event(&self) -> ResourceVersion {
        self.last_event
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

fn wake_all(wake: Vec<Waker>) {
    wake.into_iter().for_each(Waker::wake);
}
