//! The lease of an open watch: the decisions that the watch depends on. They are checked again until it ends.
//!
//! Leases that depend on the same decision share it: the first one due sends the review for all of them in a period.
//!
//! If upstream's reason says that RBAC gives a permission, it is reviewed less often while all changes of RBAC are
//! watched. A change that ends the permission affects the lease. The remaining reviews detect denials by other
//! authorizers. If the rules that are known here allow the access, only a change of them causes a review.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use futures_util::future::OptionFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::access_reviewer::AccessDecision;
use super::authenticator::{AuthenticatedCaller, Authenticator, ReloadableAuthorities};
use super::credential::{AuthenticatedIdentity, Credential};
use super::namespace_access_decisions::NamespaceDecisions;
use super::rbac_authorizer::RbacAuthorizer;
use super::recheck_schedule::{RecheckRequest, RecheckRequests, ReviewOutage};
use super::review_queue::ReviewPurpose;
use super::token_reviewer::TokenReviewPurpose;
use super::{AuthConfig, GrantError, RevokedPermission, metrics};
use crate::upstream::CredentialId;
use base::random;
use kubeapi::{AccessAttributes, FlowDistinguisher, User};

/// The decisions that an open watch depends on. They are checked until it is dropped.
#[derive(Debug)]
pub(super) struct GrantLease {
    pub(super) state: Arc<GrantLeaseState>,
    pub(super) _revalidator: DropGuard,
}

/// The state that a lease and its revalidator share.
#[derive(Debug)]
pub(super) struct GrantLeaseState {
    pub(super) id: CredentialId,
    pub(super) credential: Credential,
    pub(super) access: Arc<AccessAttributes>,
    /// The last known user of the credential. Groups may change while a watch is open.
    pub(super) user: Mutex<Arc<User>>,
    /// The namespaces of a watch that is not for the whole collection.
    pub(super) decisions: Option<Arc<NamespaceDecisions>>,
    /// The time at which the last review was sent, if its reason was RBAC.
    rbac_allowed_at: Mutex<Option<Instant>>,
    /// Whether the rules that are known here allow the access. Then only a change of the rules causes a review.
    pub(super) is_local: AtomicBool,
    pub(super) recheck: RecheckRequests,
    /// Why it has ended.
    revoked: OnceLock<Box<RevokedPermission>>,
    /// Cancelled when the watch must end.
    pub(super) end_token: CancellationToken,
}

/// Checks a lease repeatedly until it ends.
pub(super) struct GrantLeaseRevalidator {
    authenticator: Arc<Authenticator>,
    state: Arc<GrantLeaseState>,
    /// Cancelled when the lease is dropped.
    ended: CancellationToken,
    expires_at: Option<SystemTime>,
    /// The user of the credential.
    identity: LeasedDecision,
    permission: LeasedDecision,
    /// The time at which upstream's authorizers have certainly received the last policy change. The permission is
    /// reviewed again then.
    settles_at: Instant,
    /// The delay before the next review if upstream allows by RBAC what the rules that are known here do not allow.
    lag_delay: Option<Duration>,
}

/// A decision that a lease depends on, and how long it stays valid between two checks.
///
/// Each period is shortened by up to a fifth at random, and the first one by up to four fifths. So leases that began
/// together are checked at different times.
struct LeasedDecision {
    period: Duration,
    /// How long the last decision stays valid.
    ttl: Duration,
    /// The time at which the decision was last reviewed.
    reviewed: Instant,
    /// The time before which no decision is accepted.
    oldest_accepted: Instant,
}

/// The maximum time for all reviews of one lease check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause before a retry if no decision could be obtained.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// The delay of the second review of a permission whose rule is gone. Upstream's authorizer receives a change within
/// milliseconds. The delay doubles up to [`LAG_DELAY_MAX`]; later reviews are those of the rounds after any change.
const LAG_DELAY_FIRST: Duration = Duration::from_millis(10);
const LAG_DELAY_MAX: Duration = Duration::from_millis(320);
/// The shortest first period of a lease, as a fraction. The leases of a proxy that has just started began together, and
/// so did those of other proxies.
const FIRST_MIN: f64 = 0.2;
/// The fraction of its period after which a decision is renewed together with another one that is due now.
const EARLY_RENEWAL: f64 = 0.9;
/// The maximum age of a shared decision, as a fraction of the period.
const SHARED: f64 = 0.75;

impl GrantLeaseState {
    pub(super) fn new(
        caller: &AuthenticatedCaller,
        access: Arc<AccessAttributes>,
        decisions: Option<Arc<NamespaceDecisions>>,
    ) -> Self {
        Self {
            id: caller.id,
            credential: caller.credential.clone(),
            access,
            user: Mutex::new(caller.user.clone()),
            decisions,
            rbac_allowed_at: Mutex::default(),
            is_local: AtomicBool::new(false),
            recheck: RecheckRequests::default(),
            revoked: OnceLock::new(),
            end_token: CancellationToken::new(),
        }
    }

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
    pub(super) fn revoke(&self, reason: GrantError) {
        let (user, access) = (self.user.lock().clone(), self.access.clone());
        let _ = self.revoked.set(Box::new(RevokedPermission { user, access, reason }));
        self.end_token.cancel();
    }

    /// Replaces the user of the credential. Returns whether it differs, so that earlier decisions are not valid for it.
    pub(super) fn replace_user(&self, user: &Arc<User>) -> bool {
        let mut known = self.user.lock();
        let is_another = *known != *user;
        if is_another {
            *self.rbac_allowed_at.lock() = None;
            self.is_local.store(false, Ordering::SeqCst);
        }
        *known = user.clone();
        is_another
    }

    /// Records a decision on the permission of the user.
    pub(super) fn record_decision(&self, user: &User, allowed: &AccessDecision, rbac: &RbacAuthorizer) {
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
        drop((of, known));
        // A change between the decision and its record did not find the lease to be local.
        self.check_rules(rbac);
    }

    /// Has upstream review the lease at once if the rules allowed it and no longer do.
    pub(super) fn check_rules(&self, rbac: &RbacAuthorizer) {
        let user = self.user.lock().clone();
        if self.is_local() && rbac.decide(&user, &self.access).is_none() {
            self.is_local.store(false, Ordering::SeqCst);
            self.recheck.add(RecheckRequest { lost_rule: true, ..RecheckRequest::at(Instant::now()) });
        }
    }

    /// Returns the time at which the last review was sent, if its reason was RBAC and the time is after `since`.
    pub(super) fn rbac_allowed_since(&self, since: Instant) -> Option<Instant> {
        self.rbac_allowed_at.lock().filter(|sent| *sent >= since)
    }

    pub(super) fn is_local(&self) -> bool {
        self.is_local.load(Ordering::SeqCst)
    }
}

impl GrantLeaseRevalidator {
    /// Creates the revalidator of a new lease. `ended` is cancelled when the lease is dropped.
    pub(super) fn new(
        authenticator: Arc<Authenticator>,
        state: Arc<GrantLeaseState>,
        caller: &AuthenticatedCaller,
        ended: CancellationToken,
    ) -> Self {
        let config = &authenticator.config;
        let permission_period = config.recheck_of(&caller.user);
        // A certificate needs no review: it has its own identity and expiry.
        let is_reviewed = matches!(caller.credential, Credential::Token(_));
        let identity_period = if is_reviewed { config.recheck.max(config.recheck_tokens) } else { permission_period };
        let fraction = FIRST_MIN + (1.0 - FIRST_MIN) * random::f64();
        let (identity, permission) =
            (LeasedDecision::new(identity_period, fraction), LeasedDecision::new(permission_period, fraction));
        let settles_at = authenticator.changes.last_activity() + config.recheck;
        let expires_at = caller.expires_at;
        Self { authenticator, state, ended, expires_at, identity, permission, settles_at, lag_delay: None }
    }

    /// Checks the lease until it has ended.
    pub(super) async fn run(mut self) {
        let state = self.state.clone();
        let error = match &state.decisions {
            None => self.check_until_revoked().await,
            Some(decisions) => tokio::select! {
                biased;
                error = self.check_until_revoked() => error,
                error = decisions.run_rechecks() => error,
                never = decisions.run_reviews() => match never {},
            },
        };
        if !self.ended.is_cancelled() {
            state.refuse(error);
        }
    }

    /// Checks the lease until it must end. Returns the reason.
    async fn check_until_revoked(&mut self) -> GrantError {
        let (state, authenticator) = (self.state.clone(), self.authenticator.clone());
        let (mut due, mut uncertain_since, mut outage) = (self.next_check(), None, None);
        let mut authorities = authenticator.authorities(&state.credential);
        // The first of the denials since a review of an uncertain lease had another result.
        let mut denied_at: Option<Instant> = None;
        let mut lost_review_at = Instant::now();
        loop {
            let lost = authenticator.lost(&state.id);
            let lost = OptionFuture::from(lost.as_deref().map(|lost| async move {
                lost.cancelled().await;
                sleep_until(lost_review_at).await;
            }));
            let reloaded = OptionFuture::from(authorities.as_mut().map(ReloadableAuthorities::changed));
            // Policy changes do not affect the identity.
            let with_identity = tokio::select! {
                biased;
                () = sleep_until(due) => true,
                request = state.recheck.due() => {
                    self.settles_at = request.since + authenticator.config.recheck;
                    // Until a review after the change succeeds, no older decision is accepted.
                    self.permission.oldest_accepted = request.since;
                    // A check may have found the lease to be local since then.
                    self.permission.reviewed = self.permission.reviewed.min(request.certain_until);
                    due = due.min(request.certain_until + self.permission.period);
                    self.lag_delay = if request.lost_rule { Some(LAG_DELAY_FIRST) } else { self.lag_delay };
                    false
                }
                // Upstream may accept the token for some seconds more.
                Some(()) = lost => {
                    lost_review_at = Instant::now() + RETRY_DELAY;
                    self.identity.oldest_accepted = Instant::now();
                    true
                }
                Some(()) = reloaded => {
                    self.identity.oldest_accepted = Instant::now();
                    self.permission.oldest_accepted = Instant::now();
                    true
                }
            };
            match timeout(CHECK_TIMEOUT, self.check(with_identity)).await.unwrap_or_else(|_| Err(timed_out())) {
                Ok(()) => {
                    (uncertain_since, outage, denied_at) = (None, None, None);
                    due = self.next_check();
                }
                // The credential has expired by its own terms, so no review is needed.
                Err(error) if error.is_inconclusive() && self.is_expired() => {
                    return GrantError::Unauthenticated;
                }
                Err(error) if error.is_denial() && denied_at.is_some_and(|at| at.elapsed() >= RETRY_DELAY) => {
                    return error;
                }
                // An apiserver that starts may deny all access until it has its rules, so after an outage a later review
                // must confirm a denial.
                Err(error)
                    if error.is_inconclusive() || error.is_denial() && (outage.is_some() || self.may_lack_rules()) =>
                {
                    denied_at = error.is_denial().then(|| denied_at.unwrap_or_else(Instant::now));
                    if error.is_denial() {
                        self.permission.oldest_accepted = Instant::now();
                    }
                    let outage = outage.get_or_insert_with(|| ReviewOutage::begin(&authenticator.outages));
                    let since = *uncertain_since.get_or_insert(due.min(Instant::now()));
                    let ends = outage.ends(&error, since, authenticator.config.outage_grace);
                    if ends <= Instant::now() {
                        return error;
                    }
                    let delay = RETRY_DELAY.mul_f64(1.0 + 0.5 * random::f64());
                    let delay = delay.min(self.permission.period).min(self.identity.period);
                    due = self.by_expiry((Instant::now() + delay).min(ends));
                }
                Err(error) => return error,
            }
        }
    }

    /// Whether the apiserver may deny the access only because it does not have its rules yet. If the rules are known
    /// here, they decide.
    fn may_lack_rules(&self) -> bool {
        let (user, rbac) = (self.state.user.lock().clone(), &self.authenticator.access_reviewer.rbac);
        let is_denied_here = || rbac.is_active() && rbac.decide(&user, &self.state.access).is_none();
        self.authenticator.changes.upstream_may_be_starting() && !is_denied_here()
    }

    /// Checks the caller's permission again, and its identity if `with_identity`. Otherwise the permission of the user as
    /// last seen is reviewed, also if it is not due.
    async fn check(&mut self, with_identity: bool) -> Result<(), GrantError> {
        let (state, authenticator) = (self.state.clone(), self.authenticator.clone());
        // One factor for both, so that decisions with the same period are renewed together.
        let fraction = 0.8 + 0.2 * random::f64();
        if !with_identity {
            let sent = self.review_permission(self.permission.oldest_accepted).await?;
            self.permission.record(sent, fraction);
            return Ok(());
        }
        let oldest = self.identity.oldest_sufficient();
        let mut is_another = false;
        if self.identity.reviewed < oldest || self.is_expired() {
            let flow = FlowDistinguisher::from_user(&state.user.lock());
            let purpose = TokenReviewPurpose::Lease { since: oldest, flow: &flow };
            let identified = authenticator.identify(state.id, &state.credential, purpose).await?;
            let AuthenticatedIdentity { reviewed, user, expires_at } = identified.ok_or(GrantError::Unauthenticated)?;
            self.identity.record(reviewed, fraction);
            self.expires_at = expires_at;
            is_another = state.replace_user(&user);
            if let Some(decisions) = &state.decisions {
                decisions.set_user(&user);
            }
        }
        if is_another {
            // The decision for the former groups is not valid, and changes that affect the new ones were not tracked.
            self.permission.oldest_accepted = Instant::now();
            self.settles_at = authenticator.changes.last_activity() + authenticator.config.recheck;
        }
        // The permission in each namespace is reviewed separately.
        if state.decisions.is_some() || state.is_local() {
            self.permission.record(Instant::now(), fraction);
            return Ok(());
        }
        let oldest = self.permission.oldest_sufficient();
        // All of upstream's decisions take the last change into account from `settles_at` on. A permission that is
        // reviewed soon after that in any case is not reviewed once more.
        let AuthConfig { recheck, recheck_rbac, .. } = *authenticator.config;
        let is_settled = self.permission.period > recheck && self.settles_at <= Instant::now();
        let oldest = if is_settled { oldest.max(self.settles_at) } else { oldest };
        if self.permission.reviewed < oldest {
            let rbac_allowed_at = state.rbac_allowed_since(self.permission.oldest_accepted.max(self.settles_at));
            // A permission that is checked this rarely in any case is not extended further.
            let sent = match rbac_allowed_at.filter(|_| recheck_rbac > self.permission.period) {
                Some(sent) if authenticator.changes.still_valid(sent, recheck_rbac) => Instant::now(),
                _ => self.review_permission(oldest).await?,
            };
            self.permission.record(sent, fraction);
        }
        Ok(())
    }

    /// Reviews the permission, unless it was reviewed since `since`. Returns when.
    async fn review_permission(&mut self, since: Instant) -> Result<Instant, GrantError> {
        let (user, access) = (self.state.user.lock().clone(), &self.state.access);
        let reviewer = &self.authenticator.access_reviewer;
        let allowed = reviewer.decide(&user, access, ReviewPurpose::Lease, Some(since)).await?;
        self.state.record_decision(&user, &allowed, &reviewer.rbac);
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
    fn next_check(&self) -> Instant {
        if self.state.is_local() {
            return self.by_expiry(self.identity.due());
        }
        let (due, recheck) = (self.identity.due().min(self.permission.due()), self.authenticator.config.recheck);
        let is_settled = self.state.decisions.is_some() || self.permission.reviewed >= self.settles_at;
        // The time is random, to separate leases that one change affects.
        self.by_expiry(if is_settled || due <= self.settles_at + recheck {
            due
        } else {
            self.settles_at + recheck.mul_f64(0.8 * random::f64())
        })
    }

    /// That time, or a little after the credential's expiry if earlier. At most a day, because a token may claim any
    /// time, and the clock may be set.
    fn by_expiry(&self, due: Instant) -> Instant {
        let Some(expires_at) = self.expires_at else { return due };
        let left = expires_at.duration_since(self.authenticator.clock.now()).unwrap_or_default();
        due.min(Instant::now() + left.min(Duration::from_secs(24 * 3600)) + Duration::from_millis(10))
    }

    /// Whether the credential has expired by its own terms.
    fn is_expired(&self) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= self.authenticator.clock.now())
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

impl LeasedDecision {
    /// Creates the decision of a new lease, whose first period has this part of the length of others.
    fn new(period: Duration, fraction: f64) -> Self {
        let now = Instant::now();
        Self { period, ttl: period.mul_f64(fraction), reviewed: now, oldest_accepted: now }
    }

    /// Records a check. Only a decision that was renewed gets a new period.
    fn record(&mut self, reviewed: Instant, fraction: f64) {
        if self.reviewed != reviewed {
            (self.reviewed, self.ttl) = (reviewed, self.period.mul_f64(fraction));
        }
    }

    /// Returns the time at which the decision is due for a review.
    fn due(&self) -> Instant {
        self.reviewed + self.ttl
    }

    /// Returns the oldest review time that suffices in a check. A decision that is not due keeps its time.
    fn oldest_sufficient(&self) -> Instant {
        let now = Instant::now();
        let is_due = self.reviewed + self.ttl.mul_f64(EARLY_RENEWAL) <= now;
        let oldest = if is_due { now.checked_sub(self.ttl.mul_f64(SHARED)).unwrap_or(now) } else { self.reviewed };
        oldest.max(self.oldest_accepted)
    }
}

fn timed_out() -> GrantError {
    GrantError::Unavailable("cannot authorize: the apiserver did not respond in time".to_owned())
}
