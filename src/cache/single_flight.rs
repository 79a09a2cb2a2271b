use std::collections::{HashMap, VecDeque};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::budget::LruEviction;
use super::chunk_format::ChunkFormat;

/// A cache whose values are made once for concurrent callers, bounded by bytes and age. It evicts the least recently
/// used value first.
#[derive(Debug)]
pub(super) struct SingleFlight<T> {
    bytes_max: usize,
    age_max: Option<Duration>,
    kept: Mutex<FlightTable<T>>,
}

#[derive(Debug)]
struct FlightTable<T> {
    places: HashMap<ChunkFormat, FlightSlot<T>>,
    /// Each cached key with the time of its last known use. The time is checked again before an eviction.
    order: VecDeque<(ChunkFormat, Instant)>,
    bytes: usize,
    /// The number of tasks that have started to make a value, so that a value that was dropped while being made is not
    /// stored.
    tickets: u64,
}

#[derive(Debug)]
enum FlightSlot<T> {
    /// One task creates the value in a single poll; other tasks wait for it.
    Making {
        ticket: u64,
        waiting: Vec<Waker>,
    },
    Made {
        thing: T,
        bytes: usize,
        wanted: Instant,
    },
}

/// A task that makes a cached value. Dropping it wakes all waiting tasks, even if it failed.
struct Maker<'a, T> {
    flight: &'a SingleFlight<T>,
    format: ChunkFormat,
    ticket: u64,
}

impl<T: Clone> SingleFlight<T> {
    pub(super) fn new(bytes_max: usize, age_max: Option<Duration>) -> Self {
        Self { bytes_max, age_max, kept: Mutex::default() }
    }

    /// Returns the value of `format`, if it is cached.
    pub(super) fn get(&self, format: ChunkFormat) -> Option<T> {
        match self.kept.lock().places.get_mut(&format) {
            Some(FlightSlot::Made { thing, wanted, .. }) => {
                *wanted = Instant::now();
                Some(thing.clone())
            }
            _ => None,
        }
    }

    /// Returns the value of `format`. If there is none, `make` returns it with its size. While another task makes it,
    /// the result is pending and the task is woken later.
    pub(super) fn poll_get_or_make<E>(
        &self,
        format: ChunkFormat,
        cx: &Context<'_>,
        make: impl FnOnce() -> Result<(T, usize), E>,
    ) -> Poll<Result<T, E>> {
        let now = Instant::now();
        let maker = {
            let mut kept = self.kept.lock();
            match kept.places.get_mut(&format) {
                Some(FlightSlot::Made { thing, wanted, .. }) => {
                    *wanted = now;
                    return Poll::Ready(Ok(thing.clone()));
                }
                Some(FlightSlot::Making { waiting, .. }) => {
                    waiting.push(cx.waker().clone());
                    return Poll::Pending;
                }
                None => {}
            }
            kept.tickets += 1;
            let ticket = kept.tickets;
            kept.places.insert(format, FlightSlot::Making { ticket, waiting: Vec::new() });
            Maker { flight: self, format, ticket }
        };
        Poll::Ready(make().map(|(thing, bytes)| {
            maker.put(thing.clone(), bytes, now);
            thing
        }))
    }

    /// Drops all cached values, including those that are being made.
    pub(super) fn clear(&self) {
        let gone = {
            let mut kept = self.kept.lock();
            let tickets = kept.tickets;
            std::mem::replace(&mut *kept, FlightTable { tickets, ..FlightTable::default() })
        };
        gone.places.into_values().for_each(FlightSlot::wake);
    }

    /// Drops cached values that have not been used for too long.
    pub(super) fn expire(&self, now: Instant) {
        let Some(oldest) = self.age_max.and_then(|age| now.checked_sub(age)) else { return };
        let mut kept = self.kept.lock();
        while kept.order.front().is_some_and(|(_, wanted)| *wanted < oldest) {
            kept.drop_oldest(Some(oldest));
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.kept.lock().bytes
    }
}

impl<T: Clone> LruEviction for SingleFlight<T> {
    fn oldest(&self) -> Option<Instant> {
        self.kept.lock().order.front().map(|(_, since)| *since)
    }

    fn drop_oldest(&self) {
        self.kept.lock().drop_oldest(None);
    }
}

impl<T> Default for FlightTable<T> {
    fn default() -> Self {
        Self { places: HashMap::new(), order: VecDeque::new(), bytes: 0, tickets: 0 }
    }
}

impl<T> FlightTable<T> {
    /// Drops the first entry of the queue. If it was used since, and not before `oldest`, it moves to the end instead.
    fn drop_oldest(&mut self, oldest: Option<Instant>) {
        let Some((format, since)) = self.order.pop_front() else { return };
        match self.places.get(&format) {
            Some(FlightSlot::Made { wanted, .. })
                if *wanted > since && oldest.is_none_or(|oldest| *wanted >= oldest) =>
            {
                self.order.push_back((format, *wanted));
            }
            Some(FlightSlot::Made { bytes, .. }) => {
                self.bytes -= bytes;
                self.places.remove(&format);
            }
            _ => {}
        }
    }
}

impl<T> FlightSlot<T> {
    fn wake(self) {
        if let Self::Making { waiting, .. } = self {
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

impl<T> Maker<'_, T> {
    fn put(&self, thing: T, bytes: usize, now: Instant) {
        let mut kept = self.flight.kept.lock();
        if !self.has_place(&kept) || bytes > self.flight.bytes_max {
            return;
        }
        let place = kept.places.insert(self.format, FlightSlot::Made { thing, bytes, wanted: now });
        kept.order.push_back((self.format, now));
        kept.bytes += bytes;
        while kept.bytes > self.flight.bytes_max {
            kept.drop_oldest(None);
        }
        drop(kept);
        place.into_iter().for_each(FlightSlot::wake);
    }

    fn has_place(&self, kept: &FlightTable<T>) -> bool {
        matches!(kept.places.get(&self.format), Some(FlightSlot::Making { ticket, .. }) if *ticket == self.ticket)
    }
}

impl<T> Drop for Maker<'_, T> {
    fn drop(&mut self) {
        let mut kept = self.flight.kept.lock();
        let place = if self.has_place(&kept) { kept.places.remove(&self.format) } else { None };
        drop(kept);
        place.into_iter().for_each(FlightSlot::wake);
    }
}
