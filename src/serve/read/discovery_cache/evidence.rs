//! What a root document says about the documents below it, so that one comparison with upstream covers them all
//! (R-DISCOVERY-1).
//!
//! | Root | Below it | Equal if |
//! |---|---|---|
//! | aggregated `/api` and `/apis` | `/api/v1`, `/apis/GROUP/VERSION` as JSON | the same resources, in any order and without `storageVersionHash`, which a root lacks |
//! | `/openapi/v3` | `/openapi/v3/PATH` | its `ETag` is the hash in the root |
//!
//! `/apis/GROUP` is compared with upstream itself: it follows APIServices, and a root the servers of the group.
//!
//! The contents are compared, not the times of two requests: another apiserver behind the same address may have answered
//! the other request.

use std::collections::HashMap;

use http::HeaderMap;
use http::header::ETAG;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIResource, APIResourceList};
use ring::digest::{SHA256, digest};
use serde::Deserialize;

use crate::upstream::{
    AggregatedDiscoveryList, DiscoveryKind, DiscoveryName, GroupDiscovery, ResourceDiscovery, SubresourceDiscovery,
    VersionDiscovery,
};

/// What a document says: an `ETag` without its quotes, or a digest.
pub(super) type Evidence = Box<[u8]>;

/// The version of a cached discovery document, and those that it names for the documents below it.
#[derive(Debug, Default)]
pub(super) struct DocumentEvidence {
    pub(super) own: Option<Evidence>,
    below: HashMap<String, Evidence>,
}

pub(super) const OPENAPI_V3: &str = "/openapi/v3";

/// Returns what the documents at `path` and their root have in common; `None` if the document is below no root.
pub(super) fn root_of(path: &str) -> Option<&'static str> {
    let is_below = |root: &&str| path.strip_prefix(root).is_some_and(|rest| rest.starts_with('/'));
    ["/api", "/apis", OPENAPI_V3].into_iter().find(is_below)
}

impl DocumentEvidence {
    pub(super) fn read(path: &str, headers: &HeaderMap, body: &[u8]) -> Self {
        match (path, root_of(path)) {
            (OPENAPI_V3, _) => Self { own: None, below: hashes(body).unwrap_or_default() },
            ("/api" | "/apis", _) => Self { own: None, below: groups(path, body).unwrap_or_default() },
            (_, Some(OPENAPI_V3)) => {
                let etag = headers.get(ETAG).and_then(|etag| etag.as_bytes().strip_prefix(b"\"")?.strip_suffix(b"\""));
                Self { own: etag.map(Into::into), ..Self::default() }
            }
            (_, Some(_)) => Self { own: resource_list(body), ..Self::default() },
            (_, None) => Self::default(),
        }
    }

    /// Returns what this root says about the document at `path`.
    pub(super) fn of(&self, path: &str) -> Option<&[u8]> {
        self.below.get(path).map(AsRef::as_ref)
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.below.iter().map(|(path, evidence)| 64 + path.len() + evidence.len()).sum()
    }
}

/// An `OpenAPIV3Discovery`.
#[derive(Deserialize)]
struct OpenApiRoot {
    paths: HashMap<String, OpenApiPath>,
}

#[derive(Deserialize)]
struct OpenApiPath {
    #[serde(rename = "serverRelativeURL")]
    url: String,
}

fn hashes(json: &[u8]) -> Option<HashMap<String, Evidence>> {
    let OpenApiRoot { paths } = serde_json::from_slice(json).ok()?;
    let hashes = paths.into_iter().filter_map(|(path, OpenApiPath { url })| {
        let (_, hash) = url.split_once("?hash=")?;
        Some((format!("{OPENAPI_V3}/{path}"), hash.as_bytes().into()))
    });
    Some(hashes.collect())
}

fn groups(root: &str, json: &[u8]) -> Option<HashMap<String, Evidence>> {
    let AggregatedDiscoveryList { items, .. } = serde_json::from_slice(json).ok()?;
    let mut below = HashMap::new();
    for GroupDiscovery { metadata: DiscoveryName { name: group }, versions } in items {
        for VersionDiscovery { version, resources } in versions {
            let group_version = if group.is_empty() { version } else { format!("{group}/{version}") };
            let all = resources.into_iter().flat_map(in_list);
            below.insert(format!("{root}/{group_version}"), resources_evidence(&group_version, all));
        }
    }
    Some(below)
}

/// Returns a resource and its subresources as an `APIResourceList` has them.
fn in_list(discovery: ResourceDiscovery) -> impl Iterator<Item = APIResource> {
    let ResourceDiscovery { resource, response_kind, scope, singular_resource, verbs, short_names, categories, .. } =
        discovery;
    let namespaced = scope == "Namespaced";
    let entry = |name: String, kind: Option<DiscoveryKind>, verbs: Option<Vec<String>>| {
        let DiscoveryKind { group, version, kind } = kind.unwrap_or_default();
        let (group, version, verbs) = (Some(group), Some(version), verbs.unwrap_or_default());
        APIResource { name, namespaced, group, version, kind, verbs, ..APIResource::default() }
    };
    let of_subresource = |SubresourceDiscovery { subresource, response_kind, verbs }| {
        entry(format!("{resource}/{subresource}"), response_kind, verbs)
    };
    let mut all: Vec<_> = discovery.subresources.into_iter().map(of_subresource).collect();
    // A parent without verbs is no resource itself.
    if verbs.as_ref().is_some_and(|verbs| !verbs.is_empty()) {
        let own = entry(resource, response_kind, verbs);
        all.push(APIResource { singular_name: singular_resource, short_names, categories, ..own });
    }
    all.into_iter()
}

fn resource_list(json: &[u8]) -> Option<Evidence> {
    let APIResourceList { group_version, resources } = serde_json::from_slice(json).ok()?;
    Some(resources_evidence(&group_version, resources))
}

fn resources_evidence(group_version: &str, resources: impl IntoIterator<Item = APIResource>) -> Evidence {
    let facts = |resource: APIResource| {
        let APIResource {
            categories, group, kind, name, namespaced, short_names, singular_name, verbs, version, ..
        } = resource;
        let group_version = match (group.unwrap_or_default(), version.unwrap_or_default()) {
            (group, version) if group.is_empty() && version.is_empty() => group_version.to_owned(),
            (group, version) if group.is_empty() => version,
            (group, version) => format!("{group}/{version}"),
        };
        let (short_names, categories) = (short_names.unwrap_or_default(), categories.unwrap_or_default());
        format!("{:?}", (name, group_version, kind, namespaced, singular_name, verbs, short_names, categories))
    };
    let mut all: Vec<_> = resources.into_iter().map(facts).collect();
    all.sort_unstable();
    digest(&SHA256, format!("{group_version} {all:?}").as_bytes()).as_ref().into()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn own(path: &str, body: &Value) -> Option<Evidence> {
        DocumentEvidence::read(path, &HeaderMap::new(), body.to_string().as_bytes()).own
    }

    fn root(path: &str, body: &Value) -> DocumentEvidence {
        DocumentEvidence::read(path, &HeaderMap::new(), body.to_string().as_bytes())
    }

    fn aggregated() -> Value {
        let scale = json!({"group": "autoscaling", "version": "v1", "kind": "Scale"});
        let own = json!({"group": "g.io", "version": "v1", "kind": "Thing"});
        json!({"kind": "APIGroupDiscoveryList", "items": [{"metadata": {"name": "g.io"}, "versions": [
            {"version": "v1", "resources": [
                {"resource": "things", "responseKind": own, "scope": "Namespaced", "singularResource": "thing",
                 "verbs": ["get", "list"], "shortNames": ["th"], "subresources": [
                    {"subresource": "scale", "responseKind": scale, "verbs": ["get"]},
                    {"subresource": "status", "responseKind": {"group": "", "version": "", "kind": "Thing"}, "verbs": ["get"]},
                ]},
                {"resource": "parents", "responseKind": {}, "scope": "Cluster", "verbs": null, "subresources": [
                    {"subresource": "only", "responseKind": {"kind": "Only"}, "verbs": ["create"]},
                ]},
            ]},
            {"version": "v1beta1"},
        ]}]})
    }

    fn list() -> Value {
        json!({"kind": "APIResourceList", "groupVersion": "g.io/v1", "resources": [
            {"name": "parents/only", "singularName": "", "namespaced": false, "kind": "Only", "verbs": ["create"]},
            {"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get", "list"],
             "shortNames": ["th"], "storageVersionHash": "x"},
            {"name": "things/scale", "singularName": "", "namespaced": true, "group": "autoscaling", "version": "v1",
             "kind": "Scale", "verbs": ["get"]},
            {"name": "things/status", "singularName": "", "namespaced": true, "kind": "Thing", "verbs": ["get"]},
        ]})
    }

    #[test]
    fn root_proves_the_list_of_the_same_resources_only() {
        let (root, path) = (root("/apis", &aggregated()), "/apis/g.io/v1");
        assert_eq!(own(path, &list()).as_deref(), root.of(path));
        assert!(root.of(path).is_some() && root.of("/apis/g.io/v2").is_none());
        for (pointer, value) in [
            ("/groupVersion", json!("g.io/v2")),
            ("/resources/1/name", json!("others")),
            ("/resources/1/singularName", json!("other")),
            ("/resources/1/namespaced", json!(false)),
            ("/resources/1/kind", json!("Other")),
            ("/resources/1/verbs", json!(["get"])),
            ("/resources/1/shortNames", json!(null)),
            ("/resources/1/categories", json!(["all"])),
            ("/resources/2/group", json!("g.io")),
            ("/resources/2/version", json!("v2")),
            ("/resources/3/verbs", json!(["get", "update"])),
            ("/resources/0/verbs", json!([])),
        ] {
            let mut other = list();
            let (parent, name) = pointer.rsplit_once('/').expect("a pointer");
            other.pointer_mut(parent).expect("in the list")[name] = value;
            assert_ne!(own(path, &other).as_deref(), root.of(path), "{pointer}");
        }
        let mut shorter = list();
        shorter["resources"].as_array_mut().expect("a list").pop();
        assert_ne!(own(path, &shorter).as_deref(), root.of(path));
        assert_eq!(own(path, &json!("k8s\0")), None, "other encodings prove nothing");
    }

    #[test]
    fn hash_of_the_openapi_root_is_the_etag_of_the_document() {
        let url = json!({"serverRelativeURL": "/openapi/v3/apis/g.io/v1?hash=AB"});
        let root = root(OPENAPI_V3, &json!({"paths": {"apis/g.io/v1": url}}));
        let path = "/openapi/v3/apis/g.io/v1";
        let headers = HeaderMap::from_iter([(ETAG, http::HeaderValue::from_static("\"AB\""))]);
        assert_eq!(DocumentEvidence::read(path, &headers, b"{}").own.as_deref(), root.of(path));
        assert_eq!((root.of(path), root.of("/openapi/v3/apis/g.io/v2")), (Some(&b"AB"[..]), None));
    }

    #[test]
    fn document_is_below_the_root_that_its_path_names() {
        for (path, expected) in [
            ("/api/v1", Some("/api")),
            ("/apis/apps", Some("/apis")),
            ("/apis/apps/v1", Some("/apis")),
            ("/openapi/v3/api", Some("/openapi/v3")),
            ("/openapi/v3", None),
            ("/openapi/v2", None),
            ("/apis", None),
            ("/version", None),
        ] {
            assert_eq!(root_of(path), expected, "{path}");
        }
    }
}
