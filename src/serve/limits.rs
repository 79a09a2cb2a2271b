//! Limits on what callers occupy: requests and watches in flight, the bytes of their responses, and the time that clients
//! take to read them.

mod body_error;
mod bounded_body;
mod concurrency;
mod slow_readers;
mod state_pin;

pub use concurrency::ConcurrencyConfig;
pub use slow_readers::Unread;

pub(crate) use body_error::BodyError;
pub(crate) use bounded_body::{BoundedBody, List, ListEncoding, PIECE_BYTES_MAX, TOO_SLOW, Whole};
pub(crate) use concurrency::{ConcurrencyLimits, ConcurrencyPermit};
pub(crate) use slow_readers::{Fired, SlowReaderReaper, Watchdog};
pub(crate) use state_pin::StatePin;
