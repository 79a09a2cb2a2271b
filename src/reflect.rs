//! Keeps feeds in step with upstream: one reflector per feed, started on demand, stopped when idle.
//!
//! ```text
//!   Empty ──initial list──► Watching ──broken──► Listed (resume from its RV) ──► Watching
//!     ▲                        │ 410                │ 410
//!     └─ history not mended ── Expired (one list; a second one in a row with its watch) ◄─┘
//! ```
//!
//! **Invariants.** A state owns what is valid only in it. A list is staged and swapped in whole. A frame that does not
//! decode is never applied. Nothing here knows of clients: a slow client is held back elsewhere, where it does not
//! pull.

mod body_writers;
mod catch_up;
mod continuity;
mod failure;
mod gap;
mod history_backfiller;
mod history_check;
mod initial_state;
mod mend;
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
mod versions;

pub use metrics::describe;
pub use reflect_config::ReflectConfig;
pub use supervisor::Supervisor;
