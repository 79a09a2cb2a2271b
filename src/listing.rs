//! Pages of a collection: the objects that a caller may see, their order, and their encoding.
//!
//! ```text
//! FeedSnapshot ─► page (whole chunks, or objects scanned in turns) ─► PlainList ─┬──────────► ListBody
//!                        ListChunkWriter: encoded once, shared                   └► GzipList ─┘
//! ```
//!
//! **Invariants.** Selectors are never evaluated on an object that the caller may not see. A list body holds only the
//! piece that is being sent. Scans of many objects run in turns (`ScanQueue`) or slices (`CallerCpuSlices`), and no
//! poll waits for a turn.

mod chunk_writer;
pub(crate) mod cost;
mod cpu_slices;
pub(crate) mod gzip;
mod list_body;
pub(crate) mod page;
mod scan_pacer;

pub(crate) use chunk_writer::ListChunkWriter;
pub(crate) use cpu_slices::CallerCpuSlices;
#[cfg(test)]
pub(crate) use cpu_slices::CpuSlice;
pub(crate) use gzip::GzipList;
pub(crate) use list_body::{ListBody, PLAIN_BYTES_MAX, PlainList};
pub(crate) use page::{ListPageRequest, PageChunks};
pub(crate) use scan_pacer::{LimitExceeded, ScanBudget, ScanPacer, ScanQueue, YieldPause};
