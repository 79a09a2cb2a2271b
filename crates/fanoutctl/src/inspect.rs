//! What operators ask running proxies: how they are, who reads what, why somebody was treated so, whether what is held
//! is what upstream has.
//!
//! **Invariant:** it asks from outside, by HTTP alone. What it is not shown it does not show, and says so.

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

pub use admin::AskedProxy;
pub use diff::{DiffOrder, diff};
pub use explain::{ExplainOrder, explain};
pub use forwards::{Forward, PodsOrder, forward};
pub use server::ServerReach;
pub use status::status;
pub use tail::{TailOrder, tail};
pub use top::{TopForm, TopOrder, top};

use serde_json::Value;

/// What was found out, for people and for programs.
#[derive(Debug, Clone)]
pub struct Findings {
    pub text: String,
    pub json: Value,
    /// Whether all is as it should be.
    pub is_well: bool,
}

/// Why nothing can be said.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct InspectError(String);

impl InspectError {
    fn of(what: &str, why: impl std::fmt::Display) -> Self {
        // A server may have chosen the words.
        let lines: Vec<_> = format!("{what}: {why}").lines().map(|line| table::printable(line).into_owned()).collect();
        Self(lines.join("\n"))
    }
}
