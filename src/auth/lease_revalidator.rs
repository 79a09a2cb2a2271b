//! Checks the lease of an open watch again until it ends.
//!
//! Leases that depend on the same decision share it: the first one due sends the review for all of them in a period.
//!
//! If upstream's reason says that RBAC gives a permission, it is reviewed less often while all changes of RBAC are
//! watched. A change that ends the permission affects the lease. The remaining reviews detect denials by other
//! authorizers. If the rules that are known here allow the access, only a change of them causes a review.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::future::OptionFuture;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::authenticator::{AuthenticatedCaller, Authenticator, ReloadableAuthorities};
use super::credential::AuthenticatedIdentity;
use super::grant_error::ReviewGrace;
use super::grant_lease::GrantLeaseState;
use super::lease_ttls::{DecisionTtls, GrantLeaseTtls, LastReviewTimes};
use super::policy_changes::PolicyChanges;
use super::recheck_request::RecheckRequest;
use super::review_purpose::ReviewPurpose;
use super::token_reviewer::TokenReviewPurpose;
use super::{AuthConfig, GrantError, metrics};
use base::random;
use kubeapi::FlowDistinguisher;

/// What the checks of all leases share.
pub(super) struct LeaseCheckDeps {
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) changes: Arc<PolicyChanges>,
    pub(super) config: AuthConfig,
    /// The number of leases that continue although their permissions cannot be checked.
    pub(super) uncertain: Mutex<usize>,
}

/// Checks a lease repeatedly until it ends.
pub(super) struct GrantLeaseRevalidator {
    deps: Arc<LeaseCheckDeps>,
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

/// Counts a lease as uncertain while `is_counted` is set. Dropping it ends that.
struct UnverifiedLeaseCountGuard<'a> {
    deps: &'a LeaseCheckDeps,
    is_counted: Mutex<bool>,
}

/// The maximum time for all reviews of one lease check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(20);
/// The pause before a retry if no decision could be obtained.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// The delay of the second review of a permission whose rule is gone. Upstream's authorizer receives a change within
/// milliseconds. The delay doubles up to [`LAG_DELAY_MAX`]; later reviews are those of the rounds after any change.
const LAG_DELAY_FIRST: Duration = Duration::from_millis(10);
const LAG_DELAY_MAX: Duration = Duration::from_millis(320);

impl GrantLeaseRevalidator {
    /// Creates the revalidator of a new lease. `ended` is cancelled when the lease is dropped.
    pub(super) fn new(
        deps: Arc<LeaseCheckDeps>,
        state: Arc<GrantLeaseState>,
        caller: &AuthenticatedCaller,
        ended: CancellationToken,
    ) -> Self {
        let lease_ttls = GrantLeaseTtls::new(&deps.config, &caller.credential, &caller.user);
        let settles_at = lease_ttls.settled_after(deps.changes.last_activity());
        let now = LastReviewTimes::at(Instant::now());
        let (reviewed, oldest_accepted, expires_at) = (now, now, caller.expires_at);
        Self { deps, state, ended, lease_ttls, expires_at, reviewed, oldest_accepted, settles_at, lag_delay: None }
    }

    /// Checks the lease until it has ended.
    pub(super) async fn run(mut self) {
        let (state, deps, grace) = (self.state.clone(), self.deps.clone(), self.lease_ttls.grace);
        let error = match &state.decisions {
            None => self.check_until_revoked().await,
            Some(decisions) => {
                let uncertain = UnverifiedLeaseCountGuard::new(&deps);
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
        let (state, deps) = (self.state.clone(), self.deps.clone());
        let uncertain = UnverifiedLeaseCountGuard::new(&deps);
        let mut ttls = self.lease_ttls.first();
        let (mut due, mut uncertain_since, mut grace) = (self.next_check(ttls), None, ReviewGrace::default());
        let mut authorities = deps.authenticator.authorities(&state.credential);
        // Whether the last review of an uncertain lease denied the access.
        let mut is_denied = false;
        let mut lost_review_at = Instant::now();
        loop {
            let before = self.reviewed;
            let lost = deps.authenticator.lost(&state.id);
            let lost = OptionFuture::from(lost.as_deref().map(|lost| async move {
                lost.cancelled().await;
                sleep_until(lost_review_at).await;
            }));
            let reloaded = OptionFuture::from(authorities.as_mut().map(ReloadableAuthorities::changed));
            // Policy changes do not affect the identity.
            let since = tokio::select! {
                biased;
                () = sleep_until(due) => Some(self.reviewed.oldest_accepted(ttls)),
                request = state.recheck.due() => {
                    self.settles_at = self.lease_ttls.settled_after(request.since);
                    // Until a review after the change succeeds, no older decision is accepted.
                    self.oldest_accepted.permission = request.since;
                    // A check may have found the lease to be local since then.
                    self.reviewed.permission = self.reviewed.permission.min(request.certain_until);
                    due = due.min(request.certain_until + self.lease_ttls.permission_ttl);
                    self.lag_delay = if request.lost_rule { Some(LAG_DELAY_FIRST) } else { self.lag_delay };
                    None
                }
                // Upstream may accept the token for some seconds more.
                Some(()) = lost => {
                    lost_review_at = Instant::now() + RETRY_DELAY;
                    self.oldest_accepted.identity = Instant::now();
                    Some(self.oldest_accepted)
                }
                Some(()) = reloaded => {
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
        let (state, deps) = (self.state.clone(), self.deps.clone());
        let Some(since) = since else {
            self.reviewed.permission = self.review_permission(self.oldest_accepted.permission).await?;
            return Ok(());
        };
        let oldest = since.identity.max(self.oldest_accepted.identity);
        let mut is_another = false;
        if self.reviewed.identity < oldest || self.is_expired() {
            let flow = FlowDistinguisher::from_user(&state.user.lock());
            let purpose = TokenReviewPurpose::Lease { since: oldest, flow: &flow };
            let identified = deps.authenticator.identify(state.id, &state.credential, purpose).await?;
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
            self.settles_at = self.lease_ttls.settled_after(deps.changes.last_activity());
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
                    Some(sent) if deps.changes.still_valid(sent, self.lease_ttls.rbac_ttl) => Instant::now(),
                    _ => self.review_permission(oldest).await?,
                };
        }
        Ok(())
    }

    /// Reviews the permission, unless it was reviewed since `since`. Returns when.
    async fn review_permission(&mut self, since: Instant) -> Result<Instant, GrantError> {
        let (user, access) = (self.state.user.lock().clone(), &self.state.access);
        let reviewer = &self.deps.authenticator.access_reviewer;
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
        let left = expires_at.duration_since(self.deps.authenticator.clock.now()).unwrap_or_default();
        due.min(Instant::now() + left.min(Duration::from_secs(24 * 3600)) + Duration::from_millis(10))
    }

    /// Whether the credential has expired by its own terms.
    fn is_expired(&self) -> bool {
        self.expires_at.is_some_and(|expires_at| expires_at <= self.deps.authenticator.clock.now())
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
    fn new(deps: &'a LeaseCheckDeps) -> Self {
        Self { deps, is_counted: Mutex::new(false) }
    }

    fn set(&self, is_counted: bool) {
        if std::mem::replace(&mut *self.is_counted.lock(), is_counted) != is_counted {
            let mut uncertain = self.deps.uncertain.lock();
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

fn timed_out() -> GrantError {
    GrantError::Unavailable("cannot authorize: the apiserver did not respond in time".to_owned())
}
