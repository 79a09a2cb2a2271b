//! The leases of open watches: the decisions that each watch depends on.
//!
//! A watch registers its lease first, then its permission is checked, and only then it streams. So a change between the
//! first two steps finds the lease (R-THREAT-7). Watches of one credential with the same access share one lease.
//!
//! Leases that depend on the same decision share it: the first one due sends the review for all of them in a period.
//!
//! If upstream's reason says that RBAC gives a permission, it is reviewed less often while all changes of RBAC are
//! watched. A change that ends the permission affects the lease. The remaining reviews detect denials by other
//! authorizers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use dashmap::{DashMap, Entry};
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::access_reviewer::AccessDecision;
use super::authenticator::{AuthenticatedCaller, Authenticator, ReloadableAuthorities};
use super::credential::{AuthenticatedIdentity, Credential};
use super::grant_error::ReviewGrace;
use super::lease_ttls::{DecisionTtls, GrantLeaseTtls, LastReviewTimes};
use super::namespace_access_decisions::NamespaceDecisions;
use super::policy_changes::PolicyChanges;
use super::recheck_request::{RecheckRequest, RecheckRequests};
use super::review_purpose::ReviewPurpose;
use super::token_reviewer::TokenReviewPurpose;
use super::{AffectedUsers, AuthConfig, GrantError, RevokedPermission, metrics};
use crate::upstream::CredentialId;
use base::{BackgroundTasks, YIELD_EVERY, random};
use kubeapi::{AccessAttributes, FlowDistinguisher, User};
use tokio::sync::watch;

/// The decisions that an open watch depends on. They are checked until it is dropped.
#[derive(Debug)]
pub(super) struct GrantLease {
    pub(super) state: Arc<GrantLeaseState>,
    _revalidator: DropGuard,
}

/// The state that a lease and its revalidator share.
#[derive(Debug)]
pub(super) struct GrantLeaseState {
    id: CredentialId,
    credential: Credential,
    access: Arc<AccessAttributes>,
    /// The last known user of the credential. Groups may change while a watch is open.
    user: Mutex<Arc<User>>,
    /// The namespaces of a watch that is not for the whole collection.
    pub(super) decisions: Option<Arc<NamespaceDecisions>>,
    /// The time at which the last review was sent, if its reason was RBAC.
    rbac_allowed_at: Mutex<Option<Instant>>,
    /// Whether the rules that are known here allow the access. Then only a change of the rules causes a review.
    is_local: AtomicBool,
    recheck: RecheckRequests,
    /// Why it has ended.
    revoked: OnceLock<Box<RevokedPermission>>,
    /// Cancelled when the watch must end.
    pub(super) end_token: CancellationToken,
}

/// All leases.
pub(super) struct GrantLeases {
    authenticator: Arc<Authenticator>,
    changes: Arc<PolicyChanges>,
    config: AuthConfig,
    tasks: BackgroundTasks,
    /// The leases by key, in a sharded map. One, two and four threads find a lease in 415, 633 and 1,326 ns. With one
    /// lock, it takes 497, 813 and 2,108 ns.
    leases: DashMap<GrantLeaseKey, Weak<GrantLease>>,
    /// The number of leases. Receivers are notified of the first lease and of the end of the last.
    count: watch::Sender<usize>,
    /// The number of leases that continue although their permissions cannot be checked.
    uncertain: Mutex<usize>,
}

/// The key of a lease. The last part states whether the lease covers some namespaces instead of the whole collection.
type GrantLeaseKey = (CredentialId, Arc<AccessAttributes>, bool);

/// Counts a lease as uncertain while `is_counted` is set. Dropping it ends that.
struct UnverifiedLeaseCountGuard<'a> {
    leases: &'a GrantLeases,
    is_counted: Mutex<bool>,
}

/// Checks a lease repeatedly until it ends.
struct GrantLeaseRevalidator {
    leases: Arc<GrantLeases>,
    state: Arc<GrantLeaseState>,
    /// Cancelled when the lease is dropped.
    ended: CancellationToken,
    lease_ttls: GrantLeaseTtls,
    expires_at: Option<SystemTime>,
    reviewed: LastReviewTimes,
    /// The times before which no decision is accepted for the lease.
    oldest_accepted: LastReviewTimes,
    /// The time at which upstream's authorizers have certainly received the last policy change. The permission is
    /// reviewed again then.
    settles_at: Instant,
    /// The delay before the next review if upstream allows by RBAC what the rules that are known here do not allow.
    lag_delay: Option<Duration>,
}

/// The maximum time for all reviews of one lease check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause before a retry if no decision could be obtained.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The maximum number of leases that a review round checks at once. More are spread over [`SPREAD`].
const IMMEDIATE_MAX: usize = 4;
const SPREAD: Duration = Duration::from_millis(600);
/// The delay of the second review of a permission whose rule is gone. Upstream's authorizer receives a change within
/// milliseconds. The delay doubles up to [`LAG_DELAY_MAX`]; later reviews are those of the rounds after any change.
const LAG_DELAY_FIRST: Duration = Duration::from_millis(10);
const LAG_DELAY_MAX: Duration = Duration::from_millis(320);

impl GrantLeases {
    pub(super) fn new(
        authenticator: Arc<Authenticator>,
        changes: Arc<PolicyChanges>,
        config: AuthConfig,
        tasks: BackgroundTasks,
    ) -> Self {
        let (leases, count, uncertain) = (DashMap::new(), watch::Sender::default(), Mutex::default());
        Self { authenticator, changes, config, tasks, leases, count, uncertain }
    }

    /// The lease of a caller for an access: an existing one, or a new one with its revalidator.
    pub(super) fn acquire(
        self: &Arc<Self>,
        caller: &AuthenticatedCaller,
        access: &Arc<AccessAttributes>,
        decisions: Option<Arc<NamespaceDecisions>>,
    ) -> Arc<GrantLease> {
        let key = (caller.id, access.clone(), decisions.is_some());
        let entry = self.leases.entry(key.clone());
        if let Entry::Occupied(entry) = &entry
            && let Some(lease) = entry.get().upgrade().filter(|lease| lease.state.revoked().is_none())
        {
            return lease;
        }
        let is_another = matches!(entry, Entry::Vacant(_));
        let state = Arc::new(GrantLeaseState {
            id: caller.id,
            credential: caller.credential.clone(),
            access: access.clone(),
            user: Mutex::new(caller.user.clone()),
            decisions,
            rbac_allowed_at: Mutex::default(),
            is_local: AtomicBool::new(false),
            recheck: RecheckRequests::default(),
            revoked: OnceLock::new(),
            end_token: CancellationToken::new(),
        });
        let ended = CancellationToken::new();
        let lease = Arc::new(GrantLease { state: state.clone(), _revalidator: ended.clone().drop_guard() });
        drop(entry.insert(Arc::downgrade(&lease)));
        if is_another {
            self.count_lease(true);
        }
        let lease_ttls = GrantLeaseTtls::new(&self.config, &caller.credential, &caller.user);
        let revalidator = GrantLeaseRevalidator {
            leases: self.clone(),
            state,
            ended: ended.clone(),
            lease_ttls,
            expires_at: caller.expires_at,
            reviewed: LastReviewTimes::at(Instant::now()),
            oldest_accepted: LastReviewTimes::at(Instant::now()),
            settles_at: lease_ttls.settled_after(self.changes.last_activity()),
            lag_delay: None,
        };
        let leases = self.clone();
        self.tasks.spawn("lease", async move {
            tokio::select! {
                () = revalidator.run() => {}
                () = ended.cancelled() => {}
            }
            // Another lease may have replaced one that was revoked.
            let is_revoked = |lease: Arc<GrantLease>| lease.state.revoked().is_some();
            if leases.leases.remove_if(&key, |_, lease| lease.upgrade().is_none_or(is_revoked)).is_some() {
                leases.count_lease(false);
            }
        });
        lease
    }

    /// Makes the revalidators of affected leases check them again. Decisions from before now are not accepted.
    pub(super) async fn recheck(&self, affected: &AffectedUsers) {
        let (since, mut matching) = (Instant::now(), Vec::new());
        self.for_affected(affected, since, |state| matching.extend((!state.is_local()).then(|| state.clone()))).await;
        request_rechecks(matching, since, since);
    }

    /// Evaluates the leases again that a change of the rules affects. Upstream reviews at once those that the rules no
    /// longer allow.
    pub(super) async fn apply_rule_change(&self, affected: &AffectedUsers) {
        self.for_affected(affected, Instant::now(), |state| self.check_rules(state)).await;
    }

    /// Ends the validity of local decisions. Their leases are reviewed as others from now on.
    pub(super) async fn end_local_decisions(&self, certain_until: Instant) {
        let (since, mut matching) = (Instant::now(), Vec::new());
        let end = |state: &Arc<GrantLeaseState>| {
            matching.extend(state.is_local.swap(false, Ordering::SeqCst).then(|| state.clone()));
        };
        self.for_affected(&AffectedUsers::Everyone, since, end).await;
        request_rechecks(matching, since, certain_until);
    }

    /// Calls `visit` with each lease of a whole collection that a change affects. A watch across namespaces depends on
    /// the permissions in each of them, which are reviewed again.
    async fn for_affected(
        &self,
        affected: &AffectedUsers,
        since: Instant,
        mut visit: impl FnMut(&Arc<GrantLeaseState>),
    ) {
        let leases: Vec<_> = self.leases.iter().map(|lease| lease.value().clone()).collect();
        for (count, lease) in leases.into_iter().enumerate() {
            if count % YIELD_EVERY == YIELD_EVERY - 1 {
                yield_now().await;
            }
            let Some(state) = lease.upgrade().map(|lease| lease.state.clone()) else { continue };
            let user = state.user.lock().clone();
            match &state.decisions {
                Some(decisions) => {
                    affected
                        .namespaces_of(&user)
                        .into_iter()
                        .for_each(|namespaces| decisions.recheck(&namespaces, since));
                }
                None if affected.contains(&user, state.access.namespace()) => visit(&state),
                None => {}
            }
        }
    }

    /// Records a decision on the permission of a lease's user.
    pub(super) fn record_decision(&self, state: &GrantLeaseState, user: &User, allowed: &AccessDecision) {
        state.record_decision(user, allowed);
        // A change between the decision and its record did not find the lease to be local.
        self.check_rules(state);
    }

    /// Has upstream review a lease at once if the rules allowed it and no longer do.
    fn check_rules(&self, state: &GrantLeaseState) {
        let user = state.user.lock().clone();
        let rbac = &self.authenticator.access_reviewer.rbac;
        if state.is_local() && rbac.decide(&user, &state.access).is_none() {
            state.is_local.store(false, Ordering::SeqCst);
            state.recheck.add(RecheckRequest { lost_rule: true, ..RecheckRequest::at(Instant::now()) });
        }
    }

    /// The number of leases. Receivers are notified of the first lease and of the end of the last.
    pub(super) fn count(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }

    fn count_lease(&self, more: bool) {
        metrics::leases(if more { 1.0 } else { -1.0 });
        self.count.send_if_modified(|count| {
            let before = *count;
            *count = if more { before + 1 } else { before.saturating_sub(1) };
            (before == 0) != (*count == 0)
        });
    }
}

impl GrantLeaseState {
    /// Returns the reason that the watch must end, if it must. It costs one atomic load.
    pub(super) fn revoked(&self) -> Option<&RevokedPermission> {
        self.revoked.get().map(AsRef::as_ref)
    }

    /// Ends the lease, because the caller lacks the permission.
    pub(super) fn refuse(&self, error: GrantError) {
        metrics::revoked(&error);
        self.revoke(error);
    }

    /// Ends the lease, unless it has ended.
    fn revoke(&self, reason: GrantError) {
        let (user, access) = (self.user.lock().clone(), self.access.clone());
        let _ = self.revoked.set(Box::new(RevokedPermission { user, access, reason }));
        self.end_token.cancel();
    }

    /// Replaces the user of the credential. Returns whether it differs, so that earlier decisions are not valid for it.
    fn replace_user(&self, user: &Arc<User>) -> bool {
        let mut known = self.user.lock();
        let is_another = *known != *user;
        if is_another {
            *self.rbac_allowed_at.lock() = None;
            self.is_local.store(false, Ordering::SeqCst);
        }
        *known = user.clone();
        is_another
    }

    /// Records a decision on the user's permission.
    fn record_decision(&self, user: &User, allowed: &AccessDecision) {
        let of = self.user.lock();
        if **of != *user {
            return;
        }
        if allowed.is_local {
            self.is_local.store(true, Ordering::SeqCst);
        }
        let mut known = self.rbac_allowed_at.lock();
        if allowed.is_by_rbac() {
            *known = (*known).max(Some(allowed.sent));
        } else if known.is_none_or(|before| before <= allowed.sent) {
            *known = None;
        }
    }

    /// Returns the time at which the last review was sent, if its reason was RBAC and the time is after `since`.
    fn rbac_allowed_since(&self, since: Instant) -> Option<Instant> {
        self.rbac_allowed_at.lock().filter(|sent| *sent >= since)
    }

    fn is_local(&self) -> bool {
        self.is_local.load(Ordering::SeqCst)
    }
}

impl GrantLeaseRevalidator {
    /// Checks the lease until it has ended.
    async fn run(mut self) {
        let (state, leases, grace) = (self.state.clone(), self.leases.clone(), self.lease_ttls.grace);
        let error = match &state.decisions {
            None => self.check_until_revoked().await,
            Some(decisions) => {
                let uncertain = UnverifiedLeaseCountGuard::new(&leases);
                tokio::select! {
                    biased;
                    error = self.check_until_revoked() => error,
                    error = decisions.run_rechecks(grace, |is_counted| uncertain.set(is_counted)) => error,
                    never = decisions.run_reviews() => match never {},
                }
            }
        };
        if !self.ended.is_cancelled() {
            state.refuse(error);
        }
    }

    /// Checks the lease until it must end. Returns the reason.
    async fn check_until_revoked(&mut self) -> GrantError {
        let (state, leases) = (self.state.clone(), self.leases.clone());
        let uncertain = UnverifiedLeaseCountGuard::new(&leases);
        let mut ttls = self.lease_ttls.first();
        let (mut due, mut uncertain_since, mut grace) = (self.next_check(ttls), None, ReviewGrace::default());
        let mut authorities = leases.authenticator.authorities(&state.credential);
        // Whether the last review of an uncertain lease denied the access.
        let mut is_denied = false;
        let mut lost_review_at = Instant::now();
        loop {
            let before = self.reviewed;
            let lost = leases.authenticator.lost(&state.id);
            // Policy changes do not affect the identity.
            let since = tokio::select! {
                biased;
                () = sleep_until(due) => Some(self.reviewed.oldest_accepted(ttls)),
                request = state.recheck.due() => {
                    self.settles_at = self.lease_ttls.settled_after(request.since);
                    // Until a review after the change succeeds, no older decision is accepted.
                    self.oldest_accepted.permission = request.since;
                    due = due.min(request.certain_until + self.lease_ttls.permission_ttl);
                    self.lag_delay = if request.lost_rule { Some(LAG_DELAY_FIRST) } else { self.lag_delay };
                    None
                }
                // Upstream may accept the token for some seconds more.
                () = lost_at(lost.as_deref(), lost_review_at) => {
                    lost_review_at = Instant::now() + RETRY_DELAY;
                    self.oldest_accepted.identity = Instant::now();
                    Some(self.oldest_accepted)
                }
                () = authorities_changed(&mut authorities) => {
                    self.oldest_accepted = LastReviewTimes::at(Instant::now());
                    Some(self.oldest_accepted)
                }
            };
            match timeout(CHECK_TIMEOUT, self.check(since)).await.unwrap_or_else(|_| Err(timed_out())) {
                Ok(()) => {
                    uncertain.set(false);
                    (uncertain_since, grace, is_denied) = (None, ReviewGrace::default(), false);
                    ttls = self.lease_ttls.next(ttls, before, self.reviewed);
                    due = self.next_check(ttls);
                }
                // The credential has expired by its own terms, so no review is needed.
                Err(error) if error.is_inconclusive() && self.is_expired() => {
                    return GrantError::Unauthenticated;
                }
                // An apiserver that starts may deny all access until it has its rules, so after an outage a second
                // review must confirm a denial.
                Err(error)
                    if error.is_inconclusive() || error.is_denial() && uncertain_since.is_some() && !is_denied =>
                {
                    is_denied = error.is_denial();
                    if is_denied {
                        self.oldest_accepted.permission = Instant::now();
                    }
                    uncertain.set(true);
                    let since = *uncertain_since.get_or_insert(due.min(Instant::now()));
                    let ends = grace.ends(&error, since, self.lease_ttls.grace);
                    if ends <= Instant::now() {
                        return error;
                    }
                    let delay = RETRY_DELAY.mul_f64(1.0 + 0.5 * random::f64());
                    let delay = delay.min(self.lease_ttls.permission_ttl).min(self.lease_ttls.identity_ttl);
                    due = self.by_expiry((Instant::now() + delay).min(ends));
                }
                Err(error) => return error,
            }
        }
    }

    /// Checks the caller's identity and permission again. Parts checked since `since` are skipped; `None` means only
    /// the permission of the user as last seen.
    async fn check(&mut self, since: Option<LastReviewTimes>) -> Result<(), GrantError> {
        let (state, leases) = (self.state.clone(), self.leases.clone());
        let Some(since) = since else {
            self.reviewed.permission = self.review_permission(self.oldest_accepted.permission).await?;
            return Ok(());
        };
        let oldest = since.identity.max(self.oldest_accepted.identity);
        let mut is_another = false;
        if self.reviewed.identity < oldest || self.is_expired() {
            let flow = FlowDistinguisher::from_user(&state.user.lock());
            let purpose = TokenReviewPurpose::Lease { since: oldest, flow: &flow };
            let identified = leases.authenticator.identify(state.id, &state.credential, purpose).await?;
            let AuthenticatedIdentity { reviewed, user, expires_at } = identified.ok_or(GrantError::Unauthenticated)?;
            (self.reviewed.identity, self.expires_at) = (reviewed, expires_at);
            is_another = state.replace_user(&user);
            if let Some(decisions) = &state.decisions {
                decisions.set_user(&user);
            }
        }
        if state.decisions.is_some() {
            // The permission in each namespace is reviewed separately.
            self.reviewed.permission = Instant::now();
            return Ok(());
        }
        if is_another {
            // The decision for the former groups is not valid, and changes that affect the new ones were not tracked.
            self.oldest_accepted.permission = Instant::now();
            self.settles_at = self.lease_ttls.settled_after(leases.changes.last_activity());
        }
        if state.is_local() {
            self.reviewed.permission = Instant::now();
            return Ok(());
        }
        let oldest = since.permission.max(self.oldest_accepted.permission);
        let oldest = self.lease_ttls.oldest_accepted_review(self.settles_at).map_or(oldest, |least| oldest.max(least));
        if self.reviewed.permission < oldest {
            let rbac_allowed_at = state.rbac_allowed_since(self.oldest_accepted.permission.max(self.settles_at));
            // A permission that is checked this rarely in any case is not extended further.
            self.reviewed.permission =
                match rbac_allowed_at.filter(|_| self.lease_ttls.rbac_ttl > self.lease_ttls.permission_ttl) {
                    Some(sent) if leases.changes.still_valid(sent, self.lease_ttls.rbac_ttl) => Instant::now(),
                    _ => self.review_permission(oldest).await?,
                };
        }
        Ok(())
    }

    /// Reviews the permission, unless it was reviewed since `since`. Returns when.
    async fn review_permission(&mut self, since: Instant) -> Result<Instant, GrantError> {
        let (user, access) = (self.state.user.lock().clone(), &self.state.access);
        let reviewer = &self.leases.authenticator.access_reviewer;
        let allowed = reviewer.decide(&user, access, ReviewPurpose::Lease, Some(since)).await?;
        self.leases.record_decision(&self.state, &user, &allowed);
        let delay = self.lag_delay.take().filter(|delay| allowed.is_by_rbac() && *delay <= LAG_DELAY_MAX);
        if let Some(delay) = delay.filter(|_| !allowed.is_local) {
            self.lag_delay = Some(2 * delay);
            let now = Instant::now();
            self.state.recheck.add(RecheckRequest { begins_at: now + delay, ..RecheckRequest::at(now) });
        }
        Ok(allowed.sent)
    }

    /// Returns the time of the next check without an event: when a decision is due, and once more soon after a policy
    /// change has settled.
    fn next_check(&self, ttls: DecisionTtls) -> Instant {
        if self.state.is_local() {
            return self.by_expiry(self.reviewed.identity_due(ttls));
        }
        let due = self.reviewed.due(ttls);
        let is_settled = self.state.decisions.is_some() || self.reviewed.permission >= self.settles_at;
        self.by_expiry(if is_settled { due } else { self.lease_ttls.review_time_after(self.settles_at, due) })
    }

    /// That time, or a little after the credential's expiry if earlier. At most a day, because a token may claim any
    /// time, and the clock may be set.
    fn by_expiry(&self, due: Instant) -> Instant {
        let Some(expires_at) = self.expires_at else { return due };
        let left = expires_at.duration_since(self.leases.authenticator.clock.now()).unwrap_or_default();
        due.min(Instant::now() + left.min(Duration::from_secs(24 * 3600)) + Duration::from_millis(10))
    }

    /// Whether the credential has expired by its own terms.
    fn is_expired(&self) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= self.leases.authenticator.clock.now())
    }
}

impl Drop for GrantLeaseRevalidator {
    /// A lease without a revalidator would be valid for ever, so it ends with the revalidator.
    fn drop(&mut self) {
        if !self.ended.is_cancelled() && self.state.revoked().is_none() {
            self.state.revoke(GrantError::Unavailable("cannot authorize: permission checks have stopped".to_owned()));
        }
    }
}

impl<'a> UnverifiedLeaseCountGuard<'a> {
    fn new(leases: &'a GrantLeases) -> Self {
        Self { leases, is_counted: Mutex::new(false) }
    }

    fn set(&self, is_counted: bool) {
        if std::mem::replace(&mut *self.is_counted.lock(), is_counted) != is_counted {
            let mut uncertain = self.leases.uncertain.lock();
            *uncertain = if is_counted { *uncertain + 1 } else { uncertain.saturating_sub(1) };
            metrics::outage(*uncertain);
        }
    }
}

impl Drop for UnverifiedLeaseCountGuard<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}

/// Has each lease reviewed soon. Many reviews are spread over a short time.
fn request_rechecks(leases: Vec<Arc<GrantLeaseState>>, since: Instant, certain_until: Instant) {
    let spread = if leases.len() > IMMEDIATE_MAX { SPREAD } else { Duration::ZERO };
    for state in leases {
        let begins_at = since + spread.mul_f64(random::f64());
        state.recheck.add(RecheckRequest { begins_at, certain_until, ..RecheckRequest::at(since) });
    }
}

fn timed_out() -> GrantError {
    GrantError::Unavailable("cannot authorize: the apiserver did not respond in time".to_owned())
}

/// Completes when an object that a token is bound to is lost, and not before `at`.
async fn lost_at(lost: Option<&CancellationToken>, at: Instant) {
    match lost {
        Some(lost) => {
            lost.cancelled().await;
            sleep_until(at).await;
        }
        None => std::future::pending().await,
    }
}

/// Completes when the trusted authorities of a credential change; never, if the credential has none.
async fn authorities_changed(authorities: &mut Option<ReloadableAuthorities>) {
    match authorities {
        Some(trusted) => trusted.changed().await,
        None => std::future::pending().await,
    }
}
