//! A page of a collection: which objects somebody gets to see, in which order, and as which bytes.
//!
//! ```text
//! Snapshot ─► page (whole chunks, or objects looked at one by one in turns) ─► PageChunks ─► ChunkWriter ─► ListBody
//!                                                                              made once, shared ─► GzipList
//! ```
//!
//! **Invariants.** An object that may not be shown is compared with nothing. A body holds only the piece that it is at.
//! Work on many objects is done in turns ([`Scans`]) or slices ([`Slices`]), and nobody waits for a turn in a poll.
//!
//! **Sharing.** A LIST, and the state that a watch begins with, are made of whole chunks; pages begin and end within
//! one. Whoever needs a chunk's bytes first makes them, in one go of about a millisecond; others wait for that, and
//! everybody sends the same memory. So a storm of equal lists costs one writing, one compression and one derivation.
//!
//! - The chunks of a state are cut when it is first listed. That hashes each key, a tenth of a microsecond an object.
//!   The next state finds the bytes of unchanged chunks by their names.
//! - Copies of bodies as they came are kept for ten seconds after they were last read, as long as a storm lasts. A body
//!   of 32 KiB or more is not copied but sent from where it is.
//! - Bytes that cost more than a copy, derived or compressed, are kept up to 64 MiB of a kind and feed, whatever their
//!   age.
//! - Chunks that are short because their namespaces are go together into a batch, which is compressed in pieces of at
//!   most 160 KiB. Each piece may refer to the 32 KiB before it, so it is known by its batch and the batch before, and
//!   a changed object costs two or three pieces. A piece that gains less than an eighteenth is stored.
//! - Selections by labels or fields have too little in common: they are copied for each reader, in chunks of their own.

mod chunk_writer;
pub(crate) mod cost;
pub(crate) mod gzip;
mod joined;
mod list_body;
mod list_read;
pub(crate) mod look;
pub(crate) mod page;
mod page_chunks;
mod scan_pace;
pub(crate) mod scans;
mod shed;
mod slices;

pub(crate) use chunk_writer::ChunkWriter;
pub(crate) use gzip::GzipList;
pub(crate) use list_body::ListBody;
pub(crate) use list_read::ListRead;
pub(crate) use page_chunks::PageChunks;
pub(crate) use scan_pace::{Looks, Rest, ScanPace};
pub(crate) use scans::Scans;
pub(crate) use shed::Shed;
#[cfg(test)]
pub(crate) use slices::Slice;
pub(crate) use slices::Slices;
