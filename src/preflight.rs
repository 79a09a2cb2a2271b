//! Preflight checks of a proxy that is not running yet: the upstream release, permissions, certificates, cache sizes,
//! and the load on upstream.
//!
//! **Invariant:** the checks change nothing: they only read, and review the proxy's own permissions.

mod certificates;
mod outcome;
mod rights;
mod sizes;
mod upstream_facts;

pub use certificates::{CertificateFile, certificates};
pub use outcome::{CheckFinding, CheckOutcome};
pub use rights::{PermissionNeeds, rights};
pub use sizes::{FleetCost, cost, sizes};
pub use upstream_facts::{UpstreamIdentity, identity};

use kubeapi::Gvr;

/// A resource that the proxy must or can cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CachedResource {
    pub gvr: Gvr,
    /// The field selector of the cached part; `None` for the whole resource.
    pub selector: Option<String>,
}
