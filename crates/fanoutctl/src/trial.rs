//! A trial on one machine: a control plane, a proxy in front of it, both as processes that can be killed, and informers
//! that keep what they are told, so that it can be said whether anything was lost.
//!
//! ```text
//! Writers ─► control plane ─► proxy ─► InformerCrowd ─► Seen ◄── judged by ── WriteLedger ◄─ Writers
//! ```
//!
//! **Invariant:** what is lost is judged by versions, and by what the writers were told: never by what the proxy says
//! of itself.

mod control_plane;
mod crowd;
mod keys;
mod ledger;
mod process;
mod proxy;
mod script;
mod seen;
#[cfg(test)]
mod tests;
mod wait;
mod writers;

pub use control_plane::{ControlPlane, FoundTestbed, find_testbed};
pub use crowd::{CrowdCounts, InformerCrowd};
pub use keys::PressedKeys;
pub use proxy::{ProxyOrder, ProxyProcess};
pub use script::{Deed, Script};
pub use wait::until;
pub use writers::{PODS_PATH, Writers};

pub use probe::TargetCredentials;

/// Why there is no trial, or no verdict.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TrialError(String);

impl TrialError {
    pub fn of(what: &str, why: impl std::fmt::Display) -> Self {
        Self(format!("{what}: {why}"))
    }
}
