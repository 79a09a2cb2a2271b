//! Limits on what callers occupy: requests and watches in flight, the bytes of their responses, and the time that
//! clients take to read them.

mod concurrency;
mod deadline_body;
mod slow_readers;

pub use concurrency::ConcurrencyConfig;
pub use slow_readers::SlowReaderLimits;

pub(crate) use concurrency::{ConcurrencyLimits, ConcurrencyPermit, PermitPool};
pub(crate) use deadline_body::{BufferedResponseBody, DeadlineBody, PIECE_BYTES_MAX};
pub(crate) use slow_readers::{FiredWatchTimer, SlowReaderReaper, TOO_SLOW, TimedSnapshotPin, WatchDeadlineTimer};

/// The reason why a body ended early.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
