use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::budget::{Budget, LeastUsed};
use super::chunk_format::ChunkFormat;
use super::single_flight::SingleFlight;
use base::Account;

/// The bytes that chunks of one feed were written as. They are made once for all clients, and bounded.
#[derive(Debug)]
pub struct ChunkCache {
    /// Bodies as they came, joined. The store has the same bytes, so copies are kept only for the length of a storm.
    copies: SingleFlight<PlainChunk>,
    derived: SingleFlight<PlainChunk>,
    deflated: SingleFlight<DeflatedChunk>,
    budget: Arc<Budget>,
    account: Arc<Account>,
}

/// The bytes of a chunk's items or frames. Large bodies are slices of the store's own.
pub type PlainChunk = Arc<[Bytes]>;

/// A compressed piece of the items of some chunks.
#[derive(Debug, Clone)]
pub struct DeflatedChunk {
    /// DEFLATE (RFC 1951), flushed to a byte boundary and without a final block. `None` if compression would gain
    /// nothing: the piece is sent as it is.
    pub bytes: Option<Bytes>,
    /// CRC-32 and length of the plain piece.
    pub crc: u32,
    pub len: u64,
    /// Whether this is the last piece of these chunks.
    pub is_last: bool,
}

/// What one feed may keep of each kind: some four thousand pods in JSON.
const BYTES_MAX: usize = 64 << 20;
/// What it costs to remember a compressed piece, or that one is not worth compressing.
const DEFLATED_BYTES: usize = 256;
/// How long a copy is kept that nobody reads.
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

    /// The account for what is kept. The maker charges it, for it knows which bytes are the store's own.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// A chunk in `format`, made with `make` if nobody has it. `verbatim` says that the format is the one that the feed
    /// came in.
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

    /// A compressed piece, if somebody has made it.
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

    /// Makes room if what was made does not fit beside the rest.
    fn trimmed<T>(&self, made: T) -> T {
        self.budget.trim_derived();
        made
    }

    pub(super) fn least_used(&self) -> [&dyn LeastUsed; 3] {
        [&self.copies, &self.derived, &self.deflated]
    }

    /// Drops everything that was derived: it was wrong, or written for another release.
    pub(super) fn forget_derived(&self) {
        self.derived.clear();
        self.deflated.clear();
    }

    /// Drops everything.
    pub(super) fn clear(&self) {
        self.copies.clear();
        self.forget_derived();
    }

    /// Drops what is too old.
    pub(super) fn expire(&self, now: Instant) {
        self.copies.expire(now);
    }

    pub(super) fn bytes(&self) -> usize {
        self.copies.bytes() + self.derived.bytes() + self.deflated.bytes()
    }
}
