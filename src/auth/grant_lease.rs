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
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::access_reviewer::AccessDecision;
use super::authenticator::{Authenticator, TrustedAuthorities};
use super::changes::LOOKED_AT;
use super::credential::{Credential, Identity};
use super::lease_state::{LeaseState, RecheckRequest};
use super::lease_terms::{DecisionTtls, LeaseTerms, ReviewTimes};
use super::namespace_verdicts::NamespaceVerdicts;
use super::policy_watch_state::PolicyWatchState;
use super::review_cache::ReviewPurpose;
use super::{AffectedUsers, NotGranted, Revoked, metrics, token_reviewer};
use crate::upstream::CredentialId;
use base::{Tasks, random};
use kubeapi::{Access, FlowDistinguisher, User};
use tokio::sync::watch;

/// The decisions that an open watch depends on.
#[derive(Debug)]
pub(super) struct GrantLease {
    /// The reason that the lease has ended; empty while it is valid.
    revoked: OnceLock<Box<Revoked>>,
    over: CancellationToken,
    shared: Arc<LeaseState>,
    _keeper: DropGuard,
}

/// All leases of open watches.
#[derive(Debug)]
pub(super) struct Leases {
    /// The leases by key, in a sharded map. One, two and four threads find a lease in 415, 633 and 1,326 ns. With one
    /// lock, it takes 497, 813 and 2,108 ns.
    held: DashMap<LeaseKey, Weak<GrantLease>>,
    /// The number of leases. Receivers are notified of the first lease and of the end of the last.
    count: watch::Sender<usize>,
    /// The number of leases that continue although their permissions cannot be checked.
    in_doubt: Mutex<usize>,
    policy_watch: Arc<PolicyWatchState>,
}

/// Counts a lease as uncertain while `is` is set. Dropping it ends that.
struct UncertaintyCount<'a> {
    leases: &'a Leases,
    is: Mutex<bool>,
}

/// The key of a lease. The last part states whether the lease covers some namespaces instead of the whole collection.
type LeaseKey = (CredentialId, Arc<Access>, bool);

/// Checks a lease repeatedly until it ends.
struct LeaseKeeper {
    authenticator: Arc<Authenticator>,
    leases: Arc<Leases>,
    lease: Weak<GrantLease>,
    standing: Arc<LeaseState>,
    terms: LeaseTerms,
    until: Option<SystemTime>,
    good: ReviewTimes,
    /// The times before which no decision is accepted for the lease.
    needed: ReviewTimes,
    /// The time at which upstream's authorizers have certainly received the last policy change. The permission is
    /// reviewed again then.
    settles: Instant,
}

/// An authenticated caller and the access that a lease is for.
pub(super) struct LeaseRequest {
    pub(super) id: CredentialId,
    pub(super) credential: Credential,
    pub(super) user: Arc<User>,
    /// The time at which the credential expires, if known.
    pub(super) until: Option<SystemTime>,
    pub(super) access: Arc<Access>,
    pub(super) verdicts: Option<Arc<NamespaceVerdicts>>,
}

/// The maximum time for all reviews of one lease check.
const ASSERT_MAX: Duration = Duration::from_secs(20);
/// The pause before a retry if no decision could be obtained.
const AGAIN: Duration = Duration::from_secs(5);
/// The maximum number of leases that a review round checks at once. More are spread over [`SPREAD`].
const AT_ONCE_MAX: usize = 4;
const SPREAD: Duration = Duration::from_millis(600);

impl Leases {
    pub(super) fn new(policy_watch: Arc<PolicyWatchState>) -> Self {
        Self { held: DashMap::new(), count: watch::Sender::default(), in_doubt: Mutex::default(), policy_watch }
    }

    /// Returns the lease for a request: an existing one, or a new one with its keeper.
    pub(super) fn hold(
        self: &Arc<Self>,
        claim: LeaseRequest,
        authenticator: &Arc<Authenticator>,
        terms: LeaseTerms,
        tasks: &Tasks,
    ) -> Arc<GrantLease> {
        let key = (claim.id, claim.access.clone(), claim.verdicts.is_some());
        let held = self.held.entry(key.clone());
        if let Entry::Occupied(held) = &held
            && let Some(lease) = held.get().upgrade().filter(|lease| lease.revoked.get().is_none())
        {
            return lease;
        }
        let is_another = matches!(held, Entry::Vacant(_));
        let LeaseRequest { id, credential, user, until, access, verdicts } = claim;
        let standing = Arc::new(LeaseState::new((id, credential), access, user, verdicts));
        let ended = CancellationToken::new();
        let lease = Arc::new(GrantLease {
            revoked: OnceLock::new(),
            over: CancellationToken::new(),
            shared: standing.clone(),
            _keeper: ended.clone().drop_guard(),
        });
        drop(held.insert(Arc::downgrade(&lease)));
        if is_another {
            metrics::leases(1.0);
            self.count_lease(true);
        }
        let keeper = LeaseKeeper {
            authenticator: authenticator.clone(),
            leases: self.clone(),
            lease: Arc::downgrade(&lease),
            standing,
            terms,
            until,
            good: ReviewTimes::at(Instant::now()),
            needed: ReviewTimes::at(Instant::now()),
            settles: terms.settled_after(self.policy_watch.moved()),
        };
        let leases = self.clone();
        tasks.spawn("lease", async move {
            tokio::select! {
                () = keeper.keep() => {}
                () = ended.cancelled() => {}
            }
            leases.forget(&key);
        });
        lease
    }

    /// Makes the keepers of affected leases check them again. Decisions from before now are not accepted.
    pub(super) async fn doubt(&self, affected: &AffectedUsers) {
        let since = Instant::now();
        let held: Vec<_> = self.held.iter().map(|lease| lease.value().clone()).collect();
        let mut touched = Vec::new();
        for (count, lease) in held.into_iter().enumerate() {
            if count % LOOKED_AT == LOOKED_AT - 1 {
                yield_now().await;
            }
            let Some(standing) = lease.upgrade().map(|lease| lease.shared.clone()) else { continue };
            let user = standing.user.lock().clone();
            match &standing.verdicts {
                // A watch across namespaces depends on the rights in each of them.
                Some(verdicts) => {
                    affected.reach(&user).into_iter().for_each(|reach| verdicts.doubt(&reach, since));
                }
                None if affected.contains(&user, standing.access.namespace()) => touched.push(standing),
                None => {}
            }
        }
        let spread = if touched.len() > AT_ONCE_MAX { SPREAD } else { Duration::ZERO };
        for standing in touched {
            standing.doubt(RecheckRequest { since, begins: since + spread.mul_f64(random::f64()) });
        }
    }

    fn forget(&self, key: &LeaseKey) {
        // Another lease may have replaced one that was revoked.
        let is_over = |lease: Arc<GrantLease>| lease.revoked.get().is_some();
        if self.held.remove_if(key, |_, lease| lease.upgrade().is_none_or(is_over)).is_some() {
            metrics::leases(-1.0);
            self.count_lease(false);
        }
    }

    /// Returns the number of leases. Receivers are notified of the first lease and of the end of the last.
    pub(super) fn count(&self) -> watch::Receiver<usize> {
        self.count.subscribe()
    }

    fn count_lease(&self, more: bool) {
        self.count.send_if_modified(|count| {
            let before = *count;
            *count = if more { before + 1 } else { before.saturating_sub(1) };
            (before == 0) != (*count == 0)
        });
    }

    fn count_doubt(&self, more: bool) {
        let mut in_doubt = self.in_doubt.lock();
        *in_doubt = if more { *in_doubt + 1 } else { in_doubt.saturating_sub(1) };
        metrics::outage(*in_doubt);
    }
}

impl GrantLease {
    /// Returns the reason that the watch must end, if it must. It costs one atomic load.
    pub(super) fn revoked(&self) -> Option<&Revoked> {
        self.revoked.get().map(AsRef::as_ref)
    }

    /// Returns a token that is cancelled when the watch must end.
    pub(super) fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Returns the namespaces that the lease covers, if it does not cover the whole collection.
    pub(super) fn verdicts(&self) -> Option<&Arc<NamespaceVerdicts>> {
        self.shared.verdicts.as_ref()
    }

    /// Records the decision by which a watch on this lease begins.
    pub(super) fn stands_on(&self, user: &User, allowed: &AccessDecision) {
        self.shared.stands_on(user, allowed);
    }

    /// Ends the lease, because the caller lacks the permission.
    pub(super) fn refuse(&self, why: &NotGranted) {
        metrics::revoked(why.as_str());
        self.revoke(why.clone());
    }

    fn revoke(&self, why: NotGranted) {
        let (user, access) = (self.shared.user.lock().clone(), self.shared.access.clone());
        let _ = self.revoked.set(Box::new(Revoked { user, access, why }));
        self.over.cancel();
    }
}

impl LeaseKeeper {
    /// Checks the lease until it has ended.
    async fn keep(mut self) {
        let (standing, authenticator, leases) =
            (self.standing.clone(), self.authenticator.clone(), self.leases.clone());
        let grace = self.terms.grace;
        let why = match &standing.verdicts {
            None => self.run(&authenticator).await,
            Some(verdicts) => {
                let unsure = UncertaintyCount::new(&leases);
                tokio::select! {
                    biased;
                    why = self.run(&authenticator) => why,
                    why = verdicts.keep(grace, |is| unsure.set(is)) => why,
                    never = verdicts.answer() => match never {},
                }
            }
        };
        self.revoke(&why);
    }

    /// Checks the lease until it must end. Returns the reason.
    async fn run(&mut self, authenticator: &Authenticator) -> NotGranted {
        let (leases, mut ttls) = (self.leases.clone(), self.terms.first());
        let unsure = UncertaintyCount::new(&leases);
        let (mut due, mut unsure_since) = (self.next(ttls), None);
        let mut authorities = authenticator.authorities(&self.standing.credential);
        loop {
            let before = self.good;
            let outcome = tokio::select! {
                biased;
                () = sleep_until(due) => self.assert(self.good.wanted(ttls)).await,
                since = self.standing.doubted() => {
                    self.settles = self.terms.settled_after(since);
                    self.assert_right(since).await
                }
                () = replaced(&mut authorities) => {
                    self.needed = ReviewTimes::at(Instant::now());
                    self.assert(ReviewTimes::at(Instant::now())).await
                }
            };
            match outcome {
                Ok(()) => {
                    unsure.set(false);
                    unsure_since = None;
                    ttls = self.terms.next(ttls, before, self.good);
                    due = self.next(ttls);
                }
                // The credential has expired by its own terms, so no review is needed.
                Err(why) if why.is_doubt() && self.is_over() => {
                    return NotGranted::Unauthenticated;
                }
                Err(why) if why.is_doubt() => {
                    unsure.set(true);
                    let since = *unsure_since.get_or_insert(due.min(Instant::now()));
                    let ends = since + why.grace(self.terms.grace);
                    if ends <= Instant::now() {
                        return why;
                    }
                    let again = AGAIN.mul_f64(1.0 + 0.5 * random::f64()).min(self.terms.again_max());
                    due = self.bounded((Instant::now() + again).min(ends));
                }
                Err(why) => return why,
            }
        }
    }

    /// Checks the caller's identity and permission again, within a time limit. Parts checked since `since` are skipped.
    async fn assert(&mut self, since: ReviewTimes) -> Result<(), NotGranted> {
        timeout(ASSERT_MAX, self.ask(since)).await.map_err(|_| late())?
    }

    async fn ask(&mut self, since: ReviewTimes) -> Result<(), NotGranted> {
        let wanted = since.identity.max(self.needed.identity);
        let mut is_another = false;
        if self.good.identity < wanted || self.is_over() {
            let Identity { asked, user, until } = self.identify(wanted).await?;
            (self.good.identity, self.until) = (asked, until);
            is_another = self.standing.replace_user(&user);
            if let Some(verdicts) = &self.standing.verdicts {
                verdicts.is_of(&user);
            }
        }
        if self.standing.verdicts.is_some() {
            // The right in each namespace is reviewed separately.
            self.good.right = Instant::now();
            return Ok(());
        }
        if is_another {
            // The decision for the former groups is not valid, and changes that affect the new ones were not tracked.
            self.needed.right = Instant::now();
            self.settles = self.terms.settled_after(self.leases.policy_watch.moved());
        }
        let wanted = since.right.max(self.needed.right);
        let wanted = self.terms.least_behind(self.settles).map_or(wanted, |least| wanted.max(least));
        if self.good.right < wanted {
            let by_policy = self.standing.given_by_policy(self.needed.right.max(self.settles));
            // A right that is checked this rarely in any case is not extended further.
            self.good.right = match by_policy.filter(|_| self.terms.asks_rarely()) {
                Some(asked) if self.leases.policy_watch.upholds(asked, self.terms.by_policy) => Instant::now(),
                _ => self.allowed(wanted).await?,
            };
        }
        Ok(())
    }

    async fn identify(&self, since: Instant) -> Result<Identity, NotGranted> {
        let LeaseState { id, credential, user, .. } = &*self.standing;
        let payer = FlowDistinguisher::of(&user.lock());
        let asks = token_reviewer::TokenPurpose::Lease { since, payer: &payer };
        self.authenticator.identify(*id, credential, asks).await?.ok_or(NotGranted::Unauthenticated)
    }

    /// Checks the permission of the last known user. Policy changes do not affect the identity.
    async fn assert_right(&mut self, since: Instant) -> Result<(), NotGranted> {
        // Until this review succeeds, no older decision is accepted.
        self.needed.right = since;
        self.good.right = timeout(ASSERT_MAX, self.allowed(since)).await.map_err(|_| late())??;
        Ok(())
    }

    async fn allowed(&self, since: Instant) -> Result<Instant, NotGranted> {
        let (user, access) = (self.standing.user.lock().clone(), &self.standing.access);
        let reviewer = &self.authenticator.access_reviewer;
        let allowed = reviewer.decide(&user, access, ReviewPurpose::Lease, Some(since)).await?;
        self.standing.stands_on(&user, &allowed);
        Ok(allowed.asked)
    }

    /// Returns the time of the next check without an event: when a decision is due, and once more soon after a policy
    /// change has settled.
    fn next(&self, ttls: DecisionTtls) -> Instant {
        let due = self.good.due(ttls);
        let is_settled = self.standing.verdicts.is_some() || self.good.right >= self.settles;
        self.bounded(if is_settled { due } else { self.terms.soon_behind(self.settles, due) })
    }

    /// Returns `due`, or the expiry of the credential if that is earlier.
    fn bounded(&self, due: Instant) -> Instant {
        self.until.map_or(due, |until| due.min(Instant::now() + remaining(until, self.authenticator.clock.now())))
    }

    /// Whether the credential has expired by its own terms.
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| until <= self.authenticator.clock.now())
    }

    fn revoke(&self, why: &NotGranted) {
        if let Some(lease) = self.lease.upgrade() {
            lease.refuse(why);
        }
    }
}

impl Drop for LeaseKeeper {
    /// A lease without a keeper would be valid for ever, so it ends with the keeper.
    fn drop(&mut self) {
        if let Some(lease) = self.lease.upgrade().filter(|lease| lease.revoked().is_none()) {
            lease.revoke(NotGranted::Unavailable("cannot authorize: permission checks have stopped".to_owned()));
        }
    }
}

impl<'a> UncertaintyCount<'a> {
    fn new(leases: &'a Leases) -> Self {
        Self { leases, is: Mutex::new(false) }
    }

    fn set(&self, is: bool) {
        if std::mem::replace(&mut *self.is.lock(), is) != is {
            self.leases.count_doubt(is);
        }
    }
}

impl Drop for UncertaintyCount<'_> {
    fn drop(&mut self) {
        self.set(false);
    }
}

fn late() -> NotGranted {
    NotGranted::Unavailable("cannot authorize: the apiserver did not respond in time".to_owned())
}

/// Completes when the trusted authorities of a credential change; never, if the credential has none.
async fn replaced(authorities: &mut Option<TrustedAuthorities>) {
    match authorities {
        Some(trusted) => trusted.changed().await,
        None => std::future::pending().await,
    }
}

/// Returns the time until a credential expires by the wall clock, and a little more, so that it has expired then.
///
/// The result is at most a day, because a token may claim any time, and the clock may be set.
fn remaining(until: SystemTime, now: SystemTime) -> Duration {
    let left = until.duration_since(now).unwrap_or_default();
    left.min(Duration::from_secs(24 * 3600)) + Duration::from_millis(10)
}
