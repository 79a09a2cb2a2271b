//! The resources that upstream serves, combined from all documents that were read.

use std::collections::HashMap;
use std::sync::Arc;

use http::HeaderValue;
use serde::Deserialize;

use super::definitions::{ApiDefinition, ApiDefinitionKind, CustomResourceVersion, DefinedApis, ServedGroupVersion};
use super::{PerApiDefinitionKind, ResourceOrigin, UpstreamResource};
use crate::wire::{FeedEncoding, is_builtin_group_version};
use kubeapi::{Gvr, ListPageSource, SelectableFieldTable};

/// The API groups that kube-apiserver serves itself, for identities that may not read APIServices.
const BUILT_IN_GROUPS: [&str; 23] = [
    "",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "certificates.k8s.io",
    "coordination.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "internal.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
    "storagemigration.k8s.io",
];

/// The known facts about the resources and their servers.
#[derive(Debug, Default)]
pub(super) struct DiscoveryState {
    /// The contents of `/api` and `/apis`.
    pub(super) roots: [DiscoveryRoot; 2],
    /// Whether upstream supports protobuf for its own types.
    pub(super) protobuf: bool,
    /// The minor version of upstream's release, as last reported.
    pub(super) minor: Option<u32>,
    /// The defined custom resources; `None` if the proxy's identity may not read them.
    pub(super) custom: Option<HashMap<Gvr, CustomResourceVersion>>,
    /// The APIs behind the aggregation layer; `None` if the proxy's identity may not read them.
    pub(super) aggregated: Option<Vec<ServedGroupVersion>>,
    /// The documents that the proxy's own feeds provide, so that they are not requested from upstream.
    pub(super) from_feeds: PerApiDefinitionKind<bool>,
}

/// The contents of one discovery root.
#[derive(Debug, Default)]
pub(super) struct DiscoveryRoot {
    /// The `ETag` of the response, for conditional requests.
    pub(super) etag: Option<HeaderValue>,
    pub(super) resources: Vec<(Gvr, DiscoveredResource)>,
}

/// The findings of one discovery. `None` in a discovery root means that the root has not changed.
#[derive(Debug, Default)]
pub(super) struct DiscoveryFindings {
    pub(super) roots: [Option<DiscoveryRoot>; 2],
    pub(super) protobuf: Option<bool>,
    pub(super) minor: Option<u32>,
    /// The lists that were requested; `None` if the proxy may not read the list.
    pub(super) definitions: Vec<(ApiDefinitionKind, Option<Vec<ApiDefinition>>)>,
}

/// The resources that upstream serves, combined from all discovery documents.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ServedResources {
    pub(super) resources: HashMap<Gvr, Arc<UpstreamResource>>,
    /// The documents that were read. If the definitions were read, they list all custom resources.
    pub(super) read: PerApiDefinitionKind<bool>,
    /// The minor version of upstream's release.
    pub(super) minor: Option<u32>,
}

impl DiscoveryState {
    /// Applies the findings. Contents that a feed has provided in the meantime are newer and stay.
    pub(super) fn apply(&mut self, found: DiscoveryFindings) {
        for (root, found) in self.roots.iter_mut().zip(found.roots) {
            if let Some(found) = found {
                *root = found;
            }
        }
        self.protobuf = found.protobuf.unwrap_or(self.protobuf);
        self.minor = found.minor.or(self.minor);
        for (kind, all) in &found.definitions {
            if !self.from_feeds[*kind as usize] {
                self.define(*kind, all.as_ref());
            }
        }
    }

    /// Replaces what all objects of a kind declare; `None` if the proxy may not read them.
    pub(super) fn define<'a>(
        &mut self,
        kind: ApiDefinitionKind,
        all: Option<impl IntoIterator<Item = &'a ApiDefinition>>,
    ) {
        let is_read = all.is_some();
        let (mut custom, mut aggregated) = (HashMap::new(), Vec::new());
        for ApiDefinition(apis) in all.into_iter().flatten() {
            match apis {
                DefinedApis::Custom(defined) => custom.extend(defined.iter().cloned()),
                DefinedApis::Aggregated(other) => aggregated.extend(other.clone()),
            }
        }
        match kind {
            ApiDefinitionKind::Definitions => self.custom = is_read.then_some(custom),
            ApiDefinitionKind::Services => self.aggregated = is_read.then_some(aggregated),
        }
    }

    pub(super) fn served(&self) -> ServedResources {
        let discovered = self.roots.iter().flat_map(|root| &root.resources);
        let mut resources: HashMap<_, _> =
            discovered.map(|(gvr, entry)| (gvr.clone(), Arc::new(self.resource(gvr, entry)))).collect();
        for resource in self.custom_resources() {
            // Discovery lags behind the definitions, which decide, except in groups that the server itself serves.
            if resources.contains_key(&resource.gvr) || !is_built_in(&resource.gvr.group) {
                resources.insert(resource.gvr.clone(), Arc::new(resource));
            }
        }
        ServedResources { resources, read: [self.custom.is_some(), self.aggregated.is_some()], minor: self.minor }
    }

    /// Returns the kind of server behind a resource. In doubt it is another server, whose resources are not cached.
    fn origin(&self, gvr: &Gvr) -> ResourceOrigin {
        let is_named = |(group, version): &ServedGroupVersion| *group == *gvr.group && *version == *gvr.version;
        let aggregated = self.aggregated.as_ref().map(|aggregated| aggregated.iter().any(is_named));
        let is_custom = self.custom.as_ref().is_some_and(|custom| custom.contains_key(gvr));
        match (aggregated, is_custom) {
            (Some(true), _) => ResourceOrigin::Aggregated,
            // kube-apiserver handles all requests below a group version of its own before it considers definitions.
            (_, true) if is_built_in(&gvr.group) && is_builtin_group_version(&gvr.api_version()) => {
                ResourceOrigin::BuiltIn
            }
            (_, true) => ResourceOrigin::Custom,
            _ if is_built_in(&gvr.group) => ResourceOrigin::BuiltIn,
            (Some(false), false) if self.custom.is_none() => ResourceOrigin::Custom,
            _ => ResourceOrigin::Aggregated,
        }
    }

    fn pages(&self, gvr: &Gvr) -> ListPageSource {
        ListPageSource::of_release(self.minor, gvr.has_watch_cache())
    }

    /// Returns the resources that the definitions declare, whether discovery lists them already or not.
    fn custom_resources(&self) -> impl Iterator<Item = UpstreamResource> {
        let defined = self.custom.iter().flatten().filter(|(gvr, _)| self.origin(gvr) == ResourceOrigin::Custom);
        defined.map(|(gvr, definition)| UpstreamResource {
            gvr: gvr.clone(),
            kind: definition.kind.clone(),
            list_kind: definition.list_kind.clone(),
            namespaced: definition.namespaced,
            watchable: true,
            origin: ResourceOrigin::Custom,
            fields: Arc::new(SelectableFieldTable::of_custom(&definition.selectable, definition.namespaced)),
            encoding: FeedEncoding::Json,
            pages: self.pages(gvr),
            edition: Some(definition.edition.clone()),
            printer: definition.printer.clone(),
        })
    }

    fn resource(&self, gvr: &Gvr, entry: &DiscoveredResource) -> UpstreamResource {
        let origin = self.origin(gvr);
        let fields = match origin {
            ResourceOrigin::BuiltIn => SelectableFieldTable::of_builtin(gvr),
            _ => SelectableFieldTable::of_custom(&[], entry.namespaced),
        };
        let is_protobuf = self.protobuf && origin == ResourceOrigin::BuiltIn;
        UpstreamResource {
            pages: self.pages(gvr),
            gvr: gvr.clone(),
            list_kind: format!("{}List", entry.kind).into(),
            kind: entry.kind.as_str().into(),
            namespaced: entry.namespaced,
            watchable: entry.watchable,
            origin,
            encoding: if is_protobuf { FeedEncoding::Protobuf } else { FeedEncoding::Json },
            fields: Arc::new(fields),
            edition: None,
            printer: None,
        }
    }
}

/// Whether kube-apiserver itself serves an API group.
pub(super) fn is_built_in(group: &str) -> bool {
    BUILT_IN_GROUPS.contains(&group)
}

/// The discovery entry of one resource.
#[derive(Debug)]
pub(super) struct DiscoveredResource {
    pub(super) kind: String,
    pub(super) namespaced: bool,
    /// Whether the resource supports both `list` and `watch`.
    pub(super) watchable: bool,
}

/// An `APIGroupDiscoveryList` of `apidiscovery.k8s.io/v2` (KEP-3352).
#[derive(Debug, Deserialize)]
pub struct AggregatedDiscoveryList {
    pub kind: String,
    #[serde(default)]
    pub items: Vec<GroupDiscovery>,
}

#[derive(Debug, Deserialize)]
pub struct GroupDiscovery {
    pub metadata: DiscoveryName,
    #[serde(default)]
    pub versions: Vec<VersionDiscovery>,
}

#[derive(Debug, Deserialize)]
pub struct DiscoveryName {
    #[serde(default)]
    pub name: String,
}

#[derive(Debug, Deserialize)]
pub struct VersionDiscovery {
    pub version: String,
    #[serde(default)]
    pub resources: Vec<ResourceDiscovery>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceDiscovery {
    pub resource: String,
    pub response_kind: Option<DiscoveryKind>,
    pub scope: String,
    #[serde(default)]
    pub singular_resource: String,
    /// `None` if the resource exists only as the parent of its subresources.
    pub verbs: Option<Vec<String>>,
    pub short_names: Option<Vec<String>>,
    pub categories: Option<Vec<String>>,
    #[serde(default)]
    pub subresources: Vec<SubresourceDiscovery>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubresourceDiscovery {
    pub subresource: String,
    pub response_kind: Option<DiscoveryKind>,
    pub verbs: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct DiscoveryKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

impl AggregatedDiscoveryList {
    pub(super) fn into_resources(self) -> Vec<(Gvr, DiscoveredResource)> {
        let mut resources = Vec::new();
        for group in self.items {
            for version in group.versions {
                for entry in version.resources {
                    let can = |needed: &str| entry.verbs.iter().flatten().any(|verb| verb == needed);
                    let discovered = DiscoveredResource {
                        watchable: can("list") && can("watch"),
                        kind: entry.response_kind.map_or_else(String::new, |kind| kind.kind),
                        namespaced: entry.scope == "Namespaced",
                    };
                    resources.push((Gvr::new(&group.metadata.name, &version.version, &entry.resource), discovered));
                }
            }
        }
        resources
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(kind: &str) -> CustomResourceVersion {
        CustomResourceVersion {
            edition: "1".into(),
            kind: kind.into(),
            list_kind: format!("{kind}List").into(),
            namespaced: false,
            selectable: Vec::new(),
            printer: None,
        }
    }

    fn entry(gvr: &Gvr) -> (Gvr, DiscoveredResource) {
        let kind = "CertificateSigningRequest".to_owned();
        (gvr.clone(), DiscoveredResource { kind, namespaced: false, watchable: true })
    }

    /// As in upstream: the paths of a group version that kube-apiserver serves never lead to a definition's objects.
    #[test]
    fn builtin_resource_shadows_crd_of_same_group_version() {
        let requests = Gvr::new("certificates.k8s.io", "v1", "certificatesigningrequests");
        let other = Gvr::new("certificates.k8s.io", "v9", "certificatesigningrequests");
        let missing = Gvr::new("certificates.k8s.io", "v1", "others");
        let discovered = DiscoveryRoot { etag: None, resources: vec![entry(&requests), entry(&other)] };
        let roots = [DiscoveryRoot::default(), discovered];
        let custom = [&requests, &other, &missing].map(|gvr| (gvr.clone(), definition("Mine")));
        let (custom, aggregated) = (Some(custom.into()), Some(Vec::new()));
        let state = DiscoveryState { roots, protobuf: true, custom, aggregated, ..DiscoveryState::default() };
        let served = state.served().resources;
        let known = &served[&requests];
        assert_eq!(
            (known.origin, known.encoding, &*known.kind),
            (ResourceOrigin::BuiltIn, FeedEncoding::Protobuf, "CertificateSigningRequest",)
        );
        assert!(known.edition.is_none() && known.fields.position("spec.signerName").is_some());
        // A version that Kubernetes does not have belongs to the definition.
        assert_eq!((served[&other].origin, &*served[&other].kind), (ResourceOrigin::Custom, "Mine"));
        assert!(!served.contains_key(&missing));
    }
}
