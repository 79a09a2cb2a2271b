//! Records of the requests that are answered here. Upstream writes no record of a read that it never sees, so this
//! does, in upstream's own form: `audit.k8s.io/v1` events at level Metadata, a JSON object a line (R-SECRET-1).
//!
//! ```text
//! request ─► Record ─► answer ─► Record::answered ─► queue, bounded ─► Writer ─► file
//!                                  watch: begun … over, by its drop
//! ```
//!
//! **Invariants.** A record is queued before the first byte that it is about is sent. Nothing waits for a disk: a
//! record that does not fit into the queue is dropped and counted, but a read of Secrets that cannot be recorded is
//! refused. No record has a credential or an object's content.

mod event;
mod line;
mod queue;
mod record;
#[cfg(test)]
mod tests;
mod writer;

pub use queue::Audit;
pub use record::{source_ips, without_tokens};
pub use writer::{AuditWriter, Destination};

pub(super) use record::{AuditRecord, Decision, ServedLocally};
