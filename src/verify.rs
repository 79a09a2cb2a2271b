//! Verification: whether a server keeps the promises of an apiserver, judged by what its clients got.
//!
//! Clients write down what they asked and got ([`Record`]), the truth is learnt beside the server, and pure functions
//! judge: no judge opens a connection, and a history that was kept can be judged again.
//!
//! Invariant: nothing here imports what it judges. Selectors, paths and continue tokens are read by code of its own.

mod digest;
mod promise;
mod record;

pub use digest::Digest;
pub use promise::Promise;
pub use record::{
    AskedRecord, AskedServer, CallRecord, CompactedRecord, EndRecord, Ending, EventKind, EventRecord, FaultRecord,
    KnownRecord, Op, ReadVerb, Record, RecordedEncoding, RecordedItem, RecordedStatus, ReturnRecord, RunRecord,
    Transport, TruthRecord, TruthSource, WindowRecord, WriteVerb, WrittenRecord,
};
