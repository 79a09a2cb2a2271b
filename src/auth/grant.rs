use std::sync::Arc;

use super::lease::Lease;
use crate::kube::{Access, Gvr, Target};

/// Permission to read what one request asks for: verb, resource, namespace, name and selectors.
///
/// Its fields are private, so only [`Gate::grant`](super::Gate::grant) makes one; reads from the cache require one by
/// type. That of a watch is over when upstream would no longer give it.
#[derive(Debug, Clone)]
pub struct Grant {
    access: Arc<Access>,
    lease: Option<Arc<Lease>>,
    reason: Arc<str>,
}

impl Grant {
    pub(super) fn new(access: Arc<Access>, lease: Option<Arc<Lease>>) -> Self {
        Self { access, lease, reason: Arc::default() }
    }

    /// With the authorizer's words.
    pub(super) fn because(self, reason: Arc<str>) -> Self {
        Self { reason, ..self }
    }

    /// Why it was given, in the authorizer's words, which may be none.
    pub fn reason(&self) -> &Arc<str> {
        &self.reason
    }

    /// Whether it is for this collection: that of a namespace is for no other, and for no more.
    pub fn covers(&self, gvr: &Gvr, namespaced: bool, namespace: Option<&str>) -> bool {
        let Target::Resource(target) = &self.access.target else { return false };
        let same = *target.group == *gvr.group && *target.version == *gvr.version && *target.resource == *gvr.resource;
        let within = !namespaced || target.namespace == namespace.unwrap_or_default();
        same && within && target.subresource.is_empty()
    }

    pub(super) fn lease(&self) -> Option<&Arc<Lease>> {
        self.lease.as_ref()
    }
}
