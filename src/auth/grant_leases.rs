//! The leases of all open watches.
//!
//! A watch registers its lease first, then its permission is checked, and only then it streams. So a change between the
//! first two steps finds the lease (R-THREAT-7). Watches of one credential with the same access share one lease.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use dashmap::{DashMap, Entry};
use tokio::task::yield_now;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::authenticator::{AuthenticatedCaller, Authenticator};
use super::grant_lease::{GrantLease, GrantLeaseRevalidator, GrantLeaseState};
use super::namespace_access_decisions::NamespaceDecisions;
use super::recheck_schedule::RecheckRequest;
use super::{AffectedUsers, metrics};
use crate::upstream::CredentialId;
use base::{BackgroundTasks, YIELD_EVERY, random};
use kubeapi::AccessAttributes;
use tokio::sync::watch;

/// All leases.
pub(super) struct GrantLeases {
    pub(super) authenticator: Arc<Authenticator>,
    tasks: BackgroundTasks,
    /// The leases by key, in a sharded map. One, two and four threads find a lease in 415, 633 and 1,326 ns. With one
    /// lock, it takes 497, 813 and 2,108 ns.
    leases: DashMap<GrantLeaseKey, Weak<GrantLease>>,
    /// The number of leases. Receivers are notified of the first lease and of the end of the last.
    count: watch::Sender<usize>,
}

/// The key of a lease. The last part states whether the lease covers some namespaces instead of the whole collection.
type GrantLeaseKey = (CredentialId, Arc<AccessAttributes>, bool);

/// The maximum number of leases that are checked together. More are spread, after a change over [`SPREAD`].
const IMMEDIATE_MAX: usize = 4;
const SPREAD: Duration = Duration::from_millis(600);

impl GrantLeases {
    pub(super) fn new(authenticator: Arc<Authenticator>, tasks: BackgroundTasks) -> Self {
        Self { authenticator, tasks, leases: DashMap::new(), count: watch::Sender::default() }
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
        let state = Arc::new(GrantLeaseState::new(caller, access.clone(), decisions));
        let ended = CancellationToken::new();
        let lease = Arc::new(GrantLease { state: state.clone(), _revalidator: ended.clone().drop_guard() });
        drop(entry.insert(Arc::downgrade(&lease)));
        if is_another {
            self.count_lease(true);
        }
        let revalidator = GrantLeaseRevalidator::new(self.authenticator.clone(), state, caller, ended.clone());
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

    /// Makes the revalidators of affected leases check them again. Decisions from before now are not accepted. If changes
    /// may only have been missed, leases that wait after a local decision keep their time.
    pub(super) async fn recheck(&self, affected: &AffectedUsers, is_missed: bool) {
        let (since, mut matching) = (Instant::now(), Vec::new());
        let visit = |state: &Arc<GrantLeaseState>| {
            let waits = state.is_local() || is_missed && state.recheck.defer(since);
            matching.extend((!waits).then(|| state.clone()));
        };
        self.for_affected(affected, since, visit).await;
        request_rechecks(matching, RecheckRequest::at(since), SPREAD);
    }

    /// Evaluates the leases again that a change of the rules affects. Upstream reviews at once those that the rules no
    /// longer allow.
    pub(super) async fn apply_rule_change(&self, affected: &AffectedUsers) {
        let rbac = &self.authenticator.access_reviewer.rbac;
        self.for_affected(affected, Instant::now(), |state| state.check_rules(rbac)).await;
    }

    /// Reviews the leases of local decisions as others from now on. The decisions were certain until that time; `None` if
    /// upstream has denied one.
    ///
    /// What was certain a moment ago is reviewed in the second half of the period in which it stays valid. By then the
    /// rules may be known again, as after a list. So a lost history does not cause a review of every lease. After the
    /// outage grace, a review is due at once.
    pub(super) async fn end_local_decisions(&self, certain_until: Option<Instant>) {
        let (began, mut matching) = (Instant::now(), Vec::new());
        let end = |state: &Arc<GrantLeaseState>| {
            matching.extend(state.is_local.swap(false, Ordering::SeqCst).then(|| state.clone()));
        };
        self.for_affected(&AffectedUsers::Everyone, began, end).await;
        // A check during the loop may have found a lease to be local. So it is older than the request.
        let (since, config) = (Instant::now(), &self.authenticator.config);
        let is_over = certain_until.is_none_or(|certain| certain + config.outage_grace <= since);
        let certain_until = certain_until.unwrap_or(began);
        let left = (certain_until + config.recheck).saturating_duration_since(since);
        let half = if is_over { Duration::ZERO } else { left / 2 };
        let request = RecheckRequest {
            begins_at: since + half,
            certain_until,
            is_deferred: !is_over,
            ..RecheckRequest::at(since)
        };
        request_rechecks(matching, request, half.max(SPREAD));
    }

    /// Has the leases whose review is pending checked at once, because the rules decide again.
    pub(super) async fn expedite_pending(&self) {
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

/// Has each lease reviewed. Many reviews are spread over a time.
fn request_rechecks(leases: Vec<Arc<GrantLeaseState>>, request: RecheckRequest, spread: Duration) {
    let spread = if leases.len() > IMMEDIATE_MAX { spread } else { Duration::ZERO };
    for state in leases {
        let begins_at = request.begins_at + spread.mul_f64(random::f64());
        state.recheck.add(RecheckRequest { begins_at, ..request });
    }
}
