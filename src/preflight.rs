//! Preflight checks of a proxy that is not running yet: the upstream release, permissions, certificates, cache sizes,
//! and the load on upstream.
//!
//! **Invariant:** the checks change nothing: they only read, and review the proxy's own permissions.

mod certificates;
mod permissions;
mod reviews;
mod sizes;

pub use certificates::{CertificateFile, certificates, trust};
pub use permissions::{PermissionNeeds, permissions};
pub use reviews::{ReviewRates, ReviewSettings, ReviewedLoad, review_cost};
pub use sizes::{cost, sizes};

use std::fmt::Display;

use serde::Serialize;

use crate::upstream::{KubernetesRelease, UpstreamClient, UpstreamError};
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

const UPSTREAM: &str = "upstream";
/// The first release that streams lists by default and serves older pages from its own cache.
const STREAMS_LISTS: KubernetesRelease = KubernetesRelease { major: 1, minor: 34 };
/// The first release that is supported: it has aggregated discovery of `apidiscovery.k8s.io/v2`.
const SUPPORTED_SINCE: KubernetesRelease = KubernetesRelease { major: 1, minor: 30 };

/// Reports the release of the apiserver, and the user that it authenticates the proxy as. Also returns whether the
/// apiserver responds and accepts the credentials. If not, every other check would fail the same way.
pub async fn identity(client: &UpstreamClient) -> (Vec<CheckFinding>, bool) {
    let url = client.server_url();
    let mut findings = Vec::new();
    match client.release().await {
        Ok(release) => findings.push(of_release(&url, release)),
        Err(error) if error.code().is_none_or(|code| code == 401) => {
            return (vec![CheckFinding::request_failed(UPSTREAM, &url, &error)], false);
        }
        Err(error) => findings.push(CheckFinding::request_failed(UPSTREAM, format!("{url}: /version"), &error)),
    }
    let is_usable = match client.own_user().await {
        Ok(user) => {
            findings.push(CheckFinding::ok(UPSTREAM, format!("authenticated as {}", user.name)));
            true
        }
        // A server before 1.28 has no such review, and a cluster may not allow it.
        Err(error) if matches!(error.code(), Some(403 | 404)) => {
            findings.push(CheckFinding::warning(
                UPSTREAM,
                format!("cannot determine the user that the proxy is authenticated as: {error}"),
            ));
            true
        }
        Err(error) => {
            findings.push(CheckFinding::request_failed(UPSTREAM, "cannot determine the proxy's user", &error));
            error.code().is_some_and(|code| code != 401)
        }
    };
    (findings, is_usable)
}

fn of_release(url: &str, release: KubernetesRelease) -> CheckFinding {
    let named = format!("kube-apiserver {}.{} at {url}", release.major, release.minor);
    if release < SUPPORTED_SINCE {
        CheckFinding::failed(UPSTREAM, format!("{named} is older than 1.30, the oldest supported release"))
    } else if release < STREAMS_LISTS {
        let message = format!(
            "{named} may not stream lists (WatchList, on by default since 1.34): the proxy reads lists in pages"
        );
        CheckFinding::warning(UPSTREAM, message)
    } else {
        CheckFinding::ok(UPSTREAM, named)
    }
}
