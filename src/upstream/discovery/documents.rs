//! The discovery documents, as far as we read them.

use serde::Deserialize;

pub(super) const API_SERVICE_PATH: &str = "/apis/apiregistration.k8s.io/v1/apiservices";

/// The resources of one group version: `(plural, kind, namespaced, verbs)`.
pub(super) struct VersionList {
    pub(super) group: String,
    pub(super) version: String,
    pub(super) resources: Vec<(String, String, bool, Vec<String>)>,
}

/// `apidiscovery.k8s.io/v2 APIGroupDiscoveryList` (KEP-3352).
#[derive(Deserialize)]
pub(super) struct DiscoveryList {
    pub(super) kind: String,
    #[serde(default)]
    items: Vec<GroupDiscovery>,
}

#[derive(Deserialize)]
struct GroupDiscovery {
    metadata: Name,
    #[serde(default)]
    versions: Vec<VersionDiscovery>,
}

#[derive(Deserialize)]
struct Name {
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
    response_kind: Option<Kind>,
    scope: String,
    #[serde(default)]
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct Kind {
    kind: String,
}

impl DiscoveryList {
    pub(super) fn into_versions(self) -> Vec<VersionList> {
        let versions = self.items.into_iter().flat_map(|group| {
            let name = group.metadata.name;
            group.versions.into_iter().map(move |version| (name.clone(), version))
        });
        versions
            .map(|(group, VersionDiscovery { version, resources })| VersionList {
                group,
                version,
                resources: resources
                    .into_iter()
                    .map(|r| {
                        (
                            r.resource,
                            r.response_kind.map_or_else(String::new, |k| k.kind),
                            r.scope == "Namespaced",
                            r.verbs,
                        )
                    })
                    .collect(),
            })
            .collect()
    }
}

/// `APIVersions` (below `/api`) or `APIGroupList` (below `/apis`).
#[derive(Deserialize)]
pub(super) struct Groups {
    #[serde(default)]
    versions: Vec<String>,
    #[serde(default)]
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    versions: Vec<GroupVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct GroupVersion {
    group_version: String,
}

impl Groups {
    pub(super) fn group_versions(self) -> impl Iterator<Item = String> {
        let grouped = self.groups.into_iter().flat_map(|group| group.versions).map(|version| version.group_version);
        self.versions.into_iter().chain(grouped)
    }
}

/// `APIResourceList`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LegacyList {
    group_version: String,
    #[serde(default)]
    resources: Vec<LegacyResource>,
}

#[derive(Deserialize)]
struct LegacyResource {
    name: String,
    kind: String,
    #[serde(default)]
    namespaced: bool,
    #[serde(default)]
    verbs: Vec<String>,
}

impl LegacyList {
    pub(super) fn into_version(self) -> VersionList {
        let (group, version) = self.group_version.rsplit_once('/').unwrap_or(("", &self.group_version));
        VersionList {
            group: group.to_owned(),
            version: version.to_owned(),
            resources: self
                .resources
                .into_iter()
                // Subresources are listed as `pods/log`.
                .filter(|resource| !resource.name.contains('/'))
                .map(|resource| (resource.name, resource.kind, resource.namespaced, resource.verbs))
                .collect(),
        }
    }
}

#[derive(Deserialize)]
pub(super) struct ApiServices {
    #[serde(default)]
    items: Vec<ApiService>,
}

#[derive(Deserialize)]
struct ApiService {
    spec: ApiServiceSpec,
}

#[derive(Deserialize)]
struct ApiServiceSpec {
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
    service: Option<serde::de::IgnoredAny>,
}

impl ApiServices {
    /// `(group, version)` of everything that another server answers for.
    pub(super) fn remote(self) -> Vec<(String, String)> {
        let remote = self.items.into_iter().map(|item| item.spec).filter(|spec| spec.service.is_some());
        remote.map(|spec| (spec.group, spec.version)).collect()
    }
}
