//! Keeps feeds in sync with upstream. Each feed has one reflector, which starts on demand and stops when the feed is
//! idle.
//!
//! ```text
//!   Empty ──initial list──► Watching ──broken──► Listed (resume from its RV) ──► Watching
//!     ▲                        │ 410                │ 410
//!     └─ history not mended ── Expired (one list; a second one in a row with its watch) ◄─┘
//! ```
//!
//! **Invariants.** A state owns only data that is valid in that state. A list is staged and replaces the old objects at
//! once. A frame that fails to decode is never applied. This module knows nothing about clients: backpressure for slow
//! clients happens elsewhere, where they stop reading.

mod body_writers;
mod catch_up;
mod continuity;
mod failure;
mod gap;
mod gap_recovery;
mod history_backfiller;
mod history_check;
mod initial_state;
mod metrics;
mod positions;
mod prover;
mod qualify;
mod reflect_config;
mod reflector;
mod reflector_findings;
mod renew;
mod self_check;
mod session;
mod stream;
mod supervisor;
#[cfg(test)]
mod tests;
mod transactions;
mod versions;

pub use metrics::describe;
pub use reflect_config::ReflectConfig;
pub use supervisor::Supervisor;
