//! Proxies below a proxy cost its upstream nothing. The tier above answers or shares their requests about the apiserver
//! itself, and for their own feeds (docs/FORMS.md).

use std::time::{Duration, Instant};

use demo::{self, ReceivedRequest, RunningDemoApiserver};
use futures_util::future::join_all;
use http::Method;
use kube_fanout::auth::AuthMode;
use serde_json::json;

use crate::direct::{
    self, App, Client, History, PODS, Plan, Protocol, Watch, assert_same, eventually, upstream_client, without_ages,
};

const HOPS: &str = "kube-fanout-hops";
const CAUSE: &str = "kube-fanout-cause";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
const CACHED: &str = "/api/v1/pods?resourceVersion=0";
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
/// Annotation that the new release writes.
const MARK: &str = r#""release":"1.37""#;

/// A zone proxy. Its cached upstream documents are served at once, because the demo's discovery does not lag.
fn zone(up: &RunningDemoApiserver) -> Plan {
    direct::app(up).with(|config| config.serve.lag_max = Duration::ZERO)
}

pub async fn tree(up: &RunningDemoApiserver, leaves: usize) -> (App, Vec<App>) {
    let zone = zone(up).run().await;
    zone.discovered().await;
    let leaves = join_all((0..leaves).map(|_| direct::in_front_of(&zone.url()).run())).await;
    for leaf in &leaves {
        leaf.discovered().await;
    }
    (zone, leaves)
}

/// Number of upstream requests for these paths from proxies.
fn request_count(up: &RunningDemoApiserver, paths: &[&str]) -> usize {
    paths.iter().map(|path| direct::proxy_queries(up, path).len()).sum()
}

/// Number of upstream requests that a leaf caused.
fn of_leaves(up: &RunningDemoApiserver, path: &str) -> usize {
    let is_of_a_leaf = |seen: &&ReceivedRequest| {
        seen.headers.get(HOPS).is_some_and(|hops| hops.as_bytes().contains(&b',')) && seen.uri.path() == path
    };
    up.requests().iter().filter(is_of_a_leaf).count()
}

/// How long a copy of a document is used without comparing it with upstream, less a little.
pub const CURRENT: Duration = Duration::from_secs(5);
/// Every form of upstream's documents about itself.
pub const DOCUMENTS: [(&str, &str); 8] = [
    ("/version", "application/json"),
    ("/api", "application/json"),
    ("/apis", "application/json"),
    ("/apis", AGGREGATED),
    ("/api", AGGREGATED),
    ("/api/v1", "application/json"),
    ("/apis/apps", "application/json"),
    ("/apis/apps/v1?timeout=32s", "application/json"),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_caches_discovery_documents_for_all_leaves() {
    let up = demo::upstream().run().await;
    let (zone, leaves) = tree(&up, 3).await;
    let get =
        |client: &Client, path: &str, accept: &str| client.request(Method::GET, path).header("accept", accept).send();
    let began = Instant::now();
    for (path, accept) in DOCUMENTS {
        let theirs = get(&upstream_client(&up), path, accept).await;
        let first = get(&leaves[0], path, accept).await;
        assert_eq!((first.status, &first.body), (200, &theirs.body), "{path} {accept}");
        for name in ["content-type", "etag", "vary", "cache-control"] {
            assert_eq!(first.header(name), theirs.header(name), "{path} {accept}: {name}");
        }
    }
    let paths = DOCUMENTS.map(|(path, _)| path.split('?').next().expect("a path"));
    let before = request_count(&up, &paths);
    for (path, accept) in [DOCUMENTS, DOCUMENTS].concat() {
        for leaf in &leaves {
            assert_eq!(get(leaf, path, accept).await.status, 200);
        }
    }
    // If the machine stalls for as long as copies are used, this shows nothing.
    assert!(request_count(&up, &paths) == before || began.elapsed() >= CURRENT, "the zone has cached it");
    let known = get(&leaves[0], "/apis", AGGREGATED).await;
    let known = leaves[0]
        .request(Method::GET, "/apis")
        .header("accept", AGGREGATED)
        .header("if-none-match", known.header("etag").expect("a tag"));
    let answer = known.send().await;
    assert_eq!((answer.status, answer.body.len()), (304, 0));
    // A change of a definition may change all documents.
    let patch = json!({"metadata": {"labels": {"seen": "yes"}}}).to_string();
    let crd = format!("{CRDS}/widgets.demo.kube-fanout.io");
    let call = upstream_client(&up).request(Method::PATCH, &crd).header("content-type", "application/merge-patch+json");
    assert_eq!(call.body(patch).send().await.status, 200);
    let asks_again = || async {
        get(&leaves[1], "/apis", AGGREGATED).await;
        request_count(&up, &paths) > before
    };
    eventually("the zone asks again", asks_again).await;
    assert!(zone.get("/version").await.is_cached(), "clients of the zone share the copy");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_refreshes_objects_after_upstream_upgrade_through_zone() {
    let up = demo::upstream().pods(40).seed(81).run().await;
    let mut history = History::begin(&up, PODS).await;
    let (zone, leaves) = tree(&up, 2).await;
    let mut open = Vec::new();
    for leaf in &leaves {
        open.push(leaf.watch(PODS).from(history.from).over(Protocol::Http2).await);
    }
    let last = up.churn(5).await;
    join_all(open.iter().map(|watch| watch.reached(last))).await;
    let marks = |text: &str| text.matches(MARK).count();
    for leaf in &leaves {
        let list = leaf.get(CACHED).await;
        assert_eq!((list.is_cached(), marks(&list.text())), (true, 0));
    }
    let (pods, versions) = (up.keys("pods").len(), of_leaves(&up, "/version"));
    up.faults().down().await;
    zone.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    up.faults().upgrade(37);
    up.faults().up().await;
    zone.until_feed("pods", "live", |feed| feed["state"] == "live").await;
    for leaf in &leaves {
        let is_new = || async {
            let list = leaf.get(CACHED).await;
            let number = marks(&list.text());
            assert!(!list.is_cached() || number == 0 || number == pods, "{number} of {pods}");
            list.is_cached() && number == pods
        };
        eventually("the leaf has what the new release writes", is_new).await;
    }
    let last = up.churn(5).await;
    history.read_to(last).await;
    for watch in &open {
        watch.reached(last).await;
        assert!(watch.is_open());
        assert_eq!(watch.events().len(), history.all().len(), "nothing twice");
    }
    let versions = of_leaves(&up, "/version") - versions;
    assert!(versions <= 2 * leaves.len(), "{versions} questions of leaves for what they follow");
    let ended = zone.admin("/metrics").await.text();
    assert!(
        ended.lines().any(|line| line.contains("reason=\"upstream_upgraded\"") && line.contains("pods")),
        "{ended}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readyz_of_zone_reports_own_readiness_to_leaves() {
    let up = demo::upstream().run().await;
    let ready = zone(&up).run().await;
    ready.discovered().await;
    let waits = zone(&up).preload("nothing.example.com").run().await;
    let get = |app: &App, path: &str, hops: &str| app.request(Method::GET, path).header(HOPS, hops).send();
    for (path, status) in [("/readyz", 503), ("/livez", 200), ("/healthz", 200)] {
        assert_eq!(get(&waits, path, "leaf").await.status, status, "{path}");
        assert_eq!(
            (get(&ready, path, "leaf").await.text().as_str(), waits.get(path).await.text().as_str()),
            ("ok", "ok")
        );
    }
    // The waiting proxy keeps sending its request, so it is stopped.
    waits.stop().await;
    up.faults().down().await;
    let before = up.counts().requests;
    get(&ready, "/readyz", "leaf").await;
    assert_eq!(up.counts().requests, before, "no request is sent upstream");
}

fn review(user: &str) -> String {
    json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "metadata": {},
           "spec": {"user": user, "resourceAttributes": {"verb": "list", "resource": "pods"}}})
    .to_string()
}

async fn reviewed(zone: &Client, user: &str) -> (u16, Option<bool>) {
    reviewed_for(zone, user, "access_review").await
}

/// The zone's decision about a user, for a leaf that needs it for a request or for an open watch.
async fn reviewed_for(zone: &Client, user: &str, cause: &str) -> (u16, Option<bool>) {
    let call = zone.request(Method::POST, REVIEWS).header(HOPS, "leaf").header(CAUSE, cause);
    let answer = call.header("content-type", "application/json").body(review(user)).send().await;
    (answer.status, answer.json()["status"]["allowed"].as_bool())
}

/// A zone that watches RBAC, a client for its leaf, and the leaf's watch that makes the zone do so.
async fn zone_watching_rbac(up: &RunningDemoApiserver) -> (App, Client, Watch) {
    // Decisions are cached for longer than any test takes.
    let remembering = zone(up).with(|config| {
        config.auth = AuthMode::Delegated;
        let auth = &mut config.delegated.auth;
        (auth.token_ttl, auth.allowed_ttl) = (Duration::from_secs(600), Duration::from_secs(600));
    });
    let zone = remembering.run().await;
    zone.discovered().await;
    let leaf = zone.bearing("leaf");
    let watch = leaf.watch(PODS).from(up.revision()).await;
    // Without RBAC, each review goes upstream. The metric would count every proxy in this process.
    let is_watching = || async {
        reviewed(&leaf, "somebody").await;
        let before = up.reviews().counts().accesses;
        reviewed(&leaf, "somebody").await;
        up.reviews().counts().accesses == before
    };
    eventually("changes of rights are seen", is_watching).await;
    (zone, leaf, watch)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_caches_leaf_reviews_until_rbac_changes() {
    let up = demo::upstream().run().await;
    up.reviews().give("leaf", "system:node:leaf");
    up.reviews().give("nobody", "eve");
    up.reviews().allow("system:node:leaf", "*");
    up.reviews().allow("ada", "*");
    let (zone, leaf, _watch) = zone_watching_rbac(&up).await;
    assert_eq!(reviewed(&leaf, "ada").await, (201, Some(true)));
    let before = up.reviews().counts().accesses;
    for _ in 0..20 {
        assert_eq!(reviewed(&leaf, "ada").await, (201, Some(true)));
    }
    assert_eq!(up.reviews().counts().accesses, before, "the decision is cached");
    assert_eq!(
        reviewed(&zone.bearing("nobody"), "ada").await.1,
        Some(true),
        "the demo permits reviews for every caller"
    );
    assert!(up.reviews().counts().accesses >= before + 2, "and the zone asks whether eve may, and passes hers on");
    let before = up.reviews().counts().accesses;
    up.reviews().deny("ada", "*");
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
                         "subjects": [{"kind": "User", "name": "ada"}]});
    up.put("clusterrolebindings", binding);
    let is_denied = || async { reviewed(&leaf, "ada").await == (201, Some(false)) };
    eventually("the change invalidates the cached decision", is_denied).await;
    assert!(up.reviews().counts().accesses > before);
}

/// The zone keeps permissions from RBAC for open watches until RBAC changes, so upstream reviews them no more often
/// than without a tree. A request always gets the current decision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_keeps_rbac_decisions_for_watches_but_not_requests() {
    let up = demo::upstream().run().await;
    up.reviews().give("leaf", "system:node:leaf");
    up.reviews().allow("system:node:leaf", "*");
    up.reviews().because("RBAC: allowed by ClusterRoleBinding \"b\" of ClusterRole \"r\" to User \"ada\"");
    let plan = zone(&up).with(|config| {
        config.auth = AuthMode::Delegated;
        // No decisions are cached for requests, and upstream's authorizers know of a change after a second.
        config.delegated.auth.allowed_ttl = Duration::ZERO;
        config.delegated.auth.recheck = Duration::from_secs(1);
    });
    let zone = plan.run().await;
    zone.discovered().await;
    let leaf = zone.bearing("leaf");
    let _watch = leaf.watch(PODS).from(up.revision()).await;
    let is_allowed_for = async |cause| reviewed_for(&leaf, "ada", cause).await.1;
    let is_kept = || async {
        up.reviews().allow("ada", "*");
        let before = is_allowed_for("lease_review").await;
        up.reviews().deny("ada", "*");
        before == Some(true) && is_allowed_for("lease_review").await == Some(true)
    };
    eventually("an open watch keeps the cached decision", is_kept).await;
    assert_eq!(is_allowed_for("access_review").await, Some(false), "a request gets the current decision");
    assert_eq!(is_allowed_for("lease_review").await, Some(true));
    let binding = json!({"metadata": {"name": "b"}, "roleRef": {"kind": "ClusterRole", "name": "r"},
                         "subjects": [{"kind": "User", "name": "ada"}]});
    up.put("clusterrolebindings", binding);
    eventually("a change ends that", || async { is_allowed_for("lease_review").await == Some(false) }).await;
}

/// The Node authorizer denies requests about a new pod until it has observed the pod. Through a zone, the pod's kubelet
/// does not wait longer for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_retries_node_authorizer_denials_and_caches_others() {
    let up = demo::upstream().run().await;
    up.reviews().give("leaf", "system:node:leaf");
    up.reviews().allow("system:node:leaf", "*");
    let (_zone, leaf, _watch) = zone_watching_rbac(&up).await;
    up.reviews().deny_because("no relationship found between node 'leaf' and this object");
    assert_eq!(reviewed(&leaf, "ada").await, (201, Some(false)));
    up.reviews().allow("ada", "*");
    assert_eq!(reviewed(&leaf, "ada").await, (201, Some(true)));
    up.reviews().deny_because("");
    let began = Instant::now();
    assert_eq!(reviewed(&leaf, "eve").await, (201, Some(false)));
    up.reviews().allow("eve", "*");
    let again = reviewed(&leaf, "eve").await;
    // If the machine stalls for the TTL of a deny decision, this shows nothing.
    assert!(again == (201, Some(false)) || began.elapsed() >= Duration::from_secs(5), "{again:?}");
}

/// A leaf requests reviews about each of its clients. Its permission to do so is cached, because it grants no access to
/// the cache.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_caches_leaf_permission_to_create_reviews() {
    let up = demo::upstream().run().await;
    up.reviews().give("leaf", "system:node:leaf");
    up.reviews().allow("system:node:leaf", "*");
    let plan = zone(&up).with(|config| {
        config.auth = AuthMode::Delegated;
        // No decisions are cached for requests.
        config.delegated.auth.allowed_ttl = Duration::ZERO;
        config.delegated.auth.token_ttl = Duration::from_secs(600);
    });
    let zone = plan.run().await;
    zone.discovered().await;
    let leaf = zone.bearing("leaf");
    let (before, began) = (up.reviews().counts().accesses, Instant::now());
    for number in 0..10 {
        assert_eq!(reviewed(&leaf, &format!("ada-{number}")).await, (201, Some(false)));
    }
    // Once, or again if the machine stalls for the TTL of the decision.
    let (reviews_made, again) = (up.reviews().counts().accesses - before, began.elapsed().as_secs() / 5);
    assert!((11..=11 + again).contains(&reviews_made), "{reviews_made} questions, {again} more at most");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_coalesces_reviews_of_delegated_leaves() {
    let up = demo::upstream().pods(3).run().await;
    up.reviews().give("a", "ada");
    up.reviews().allow("ada", "*");
    // Decisions are cached for longer than any test takes.
    let remembering = zone(&up).with(|config| {
        let auth = &mut config.delegated.auth;
        (auth.token_ttl, auth.allowed_ttl) = (Duration::from_secs(600), Duration::from_secs(600));
    });
    let zone = remembering.run().await;
    zone.discovered().await;
    let delegated = |url: &str| direct::in_front_of(url).with(|config| config.auth = AuthMode::Delegated);
    let leaves = join_all((0..4).map(|_| delegated(&zone.url()).run())).await;
    for leaf in &leaves {
        leaf.discovered().await;
    }
    let reads = leaves.iter().map(|leaf| async move { leaf.bearing("a").get(CACHED).await.status });
    assert_eq!(join_all(reads).await, vec![200; leaves.len()]);
    let counted = up.reviews().counts();
    assert!(counted.tokens <= 2, "a token's owner serves all for a while: {counted:?}");
    assert!(counted.accesses <= leaves.len() as u64, "{counted:?}");
    let answered = zone.admin("/metrics").await.text();
    assert!(
        answered.lines().any(|line| line.contains("downstream_proxy_requests_total") && line.contains("review")),
        "{answered}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn table_watches_of_all_leaves_share_one_upstream_stream() {
    let up = demo::upstream().pods(20).seed(83).run().await;
    let (_zone, leaves) = tree(&up, 3).await;
    let from = up.revision();
    let theirs = upstream_client(&up).watch(PODS).from(from).accept(TABLE).await;
    let mut ours = Vec::new();
    for leaf in &leaves {
        ours.push(leaf.watch(PODS).from(from).accept(TABLE).await);
        ours.push(leaf.watch(PODS).from(from).accept(TABLE).over(Protocol::Http2).await);
    }
    let last = up.churn(30).await;
    theirs.reached(last).await;
    join_all(ours.iter().map(|watch| watch.reached(last))).await;
    // Upstream writes a row for each of its streams, so the ages of the test's own and of the zone's may differ.
    let rows = |watch: &Watch| -> Vec<_> {
        watch.events().iter().map(|event| without_ages(&String::from_utf8_lossy(&event.body))).collect()
    };
    assert_eq!(rows(&ours[0]), rows(&theirs));
    for watch in &ours {
        assert_same("rows", &watch.events(), &ours[0].events());
    }
    assert_eq!(up.counts().watches_open.of("pods"), 2, "the test's own, and the zone's");
    let behind = leaves[0].watch(PODS).from(last).accept(TABLE).await;
    let last = up.churn(5).await;
    behind.reached(last).await;
    assert_eq!(behind.events().len(), 5, "a state is none of its events");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_serves_leaf_checks_only_from_cache() {
    let up = demo::upstream().pods(5).run().await;
    let zone = zone(&up).run().await;
    let from = up.churn(3).await;
    let _watch = zone.watch(PODS).from(from).await;
    zone.reached("pods", up.churn(3).await).await;
    let at = |version: u64| format!("{PODS}?resourceVersion={version}&resourceVersionMatch=Exact");
    let path = at(from - 1);
    let exact = |cause: &'static str| zone.request(Method::GET, &path).header(HOPS, "leaf").header(CAUSE, cause).send();
    // The zone's own samples are of one object, or of a page.
    let is_state =
        |query: &&String| query.contains("Exact") && !query.contains("fieldSelector") && !query.contains("limit");
    let exact_ones = || direct::proxy_queries(&up, PODS).iter().filter(is_state).count();
    let before = exact_ones();
    for cause in ["representation_check", "self_check"] {
        assert_eq!(exact(cause).await.status, 410, "{cause}");
    }
    assert_eq!(exact_ones(), before);
    assert_eq!(exact("history").await.status, 200, "what a leaf needs it gets");
    assert_eq!(exact_ones(), before + 1);
    // The zone can reconstruct every state since the start of its history.
    for version in from..=up.revision() {
        let ours = zone.request(Method::GET, &at(version)).header(HOPS, "leaf").header(CAUSE, "list").send().await;
        let theirs = upstream_client(&up).get(&at(version)).await;
        assert!(ours.is_cached(), "{version}: {}", ours.text());
        assert_eq!(ours.body, theirs.body, "{version}");
    }
    assert_eq!(exact_ones(), before + 1);
}

#[tokio::test]
async fn client_cause_header_is_not_forwarded() {
    let up = demo::upstream().pods(2).run().await;
    let app = direct::app(&up).run().await;
    // The proxy sends this request with its own cause.
    let call = app.request(Method::GET, "/healthz").header(CAUSE, "watch").header("x-of", "a-client");
    assert_eq!(call.send().await.status, 200);
    let seen = up.requests().into_iter().find(|seen| seen.headers.contains_key("x-of")).expect("it passed");
    assert!(!seen.headers.contains_key(CAUSE));
}
