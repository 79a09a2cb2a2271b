//! Authentication and authorization: who the caller is, and what it may read.
//!
//! ```text
//! headers, certificate ─► Credential ─► Authenticator ─► Caller ─► AccessReviewer ─► ReadPermission ─► the cache
//!                                       (TokenReview,              (SubjectAccess-    │
//!                                        authorities)               Review)           └► GrantLease, checked again
//! ```
//!
//! **Invariants.** No byte of a cached object leaves without a [`ReadPermission`], and only this module can create one. If a
//! right is not certain, the request is refused. Upstream makes every decision, or the RBAC rules that it publishes
//! ([`AccessDecider::Rbac`]), which only allow. Reviewed decisions are cached for seconds. They are never shared by two
//! callers, or by two requests that differ in anything that a right may depend on. Tokens appear in no message, log line
//! or metric.

mod access_reviewer;
mod authenticator;
mod authorizer;
mod authorizer_chain;
mod browsers;
mod certificate;
mod comparison;
mod comparison_queue;
mod credential;
mod grant;
mod grant_error;
mod grant_lease;
mod grant_leases;
mod impersonation;
mod metrics;
mod namespace_access_decisions;
mod policy_changes;
mod rbac;
mod rbac_authorizer;
mod recheck_schedule;
mod review_permission;
mod review_queue;
mod sha256;
#[cfg(test)]
mod tests;
mod token_reviewer;
mod token_verifier;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::preflight::ReviewSettings;
use kubeapi::User;

/// The group whose members may do anything before any authorizer is asked.
const MASTERS: &str = "system:masters";

pub use authenticator::{AuthenticatedCaller, Caller, FrontProxyConfig, NamedCallers, ReloadableAuthorities};
pub use authorizer::{Authorizer, DelegatedAuthDeps};
pub use authorizer_chain::authorizer_chain;
pub use browsers::{AllowedHosts, CrossOriginCheck, CrossOriginRejection, InvalidWebOrigin, WebOrigin};
pub use certificate::{
    CaOverlapChecker, CertificateAuthorities, CertificateAuthoritiesError, CertificateAuthorityRole, CertificateChain,
    CertificateIdentity, CertificateRejection, PeerCertChain, named_user,
};
pub use credential::{
    BEARER_PROTOCOL, BearerToken, ClientConnectionInfo, MalformedCredential, bearer_token, front_proxy_user,
};
pub use grant::{GrantStatus, NamespaceAccessChanges, ReadPermission, ReadableNamespaces};
pub use grant_error::{GrantError, RevokedPermission};
pub use impersonation::{Impersonation, ImpersonationDenied, InvalidImpersonation};
pub use metrics::describe;
pub use namespace_access_decisions::NamespaceAccess;
pub use rbac::{
    AffectedNamespaces, AffectedUsers, ObjectNames, RbacEvent, RbacGrant, RbacKind, RbacObjectKey, RbacPolicy,
    SubjectMap,
};
pub use review_queue::ReviewRateLimitKey;

/// The way in which callers are authenticated and authorized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuthMode {
    /// Every caller acts as the proxy itself, as with `kubectl proxy`. This is for sockets that only this machine can
    /// reach.
    None,
    /// Upstream authenticates and authorizes each caller (`TokenReview`, `SubjectAccessReview`).
    Delegated,
}

/// What decides the access of callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AccessDecider {
    /// Upstream reviews each access.
    Ask,
    /// The proxy allows what the RBAC objects allow that it watches. Upstream reviews any other access. The operator
    /// states with this mode that no authorizer before RBAC denies what RBAC allows.
    Rbac,
}

/// Where the tokens of service accounts are verified.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenIdentification {
    /// Upstream reviews every token.
    #[default]
    Ask,
    /// The proxy verifies tokens by the cluster's keys and the objects that they are bound to. Upstream reviews tokens
    /// that are not proven to be valid.
    Local,
}

/// Takes a permit for a request that waits for a token review, which is charged to this party. Fails if the limit is
/// reached.
pub type WaitingPermitFn<'a> = dyn Fn(&ReviewRateLimitKey) -> Result<Box<dyn Send>, GrantError> + Send + Sync + 'a;

/// The settings of delegated authentication and authorization (R-AUTHN-1, R-THREAT-7). `config` has the defaults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuthConfig {
    /// Where the tokens of service accounts are verified.
    pub identify: TokenIdentification,
    /// The accepted audiences of tokens; if empty, those that upstream accepts.
    pub audiences: Vec<String>,
    /// The cache TTL for token reviews.
    pub token_ttl: Duration,
    /// The cache TTL for allow decisions.
    pub allowed_ttl: Duration,
    /// The cache TTL for deny decisions, except the Node authorizer's denial because no pod needs the object.
    pub denied_ttl: Duration,
    /// The maximum time between two checks of an open watch's permissions. No event reports the end of a token, or of a
    /// permission that does not come from RBAC.
    pub recheck: Duration,
    /// The interval between two reviews of a permission from RBAC, while changes of RBAC are watched. It is limited,
    /// because an authorizer before RBAC may begin to deny.
    pub recheck_rbac: Duration,
    /// The interval between two reviews of a node's permission, if longer than `recheck`. It may be longer, because the
    /// apiserver does not end a node's watches.
    pub recheck_nodes: Duration,
    /// The interval between two reviews of a token, if longer than that of its permissions. The apiserver never reviews
    /// a token again for an open watch.
    pub recheck_tokens: Duration,
    /// The time for which open watches continue while their permissions cannot be checked, and for which local
    /// decisions are made while the feeds of RBAC are not live.
    pub outage_grace: Duration,
    /// Whether callers without a credential may read from the cache what upstream lets them read.
    pub anonymous: bool,
    /// What decides the access of callers.
    pub decide: AccessDecider,
    /// The number of local decisions, and of tokens verified here, of which one is compared with upstream's; 0 for none.
    pub compare_one_in: u32,
    /// The maximum number of access reviews per second for the requests of one user, and the burst.
    pub accesses_per_user: u32,
    pub accesses_burst_per_user: u32,
    /// The maximum number of access reviews per second for all requests together.
    pub accesses: u32,
    /// The maximum number of reviews per second of unknown tokens, and separately of tokens that were accepted before.
    pub reviews: u32,
    /// The maximum number of token reviews per second for one address, and the burst.
    pub reviews_per_source: u32,
    pub reviews_burst_per_source: u32,
    /// The maximum number of token reviews per second for open watches, and of access reviews.
    pub lease_reviews: u32,
    /// The maximum number of namespace reviews per second for open filtered watches, in all and for one user. Open
    /// watches depend on no more namespaces than can be reviewed in four seconds.
    pub namespaces: u32,
    pub namespaces_per_user: u32,
}

impl AuthConfig {
    /// The settings for metrics scrapers.
    ///
    /// Scrapers are few and send a request every few seconds, so decisions are cached for longer than those for
    /// clients. Unknown tokens have a small budget of their own, so that guesses here do not use up the clients'
    /// budget.
    #[must_use]
    pub fn of_scrapes(clients: &Self) -> Self {
        Self {
            identify: TokenIdentification::Ask,
            audiences: clients.audiences.clone(),
            token_ttl: Duration::from_secs(120),
            allowed_ttl: Duration::from_secs(120),
            denied_ttl: Duration::from_secs(30),
            anonymous: false,
            decide: AccessDecider::Ask,
            accesses_per_user: 5,
            accesses_burst_per_user: 10,
            accesses: 50,
            reviews: 20,
            reviews_per_source: 5,
            reviews_burst_per_source: 20,
            ..clients.clone()
        }
    }

    /// Returns the settings that the rate of reviews depends on.
    pub fn review_settings(&self) -> ReviewSettings {
        let Self { recheck, recheck_rbac, recheck_tokens, compare_one_in, .. } = *self;
        ReviewSettings { recheck_tokens: recheck.max(recheck_tokens), recheck_rbac, compare_one_in }
    }

    /// Returns the interval at which a user's permissions are checked again when no change is seen.
    fn recheck_of(&self, user: &User) -> Duration {
        if user.is_node() { self.recheck.max(self.recheck_nodes) } else { self.recheck }
    }
}
