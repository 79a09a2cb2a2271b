//! Reads from the cache: finds a feed, waits until it is as fresh as the request requires, and answers GET and LIST.
//!
//! ```text
//! ReadRequest ─► FeedResolver (source, wait_ready) ─► FeedSnapshot ─► ReadHandler::get | ReadHandler::list ─► response
//! ```

mod discovery_cache;
mod reader;
mod request;
mod sources;
mod timed_response;

pub use sources::spec;

pub(crate) use discovery_cache::DiscoveryCache;
pub(crate) use reader::{FREE_BYTES_MAX, ReadHandler, ScanScheduler, too_expensive};
pub(crate) use request::{CacheReadResult, NotServable, ReadRequest, has_visible_part};
pub(crate) use sources::{FeedRequirements, FeedResolver, FeedWithRenderer, ReadKind};
pub(crate) use timed_response::TimedResponse;
