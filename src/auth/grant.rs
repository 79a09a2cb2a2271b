use std::sync::Arc;

use super::grant_lease::GrantLease;
use kubeapi::{Access, AccessTarget, Gvr};

/// A permission to read the target of one request: verb, resource, namespace, name and selectors.
///
/// Its fields are private, so only [`Authorizer::grant`](super::Authorizer::grant) creates one. Reads from the cache
/// require one by type. The grant of a watch ends when upstream would no longer allow it.
#[derive(Debug, Clone)]
pub struct Grant {
    access: Arc<Access>,
    lease: Option<Arc<GrantLease>>,
    reason: Arc<str>,
}

impl Grant {
    pub(super) fn new(access: Arc<Access>, lease: Option<Arc<GrantLease>>) -> Self {
        Self { access, lease, reason: Arc::default() }
    }

    /// Returns the same grant with the authorizer's reason.
    pub(super) fn because(self, reason: Arc<str>) -> Self {
        Self { reason, ..self }
    }

    /// Returns the authorizer's reason, which may be empty.
    pub fn reason(&self) -> &Arc<str> {
        &self.reason
    }

    /// Whether it covers reads of this collection, or of an object in it with this name. A grant for a namespace covers
    /// no other namespace, and not the whole collection. A grant for one name covers no other name, and no read without
    /// a name.
    pub fn covers(&self, gvr: &Gvr, namespaced: bool, namespace: Option<&str>, name: Option<&str>) -> bool {
        let AccessTarget::Resource(target) = &self.access.target else { return false };
        let same = *target.group == *gvr.group && *target.version == *gvr.version && *target.resource == *gvr.resource;
        let within = !namespaced || target.namespace == namespace.unwrap_or_default();
        let named = target.name.is_empty() || name == Some(&*target.name);
        same && within && named && target.subresource.is_empty()
    }

    pub(super) fn lease(&self) -> Option<&Arc<GrantLease>> {
        self.lease.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::stub::info;

    /// R-THREAT-6: a read is compared with the access that the authorizer allowed.
    #[test]
    fn grant_for_one_name_or_namespace_covers_no_other() {
        let maps = Gvr::new("", "v1", "configmaps");
        let grant = |uri| Grant::new(Arc::new(Access::of(&info(uri))), None);
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
        assert!(!all.covers(&maps, true, Some("t1"), None), "that of all is asked for as such");
    }
}
