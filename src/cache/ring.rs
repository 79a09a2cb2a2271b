use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::budget::FeedMemoryAccounts;
use super::lane::{EventLane, LaneKey, PendingWakeups};
use super::lane_index::NarrowLanes;
use super::{CacheConfig, CollectionView, FeedEvent, MemoryKind};
use crate::wire::ObjectRevision;
use base::MemoryCharge;
use kubeapi::{ObjectKey, ResourceVersion};

/// A feed's recent events, and the lanes in which readers follow them. Bounded in number, bytes and age.
#[derive(Debug)]
pub(super) struct EventRing {
    /// The lane of every event: the ring's own sequence, oldest first.
    pub(super) all: Arc<EventLane>,
    pub(super) narrow: NarrowLanes,
    pub(super) next_seq: u64,
    /// The oldest version that watches may start from: no later event has been evicted.
    pub(super) floor: ResourceVersion,
    /// The version after which the previous state of every event's object is known.
    known: ResourceVersion,
    pub(super) events: usize,
    /// The number of bytes that are charged to the ring for its events.
    pub(super) bytes: usize,
    /// The memory charge for events, without their objects and frames.
    charge: MemoryCharge,
}

/// The free space in a history ring, in events and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRingHeadroom {
    pub events: usize,
    pub bytes: usize,
}

/// Events that lead up to the beginning of a feed's history.
#[derive(Debug)]
pub struct BackfilledEvents {
    /// The version that the first event follows.
    pub(super) from: ResourceVersion,
    /// The version at which the history began when these events were checked.
    pub(super) until: ResourceVersion,
    /// The version after which the previous state of every event's object is known.
    pub(super) known: ResourceVersion,
    pub(super) events: Vec<Arc<FeedEvent>>,
}

/// The first `seq` of a ring. Lower numbers are reserved for backfilled events.
const FIRST_SEQ: u64 = 1 << 40;

fn new_lane_of_all(from: u64) -> Arc<EventLane> {
    Arc::new(EventLane::new(LaneKey::all(), from, usize::MAX))
}

impl EventRing {
    pub(super) fn new(accounts: &FeedMemoryAccounts, config: &CacheConfig) -> Self {
        Self {
            all: new_lane_of_all(FIRST_SEQ),
            narrow: NarrowLanes::new(config.lane_events_max),
            next_seq: FIRST_SEQ,
            floor: ResourceVersion::default(),
            known: ResourceVersion::default(),
            events: 0,
            bytes: 0,
            charge: accounts.of(MemoryKind::Events).charge(0),
        }
    }

    /// Restarts the ring with new lanes after a list at version `rv`. The caller has already closed the lanes of the
    /// old history, which their readers keep.
    pub(super) fn restart(&mut self, rv: ResourceVersion) {
        self.all = new_lane_of_all(self.next_seq);
        self.narrow.clear();
        (self.floor, self.known) = (rv, rv);
        self.reset();
    }

    /// Drops everything permanently. Returns the dropped events.
    pub(super) fn end(&mut self, wakes: &mut PendingWakeups) -> Vec<VecDeque<Arc<FeedEvent>>> {
        let events = self.close_lanes(wakes);
        self.reset();
        events
    }

    fn reset(&mut self) {
        (self.events, self.bytes) = (0, 0);
        self.charge.set(0);
    }

    /// Adds an event after all others, and evicts events beyond the bounds before. `derived_bytes` is the size of the
    /// frames derived from events. Adds parked readers of the event's lanes to `wakes`.
    pub(super) fn push(
        &mut self,
        event: &Arc<FeedEvent>,
        config: &CacheConfig,
        now: Instant,
        derived_bytes: usize,
        wakes: &mut PendingWakeups,
    ) {
        self.next_seq = event.seq + 1;
        self.events += 1;
        self.bytes += event.charge();
        self.charge.set(self.events * FeedEvent::OVERHEAD_BYTES);
        self.evict(config, now, derived_bytes);
        self.all.push(event, wakes);
        self.narrow.for_each_of(event, |lane| lane.push(event, wakes));
    }

    /// Returns the lane for `key`, created on demand. A new lane begins with the next event: earlier ones are in the
    /// ring.
    pub(super) fn open_lane(&mut self, key: &LaneKey) -> Arc<EventLane> {
        if key.is_all() { self.all.clone() } else { self.narrow.open(key, self.next_seq) }
    }

    /// Wakes every reader that waits for an event, for a bookmark or the end.
    pub(super) fn wake_all(&self, wakes: &mut PendingWakeups) {
        self.lanes().for_each(|lane| lane.wake_all(wakes));
    }

    /// Ends every lane. Returns the lanes' events, for the caller to drop without holding a lock.
    pub(super) fn close_lanes(&self, wakes: &mut PendingWakeups) -> Vec<VecDeque<Arc<FeedEvent>>> {
        self.lanes().map(|lane| lane.close(wakes)).collect()
    }

    fn lanes(&self) -> impl Iterator<Item = &Arc<EventLane>> {
        std::iter::once(&self.all).chain(self.narrow.iter())
    }

    /// Returns the oldest version that a watch with the view may start from.
    pub(super) fn floor_of(&self, view: &CollectionView) -> ResourceVersion {
        if view.depends_only_on_key() { self.floor } else { self.oldest_resumable() }
    }

    /// Returns the oldest version for watches that need the previous state of each change.
    pub(super) fn oldest_resumable(&self) -> ResourceVersion {
        self.floor.max(self.known)
    }

    /// Returns the `seq` of the oldest event, or of the next one if there is none.
    pub(super) fn first_seq(&self) -> u64 {
        self.oldest().map_or(self.next_seq, |oldest| oldest.seq)
    }

    /// Returns the free space of the ring. `derived_bytes` is the size of the frames derived from its events.
    pub(super) fn headroom(&self, config: &CacheConfig, derived_bytes: usize) -> EventRingHeadroom {
        EventRingHeadroom {
            events: config.window_events_max.saturating_sub(self.events),
            bytes: config.window_bytes().saturating_sub(self.bytes + derived_bytes),
        }
    }

    /// Prepends events to the ring. The caller has checked that they fit and that nothing was evicted.
    pub(super) fn prepend(&mut self, past: BackfilledEvents) {
        let BackfilledEvents { from, until, known, events, .. } = past;
        self.events += events.len();
        self.bytes += events.iter().map(|event| event.charge()).sum::<usize>();
        self.charge.set(self.events * FeedEvent::OVERHEAD_BYTES);
        self.all.prepend(events);
        self.floor = from;
        if self.known <= until {
            self.known = known;
        }
    }

    /// Replaces events with copies that have their previous state. After that, the previous state of every event after
    /// `known` is known. Returns the replaced events.
    pub(super) fn set_previous_states(
        &mut self,
        events: Vec<Arc<FeedEvent>>,
        known: ResourceVersion,
    ) -> Vec<Arc<FeedEvent>> {
        let mut replaced = Vec::new();
        for event in events {
            let charge = event.charge();
            if let Some(before) = self.all.exchange(event) {
                self.bytes = self.bytes + charge - before.charge();
                replaced.push(before);
            }
        }
        self.known = self.known.min(known);
        replaced
    }

    /// Returns whether the ring has an event of the object `key` at version `rv`.
    pub(super) fn has(&self, key: &ObjectKey, rv: ResourceVersion) -> bool {
        self.all.with_events(|events| {
            let first = events.partition_point(|event| event.rv < rv);
            events.range(first..).take_while(|event| event.rv == rv).any(|event| event.object.key == *key)
        })
    }

    /// Returns the version `rv` of the object `key`, if one of the last `events_max` events replaced it.
    pub(super) fn replaced(
        &self,
        key: &ObjectKey,
        rv: ResourceVersion,
        events_max: usize,
    ) -> Option<Arc<ObjectRevision>> {
        self.all.with_events(|events| {
            let last = events.iter().rev().take(events_max).take_while(|event| event.rv > rv);
            let mut previous = last.filter_map(|event| event.previous.as_ref());
            previous.find(|previous| previous.rv == rv && previous.key == *key).cloned()
        })
    }

    /// Returns the position after every event up to `rv`.
    pub(super) fn seq_after(&self, rv: ResourceVersion) -> u64 {
        self.all.with_events(|events| {
            let at = events.partition_point(|event| event.rv <= rv);
            events.get(at).map_or(self.next_seq, |event| event.seq)
        })
    }

    /// Returns the events after `rv`, if there are at most `events_max`.
    pub(super) fn events_after(&self, rv: ResourceVersion, events_max: usize) -> Option<Vec<Arc<FeedEvent>>> {
        self.all.with_events(|events| {
            let first = events.partition_point(|event| event.rv <= rv);
            (events.len() - first <= events_max).then(|| events.range(first..).cloned().collect())
        })
    }

    /// Evicts events beyond the bounds. `derived_bytes` is the size of the frames derived from events.
    pub(super) fn evict(&mut self, config: &CacheConfig, now: Instant, mut derived_bytes: usize) {
        while let Some(oldest) = self.oldest() {
            let is_over_limit = self.events > config.window_events_max
                || self.bytes + derived_bytes > config.window_bytes()
                || now.duration_since(oldest.at) > config.window_age_max;
            if !is_over_limit {
                return;
            }
            self.evict_one(&oldest);
            derived_bytes = derived_bytes.saturating_sub(oldest.derived_frame_bytes());
        }
    }

    /// Shortens the history to `bytes`, by up to `events_max` events, and never evicts the last one. Returns the
    /// evicted events.
    pub(super) fn shrink(&mut self, bytes: usize, events_max: usize) -> Vec<Arc<FeedEvent>> {
        let mut evicted = Vec::new();
        while evicted.len() < events_max && self.bytes > bytes && self.events > 1 {
            let Some(oldest) = self.oldest() else { break };
            self.evict_one(&oldest);
            evicted.push(oldest);
        }
        evicted
    }

    fn oldest(&self) -> Option<Arc<FeedEvent>> {
        self.all.with_events(|events| events.front().cloned())
    }

    fn evict_one(&mut self, oldest: &FeedEvent) {
        self.all.evict(oldest.seq);
        self.narrow.for_each_of(oldest, |lane| lane.evict(oldest.seq));
        self.floor = oldest.rv;
        self.events -= 1;
        self.bytes -= oldest.charge();
        self.charge.set(self.events * FeedEvent::OVERHEAD_BYTES);
    }

    /// Returns the seconds between the oldest and the newest event.
    pub(super) fn span_seconds(&self) -> f64 {
        self.all.with_events(|events| match (events.front(), events.back()) {
            (Some(first), Some(last)) => last.at.duration_since(first.at).as_secs_f64(),
            _ => 0.0,
        })
    }
}

impl EventRingHeadroom {
    /// Returns whether `events` events of `bytes` bytes fit.
    pub fn takes(self, events: usize, bytes: usize) -> bool {
        events <= self.events && bytes <= self.bytes
    }

    pub(super) fn has(self, past: &BackfilledEvents) -> bool {
        self.takes(past.events.len(), past.events.iter().map(|event| event.charge()).sum())
    }
}
