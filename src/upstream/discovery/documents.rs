//! The parts of discovery documents that the proxy reads.

use serde::Deserialize;

/// The group and the version of an API.
pub(super) type ServedGroupVersion = (String, String);

/// The resources of one group version.
#[derive(Debug)]
pub(super) struct GroupVersionResources {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resources: Vec<DiscoveredResource>,
}

/// The discovery entry of one resource.
#[derive(Debug)]
pub(super) struct DiscoveredResource {
    pub(super) plural: String,
    pub(super) kind: String,
    pub(super) namespaced: bool,
    /// Whether the resource supports both `list` and `watch`.
    pub(super) watchable: bool,
}

fn is_watchable(verbs: &[String]) -> bool {
    ["list", "watch"].iter().all(|needed| verbs.iter().any(|verb| verb == needed))
}

/// An `APIGroupDiscoveryList` of `apidiscovery.k8s.io/v2` (KEP-3352).
#[derive(Deserialize)]
pub(super) struct AggregatedDiscoveryList {
    pub(super) kind: String,
    #[serde(default)]
    items: Vec<GroupDiscovery>,
}

#[derive(Deserialize)]
struct GroupDiscovery {
    metadata: DiscoveryName,
    #[serde(default)]
    versions: Vec<VersionDiscovery>,
}

#[derive(Deserialize)]
struct DiscoveryName {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct VersionDiscovery {
    version: String,
    #[serde(default)]
    resources: Vec<ResourceDiscovery>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery {
    resource: String,
    response_kind: Option<DiscoveryKind>,
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct DiscoveryKind {
    kind: String,
}

impl AggregatedDiscoveryList {
    pub(super) fn into_versions(self) -> Vec<GroupVersionResources> {
        let versions = self.items.into_iter().flat_map(|group| {
            let name = group.metadata.name;
            group.versions.into_iter().map(move |version| (name.clone(), version))
        });
        versions
            .map(|(group, VersionDiscovery { version, resources })| GroupVersionResources {
                group,
                version,
                resources: resources
                    .into_iter()
                    .map(|entry| DiscoveredResource {
                        plural: entry.resource,
                        kind: entry.response_kind.map_or_else(String::new, |kind| kind.kind),
                        namespaced: entry.scope == "Namespaced",
                        watchable: is_watchable(&entry.verbs),
                    })
                    .collect(),
            })
            .collect()
    }
}
