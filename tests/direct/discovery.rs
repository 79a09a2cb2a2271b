//! Changes of the resources that upstream serves while the proxy runs (R-UPSTREAM-11).

use std::sync::Arc;
use std::time::{Duration, Instant};

use demo::{self, ReceivedRequest, RequestKind, RunningDemoApiserver};
use futures_util::future::join_all;
use http::{HeaderMap, Method, Request};
use hyper::body::Incoming;
use kube_fanout::auth::AuthMode;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use crate::direct::{
    self, Answer, Ended, PATIENCE, Protocol, Stub, WIDGETS, Watch, assert_alike, eventually, stub, upstream_client,
    within,
};
use crate::tree::{CURRENT, DOCUMENTS};

const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const WIDGETS_CRD: &str = "widgets.demo.kube-fanout.io";
/// Delay before definitions are read again after an observed change, long before the periodic read.
const NOTICED: Duration = Duration::from_millis(100);
/// How long after a change a new stream may still use the old definition.
const SETTLING: Duration = Duration::from_secs(10);

fn definition(up: &RunningDemoApiserver) -> Value {
    let body = up.object("customresourcedefinitions", "", WIDGETS_CRD).expect("the demo's definition");
    serde_json::from_slice(&body).expect("JSON")
}

/// Changes the definition's only version.
fn define(up: &RunningDemoApiserver, change: impl FnOnce(&mut Value)) {
    let mut definition = definition(up);
    change(&mut definition["spec"]["versions"][0]);
    up.put("customresourcedefinitions", definition);
}

/// Changes metadata only, and nothing about the resource.
async fn relabel(up: &RunningDemoApiserver) {
    let patch = json!({"metadata": {"labels": {"seen": "yes"}}}).to_string();
    let call = upstream_client(up).request(Method::PATCH, &format!("{CRDS}/{WIDGETS_CRD}"));
    assert_eq!(call.header("content-type", "application/merge-patch+json").body(patch).send().await.status, 200);
}

/// How often the proxy has listed this path completely, other than for a feed.
fn lists(up: &RunningDemoApiserver, path: &str) -> usize {
    direct::proxy_queries(up, path).iter().filter(|query| query.is_empty()).count()
}

/// How often the proxy has read the definitions for discovery.
fn readings(up: &RunningDemoApiserver) -> usize {
    lists(up, CRDS)
}

async fn still_goes_on(watch: &Watch, up: &RunningDemoApiserver) {
    up.put("widgets", json!({"metadata": {"name": "after", "namespace": "default"}, "spec": {"color": "red"}}));
    watch.received(1).await;
    assert!(watch.is_open());
}

#[tokio::test]
async fn client_crd_watches_share_proxys_own_watch() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    let from = up.revision();
    let watches = [0; 3].map(|_| app.watch(CRDS).from(from));
    for watch in watches {
        assert!(watch.await.is_open());
    }
    // The proxy's own watch of APIServices may open after its discovery is complete.
    direct::followed(&up, "apiservices").await;
    let open = up.counts().watches_open;
    assert_eq!((open.of("customresourcedefinitions"), open.of("apiservices")), (1, 1));
}

#[tokio::test]
async fn crd_change_ends_watches_of_its_resource() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    let watch = app.watch(WIDGETS).from(up.revision()).await;
    define(&up, |version| version["selectableFields"] = json!([{"jsonPath": ".spec.shape"}]));
    assert_eq!(watch.ended_in_time(NOTICED).await, Ended::Clean);
    let list =
        async |field: &str| app.get(&format!("{WIDGETS}?resourceVersion=0&fieldSelector=spec.{field}%3Dx")).await;
    assert!(!list("color").await.is_cached(), "a field that is no longer selectable is upstream's to judge");
    assert_eq!(list("shape").await.status, 200);
}

/// The server that serves the new feed may observe the change later than the server that reported it.
#[tokio::test]
async fn stream_ending_soon_after_crd_change_is_not_resumed() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    // A stream that ends later is resumed. If the machine stalls for so long, this shows nothing.
    for fields in [json!([]), json!([{"jsonPath": ".spec.shape"}])].iter().cycle().take(10) {
        let before = app.watch(WIDGETS).from(up.revision()).await;
        let changed = Instant::now();
        define(&up, |version| version["selectableFields"] = fields.clone());
        assert_eq!(before.ended_in_time(NOTICED).await, Ended::Clean);
        direct::within("the retired feed leaves", up.until(|counts| counts.watches_open.of("widgets") == 0)).await;
        let behind = app.watch(WIDGETS).from(up.revision()).await;
        direct::followed(&up, "widgets").await;
        let opened = up.counts().watches_opened.of("widgets");
        up.faults().only("widgets").end_watches();
        let is_over = async || !behind.is_open() || up.counts().watches_opened.of("widgets") > opened;
        eventually("it ends, or is resumed", is_over).await;
        if behind.is_open() && changed.elapsed() >= SETTLING {
            continue;
        }
        assert_eq!(behind.ended().await, Ended::Clean);
        assert!(app.get(WIDGETS).await.is_cached());
        return;
    }
    panic!("each stream ended too late: nothing was tried");
}

/// Each of 5,000 proxies would send these requests.
#[tokio::test]
async fn crd_changes_trigger_no_discovery_requests() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    let watch = app.watch(WIDGETS).from(up.revision()).await;
    let is_known = |seen: &&ReceivedRequest| seen.headers.contains_key("if-none-match");
    let named = || up.requests().iter().filter(is_known).count();
    // Upstream does not resend documents that are requested with their ETag and have not changed.
    let sent = || [CRDS, SERVICES, "/api", "/apis"].map(|path| lists(&up, path)).iter().sum::<usize>() - named();
    let before = sent();
    relabel(&up).await;
    still_goes_on(&watch, &up).await;
    define(&up, |version| version["selectableFields"] = json!([{"jsonPath": ".spec.shape"}]));
    assert_eq!(watch.ended().await, Ended::Clean, "a change of another kind is noticed");
    define(&up, |version| version["served"] = json!(false));
    eventually("a version that goes is noticed", || async {
        !app.get(&format!("{WIDGETS}?resourceVersion=0")).await.is_cached()
    })
    .await;
    assert_eq!(sent(), before);
}

/// Upstream's discovery responses have `ETags`, and an unchanged one costs a few bytes.
#[tokio::test]
async fn rediscovery_sends_etag_and_keeps_unchanged_documents() {
    // On a busy machine the feed of definitions may return later than the request. That shows nothing, so the test
    // retries.
    for _ in 0..60 {
        let up = demo::upstream().run().await;
        let app = direct::app(&up).run().await;
        app.discovered().await;
        let before = lists(&up, "/apis");
        // Discovery is requested again, because the server may have been upgraded.
        up.faults().drop_connections();
        eventually("discovery is requested again", || async { lists(&up, "/apis") > before }).await;
        let named = |seen: &&ReceivedRequest| seen.uri.path() == "/apis" && seen.headers.contains_key("if-none-match");
        assert!(up.requests().iter().filter(named).count() > 0, "{:?}", up.requests());
        assert!(app.get(&format!("{WIDGETS}?resourceVersion=0")).await.is_cached(), "known resources stay known");
        if readings(&up) == 1 {
            return;
        }
    }
    panic!("discovery requests a list of definitions although their feed has them");
}

#[tokio::test]
async fn unserved_crd_version_ends_watches_and_is_forwarded() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    let watch = app.watch(WIDGETS).from(up.revision()).await;
    define(&up, |version| version["served"] = json!(false));
    assert_eq!(watch.ended_in_time(NOTICED).await, Ended::Clean);
    assert!(!app.get(&format!("{WIDGETS}?resourceVersion=0")).await.is_cached());
}

/// Reads of widgets that wait for a version which no widget has yet.
const NOT_YET: &str = "resourceVersion=9000000";

/// When a feed ends, it wakes its waiting readers, and they are served by the current source: here by upstream.
#[tokio::test]
async fn list_in_flight_is_forwarded_when_crd_version_is_unserved() {
    let up = demo::upstream().future_wait(Duration::from_millis(20)).run().await;
    // A reader that is not woken when the feed ends gets no response before the test gives up.
    let app = direct::app(&up).with(|config| config.serve.fresh_wait_max = 2 * PATIENCE).run().await;
    app.discovered().await;
    let matching = |what: fn(&str) -> bool| direct::proxy_queries(&up, WIDGETS).iter().filter(|q| what(q)).count();
    let goes_after = |query: &str| query.contains("timeoutSeconds=5&resourceVersion=");
    let is_held = || async { app.get(&format!("{WIDGETS}?resourceVersion=0")).await.is_cached() };
    eventually("widgets are cached", is_held).await;
    let before = matching(goes_after);
    let gone = async {
        eventually("a request waits", || async { matching(goes_after) > before }).await;
        assert_eq!(matching(|query| query == NOT_YET), 0, "it waits here");
        define(&up, |version| version["served"] = json!(false));
    };
    let path = format!("{WIDGETS}?{NOT_YET}");
    let (waited, ()) = tokio::join!(app.get(&path), gone);
    assert_eq!(waited.status, 504, "upstream has no such version either");
    assert_eq!(matching(|query| query == NOT_YET), 1, "the request was forwarded after the feed ended");
}

#[tokio::test]
async fn custom_resources_are_cached_without_crd_permission() {
    let up = demo::upstream().run().await;
    up.faults().only("customresourcedefinitions").answer(RequestKind::Any, 1000, 403, None);
    let app = direct::app(&up).run().await;
    app.discovered().await;
    assert!(app.get(&format!("{WIDGETS}?resourceVersion=0")).await.is_cached());
    let selected = app.get(&format!("{WIDGETS}?resourceVersion=0&fieldSelector=spec.color%3Dred")).await;
    assert_eq!((selected.status, selected.is_cached()), (200, false), "only upstream knows the fields");
}

#[tokio::test]
async fn transient_crd_list_failure_ends_no_watch() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    let watch = app.watch(WIDGETS).from(up.revision()).await;
    let faults = up.faults().only("customresourcedefinitions");
    faults.answer(RequestKind::Watch, 1000, 503, None);
    faults.answer(RequestKind::List, 1, 403, None);
    faults.reset_watches();
    let before = readings(&up);
    // The list is refused once and then succeeds. A request for an unknown resource triggers discovery.
    eventually("definitions are read again", || async {
        app.get("/apis/unknown.example/v1/things").await;
        readings(&up) > before + 1
    })
    .await;
    still_goes_on(&watch, &up).await;
}

/// All documents, from upstream.
async fn documents(up: &RunningDemoApiserver) -> Vec<(&'static str, &'static str, Answer)> {
    let client = upstream_client(up);
    let get = |(path, accept)| client.request(Method::GET, path).header("accept", accept).send();
    let answers = join_all(DOCUMENTS.map(get)).await;
    DOCUMENTS.into_iter().zip(answers).map(|((path, accept), answer)| (path, accept, answer)).collect()
}

/// The number of requests for documents that the proxy itself does not need.
fn fetched(up: &RunningDemoApiserver) -> usize {
    ["/api/v1", "/apis/apps", "/apis/apps/v1"].map(|path| direct::proxy_queries(up, path).len()).iter().sum()
}

#[tokio::test]
async fn clients_share_one_copy_of_discovery_until_a_definition_changes() {
    let up = demo::upstream().run().await;
    // The demo's discovery does not lag behind its definitions.
    let app = direct::app(&up).with(|config| config.serve.lag_max = Duration::ZERO).run().await;
    app.discovered().await;
    for client in ["first", "second"] {
        let (before, began) = (fetched(&up), Instant::now());
        for (path, accept, theirs) in documents(&up).await {
            let get = || app.request(Method::GET, path).header("accept", accept).header("user-agent", client);
            let ours = get().send().await;
            assert_alike(path, &ours, &theirs);
            assert!(ours.is_cached(), "{path} {accept}");
            for name in ["content-type", "etag", "vary", "cache-control"] {
                assert_eq!(ours.header(name), theirs.header(name), "{path} {accept}: {name}");
            }
            let Some(etag) = ours.header("etag") else { continue };
            let known = get().header("if-none-match", etag).send().await;
            assert_eq!((known.status, known.body.len(), known.header("etag")), (304, 0, Some(etag)));
            assert_eq!(get().header("if-none-match", "\"another\"").send().await.status, 200);
        }
        if client == "second" {
            // If the machine stalls for as long as copies are used, this shows nothing.
            assert!(fetched(&up) == before || began.elapsed() >= CURRENT, "the first client's copies");
        }
    }
    let before = fetched(&up);
    relabel(&up).await;
    eventually("a copy is compared with upstream after a change", || async {
        assert!(app.get("/apis/apps").await.is_cached());
        fetched(&up) > before
    })
    .await;
}

/// As on a node, whose proxy may not read definitions.
#[tokio::test]
async fn root_stands_for_documents_below_it_while_definitions_are_not_watched() {
    let up = demo::upstream().run().await;
    up.faults().only("customresourcedefinitions").answer(RequestKind::Any, 1000, 403, None);
    let app = direct::app(&up).run().await;
    app.discovered().await;
    // Their first copies. The demo's documents below a root never contradict it.
    for path in ["/api/v1", "/apis/apps", "/apis/apps/v1"] {
        assert!(app.get(path).await.is_cached(), "{path}");
    }
    let before = fetched(&up);
    for _ in 0..3 {
        let roots = direct::proxy_queries(&up, "/apis").len();
        for (path, accept, theirs) in documents(&up).await {
            let ours = app.request(Method::GET, path).header("accept", accept).send().await;
            assert_alike(path, &ours, &theirs);
            assert!(ours.is_cached(), "{path} {accept}");
        }
        // A root itself has no root.
        assert!(direct::proxy_queries(&up, "/apis").len() >= roots + 2);
    }
    // A group follows APIServices, and a root its servers: it is compared each time.
    assert_eq!(fetched(&up), before + 3, "the roots have not changed");
}

#[tokio::test]
async fn discovery_is_cached_for_callers_that_may_read_it_and_forwarded_for_others() {
    let up = demo::upstream().run().await;
    up.reviews().give("a", "ada");
    up.reviews().give("b", "bob");
    up.reviews().allow("ada", "/apis/apps");
    let app = direct::app(&up).with(|config| config.auth = AuthMode::Delegated).run().await;
    app.discovered().await;
    assert!(app.bearing("a").get("/apis/apps").await.is_cached());
    for (client, path) in
        [(app.bearing("b"), "/apis/apps"), (app.bearing("a"), "/api"), (app.over(Protocol::Http1), "/api")]
    {
        let answer = client.get(path).await;
        assert_eq!((answer.is_cached(), answer.header("kube-fanout-reason")), (false, Some("non_resource")), "{path}");
    }
    let is_bobs = |seen: &ReceivedRequest| {
        seen.uri.path() == "/apis/apps" && seen.headers.get("authorization").is_some_and(|token| token == "Bearer b")
    };
    assert!(up.requests().iter().any(is_bobs), "upstream decides with the caller's own credential");
}

/// R-THREAT-13: each spelling in the cache would cost memory and a request with the proxy's credentials.
#[tokio::test]
async fn spellings_of_accept_share_one_copy_and_unknown_forms_are_forwarded() {
    let up = demo::upstream().run().await;
    let app = direct::app(&up).with(|config| config.serve.lag_max = Duration::ZERO).run().await;
    app.discovered().await;
    let get = async |accept: String| app.request(Method::GET, "/apis/apps").header("accept", &accept).send().await;
    assert!(get("application/json".to_owned()).await.is_cached());
    let before = direct::proxy_queries(&up, "/apis/apps").len();
    for n in 1..100 {
        let spelled = get(format!("*/*;q=0.{n},application/json;q=0.{n},text/x{n};q=0.{n}")).await;
        let unknown = get(format!("application/json;x={n}")).await;
        assert_eq!((spelled.is_cached(), unknown.is_cached()), (true, false), "{n}");
    }
    for path in ["/apis/none.example", "/apis/apps/v99", "/apis/apps?x=1", "/apis/apps/"] {
        assert!(!app.get(path).await.is_cached(), "{path}");
    }
    let queries = &direct::proxy_queries(&up, "/apis/apps")[before..];
    // A copy is compared with upstream again every ten seconds.
    assert!(queries.len() < 150, "unknown forms only: {}", queries.len());
}

/// The proxy fetches discovery with its own credentials. A caller gets no more of that than of its own requests.
#[tokio::test]
async fn discovery_takes_the_place_of_a_forwarded_request() {
    let gate = Arc::new(Semaphore::new(0));
    let held_gate = gate.clone();
    let answer = stub(move |request: Request<Incoming>| {
        let held_gate = held_gate.clone();
        async move {
            if is_of_child(request.headers()) {
                held_gate.acquire().await?.forget();
            }
            Ok(Stub::reply(200, "{}"))
        }
    });
    let upstream = answer.await;
    let app = direct::in_front_of(&upstream.url()).with(|config| config.serve.limits.forwards_max = 2).run().await;
    let app = app.multiplexed().await;
    let from_child = |path| app.request(Method::GET, path).header("kube-fanout-hops", "child");
    let arrived = |path| upstream.seen(path).iter().any(|head| is_of_child(&head.headers));
    let refused = async {
        eventually("both arrived", || async { arrived("/version") && arrived("/api") }).await;
        let refused = from_child("/apis").send().await;
        gate.add_permits(2);
        refused
    };
    let answers = Box::pin(async { tokio::join!(from_child("/version").send(), from_child("/api").send(), refused) });
    let (first, second, third) = within("all answers", answers).await;
    assert!(first.is_cached() && second.is_cached());
    assert_eq!(third.refusal(), (429, "TooManyRequests".to_owned()));
    assert!(!arrived("/apis"));
}

fn is_of_child(headers: &HeaderMap) -> bool {
    headers.get("kube-fanout-hops").and_then(|hops| hops.to_str().ok()).is_some_and(|hops| hops.contains("child"))
}
