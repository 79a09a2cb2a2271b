//! The lease of an open watch: the decisions that the watch depends on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::access_reviewer::AccessDecision;
use super::authenticator::AuthenticatedCaller;
use super::credential::Credential;
use super::namespace_access_decisions::NamespaceDecisions;
use super::rbac_authorizer::RbacAuthorizer;
use super::recheck_request::{RecheckRequest, RecheckRequests};
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
