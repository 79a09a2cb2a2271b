//! Reads from the cache: finds a feed, waits until it is as fresh as the request requires, and answers GET and LIST.
//!
//! ```text
//! ReadRequest ─► FeedResolver (source, wait_ready) ─► FeedSnapshot ─► ReadHandler::get | ReadHandler::list ─► response
//! ```

mod discovery_cache;
mod reader;
mod request;
mod sources;

pub use sources::spec;

pub(crate) use discovery_cache::{DiscoveryCache, TimedResponse};
pub(crate) use reader::{FREE_BYTES_MAX, ReadHandler, ScanScheduler, too_expensive};
pub(crate) use request::{AuthorizedRead, CacheReadResult, NotServable, ReadRequest, has_visible_part};
pub(crate) use sources::{FeedRequirements, FeedResolver, FeedWithRenderer, ReadKind};
