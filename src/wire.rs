//! Layer 1, wire: conversion between bytes and values, without I/O.
//!
//! Everything that a feed carries is processed here twice. For input, a [`FrameSplitter`] splits a watch stream into
//! frames and an [`ObjectReader`] decodes frames and LIST pages into [`ObjectRevision`]s. For output, a
//! [`FrameEnvelope`] wraps the same bodies in watch frames, LIST and GET responses, and a [`BookmarkTemplate`] writes
//! bookmarks.
//!
//! The design depends on **body identity** (R-DERIVE-1). The bytes of one revision are the same in a LIST item, a GET
//! response and every watch event. Only a prefix and a suffix of at most ~100 bytes differ. So a body is held once, and
//! this layer never re-encodes an object:
//!
//! | encoding, shape | [`ObjectRevision::body`] | LIST item | watch object and GET |
//! |---|---|---|---|
//! | JSON, built-in | from `"metadata":` to the final `}` | `{` body | `{"kind":"K","apiVersion":"V",` body |
//! | JSON, custom | the whole object, keys sorted | body | body |
//! | Table | that of a Table of one row, without columns | | `{"kind":"Table","apiVersion":"meta.k8s.io/v1",` body |
//! | protobuf | the message | `12` length body | `k8s\0` Unknown{TypeMeta, body, "", ""} |
//!
//! **Invariants.** Input is untrusted: no input causes a panic, and a value is returned whole or not at all. This layer
//! refuses a serialization that it would not reproduce byte for byte ([`WireError::Layout`]), and never approximates
//! it. The caller forwards such a resource instead of caching it. No allocation is sized by a length that a peer merely
//! claims.
//!
//! `reflect` reads, `cache` holds [`ObjectRevision`]s and frames, and `serve` writes. This layer depends on none of
//! them.

mod age;
mod bookmark;
mod delta;
mod derive;
mod envelope;
mod error;
mod json_path;
mod json_reader;
mod list_frame;
mod managed_fields;
mod metrics;
mod object;
mod proto_reader;
mod reader;
mod renderer;
mod representation;
mod splitter;
mod table;
mod table_printer;
#[cfg(test)]
mod tests;
mod write_time;

pub use bookmark::BookmarkTemplate;
pub use delta::{DeltaFrame, delta, is_delta};
pub use derive::{
    MetadataRenderer, ProtobufJsonTranscoder, TranscodeError, TranscodeRefusal, is_builtin_group_version,
};
pub use envelope::{FrameEnvelope, websocket_payload};
pub use error::{DeltaError, WireError};
pub use list_frame::{ListFrame, ListItemLengths, ListMeta, same_items};
pub(crate) use managed_fields::without_managed_fields;
pub use metrics::describe;
pub use object::ObjectRevision;
pub use reader::{ListPage, ObjectReader, WatchItem};
pub use renderer::ObjectRenderer;
pub use representation::{FeedEncoding, IncludeObjectPolicy, JsonLayout, Representation, TABLE_ACCEPT};
pub use splitter::FrameSplitter;
pub use table::{TableColumns, TablePage, TablePageRow, same_rows, table_list};
pub use table_printer::{PrinterColumn, TablePrinter};
pub(crate) use write_time::last_write;
