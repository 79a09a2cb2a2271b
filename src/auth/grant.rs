use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::grant_lease::GrantLease;
use super::namespace_access_decisions::{self, NamespaceAccess, NamespaceDecisions};
use super::{GrantError, RevokedPermission};
use kubeapi::{AccessAttributes, AccessTarget, Gvr};
use tokio::sync::watch;

/// A permission to read the target of one request: verb, resource, namespace, name and selectors. Of a collection, it may
/// cover only some of the namespaces.
///
/// Its fields are private, so only [`Authorizer`](super::Authorizer) creates one. Reads from the cache require one by
/// type. The permission of a watch ends when upstream would no longer allow it.
#[derive(Debug, Clone)]
pub struct ReadPermission {
    pub(super) access: Arc<AccessAttributes>,
    pub(super) lease: Option<Arc<GrantLease>>,
    /// The authorizer's reason, which may be empty.
    pub(super) reason: Arc<str>,
    /// How long the rules by which it was decided, or what the caller's token is bound to, have been stale; `None` if
    /// both are current, or if upstream decided.
    pub(super) stale_rules: Option<Duration>,
    /// The readable part, if the permission does not cover the whole collection.
    pub(super) namespaces: Option<ReadableNamespaces>,
}

/// The part of a collection in which the caller may perform the requested access: some of its namespaces. Of other
/// namespaces, it includes the objects that rules known here let the caller get by name. Of the collection of namespaces,
/// it includes each Namespace that the caller may get.
///
/// A namespace without a decision is not readable. For a watch, all namespaces are checked again for as long as the watch
/// is open.
#[derive(Debug, Clone)]
pub struct ReadableNamespaces {
    decisions: Arc<NamespaceDecisions>,
    lease: Option<Arc<GrantLease>>,
}

/// Whether a permission still holds. Its scope is known to the owner of the permission.
#[derive(Debug, Clone)]
pub struct GrantStatus(Option<Arc<GrantLease>>);

/// A receiver of changes of the decisions.
#[derive(Debug)]
pub struct NamespaceAccessChanges(watch::Receiver<namespace_access_decisions::NamespaceAccessMap>);

impl ReadPermission {
    /// The reason for allowing a read that upstream denies as a whole.
    pub const FILTERED: &str = "kube-fanout: reads.filter shows what the user may read";

    /// Creates the permission of the proxy itself.
    pub(super) fn unchecked(access: Arc<AccessAttributes>) -> Self {
        Self { access, lease: None, reason: Arc::default(), stale_rules: None, namespaces: None }
    }

    /// Whether the permission covers reads of this collection or of a part of it, or of an object in it with this name.
    /// A permission for one name covers no other name, and no read without a name. A permission for a namespace covers no
    /// other namespace, and not the whole collection.
    pub fn covers(&self, gvr: &Gvr, namespaced: bool, namespace: Option<&str>, name: Option<&str>) -> bool {
        let AccessTarget::Resource(target) = &self.access.target else { return false };
        let same = *target.group == *gvr.group && *target.version == *gvr.version && *target.resource == *gvr.resource;
        let within = !namespaced || target.namespace == namespace.unwrap_or_default();
        let named = target.name.is_empty() || name == Some(&*target.name);
        let has_namespaces = self.namespaces.is_none() || namespaced || gvr.is_namespaces();
        same && within && named && has_namespaces && target.subresource.is_empty()
    }

    /// Returns which objects of a namespace may be served now, or whether the Namespace itself may be.
    pub fn access(&self, namespace: &str) -> NamespaceAccess {
        self.namespaces.as_ref().map_or(NamespaceAccess::Allowed, |readable| readable.access(namespace))
    }

    /// Whether all objects of a namespace may be served now, or the Namespace itself.
    pub fn allows_namespace(&self, namespace: &str) -> bool {
        self.access(namespace) == NamespaceAccess::Allowed
    }

    /// Returns the readable part, if the permission does not cover the whole collection.
    pub fn namespaces(&self) -> Option<&ReadableNamespaces> {
        self.namespaces.as_ref()
    }

    /// Returns the reason of the authorizer, which may be empty, or [`FILTERED`](Self::FILTERED).
    pub fn reason(&self) -> &Arc<str> {
        &self.reason
    }

    /// Returns how long the rules by which it was decided, or what the caller's token is bound to, have been stale; `None`
    /// if both are current, or if upstream decided.
    pub fn stale_rules(&self) -> Option<Duration> {
        self.stale_rules
    }

    /// Returns the status of the permission, which a watch keeps.
    pub fn grant_status(&self) -> GrantStatus {
        GrantStatus(self.lease.clone())
    }
}

impl GrantStatus {
    /// Returns the reason that the permission has ended, if it has. After that, no more objects may be sent.
    pub fn revoked(&self) -> Option<&RevokedPermission> {
        self.0.as_ref()?.state.revoked()
    }

    /// Returns a token that is cancelled when the permission ends; `None` if it never does.
    pub fn end_token(&self) -> Option<CancellationToken> {
        self.0.as_ref().map(|lease| lease.state.end_token.clone())
    }
}

impl ReadableNamespaces {
    /// The maximum number of namespaces to collect for [`review_all`](Self::review_all), which refuses that many.
    pub const COLLECT_MAX: usize = namespace_access_decisions::NAMESPACES_MAX + 1;

    pub(super) fn new(decisions: Arc<NamespaceDecisions>, lease: Option<Arc<GrantLease>>) -> Self {
        // All watches on one lease share its decisions.
        let decisions = lease.as_ref().and_then(|lease| lease.state.decisions.clone()).unwrap_or(decisions);
        Self { decisions, lease }
    }

    /// Reviews which namespaces may be read, with one review each.
    ///
    /// # Errors
    /// There are too many namespaces, or a review fails.
    pub async fn review_all(&self, namespaces: impl IntoIterator<Item = &str>) -> Result<(), GrantError> {
        // One more suffices to exceed the limit.
        self.decisions.review_all(namespaces.into_iter().take(Self::COLLECT_MAX).map(Into::into).collect()).await
    }

    /// Returns the decision on a namespace, if there is one.
    pub fn decision(&self, namespace: &str) -> Option<NamespaceAccess> {
        self.decisions.decision(namespace)
    }

    /// Returns which objects of a namespace are readable; none without a decision.
    pub fn access(&self, namespace: &str) -> NamespaceAccess {
        self.decision(namespace).unwrap_or(NamespaceAccess::Denied)
    }

    /// Whether there is a namespace in which only named objects are readable.
    pub fn has_names(&self) -> bool {
        self.decisions.has_names()
    }

    /// Schedules the review of a namespace that occurred in a watch. [`subscribe`](Self::subscribe) reports its result.
    pub fn request_review(&self, namespace: &str) {
        if let Err(error) = self.decisions.request_review(namespace)
            && let Some(lease) = &self.lease
        {
            lease.state.refuse(error);
        }
    }

    /// Subscribes to changes of the decisions.
    pub fn subscribe(&self) -> NamespaceAccessChanges {
        NamespaceAccessChanges(self.decisions.subscribe())
    }
}

impl NamespaceAccessChanges {
    /// Completes when a decision has changed since the receiver was created or last completed.
    pub async fn changed(mut self) -> Self {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self
    }
}

#[cfg(test)]
impl ReadPermission {
    /// A permission for a part of a collection.
    pub fn for_part(part: ReadableNamespaces) -> Self {
        let access = AccessAttributes { verb: "watch".to_owned(), target: AccessTarget::Path(String::new()) };
        Self { lease: part.lease.clone(), namespaces: Some(part), ..Self::unchecked(Arc::new(access)) }
    }
}

/// Permissions for tests, which set the decisions themselves.
#[cfg(test)]
impl ReadableNamespaces {
    /// A permission with these decisions.
    ///
    /// # Panics
    /// Never: no review is sent.
    pub fn with_decisions(decided: &[(&str, NamespaceAccess)]) -> Self {
        let nowhere = crate::upstream::CredentialSource::Anonymous(http::Uri::from_static("http://127.0.0.1:1"));
        let client = crate::upstream::UpstreamClient::connect(&nowhere, crate::upstream::UpstreamCostTotals::default())
            .expect("nothing is sent");
        let authenticator = super::authenticator::Authenticator::new(
            Arc::new(client),
            None,
            super::AuthConfig::default(),
            None,
            None,
            base::WallClock::default(),
        );
        let access = AccessAttributes { verb: "watch".to_owned(), target: AccessTarget::Path(String::new()) };
        let access = Arc::new(access);
        let decisions = Arc::new(NamespaceDecisions::new(Arc::new(authenticator), Arc::default(), access, None));
        let readable = Self { decisions, lease: None };
        decided.iter().for_each(|(namespace, decision)| readable.set_decision(namespace, decision.clone()));
        readable
    }

    pub fn set_decision(&self, namespace: &str, decision: NamespaceAccess) {
        self.decisions.set(namespace.into(), decision);
    }

    pub(super) fn grant_status(&self) -> GrantStatus {
        GrantStatus(self.lease.clone())
    }

    pub fn is_review_pending(&self, namespace: &str) -> bool {
        self.decisions.is_pending(namespace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::tests::info;

    /// R-THREAT-6: a read is compared with the access that the authorizer allowed.
    #[test]
    fn grant_for_one_name_or_namespace_covers_no_other() {
        let maps = Gvr::new("", "v1", "configmaps");
        let grant = |uri| ReadPermission::unchecked(Arc::new(AccessAttributes::from_request(&info(uri))));
        let one = grant("/api/v1/namespaces/t1/configmaps?fieldSelector=metadata.name%3Da");
        assert!(grant("/api/v1/namespaces/t1/configmaps/a").covers(&maps, true, Some("t1"), Some("a")));
        for other in [Some("a-b"), Some("a0"), Some("aa"), Some(""), None] {
            assert!(!one.covers(&maps, true, Some("t1"), other), "{other:?}");
        }
        for (namespace, covered) in [(Some("t1"), true), (Some("t10"), false), (Some("t1-x"), false), (None, false)] {
            assert_eq!(one.covers(&maps, true, namespace, Some("a")), covered, "{namespace:?}");
        }
        let all = grant("/api/v1/configmaps?fieldSelector=metadata.name!%3Da");
        assert!([None, Some("a")].into_iter().all(|name| all.covers(&maps, true, None, name)));
        assert!(!all.covers(&maps, true, Some("t1"), None), "a grant for all namespaces is not one for t1");
    }
}
