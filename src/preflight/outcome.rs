use std::fmt::Display;

use serde::Serialize;

use crate::upstream::Error;

/// How one thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    Ok,
    /// It works without; something is slower, or passes through.
    Note,
    Failed,
    /// It could not be found out.
    Unknown,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckFinding {
    pub outcome: CheckOutcome,
    /// `rights`, `certificates`, `upstream`, `sizes`, `cost`, `configuration`.
    pub about: &'static str,
    pub what: String,
    /// What would mend it, as an operator writes it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl CheckFinding {
    pub fn ok(about: &'static str, what: impl Into<String>) -> Self {
        Self { outcome: CheckOutcome::Ok, about, what: what.into(), remedy: None }
    }

    pub fn note(about: &'static str, what: impl Into<String>) -> Self {
        Self { outcome: CheckOutcome::Note, ..Self::ok(about, what) }
    }

    pub fn failed(about: &'static str, what: impl Into<String>) -> Self {
        Self { outcome: CheckOutcome::Failed, ..Self::ok(about, what) }
    }

    /// Upstream has not answered a question: it refuses the proxy, or nothing is known.
    pub fn unanswered(about: &'static str, what: impl Display, error: &Error) -> Self {
        let is_refused = matches!(error.code(), Some(401 | 403));
        let outcome = if is_refused { CheckOutcome::Failed } else { CheckOutcome::Unknown };
        Self { outcome, ..Self::ok(about, format!("{what}: {error}")) }
    }

    /// The same with what would mend it.
    #[must_use]
    pub fn mended_by(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

impl CheckOutcome {
    /// What stands before a line.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Failed => "FAILED",
            Self::Unknown => "?",
        }
    }
}
