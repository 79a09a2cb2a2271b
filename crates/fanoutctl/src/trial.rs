//! A trial on one machine: finds lost events while the control plane and the proxy are killed and restarted. Both run
//! as processes. Informers record the events that they receive.
//!
//! ```text
//! TrialWriters ─► control plane ─► proxy ─► InformerFleet ─► InformerStore
//!      └──► WriteLedger ◄────────────── compared with ──────────────┘
//! ```
//!
//! **Invariant:** lost events are found by resourceVersion and by the responses to the writers, never by what the proxy
//! reports.

mod control_plane;
mod informer_fleet;
mod informer_store;
mod keys;
mod ledger;
mod process;
mod proxy;
mod script;
#[cfg(test)]
mod tests;
mod wait;
mod writers;

pub use control_plane::{ControlPlane, TestbedSource, find_testbed};
pub use informer_fleet::{InformerFleet, InformerFleetCounts};
pub use keys::PressedKeys;
pub use proxy::{ProxyProcess, TrialProxyOptions};
pub use script::{TrialAction, TrialScript};
pub use wait::until;
pub use writers::{PODS_PATH, TrialWriters};

pub use probe::TargetCredentials;

/// The reason that a trial could not run, or has no verdict.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TrialError(String);

impl TrialError {
    pub fn of(what: &str, why: impl std::fmt::Display) -> Self {
        Self(format!("{what}: {why}"))
    }
}
