//! Finds out before anything is served whether a proxy could be: what upstream is, which rights there are, what the
//! certificates say, how much there is to hold, and what it would cost upstream.
//!
//! **Invariant:** it changes nothing: it reads, and asks about its own rights.

mod certificates;
mod outcome;
mod rights;
mod sizes;
mod upstream_facts;

pub use certificates::{CertificateFile, certificates};
pub use outcome::{CheckFinding, CheckOutcome};
pub use rights::{Needs, rights};
pub use sizes::{FleetCost, cost, sizes};
pub use upstream_facts::{UpstreamIdentity, identity};

use kubeapi::Gvr;

/// A resource that is to be held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    pub gvr: Gvr,
    /// The field selector that is all of it that is held.
    pub selector: Option<String>,
}
