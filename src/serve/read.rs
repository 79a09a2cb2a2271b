//! Reads from the cache: finds a feed, waits until it is as fresh as the request requires, and answers GET and LIST.
//!
//! ```text
//! ReadRequest ─► FeedSources (feed, synced, fresh) ─► Snapshot ─► ReadHandler::get | ReadHandler::list ─► response
//! ```

mod coalescing_cache;
mod discovery_cache;
mod object_responder;
mod reader;
mod request;
mod scans;
mod sources;

pub use sources::spec;

pub(crate) use coalescing_cache::{CoalescingCache, Fetched};
pub(crate) use discovery_cache::{DiscoveryCache, DocumentKey};
pub(crate) use object_responder::FREE_BYTES_MAX;
pub(crate) use reader::ReadHandler;
pub(crate) use request::{ReadRequest, ReadResult, UnauthenticatedRequest};
pub(crate) use scans::{ScanScheduler, too_expensive};
pub(crate) use sources::{FeedSource, FeedSources, NotServable};
