use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::budget::{LruEviction, MemoryBudget};
use crate::wire::Representation;
use base::{MemoryAccount, MemoryCharge};

/// The cache of the encoded bytes of one feed's chunks. They are encoded once for all clients, and bounded.
#[derive(Debug)]
pub struct ChunkCache {
    /// The joined bodies in upstream's encoding. The store has the same bytes, so copies are kept only for the duration
    /// of a burst of lists.
    copies: SingleFlightCache<EncodedChunkKey, PlainChunk>,
    derived: SingleFlightCache<EncodedChunkKey, PlainChunk>,
    deflated: SingleFlightCache<EncodedChunkKey, DeflatedChunk>,
    /// Compressed frames of watches, each by its number and that of the frame to which it may refer.
    frames: SingleFlightCache<(u64, Option<u64>), DeflatedChunk>,
    /// The frames that watches were sent recently, by address and length. No other frame has the address of a kept one.
    names: SingleFlightCache<(usize, usize), Arc<NamedFrame>>,
    /// The number of names that were given.
    named: AtomicU64,
    /// Whether the feed has ended. Then nothing is cached.
    is_closed: AtomicBool,
    budget: Arc<MemoryBudget>,
    account: Arc<MemoryAccount>,
}

/// The name of a frame that watches share. A compressed frame may refer to the frame that the watch was sent right
/// before it. A watch keeps the name instead of the frame, so an idle watch keeps no frame alive.
#[derive(Debug)]
pub struct FrameName(Weak<NamedFrame>);

#[derive(Debug)]
struct NamedFrame {
    /// Never 0 and never reused, unlike the address of the frame.
    number: u64,
    frame: Bytes,
    /// The numbers of the frames that it was compressed after; 0 where there is none yet. Watches with other
    /// predecessors share one form that refers to none, so the watches of one frame cause at most one compression more.
    previous: [AtomicU64; PREDECESSORS_MAX],
    _charge: MemoryCharge,
}

/// The bytes of a chunk's items or frames. Large bodies are slices of the store's own bytes.
pub type PlainChunk = Arc<[Bytes]>;

/// A compressed piece of the items of one or more chunks.
#[derive(Debug, Clone)]
pub struct DeflatedChunk {
    /// The DEFLATE data (RFC 1951), flushed to a byte boundary and without a final block. `None` if compression would
    /// not make it smaller: the piece is then sent uncompressed.
    pub bytes: Option<Bytes>,
    /// The CRC-32 of the uncompressed piece; `len` is its length in bytes.
    pub crc: u32,
    /// The factor that appends the piece to the checksum of what precedes it.
    pub shift: u32,
    pub len: u64,
    /// Whether the piece is the last one of its chunks.
    pub is_last: bool,
}

/// The limit of each kind per feed, in bytes: about four thousand pods in JSON.
const BYTES_MAX: usize = 64 << 20;
/// The limit of compressed lists per feed, in bytes: some 200,000 pods. A list above it would evict its own start, so that
/// each client would have all of it compressed again.
const DEFLATED_BYTES_MAX: usize = 256 << 20;
/// The number of bytes charged for the record of a compressed piece, or of a piece that is not worth compressing.
const DEFLATED_BYTES: usize = 256;
/// The time after which an unread copy is dropped.
const COPIES_AGE_MAX: Duration = Duration::from_secs(10);

/// The time after which an unread frame of watches is dropped.
const FRAMES_AGE_MAX: Duration = Duration::from_secs(60);
/// The maximum length of all named frames of a feed in bytes. Most of them are in the store or the ring too.
const NAMED_BYTES_MAX: usize = 16 << 20;
/// The number of bytes that are charged for a name beside its frame.
const NAME_BYTES: usize = 256;
/// The maximum number of predecessors that a frame is compressed after.
const PREDECESSORS_MAX: usize = 4;

impl ChunkCache {
    pub(super) fn new(budget: Arc<MemoryBudget>, account: Arc<MemoryAccount>) -> Self {
        Self {
            copies: SingleFlightCache::new(BYTES_MAX, Some(COPIES_AGE_MAX)),
            derived: SingleFlightCache::new(BYTES_MAX, None),
            deflated: SingleFlightCache::new(DEFLATED_BYTES_MAX, None),
            frames: SingleFlightCache::new(BYTES_MAX / 4, Some(FRAMES_AGE_MAX)),
            names: SingleFlightCache::new(NAMED_BYTES_MAX, Some(FRAMES_AGE_MAX)),
            named: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            budget,
            account,
        }
    }

    /// Returns the account for cached bytes. The encoder charges it, because it knows which bytes are the store's own.
    pub fn account(&self) -> &Arc<MemoryAccount> {
        &self.account
    }

    /// Returns the chunk of `key`, encoded with `make` if it is not cached. `verbatim` states that the format is
    /// upstream's encoding.
    pub fn poll_plain<E>(
        &self,
        key: EncodedChunkKey,
        verbatim: bool,
        cx: &Context<'_>,
        make: impl FnOnce() -> Result<(PlainChunk, usize), E>,
    ) -> Poll<Result<PlainChunk, E>> {
        let flight = if verbatim { &self.copies } else { &self.derived };
        let result = flight.poll_get_or_make(key, cx, make);
        self.trim();
        result
    }

    /// Returns a compressed piece of a list, if it is cached.
    pub fn deflated(&self, key: EncodedChunkKey) -> Option<DeflatedChunk> {
        self.deflated.get(key)
    }

    pub fn poll_deflated<E>(
        &self,
        key: EncodedChunkKey,
        cx: &Context<'_>,
        make: impl FnOnce() -> Result<DeflatedChunk, E>,
    ) -> Poll<Result<DeflatedChunk, E>> {
        self.poll_compressed(&self.deflated, key, cx, make)
    }

    /// Returns the compressed form of a frame that watches share, for those that were sent `previous` right before it.
    /// The first watch compresses it with `make`, which gets the bytes that it may refer to.
    pub fn poll_deflated_frame<E>(
        &self,
        frame: &Bytes,
        previous: Option<&FrameName>,
        cx: &Context<'_>,
        make: impl FnOnce(&[u8]) -> Result<DeflatedChunk, E>,
    ) -> Poll<Result<(FrameName, DeflatedChunk), E>> {
        let address = (frame.as_ptr().addr(), frame.len());
        let named = ready!(self.names.poll_get_or_make(address, cx, || {
            let (number, previous) = (self.named.fetch_add(1, Ordering::Relaxed) + 1, Default::default());
            let named = NamedFrame { number, frame: frame.clone(), previous, _charge: self.account.charge(NAME_BYTES) };
            Ok((Arc::new(named), frame.len() + NAME_BYTES))
        }))?;
        let previous = previous.and_then(|name| name.0.upgrade()).filter(|previous| named.may_follow(previous));
        let key = (named.number, previous.as_ref().map(|previous| previous.number));
        let make = || make(previous.as_ref().map_or(&[], |previous| &previous.frame));
        self.poll_compressed(&self.frames, key, cx, make).map_ok(|made| (FrameName(Arc::downgrade(&named)), made))
    }

    fn poll_compressed<K: Copy + Eq + Hash, E>(
        &self,
        flight: &SingleFlightCache<K, DeflatedChunk>,
        key: K,
        cx: &Context<'_>,
        make: impl FnOnce() -> Result<DeflatedChunk, E>,
    ) -> Poll<Result<DeflatedChunk, E>> {
        let make = || {
            let made = make()?;
            let charged = |bytes| self.account.charge_with_overhead(bytes, DEFLATED_BYTES);
            let made = DeflatedChunk { bytes: made.bytes.map(charged), ..made };
            let bytes = made.bytes.as_ref().map_or(0, Bytes::len) + DEFLATED_BYTES;
            Ok((made, bytes))
        };
        let result = flight.poll_get_or_make(key, cx, make);
        self.trim();
        result
    }

    /// Frees memory if a new entry does not fit beside the rest, or must not be kept.
    fn trim(&self) {
        if self.is_closed.load(Ordering::SeqCst) {
            self.clear();
        }
        self.budget.trim_derived();
    }

    pub(super) fn least_used(&self) -> [&dyn LruEviction; 5] {
        [&self.copies, &self.derived, &self.deflated, &self.frames, &self.names]
    }

    /// Drops all derived bytes, because they were wrong or written for another release.
    pub(super) fn forget_derived(&self) {
        self.derived.clear();
        self.deflated.clear();
    }

    /// Drops all cached chunks.
    pub(super) fn clear(&self) {
        self.copies.clear();
        self.frames.clear();
        self.names.clear();
        self.forget_derived();
    }

    /// Drops all cached chunks, and caches none from now on, because the feed has ended.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        self.clear();
    }

    /// Drops cached chunks that have expired.
    pub(super) fn expire(&self, now: Instant) {
        self.copies.expire(now);
        self.frames.expire(now);
        self.names.expire(now);
    }

    pub(super) fn bytes(&self) -> usize {
        self.copies.bytes()
            + self.derived.bytes()
            + self.deflated.bytes()
            + self.frames.bytes()
            + self.names.len() * NAME_BYTES
    }
}

impl NamedFrame {
    /// Returns whether the frame is compressed after `previous`.
    fn may_follow(&self, previous: &Self) -> bool {
        self.previous.iter().any(|slot| match slot.load(Ordering::Relaxed) {
            0 => slot
                .compare_exchange(0, previous.number, Ordering::Relaxed, Ordering::Relaxed)
                .map_or_else(|known| known == previous.number, |_| true),
            known => known == previous.number,
        })
    }
}

/// A cache whose values are made once for concurrent callers, bounded by bytes and age. It evicts the least recently
/// used value first.
#[derive(Debug)]
pub(super) struct SingleFlightCache<K, T> {
    bytes_max: usize,
    age_max: Option<Duration>,
    table: Mutex<SingleFlightTable<K, T>>,
}

#[derive(Debug)]
struct SingleFlightTable<K, T> {
    slots: HashMap<K, SingleFlightSlot<T>>,
    /// Each cached key with the time of its last known use. The time is checked again before an eviction.
    order: VecDeque<(K, Instant)>,
    bytes: usize,
    /// The number of tasks that have started to make a value, so that a value that was dropped while being made is not
    /// stored.
    tickets: u64,
}

#[derive(Debug)]
enum SingleFlightSlot<T> {
    /// One task creates the value in a single poll; other tasks wait for it.
    Making {
        ticket: u64,
        waiting: Vec<Waker>,
    },
    Made {
        value: T,
        bytes: usize,
        last_used: Instant,
    },
}

/// The cache key of an encoded chunk: all properties that determine its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EncodedChunkKey {
    /// The name of an [`ObjectChunk`](super::ObjectChunk), or [`joined_name`](super::ObjectChunk::joined_name) of
    /// several.
    pub chunk: u128,
    pub representation: Representation,
    /// The server release in whose output format the chunk is written.
    pub release: u32,
    pub part: ChunkObjectEncoding,
}

/// The form in which a chunk's objects are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChunkObjectEncoding {
    /// Items of a list.
    Items,
    /// ADDED events.
    Added,
    /// A compressed piece of a list's items. It may refer to the preceding chunk, whose name is `behind`; `None` at the
    /// beginning of the list.
    Deflated { behind: Option<u128>, piece: usize },
    /// A compressed part of a piece of ADDED events. It may refer to the part of the previous chunk or of the same
    /// chunk that the watch was sent right before it: the name of that chunk and the CRC-32 of the part.
    DeflatedAdded { piece: usize, part: usize, behind: Option<(u128, u32)> },
}

impl EncodedChunkKey {
    /// Returns the key of a part of [`DeflatedAdded`](ChunkObjectEncoding::DeflatedAdded), for watches that were sent
    /// `behind` before.
    #[must_use]
    pub fn of_part(self, index: usize, behind: Option<(u128, u32)>) -> Self {
        let part = match self.part {
            ChunkObjectEncoding::DeflatedAdded { piece, .. } => {
                ChunkObjectEncoding::DeflatedAdded { piece, part: index, behind }
            }
            other => other,
        };
        Self { part, ..self }
    }
}

/// A task that makes a cached value. Dropping it wakes all waiting tasks, even if it failed.
struct SingleFlightLeader<'a, K: Copy + Eq + Hash, T> {
    flight: &'a SingleFlightCache<K, T>,
    key: K,
    ticket: u64,
}

impl<K: Copy + Eq + Hash, T: Clone> SingleFlightCache<K, T> {
    pub(super) fn new(bytes_max: usize, age_max: Option<Duration>) -> Self {
        Self { bytes_max, age_max, table: Mutex::default() }
    }

    /// Returns the value of `key`, if it is cached.
    pub(super) fn get(&self, key: K) -> Option<T> {
        match self.table.lock().slots.get_mut(&key) {
            Some(SingleFlightSlot::Made { value, last_used, .. }) => {
                *last_used = Instant::now();
                Some(value.clone())
            }
            _ => None,
        }
    }

    /// Returns the value of `key`. If there is none, `make` returns it with its size. While another task makes it,
    /// the result is pending and the task is woken later.
    pub(super) fn poll_get_or_make<E>(
        &self,
        key: K,
        cx: &Context<'_>,
        make: impl FnOnce() -> Result<(T, usize), E>,
    ) -> Poll<Result<T, E>> {
        let now = Instant::now();
        let leader = {
            let mut table = self.table.lock();
            match table.slots.get_mut(&key) {
                Some(SingleFlightSlot::Made { value, last_used, .. }) => {
                    *last_used = now;
                    return Poll::Ready(Ok(value.clone()));
                }
                Some(SingleFlightSlot::Making { waiting, .. }) => {
                    waiting.push(cx.waker().clone());
                    return Poll::Pending;
                }
                None => {}
            }
            table.tickets += 1;
            let ticket = table.tickets;
            table.slots.insert(key, SingleFlightSlot::Making { ticket, waiting: Vec::new() });
            SingleFlightLeader { flight: self, key, ticket }
        };
        Poll::Ready(make().map(|(value, bytes)| {
            leader.put(value.clone(), bytes, now);
            value
        }))
    }

    /// Drops all cached values, including those that are being made.
    pub(super) fn clear(&self) {
        let dropped = {
            let mut table = self.table.lock();
            let tickets = table.tickets;
            std::mem::replace(&mut *table, SingleFlightTable { tickets, ..SingleFlightTable::default() })
        };
        dropped.slots.into_values().for_each(SingleFlightSlot::wake);
    }

    /// Drops cached values that have not been used for too long.
    pub(super) fn expire(&self, now: Instant) {
        let Some(oldest) = self.age_max.and_then(|age| now.checked_sub(age)) else { return };
        let mut table = self.table.lock();
        while table.order.front().is_some_and(|(_, last_used)| *last_used < oldest) {
            table.drop_oldest(Some(oldest));
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.lock().bytes
    }

    /// Returns the number of cached values.
    fn len(&self) -> usize {
        self.table.lock().order.len()
    }
}

impl<K: Copy + Eq + Hash, T: Clone> LruEviction for SingleFlightCache<K, T> {
    fn oldest(&self) -> Option<Instant> {
        self.table.lock().order.front().map(|(_, since)| *since)
    }

    fn drop_oldest(&self) {
        self.table.lock().drop_oldest(None);
    }
}

impl<K, T> Default for SingleFlightTable<K, T> {
    fn default() -> Self {
        Self { slots: HashMap::new(), order: VecDeque::new(), bytes: 0, tickets: 0 }
    }
}

impl<K: Copy + Eq + Hash, T> SingleFlightTable<K, T> {
    /// Drops the first entry of the queue. If it was used since, and not before `oldest`, it moves to the end instead.
    fn drop_oldest(&mut self, oldest: Option<Instant>) {
        let Some((key, since)) = self.order.pop_front() else { return };
        match self.slots.get(&key) {
            Some(SingleFlightSlot::Made { last_used, .. })
                if *last_used > since && oldest.is_none_or(|oldest| *last_used >= oldest) =>
            {
                self.order.push_back((key, *last_used));
            }
            Some(SingleFlightSlot::Made { bytes, .. }) => {
                self.bytes -= bytes;
                self.slots.remove(&key);
            }
            _ => {}
        }
    }
}

impl<T> SingleFlightSlot<T> {
    fn wake(self) {
        if let Self::Making { waiting, .. } = self {
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

impl<K: Copy + Eq + Hash, T> SingleFlightLeader<'_, K, T> {
    fn put(&self, value: T, bytes: usize, now: Instant) {
        let mut table = self.flight.table.lock();
        if !self.has_slot(&table) || bytes > self.flight.bytes_max {
            return;
        }
        let slot = table.slots.insert(self.key, SingleFlightSlot::Made { value, bytes, last_used: now });
        table.order.push_back((self.key, now));
        table.bytes += bytes;
        while table.bytes > self.flight.bytes_max {
            table.drop_oldest(None);
        }
        drop(table);
        slot.into_iter().for_each(SingleFlightSlot::wake);
    }

    fn has_slot(&self, table: &SingleFlightTable<K, T>) -> bool {
        matches!(table.slots.get(&self.key), Some(SingleFlightSlot::Making { ticket, .. }) if *ticket == self.ticket)
    }
}

impl<K: Copy + Eq + Hash, T> Drop for SingleFlightLeader<'_, K, T> {
    fn drop(&mut self) {
        let mut table = self.flight.table.lock();
        let slot = if self.has_slot(&table) { table.slots.remove(&self.key) } else { None };
        drop(table);
        slot.into_iter().for_each(SingleFlightSlot::wake);
    }
}

#[cfg(test)]
mod tests;
