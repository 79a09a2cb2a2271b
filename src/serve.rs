//! The front door: what a request wants, who answers it, and the streams that answer it.
//!
//! ```text
//! request ─► route (pure) ─► Forward(reason) ─► upstream, with the caller's bytes
//!                         ├► Refuse(Status)
//!                         └► Get | List | Watch ─► feed ready? fresh enough? ─► snapshot or cursor ─► body
//! ```
//!
//! **Invariants.** What is not understood is passed through, never guessed. Every reason to pass through is a variant
//! and a metric label. A stream is pulled by its client's room and by nothing else. Status codes are decided here and
//! nowhere below.

mod admission;
mod audit;
mod body;
mod body_error;
mod bounded_body;
mod chunk_writer;
mod coalesce;
mod cost;
mod coverage;
mod feed;
mod forward;
mod frontend;
mod gzip;
mod hold;
mod joined;
mod list;
mod look;
mod metrics;
mod object;
mod overdue;
mod page_chunks;
mod read;
mod readable;
mod response_context;
mod route;
mod scan_pace;
mod scans;
mod session;
mod slices;
mod table;
mod watch;
mod watch_end;
mod websocket;

pub use admission::AdmissionLimits;
pub use audit::{Audit, AuditWriter, Destination as AuditDestination};
pub use body::ReplyBody;
pub use coverage::{Coverage, Sensitive, Uncovered};
pub use feed::spec as feed_spec;
pub use frontend::{Consistency, Frontend, Parts, ServeConfig};
pub use metrics::describe;
pub use overdue::Unread;
