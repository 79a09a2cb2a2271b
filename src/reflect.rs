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

mod body_encoder_tracker;
mod body_encoding_refresher;
mod continuity;
mod delta_bases;
mod failure;
mod feed_client;
mod gap;
mod gap_recovery;
mod history_backfiller;
mod history_check;
mod initial_state;
mod metrics;
mod prover;
mod reflector;
mod reflector_findings;
mod representation_verifier;
mod self_check;
mod stream;
mod supervisor;
#[cfg(test)]
mod tests;
mod transaction_buffer;
mod unproven_versions;

pub use metrics::describe;
pub use supervisor::ReflectorSupervisor;

use std::time::Duration;

use base::BackoffBounds;

/// Limits and intervals of the reflectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReflectConfig {
    /// The time without readers after which a feed is stopped.
    pub idle_max: Duration,
    /// The delays between attempts to reach upstream.
    pub retry: BackoffBounds,
    /// The interval at which a changing feed with readers is compared with upstream; `None` disables the comparison.
    pub self_check: Option<Duration>,
}

impl Default for ReflectConfig {
    fn default() -> Self {
        let minute = Duration::from_secs(60);
        Self { idle_max: 10 * minute, retry: BackoffBounds::default(), self_check: Some(30 * minute) }
    }
}
