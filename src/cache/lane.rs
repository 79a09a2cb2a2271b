use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;
use slab::Slab;

use super::Event;

/// A sequence of events that readers follow: all of a feed's, or those that touch one namespace, object or node.
///
/// Every lane holds shared references to the ring's events, so a lane costs one pointer per event that it holds.
#[derive(Debug, Default)]
pub(super) struct Lane {
    log: Mutex<Log>,
}

#[derive(Debug, Default)]
struct Log {
    events: VecDeque<Arc<Event>>,
    /// Events of this lane below this `seq` are not here.
    from: u64,
    /// No event will follow: the feed started a new history.
    closed: bool,
    readers: Slab<Option<Waker>>,
    /// Slots of `readers` that hold a waker.
    parked: Vec<usize>,
}

/// What [`Lane::read`] found at a position.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Read {
    /// At least one event was put into the batch.
    Some,
    /// Nothing at or after the position yet; the waker is registered.
    CaughtUp,
    /// Events at the position were here and are gone, or the history ended.
    Lost,
}

impl Lane {
    /// An empty lane that is complete from `from` on.
    pub(super) fn starting_at(from: u64) -> Self {
        Self { log: Mutex::new(Log { from, ..Log::default() }) }
    }

    /// Adds an event and returns the readers to wake once the writer's critical section is over.
    pub(super) fn push(&self, event: Arc<Event>, wake: &mut Vec<Waker>) {
        let mut log = self.log.lock();
        log.events.push_back(event);
        log.take_parked(wake);
    }

    /// Wakes every reader without an event: a bookmark or the end.
    pub(super) fn nudge(&self, wake: &mut Vec<Waker>) {
        self.log.lock().take_parked(wake);
    }

    /// Ends the lane: every reader finds its position lost.
    pub(super) fn close(&self, wake: &mut Vec<Waker>) {
        let mut log = self.log.lock();
        log.closed = true;
        log.take_parked(wake);
    }

    /// Copies up to `events_max` events from position `next` on, or registers `waker`.
    ///
    /// Both happen under one lock, so that no event can fall between "nothing there" and "wake me".
    pub(super) fn read(
        &self,
        next: u64,
        events_max: usize,
        reader: (usize, Option<&Waker>),
        batch: &mut Vec<Arc<Event>>,
    ) -> Read {
        let mut log = self.log.lock();
        if log.closed || next < log.from {
            return Read::Lost;
        }
        let at = log.position_of(next);
        if at < log.events.len() {
            batch.extend(log.events.range(at..).take(events_max).cloned());
            return Read::Some;
        }
        if let (slot, Some(waker)) = reader {
            log.park(slot, waker);
        }
        Read::CaughtUp
    }

    /// Removes the oldest event if it is the one with this `seq`.
    pub(super) fn evict(&self, seq: u64) {
        let mut log = self.log.lock();
        if log.events.front().is_some_and(|event| event.seq == seq) {
            log.events.pop_front();
        }
        log.from = log.from.max(seq + 1);
    }

    /// Extends the lane backwards with older events, so that a reader may start at `from`.
    pub(super) fn backfill<'a>(&self, from: u64, older: impl DoubleEndedIterator<Item = &'a Arc<Event>>) {
        let mut log = self.log.lock();
        if from >= log.from {
            return;
        }
        let known_from = log.from;
        for event in older.rev().filter(|event| event.seq < known_from) {
            log.events.push_front(event.clone());
        }
        log.from = from;
    }

    pub(super) fn add_reader(&self) -> usize {
        self.log.lock().readers.insert(None)
    }

    /// Returns whether this was the last reader.
    pub(super) fn remove_reader(&self, slot: usize) -> bool {
        let mut log = self.log.lock();
        if log.readers.remove(slot).is_some() {
            log.parked.retain(|parked| *parked != slot);
        }
        log.readers.is_empty()
    }

    pub(super) fn has_readers(&self) -> bool {
        !self.log.lock().readers.is_empty()
    }

    /// Runs `read` over the events that are held.
    pub(super) fn with_events<T>(&self, read: impl FnOnce(&VecDeque<Arc<Event>>) -> T) -> T {
        read(&self.log.lock().events)
    }
}

impl Log {
    /// Index of the first event whose `seq` is `next` or later. Readers are mostly at the end: look there first.
    fn position_of(&self, next: u64) -> usize {
        match self.events.back() {
            Some(last) if last.seq >= next => self.events.partition_point(|event| event.seq < next),
            _ => self.events.len(),
        }
    }

    fn park(&mut self, slot: usize, waker: &Waker) {
        let Some(entry) = self.readers.get_mut(slot) else { return };
        match entry {
            Some(parked) => parked.clone_from(waker),
            None => {
                *entry = Some(waker.clone());
                self.parked.push(slot);
            }
        }
    }

    fn take_parked(&mut self, wake: &mut Vec<Waker>) {
        for slot in self.parked.drain(..) {
            wake.extend(self.readers.get_mut(slot).and_then(Option::take));
        }
    }
}
