//! The leases of open watches: the decisions that each watch depends on.
//!
//! A watch registers its lease first, then its right is checked, and only then it streams. So a change between the
//! first two steps finds the lease (R-THREAT-7). Watches of one credential with the same access share one lease.
//!
//! Leases that depend on the same decision share it: the first one due sends the review for all of them in a period.
//!
//! If upstream's reason says that RBAC gives a right, it is reviewed less often while all changes of RBAC are watched.
//! A change that ends the right affects the lease. The remaining reviews detect denials by other authorizers.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use dashmap::{DashMap, Entry};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::access_reviewer::AccessDecision;
use super::authenticator::{AuthenticatedCaller, Authenticator, ReloadableAuthorities};
use super::credential::{AuthenticatedIdentity, Credential};
use super::lease_terms::{DecisionTtls, GrantLeaseTtls, LastReviewTimes};
use super::namespace_access_decisions::NamespaceDecisions;
use super::policy_changes::{LOOKED_AT, PolicyChanges};
use super::review_cache::ReviewPurpose;
use super::token_reviewer::TokenReviewPurpose;
use super::{AffectedUsers, AuthConfig, GrantError, RevokedPermission, metrics};
use crate::upstream::CredentialId;
use base::{BackgroundTasks, random};
use kubeapi::{AccessAttributes, FlowDistinguisher, User};
use tokio::sync::watch;

/// The decisions that an open watch depends on. They are checked until it is dropped.
#[derive(Debug)]
pub(super) struct GrantLease {
    pub(super) state: Arc<GrantLeaseState>,
    _keeper: DropGuard,
}

/// The state that a lease and its keeper share.
#[derive(Debug)]
pub(super) struct GrantLeaseState {
    id: CredentialId,
    credential: Credential,
    access: Arc<AccessAttributes>,
    /// The last known user of the credential. Groups may change while a watch is open.
    user: Mutex<Arc<User>>,
    /// The namespaces of a watch that is not for the whole collection.
    pub(super) verdicts: Option<Arc<NamespaceDecisions>>,
    /// The time at which the last review was sent, if its reason was RBAC.
    by_policy: Mutex<Option<Instant>>,
    recheck: Mutex<Option<GrantLeaseRecheckRequest>>,
    recheck_requested: Notify,
    /// Why it has ended.
    revoked: OnceLock<Box<RevokedPermission>>,
    /// Cancelled when the watch must end.
    pub(super) over: CancellationToken,
}

/// A policy change that may affect a lease.
#[derive(Debug, Clone, Copy)]
struct GrantLeaseRecheckRequest {
    /// The time at which the change was received. A decision of an earlier review is not accepted.
    since: Instant,
    /// The time at which the review is sent.
    begins: Instant,
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

/// Counts a lease as uncertain while `is` is set. Dropping it ends that.
struct UncertainLeaseGuard<'a> {
    leases: &'a GrantLeases,
    is: Mutex<bool>,
}

/// Checks a lease repeatedly until it ends.
struct GrantLeaseRevalidator {
    leases: Arc<GrantLeases>,
    state: Arc<GrantLeaseState>,
    /// Cancelled when the lease is dropped.
    ended: CancellationToken,
    terms: GrantLeaseTtls,
    until: Option<SystemTime>,
    reviewed: LastReviewTimes,
    /// The times before which no decision is accepted for the lease.
    oldest_accepted: LastReviewTimes,
    /// The time at which upstream's authorizers have certainly received the last policy change. The permission is
    /// reviewed again then.
    settles: Instant,
}

/// The maximum time for all reviews of one lease check.
const ASSERT_MAX: Duration = Duration::from_secs(20);
/// The pause before a retry if no decision could be obtained.
const AGAIN: Duration = Duration::from_secs(5);

/// The maximum number of leases that a review round checks at once. More are spread over [`SPREAD`].
const AT_ONCE_MAX: usize = 4;
const SPREAD: Duration = Duration::from_millis(600);

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

    /// The lease of a caller for an access: an existing one, or a new one with its keeper.
    pub(super) fn hold(
        self: &Arc<Self>,
        caller: &AuthenticatedCaller,
        access: &Arc<AccessAttributes>,
        verdicts: Option<Arc<NamespaceDecisions>>,
    ) -> Arc<GrantLease> {
        let key = (caller.id, access.clone(), verdicts.is_some());
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
            verdicts,
            by_policy: Mutex::default(),
            recheck: Mutex::default(),
            recheck_requested: Notify::new(),
            revoked: OnceLock::new(),
            over: CancellationToken::new(),
        });
        let ended = CancellationToken::new();
        let lease = Arc::new(GrantLease { state: state.clone(), _keeper: ended.clone().drop_guard() });
        drop(entry.insert(Arc::downgrade(&lease)));
        if is_another {
            self.count_lease(true);
        }
        let terms = GrantLeaseTtls::of(&self.config, &caller.credential, &caller.user);
        let keeper = GrantLeaseRevalidator {
            leases: self.clone(),
            state,
            ended: ended.clone(),
            terms,
            until: caller.until,
            reviewed: LastReviewTimes::at(Instant::now()),
            oldest_accepted: LastReviewTimes::at(Instant::now()),
            settles: terms.settled_after(self.changes.moved()),
        };
        let leases = self.clone();
        self.tasks.spawn("lease", async move {
            tokio::select! {
                () = keeper.keep() => {}
                () = ended.cancelled() => {}
            }
            // Another lease may have replaced one that was revoked.
            let is_over = |lease: Arc<GrantLease>| lease.state.revoked().is_some();
            if leases.leases.remove_if(&key, |_, lease| lease.upgrade().is_none_or(is_over)).is_some() {
                leases.count_lease(false);
            }
        });
        lease
    }

    /// Makes the keepers of affected leases check them again. Decisions from before now are not accepted.
    pub(super) async fn recheck(&self, affected: &AffectedUsers) {
        let since = Instant::now();
        let leases: Vec<_> = self.leases.iter().map(|lease| lease.value().clone()).collect();
        let mut touched = Vec::new();
        for (count, lease) in leases.into_iter().enumerate() {
            if count % LOOKED_AT == LOOKED_AT - 1 {
                yield_now().await;
            }
            let Some(state) = lease.upgrade().map(|lease| lease.state.clone()) else { continue };
            let user = state.user.lock().clone();
            match &state.verdicts {
                // A watch across namespaces depends on the rights in each of them.
                Some(verdicts) => {
                    affected.reach(&user).into_iter().for_each(|reach| verdicts.recheck(&reach, since));
                }
                None if affected.contains(&user, state.access.namespace()) => touched.push(state),
                None => {}
            }
        }
        let spread = if touched.len() > AT_ONCE_MAX { SPREAD } else { Duration::ZERO };
        for state in touched {
            state.request_recheck(GrantLeaseRecheckRequest { since, begins: since + spread.mul_f64(random::f64()) });
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
    pub(super) fn refuse(&self, why: GrantError) {
        metrics::revoked(&why);
        self.revoke(why);
    }

    /// Ends the lease, unless it has ended.
    fn revoke(&self, why: GrantError) {
        let (user, access) = (self.user.lock().clone(), self.access.clone());
        let _ = self.revoked.set(Box::new(RevokedPermission { user, access, why }));
        self.over.cancel();
    }

    /// Replaces the user of the credential. Returns whether it differs, so that earlier decisions are not valid for it.
    fn replace_user(&self, user: &Arc<User>) -> bool {
        let mut known = self.user.lock();
        let is_another = *known != *user;
        if is_another {
            *self.by_policy.lock() = None;
        }
        *known = user.clone();
        is_another
    }

    /// Records a decision on the user's permission.
    pub(super) fn record_decision(&self, user: &User, allowed: &AccessDecision) {
        let of = self.user.lock();
        if **of != *user {
            return;
        }
        let mut known = self.by_policy.lock();
        if allowed.is_by_policy() {
            *known = (*known).max(Some(allowed.sent));
        } else if known.is_none_or(|before| before <= allowed.sent) {
            *known = None;
        }
    }

    /// Returns the time at which the last review was sent, if its reason was RBAC and the time is after `since`.
    fn given_by_policy(&self, since: Instant) -> Option<Instant> {
        self.by_policy.lock().filter(|sent| *sent >= since)
    }

    fn request_recheck(&self, request: GrantLeaseRecheckRequest) {
        let mut pending = self.recheck.lock();
        // One review covers all changes until it is sent.
        let begins = pending.map_or(request.begins, |before| before.begins.min(request.begins));
        *pending = Some(GrantLeaseRecheckRequest { begins, ..request });
        drop(pending);
        self.recheck_requested.notify_one();
    }

    /// Completes when a policy change requires a review. Returns the time before which no decision is accepted.
    async fn recheck_due(&self) -> Instant {
        loop {
            let Some(begins) = self.recheck.lock().map(|request| request.begins) else {
                self.recheck_requested.notified().await;
                continue;
            };
            tokio::select! {
                biased;
                () = sleep_until(begins) => {}
                () = self.recheck_requested.notified() => continue,
            }
            if let Some(request) = self.recheck.lock().take() {
                return request.since;
            }
        }
    }
}

impl GrantLeaseRevalidator {
    /// Checks the lease until it has ended.
    async fn keep(mut self) {
        let (state, leases, grace) = (self.state.clone(), self.leases.clone(), self.terms.grace);
        let why = match &state.verdicts {
            None => self.run().await,
            Some(verdicts) => {
                let unsure = UncertainLeaseGuard::new(&leases);
                tokio::select! {
                    biased;
                    why = self.run() => why,
                    why = verdicts.keep(grace, |is| unsure.set(is)) => why,
                    never = verdicts.answer() => match never {},
                }
            }
        };
        if !self.ended.is_cancelled() {
            state.refuse(why);
        }
    }

    /// Checks the lease until it must end. Returns the reason.
    async fn run(&mut self) -> GrantError {
        let (state, leases) = (self.state.clone(), self.leases.clone());
        let unsure = UncertainLeaseGuard::new(&leases);
        let mut ttls = self.terms.first();
        let (mut due, mut unsure_since) = (self.next(ttls), None);
        let mut authorities = leases.authenticator.authorities(&state.credential);
        loop {
            let before = self.reviewed;
            // Policy changes do not affect the identity.
            let since = tokio::select! {
                biased;
                () = sleep_until(due) => Some(self.reviewed.oldest_accepted(ttls)),
                since = state.recheck_due() => {
                    self.settles = self.terms.settled_after(since);
                    // Until a review after the change succeeds, no older decision is accepted.
                    self.oldest_accepted.right = since;
                    None
                }
                () = replaced(&mut authorities) => {
                    self.oldest_accepted = LastReviewTimes::at(Instant::now());
                    Some(self.oldest_accepted)
                }
            };
            match timeout(ASSERT_MAX, self.check(since)).await.unwrap_or_else(|_| Err(late())) {
                Ok(()) => {
                    unsure.set(false);
                    unsure_since = None;
                    ttls = self.terms.next(ttls, before, self.reviewed);
                    due = self.next(ttls);
                }
                // The credential has expired by its own terms, so no review is needed.
                Err(why) if why.is_inconclusive() && self.is_over() => {
                    return GrantError::Unauthenticated;
                }
                Err(why) if why.is_inconclusive() => {
                    unsure.set(true);
                    let since = *unsure_since.get_or_insert(due.min(Instant::now()));
                    let ends = since + why.grace(self.terms.grace);
                    if ends <= Instant::now() {
                        return why;
                    }
                    let again = AGAIN.mul_f64(1.0 + 0.5 * random::f64());
                    let again = again.min(self.terms.of_right).min(self.terms.of_identity);
                    due = self.bounded((Instant::now() + again).min(ends));
                }
                Err(why) => return why,
            }
        }
    }

    /// Checks the caller's identity and right again. Parts checked since `since` are skipped; `None` means only the
    /// right of the user as last seen.
    async fn check(&mut self, since: Option<LastReviewTimes>) -> Result<(), GrantError> {
        let (state, leases) = (self.state.clone(), self.leases.clone());
        let Some(since) = since else {
            self.reviewed.right = self.review_right(self.oldest_accepted.right).await?;
            return Ok(());
        };
        let oldest = since.identity.max(self.oldest_accepted.identity);
        let mut is_another = false;
        if self.reviewed.identity < oldest || self.is_over() {
            let payer = FlowDistinguisher::of(&state.user.lock());
            let purpose = TokenReviewPurpose::Lease { since: oldest, payer: &payer };
            let identified = leases.authenticator.identify(state.id, &state.credential, purpose).await?;
            let AuthenticatedIdentity { reviewed, user, until } = identified.ok_or(GrantError::Unauthenticated)?;
            (self.reviewed.identity, self.until) = (reviewed, until);
            is_another = state.replace_user(&user);
            if let Some(verdicts) = &state.verdicts {
                verdicts.is_of(&user);
            }
        }
        if state.verdicts.is_some() {
            // The right in each namespace is reviewed separately.
            self.reviewed.right = Instant::now();
            return Ok(());
        }
        if is_another {
            // The decision for the former groups is not valid, and changes that affect the new ones were not tracked.
            self.oldest_accepted.right = Instant::now();
            self.settles = self.terms.settled_after(leases.changes.moved());
        }
        let oldest = since.right.max(self.oldest_accepted.right);
        let oldest = self.terms.least_behind(self.settles).map_or(oldest, |least| oldest.max(least));
        if self.reviewed.right < oldest {
            let by_policy = state.given_by_policy(self.oldest_accepted.right.max(self.settles));
            // A right that is checked this rarely in any case is not extended further.
            self.reviewed.right = match by_policy.filter(|_| self.terms.by_policy > self.terms.of_right) {
                Some(sent) if leases.changes.upholds(sent, self.terms.by_policy) => Instant::now(),
                _ => self.review_right(oldest).await?,
            };
        }
        Ok(())
    }

    /// Reviews the right, unless it was reviewed since `since`. Returns when.
    async fn review_right(&self, since: Instant) -> Result<Instant, GrantError> {
        let (user, access) = (self.state.user.lock().clone(), &self.state.access);
        let reviewer = &self.leases.authenticator.access_reviewer;
        let allowed = reviewer.decide(&user, access, ReviewPurpose::Lease, Some(since)).await?;
        self.state.record_decision(&user, &allowed);
        Ok(allowed.sent)
    }

    /// Returns the time of the next check without an event: when a decision is due, and once more soon after a policy
    /// change has settled.
    fn next(&self, ttls: DecisionTtls) -> Instant {
        let due = self.reviewed.due(ttls);
        let is_settled = self.state.verdicts.is_some() || self.reviewed.right >= self.settles;
        self.bounded(if is_settled { due } else { self.terms.soon_behind(self.settles, due) })
    }

    /// That time, or a little after the credential's expiry if earlier. At most a day, because a token may claim any
    /// time, and the clock may be set.
    fn bounded(&self, due: Instant) -> Instant {
        let Some(until) = self.until else { return due };
        let left = until.duration_since(self.leases.authenticator.clock.now()).unwrap_or_default();
        due.min(Instant::now() + left.min(Duration::from_secs(24 * 3600)) + Duration::from_millis(10))
    }

    /// Whether the credential has expired by its own terms.
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= self.leases.authenticator.clock.now())
    }
}

impl Drop for GrantLeaseRevalidator {
    /// A lease without a keeper would be valid for ever, so it ends with the keeper.
    fn drop(&mut self) {
        if !self.ended.is_cancelled() && self.state.revoked().is_none() {
            self.state.revoke(GrantError::Unavailable("cannot authorize: permission checks have stopped".to_owned()));
        }
    }
}

impl<'a> UncertainLeaseGuard<'a> {
    fn new(leases: &'a GrantLeases) -> Self {
        Self { leases, is: Mutex::new(false) }
    }

    fn set(&self, is: bool) {
        if std::mem::replace(&mut *self.is.lock(), is) != is {
            let mut uncertain = self.leases.uncertain.lock();
            *uncertain = if is { *uncertain + 1 } else { uncertain.saturating_sub(1) };
            metrics::outage(*uncertain);
        }
    }
}

impl Drop for UncertainLeaseGuard<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}

fn late() -> GrantError {
    GrantError::Unavailable("cannot authorize: the apiserver did not respond in time".to_owned())
}

/// Completes when the trusted authorities of a credential change; never, if the credential has none.
async fn replaced(authorities: &mut Option<ReloadableAuthorities>) {
    match authorities {
        Some(trusted) => trusted.changed().await,
        None => std::future::pending().await,
    }
}
