use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::budget::{Budget, LruEviction};
use super::chunk_format::ChunkFormat;
use super::single_flight::SingleFlight;
use base::Account;

/// The cache of the encoded bytes of one feed's chunks. They are encoded once for all clients, and bounded.
#[derive(Debug)]
pub struct ChunkCache {
    /// The joined bodies in upstream's encoding. The store has the same bytes, so copies are kept only for the duration
    /// of a burst of lists.
    copies: SingleFlight<PlainChunk>,
    derived: SingleFlight<PlainChunk>,
    deflated: SingleFlight<DeflatedChunk>,
    budget: Arc<Budget>,
    account: Arc<Account>,
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
    pub len: u64,
    /// Whether the piece is the last one of its chunks.
    pub is_last: bool,
}

/// The limit of each kind per feed, in bytes: about four thousand pods in JSON.
const BYTES_MAX: usize = 64 << 20;
/// The number of bytes charged for the record of a compressed piece, or of a piece that is not worth compressing.
const DEFLATED_BYTES: usize = 256;
/// The time after which an unread copy is dropped.
const COPIES_AGE_MAX: Duration = Duration::from_secs(10);

impl ChunkCache {
    pub(super) fn new(budget: Arc<Budget>, account: Arc<Account>) -> Self {
        Self {
            copies: SingleFlight::new(BYTES_MAX, Some(COPIES_AGE_MAX)),
            derived: SingleFlight::new(BYTES_MAX, None),
            deflated: SingleFlight::new(BYTES_MAX, None),
            budget,
            account,
        }
    }

    /// Returns the account for cached bytes. The encoder charges it, because it knows which bytes are the store's own.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Returns a chunk in `format`, encoded with `make` if it is not cached. `verbatim` states that the format is
    /// upstream's encoding.
    pub fn poll_plain<E>(
        &self,
        format: ChunkFormat,
        verbatim: bool,
        cx: &Context<'_>,
        make: impl FnOnce() -> Result<(PlainChunk, usize), E>,
    ) -> Poll<Result<PlainChunk, E>> {
        let flight = if verbatim { &self.copies } else { &self.derived };
        self.trimmed(flight.poll_get_or_make(format, cx, make))
    }

    /// Returns a compressed piece of a list, if it is cached.
    pub fn deflated(&self, format: ChunkFormat) -> Option<DeflatedChunk> {
        self.deflated.get(format)
    }

    pub fn poll_deflated<E>(
        &self,
        format: ChunkFormat,
        cx: &Context<'_>,
        make: impl FnOnce() -> Result<DeflatedChunk, E>,
    ) -> Poll<Result<DeflatedChunk, E>> {
        let make = || {
            let made = make()?;
            let made = DeflatedChunk { bytes: made.bytes.map(|bytes| self.account.keep(bytes)), ..made };
            let bytes = made.bytes.as_ref().map_or(0, Bytes::len) + DEFLATED_BYTES;
            Ok((made, bytes))
        };
        self.trimmed(self.deflated.poll_get_or_make(format, cx, make))
    }

    /// Frees memory if a new entry does not fit beside the rest.
    fn trimmed<T>(&self, made: T) -> T {
        self.budget.trim_derived();
        made
    }

    pub(super) fn least_used(&self) -> [&dyn LruEviction; 3] {
        [&self.copies, &self.derived, &self.deflated]
    }

    /// Drops all derived bytes, because they were wrong or written for another release.
    pub(super) fn forget_derived(&self) {
        self.derived.clear();
        self.deflated.clear();
    }

    /// Drops all cached chunks.
    pub(super) fn clear(&self) {
        self.copies.clear();
        self.forget_derived();
    }

    /// Drops cached chunks that have expired.
    pub(super) fn expire(&self, now: Instant) {
        self.copies.expire(now);
    }

    pub(super) fn bytes(&self) -> usize {
        self.copies.bytes() + self.derived.bytes() + self.deflated.bytes()
    }
}
