use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::budget::{Budget, LeastUsed};
use super::chunk_format::ChunkFormat;
use super::single_flight::SingleFlight;
use crate::base::Account;

/// What chunks of one feed's objects have been written as, so that it is made once and not for every client. Bounded.
#[derive(Debug)]
pub struct ChunkCache {
    /// Bodies as they came, joined. The store has the same bytes, so these are kept while a storm lasts.
    copies: SingleFlight<PlainChunk>,
    derived: SingleFlight<PlainChunk>,
    deflated: SingleFlight<DeflatedChunk>,
    budget: Arc<Budget>,
    account: Arc<Account>,
}

/// A chunk's items or frames. Large bodies are slices of the store's own.
pub type PlainChunk = Arc<[Bytes]>;

/// A piece of some chunks' items, compressed.
#[derive(Debug, Clone)]
pub struct DeflatedChunk {
    /// DEFLATE (RFC 1951), flushed to a byte boundary and without a final block. `None` if that would gain nothing: the
    /// piece is sent as it is.
    pub bytes: Option<Bytes>,
    /// CRC-32 and length of what it stands for.
    pub crc: u32,
    pub len: u64,
    /// No piece of these chunks is behind it.
    pub is_last: bool,
}

/// What one feed may keep of each kind: some four thousand pods in JSON.
const BYTES_MAX: usize = 64 << 20;
/// What it takes to know a piece that is compressed, or is not to be.
const DEFLATED_BYTES: usize = 256;
/// How long copies are kept that nobody reads.
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

    /// Where what is made is charged: the makers see to it, who know which bytes are the store's own.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// The chunk in an encoding, as a feed has it that came in `verbatim`; made if nobody has it.
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

    /// A piece, if somebody has compressed it.
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

    /// What was made may not fit beside the rest.
    fn trimmed<T>(&self, made: T) -> T {
        self.budget.trim_derived();
        made
    }

    pub(super) fn least_used(&self) -> [&dyn LeastUsed; 3] {
        [&self.copies, &self.derived, &self.deflated]
    }

    /// Lets what was derived go: it was wrong, or written for another release.
    pub(super) fn forget_derived(&self) {
        self.derived.clear();
        self.deflated.clear();
    }

    /// Lets everything go.
    pub(super) fn clear(&self) {
        self.copies.clear();
        self.forget_derived();
    }

    /// Lets what is too old go.
    pub(super) fn expire(&self, now: Instant) {
        self.copies.expire(now);
    }

    pub(super) fn bytes(&self) -> usize {
        self.copies.bytes() + self.derived.bytes() + self.deflated.bytes()
    }
}
