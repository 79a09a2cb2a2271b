//! Verification: checks whether a server keeps the promises of an apiserver, judged by what its clients received.
//!
//! ```text
//! client, writer (by seed)         ─┐
//! truth_recorder (etcd, apiserver) ─┼► HistoryRecord, 1 per line ─► RunHistory ─► a judge per guarantee ─► RunVerdict
//! faults (commands)                ─┘
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

mod client;
mod client_fleet;
mod decode;
mod digest;
mod event_match;
mod event_text;
mod faults;
mod frame_decode_cache;
mod guarantee;
mod history;
mod html;
mod interner;
mod judges;
mod links;
mod object_set;
mod operation;
mod order;
mod parsed_request;
mod preparation;
mod protobuf;
mod rates;
mod reading;
mod record;
mod recorder;
mod refused_requests;
mod report;
mod run_context;
mod selection;
mod server_switch_stats;
mod timeline;
mod timeline_page;
mod truth;
mod truth_recorder;
mod verdict;
mod verify_run;
mod view;
mod violation;
mod writer;

#[cfg(test)]
mod tests;

use std::io;
use std::path::PathBuf;

pub use client_fleet::{ClientFleet, ClientFleetOptions};
pub use digest::ContentDigest;
pub use guarantee::ApiserverGuarantee;
pub use history::{HistoryReadError, RunHistory};
pub use object_set::VerifiedResource;
pub use order::{AdditionalServer, EtcdOptions, VerifyOptions};
pub use rates::RunCounts;
pub use record::{
    CallRecord, ClientTransport, CompactionRecord, EventRecord, FaultRecord, GroundTruthRangeRecord, GroundTruthRecord,
    GroundTruthSource, HistoryRecord, HistoryWindowRecord, OperationId, ReadVerb, RecordedEncoding, RecordedEventType,
    RecordedItem, RecordedStatus, RequestServerRole, ResponseRecord, RunRecord, UpstreamRequestRecord, WatchEndRecord,
    WatchEnding, WriteRecord, WriteVerb,
};
pub use recorder::RecordCounts;
pub use refused_requests::RefusedRequests;
pub use report::page;
pub use server_switch_stats::ServerSwitchStats;
pub use truth_recorder::GroundTruthError;
pub use verdict::{RunVerdict, VerdictRequirements, VerifyOutcome, excerpt};
pub use verify_run::{RecordedRun, run};
pub use violation::{GuaranteeVerdict, GuaranteeViolation};

use probe::TargetError;

/// The reason that no verdict is possible.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    #[error(transparent)]
    Server(#[from] TargetError),
    #[error("cannot prepare the run: {0}")]
    Prepare(String),
    #[error("cannot follow the true history: {0}")]
    Truth(#[from] GroundTruthError),
    #[error("cannot write {path}: {source}")]
    Write { path: PathBuf, source: io::Error },
}
