//! The HTTP side of the proxy: routes requests, answers them from the cache or forwards them, and runs watch streams.
//!
//! ```text
//! request ─► frontend ─► route (pure) ─► forward  to upstream, with the caller's bytes and a reason
//!                                     ├► response (Status)
//!                                     ├► read     feed ready? fresh enough? ─► snapshot ─► body
//!                                     └► watch    the same, then a cursor ─► session ─► body or WebSocket
//!            peers: health and reviews for proxies below   audit · activity · limits: beside every request
//! ```
//!
//! **Invariants.**
//!
//! - A request that this module does not understand is forwarded; its meaning is never guessed.
//! - Every reason to forward is a variant of an enum and a metric label.
//! - A stream advances only when its client has room.
//! - Status codes are chosen in this module, never in the modules below it.

mod activity;
mod audit;
mod forward;
mod frontend;
mod limits;
mod peers;
mod read;
mod response;
mod route;
mod serve_components;
mod serve_config;
mod watch;

#[cfg(test)]
mod tests;

pub use activity::ActiveWatches;
pub use activity::metrics::describe;
pub use audit::{AuditDestination, AuditLog, AuditWriter, source_ips, without_tokens};
pub use frontend::{HttpFrontend, PageAuthorizer};
pub use limits::{ConcurrencyConfig, SlowReaderLimits};
pub use read::spec as feed_spec;
pub use response::ResponseBody;
pub use route::{CacheCoverage, NotCoveredReason, SensitiveKind};
pub use serve_config::{ReadConsistency, ReducedReads, ServeConfig, WatchCompression};
pub use watch::websocket;

pub(crate) use limits::{ConcurrencyLimits, SlowReaderReaper};
pub(crate) use serve_components::ServeComponents;
