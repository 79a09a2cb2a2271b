use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use http::HeaderMap;
use tokio::time::{Instant, timeout};

use super::authenticator::{Authenticator, FrontProxy, TrustedAuthorities};
use super::changes::{PendingPolicyChanges, RecheckRounds};
use super::credential::{Credential, Identity, asserted, token_of};
use super::grant_lease::{GrantLease, LeaseRequest, Leases};
use super::impersonation::{Impersonation, ImpersonationDenied};
use super::lease_terms::LeaseTerms;
use super::namespace_quota::NamespaceQuota;
use super::namespace_verdicts::NamespaceVerdicts;
use super::policy_watch_state::PolicyWatchState;
use super::review_cache::ReviewPurpose;
use super::reviews::Reviews;
use super::{AffectedUsers, AuthConfig, Grant, NotGranted, Permit, Readable, RequestSender, metrics, token_reviewer};
use crate::upstream::{AccessReviewResult, ActingAs, Cause, Client, CredentialId, Release};
use base::{Ready, Tasks, WallClock};
use kubeapi::{Access, FlowDistinguisher, RequestInfo, User, Verb};
use tokio::sync::watch;

/// Authenticates callers and authorizes their requests.
#[derive(Clone)]
pub struct Authorizer {
    delegated: Option<Arc<Shared>>,
}

struct Shared {
    config: AuthConfig,
    authenticator: Arc<Authenticator>,
    leases: Arc<Leases>,
    /// The limit on the namespaces that open watches depend on.
    quota: NamespaceQuota,
    changes: Arc<PendingPolicyChanges>,
    tasks: Tasks,
    client: Client,
    policy_watch: Arc<PolicyWatchState>,
    /// The user that upstream sees for the proxy. It expires, because the proxy's credentials may change.
    ourselves: moka::future::Cache<(), Arc<User>>,
    /// The release that upstream runs. It expires, because upstream may be upgraded.
    release: moka::future::Cache<(), Release>,
}

/// The dependencies of an authorizer with delegated authentication.
#[derive(Clone)]
pub struct Delegation {
    /// The proxy's own client. Its identity may create token and access reviews.
    pub client: Client,
    pub client_authorities: Option<TrustedAuthorities>,
    pub front_proxy: Option<FrontProxy>,
    /// The clock that determines when credentials expire.
    pub clock: WallClock,
    pub tasks: Tasks,
}

/// The identity of a caller, as determined from its credential.
#[derive(Debug, Clone)]
pub enum Caller {
    /// The proxy itself: every client that reaches the socket acts as it.
    ProxyItself,
    /// A caller that sent no credential.
    Anonymous,
    Known(Arc<AuthenticatedCaller>),
}

/// A user that upstream has authenticated by its credential.
#[derive(Debug)]
pub struct AuthenticatedCaller {
    id: CredentialId,
    credential: Credential,
    user: Arc<User>,
    payer: FlowDistinguisher,
    until: Option<SystemTime>,
}

/// How long the proxy's own identity is cached, and how long the request for it may take.
const OURSELVES_FOR: Duration = Duration::from_secs(30);
const OURSELVES_MAX: Duration = Duration::from_secs(5);
/// How long upstream's release is cached.
const RELEASE_FOR: Duration = Duration::from_secs(60);
/// The first release that constrains impersonation by default (KEP-5284).
const CONSTRAINED_SINCE: Release = Release { major: 1, minor: 36 };
/// The time in seconds within which all namespaces that open readable watches depend on can be reviewed.
const ASSERTED_WITHIN_SECONDS: u32 = 4;

impl Authorizer {
    /// Creates an authorizer that treats every caller as the proxy itself.
    pub fn open() -> Self {
        Self { delegated: None }
    }

    /// Creates an authorizer that delegates every decision to upstream.
    pub fn delegated(config: AuthConfig, parts: Delegation) -> Self {
        let reviews = Arc::new(parts.client.clone());
        Self::asking(reviews, config, parts)
    }

    /// Creates an authorizer that sends its reviews to `reviews`.
    pub(super) fn asking(reviews: Arc<dyn Reviews>, config: AuthConfig, parts: Delegation) -> Self {
        let Delegation { client, client_authorities, front_proxy, clock, tasks } = parts;
        let authenticator = Arc::new(Authenticator::new(reviews, &config, client_authorities, front_proxy, clock));
        let policy_watch = Arc::new(PolicyWatchState::new());
        let (leases, changes) = (Arc::new(Leases::new(policy_watch.clone())), Arc::new(PendingPolicyChanges::new()));
        let quota = quota(&config);
        let ourselves = moka::future::Cache::builder().max_capacity(1).time_to_live(OURSELVES_FOR).build();
        let release = moka::future::Cache::builder().max_capacity(1).time_to_live(RELEASE_FOR).build();
        tasks.spawn_needed("policy", follow(changes.clone(), authenticator.clone(), leases.clone()));
        let shared =
            Shared { config, authenticator, leases, quota, changes, tasks, client, policy_watch, ourselves, release };
        Self { delegated: Some(Arc::new(shared)) }
    }

    /// Whether every caller is treated as the proxy itself.
    pub fn is_open(&self) -> bool {
        self.delegated.is_none()
    }

    /// Whether a caller may read from the cache. A caller without a credential may do so only if the configuration
    /// allows it.
    pub fn serves(&self, caller: &Caller) -> bool {
        match (caller, &self.delegated) {
            (Caller::Anonymous, Some(shared)) => shared.config.anonymous,
            _ => true,
        }
    }

    /// Authenticates the sender of a request. The first accepted credential counts, in the apiserver's order: front
    /// proxy headers, certificate, token.
    ///
    /// # Errors
    /// None of its credentials is accepted, or that cannot be determined.
    pub async fn authenticate(&self, sender: RequestSender, headers: &HeaderMap) -> Result<Caller, NotGranted> {
        let Some(shared) = &self.delegated else { return Ok(Caller::ProxyItself) };
        let caller = shared.authenticate(sender, headers).await;
        if let Err(refused) = &caller {
            metrics::refused(refused.as_str());
        }
        caller
    }

    /// Grants a request, if the caller may make it. The grant of a watch is checked again as long as the watch is open.
    ///
    /// # Errors
    /// The caller may not make the request, or that cannot be determined.
    pub async fn grant(&self, caller: &Caller, info: &RequestInfo) -> Result<Grant, NotGranted> {
        let access = Arc::new(Access::of(info));
        let Some(shared) = &self.delegated else { return Ok(Grant::new(access, None)) };
        let grant = shared.grant(caller, info, access).await;
        if let Err(refused) = &grant {
            metrics::refused(refused.as_str());
        }
        grant
    }

    /// Whether a downstream proxy may create this review on behalf of one of its callers.
    pub async fn lets_proxy(&self, caller: &Caller, info: &RequestInfo) -> bool {
        let Some(shared) = &self.delegated else { return true };
        match shared.known(caller) {
            Err(_) => false,
            Ok(None) => true,
            Ok(Some(known)) => {
                let reviewer = &shared.authenticator.access_reviewer;
                reviewer.lets_proxy(&known.user, &Arc::new(Access::of(info)), &shared.policy_watch).await.is_ok()
            }
        }
    }

    /// Grants a read of a collection across namespaces: all of it, or else the namespaces in which the caller may
    /// perform the same access. Each namespace is reviewed when it occurs.
    ///
    /// # Errors
    /// The caller's identity or permissions cannot be determined.
    pub async fn readable(&self, caller: &Caller, info: &RequestInfo) -> Result<Permit, NotGranted> {
        let access = Arc::new(Access::of(info));
        let Some(shared) = &self.delegated else { return Ok(Permit::Whole(Grant::new(access, None))) };
        let permit = match shared.grant(caller, info, access.clone()).await {
            Err(NotGranted::Denied(_)) => shared.readable(caller, info, access).map(Permit::Part),
            grant => grant.map(Permit::Whole),
        };
        if let Err(refused) = &permit {
            metrics::refused(refused.as_str());
        }
        permit
    }

    /// Returns the identity with which the caller's requests are sent to upstream.
    pub async fn acting_as(&self, caller: &Caller) -> ActingAs {
        match (caller, &self.delegated) {
            (Caller::ProxyItself, _) | (_, None) => ActingAs::ProxyItself,
            (Caller::Anonymous, Some(_)) => ActingAs::Anonymous,
            (Caller::Known(known), Some(shared)) => match &known.credential {
                Credential::Anonymous => ActingAs::Anonymous,
                Credential::Token(_) => ActingAs::Bearer(known.id, known.payer.clone()),
                // A caller that holds the proxy's own certificate has the proxy's rights anyway.
                Credential::Certificate(_) if shared.is_us(&known.user).await => ActingAs::ProxyItself,
                Credential::Certificate(_) | Credential::Asserted(..) => ActingAs::User(known.user.clone()),
            },
        }
    }

    /// Returns the user that a caller requests to impersonate, if the caller may.
    ///
    /// Upstream checks `Impersonate-*` headers itself. This check is for callers that the proxy itself impersonates,
    /// for which upstream cannot (R-IMPERSONATE-2).
    ///
    /// # Errors
    /// The caller may not impersonate the user, or that cannot be determined.
    pub async fn impersonation(
        &self,
        caller: &Caller,
        wanted: &Impersonation,
        info: Option<&RequestInfo>,
    ) -> Result<User, ImpersonationDenied> {
        let (Caller::Known(known), Some(shared)) = (caller, &self.delegated) else {
            return Err(ImpersonationDenied::unknown());
        };
        let request = if shared.constrains_impersonation().await { info.map(Access::of) } else { None };
        let judged = wanted.judged(&shared.authenticator.access_reviewer, &known.user, request.as_ref()).await;
        if let Err(impeded) = &judged {
            metrics::refused(impeded.refused.as_str());
        }
        judged
    }

    /// Records a policy change. Upstream's authorizers may see it a moment earlier or later. A burst of changes costs
    /// hardly more than one.
    pub fn policy_changed(&self, affected: &AffectedUsers) {
        if let Some(shared) = &self.delegated {
            shared.policy_watch.changed();
            shared.changes.hear(affected);
        }
    }

    /// Records that the watch of one more kind of policy objects has begun. Earlier changes may have been missed.
    pub fn policy_begins(&self) {
        if let Some(shared) = &self.delegated {
            shared.policy_watch.begins();
            shared.changes.begin();
        }
    }

    /// Keeps `ready` from being ready while the proxy may not create reviews; `None` if it creates none. The guards are
    /// registered at once.
    pub fn keep_ready(&self, ready: &Ready) -> Option<BoxFuture<'static, ()>> {
        Some(self.delegated.as_ref()?.authenticator.keep_ready(ready))
    }

    /// Returns the number of leases of open watches; `None` if none are needed. Receivers are notified of the first
    /// lease and of the end of the last.
    pub fn leases(&self) -> Option<watch::Receiver<usize>> {
        self.delegated.as_ref().map(|shared| shared.leases.count())
    }

    /// Records whether policy changes are received as they happen. If not, they are received later, or the watches
    /// restart.
    pub fn hears_policy(&self, is_heard: bool) {
        metrics::policy_watched(is_heard);
        if let Some(shared) = &self.delegated {
            shared.policy_watch.set_open(is_heard);
        }
    }

    /// Returns the cached decision on an access, if its review was sent after `since`. It answers a downstream proxy's
    /// review.
    pub async fn recalls(&self, user: &User, access: &Access, since: Instant) -> Option<(Instant, AccessReviewResult)> {
        let reviewer = &self.delegated.as_ref()?.authenticator.access_reviewer;
        reviewer.recalls(user, access, since).await
    }

    /// Caches a decision that upstream returned for a downstream proxy, unless a policy change was received since.
    pub async fn learns(&self, of: (User, Access), cause: Cause, asked: Instant, verdict: AccessReviewResult) {
        if let Some(shared) = self.delegated.as_ref().filter(|shared| asked >= shared.policy_watch.moved()) {
            shared.authenticator.access_reviewer.learns(of, cause, asked, verdict).await;
        }
    }

    /// Returns the time since which no policy change was received; `None` if changes would not be received at once.
    pub fn policy_unchanged_since(&self) -> Option<Instant> {
        self.delegated.as_ref()?.policy_watch.unchanged_since()
    }

    /// Returns the configuration, whose TTLs bound the age of cached decisions.
    pub fn remembers_for(&self) -> AuthConfig {
        self.delegated.as_ref().map(|shared| shared.config.clone()).unwrap_or_default()
    }
}

impl Shared {
    async fn authenticate(&self, sender: RequestSender, headers: &HeaderMap) -> Result<Caller, NotGranted> {
        let mut refused = None;
        let address = sender.address;
        for credential in shown(sender, headers)? {
            let id = self.authenticator.id(&credential);
            match self
                .authenticator
                .identify(id, &credential, token_reviewer::TokenPurpose::Request { source: address })
                .await
            {
                Ok(None) => {}
                // A front proxy that names the anonymous user authenticates no caller.
                Ok(Some(Identity { user, .. })) if user.is_anonymous() => return Ok(Caller::Anonymous),
                Ok(Some(Identity { user, until, .. })) => {
                    return Ok(Caller::Known(Arc::new(AuthenticatedCaller::new(id, credential, user, until))));
                }
                Err(why) => refused = Some(why),
            }
        }
        refused.map_or(Ok(Caller::Anonymous), Err)
    }

    async fn grant(&self, caller: &Caller, info: &RequestInfo, access: Arc<Access>) -> Result<Grant, NotGranted> {
        let Some(known) = self.known(caller)? else { return Ok(Grant::new(access, None)) };
        let lease = self.lease(&known, info, &access, None);
        let reviewer = &self.authenticator.access_reviewer;
        let purpose = if info.is_resource { ReviewPurpose::Request } else { ReviewPurpose::NonResource };
        let allowed = reviewer.decide(&known.user, &access, purpose, None).await?;
        if let Some(lease) = &lease {
            lease.stands_on(&known.user, &allowed);
        }
        Ok(Grant::new(access, lease).because(allowed.reason))
    }

    fn readable(&self, caller: &Caller, info: &RequestInfo, access: Arc<Access>) -> Result<Readable, NotGranted> {
        let known = self.known(caller)?.ok_or_else(NotGranted::denied)?;
        // Reviews count by account and not by node, because an account's rights are the same on each node.
        let payer = FlowDistinguisher::of(&known.user);
        let verdicts = NamespaceVerdicts::new(self.authenticator.clone(), known.user.clone(), access.clone());
        let verdicts = Arc::new(match info.verb {
            Verb::Watch => verdicts.of_watch(self.quota.share(&payer), self.config.recheck),
            _ => verdicts,
        });
        let lease = self.lease(&known, info, &access, Some(verdicts.clone()));
        Ok(Readable::new(access, verdicts, lease))
    }

    /// Returns the user to review; `None` for the proxy itself.
    fn known(&self, caller: &Caller) -> Result<Option<Arc<AuthenticatedCaller>>, NotGranted> {
        match caller {
            Caller::ProxyItself => Ok(None),
            Caller::Anonymous if !self.config.anonymous => Err(NotGranted::Unauthenticated),
            Caller::Anonymous => {
                let credential = Credential::Anonymous;
                let user = Arc::new(super::authenticator::anonymous());
                Ok(Some(Arc::new(AuthenticatedCaller::new(self.authenticator.id(&credential), credential, user, None))))
            }
            Caller::Known(known) => Ok(Some(known.clone())),
        }
    }

    /// Returns the lease that a watch depends on. It is created before the permission is checked, so that no change is
    /// missed between the two.
    fn lease(
        &self,
        known: &AuthenticatedCaller,
        info: &RequestInfo,
        access: &Arc<Access>,
        verdicts: Option<Arc<NamespaceVerdicts>>,
    ) -> Option<Arc<GrantLease>> {
        (info.verb == Verb::Watch).then(|| {
            let claim = LeaseRequest {
                id: known.id,
                credential: known.credential.clone(),
                user: known.user.clone(),
                until: known.until,
                access: access.clone(),
                verdicts,
            };
            let terms = LeaseTerms::of(&self.config, &known.credential, &known.user);
            self.leases.hold(claim, &self.authenticator, terms, &self.tasks)
        })
    }

    /// Whether upstream supports constrained impersonation.
    ///
    /// If that cannot be determined, the constraints are not used. On a release without them, a caller with all verbs
    /// would pass them.
    async fn constrains_impersonation(&self) -> bool {
        let asking = async { timeout(OURSELVES_MAX, self.client.release()).await.map_err(drop)?.map_err(drop) };
        let release = Box::pin(self.release.try_get_with((), asking)).await;
        release.is_ok_and(|release| release >= CONSTRAINED_SINCE)
    }

    async fn is_us(&self, user: &User) -> bool {
        // If the proxy's own identity cannot be determined, no caller has it.
        let asking =
            async { timeout(OURSELVES_MAX, self.client.who_am_i()).await.map_err(drop)?.map(Arc::new).map_err(drop) };
        Box::pin(self.ourselves.try_get_with((), asking)).await.is_ok_and(|ourselves| ourselves.is_same_as(user))
    }
}

/// Applies policy changes as they are received.
async fn follow(changes: Arc<PendingPolicyChanges>, authenticator: Arc<Authenticator>, leases: Arc<Leases>) {
    let mut rounds = RecheckRounds::new();
    loop {
        let affected = changes.next(&mut rounds).await;
        authenticator.access_reviewer.forget(&affected).await;
        leases.doubt(&affected).await;
    }
}

fn quota(config: &AuthConfig) -> NamespaceQuota {
    let in_time = |per_second: u32| per_second.saturating_mul(ASSERTED_WITHIN_SECONDS) as usize;
    NamespaceQuota::new(in_time(config.namespaces), in_time(config.namespaces_per_user))
}

/// Returns the credentials of a request, in the order in which they are tried.
fn shown(sender: RequestSender, headers: &HeaderMap) -> Result<Vec<Credential>, NotGranted> {
    let mut shown = Vec::new();
    if let Some(chain) = sender.certificates {
        let user = asserted(headers).map(Arc::new);
        shown.extend(user.map(|user| Credential::Asserted(chain.clone(), user)));
        shown.push(Credential::Certificate(chain));
    }
    match token_of(headers) {
        Ok(token) => shown.extend(token.map(Credential::Token)),
        Err(_) if !shown.is_empty() => {}
        Err(why) => {
            tracing::debug!(error = %why, "malformed bearer token; request rejected with 401");
            return Err(NotGranted::Unauthenticated);
        }
    }
    Ok(shown)
}

impl AuthenticatedCaller {
    fn new(id: CredentialId, credential: Credential, user: Arc<User>, until: Option<SystemTime>) -> Self {
        let payer = FlowDistinguisher::on_its_node(&user);
        Self { id, credential, user, payer, until }
    }
}

impl Caller {
    /// Returns the caller's name, for messages.
    pub fn name(&self) -> &str {
        match self {
            Self::ProxyItself => "",
            Self::Anonymous => User::ANONYMOUS,
            Self::Known(known) => &known.user.name,
        }
    }

    pub fn user(&self) -> Option<&User> {
        match self {
            Self::ProxyItself | Self::Anonymous => None,
            Self::Known(known) => Some(&known.user),
        }
    }

    /// Whether the caller is authenticated by a certificate of its own, which a browser sends automatically.
    ///
    /// A front proxy's certificate does not count, because the front proxy must check the browser requests that it
    /// forwards.
    pub fn shows_certificate(&self) -> bool {
        matches!(self, Self::Known(known) if matches!(known.credential, Credential::Certificate(_)))
    }

    /// Returns the party to which every limit charges this caller; `None` if all callers are the proxy itself. Callers
    /// without a credential count as one user.
    pub fn payer(&self) -> Option<FlowDistinguisher> {
        match self {
            Self::ProxyItself => None,
            Self::Anonymous => Some(FlowDistinguisher::of(&super::authenticator::anonymous())),
            Self::Known(known) => Some(known.payer.clone()),
        }
    }
}

impl std::fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authorizer").field("open", &self.is_open()).finish_non_exhaustive()
    }
}
