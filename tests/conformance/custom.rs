//! Custom resources: their layouts, their selectable fields, and changes of their definitions.

use std::ops::Deref;
use std::time::Duration;

use futures_util::future::join_all;
use http::Method;
use serde_json::{Value, json};

use crate::bed::{self, Ended, Http, Pair, Plane, RequestSpec, eventually, log_line, promised, unique, version_of};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// The longest delay with which the proxy follows a change of a definition (docs/DIFFERENCES.md, "Changed
/// definitions").
pub const FOLLOWS: Duration = Duration::from_secs(1);

/// A custom resource that only one test uses.
pub struct Kind {
    definition: String,
    pub group: String,
}

impl Kind {
    /// Creates the definition, and waits until both servers serve it.
    async fn define<P: Deref<Target = Plane>>(pair: &Pair<P>) -> Self {
        let group = format!("{}.example.com", unique("g"));
        let kind = Self { definition: format!("{DEFINITIONS}/widgets.{group}"), group };
        pair.direct.create(DEFINITIONS, kind.manifest()).await;
        kind.is_served(pair).await;
        kind
    }

    fn manifest(&self) -> Value {
        let properties = json!({
            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                "color": {"type": "string"}, "shape": {"type": "string"},
                "size": {"type": "integer"}, "on": {"type": "boolean"}}}
        });
        let version = json!({
            "name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": {"type": "object", "properties": properties}},
            "selectableFields": [{"jsonPath": ".spec.color"}, {"jsonPath": ".spec.size"}, {"jsonPath": ".spec.on"}],
        });
        json!({
            "metadata": {"name": format!("widgets.{}", self.group)},
            "spec": {
                "group": self.group, "scope": "Namespaced", "versions": [version],
                "names": {"plural": "widgets", "singular": "widget", "kind": "Widget"},
            }
        })
    }

    fn path<P: Deref<Target = Plane>>(&self, pair: &Pair<P>, rest: &str) -> String {
        format!("/apis/{}/v1/namespaces/{}/widgets{rest}", self.group, pair.namespace)
    }

    async fn is_served<P: Deref<Target = Plane>>(&self, pair: &Pair<P>) {
        let path = self.path(pair, "?resourceVersion=0");
        let is_served = async |http: &Http| (http.get(&path).await.status == 200).then_some(());
        eventually("upstream serves the custom resource", async || is_served(&pair.direct).await).await;
        promised(FOLLOWS, "the custom resource is served", async || is_served(&pair.through).await).await;
    }

    async fn widget<P: Deref<Target = Plane>>(&self, pair: &Pair<P>, name: &str, spec: Value) -> u64 {
        let object = json!({
            "apiVersion": format!("{}/v1", self.group), "kind": "Widget",
            "metadata": {"name": name, "labels": {"app": name}}, "spec": spec
        });
        let version = version_of(&pair.direct.create(&self.path(pair, ""), object).await);
        let path = self.path(pair, &format!("?resourceVersion={version}"));
        for http in [&pair.direct, &pair.through] {
            http.until_ok("both have it", RequestSpec::get(&path)).await;
        }
        version
    }
}

async fn with_widgets() -> Option<(Pair, Kind, u64)> {
    let pair = Pair::new().await?;
    let (kind, last) = define(&pair).await;
    Some((pair, kind, last))
}

/// Creates the resource with two objects. Returns it and the version of the second object.
pub async fn define<P: Deref<Target = Plane>>(pair: &Pair<P>) -> (Kind, u64) {
    let kind = Kind::define(pair).await;
    kind.widget(pair, "red", json!({"color": "red", "size": 3, "on": true, "shape": "round", "z": "a<b>&", "a": 1.50}))
        .await;
    let last = kind.widget(pair, "blue", json!({"color": "blue", "on": false})).await;
    (kind, last)
}

#[tokio::test]
async fn custom_resource_reads_match_the_apiserver_byte_for_byte() {
    let Some((pair, kind, _)) = with_widgets().await else { return };
    let list = pair.same(RequestSpec::get(&kind.path(&pair, "?resourceVersion=0"))).await;
    assert!(list.is_cached() && list.text().starts_with("{\"apiVersion\":"), "{}", list.text());
    let item = &list.value()["items"][0];
    assert_eq!((&item["kind"], &list.value()["metadata"]["continue"]), (&json!("Widget"), &json!("")));
    let queries =
        ["", "?limit=1", "?labelSelector=app%3Dred", "/red", "/red?resourceVersion=0", "/missing?resourceVersion=0"];
    for query in queries {
        pair.same(RequestSpec::get(&kind.path(&pair, query))).await;
    }
    let watches = ["?watch=1&timeoutSeconds=3", "?watch=1&timeoutSeconds=3&allowWatchBookmarks=1&resourceVersion=0"];
    let watches = watches.map(|query| pair.same_watch(RequestSpec::get(&kind.path(&pair, query))));
    for (answer, _) in join_all(watches).await {
        assert!(answer.is_cached());
    }
}

#[tokio::test]
async fn custom_resource_field_selectors_match_the_apiserver() {
    let Some((pair, kind, last)) = with_widgets().await else { return };
    let cases = [
        ("spec.color%3Dred", 200),
        ("spec.color!%3Dred", 200),
        ("spec.size%3D3", 200),
        ("spec.size%3D", 200),
        ("spec.on%3Dfalse", 200),
        ("spec.on%3Dtrue,spec.color%3Dred", 200),
        ("metadata.name%3Dblue", 200),
        ("metadata.namespace%3Dnope", 200),
        ("spec.other%3D1", 400),
    ];
    for (selector, code) in cases {
        let path = kind.path(&pair, &format!("?resourceVersion=0&fieldSelector={selector}"));
        assert_eq!(pair.same(RequestSpec::get(&path)).await.status.as_u16(), code, "{selector}");
    }
    let watch = kind.path(&pair, &format!("?watch=1&fieldSelector=spec.color%3Dred&resourceVersion={last}"));
    let mut watches =
        [pair.direct.watch(RequestSpec::get(&watch)).await, pair.through.watch(RequestSpec::get(&watch)).await];
    let red = kind.path(&pair, "/red");
    pair.direct.patch(&red, json!({"spec": {"color": "green"}})).await;
    pair.direct.patch(&red, json!({"spec": {"color": "red"}})).await;
    for expected in ["DELETED", "ADDED"] {
        let [direct, through] = &mut watches;
        let (theirs, ours) = (direct.change().await, through.change().await);
        assert_eq!((ours.kind.as_str(), &ours.line), (expected, &theirs.line));
    }
}

/// Rows 21 and 36 for custom resources: protobuf is not offered, but `application/*` and HEAD are.
#[tokio::test]
async fn custom_resource_content_negotiation_matches_the_apiserver() {
    let Some((pair, kind, _)) = with_widgets().await else { return };
    let protobuf = "application/vnd.kubernetes.protobuf";
    let cases = [
        ("application/vnd.kubernetes.protobuf,application/json", 200, "application/json"),
        (protobuf, 406, protobuf),
        ("application/*", 200, "application/json"),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", 200, "application/json"),
        ("application/yaml", 200, "application/yaml"),
    ];
    for (accept, code, content_type) in cases {
        if accept.contains("Table") {
            continue;
        }
        for query in ["?resourceVersion=0", "/red?resourceVersion=0"] {
            let answer = pair.same(RequestSpec::get(&kind.path(&pair, query)).accept(accept)).await;
            assert_eq!((answer.status.as_u16(), answer.content_type()), (code, content_type), "{accept} {query}");
        }
    }
    let head = pair.same(RequestSpec::get(&kind.path(&pair, "/red")).method(Method::HEAD)).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
    let watch = RequestSpec::get(&kind.path(&pair, "?watch=1&timeoutSeconds=3"));
    let (answer, _) = pair.same_watch(watch.accept("application/vnd.kubernetes.protobuf,application/json")).await;
    assert_eq!(answer.content_type(), "application/json");
}

#[tokio::test]
async fn changed_crd_ends_watches_and_applies_new_selectable_fields() {
    let Some(bed) = bed::own("definitions").await else { return };
    let pair = Pair::on(bed).await;
    let (kind, last) = define(&pair).await;
    let path = kind.path(&pair, &format!("?watch=1&resourceVersion={last}"));
    let mut watches =
        [pair.direct.watch(RequestSpec::get(&path)).await, pair.through.watch(RequestSpec::get(&path)).await];
    let mut definition = pair.direct.json(&kind.definition).await;
    let fields = &mut definition["spec"]["versions"][0]["selectableFields"];
    *fields = json!([{"jsonPath": ".spec.shape"}, {"jsonPath": ".spec.size"}]);
    let versions = definition["spec"]["versions"].clone();
    pair.direct.patch(&kind.definition, json!({"spec": {"versions": versions}})).await;
    let changed = std::time::Instant::now();
    let (events, ended) = watches[0].rest().await;
    assert_eq!((events.len(), ended), (0, Ended::Clean), "the apiserver ends it");
    let selected = |selector: &str| kind.path(&pair, &format!("?resourceVersion=0&fieldSelector=spec.{selector}"));
    let knows = async |http: &Http| {
        let code = async |selector| http.get(&selected(selector)).await.status.as_u16();
        (code("color%3Dred").await == 400 && code("shape%3Dround").await == 200).then_some(())
    };
    eventually("upstream knows the new fields", async || knows(&pair.direct).await).await;
    promised(FOLLOWS, "the new field selects, the old one no more", async || knows(&pair.through).await).await;
    log_line(&format!("the proxy knows the new fields {:.1?} after the change", changed.elapsed()));
    for selector in ["color%3Dred", "size%3D3", "size!%3D3", "shape%3Dround", "shape%3D"] {
        pair.same(RequestSpec::get(&selected(selector))).await;
    }
    let (events, ended) = watches[1].rest().await;
    assert_eq!((events.len(), ended), (0, Ended::Clean), "the proxy ends it as well");
    let deleted = std::time::Instant::now();
    pair.direct.delete(&kind.definition).await;
    let path = kind.path(&pair, "?resourceVersion=0");
    let is_gone = async |http: &Http| (http.get(&path).await.status == 404).then_some(());
    eventually("upstream deletes the resource", async || is_gone(&pair.direct).await).await;
    promised(FOLLOWS, "the deleted resource is gone", async || is_gone(&pair.through).await).await;
    pair.same(RequestSpec::get(&kind.path(&pair, "?resourceVersion=0"))).await;
    log_line(&format!("the deleted resource is a 404 at the proxy {:.1?} after its deletion", deleted.elapsed()));
}
