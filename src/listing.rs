//! A page of a collection: which objects somebody gets to see, in which order, and as which bytes.
//!
//! ```text
//! Snapshot ─► page (whole chunks, or objects looked at one by one in turns) ─► PageChunks ─► ChunkWriter ─► ListBody
//!                                                                              made once, shared ─► GzipList
//! ```
//!
//! **Invariants.** Of an object that may not be shown nothing is compared. A body holds the piece that it is at. What
//! looks at many objects does so in turns (`ScanQueue`) or slices (`CpuSlices`), and nobody waits for a turn in a poll.

mod chunk_writer;
pub(crate) mod cost;
mod cpu_slices;
pub(crate) mod gzip;
mod joined;
mod list_body;
mod list_read;
pub(crate) mod look;
mod over_limit;
pub(crate) mod page;
mod page_chunks;
mod scan_pace;
pub(crate) mod scan_queue;

pub(crate) use chunk_writer::ChunkWriter;
pub(crate) use cpu_slices::CpuSlices;
#[cfg(test)]
pub(crate) use cpu_slices::Slice;
pub(crate) use gzip::GzipList;
pub(crate) use list_body::ListBody;
pub(crate) use list_read::ListRead;
pub(crate) use over_limit::OverLimit;
pub(crate) use page_chunks::PageChunks;
pub(crate) use scan_pace::{Rest, ScanBudget, ScanPace};
pub(crate) use scan_queue::ScanQueue;
