use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::access_reviewer::Allowed;
use super::credential::Credential;
use super::namespace_verdicts::NamespaceVerdicts;
use crate::upstream::CredentialId;
use kubeapi::{Access, User};

/// What a lease and its keeper know of each other.
#[derive(Debug)]
pub(super) struct LeaseState {
    pub(super) id: CredentialId,
    pub(super) credential: Credential,
    pub(super) access: Arc<Access>,
    /// As last seen: groups may change while a watch is open.
    pub(super) user: Mutex<Arc<User>>,
    /// For a watch that may show some namespaces: the lease is for them, and not for the whole.
    pub(super) verdicts: Option<Arc<NamespaceVerdicts>>,
    /// When upstream was asked last, if it said that RBAC gives the right.
    by_policy: Mutex<Option<Instant>>,
    doubt: Mutex<Option<RecheckRequest>>,
    doubted: Notify,
}

/// The policy has changed in a way that may matter to a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct RecheckRequest {
    /// When it was seen: an answer to an older question will not do.
    pub(super) since: Instant,
    /// When upstream is asked.
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

    /// Takes in whose the credential is by now. Returns whether it was somebody else's, of whom nothing that was said
    /// is true of this one.
    pub(super) fn replace_user(&self, user: &Arc<User>) -> bool {
        let mut known = self.user.lock();
        let is_another = *known != *user;
        if is_another {
            *self.by_policy.lock() = None;
        }
        *known = user.clone();
        is_another
    }

    /// Notes what upstream has said of that user.
    pub(super) fn stands_on(&self, user: &User, vouched: &Allowed) {
        let of = self.user.lock();
        if **of != *user {
            return;
        }
        let mut known = self.by_policy.lock();
        if vouched.is_by_policy() {
            *known = (*known).max(Some(vouched.asked));
        } else if known.is_none_or(|before| before <= vouched.asked) {
            *known = None;
        }
    }

    /// When upstream was asked last, if it said that RBAC gives the right, and was asked after `since`.
    pub(super) fn given_by_policy(&self, since: Instant) -> Option<Instant> {
        self.by_policy.lock().filter(|asked| *asked >= since)
    }

    pub(super) fn doubt(&self, doubt: RecheckRequest) {
        let mut now = self.doubt.lock();
        // One question answers all that has changed until it is put.
        let begins = now.map_or(doubt.begins, |before| before.begins.min(doubt.begins));
        *now = Some(RecheckRequest { begins, ..doubt });
        drop(now);
        self.doubted.notify_one();
    }

    /// Completes when upstream is to be asked as policy has changed, with the moment before which no answer will do.
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
