//! Discovery and `/version`, which the proxy serves from its cache.

use http::header::{ACCEPT_ENCODING, IF_NONE_MATCH, RANGE, USER_AGENT};
use serde_json::{Value, json};

use crate::bed::{self, Account, Answer, Http, Pair, Plan, RequestSpec, eventually, rbac, unique, version_of};

pub const JSON: &str = "application/json";
pub const V2: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
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
/// The looks at the apiserver for a group that goes, as it does after a few.
const LOOKS: usize = 5_000;
pub const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// The headers that belong to a document. The others belong to one response or one hop, or are the proxy's own
/// (docs/DIFFERENCES.md).
fn headers(answer: &Answer) -> Vec<(String, String)> {
    let is_of_response = |name: &str| {
        ["date", "audit-id", "content-length"].contains(&name)
            || ["x-kubernetes-pf-", "kube-fanout-"].iter().any(|start| name.starts_with(start))
    };
    // Times of the copy; of the root of OpenAPI v3, the time of the response.
    let is_time = |name: &str| ["last-modified", "expires"].contains(&name);
    let text = |value: &http::HeaderValue| value.to_str().expect("a text header").to_owned();
    let value = |name: &str, value| if is_time(name) { String::new() } else { text(value) };
    let all = answer.headers.iter().map(|(name, found)| (name.to_string(), value(name.as_str(), found)));
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

const OPENAPI_V2: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf,*/*",
];
const OPENAPI_V3: &str = "application/com.github.proto-openapi.spec.v3@v1.0+protobuf";

/// All groups and versions of an aggregated root, as paths.
async fn group_paths(direct: &Http) -> Vec<String> {
    let all = direct.fetch(RequestSpec::get("/apis").accept(V2)).await.value();
    let name = |group: &Value| group["metadata"]["name"].as_str().expect("a name").to_owned();
    let versions = |group: &Value| {
        let version = |version: &Value| version["version"].as_str().expect("a version").to_owned();
        group["versions"].as_array().expect("versions").iter().map(version).collect::<Vec<_>>()
    };
    let groups = all["items"].as_array().expect("groups").iter();
    let paths = groups.flat_map(|group| {
        let name = name(group);
        let versions = versions(group).into_iter().map(|version| format!("/apis/{name}/{version}"));
        [format!("/apis/{name}")].into_iter().chain(versions.collect::<Vec<_>>()).collect::<Vec<_>>()
    });
    paths.collect()
}

/// The URLs with hashes in the root of OpenAPI v3.
pub async fn openapi_urls(http: &Http) -> Vec<String> {
    let root = http.get("/openapi/v3").await.value();
    let url = |path: &Value| path["serverRelativeURL"].as_str().expect("a URL").to_owned();
    root["paths"].as_object().expect("paths").values().map(url).collect()
}

/// Compares a document with the apiserver's, first as it is requested from upstream and then from memory.
async fn assert_document(pair: &Pair<impl std::ops::Deref<Target = bed::Plane>>, request: RequestSpec) -> Answer {
    let what = format!("{request:?}");
    let theirs = pair.direct.fetch(request.clone()).await;
    for _ in 0..2 {
        let ours = pair.through.fetch(request.clone()).await;
        assert_same(&what, &ours, &theirs);
        assert_eq!(ours.is_cached(), theirs.status == 200, "{what}");
    }
    if !theirs.header("etag").is_empty() {
        for tag in [theirs.header("etag"), "\"0\"", "*", "W/\"0\""] {
            let request = request.clone().header(IF_NONE_MATCH, tag);
            let (ours, theirs) = (pair.through.fetch(request.clone()).await, pair.direct.fetch(request).await);
            assert_same(&format!("{what}, if not {tag}"), &ours, &theirs);
        }
    }
    theirs
}

/// Every document of every release that `make matrix` runs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_documents_are_the_apiservers_to_the_byte() {
    let Some(bed) = bed::quiet(&unique("documents")).await else { return };
    let pair = Pair::on(bed).await;
    pair.direct.create(DEFINITIONS, definition("small.example.com", &[])).await;
    let urls = eventually("the apiserver describes the definition", async || {
        let urls = openapi_urls(&pair.direct).await;
        urls.iter().any(|url| url.contains("small.example.com")).then_some(urls)
    })
    .await;
    for path in group_paths(&pair.direct).await {
        for accept in [JSON, PROTOBUF] {
            assert_document(&pair, RequestSpec::get(&path).accept(accept)).await;
        }
        // Browsers receive indented JSON.
        assert_document(&pair, RequestSpec::get(&path).header(USER_AGENT, "Mozilla/5.0")).await;
    }
    for (path, accept) in
        [("/version", JSON), ("/api", JSON), ("/apis", JSON), ("/apis", CLIENT_GO), ("/apis", PROTOBUF)]
    {
        assert_document(&pair, RequestSpec::get(path).accept(accept).header(USER_AGENT, "Mozilla/5.0")).await;
    }
    for accept in [JSON, "*/*", OPENAPI_V2[0], OPENAPI_V2[1]] {
        for encoding in ["identity", "gzip"] {
            assert_document(&pair, RequestSpec::get("/openapi/v2").accept(accept).header(ACCEPT_ENCODING, encoding))
                .await;
        }
    }
    assert_document(&pair, RequestSpec::get("/openapi/v3?timeout=32s").header(ACCEPT_ENCODING, "gzip")).await;
    for url in urls {
        for accept in [JSON, OPENAPI_V3] {
            let answer = assert_document(&pair, RequestSpec::get(&url).accept(accept)).await;
            assert_eq!((answer.status.as_u16(), answer.header("cache-control")), (200, "public, immutable"), "{url}");
        }
        let (path, _) = url.split_once('?').expect("a hash");
        assert_document(&pair, RequestSpec::get(path)).await;
    }
    // Forwarded: what no copy answers.
    for (path, status) in [
        ("/openapi/v3/apis/apps/v1?hash=00", 301),
        ("/openapi/v3/apis/apps/v1?hash=00&hash=01", 301),
        ("/openapi/v3/apis/none/v1", 404),
        ("/openapi/v3/", 404),
        ("/apis/none.example.com/v1", 404),
    ] {
        assert_eq!(assert_document(&pair, RequestSpec::get(path)).await.status, status, "{path}");
    }
    for path in ["/openapi/v2", "/openapi/v3/apis/apps/v1"] {
        assert_eq!(assert_document(&pair, RequestSpec::get(path).accept("text/html")).await.status, 406);
        let part = RequestSpec::get(path).header(RANGE, "bytes=0-9");
        let (ours, theirs) = (pair.through.fetch(part.clone()).await, pair.direct.fetch(part).await);
        assert_same(path, &ours, &theirs);
        assert_eq!(theirs.status, 206, "{path}");
    }
}

pub fn definition(group: &str, categories: &[String]) -> serde_json::Value {
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
        // The apiserver has kept the group of a definition that was deleted right after its creation for minutes. Then
        // the proxy has to keep it as well.
        for _ in 0..LOOKS {
            if !has(&pair.direct, path, accept).await {
                break;
            }
        }
        eventually("both have it, or neither", async || {
            (has(&pair.through, path, accept).await == has(&pair.direct, path, accept).await).then_some(())
        })
        .await;
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
        for path in ["/version", "/api", "/apis", "/apis/apps/v1", "/openapi/v2", "/openapi/v3/apis/apps/v1"] {
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
