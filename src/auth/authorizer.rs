use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::HeaderMap;
use tokio::time::{Instant, timeout};

use super::authenticator::{AuthenticatedCaller, Authenticator, Caller, FrontProxyConfig, ReloadableAuthorities};
use super::credential::{AuthenticatedIdentity, Credential};
use super::grant_leases::GrantLeases;
use super::impersonation::{Impersonation, ImpersonationDenied};
use super::namespace_access_decisions::NamespaceDecisions;
use super::policy_changes::PolicyRecheckRounds;
use super::rbac_authorizer::{RbacAuthorizer, RbacChange};
use super::review_permission::ReviewResource;
use super::review_queue::{ReviewPurpose, ReviewedNamespaceLimit};
use super::token_reviewer::TokenReviewPurpose;
use super::token_verifier::TokenVerifier;
use super::{
    AffectedUsers, AuthConfig, ClientConnectionInfo, GrantError, RbacEvent, RbacKind, ReadPermission,
    ReadableNamespaces, TokenIdentification, WaitingPermitFn, comparison, metrics,
};
use crate::upstream::{KubernetesRelease, RequestIdentity, ReviewClient, UpstreamClient, UpstreamError};
use base::{BackgroundTasks, ReadinessTracker, WallClock};
use kubeapi::{AccessAttributes, FlowDistinguisher, RequestInfo, RequestVerb, User};
use tokio::sync::watch;

/// Authenticates callers and authorizes their requests.
#[derive(Clone)]
pub struct Authorizer {
    config: Arc<AuthConfig>,
    delegated: Option<Arc<DelegatedAuthorizer>>,
}

struct DelegatedAuthorizer {
    authenticator: Arc<Authenticator>,
    leases: Arc<GrantLeases>,
    /// The limit on the namespaces that open watches depend on.
    quota: ReviewedNamespaceLimit,
    client: UpstreamClient,
    /// The user that upstream sees for the proxy. It expires, because the proxy's credentials may change.
    own_user: moka::future::Cache<(), Arc<User>>,
    /// The release that upstream runs. It expires, because upstream may be upgraded.
    release: moka::future::Cache<(), KubernetesRelease>,
}

/// The dependencies of an authorizer with delegated authentication.
#[derive(Clone)]
pub struct DelegatedAuthDeps {
    /// The proxy's own client. Its identity may create token and access reviews.
    pub client: UpstreamClient,
    pub client_authorities: Option<ReloadableAuthorities>,
    pub front_proxy: Option<FrontProxyConfig>,
    /// The only node whose pods are served, if any.
    pub node: Option<Arc<str>>,
    /// The clock that determines when credentials expire.
    pub clock: WallClock,
    pub tasks: BackgroundTasks,
}

/// How long the proxy's own identity is cached.
const OWN_USER_TTL: Duration = Duration::from_secs(30);
/// The timeout of a request for the proxy's own identity, or for upstream's release.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);
/// How long upstream's release is cached.
const RELEASE_TTL: Duration = Duration::from_secs(60);
/// The first release that constrains impersonation by default (KEP-5284).
const CONSTRAINED_SINCE: KubernetesRelease = KubernetesRelease { major: 1, minor: 36 };
/// The time in seconds within which all namespaces that open readable watches depend on can be reviewed.
const NAMESPACE_REVIEW_SECONDS: u32 = 4;

impl Authorizer {
    /// Creates an authorizer that treats every caller as the proxy itself.
    pub fn open() -> Self {
        Self { config: Arc::default(), delegated: None }
    }

    /// Creates an authorizer that delegates every decision to upstream.
    pub fn delegated(config: AuthConfig, parts: DelegatedAuthDeps) -> Self {
        let reviews = Arc::new(parts.client.clone());
        let DelegatedAuthDeps { client, node, clock, tasks, .. } = parts.clone();
        let verifier = (config.identify == TokenIdentification::Local)
            .then(|| TokenVerifier::new(client, &config, node.as_ref(), clock, tasks));
        verifier.iter().for_each(|verifier| verifier.start(&config));
        Self::with_review_client(reviews, verifier, config, parts)
    }

    /// Creates an authorizer that sends its reviews to `reviews`.
    pub(super) fn with_review_client(
        reviews: Arc<dyn ReviewClient>,
        verifier: Option<Arc<TokenVerifier>>,
        config: AuthConfig,
        parts: DelegatedAuthDeps,
    ) -> Self {
        let DelegatedAuthDeps { client, client_authorities, front_proxy, node: _, clock, tasks } = parts;
        let authenticator =
            Arc::new(Authenticator::new(reviews, verifier, config, client_authorities, front_proxy, clock));
        let leases = Arc::new(GrantLeases::new(authenticator.clone(), tasks.clone()));
        let config = authenticator.config.clone();
        let count_max = |per_second: u32| per_second.saturating_mul(NAMESPACE_REVIEW_SECONDS) as usize;
        let quota = ReviewedNamespaceLimit::new(count_max(config.namespaces), count_max(config.namespaces_per_user));
        let own_user = moka::future::Cache::builder().max_capacity(1).time_to_live(OWN_USER_TTL).build();
        let release = moka::future::Cache::builder().max_capacity(1).time_to_live(RELEASE_TTL).build();
        tasks.spawn_critical("policy", apply_policy_changes(leases.clone()));
        if authenticator.access_reviewer.rbac.is_configured() {
            tasks.spawn_critical("local decisions", apply_rule_changes(leases.clone()));
        }
        if authenticator.access_reviewer.rbac.is_configured() || authenticator.verifier().is_some() {
            tasks.spawn_critical("comparisons", comparison::run(authenticator.clone()));
        }
        let shared = DelegatedAuthorizer { authenticator, leases, quota, client, own_user, release };
        Self { config, delegated: Some(Arc::new(shared)) }
    }

    /// Whether every caller is treated as the proxy itself.
    pub fn is_open(&self) -> bool {
        self.delegated.is_none()
    }

    /// Whether a caller may read from the cache. A caller without a credential may do so only if the configuration
    /// allows it.
    pub fn may_read_cache(&self, caller: &Caller) -> bool {
        self.is_open() || self.config.anonymous || !matches!(caller, Caller::Anonymous)
    }

    /// Authenticates the sender of a request. The first accepted credential counts, in the apiserver's order: front
    /// proxy headers, certificate, token. A request that waits for a token review takes one of the `permits`.
    ///
    /// # Errors
    /// None of its credentials is accepted, or that cannot be determined.
    pub async fn authenticate(
        &self,
        sender: ClientConnectionInfo,
        headers: &HeaderMap,
        permits: &WaitingPermitFn<'_>,
    ) -> Result<Caller, GrantError> {
        let Some(shared) = &self.delegated else { return Ok(Caller::ProxyItself) };
        shared.authenticate(sender, headers, permits).await.inspect_err(metrics::refused)
    }

    /// Grants a request, if the caller may make it. The grant of a watch is checked again as long as the watch is open.
    ///
    /// # Errors
    /// The caller may not make the request, or that cannot be determined.
    pub async fn grant(&self, caller: &Caller, info: &RequestInfo) -> Result<ReadPermission, GrantError> {
        self.readable(caller, info, || false).await
    }

    /// Whether a downstream proxy may create this review on behalf of one of its callers.
    pub async fn allows_proxy(&self, caller: &Caller, info: &RequestInfo) -> bool {
        let Some(shared) = &self.delegated else { return true };
        let Ok(known) = shared.known(caller) else { return false };
        let Some(known) = known else { return true };
        let (access, authenticator) = (AccessAttributes::from_request(info), &shared.authenticator);
        let reviewer = &authenticator.access_reviewer;
        reviewer.allows_proxy(&known.user, &Arc::new(access), &authenticator.changes).await.is_ok()
    }

    /// Grants a read: all of it or, of a `filterable` collection, the namespaces in which the caller may perform the same
    /// access. Each namespace is reviewed when it occurs. `filterable` is called if the whole is denied.
    ///
    /// # Errors
    /// The caller's identity or permissions cannot be determined.
    pub async fn readable(
        &self,
        caller: &Caller,
        info: &RequestInfo,
        filterable: impl FnOnce() -> bool,
    ) -> Result<ReadPermission, GrantError> {
        let access = Arc::new(AccessAttributes::from_request(info));
        let Some(shared) = &self.delegated else { return Ok(ReadPermission::unchecked(access)) };
        let permit = match shared.grant(caller, info, access.clone()).await {
            Err(GrantError::Denied(_)) if filterable() => shared.readable(caller, info, access),
            granted => granted,
        };
        permit.inspect_err(metrics::refused)
    }

    /// Whether rules that are known here let the caller get objects by name that a read of a collection in a namespace
    /// would show.
    pub fn has_names(&self, caller: &Caller, info: &RequestInfo) -> bool {
        let names = |user| self.rbac()?.names(user, &AccessAttributes::from_request(info).get("")).ok()?;
        caller.user().and_then(names).is_some()
    }

    /// Returns the identity with which the caller's requests are sent to upstream.
    ///
    /// # Errors
    /// The caller has a certificate, and whether it is the proxy's own user cannot be determined.
    pub async fn upstream_identity(&self, caller: &Caller) -> Result<RequestIdentity, GrantError> {
        Ok(match (caller, &self.delegated) {
            (Caller::ProxyItself, _) | (_, None) => RequestIdentity::ProxyItself,
            (Caller::Anonymous, Some(_)) => RequestIdentity::Anonymous,
            (Caller::Known(known), Some(shared)) => match &known.credential {
                Credential::Anonymous => RequestIdentity::Anonymous,
                Credential::Token(_) => RequestIdentity::Bearer(known.id, known.flow.clone()),
                // A caller that holds the proxy's own certificate has the proxy's permissions anyway.
                Credential::Certificate(_) if shared.is_own_user(&known.user).await? => RequestIdentity::ProxyItself,
                Credential::Certificate(_) | Credential::FrontProxy(..) => RequestIdentity::User(known.user.clone()),
            },
        })
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
        impersonation: &Impersonation,
        info: Option<&RequestInfo>,
    ) -> Result<User, ImpersonationDenied> {
        let (Caller::Known(known), Some(shared)) = (caller, &self.delegated) else {
            return Err(ImpersonationDenied::unknown());
        };
        let request =
            if shared.constrains_impersonation().await { info.map(AccessAttributes::from_request) } else { None };
        let authorized =
            impersonation.authorize(&shared.authenticator.access_reviewer, &known.user, request.as_ref()).await;
        authorized.inspect_err(|denied| metrics::refused(&denied.refused))
    }

    /// Whether RBAC is evaluated here, so that its objects must be known at any time.
    pub fn decides_by_rbac(&self) -> bool {
        self.rbac().is_some_and(RbacAuthorizer::is_configured)
    }

    /// Replaces all objects of a kind of RBAC objects, whose watch has begun. `None` stands for an object that cannot be
    /// decoded.
    pub fn load_policy(&self, kind: RbacKind, objects: impl IntoIterator<Item = Option<RbacEvent>>) {
        if let Some(shared) = &self.delegated {
            shared.authenticator.access_reviewer.rbac.load(kind, objects);
            shared.authenticator.changes.watch_started();
        }
    }

    /// Removes the objects of a kind of RBAC objects, because it is no longer watched.
    pub fn clear_policy(&self, kind: RbacKind) {
        if let Some(rbac) = self.rbac() {
            rbac.clear(kind);
        }
    }

    /// Applies a change of an RBAC object; `None` stands for one that cannot be decoded. Returns whether it may affect
    /// anyone.
    pub fn apply_policy_change(&self, kind: RbacKind, change: Option<RbacEvent>) -> bool {
        let Some(shared) = &self.delegated else { return false };
        let affected = shared.authenticator.access_reviewer.rbac.apply(kind, change);
        // Upstream's authorizers may see the change a moment earlier or later.
        affected.iter().for_each(|affected| shared.authenticator.changes.add(affected));
        affected.is_some()
    }

    /// Records whether changes of a kind of RBAC objects are received as they happen; if not, since when. They are
    /// received later, or the watch restarts.
    pub fn set_policy_feed(&self, kind: RbacKind, stale_since: Option<Instant>) {
        if let Some(shared) = &self.delegated {
            shared.authenticator.access_reviewer.rbac.set_live(kind, stale_since, |is_watched| {
                metrics::policy_watched(is_watched);
                shared.authenticator.changes.set_open(is_watched);
            });
        }
    }

    /// Decides and verifies tokens here again after a disagreement with upstream.
    pub fn enable_local_decisions(&self) {
        let Some(shared) = &self.delegated else { return };
        if self.decides_by_rbac() {
            shared.authenticator.access_reviewer.rbac.enable();
        }
        shared.authenticator.verifier().inspect(|verifier| verifier.resume());
    }

    /// Returns how long the rules of local decisions have been stale; `None` if they are current, or not used.
    pub fn stale_rules(&self) -> Option<Duration> {
        self.rbac()?.stale()
    }

    pub(super) fn rbac(&self) -> Option<&RbacAuthorizer> {
        Some(&self.delegated.as_ref()?.authenticator.access_reviewer.rbac)
    }

    #[cfg(test)]
    pub(super) fn changes(&self) -> &super::policy_changes::PolicyChanges {
        &self.delegated.as_ref().expect("it delegates").authenticator.changes
    }

    /// Keeps `ready` from being ready while the proxy may not create reviews; `None` if it creates none. The guards are
    /// registered at once.
    pub fn track_readiness(&self, ready: &ReadinessTracker) -> Option<BoxFuture<'static, ()>> {
        Some(self.delegated.as_ref()?.authenticator.track_readiness(ready))
    }

    /// Returns the number of leases of open watches; `None` if none are needed. Receivers are notified of the first
    /// lease and of the end of the last.
    pub fn leases(&self) -> Option<watch::Receiver<usize>> {
        self.delegated.as_ref().map(|shared| shared.leases.count())
    }

    /// Returns the time since which no policy change was received; `None` if changes would not be received at once.
    pub fn policy_unchanged_since(&self) -> Option<Instant> {
        self.delegated.as_ref()?.authenticator.changes.unchanged_since()
    }

    /// Returns the configuration, whose TTLs bound the age of cached decisions.
    pub fn config(&self) -> &AuthConfig {
        &self.config
    }
}

impl DelegatedAuthorizer {
    async fn authenticate(
        &self,
        sender: ClientConnectionInfo,
        headers: &HeaderMap,
        permits: &WaitingPermitFn<'_>,
    ) -> Result<Caller, GrantError> {
        let purpose = TokenReviewPurpose::Request { source: sender.address, permits };
        let credentials = Credential::from_request(sender, headers).map_err(|error| {
            tracing::debug!(%error, "malformed bearer token; request rejected with 401");
            GrantError::Unauthenticated
        })?;
        let mut refused = None;
        for credential in credentials {
            let id = self.authenticator.id(&credential);
            match self.authenticator.identify(id, &credential, purpose).await {
                Ok(None) => {}
                // A front proxy that names the anonymous user authenticates no caller.
                Ok(Some(AuthenticatedIdentity { user, .. })) if user.is_anonymous() => return Ok(Caller::Anonymous),
                Ok(Some(AuthenticatedIdentity { user, expires_at, .. })) => {
                    return Ok(Caller::Known(Arc::new(AuthenticatedCaller::new(id, credential, user, expires_at))));
                }
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or(Ok(Caller::Anonymous), Err)
    }

    async fn grant(
        &self,
        caller: &Caller,
        info: &RequestInfo,
        access: Arc<AccessAttributes>,
    ) -> Result<ReadPermission, GrantError> {
        let Some(known) = self.known(caller)? else { return Ok(ReadPermission::unchecked(access)) };
        // It exists before the permission is checked, so that no change falls between the two.
        let lease = (info.verb == RequestVerb::Watch).then(|| self.leases.acquire(&known, &access, None));
        let reviewer = &self.authenticator.access_reviewer;
        let purpose = if info.is_resource { ReviewPurpose::Request } else { ReviewPurpose::NonResource };
        let allowed = reviewer.decide(&known.user, &access, purpose, None).await?;
        if let Some(lease) = &lease {
            lease.state.record_decision(&known.user, &allowed, &reviewer.rbac);
        }
        let stale_rules = self.stale_for(&known, allowed.stale_rules);
        Ok(ReadPermission { access, lease, reason: allowed.reason, stale_rules, namespaces: None })
    }

    fn readable(
        &self,
        caller: &Caller,
        info: &RequestInfo,
        access: Arc<AccessAttributes>,
    ) -> Result<ReadPermission, GrantError> {
        let known = self.known(caller)?.ok_or_else(GrantError::denied)?;
        // Reviews count by account and not by node, because an account's permissions are the same on each node.
        let is_watch = info.verb == RequestVerb::Watch;
        let watch = is_watch.then(|| self.quota.permits(&FlowDistinguisher::from_user(&known.user)));
        let authenticator = self.authenticator.clone();
        let decisions = Arc::new(NamespaceDecisions::new(authenticator, known.user.clone(), access.clone(), watch));
        let lease = is_watch.then(|| self.leases.acquire(&known, &access, Some(decisions.clone())));
        let stale_rules = self.stale_for(&known, self.authenticator.access_reviewer.rbac.stale());
        let namespaces = Some(ReadableNamespaces::new(decisions, lease.clone()));
        Ok(ReadPermission { access, lease, reason: ReadPermission::FILTERED.into(), stale_rules, namespaces })
    }

    /// Returns the longer time for which the rules, or what the caller's token is bound to, have been stale.
    fn stale_for(&self, caller: &AuthenticatedCaller, rules: Option<Duration>) -> Option<Duration> {
        rules.max(self.authenticator.identity_stale_for(&caller.id))
    }

    /// Returns the user to review; `None` for the proxy itself.
    fn known(&self, caller: &Caller) -> Result<Option<Arc<AuthenticatedCaller>>, GrantError> {
        match caller {
            Caller::ProxyItself => Ok(None),
            Caller::Anonymous if !self.authenticator.config.anonymous => Err(GrantError::Unauthenticated),
            Caller::Anonymous => {
                let credential = Credential::Anonymous;
                let user = Arc::new(User::anonymous());
                Ok(Some(Arc::new(AuthenticatedCaller::new(self.authenticator.id(&credential), credential, user, None))))
            }
            Caller::Known(known) => Ok(Some(known.clone())),
        }
    }

    /// Whether upstream supports constrained impersonation.
    ///
    /// If that cannot be determined, the constraints are not used. On a release without them, a caller with all verbs
    /// would pass them.
    async fn constrains_impersonation(&self) -> bool {
        let release = async { timeout(LOOKUP_TIMEOUT, self.client.release()).await.map_err(drop)?.map_err(drop) };
        let release = Box::pin(self.release.try_get_with((), release)).await;
        release.is_ok_and(|release| release >= CONSTRAINED_SINCE)
    }

    async fn is_own_user(&self, user: &User) -> Result<bool, GrantError> {
        let own_user = async {
            let reviewed = timeout(LOOKUP_TIMEOUT, self.client.own_user()).await;
            reviewed.unwrap_or(Err(UpstreamError::Timeout(LOOKUP_TIMEOUT))).map(Arc::new)
        };
        match Box::pin(self.own_user.try_get_with((), own_user)).await {
            Ok(own_user) => Ok(own_user.is_same_as(user)),
            // An account that may not ask who it is has no caller's permissions.
            Err(error) if matches!(error.code(), Some(403 | 404)) => Ok(false),
            Err(error) => Err(GrantError::unanswered(&error, ReviewResource::TOKEN)),
        }
    }
}

/// Applies policy changes as they are received.
async fn apply_policy_changes(leases: Arc<GrantLeases>) {
    let (authenticator, mut rounds) = (&leases.authenticator, PolicyRecheckRounds::new());
    loop {
        let (affected, is_missed) = authenticator.changes.next(&mut rounds).await;
        let removed = if is_missed { &AffectedUsers::Everyone } else { &affected };
        authenticator.access_reviewer.remove_affected(removed).await;
        if is_missed {
            leases.recheck(&AffectedUsers::Everyone, true).await;
        }
        if !affected.is_none() {
            leases.recheck(&affected, false).await;
        }
    }
}

/// Applies changes of the rules to what was decided by them.
async fn apply_rule_changes(leases: Arc<GrantLeases>) {
    let authenticator = &leases.authenticator;
    loop {
        match authenticator.access_reviewer.rbac.next_change().await {
            RbacChange::Started => {
                tracing::info!("access decisions by RBAC started");
                leases.expedite_pending().await;
            }
            RbacChange::Stopped { reason, certain_until } => {
                tracing::warn!(
                    reason,
                    "access decisions by RBAC stopped; asking the apiserver; open watches continue until reviewed"
                );
                leases.end_local_decisions(certain_until).await;
            }
            RbacChange::Rules(affected) => {
                authenticator.access_reviewer.remove_affected(&affected).await;
                leases.apply_rule_change(&affected).await;
            }
        }
    }
}

impl std::fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authorizer").field("open", &self.is_open()).finish_non_exhaustive()
    }
}
