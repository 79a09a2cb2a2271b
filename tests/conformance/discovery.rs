//! Discovery and `/version`, which the proxy serves from its cache.

use http::header::{ACCEPT_ENCODING, IF_NONE_MATCH};
use serde_json::json;

use crate::bed::{self, Account, Answer, Http, Pair, Plan, RequestSpec, eventually, rbac, unique, version_of};

const JSON: &str = "application/json";
const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const CLIENT_GO: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
const V2BETA1: &str = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const ACCEPTS: [&str; 8] = [
    JSON,
    "*/*",
    "application/json, */*",
    V2,
    CLIENT_GO,
    V2BETA1,
    PROTOBUF,
    "application/vnd.kubernetes.protobuf,application/json",
];
const PATHS: [&str; 9] = [
    "/version",
    "/api",
    "/api?timeout=32s",
    "/api/v1",
    "/apis",
    "/apis/apps",
    "/apis/apps/v1",
    "/apis/apiextensions.k8s.io/v1",
    "/apis/large.example.com/v1",
];
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The headers that belong to a document. The others belong to one response or one hop, or are the proxy's own
/// (docs/DIFFERENCES.md).
fn headers(answer: &Answer) -> Vec<(String, String)> {
    let is_of_response = |name: &str| {
        ["date", "audit-id", "content-length"].contains(&name)
            || ["x-kubernetes-pf-", "kube-fanout-"].iter().any(|start| name.starts_with(start))
    };
    let text = |value: &http::HeaderValue| value.to_str().expect("a text header").to_owned();
    let all = answer.headers.iter().map(|(name, value)| (name.to_string(), text(value)));
    let mut headers: Vec<_> = all.filter(|(name, _)| !is_of_response(name)).collect();
    headers.sort();
    headers
}

fn assert_same(what: &str, ours: &Answer, theirs: &Answer) {
    assert_eq!(ours.status, theirs.status, "{what}: {}", ours.text());
    assert_eq!(headers(ours), headers(theirs), "{what}");
    assert!(ours.body == theirs.body, "{what}: {} instead of {}", ours.text(), theirs.text());
}

/// The number of documents that the proxy has served without asking upstream.
async fn from_memory<P: std::ops::Deref<Target = bed::Plane>>(pair: &Pair<P>) -> i64 {
    pair.proxy.metrics().await.sum("kube_fanout_discovery_served_total", &[("source", "memory")])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_is_the_apiservers_to_the_byte() {
    let Some(bed) = bed::quiet(&unique("discovery")).await else { return };
    let pair = Pair::on(bed).await;
    // Upstream compresses large documents only.
    let categories: Vec<_> = (0..4_000).map(|n| format!("c{n}-{}", "x".repeat(50))).collect();
    pair.direct.create(DEFINITIONS, definition("large.example.com", &categories)).await;
    eventually("the apiserver serves the large definition", async || {
        let all = pair.direct.fetch(RequestSpec::get("/apis").accept(V2)).await;
        all.text().contains("large.example.com").then_some(())
    })
    .await;
    bed::settled("discovery", async || pair.direct.fetch(RequestSpec::get("/apis").accept(V2)).await.body).await;
    let (mut tags, mut compressed) = (0, 0);
    for path in PATHS {
        for accept in ACCEPTS {
            for encoding in ["identity", "gzip"] {
                let request = RequestSpec::get(path).accept(accept).header(ACCEPT_ENCODING, encoding);
                let what = format!("{path} {accept} {encoding}");
                let theirs = pair.direct.fetch(request.clone()).await;
                compressed += u32::from(theirs.header("content-encoding") == "gzip");
                for _ in 0..2 {
                    let ours = pair.through.fetch(request.clone()).await;
                    assert_same(&what, &ours, &theirs);
                    assert_eq!(ours.is_cached(), theirs.status == 200, "{what}");
                }
                for tag in [theirs.header("etag"), "\"0\""] {
                    let request = request.clone().header(IF_NONE_MATCH, tag);
                    let (ours, theirs) = (pair.through.fetch(request.clone()).await, pair.direct.fetch(request).await);
                    assert_same(&format!("{what}, if not {tag}"), &ours, &theirs);
                    tags += u32::from(theirs.status == 304);
                }
            }
        }
    }
    assert!(tags >= 8 && compressed >= 2, "{tags} had not changed, {compressed} were compressed");
}

fn definition(group: &str, categories: &[String]) -> serde_json::Value {
    let version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let names = json!({"plural": "things", "singular": "thing", "kind": "Thing", "categories": categories});
    json!({
        "metadata": {"name": format!("things.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "versions": [version], "names": names},
    })
}

/// A client that has seen a definition finds it in discovery no later than at the apiserver.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_has_a_new_definition_as_soon_as_the_apiserver_has() {
    let Some(bed) = bed::quiet(&unique("discovery-new")).await else { return };
    let pair = Pair::on(bed).await;
    let asks = |group: &str| {
        [
            ("/apis".to_owned(), V2),
            ("/apis".to_owned(), JSON),
            (format!("/apis/{group}"), JSON),
            (format!("/apis/{group}/v1"), JSON),
        ]
    };
    for round in 0..2 {
        let group = format!("g{round}.example.com");
        let has = async |http: &Http, path: &str, accept: &str| {
            let answer = http.fetch(RequestSpec::get(path).accept(accept)).await;
            answer.status == 200 && answer.text().contains(&group)
        };
        eventually("discovery is served from memory", async || {
            let before = from_memory(&pair).await;
            for (path, accept) in asks(&group) {
                assert!(!has(&pair.through, &path, accept).await, "{path}");
            }
            (from_memory(&pair).await > before).then_some(())
        })
        .await;
        let version = version_of(&pair.direct.create(DEFINITIONS, definition(&group, &[])).await);
        let seen = format!("{DEFINITIONS}?resourceVersion={version}");
        pair.through.until_ok("the proxy has seen the definition", RequestSpec::get(&seen)).await;
        for (path, accept) in asks(&group) {
            eventually("the apiserver has it", async || has(&pair.direct, &path, accept).await.then_some(())).await;
            assert!(has(&pair.through, &path, accept).await, "{path} {accept}");
        }
        pair.direct.delete(&format!("{DEFINITIONS}/things.{group}")).await;
        let (path, accept) = &asks(&group)[0];
        eventually("the apiserver has it no more", async || (!has(&pair.direct, path, accept).await).then_some(()))
            .await;
        eventually("nor has the proxy", async || (!has(&pair.through, path, accept).await).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn discovery_without_permission_is_refused_by_the_apiserver() {
    let Some(bed) = bed::own(&unique("discovery-denied")).await else { return };
    let pair = Pair::with(Plan::delegated(&bed), bed).await;
    let bindings = rbac::collection(None, "rolebindings");
    let account = |name: &'static str| Account::create(&pair.direct, &pair.namespace, name);
    let (may, may_not) = (account("may").await, account("may-not").await);
    for (name, user) in [("of-proxy", "proxy"), ("of-may", &*may.user())] {
        let binding = rbac::binding(name, "ClusterRole", "system:discovery", &rbac::subject("User", user));
        pair.direct.create(&bindings, binding).await;
        let path = json!({"path": "/apis", "verb": "get"});
        rbac::may(&pair.direct, json!({"user": user, "nonResourceAttributes": path})).await;
    }
    for name in ["system:discovery", "system:public-info-viewer"] {
        pair.direct.delete(&format!("{bindings}/{name}")).await;
    }
    for (account, status) in [(may, 200), (may_not, 403)] {
        let identity = account.token(&pair.direct).await;
        let theirs = Http::new(pair.bed.target().by(&identity), bed::Protocol::H2);
        let ours = pair.proxy.client_of(&identity);
        for path in ["/version", "/api", "/apis", "/apis/apps/v1"] {
            eventually("the apiserver applies the rules", async || {
                (theirs.get(path).await.status == status).then_some(())
            })
            .await;
            let (ours, theirs) = (ours.get(path).await, theirs.get(path).await);
            assert_same(path, &ours, &theirs);
            assert_eq!(ours.is_cached(), status == 200, "{path}");
        }
    }
}
