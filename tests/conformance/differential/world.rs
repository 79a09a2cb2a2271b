//! The objects of the comparison: at least one of every resource that an apiserver without controllers accepts. They
//! are created one by one while the proxy's feeds run, so that the feeds receive them as events. They do not change
//! afterwards.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Deref;

use futures_util::{StreamExt, stream};
use http::Method;
use serde_json::{Value, json};

use super::probe::path_segment;
use crate::bed::{self, Http, Pair, Plane, RequestSpec, eventually, version_of};

/// A resource and its objects.
#[derive(Debug)]
pub struct Served {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    pub prefix: String,
    pub name: String,
    pub kind: String,
    pub namespaced: bool,
    pub watchable: bool,
    pub listable: bool,
    pub subresources: Vec<String>,
    /// Pairs of namespace and name. The namespace is empty for cluster-scoped objects.
    pub objects: Vec<(String, String)>,
    /// The content of one of these objects.
    pub example: Option<Value>,
}

#[derive(Debug)]
pub struct World {
    /// Sorted by path.
    pub resources: Vec<Served>,
    /// The versions of writes, in order.
    pub versions: Vec<u64>,
}

/// The namespaces. The first name is a prefix of the second.
pub const NAMESPACES: [&str; 2] = ["world", "world-a"];
/// Configmaps in a separate namespace, which make a list long enough to be compressed.
pub const BULK: (&str, usize) = ("world-bulk", 40);
const FORMS: [&str; 2] = ["application/json", "application/vnd.kubernetes.protobuf"];
/// The number of concurrent waits. Most feeds need one or two seconds to learn of a version of another resource.
const AT_ONCE: usize = 80;

impl Served {
    /// The path of a collection; of all namespaces if `namespace` is empty.
    pub fn collection(&self, namespace: &str) -> String {
        if namespace.is_empty() || !self.namespaced {
            format!("{}/{}", self.prefix, self.name)
        } else {
            format!("{}/namespaces/{namespace}/{}", self.prefix, self.name)
        }
    }
}

impl World {
    pub async fn make<P: Deref<Target = Plane>>(pair: &Pair<P>) -> Self {
        let direct = &pair.direct;
        for name in NAMESPACES.into_iter().chain([BULK.0]) {
            let labels = json!({"app": "x", "env": "prod"});
            direct.create("/api/v1/namespaces", json!({"metadata": {"name": name, "labels": labels}})).await;
        }
        let mut known = resources(direct).await;
        for definition in documents("definitions") {
            make(direct, &known, &definition).await;
            let (spec, version) = (&definition["spec"], "v1");
            let path = format!("/apis/{}/{version}/{}", text(&spec["group"]), text(&spec["names"]["plural"]));
            direct.until_ok("it is served", RequestSpec::get(&path)).await;
            let path = format!("{path}?resourceVersion=0");
            eventually("it is cached", async || pair.through.get(&path).await.is_cached().then_some(())).await;
        }
        known = resources(direct).await;
        let watched: Vec<_> = known.iter().filter(|resource| resource.watchable).collect();
        settle(&[&pair.through], &watched, 0).await;
        let mut versions = vec![direct.version("/api/v1/namespaces").await];
        for document in documents("objects") {
            versions.push(make(direct, &known, &document).await);
        }
        for at in 0..BULK.1 {
            let data = json!({"text": "0123456789abcdef".repeat(256)});
            let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
                "metadata": {"name": format!("bulk-{at}"), "namespace": BULK.0}});
            make(direct, &known, &map).await;
        }
        for resource in &mut known {
            resource.look(direct).await;
        }
        versions.extend(change(direct, &known).await);
        let last = *versions.last().expect("some");
        let world = Self { resources: known, versions };
        world.settle(pair, last).await;
        world
    }

    /// Waits until both servers' caches of all resources have reached a version.
    pub async fn settle<P: Deref<Target = Plane>>(&self, pair: &Pair<P>, version: u64) {
        let watched: Vec<_> = self.resources.iter().filter(|resource| resource.watchable).collect();
        settle(&[&pair.direct, &pair.through], &watched, version).await;
    }
}

impl Served {
    async fn look(&mut self, http: &Http) {
        if !self.listable {
            return;
        }
        let list = http.json(&self.collection("")).await;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let named = items.iter().map(|item| {
            let metadata = &item["metadata"];
            (text(&metadata["namespace"]).to_owned(), text(&metadata["name"]).to_owned())
        });
        self.objects = named.filter(|(namespace, _)| namespace != BULK.0).collect();
        let group = self.prefix.trim_start_matches("/apis/").trim_start_matches("/api/").to_owned();
        self.example = items.into_iter().next_back().map(|mut item| {
            item["kind"] = json!(self.kind);
            item["apiVersion"] = json!(group);
            item
        });
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// The YAML documents of a directory in `world`, sorted by file name.
fn documents(folder: &str) -> Vec<Value> {
    let folder = bed::repository().join("tests/conformance/world").join(folder);
    let files = fs::read_dir(&folder).expect("the world's manifests").flatten();
    let mut files: Vec<_> = files.map(|file| file.path()).collect();
    files.sort();
    let of = |path: std::path::PathBuf| {
        let text = fs::read_to_string(&path).expect("a manifest");
        let parse = |document: &str| {
            serde_saphyr::from_str::<Value>(document).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        text.split("\n---\n").map(parse).filter(Value::is_object).collect::<Vec<_>>()
    };
    files.into_iter().flat_map(of).collect()
}

/// All resources in the discovery documents.
async fn resources(http: &Http) -> Vec<Served> {
    let groups = http.json("/apis").await;
    let versions = groups["groups"].as_array().into_iter().flatten().filter_map(|group| group["versions"].as_array());
    let grouped = versions.flatten().map(|version| format!("/apis/{}", text(&version["groupVersion"])));
    let mut found = BTreeMap::new();
    for prefix in std::iter::once("/api/v1".to_owned()).chain(grouped) {
        let document = http.json(&prefix).await;
        let listed = document["resources"].as_array().cloned().unwrap_or_default();
        // The apiserver probes components for this answer, whose order changes every time.
        for resource in listed.into_iter().filter(|resource| resource["name"] != "componentstatuses") {
            let (name, subresource) = match text(&resource["name"]).split_once('/') {
                Some((name, subresource)) => (name, Some(subresource.to_owned())),
                None => (text(&resource["name"]), None),
            };
            let has = |verb: &str| resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!(verb)));
            let entry = found.entry((prefix.clone(), name.to_owned())).or_insert_with(|| Served {
                prefix: prefix.clone(),
                name: name.to_owned(),
                kind: text(&resource["kind"]).to_owned(),
                namespaced: resource["namespaced"] == true,
                watchable: false,
                listable: false,
                subresources: Vec::new(),
                objects: Vec::new(),
                example: None,
            });
            match subresource {
                Some(subresource) => entry.subresources.push(subresource),
                None => {
                    (entry.watchable, entry.listable) = (has("watch"), has("list"));
                    text(&resource["kind"]).clone_into(&mut entry.kind);
                }
            }
        }
    }
    found.into_values().collect()
}

/// Creates an object, and its status if it has one. Returns the version after that.
async fn make(http: &Http, known: &[Served], document: &Value) -> u64 {
    let (version, kind) = (text(&document["apiVersion"]), text(&document["kind"]));
    let prefix = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let resource = known.iter().find(|resource| resource.prefix == prefix && resource.kind == kind);
    let resource = resource.unwrap_or_else(|| panic!("nothing serves {version} {kind}"));
    let metadata = &document["metadata"];
    let namespace = metadata["namespace"].as_str().unwrap_or(NAMESPACES[0]);
    let collection = resource.collection(namespace);
    let created = http.create(&collection, document.clone()).await;
    if document["status"].is_null() || !resource.subresources.iter().any(|name| name == "status") {
        return version_of(&created);
    }
    let path = format!("{collection}/{}/status", path_segment(text(&metadata["name"])));
    version_of(&http.patch(&path, json!({"status": document["status"]})).await)
}

/// Adds and removes labels on some objects, and deletes some. Returns the versions of these writes.
async fn change(http: &Http, known: &[Served]) -> Vec<u64> {
    let mut versions = Vec::new();
    let relabelled = known.iter().filter(|resource| resource.watchable && resource.example.is_some());
    for resource in relabelled {
        let example = resource.example.as_ref().expect("there is one");
        let metadata = &example["metadata"];
        let name = path_segment(text(&metadata["name"]));
        let path = format!("{}/{name}", resource.collection(text(&metadata["namespace"])));
        if metadata["labels"]["gone"] == "true" {
            http.delete(&path).await;
            continue;
        }
        for app in ["y", "x"] {
            // Some objects, such as a ControllerRevision, may refuse new labels.
            let patch = json!({"metadata": {"labels": {"app": app, "touched": "yes"}}}).to_string();
            let request = RequestSpec::get(&path).with(Method::PATCH, "application/merge-patch+json", patch);
            let answer = http.fetch(request).await;
            versions.extend(answer.status.is_success().then(|| version_of(&answer.value())));
        }
    }
    let extra = json!({"metadata": {"name": "last", "labels": {"app": "x"}}, "data": {"k": "a<b>&\u{2028}"}});
    let maps = format!("/api/v1/namespaces/{}/configmaps", NAMESPACES[0]);
    http.create(&maps, extra).await;
    http.delete(&format!("{maps}/last")).await;
    versions.push(http.version("/api/v1/namespaces").await);
    versions
}

/// Waits until the caches of all resources, in both encodings, have reached a version.
async fn settle(servers: &[&Http], resources: &[&Served], version: u64) {
    let asks = servers.iter().flat_map(|http| {
        resources.iter().flat_map(move |resource| {
            let path = format!("{}?labelSelector=none&resourceVersion={version}", resource.collection(""));
            FORMS.map(|form| ((*http).clone(), RequestSpec::get(&path).accept(form)))
        })
    });
    let one = async |(http, request): (Http, RequestSpec)| {
        eventually(&format!("{} is answered", request.path), async || {
            let status = http.fetch(request.clone()).await.status.as_u16();
            // Custom resources have no protobuf encoding.
            matches!(status, 200 | 406).then_some(())
        })
        .await;
    };
    stream::iter(asks).map(one).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
}
