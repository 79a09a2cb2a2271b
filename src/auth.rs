//! Authentication and authorization: who is asking, and what they may read.
//!
//! ```text
//! headers, certificate ─► Credential ─► Authenticator ─► Caller ─► AccessReviewer ─► Grant ─► the cache
//!                                      (TokenReview,            (SubjectAccess-    │
//!                                       authorities)             Review)           └► GrantLease, checked again
//! ```
//!
//! **Invariants.** No byte of a cached object leaves without a [`Grant`], and only this module can make one. If a right
//! is not certain, the request is refused. Upstream always decides: there is no rule about anybody's rights in here.
//! Answers are remembered for seconds and never shared between two callers or two requests that differ in anything a
//! right may depend on. Tokens are in no message, log line or metric.

mod access_reviewer;
mod affected;
mod authenticator;
mod authorizer;
mod browsers;
mod certificate;
mod chain;
mod changes;
mod credential;
mod grant;
mod grant_lease;
mod hosts;
mod impersonation;
mod lease_state;
mod lease_terms;
mod metrics;
mod namespace_quota;
mod namespace_verdicts;
mod not_granted;
mod once;
mod peer_cert_chain;
mod policy;
mod policy_watch_state;
mod readable;
mod recheck_schedule;
mod request_sender;
mod review_queue;
mod review_rate_limit;
mod review_rights;
mod review_topic;
mod reviews;
mod separation;
#[cfg(test)]
mod stub;
#[cfg(test)]
mod tests;
mod token_reviewer;

use std::time::Duration;

use kubeapi::User;

pub use affected::{Affected, AffectedScope, Subjects};
pub use authenticator::{FrontProxy, Trusted};
pub use authorizer::{Authorizer, Caller, Delegation, Known};
pub use browsers::{BrowserGuard, Foreign, NoOrigin, PageOrigin};
pub use certificate::{Authorities, AuthoritiesError, CertificateHolder, CertificateRejected, named_in};
pub use chain::Chain;
pub use credential::{BEARER_PROTOCOL, Malformed, Token, asserted, token_of};
pub use grant::Grant;
pub use hosts::Hosts;
pub use impersonation::{Impeded, Impersonation, NoImpersonatedUser};
pub use metrics::describe;
pub use namespace_verdicts::Verdict;
pub use not_granted::{NotGranted, Revoked};
pub use peer_cert_chain::PeerCertChain;
pub use policy::{Policy, PolicyChange, PolicyKind};
pub use readable::{GrantStatus, Permit, Readable, VerdictChanges};
pub use request_sender::RequestSender;
pub use separation::{AuthorityRole, Mixed, Separation};

/// How callers are authenticated and authorized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthMode {
    /// Every caller acts as the proxy itself, as with `kubectl proxy`: for sockets that only this machine can reach.
    None,
    /// Upstream is asked who the caller is and whether it may.
    Delegated,
}

/// How upstream is asked about callers (R-AUTHN-1, R-LEASE-1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthConfig {
    /// The audiences that tokens must be meant for; if empty, those that upstream takes.
    pub audiences: Vec<String>,
    /// How long an answer about a token is remembered.
    pub token_ttl: Duration,
    /// How long a decision to allow is remembered.
    pub allowed_ttl: Duration,
    /// How long a decision to deny is remembered, but for the Node authorizer's that no pod needs the object.
    pub denied_ttl: Duration,
    /// How often, at least, the rights of open watches are checked again: nothing reports the end of a token, or of a
    /// right that does not come from RBAC.
    pub recheck: Duration,
    /// The same of a right that RBAC gives while its changes are heard: an authorizer before RBAC may begin to deny.
    pub recheck_rbac: Duration,
    /// The same of a node's right: the Node authorizer gives it, and the apiserver lets a node's watches go on.
    pub recheck_nodes: Duration,
    /// The same of whose a token is, if that is longer: the apiserver does not ask again about an open watch.
    pub recheck_tokens: Duration,
    /// How long open watches go on when their rights cannot be checked.
    pub outage_grace: Duration,
    /// Whether callers without a credential may read from the cache what upstream lets them read.
    pub anonymous: bool,
    /// How many different accesses of one user upstream is asked about in a second, and how many at once.
    pub accesses_per_user: u32,
    pub accesses_burst_per_user: u32,
    /// How many accesses of all requests together upstream is asked about in a second.
    pub accesses: u32,
    /// How many unknown tokens upstream is asked about in a second, and as many more that were somebody's before.
    pub reviews: u32,
    /// How many tokens from one address upstream is asked about in a second, and how many at once.
    pub reviews_per_source: u32,
    pub reviews_burst_per_source: u32,
    /// How many questions of open watches are put in a second: so many about tokens, and so many about accesses.
    pub lease_reviews: u32,
    /// How many questions about namespaces of open readable watches are put in a second, in all and for one user. Open
    /// watches depend on no more namespaces than can be asked about in four seconds.
    pub namespaces: u32,
    pub namespaces_per_user: u32,
}

impl AuthConfig {
    /// How upstream is asked about who reads metrics. They are few, and come every few seconds for ever, so answers are
    /// remembered for longer than those about clients, and unknown tokens have a small budget of their own: whoever
    /// guesses there takes nothing from clients.
    #[must_use]
    pub fn of_scrapes(clients: &Self) -> Self {
        Self {
            audiences: clients.audiences.clone(),
            token_ttl: Duration::from_secs(120),
            allowed_ttl: Duration::from_secs(120),
            denied_ttl: Duration::from_secs(30),
            anonymous: false,
            accesses_per_user: 5,
            accesses_burst_per_user: 10,
            accesses: 50,
            reviews: 20,
            reviews_per_source: 5,
            reviews_burst_per_source: 20,
            ..clients.clone()
        }
    }

    /// How often what a user may is asked about again, whatever is known of changes.
    fn recheck_of(&self, user: &User) -> Duration {
        if user.is_node() { self.recheck.max(self.recheck_nodes) } else { self.recheck }
    }
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            audiences: Vec::new(),
            token_ttl: Duration::from_secs(10),
            allowed_ttl: Duration::from_secs(10),
            denied_ttl: Duration::from_secs(5),
            recheck: Duration::from_secs(60),
            recheck_rbac: Duration::from_secs(600),
            recheck_nodes: Duration::from_secs(600),
            recheck_tokens: Duration::from_millis(10),
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
