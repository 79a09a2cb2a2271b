//! The leases of open watches: the decisions that each watch depends on.
//!
//! A watch registers its lease first, then its permission is checked, and only then it streams. So a change between the
//! first two steps finds the lease (R-THREAT-7). Watches of one credential with the same access share one lease.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use dashmap::{DashMap, Entry};
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::access_reviewer::AccessDecision;
use super::authenticator::{AuthenticatedCaller, Authenticator};
use super::credential::Credential;
use super::lease_revalidator::GrantLeaseRevalidator;
use super::namespace_access_decisions::NamespaceDecisions;
use super::policy_changes::PolicyChanges;
use super::recheck_request::{RecheckRequest, RecheckRequests};
use super::{AffectedUsers, AuthConfig, GrantError, RevokedPermission, metrics};
use crate::upstream::CredentialId;
use base::{BackgroundTasks, YIELD_EVERY, random};
use kubeapi::{AccessAttributes, User};
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
    is_local: AtomicBool,
    pub(super) recheck: RecheckRequests,
    /// Why it has ended.
    revoked: OnceLock<Box<RevokedPermission>>,
    /// Cancelled when the watch must end.
    pub(super) end_token: CancellationToken,
}

/// All leases.
pub(super) struct GrantLeases {
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) changes: Arc<PolicyChanges>,
    pub(super) config: AuthConfig,
    tasks: BackgroundTasks,
    /// The leases by key, in a sharded map. One, two and four threads find a lease in 415, 633 and 1,326 ns. With one
    /// lock, it takes 497, 813 and 2,108 ns.
    leases: DashMap<GrantLeaseKey, Weak<GrantLease>>,
    /// The number of leases. Receivers are notified of the first lease and of the end of the last.
    count: watch::Sender<usize>,
    /// The number of leases that continue although their permissions cannot be checked.
    pub(super) uncertain: Mutex<usize>,
}

/// The key of a lease. The last part states whether the lease covers some namespaces instead of the whole collection.
type GrantLeaseKey = (CredentialId, Arc<AccessAttributes>, bool);

/// The maximum number of leases that are checked together. More are spread, after a change over [`SPREAD`].
const IMMEDIATE_MAX: usize = 4;
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
        let revalidator = GrantLeaseRevalidator::new(self.clone(), state, caller, ended.clone());
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
        request_rechecks(matching, RecheckRequest::at(since), SPREAD);
    }

    /// Evaluates the leases again that a change of the rules affects. Upstream reviews at once those that the rules no
    /// longer allow.
    pub(super) async fn apply_rule_change(&self, affected: &AffectedUsers) {
        self.for_affected(affected, Instant::now(), |state| self.check_rules(state)).await;
    }

    /// Reviews the leases of local decisions as others from now on. The decisions were certain until that time; `None` if
    /// upstream has denied one.
    ///
    /// What was certain a moment ago is reviewed in the second half of the period in which it stays valid. By then the
    /// rules may be known again, as after a list. So a lost history does not cause a review of every lease.
    pub(super) async fn end_local_decisions(&self, certain_until: Option<Instant>) {
        let (since, mut matching) = (Instant::now(), Vec::new());
        let end = |state: &Arc<GrantLeaseState>| {
            matching.extend(state.is_local.swap(false, Ordering::SeqCst).then(|| state.clone()));
        };
        self.for_affected(&AffectedUsers::Everyone, since, end).await;
        let left = certain_until.map(|certain| (certain + self.config.recheck).saturating_duration_since(since));
        let half = left.unwrap_or_default() / 2;
        let certain_until = certain_until.unwrap_or(since);
        let request = RecheckRequest { begins_at: since + half, certain_until, ..RecheckRequest::at(since) };
        request_rechecks(matching, request, half.max(SPREAD));
    }

    /// Has the leases whose review is pending checked at once, because the rules decide again.
    pub(super) async fn begin_local_decisions(&self) {
        self.for_each(|state| state.recheck.expedite()).await;
    }

    /// Calls `visit` with each lease of a whole collection that a change affects. A watch across namespaces depends on
    /// the permissions in each of them, which are reviewed again.
    async fn for_affected(
        &self,
        affected: &AffectedUsers,
        since: Instant,
        mut visit: impl FnMut(&Arc<GrantLeaseState>),
    ) {
        self.for_each(|state| {
            let user = state.user.lock().clone();
            match &state.decisions {
                Some(decisions) => {
                    let namespaces = affected.namespaces_of(&user);
                    namespaces.iter().for_each(|namespaces| decisions.recheck(namespaces, since));
                }
                None if affected.contains(&user, state.access.namespace()) => visit(state),
                None => {}
            }
        })
        .await;
    }

    async fn for_each(&self, mut visit: impl FnMut(&Arc<GrantLeaseState>)) {
        let leases: Vec<_> = self.leases.iter().map(|lease| lease.value().clone()).collect();
        for (count, lease) in leases.into_iter().enumerate() {
            if count % YIELD_EVERY == YIELD_EVERY - 1 {
                yield_now().await;
            }
            if let Some(lease) = lease.upgrade() {
                visit(&lease.state);
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
    pub(super) fn rbac_allowed_since(&self, since: Instant) -> Option<Instant> {
        self.rbac_allowed_at.lock().filter(|sent| *sent >= since)
    }

    pub(super) fn is_local(&self) -> bool {
        self.is_local.load(Ordering::SeqCst)
    }
}

/// Has each lease reviewed. Many reviews are spread over a time.
fn request_rechecks(leases: Vec<Arc<GrantLeaseState>>, request: RecheckRequest, spread: Duration) {
    let spread = if leases.len() > IMMEDIATE_MAX { spread } else { Duration::ZERO };
    for state in leases {
        let begins_at = request.begins_at + spread.mul_f64(random::f64());
        state.recheck.add(RecheckRequest { begins_at, ..request });
    }
}
