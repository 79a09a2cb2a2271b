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
mod answer;
mod audit;
mod body;
mod coalesce;
mod cost;
mod coverage;
mod door;
mod feed;
mod forward;
mod gzip;
mod hold;
mod joined;
mod list;
mod look;
mod metrics;
mod object;
mod overdue;
mod pace;
mod read;
mod readable;
mod route;
mod scans;
mod scribe;
mod session;
mod slices;
mod stretches;
mod table;
mod underway;
mod watch;
mod websocket;

pub use admission::AdmissionLimits;
pub use audit::{Audit, AuditWriter, Destination as AuditDestination};
pub use body::ReplyBody;
pub use coverage::{Coverage, Sensitive, Uncovered};
pub use door::{Consistency, Frontend, Parts, ServeConfig};
pub use feed::spec as feed_spec;
pub use metrics::describe;
pub use overdue::Unread;
