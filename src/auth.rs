//! Who is asking, and what they may read.
//!
//! ```text
//! headers, certificate ─► Credential ─► Judge::identify ─► Caller ─► Judge::accesses ─► Grant ─► the cache
//!                                        (TokenReview,                (SubjectAccess-     │
//!                                         authorities)                 Review)            └► Lease, asserted again
//! ```
//!
//! **Invariants.** No byte of a cached object leaves without a [`Grant`], and only this module can make one. What is
//! not certain is refused. Upstream decides, always: there is no rule about anybody's rights in here. Answers are
//! remembered for seconds and never shared between two callers or two requests that differ in anything a right may
//! depend on. Tokens are in no message, log line or metric.

mod access_reviewer;
mod affected;
mod agenda;
mod authenticator;
mod browsers;
mod certificate;
mod chain;
mod changes;
mod credential;
mod gate;
mod grant;
mod grant_lease;
mod hosts;
mod impersonation;
mod metrics;
mod namespace_quota;
mod namespace_verdicts;
mod not_granted;
mod once;
mod policy;
mod question;
mod question_pace;
mod readable;
mod reviews;
mod separation;
mod shown;
#[cfg(test)]
mod stub;
#[cfg(test)]
mod tests;
mod token_reviewer;

use std::time::{Duration, SystemTime};

pub use affected::{Affected, AffectedScope, Subjects};
pub use authenticator::{FrontProxy, Trusted};
pub use browsers::{BrowserGuard, Foreign, NoOrigin, PageOrigin};
pub use certificate::{Authorities, AuthoritiesError};
pub use chain::Chain;
pub use credential::BEARER_PROTOCOL;
pub use gate::{Caller, Delegation, Gate, Known, RequestSender};
pub use grant::Grant;
pub use hosts::Hosts;
pub use impersonation::{Impeded, Impersonation, NobodyNamed};
pub use metrics::describe;
pub use namespace_verdicts::Verdict;
pub use not_granted::{NotGranted, Revoked};
pub use policy::{Policy, PolicyChange, PolicyKind};
pub use readable::{GrantStatus, Permit, Readable, VerdictChanges};
pub use separation::{AuthorityRole, Mixed, Separation};
pub use shown::Shown;

/// How callers are authenticated and authorized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    /// The caller is the proxy's own identity, as with `kubectl proxy`: for sockets that only this machine can reach.
    None,
    /// Upstream is asked: who the caller is, and whether it may.
    Delegated,
}

/// How upstream is asked about callers (R-AUTHN-1, R-LEASE-1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthConfig {
    /// What tokens must be meant for; empty: whatever upstream takes.
    pub audiences: Vec<String>,
    /// How long an answer about a token is remembered.
    pub token_ttl: Duration,
    /// How long a yes is.
    pub allowed_ttl: Duration,
    /// How long a no is.
    pub denied_ttl: Duration,
    /// How often open watches are asked about again, or a little sooner: rights that are not RBAC's, and tokens, tell
    /// nobody of their end.
    pub recheck: Duration,
    /// How long open watches go on when nobody can tell whether they may.
    pub outage_grace: Duration,
    /// Whether those without a credential may read from the cache what upstream lets them read.
    pub anonymous: bool,
    /// Different accesses of one user that upstream is asked about, in a second and at once.
    pub accesses_per_user: u32,
    pub accesses_burst_per_user: u32,
    /// The same of all requests together.
    pub accesses: u32,
    /// Unknown tokens that upstream is asked about in a second, all in all; and as many that were somebody's before.
    pub reviews: u32,
    /// The same from one address, in the long run and at once.
    pub reviews_per_source: u32,
    pub reviews_burst_per_source: u32,
    /// Questions of open watches in a second, all in all: so many about tokens, and so many about accesses.
    pub lease_reviews: u32,
    /// Questions about namespaces of open readable watches in a second, all in all and of one user. Open watches
    /// stand on no more namespaces than can be asked about in four seconds.
    pub namespaces: u32,
    pub namespaces_per_user: u32,
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            audiences: Vec::new(),
            token_ttl: Duration::from_secs(10),
            allowed_ttl: Duration::from_secs(10),
            denied_ttl: Duration::from_secs(5),
            recheck: Duration::from_secs(60),
            outage_grace: Duration::from_secs(300),
            anonymous: false,
            accesses_per_user: 200,
            accesses_burst_per_user: 3_000,
            accesses: 5_000,
            reviews: 500,
            reviews_per_source: 20,
            reviews_burst_per_source: 200,
            lease_reviews: 2_500,
            namespaces: 4_000,
            namespaces_per_user: 500,
        }
    }
}

/// The moment by the clock on the wall: credentials end by that one.
#[allow(clippy::disallowed_methods, reason = "nothing else says when a credential is over")]
fn now() -> SystemTime {
    SystemTime::now()
}
