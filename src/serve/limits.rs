//! Limits on what callers occupy: requests and watches in flight, the bytes of their responses, and the time that clients
//! take to read them.

mod body_error;
mod bounded_body;
mod concurrency;
mod slow_readers;
mod state_pin;

pub use concurrency::ConcurrencyConfig;
pub use slow_readers::SlowReaderLimits;

pub(crate) use body_error::BodyError;
pub(crate) use bounded_body::{BoundedBody, CompleteBody, ListEncoding, PIECE_BYTES_MAX, StreamedList, TOO_SLOW};
pub(crate) use concurrency::{ConcurrencyLimits, ConcurrencyPermit};
pub(crate) use slow_readers::{FiredTimer, SlowReaderReaper, Watchdog};
pub(crate) use state_pin::StatePin;
