//! The HTTP side of the proxy: routes requests, answers them from the cache or forwards them, and runs watch streams.
//!
//! ```text
//! request ─► route (pure) ─► Forward(reason) ─► upstream, with the caller's bytes
//!                         ├► Refuse(Status)
//!                         └► Get | List | Watch ─► feed ready? fresh enough? ─► snapshot or cursor ─► body
//! ```
//!
//! **Invariants.**
//!
//! - A request that this module does not understand is forwarded; its meaning is never guessed.
//! - Every reason to forward is a variant of an enum and a metric label.
//! - A stream advances only when its client has room.
//! - Status codes are chosen in this module, never in the modules below it.

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
