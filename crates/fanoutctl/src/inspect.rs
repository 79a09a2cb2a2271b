//! Inspects running proxies: their status, their clients, their decisions, and whether the cache equals upstream.
//!
//! **Invariant:** these commands use only HTTP. If a proxy refuses a page, the output says so.

mod admin;
mod diff;
mod explain;
mod forwards;
mod metrics;
mod reasons;
mod resource;
mod rows;
mod server;
mod status;
mod table;
mod tail;
mod top;

pub use admin::ProxyTarget;
pub use diff::{DiffOptions, diff};
pub use explain::{ExplainOptions, explain};
pub use forwards::{PodPortForward, ProxyPodSelector, forward};
pub use server::ApiserverOptions;
pub use status::status;
pub(crate) use table::{bytes, grouped, lines, printable};
pub use tail::{TailOptions, tail};
pub use top::{TopOptions, TopOutput, top};

use serde_json::Value;

/// The result of a command, as text and as JSON.
#[derive(Debug, Clone)]
pub struct InspectReport {
    pub text: String,
    pub json: Value,
    /// Whether all proxies are healthy, or both sides are equal.
    pub is_well: bool,
    /// The reasons that some proxies are not in the result.
    pub failures: Vec<InspectError>,
}

/// The error of a `fanout` command: a message with the reason that there is no result.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct InspectError(String);

/// Returns whether standard output still has a reader, by the result of a write. A pipe that was closed, as by `head`,
/// is no error.
pub(crate) fn is_read(written: std::io::Result<()>) -> Result<bool, InspectError> {
    match written {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(InspectError::of("standard output", error)),
    }
}

impl InspectError {
    fn of(what: &str, why: impl std::fmt::Display) -> Self {
        // A server may control the text, so control characters are removed.
        let lines: Vec<_> = format!("{what}: {why}").lines().map(|line| table::printable(line).into_owned()).collect();
        Self(lines.join("\n"))
    }
}
