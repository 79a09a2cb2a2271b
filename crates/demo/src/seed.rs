//! Fills the store before the first request.

use super::clock;
use super::json::Json;
use super::kinds::{DemoResourceKind, KINDS, PODS, by_plural};
use super::objects::{API_SERVICE, CRD, DEPLOYMENT, EVENT, NODE, SERVICE, fill};
use super::pods::{NAMESPACES, nth};
use super::store::{ObjectStore, WriteDecision};
use super::write::split;

const DEPLOYMENTS: [&str; 4] = ["api", "front", "gateway", "worker"];
const WIDGETS: [(&str, &str); 3] = [("gear", "red"), ("lever", "green"), ("spring", "blue")];
const EVENTS: usize = 5;

const NAMESPACE: &str = r#"{"metadata": {"name": "$name", "labels": {"kubernetes.io/metadata.name": "$name"}},
    "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}"#;
const ROOT_CA: &str = r#"{"metadata": {"name": "kube-root-ca.crt", "namespace": "$name"},
    "data": {"ca.crt": "-----BEGIN CERTIFICATE-----\ndemo\n-----END CERTIFICATE-----\n"}}"#;
const SECRET: &str = r#"{"metadata": {"name": "token", "namespace": "default"},
    "data": {"token": "ZGVtbw=="}, "type": "Opaque"}"#;
const WIDGET: &str = r#"{"metadata": {"name": "$name", "namespace": "default", "labels": {"color": "$color"}},
    "spec": {"color": "$color", "size": 3}}"#;

pub(crate) fn seed(store: &ObjectStore, pods: usize, nodes: usize) {
    let now = clock::rfc3339(clock::unix_seconds());
    for namespace in NAMESPACES.into_iter().chain(["kube-system"]) {
        add(store, "namespaces", NAMESPACE, &[("name", namespace)]);
        add(store, "configmaps", ROOT_CA, &[("name", namespace)]);
    }
    for n in 0..nodes {
        let (zone, host) = (n % 3, n % 250 + 1);
        let values = [("n", n.to_string()), ("zone", zone.to_string()), ("host", host.to_string())];
        let mut values: Vec<_> = values.iter().map(|(name, value)| (*name, value.as_str())).collect();
        values.push(("now", &now));
        add(store, "nodes", NODE, &values);
    }
    for app in DEPLOYMENTS {
        add(store, "deployments", DEPLOYMENT, &[("app", app)]);
        add(store, "services", SERVICE, &[("app", app), ("host", &(app.len() + 10).to_string())]);
    }
    add(store, "secrets", SECRET, &[]);
    for (name, color) in WIDGETS {
        add(store, "widgets", WIDGET, &[("name", name), ("color", color)]);
    }
    add(store, "customresourcedefinitions", CRD, &[("now", &now)]);
    let mut versions: Vec<_> = KINDS.iter().map(|DemoResourceKind { group, version, .. }| (group, version)).collect();
    versions.dedup();
    for (group, version) in versions {
        add(store, "apiservices", API_SERVICE, &[("group", group), ("version", version), ("now", &now)]);
    }
    for n in 0..pods {
        let pod = nth(n, nodes);
        // The closure returns no error, so the write cannot fail.
        let _ = store.write(PODS, &pod.key(), |_| {
            let (meta, rest) = pod.document(None);
            Ok(Some(WriteDecision::Put(meta, rest)))
        });
    }
    let (pods, ..) = store.now(PODS);
    for pod in pods.iter().filter(|pod| pod.meta.namespace == NAMESPACES[0]).take(EVENTS) {
        let meta = &pod.meta;
        let values = [("namespace", &*meta.namespace), ("name", &meta.name), ("uid", &meta.uid), ("now", &now)];
        add(store, "events", EVENT, &values);
    }
    store.forget();
}

fn add(store: &ObjectStore, plural: &str, template: &str, values: &[(&str, &str)]) {
    if let Some(kind) = by_plural(plural) {
        put(store, kind, fill(template, values));
    }
}

/// Creates or replaces an object without the checks that a request would meet. Returns the revision.
pub(crate) fn put(store: &ObjectStore, kind: usize, document: Json) -> u64 {
    let (mut meta, rest) = split(document);
    let key = meta.key();
    let written = store.write(kind, &key, |current| {
        let before = current.map(|current| &current.meta);
        meta.uid = before.map_or_else(super::uid, |before| before.uid.clone());
        meta.created = before.map_or_else(|| clock::rfc3339(clock::unix_seconds()), |before| before.created.clone());
        let generation = before.and_then(|before| before.generation).unwrap_or(0);
        let is_changed = current.is_none_or(|current| current.rest().get("spec") != rest.get("spec"));
        meta.generation = KINDS[kind].generation.then_some(generation + u64::from(is_changed));
        Ok(Some(WriteDecision::Put(meta, rest)))
    });
    written.ok().flatten().map_or(0, |written| written.revision)
}
