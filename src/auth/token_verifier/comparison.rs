//! What a comparison with upstream needs, after upstream has rejected a token that was verified here.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::timeout;

use super::TokenVerifier;
use super::bound_objects::{BoundKind, BoundObject, parse_uid};
use crate::auth::compared_object::ComparedObject;
use crate::auth::credential::BearerToken;
use crate::auth::review_permission::ReviewResource;
use crate::auth::{GrantError, metrics};
use crate::upstream::CredentialId;
use kubeapi::{EscapedFieldTerm, Gvr, NAME_KEY};

/// The maximum time for a read of the keys. Without them, a rejection is not confirmed.
const KEYS_TIMEOUT: Duration = Duration::from_secs(10);

impl TokenVerifier {
    /// Reads the keys again, because a key may have been withdrawn.
    ///
    /// # Errors
    /// The keys cannot be read within [`KEYS_TIMEOUT`].
    pub(in crate::auth) async fn read_keys_again(&self) -> Result<(), GrantError> {
        let begun = self.shared.keys.expire();
        let read = self.shared.keys.read_after(begun, || self.read_keys_if_due(false));
        let unread = |_| GrantError::Unavailable("the cluster's token keys cannot be read".to_owned());
        timeout(KEYS_TIMEOUT, read).await.map_err(unread)
    }

    /// Whether a token is valid by what is received at once.
    pub(in crate::auth) fn proves_now(&self, id: &CredentialId, token: &BearerToken) -> bool {
        let Ok(verified) = self.verify_here(id, token, None) else { return false };
        self.check_bound(&verified, Duration::ZERO).is_ok() && self.check_audiences(&verified).is_ok()
    }

    /// Returns the objects that a verified token is bound to. They must exist upstream with the same UID.
    pub(in crate::auth) fn bound_objects(&self, id: &CredentialId) -> Vec<ComparedObject> {
        let verified = self.shared.verified.get(id);
        verified.iter().flat_map(|verified| &verified.bound).map(|object| self.compared(object)).collect()
    }

    /// Stops the verification of tokens, because upstream does not accept one as that of this user.
    pub(in crate::auth) fn stop(&self, user: &str, upstream_reason: &str) {
        metrics::local_decisions_disagreed(ReviewResource::TOKEN.label, true);
        if !self.shared.is_stopped.swap(true, Ordering::Relaxed) {
            tracing::error!(
                user,
                local_reason = "a published key signed the token, and the objects that it is bound to exist",
                upstream_reason,
                "the apiserver rejects a token that is valid here; asking it for every token until a restart or reload"
            );
        }
    }

    /// Verifies tokens again after [`stop`](Self::stop).
    pub(in crate::auth) fn resume(&self) {
        metrics::local_decisions_disagreed(ReviewResource::TOKEN.label, false);
        self.shared.is_stopped.store(false, Ordering::Relaxed);
    }

    fn compared(&self, object: &BoundObject) -> ComparedObject {
        let (namespace, name) = object.key.split_once('/').unwrap_or_default();
        let path = Gvr::new("", "v1", object.kind.resource()).path_in(namespace);
        // On a node, the proxy may list that node's pods only.
        let node = self.shared.node.as_ref().filter(|_| object.kind == BoundKind::Pod);
        let node = node.map(|node| format!("%2Cspec.nodeName%3D{node}")).unwrap_or_default();
        let uid = object.uid;
        ComparedObject {
            list: format!("{path}?fieldSelector={}{node}", EscapedFieldTerm::is(NAME_KEY, name)),
            is_same: Box::new(move |listed| !listed.is_deleting && parse_uid(&listed.uid) == Some(uid)),
        }
    }
}
