//! Verification: checks whether a server keeps the promises of an apiserver, judged by what its clients received.
//!
//! ```text
//! client, writing (by seed)  ─► Record, 1 per line ─► History (received data ─► a judge ─► RunVerdict ─► page
//! learning (etcd, apiserver) ─►                        with the truth)          per Promise
//! faults (commands)          ─►
//! ```
//!
//! Clients record their requests and the responses. The truth is learnt independently of the judged server. The judges
//! are pure functions that open no connection, so a stored history can be judged again.
//!
//! Invariant: nothing here imports the code that it judges. Selectors, paths and continue tokens have their own
//! parsers.

#![cfg_attr(
    not(test),
    warn(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types, unreachable_pub)
)]

mod ask;
mod client;
mod clientele;
mod decode;
mod digest;
mod faults;
mod follow;
mod frames_once;
mod history;
mod hops;
mod html;
mod judges;
mod learning;
mod links;
mod names;
mod operation;
mod order;
mod preparing;
mod promise;
mod protobuf;
mod rates;
mod reading;
mod record;
mod recorder;
mod refused_requests;
mod report;
mod say;
mod scene;
mod selection;
mod session;
mod timeline;
mod timeline_page;
mod truth;
mod verdict;
mod view;
mod violation;
mod world;
mod writing;

#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

pub use clientele::{Clientele, ClienteleOrder};
pub use digest::Digest;
pub use history::{History, ReadError};
pub use hops::Hops;
pub use learning::LearnError;
pub use order::{AlsoOrder, EtcdOrder, VerifyOrder};
pub use promise::Promise;
pub use rates::Counts;
pub use record::{
    AskedRecord, AskedServer, CallRecord, CompactedRecord, EndRecord, Ending, EventKind, EventRecord, FaultRecord,
    KnownRecord, Op, ReadVerb, Record, RecordedEncoding, RecordedItem, RecordedStatus, ReturnRecord, RunRecord,
    Transport, TruthRecord, TruthSource, WindowRecord, WriteVerb, WrittenRecord,
};
pub use recorder::RecordCounts;
pub use refused_requests::RefusedRequests;
pub use report::page;
pub use session::{Recorded, run};
pub use verdict::{Outcome, Requirements, RunVerdict, excerpt};
pub use violation::{Judged, Violation};
pub use world::VerifiedResource;

use probe::TargetError;

/// Why there is nothing to judge.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Server(#[from] TargetError),
    #[error("{0}")]
    Prepare(String),
    #[error("cannot follow the true history: {0}")]
    Truth(#[from] LearnError),
    #[error("{path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}
