//! The HTTP side: what a request asks for, who answers it, and the streams that answer it.
//!
//! ```text
//! request ─► route (pure) ─► Forward(reason) ─► upstream, with the caller's bytes
//!                         ├► Refuse(Status)
//!                         └► Get | List | Watch ─► feed ready? fresh enough? ─► snapshot or cursor ─► body
//! ```
//!
//! **Invariants.** A request that is not understood is passed through; its meaning is never guessed. Every reason to
//! pass through is a variant and a metric label. A stream is pulled by its client's room and by nothing else. Status
//! codes are decided here and nowhere below.

mod active_watches;
mod answered;
mod audit;
mod body;
mod body_error;
mod bounded_body;
mod coalesce;
mod concurrency;
mod coverage;
mod documents;
mod event_chunks;
mod first_rows;
mod forwarding;
mod frontend;
mod hold;
mod metrics;
mod object_answers;
mod read_request;
mod readable;
mod reader;
mod refusals;
mod remembered;
mod response_context;
mod returning;
mod reviews;
mod route;
mod scrapes;
mod serve_config;
mod session;
mod slow_readers;
mod sources;
mod statuses;
mod timer_queue;
mod watch;
mod watch_end;
mod watch_transport;
pub mod websocket;

#[cfg(test)]
mod tests;

pub use active_watches::ActiveWatches;
pub use audit::{Audit, AuditWriter, Destination as AuditDestination, source_ips, without_tokens};
pub use body::ReplyBody;
pub use concurrency::ConcurrencyConfig;
pub use coverage::{Coverage, OutsideCoverage, Sensitive};
pub use frontend::{Frontend, Parts};
pub use metrics::describe;
pub use scrapes::ScrapeAuthorizer;
pub use serve_config::{Consistency, ServeConfig};
pub use slow_readers::Unread;
pub use sources::spec as feed_spec;
