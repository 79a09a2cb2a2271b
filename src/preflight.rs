//! Preflight checks of a proxy that is not running yet: the upstream release, permissions, certificates, cache sizes,
//! and the load on upstream.
//!
//! **Invariant:** the checks change nothing: they only read, and review the proxy's own permissions.

mod certificates;
mod permissions;
mod reviews;
mod sizes;
mod upstream_facts;

pub use certificates::{CertificateFile, certificates};
pub use permissions::{PermissionNeeds, permissions};
pub use reviews::{ReviewRates, ReviewSettings, ReviewedLoad, review_cost};
pub use sizes::{cost, sizes};
pub use upstream_facts::identity;

use std::fmt::Display;

use serde::Serialize;

use crate::upstream::UpstreamError;
use kubeapi::Gvr;

/// A resource that the proxy must or can cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedResource {
    pub gvr: Gvr,
    /// The field selector of the cached part; `None` for the whole resource.
    pub selector: Option<String>,
}

/// The outcome of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum CheckOutcome {
    Ok,
    /// The proxy works, but something is slower or forwarded.
    Warning,
    Failed,
    /// The check could not be made.
    Unknown,
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CheckFinding {
    pub outcome: CheckOutcome,
    /// The part that was checked: `rights`, `authorizers`, `certificates`, `upstream`, `sizes`, `cost`,
    /// `configuration`.
    pub area: &'static str,
    pub message: String,
    /// The fix for the problem, written for an operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl CheckFinding {
    pub fn ok(area: &'static str, message: impl Into<String>) -> Self {
        Self { outcome: CheckOutcome::Ok, area, message: message.into(), remedy: None }
    }

    pub fn warning(area: &'static str, message: impl Into<String>) -> Self {
        Self { outcome: CheckOutcome::Warning, ..Self::ok(area, message) }
    }

    pub fn failed(area: &'static str, message: impl Into<String>) -> Self {
        Self { outcome: CheckOutcome::Failed, ..Self::ok(area, message) }
    }

    /// Creates a finding for a failed request to upstream: the proxy is refused, or the outcome is unknown.
    pub fn request_failed(area: &'static str, message: impl Display, error: &UpstreamError) -> Self {
        let is_refused = matches!(error.code(), Some(401 | 403));
        let outcome = if is_refused { CheckOutcome::Failed } else { CheckOutcome::Unknown };
        Self { outcome, ..Self::ok(area, format!("{message}: {error}")) }
    }

    /// Adds the fix for the problem to the finding.
    #[must_use]
    pub fn with_remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }
}

impl CheckOutcome {
    /// Returns the mark at the start of a finding's line.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "note",
            Self::Failed => "FAILED",
            Self::Unknown => "?",
        }
    }
}
