//! What clients that have just started cost the apiserver: kubectl, and clients that read every document about every
//! group one by one, as Crossplane's providers do. `make discovery` runs this with a thousand definitions.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use http::Method;
use serde_json::{Value, json};

use crate::bed::rbac::{binding, collection, may, subject};
use crate::bed::{self, Answer, Bed, Http, Plan, Plane, Proxy, RequestSpec, Times, eventually, kubectl, log_line};
use crate::discovery::{DEFINITIONS, JSON, V2, definition, openapi_urls};

const PROTOBUF: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
/// Requests of a client in flight.
const AT_ONCE: usize = 10;
/// How many requests the apiserver may receive for a client whose documents are cached.
const REQUESTS_MAX: usize = 10;
/// Definitions in one group.
const IN_GROUP: usize = 4;

/// The start of one client.
struct Start {
    requests: usize,
    upstream: usize,
    took: Duration,
    times: Times,
}

fn group(n: usize) -> String {
    format!("g{}.example.com", n / IN_GROUP)
}

/// A definition with a name of its own in its group.
fn thing(n: usize) -> Value {
    let mut definition = definition(&group(n), &[]);
    let (plural, kind) = (format!("things{n}"), format!("Thing{n}"));
    definition["metadata"]["name"] = json!(format!("{plural}.{}", group(n)));
    definition["spec"]["names"] = json!({"plural": plural, "singular": format!("thing{n}"), "kind": kind});
    let text = json!({"type": "string", "description": "x".repeat(2_000)});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"field": text}}}});
    definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"] = schema;
    definition
}

/// The requests for documents that have reached the apiserver, of any client.
fn received(plane: &Plane) -> usize {
    let is_document = |entry: &&Value| {
        let uri = entry["requestURI"].as_str().expect("a URI");
        entry["stage"] == "ResponseComplete"
            && entry["objectRef"].is_null()
            && ["/api", "/openapi", "/version"].iter().any(|start| uri.starts_with(start))
    };
    plane.audit().iter().filter(is_document).count()
}

/// All documents that clients read at their start.
async fn documents(http: &Http) -> Vec<(String, &'static str)> {
    let root = http.fetch(RequestSpec::get("/apis").accept(V2)).await.value();
    let items = root["items"].as_array().expect("groups");
    let versions = items.iter().flat_map(|group| {
        let name = group["metadata"]["name"].as_str().expect("a name");
        let versions = group["versions"].as_array().expect("versions").iter();
        versions.map(move |version| format!("/apis/{name}/{}", version["version"].as_str().expect("a version")))
    });
    let roots = [("/api", V2), ("/apis", V2), ("/api", JSON), ("/apis", JSON), ("/api/v1", JSON), ("/version", JSON)];
    let urls = openapi_urls(http).await.into_iter().map(|url| (url, PROTOBUF));
    let roots = roots.into_iter().chain([("/openapi/v3", JSON)]).map(|(path, accept)| (path.to_owned(), accept));
    roots.chain(versions.map(|path| (path, JSON))).chain(urls).collect()
}

async fn get(http: &Http, path: &str, accept: &str) -> Answer {
    http.fetch(RequestSpec::get(path).accept(accept)).await
}

async fn start(plane: &Plane, http: &Http, documents: &[(String, &'static str)]) -> Start {
    let (before, began) = (received(plane), Instant::now());
    let times = stream::iter(documents).map(|(path, accept)| async move {
        let began = Instant::now();
        let answer = get(http, path, accept).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        began.elapsed()
    });
    let times: Vec<_> = times.buffer_unordered(AT_ONCE).collect().await;
    let took = began.elapsed();
    Start { requests: documents.len(), upstream: received(plane) - before, took, times: Times::of(times) }
}

impl Start {
    fn report(&self, what: &str) {
        let Self { requests, upstream, took, times } = self;
        log_line(&format!("{what}: {requests} requests, {upstream} upstream, {took:.2?} in all; each {times}"));
    }
}

/// A proxy that watches definitions, or one that may only list APIServices.
async fn proxy(bed: &Bed<Box<Plane>>, is_watching: bool) -> Proxy {
    if is_watching {
        return Plan::tls().start(bed).await;
    }
    let direct = bed.direct();
    let rules = json!([{"apiGroups": ["apiregistration.k8s.io"], "resources": ["apiservices"], "verbs": ["list"]}]);
    direct.create(&collection(None, "roles"), json!({"metadata": {"name": "services"}, "rules": rules})).await;
    let bound = binding("services", "ClusterRole", "services", &subject("User", "bob"));
    direct.create(&collection(None, "rolebindings"), bound).await;
    let list = json!({"group": "apiregistration.k8s.io", "resource": "apiservices", "verb": "list"});
    may(&direct, json!({"user": "bob", "resourceAttributes": list})).await;
    Plan::tls().upstream(&bed.dir.join("bob.kubeconfig")).start(bed).await
}

async fn kubectl_costs(plane: &Plane, proxy: &Proxy, round: usize) -> usize {
    let (before, cache) = (received(plane), plane.dir.join(format!("cold-{}-{round}", proxy.target().host())));
    for args in [&["api-resources"][..], &["explain", "deployments.spec.replicas"]] {
        let mut command = kubectl(plane, &proxy.target(), args);
        command.arg("--cache-dir").arg(&cache);
        let output = tokio::task::spawn_blocking(move || command.output().expect("kubectl runs")).await;
        let output = output.expect("no panic");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    received(plane) - before
}

/// Changes a definition, and reports how much later than the apiserver the proxy has the change.
async fn change(direct: &Http, through: &Http, n: usize) -> Duration {
    let path = format!("{DEFINITIONS}/things{n}.{}", group(n));
    let (version, url) = (format!("/apis/{}/v1", group(n)), format!("/openapi/v3/apis/{}/v1", group(n)));
    let names = json!({"spec": {"names": {"shortNames": [format!("short{n}")]}}});
    direct.patch(&path, names).await;
    let has = async |http: &Http| get(http, &version, JSON).await.text().contains(&format!("short{n}"));
    eventually("the apiserver has the change", async || has(direct).await.then_some(())).await;
    let began = Instant::now();
    eventually("the proxy has it too", async || has(through).await.then_some(())).await;
    let took = began.elapsed();
    let add = json!([{"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/description", "value": "new"}]);
    let patch = RequestSpec::get(&path).with(Method::PATCH, "application/json-patch+json", add.to_string());
    assert_eq!(direct.fetch(patch).await.status, 200);
    let hash = async |http: &Http| {
        let urls = openapi_urls(http).await;
        urls.into_iter().find(|found| found.split('?').next() == Some(&url)).expect("the document")
    };
    let before = hash(through).await;
    let new = eventually("the apiserver has another hash", async || {
        let new = hash(direct).await;
        (new != before && get(direct, &new, JSON).await.text().contains("new")).then_some(new)
    })
    .await;
    eventually("the proxy has it too", async || (hash(through).await == new).then_some(())).await;
    assert_eq!(get(through, &new, JSON).await.body, get(direct, &new, JSON).await.body);
    took
}

async fn cold_starts_are_cheap(bed: Bed<Box<Plane>>, is_watching: bool) {
    let form = if is_watching { "watching" } else { "not watching" };
    let (direct, count) = (bed.direct(), usize::try_from(bed::number("DISCOVERY_DEFINITIONS", 20)).expect("a number"));
    let create = |n| direct.create(DEFINITIONS, thing(n));
    stream::iter(0..count).map(create).buffer_unordered(AT_ONCE).for_each(async |_| {}).await;
    eventually("the apiserver has all documents", async || {
        let all = documents(&direct).await;
        (0..count).all(|n| all.iter().filter(|(path, _)| path.contains(&group(n))).count() == 2).then_some(())
    })
    .await;
    // The root of OpenAPI v3 follows the documents once a second.
    let things = eventually("all hashes in the root are current", async || {
        let all = documents(&direct).await;
        let has = |(path, accept): &(String, &'static str)| {
            let (direct, path, accept) = (&direct, path.clone(), *accept);
            async move { get(direct, &path, accept).await.status == 200 }
        };
        let found: Vec<_> = stream::iter(all.iter().map(has)).buffer_unordered(AT_ONCE).collect().await;
        found.into_iter().all(|is_there| is_there).then_some(all)
    })
    .await;
    let proxy = proxy(&bed, is_watching).await;
    let through = proxy.client();
    start(&bed, &direct, &things).await.report(&format!("{form}, directly"));
    start(&bed, &through, &things).await.report(&format!("{form}, first client"));
    // While copies are younger than the last change by less than upstream's delay, they are compared one by one.
    let second = eventually("a client starts from memory", async || {
        let next = start(&bed, &through, &things).await;
        (next.upstream <= REQUESTS_MAX).then_some(next)
    })
    .await;
    second.report(&format!("{form}, later client"));
    let mut round = 0;
    let of_kubectl = eventually("kubectl starts from memory", async || {
        round += 1;
        let upstream = kubectl_costs(&bed, &proxy, round).await;
        (upstream <= REQUESTS_MAX).then_some(upstream)
    })
    .await;
    log_line(&format!("{form}, kubectl api-resources and explain: {of_kubectl} upstream"));
    for (path, accept) in &things {
        let (ours, theirs) = (get(&through, path, accept).await, get(&direct, path, accept).await);
        assert!(ours.body == theirs.body && ours.header("etag") == theirs.header("etag"), "{path} {accept}");
        assert!(ours.is_cached(), "{path} {accept}");
    }
    let late = change(&direct, &through, 0).await;
    log_line(&format!("{form}: a changed definition was seen {late:.2?} after the apiserver had it"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_start_from_memory_where_definitions_are_watched() {
    let Some(bed) = bed::audited(&bed::unique("discovery-costs")).await else { return };
    cold_starts_are_cheap(bed, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_start_from_memory_where_definitions_are_not_watched() {
    let Some(bed) = bed::audited(&bed::unique("discovery-costs")).await else { return };
    cold_starts_are_cheap(bed, false).await;
}
