use std::collections::VecDeque;
use std::sync::Arc;

use tokio::time::Instant;

use super::backfilled_events::RingRoom;
use super::budget::Accounts;
use super::lanes::Lanes;
use super::wakes::Wakes;
use super::{BackfilledEvents, CacheConfig, Event, View};
use base::{Charge, mutant};
use kubeapi::{ObjectKey, ResourceVersion};

/// A feed's recent events, oldest first, and the lanes that readers follow them in. Bounded in number, bytes and age.
#[derive(Debug)]
pub(super) struct Ring {
    pub(super) lanes: Lanes,
    pub(super) next_seq: u64,
    /// The version that watches may start from: no later event has been evicted.
    pub(super) floor: ResourceVersion,
    /// The version behind which it is known of every event what was there before.
    known: ResourceVersion,
    events: usize,
    /// Bytes of their frames.
    bytes: usize,
    /// The charge for events, without their objects and frames.
    charge: Charge,
}

/// Where `seq` begins. There is room for a prehistory below it.
const FIRST_SEQ: u64 = 1 << 40;

impl Ring {
    pub(super) fn new(accounts: &Accounts, config: &CacheConfig) -> Self {
        Self {
            lanes: Lanes::new(FIRST_SEQ, config.lane_events_max),
            next_seq: FIRST_SEQ,
            floor: ResourceVersion::default(),
            known: ResourceVersion::default(),
            events: 0,
            bytes: 0,
            charge: accounts.events.charge(0),
        }
    }

    /// Begins anew behind a list of that version. The lanes of the old history are closed already.
    pub(super) fn restart(&mut self, rv: ResourceVersion) {
        self.lanes.reopen(self.next_seq);
        let floor = if mutant(1) { ResourceVersion(rv.0.saturating_sub(1)) } else { rv };
        (self.floor, self.known) = (floor, floor);
        self.empty();
    }

    /// Drops everything for good. Returns what was held.
    pub(super) fn end(&mut self, wakes: &mut Wakes) -> Vec<VecDeque<Arc<Event>>> {
        let events = self.lanes.close(wakes);
        self.empty();
        events
    }

    fn empty(&mut self) {
        (self.events, self.bytes) = (0, 0);
        self.charge.set(0);
    }

    /// Counts one event more. It is put into the lanes after others were evicted for it.
    pub(super) fn admit(&mut self, event: &Event) {
        self.next_seq = event.seq + 1;
        self.events += 1;
        self.bytes += event.charge();
        self.charge.set(self.events * Event::OVERHEAD_BYTES);
    }

    /// The version that a watch with this view may start from.
    pub(super) fn floor_of(&self, view: &View) -> ResourceVersion {
        if view.goes_by_key() { self.floor } else { self.known() }
    }

    /// The version that watches may start from that need to know what was there before each change.
    pub(super) fn known(&self) -> ResourceVersion {
        self.floor.max(self.known)
    }

    /// The `seq` of the oldest event, or of the next one if there is none.
    pub(super) fn first_seq(&self) -> u64 {
        self.oldest().map_or(self.next_seq, |oldest| oldest.seq)
    }

    /// How many events more the ring can take, and how many bytes of them.
    pub(super) fn room(&self, config: &CacheConfig, alternates: usize) -> RingRoom {
        RingRoom {
            events: config.window_events_max.saturating_sub(self.events),
            bytes: config.window_bytes().saturating_sub(self.bytes + alternates),
        }
    }

    /// Puts events in front of all others. There is room for them, and nothing was evicted.
    pub(super) fn prepend(&mut self, past: BackfilledEvents) {
        let BackfilledEvents { from, until, known, events, .. } = past;
        self.events += events.len();
        self.bytes += events.iter().map(|event| event.charge()).sum::<usize>();
        self.charge.set(self.events * Event::OVERHEAD_BYTES);
        self.lanes.all.prepend(events);
        self.floor = from;
        if self.known <= until {
            self.known = known;
        }
    }

    /// Puts events in the place of the same ones of which less was known. Now it is known of every event behind `known`
    /// what was there before. Returns those that were there.
    pub(super) fn explain(&mut self, events: Vec<Arc<Event>>, known: ResourceVersion) -> Vec<Arc<Event>> {
        let mut gone = Vec::new();
        for event in events {
            let charge = event.charge();
            if let Some(before) = self.lanes.all.exchange(event) {
                self.bytes = self.bytes + charge - before.charge();
                gone.push(before);
            }
        }
        self.known = self.known.min(known);
        gone
    }

    /// Whether the ring has an event of that object at that version.
    pub(super) fn has(&self, key: &ObjectKey, rv: ResourceVersion) -> bool {
        self.lanes.all.with_events(|events| {
            let first = events.partition_point(|event| event.rv < rv);
            events.range(first..).take_while(|event| event.rv == rv).any(|event| event.object.key == *key)
        })
    }

    /// The position behind every event up to `rv`.
    pub(super) fn seq_after(&self, rv: ResourceVersion) -> u64 {
        self.lanes.all.with_events(|events| {
            let at = events.partition_point(|event| event.rv <= rv);
            events.get(at).map_or(self.next_seq, |event| event.seq)
        })
    }

    /// The events behind `rv`, if there are no more than `events_max`.
    pub(super) fn behind(&self, rv: ResourceVersion, events_max: usize) -> Option<Vec<Arc<Event>>> {
        self.lanes.all.with_events(|events| {
            let first = events.partition_point(|event| event.rv <= rv);
            (events.len() - first <= events_max).then(|| events.range(first..).cloned().collect())
        })
    }

    /// Evicts what is beyond the bounds. `alternates` is the size of the frames that were made of events.
    pub(super) fn evict(&mut self, config: &CacheConfig, now: Instant, mut alternates: usize) {
        while let Some(oldest) = self.oldest() {
            let over = self.events > config.window_events_max
                || self.bytes + alternates > config.window_bytes()
                || now.duration_since(oldest.at) > config.window_age_max;
            if !over {
                return;
            }
            self.evict_one(&oldest);
            alternates = alternates.saturating_sub(oldest.alternate_bytes());
        }
    }

    /// Shortens the history to `bytes`, by up to `events_max` events, and never evicts the last one. Returns the
    /// evicted.
    pub(super) fn shrink(&mut self, bytes: usize, events_max: usize) -> Vec<Arc<Event>> {
        let mut gone = Vec::new();
        while gone.len() < events_max && self.bytes > bytes && self.events > 1 {
            let Some(oldest) = self.oldest() else { break };
            self.evict_one(&oldest);
            gone.push(oldest);
        }
        gone
    }

    fn oldest(&self) -> Option<Arc<Event>> {
        self.lanes.all.with_events(|events| events.front().cloned())
    }

    fn evict_one(&mut self, oldest: &Event) {
        self.lanes.evict(oldest);
        self.floor = if mutant(9) { ResourceVersion(oldest.rv.0.saturating_sub(1)) } else { oldest.rv };
        self.events -= 1;
        self.bytes -= oldest.charge();
        self.charge.set(self.events * Event::OVERHEAD_BYTES);
    }

    pub(super) fn len(&self) -> usize {
        self.events
    }

    /// Bytes of the events' frames.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Seconds between the oldest and the newest event.
    pub(super) fn span_seconds(&self) -> f64 {
        self.lanes.all.with_events(|events| match (events.front(), events.back()) {
            (Some(first), Some(last)) => last.at.duration_since(first.at).as_secs_f64(),
            _ => 0.0,
        })
    }
}
