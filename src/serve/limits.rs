//! Limits on what callers occupy: requests and watches in flight, the bytes of their responses, and the time that clients
//! take to read them.

mod bounded_body;
mod concurrency;
mod slow_readers;

pub use concurrency::ConcurrencyConfig;
pub use slow_readers::SlowReaderLimits;

pub(crate) use bounded_body::{BoundedBody, CompleteBody, PIECE_BYTES_MAX, StreamedList};
pub(crate) use concurrency::{ConcurrencyLimits, ConcurrencyPermit};
pub(crate) use slow_readers::{FiredTimer, SlowReaderReaper, StatePin, TOO_SLOW, Watchdog};

/// The reason why a body ended early.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
