//! Verification: whether a server keeps the promises of an apiserver, judged by what its clients got.
//!
//! ```text
//! clients ─► Record, one a line ─► History (calls and events beside the truth) ─► a judge per Promise ─► Verdict
//! truth   ─►
//! ```
//!
//! Clients write down what they asked and got, the truth is learnt beside the server, and pure functions judge: no
//! judge opens a connection, and a history that was kept can be judged again.
//!
//! Invariant: nothing here imports what it judges. Selectors, paths and continue tokens are read by code of its own.

mod ask;
mod digest;
mod follow;
mod history;
mod judges;
mod names;
mod operation;
mod promise;
mod rates;
mod reading;
mod record;
mod say;
mod selection;
mod timeline;
mod truth;
mod verdict;
mod view;
mod violation;

#[cfg(test)]
mod tests;

pub use digest::Digest;
pub use history::{History, ReadError};
pub use promise::Promise;
pub use rates::Counts;
pub use record::{
    AskedRecord, AskedServer, CallRecord, CompactedRecord, EndRecord, Ending, EventKind, EventRecord, FaultRecord,
    KnownRecord, Op, ReadVerb, Record, RecordedEncoding, RecordedItem, RecordedStatus, ReturnRecord, RunRecord,
    Transport, TruthRecord, TruthSource, WindowRecord, WriteVerb, WrittenRecord,
};
pub use verdict::{Outcome, Requirements, RunVerdict, excerpt};
pub use violation::{Judged, Violation};
