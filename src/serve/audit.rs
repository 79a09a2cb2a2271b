//! Audit records of the requests that the proxy answers. The apiserver does not see these reads, so the proxy writes
//! the records in the apiserver's format: `audit.k8s.io/v1` events at level Metadata, one JSON object per line
//! (R-THREAT-15).
//!
//! ```text
//! request ─► AuditRecord ─► response ─► AuditRecord::record_response ─► queue, bounded ─► AuditWriter ─► file
//!                                       watch: also a second record when the AuditRecord is dropped
//! ```
//!
//! **Invariants.**
//!
//! - A record is queued before the first byte of its response is sent.
//! - No request waits for the disk. If the queue is full, the record is dropped and counted; a read of Secrets is
//!   refused instead.
//! - No record contains a credential or the content of an object.

mod queue;
mod record;
#[cfg(test)]
mod tests;

pub use queue::{AuditDestination, AuditLog, AuditWriter};
pub use record::{source_ips, without_tokens};

pub(crate) use record::{AuditDecision, AuditRecord, ServedLocally};
