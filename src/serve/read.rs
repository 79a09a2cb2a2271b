//! Reads from the cache: finds a feed, waits until it is as fresh as the request requires, and answers GET and LIST.
//!
//! ```text
//! ReadRequest ─► Sources (feed, synced, fresh) ─► Snapshot ─► Reader::get | Reader::list ─► response
//! ```

mod coalescing_cache;
mod discovery_cache;
mod object_answers;
mod reader;
mod request;
mod scans;
mod sources;

pub use sources::spec;

pub(crate) use coalescing_cache::{CoalescingCache, Fetched};
pub(crate) use discovery_cache::{DiscoveryCache, DocumentKey};
pub(crate) use object_answers::FREE_BYTES_MAX;
pub(crate) use reader::Reader;
pub(crate) use request::{NewRequest, ReadRequest, ReadResult};
pub(crate) use scans::{Scans, too_expensive};
pub(crate) use sources::{FeedSource, NotServable, Sources};
