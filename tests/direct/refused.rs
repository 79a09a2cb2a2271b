//! Requests that upstream refuses to the proxy's own identity are retried with growing delays. On a node they are not
//! sent at all, because there are as many proxies as nodes.

use std::time::{Duration, Instant};

use base::BackoffBounds;
use demo::{self, ReceivedRequest, RequestKind, RunningDemoApiserver};
use kube_fanout::auth::AuthMode;

use crate::direct::{self, App, PODS, Plan, Watch, eventually};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// The collection that is cached on a node.
const ON_NODE: &str = "/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-1";
const RBAC: [&str; 4] = ["roles", "clusterroles", "rolebindings", "clusterrolebindings"];

/// Short; the product's value is half a minute.
const FIRST: Duration = Duration::from_millis(20);
/// How often a test waits for a request to be refused.
const TIMES: u32 = 7;
/// The product's value; no test waits this long.
const LONGEST: Duration = Duration::from_secs(3600);

/// An upstream that refuses the same requests as it refuses a node's identity.
async fn refusing() -> RunningDemoApiserver {
    let up = demo::upstream().pods(3).run().await;
    for plural in RBAC.into_iter().chain(["customresourcedefinitions", "apiservices"]) {
        up.faults().only(plural).answer(RequestKind::Any, 1_000_000, 403, None);
    }
    up
}

/// A proxy that authenticates callers, and therefore watches RBAC.
fn delegated(up: &RunningDemoApiserver) -> Plan {
    direct::app(up).with(|config| {
        config.auth = AuthMode::Delegated;
        config.cache.refused = BackoffBounds { first: FIRST, longest: LONGEST };
    })
}

/// A watch of a caller whose permissions are checked, so that RBAC matters.
async fn watched(up: &RunningDemoApiserver, app: &App, path: &str) -> Watch {
    up.reviews().give("a", "ada");
    up.reviews().allow("ada", "*");
    let watch = app.bearing("a").watch(path).initial_events().await;
    watch.listed().await;
    watch
}

fn request_count(up: &RunningDemoApiserver, path: &str) -> usize {
    direct::proxy_queries(up, path).len()
}

fn rbac(plural: &str) -> String {
    format!("/apis/rbac.authorization.k8s.io/v1/{plural}")
}

/// Number of upstream requests, except for those about the server itself, which each new connection sends.
fn all_requests(up: &RunningDemoApiserver) -> usize {
    let is_ours = |seen: &&ReceivedRequest| seen.headers.contains_key("kube-fanout-hops");
    up.requests().iter().filter(is_ours).filter(|seen| seen.uri.path() != "/version").count()
}

/// The delay doubles each time, so this many requests take at least this long on any machine.
#[tokio::test]
async fn refused_upstream_requests_retry_with_exponential_backoff() {
    let up = refusing().await;
    let began = Instant::now();
    let app = delegated(&up).run().await;
    app.discovered().await;
    let _open = watched(&up, &app, PODS).await;
    let least: Duration = (0..TIMES - 1).map(|n| FIRST * (1 << n)).sum();
    for path in RBAC.iter().map(|plural| rbac(plural)).chain([SERVICES.to_owned()]) {
        eventually("it is retried", || async { request_count(&up, &path) >= TIMES as usize }).await;
        // Read before the time, because a machine that stalls between the two leaves time for more requests.
        let so_far = request_count(&up, &path);
        let took = began.elapsed();
        assert!(took >= least.mul_f64(0.8), "{path}: {TIMES} questions within {took:?}");
        let fitting = (0..32).take_while(|n| FIRST * ((1 << n) - 1) <= took.mul_f64(1.25)).count();
        // Both the readers and the watches of definitions and APIServices request them.
        assert!(so_far <= 2 * (fitting + 2), "{path}: {so_far} questions in {took:?}");
    }
}

#[tokio::test]
async fn idle_node_proxy_without_permission_stops_cluster_requests() {
    let up = refusing().await;
    let app = delegated(&up).with(|config| config.serve.coverage.node = Some("node-1".into())).run().await;
    app.discovered().await;
    let _open = watched(&up, &app, ON_NODE).await;
    eventually("definitions are refused twice", || async {
        request_count(&up, DEFINITIONS) == 2 && request_count(&up, SERVICES) == 2
    })
    .await;
    let before = all_requests(&up);
    // A proxy that is not on a node retries meanwhile, for long enough for sixty requests without growing delays.
    let other = refusing().await;
    let beside = delegated(&other).run().await;
    let _other_open = watched(&other, &beside, PODS).await;
    eventually("others retry", || async { request_count(&other, &rbac(RBAC[0])) >= TIMES as usize }).await;
    for plural in RBAC {
        assert_eq!(request_count(&up, &rbac(plural)), 0, "{plural}");
    }
    assert_eq!((request_count(&up, DEFINITIONS), request_count(&up, SERVICES)), (2, 2));
    assert!(all_requests(&up) <= before + 3, "only requests in flight: {}", all_requests(&up) - before);
}

/// A proxy on a node whose own permissions suffice watches RBAC as elsewhere.
#[tokio::test]
async fn node_proxy_with_permission_watches_rbac() {
    let up = demo::upstream().pods(3).run().await;
    let app = delegated(&up).with(|config| config.serve.coverage.node = Some("node-1".into())).run().await;
    app.discovered().await;
    let _open = watched(&up, &app, ON_NODE).await;
    for plural in RBAC {
        direct::followed(&up, plural).await;
    }
}
