//! The lease of an open watch: the decisions that the watch depends on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::access_reviewer::AccessDecision;
use super::authenticator::AuthenticatedCaller;
use super::credential::Credential;
use super::namespace_access_decisions::NamespaceDecisions;
use super::rbac_authorizer::RbacAuthorizer;
use super::{GrantError, RevokedPermission, metrics};
use crate::upstream::CredentialId;
use kubeapi::{AccessAttributes, User};

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

/// The policy changes for which a lease must be reviewed. One review covers all of them until it is sent.
#[derive(Debug, Default)]
pub(super) struct RecheckRequests {
    pending: Mutex<Option<RecheckRequest>>,
    added: Notify,
}

/// A policy change that may affect a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecheckRequest {
    /// The time at which the change was received. A decision of an earlier review is not accepted.
    pub(super) since: Instant,
    /// The time at which the review is sent.
    pub(super) begins_at: Instant,
    /// The time until which the permission was certain.
    pub(super) certain_until: Instant,
    /// Whether the access was allowed by rules that have changed.
    pub(super) lost_rule: bool,
    /// Whether a review that all leases need can wait until `begins_at`, because the rules may be known again by then.
    pub(super) is_deferred: bool,
}

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

impl RecheckRequest {
    /// Returns the request for a change that was received at `now`, and whose review is sent at once.
    pub(super) fn at(now: Instant) -> Self {
        Self { since: now, begins_at: now, certain_until: now, lost_rule: false, is_deferred: false }
    }
}

impl RecheckRequests {
    pub(super) fn add(&self, request: RecheckRequest) {
        let mut pending = self.pending.lock();
        let before = pending.unwrap_or(request);
        *pending = Some(RecheckRequest {
            since: before.since.max(request.since),
            begins_at: before.begins_at.min(request.begins_at),
            certain_until: before.certain_until.min(request.certain_until),
            lost_rule: before.lost_rule || request.lost_rule,
            is_deferred: before.is_deferred && request.is_deferred,
        });
        drop(pending);
        self.added.notify_one();
    }

    /// Accepts no decision from before `since` if a deferred review is pending. Returns whether one is.
    pub(super) fn defer(&self, since: Instant) -> bool {
        let mut pending = self.pending.lock();
        let deferred = pending.as_mut().filter(|pending| pending.is_deferred);
        deferred.map(|pending| pending.since = pending.since.max(since)).is_some()
    }

    /// Sends the pending review at once, if there is one.
    pub(super) fn expedite(&self) {
        if let Some(pending) = &mut *self.pending.lock() {
            pending.begins_at = Instant::now();
            self.added.notify_one();
        }
    }

    /// Completes when a policy change requires a review.
    pub(super) async fn due(&self) -> RecheckRequest {
        loop {
            let Some(begins_at) = self.pending.lock().map(|request| request.begins_at) else {
                self.added.notified().await;
                continue;
            };
            tokio::select! {
                biased;
                () = sleep_until(begins_at) => {}
                () = self.added.notified() => continue,
            }
            if let Some(request) = self.pending.lock().take() {
                return request;
            }
        }
    }
}
