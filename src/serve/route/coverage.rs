use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::feeds::FeedScope;
use crate::upstream::{ResourceOrigin, UpstreamResource};
use kubeapi::{FieldSelector, Gvr, NAME_KEY, RequestInfo};

/// The operator's choice of resources that feeds may cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CacheCoverage {
    /// The node whose agents the proxy serves. Of resources that belong to nodes, only this node's objects are cached;
    /// all objects if `None`.
    pub node: Option<Arc<str>>,
    /// The only resources that are cached, as in `pods` or `deployments.apps`; all resources if empty.
    pub resources: Vec<String>,
    /// The sensitive kinds that are cached anyway.
    pub sensitive: Vec<SensitiveKind>,
    /// Whether the proxy authorizes each caller. If so, its own account may have more permissions than a caller.
    pub authorizes: bool,
}

base::labelled_enum! {
    /// Kinds whose objects should not be collected in one place (docs/SECURITY.md, "Deployment modes").
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
    #[serde(rename_all = "lowercase")]
    #[schemars(inline, description = "A sensitive kind in `feeds.sensitive`.")]
    pub enum SensitiveKind {
        Secrets = "secrets",
        ConfigMaps = "configmaps",
    }
}

/// The reason that a resource is not cached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotCoveredReason {
    #[error("the resource is not in feeds.resources")]
    NotConfigured,
    #[error("the resource is a sensitive kind that is not in feeds.sensitive")]
    Sensitive,
}

/// The resources that belong to nodes, and the field that names the node. The Node authorizer requires these fields: a
/// kubelet's own identity may not list anything wider (R-AUTHZ-4).
const NODE_SCOPED: [(&str, &str, &str); 5] = [
    ("", "pods", "spec.nodeName"),
    ("", "nodes", NAME_KEY),
    ("storage.k8s.io", "csinodes", NAME_KEY),
    ("resource.k8s.io", "resourceslices", "spec.nodeName"),
    ("certificates.k8s.io", "podcertificaterequests", "spec.nodeName"),
];

impl CacheCoverage {
    /// Returns the widest scope in which the resource may be cached.
    ///
    /// # Errors
    ///
    /// The resource may not be cached at all.
    pub fn scope(&self, resource: &UpstreamResource) -> Result<FeedScope, NotCoveredReason> {
        if !self.resources.is_empty() && !self.resources.iter().any(|name| resource.has_name(name)) {
            return Err(NotCoveredReason::NotConfigured);
        }
        if let Some(kind) = SensitiveKind::of(&resource.gvr)
            && self.protects(kind)
            && !self.sensitive.contains(&kind)
        {
            return Err(NotCoveredReason::Sensitive);
        }
        Ok(match (&self.node, node_field(resource)) {
            (Some(node), Some(field)) => FeedScope::Selected { field: field.into(), value: node.clone() },
            _ => FeedScope::Cluster,
        })
    }

    /// Whether a kind must not be cached. If every caller acts as the proxy itself, the cache reveals nothing that the
    /// caller could not read upstream. But a node's proxy serves all clients on that node, and may have more
    /// permissions than each of them needs.
    fn protects(&self, kind: SensitiveKind) -> bool {
        match kind {
            SensitiveKind::Secrets => self.authorizes || self.node.is_some(),
            SensitiveKind::ConfigMaps => self.node.is_some(),
        }
    }
}

impl SensitiveKind {
    /// Returns the kind of a resource, if it is one of these.
    pub(crate) fn of(gvr: &Gvr) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| gvr.group.is_empty() && *gvr.resource == *kind.as_str())
    }
}

/// Whether a request stays within `scope`. Like upstream's authorizers, this compares the name and the selector as
/// written. Requests that the authorizers would not recognize are forwarded, because upstream rejects them (R-FIELD-7).
pub(crate) fn covers(scope: &FeedScope, request: &RequestInfo) -> bool {
    match scope {
        FeedScope::Cluster => true,
        FeedScope::Namespace(namespace) => request.namespace == **namespace,
        FeedScope::Selected { field, value } if **field == *NAME_KEY => request.name == **value,
        FeedScope::Selected { field, value } => {
            let selector = request.field_selector.as_deref().and_then(FieldSelector::parse);
            selector.is_some_and(|selector| selector.requires_exact(field) == Some(value))
        }
    }
}

fn node_field(resource: &UpstreamResource) -> Option<&'static str> {
    let (group, plural) = (&*resource.gvr.group, &*resource.gvr.resource);
    let found = NODE_SCOPED
        .into_iter()
        .find(|of| (of.0, of.1) == (group, plural) && resource.origin == ResourceOrigin::BuiltIn);
    // An old version of the resource may lack the field.
    found.map(|(.., field)| field).filter(|field| *field == NAME_KEY || resource.fields.position(field).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::tests::upstream_resource;
    use crate::wire::FeedEncoding;
    use kubeapi::UrlQuery;

    fn resource(group: &str, version: &str, plural: &str) -> UpstreamResource {
        let gvr = Gvr::new(group, version, plural);
        let origin = if group.contains("example") { ResourceOrigin::Custom } else { ResourceOrigin::BuiltIn };
        UpstreamResource { origin, encoding: FeedEncoding::Protobuf, ..upstream_resource(gvr, "Any") }
    }

    fn outcome(coverage: &CacheCoverage, resource: &UpstreamResource) -> String {
        match coverage.scope(resource) {
            Ok(scope) => scope.selector().unwrap_or_else(|| "all".to_owned()),
            Err(why) => format!("{why:?}"),
        }
    }

    #[test]
    fn cached_scope_follows_from_configuration_and_resource() {
        let [pods, secrets, maps] = ["pods", "secrets", "configmaps"].map(|plural| resource("", "v1", plural));
        let (hidden, deployments) =
            (resource("hidden.example", "v1", "secrets"), resource("apps", "v1", "deployments"));
        let resources = [&pods, &secrets, &maps, &hidden, &deployments];
        let open = CacheCoverage::default();
        let central = CacheCoverage { authorizes: true, ..CacheCoverage::default() };
        let node = CacheCoverage { node: Some("n7".into()), ..CacheCoverage::default() };
        let agents = CacheCoverage { authorizes: true, ..node.clone() };
        let with = |coverage: &CacheCoverage, sensitive: &[SensitiveKind]| CacheCoverage {
            sensitive: sensitive.to_vec(),
            ..coverage.clone()
        };
        let some = |names: &[&str]| CacheCoverage {
            resources: names.iter().map(|&name| name.to_owned()).collect(),
            ..central.clone()
        };
        let (ours, left) = ("spec.nodeName=n7", "NotConfigured");
        for (coverage, expected) in [
            (open, ["all", "all", "all", "all", "all"]),
            (central.clone(), ["all", "Sensitive", "all", "all", "all"]),
            (with(&central, &[SensitiveKind::Secrets]), ["all", "all", "all", "all", "all"]),
            (node.clone(), [ours, "Sensitive", "Sensitive", "all", "all"]),
            (agents.clone(), [ours, "Sensitive", "Sensitive", "all", "all"]),
            (with(&agents, &[SensitiveKind::ConfigMaps]), [ours, "Sensitive", "all", "all", "all"]),
            (with(&node, &SensitiveKind::ALL), [ours, "all", "all", "all", "all"]),
            (some(&["pods", "deployments.apps"]), ["all", left, left, left, "all"]),
            (some(&["deployments.v1.apps", "pods.v1"]), ["all", left, left, left, "all"]),
            // `feeds.resources` alone does not allow a sensitive kind.
            (some(&["secrets"]), [left, "Sensitive", left, left, left]),
            (some(&["secrets.hidden.example"]), [left, left, left, "all", left]),
        ] {
            assert_eq!(resources.map(|resource| outcome(&coverage, resource)), expected, "{coverage:?}");
        }
    }

    #[test]
    fn node_scoped_resources_are_cached_only_for_own_node() {
        let node = CacheCoverage { node: Some("n7".into()), ..CacheCoverage::default() };
        for ((group, version, plural), expected) in [
            (("", "v1", "pods"), "spec.nodeName=n7"),
            (("", "v1", "nodes"), "metadata.name=n7"),
            (("storage.k8s.io", "v1", "csinodes"), "metadata.name=n7"),
            (("resource.k8s.io", "v1", "resourceslices"), "spec.nodeName=n7"),
            (("certificates.k8s.io", "v1beta1", "podcertificaterequests"), "spec.nodeName=n7"),
            (("", "v1", "services"), "all"),
            (("storage.k8s.io", "v1", "csidrivers"), "all"),
            (("pods.example", "v1", "pods"), "all"),
        ] {
            assert_eq!(outcome(&node, &resource(group, version, plural)), expected, "{plural}.{version}.{group}");
        }
    }

    #[test]
    fn request_is_covered_if_its_selector_implies_feed_selector() {
        let of = |field: &str| FeedScope::Selected { field: field.into(), value: "n7".into() };
        let pods = of("spec.nodeName");
        for (uri, covered) in [
            ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn7", true),
            ("/api/v1/pods?fieldSelector=spec.nodeName==n7&watch=1", true),
            ("/api/v1/pods?fieldSelector=status.phase!%3DFailed,spec.nodeName%3Dn7", true),
            ("/api/v1/namespaces/a/pods?fieldSelector=spec.nodeName%3Dn7", true),
            ("/api/v1/pods", false),
            ("/api/v1/pods?fieldSelector=", false),
            ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn77", false),
            ("/api/v1/pods?fieldSelector=spec.nodeName!%3Dn7", false),
            ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn8,spec.nodeName%3Dn9", false),
            ("/api/v1/pods?fieldSelector=metadata.name%3Dn7", false),
            ("/api/v1/pods?labelSelector=spec.nodeName%3Dn7", false),
            // The Node authorizer does not know that this field is equivalent.
            ("/api/v1/pods?fieldSelector=spec.host%3Dn7", false),
            ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn7,nonsense", false),
            // Only the first parameter counts.
            ("/api/v1/pods?fieldSelector=&fieldSelector=spec.nodeName%3Dn7", false),
            // The apiserver does not authorize by selectors in this form of path.
            ("/api/v1/watch/pods?fieldSelector=spec.nodeName%3Dn7", false),
            // A pod's name does not identify its node, and a GET ignores selectors.
            ("/api/v1/namespaces/a/pods/p", false),
            ("/api/v1/namespaces/a/pods/n7?fieldSelector=spec.nodeName%3Dn7", false),
        ] {
            assert_eq!(covers(&pods, &info(uri)), covered, "{uri}");
            assert!(covers(&FeedScope::Cluster, &info(uri)), "{uri}");
        }
        let nodes = of("metadata.name");
        for (uri, covered) in [
            ("/api/v1/nodes/n7", true),
            ("/api/v1/nodes?fieldSelector=metadata.name%3Dn7", true),
            ("/api/v1/nodes?fieldSelector=metadata.name%3Dn7&watch=1", true),
            ("/api/v1/watch/nodes/n7", true),
            ("/api/v1/nodes/n8", false),
            ("/api/v1/nodes", false),
            ("/api/v1/nodes?fieldSelector=metadata.name%3Dn8", false),
            ("/api/v1/watch/nodes?fieldSelector=metadata.name%3Dn7", false),
        ] {
            assert_eq!(covers(&nodes, &info(uri)), covered, "{uri}");
        }
        let namespace = FeedScope::Namespace("a".into());
        assert!(covers(&namespace, &info("/api/v1/namespaces/a/pods")));
        assert!(!covers(&namespace, &info("/api/v1/pods")));
    }

    fn info(uri: &str) -> RequestInfo {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        RequestInfo::parse("GET", path, &UrlQuery::parse(query)).expect("a path")
    }
}
