use std::collections::VecDeque;
use std::sync::Arc;

use super::FeedEvent;
use super::lane::EventLane;
use super::lane_index::LaneIndex;
use super::lane_key::LaneKey;
use super::pending_wakeups::PendingWakeups;
use indexmap::IndexMap;

/// The lanes of one feed. They find the readers of an event in a few look-ups, independent of the number of readers.
#[derive(Debug)]
pub(super) struct FeedLanes {
    /// The lane of every event: the ring itself.
    pub(super) all: Arc<EventLane>,
    /// The narrow lanes that span all namespaces.
    everywhere: LaneIndex,
    namespaces: IndexMap<Box<str>, LaneIndex>,
    /// The number of open narrow lanes.
    narrow: usize,
    /// The number of events that each narrow lane holds.
    narrow_events_max: usize,
}

impl FeedLanes {
    /// Creates the lane of all events, complete from `from` on. It holds the same events as the ring; narrow lanes hold
    /// at most `narrow_events_max`.
    pub(super) fn new(from: u64, narrow_events_max: usize) -> Self {
        Self {
            all: Arc::new(EventLane::new(LaneKey::all(), from, usize::MAX)),
            everywhere: LaneIndex::default(),
            namespaces: IndexMap::default(),
            narrow: 0,
            narrow_events_max,
        }
    }

    /// Returns the lane for `key`, created on demand. A new lane begins at `next_seq`: earlier events are in the ring.
    pub(super) fn open(&mut self, key: &LaneKey, next_seq: u64) -> Arc<EventLane> {
        if key.is_all() {
            return self.all.clone();
        }
        let (narrow, events_max) = (&mut self.narrow, self.narrow_events_max);
        let fresh = || {
            *narrow += 1;
            Arc::new(EventLane::new(key.clone(), next_seq, events_max))
        };
        match &key.namespace {
            None => self.everywhere.open(&key.term, fresh),
            Some(namespace) => self.namespaces.entry(namespace.clone()).or_default().open(&key.term, fresh),
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
        self.narrow -= usize::from(dropped);
    }

    pub(super) fn push(&self, event: &Arc<FeedEvent>, wakes: &mut PendingWakeups) {
        self.all.push(event, wakes);
        self.for_each_narrow(event, |lane| lane.push(event, wakes));
    }

    pub(super) fn evict(&self, event: &FeedEvent) {
        self.all.evict(event.seq);
        self.for_each_narrow(event, |lane| lane.evict(event.seq));
    }

    pub(super) fn nudge(&self, wakes: &mut PendingWakeups) {
        self.each().for_each(|lane| lane.nudge(wakes));
    }

    /// Ends every lane. Returns the lanes' events, for the caller to drop without holding a lock.
    pub(super) fn close(&self, wakes: &mut PendingWakeups) -> Vec<VecDeque<Arc<FeedEvent>>> {
        self.each().map(|lane| lane.close(wakes)).collect()
    }

    /// Replaces all lanes with empty ones, complete from `from` on. Readers of the old lanes keep those, closed.
    pub(super) fn reopen(&mut self, from: u64) {
        *self = Self::new(from, self.narrow_events_max);
    }

    /// Returns the number of open narrow lanes.
    pub(super) fn len(&self) -> usize {
        self.narrow
    }

    fn each(&self) -> impl Iterator<Item = &Arc<EventLane>> {
        let narrow = std::iter::once(&self.everywhere).chain(self.namespaces.values()).flat_map(LaneIndex::each);
        std::iter::once(&self.all).chain(narrow)
    }

    fn for_each_narrow(&self, event: &FeedEvent, mut visit: impl FnMut(&EventLane)) {
        if self.narrow == 0 {
            return;
        }
        let (namespace, name) = event.object.key.parts();
        self.everywhere.visit(event, name, &mut visit);
        if let Some(index) = (!self.namespaces.is_empty()).then(|| self.namespaces.get(namespace)).flatten() {
            index.visit(event, name, &mut visit);
        }
    }
}
