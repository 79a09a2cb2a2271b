use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::access_reviewer::AccessDecision;
use super::credential::Credential;
use super::namespace_verdicts::NamespaceVerdicts;
use crate::upstream::CredentialId;
use kubeapi::{Access, User};

/// The state that a lease and its keeper share.
#[derive(Debug)]
pub(super) struct LeaseState {
    pub(super) id: CredentialId,
    pub(super) credential: Credential,
    pub(super) access: Arc<Access>,
    /// The last known user of the credential. Groups may change while a watch is open.
    pub(super) user: Mutex<Arc<User>>,
    /// The namespaces of a watch that is not for the whole collection.
    pub(super) verdicts: Option<Arc<NamespaceVerdicts>>,
    /// The time at which the last review was sent, if its reason was RBAC.
    by_policy: Mutex<Option<Instant>>,
    doubt: Mutex<Option<RecheckRequest>>,
    doubted: Notify,
}

/// A policy change that may affect a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecheckRequest {
    /// The time at which the change was received. A decision of an earlier review is not accepted.
    pub(super) since: Instant,
    /// The time at which the review is sent.
    pub(super) begins: Instant,
}

impl LeaseState {
    pub(super) fn new(
        (id, credential): (CredentialId, Credential),
        access: Arc<Access>,
        user: Arc<User>,
        verdicts: Option<Arc<NamespaceVerdicts>>,
    ) -> Self {
        Self {
            id,
            credential,
            access,
            user: Mutex::new(user),
            verdicts,
            by_policy: Mutex::default(),
            doubt: Mutex::default(),
            doubted: Notify::new(),
        }
    }

    /// Replaces the user of the credential. Returns whether it differs, so that earlier decisions are not valid for it.
    pub(super) fn replace_user(&self, user: &Arc<User>) -> bool {
        let mut known = self.user.lock();
        let is_another = *known != *user;
        if is_another {
            *self.by_policy.lock() = None;
        }
        *known = user.clone();
        is_another
    }

    /// Records a decision on the user's permission.
    pub(super) fn stands_on(&self, user: &User, allowed: &AccessDecision) {
        let of = self.user.lock();
        if **of != *user {
            return;
        }
        let mut known = self.by_policy.lock();
        if allowed.is_by_policy() {
            *known = (*known).max(Some(allowed.asked));
        } else if known.is_none_or(|before| before <= allowed.asked) {
            *known = None;
        }
    }

    /// Returns the time at which the last review was sent, if its reason was RBAC and the time is after `since`.
    pub(super) fn given_by_policy(&self, since: Instant) -> Option<Instant> {
        self.by_policy.lock().filter(|asked| *asked >= since)
    }

    pub(super) fn doubt(&self, doubt: RecheckRequest) {
        let mut now = self.doubt.lock();
        // One review covers all changes until it is sent.
        let begins = now.map_or(doubt.begins, |before| before.begins.min(doubt.begins));
        *now = Some(RecheckRequest { begins, ..doubt });
        drop(now);
        self.doubted.notify_one();
    }

    /// Completes when a policy change requires a review. Returns the time before which no decision is accepted.
    pub(super) async fn doubted(&self) -> Instant {
        loop {
            let Some(begins) = self.doubt.lock().map(|doubt| doubt.begins) else {
                self.doubted.notified().await;
                continue;
            };
            tokio::select! {
                biased;
                () = sleep_until(begins) => {}
                () = self.doubted.notified() => continue,
            }
            if let Some(doubt) = self.doubt.lock().take() {
                return doubt.since;
            }
        }
    }
}
