use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;
use tokio::time::Instant;

use super::budget::FeedMemoryAccounts;
use super::lane::PendingWakeups;
use super::ring::{BackfilledEvents, EventRing, EventRingHeadroom};
use super::store::FeedObjectStore;
use super::{CacheConfig, FeedEvent, FeedSnapshot, MemoryKind};
use crate::wire::{FrameEnvelope, ObjectRevision};
use base::MemoryAccount;
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// A feed's current state and recent history: store and ring, which change together, and their versions.
#[derive(Debug)]
pub(super) struct FeedTimeline {
    pub(super) store: FeedObjectStore,
    pub(super) ring: EventRing,
    /// The version of the list that the history starts with. The list contains every change at that version.
    pub(super) base: ResourceVersion,
    /// The version after which the history begins: that of the list, or the start of the backfilled events.
    begins: ResourceVersion,
    pub(super) progress: ResourceVersion,
    /// The version of the newest event, or of the state that the history starts with.
    pub(super) last_event: ResourceVersion,
    /// A version that the watch has not reached yet, and at which upstream had the same objects.
    confirmed: Option<ConfirmedVersion>,
    /// The memory account for frames that upstream did not send.
    frames: Arc<MemoryAccount>,
    /// The number of times that the feed has started a history.
    pub(super) history: u64,
    /// Whether the feed has ended. A feed that has ended has no state and no history.
    pub(super) has_ended: bool,
}

/// One change, as received from upstream's watch.
#[derive(Debug)]
pub struct ObjectChange {
    /// The event type: `Added`, `Modified` or `Deleted`.
    pub event_type: EventType,
    pub object: ObjectRevision,
    /// The frame in which the change was received, if any; `object.body()` is a slice of it.
    pub frame: Option<Bytes>,
}

/// A change that contradicts the known state: it is older than a version that upstream has confirmed, and is not a
/// duplicate. The stream that delivered it cannot be trusted (R-UPSTREAM-8, R-UPSTREAM-10).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("upstream sent {key} at resourceVersion {rv} after all events up to {progress}")]
pub struct OutOfOrderChange {
    pub key: ObjectKey,
    pub rv: ResourceVersion,
    pub progress: ResourceVersion,
}

/// A version that upstream's stream has not reached yet, at which upstream had exactly the feed's objects
/// (R-VERSION-1).
///
/// It is the version of the state only. The stream may still deliver events below it, for an object that was created
/// and deleted in between. So lists and new watches get this version, but bookmarks of open watches do not. Events up
/// to this version that arrive later do not change the state that readers get.
#[derive(Debug)]
struct ConfirmedVersion {
    rv: ResourceVersion,
    /// The state at `rv`, if the stream has delivered an event of an earlier version since.
    cached: Option<FeedSnapshot>,
}

/// The sizes of one feed, for metrics and admin pages.
#[derive(Debug, Clone, Copy, Default)]
pub struct CacheStats {
    pub objects: usize,
    /// The number of bytes of all object bodies.
    pub object_bytes: usize,
    pub events: usize,
    pub event_bytes: usize,
    /// The number of bytes that were derived from objects and events, and kept.
    pub derived_bytes: usize,
    /// The number of bytes of everything of the feed that is alive, regardless of its holder.
    pub memory_bytes: usize,
    /// The oldest version that a watch may start from.
    pub floor: ResourceVersion,
    pub progress: ResourceVersion,
    /// The number of lanes, without the lane of all events.
    pub lanes: usize,
    /// The number of seconds between the oldest and the newest event.
    pub span_seconds: f64,
}

/// Identifies a state of a feed's objects: if two IDs are equal, the objects did not change in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FeedStateId {
    /// The number of the history, which increases when the feed starts a new one.
    pub history: u64,
    /// The `seq` of the next change. Duplicates do not count.
    pub(super) next_seq: u64,
}

impl FeedTimeline {
    pub(super) fn new(accounts: &FeedMemoryAccounts, config: &CacheConfig) -> Self {
        Self {
            store: FeedObjectStore::new(accounts),
            ring: EventRing::new(accounts, config),
            base: ResourceVersion::default(),
            begins: ResourceVersion::default(),
            progress: ResourceVersion::default(),
            last_event: ResourceVersion::default(),
            confirmed: None,
            frames: accounts.of(MemoryKind::Objects).clone(),
            history: 0,
            has_ended: false,
        }
    }

    /// Starts a new history with `list`. Returns the previous objects.
    pub(super) fn restart(&mut self, list: FeedSnapshot) -> OrdMap<ObjectKey, Arc<ObjectRevision>> {
        let rv = list.rv;
        self.confirmed = None;
        self.history += 1;
        (self.base, self.begins) = (rv, rv);
        (self.progress, self.last_event) = (rv, rv);
        self.ring.restart(rv);
        self.store.restart(list)
    }

    /// Drops everything permanently. Returns the dropped objects and events.
    pub(super) fn end(&mut self, wakes: &mut PendingWakeups) -> impl Sized + use<> {
        self.has_ended = true;
        self.confirmed = None;
        (self.ring.end(wakes), self.store.restart(FeedSnapshot::new(ResourceVersion::default(), OrdMap::new())))
    }

    /// Applies a change. Returns its event, which the caller adds to the ring, or `None` if the change is known
    /// already. A further change at the version of the newest event is new.
    ///
    /// # Errors
    /// The change contradicts the history.
    pub(super) fn apply(
        &mut self,
        change: ObjectChange,
        envelope: &FrameEnvelope,
        now: Instant,
    ) -> Result<Option<Arc<FeedEvent>>, OutOfOrderChange> {
        let (key, rv) = (&change.object.key, change.object.rv);
        let sibling = rv == self.last_event && rv == self.progress && rv > self.base;
        let is_new = rv > self.progress || (sibling && !self.ring.has(key, rv) && !self.has_result_of(&change));
        if !is_new {
            let is_known = self.ring.has(key, rv) || rv <= self.complete_from();
            let out_of_order = || OutOfOrderChange { key: key.clone(), rv, progress: self.progress };
            return if is_known { Ok(None) } else { Err(out_of_order()) };
        }
        let ObjectChange { event_type, object, frame } = change;
        let previous = self.store.objects.get(&object.key).cloned();
        // The type follows from the store's content, as for a selector.
        let known_as = match (event_type, &previous) {
            (EventType::Added, Some(_)) => EventType::Modified,
            (EventType::Modified, None) => EventType::Added,
            (event_type, _) => event_type,
        };
        let frame = match frame {
            Some(frame) if known_as == event_type => frame,
            _ => self.frames.charge_bytes(envelope.frame(known_as, object.body())),
        };
        let event = Arc::new(FeedEvent::new(self.ring.next_seq, known_as, Arc::new(object), previous, frame, now));
        match &mut self.confirmed {
            // The state is kept, because the feed's objects change before the stream has reached its version.
            Some(confirmed) if rv < confirmed.rv => {
                confirmed.cached.get_or_insert_with(|| self.store.state(confirmed.rv));
            }
            confirmed => *confirmed = None,
        }
        self.store.apply(&event);
        self.last_event = rv;
        self.progress = self.progress.max(rv);
        Ok(Some(event))
    }

    /// Returns the version after which the ring has every event of the feed's own watch. Backfilled events do not
    /// count.
    pub(super) fn complete_from(&self) -> ResourceVersion {
        self.base.max(self.ring.floor)
    }

    /// Returns whether earlier events could be put in front of the history. They must join it, so nothing may have been
    /// evicted. It must be the feed's first history: a later one began because continuity with the previous one could
    /// not be proven, or did not exist.
    pub(super) fn can_backfill(&self) -> bool {
        !self.has_ended && self.history == 1 && self.ring.floor == self.begins
    }

    /// Prepends events to the history.
    ///
    /// # Errors
    /// Returns the events if they no longer join the history, or if they do not fit.
    pub(super) fn prepend(
        &mut self,
        past: BackfilledEvents,
        headroom: EventRingHeadroom,
    ) -> Result<(), BackfilledEvents> {
        if !self.can_backfill() || past.until != self.begins || !headroom.has(&past) {
            return Err(past);
        }
        self.begins = past.from;
        self.ring.prepend(past);
        Ok(())
    }

    /// Returns whether the store has the result of the change. This recognises a change whose event was evicted before
    /// others of its version.
    fn has_result_of(&self, change: &ObjectChange) -> bool {
        match self.store.objects.get(&change.object.key) {
            Some(object) => object.rv == change.object.rv,
            None => change.event_type == EventType::Deleted && change.object.rv <= self.complete_from(),
        }
    }

    /// Records that upstream had the state of `state_id` at version `at`. Returns whether it is still the ID of the
    /// current state.
    pub(super) fn confirm(&mut self, state_id: FeedStateId, at: ResourceVersion) -> bool {
        let is_present = !self.has_ended && state_id == self.state_id();
        if is_present && at > self.served_version() {
            self.confirmed = Some(ConfirmedVersion { rv: at, cached: None });
        }
        is_present
    }

    /// Discards the version at which upstream confirmed the state.
    pub(super) fn unconfirm(&mut self) {
        self.confirmed = None;
    }

    /// Records that everything up to `rv` has been applied. Discards a confirmed version that the watch has reached.
    pub(super) fn advance(&mut self, rv: ResourceVersion) {
        self.progress = self.progress.max(rv);
        self.confirmed.take_if(|confirmed| confirmed.rv <= self.progress);
    }

    /// Discards a confirmed state whose objects have been replaced by newly encoded ones.
    pub(super) fn discard_cached(&mut self) {
        self.confirmed.take_if(|confirmed| confirmed.cached.is_some());
    }

    /// Returns the version of the state that readers get.
    pub(super) fn served_version(&self) -> ResourceVersion {
        self.confirmed_at().unwrap_or(self.progress)
    }

    /// Returns the version at which upstream had the same objects, if the watch has not reached it.
    pub(super) fn confirmed_at(&self) -> Option<ResourceVersion> {
        self.confirmed.as_ref().map(|confirmed| confirmed.rv)
    }

    /// Returns the state that readers get, at the latest version that it is known to have.
    pub(super) fn served(&self) -> FeedSnapshot {
        match &self.confirmed {
            Some(ConfirmedVersion { rv, cached: kept }) => kept.clone().unwrap_or_else(|| self.store.state(*rv)),
            None => self.store.state(self.progress),
        }
    }

    /// Returns the state at the version that upstream's watch has reached.
    pub(super) fn snapshot(&self) -> FeedSnapshot {
        self.store.state(self.progress)
    }

    /// Returns the state of exactly `rv`, if nothing has changed since.
    pub(super) fn snapshot_at(&self, rv: ResourceVersion) -> Option<FeedSnapshot> {
        if !self.has_ended && self.confirmed_at() == Some(rv) {
            return Some(self.served());
        }
        (!self.has_ended && self.last_event <= rv && rv <= self.progress).then(|| self.store.state(rv))
    }

    /// Returns the changes since `rv`, and a state that is the one of exactly `rv` without them, if the ring has all of
    /// them and they are at most `events_max`. Callers undo them after they have released the lock.
    pub(super) fn changes_since(
        &self,
        rv: ResourceVersion,
        events_max: usize,
    ) -> Option<(FeedSnapshot, Vec<Arc<FeedEvent>>)> {
        if self.has_ended || rv < self.ring.oldest_resumable() || rv < self.base || rv > self.progress {
            return None;
        }
        let since = self.ring.events_after(rv, events_max)?;
        let state = FeedSnapshot { chunk_index: self.store.chunks_of_past_state(), ..self.store.state(rv) };
        Some((state, since))
    }

    pub(super) fn state_id(&self) -> FeedStateId {
        FeedStateId { history: self.history, next_seq: self.ring.next_seq }
    }
}
