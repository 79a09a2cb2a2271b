//! The cost of a proxy with idle clients: one watch that receives no events.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::json;
use tokio::time::sleep;

use super::planted::{Grove, Seen, at_apiserver, cost_of};
use crate::bed::{self, Plan, Plane, Proxy, RequestSpec, eventually, log_line};

/// The costs of a proxy: its own requests, streams and bytes, and the requests of any proxy that reached the apiserver.
#[derive(Debug, Clone, Copy)]
struct Cost {
    requests: i64,
    streams: i64,
    bytes: i64,
    at_apiserver: usize,
}

const MAPS: &str = "/api/v1/configmaps";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
/// The maximum number of such requests, plus one per four seconds. A new resource costs a zone eight samples, and on a
/// slow machine the samples and reviews of both zones fall into the measurement.
const SEEN_MAX: u64 = 32;
const CRD: &str = "trees.tree.example.com";
/// The time within which the consequences of a change end: a change of RBAC causes reviews in three rounds. A short run
/// only covers the first of them.
const SETTLES: Duration = Duration::from_secs(6);
const SETTLES_SHORT: Duration = Duration::from_millis(700);

async fn cost(plane: &Plane, proxy: &Proxy) -> Cost {
    Cost {
        requests: cost_of(proxy, "requests_total", None).await,
        streams: cost_of(proxy, "streams_opened_total", None).await,
        bytes: cost_of(proxy, "body_bytes_total", None).await,
        at_apiserver: at_apiserver(plane).len(),
    }
}

/// The costs during `act` and for a while after it.
async fn of(plane: &Plane, proxy: &Proxy, what: &str, lasts: Duration, act: impl AsyncFnOnce()) -> (Cost, Vec<Seen>) {
    let before = cost(plane, proxy).await;
    act().await;
    sleep(lasts).await;
    let after = cost(plane, proxy).await;
    let cost = Cost {
        requests: after.requests - before.requests,
        streams: after.streams - before.streams,
        bytes: after.bytes - before.bytes,
        at_apiserver: after.at_apiserver - before.at_apiserver,
    };
    let Cost { requests, streams, bytes, at_apiserver: seen } = cost;
    log_line(&format!(
        "{what}: {requests} requests, {streams} streams, {bytes} bytes; {seen} requests at the apiserver"
    ));
    let all = at_apiserver(plane).split_off(before.at_apiserver);
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for Seen { verb, uri } in &all {
        let path = uri.split_once('?').map_or(uri.as_str(), |(path, _)| path);
        *kinds.entry(format!("{verb} {path}")).or_default() += 1;
    }
    kinds.iter().for_each(|(kind, count)| log_line(&format!("{what}: at the apiserver: {count} x {kind}")));
    (cost, all)
}

fn definition() -> serde_json::Value {
    let version = json!({"name": "v1", "served": true, "storage": true,
                         "schema": {"openAPIV3Schema": {"type": "object", "description": "x".repeat(60_000)}}});
    json!({"metadata": {"name": CRD}, "spec": {"group": "tree.example.com", "scope": "Namespaced",
           "names": {"plural": "trees", "singular": "tree", "kind": "Tree", "listKind": "TreeList"},
           "versions": [version]}})
}

/// Measures one proxy. Returns the requests at the apiserver because of the changes.
async fn measure(plane: &Plane, proxy: &Proxy, name: &str, idle: Duration, round: usize) -> Vec<Seen> {
    let settles = if idle < SETTLES { SETTLES_SHORT } else { SETTLES };
    let direct = plane.direct();
    // Excludes the costs of the start.
    let quiet = || {
        eventually("no proxy sends a request", async || {
            let before = at_apiserver(plane).len();
            sleep(settles).await;
            (at_apiserver(plane).len() == before).then_some(())
        })
    };
    quiet().await;
    let mut seen = Vec::new();
    seen.extend(of(plane, proxy, &format!("{name}, without a client for {idle:?}"), idle, async || {}).await.1);
    let version = direct.version(MAPS).await;
    let _watch = proxy.client().watch(RequestSpec::get(&format!("{MAPS}?watch=1&resourceVersion={version}"))).await;
    eventually("the feed is there", async || (proxy.streams("configmaps.v1").await == 1).then_some(())).await;
    quiet().await;
    let label = json!({"metadata": {"labels": {"round": round.to_string()}}});
    seen.extend(of(plane, proxy, &format!("{name}, idle for {idle:?}"), idle, async || {}).await.1);
    let crd = async || drop(direct.patch(&format!("{CRDS}/{CRD}"), label.clone()).await);
    seen.extend(of(plane, proxy, &format!("{name}, one label of a CRD of 60 kB"), settles, crd).await.1);
    let role = async || drop(direct.patch(&format!("{ROLES}/tree"), label.clone()).await);
    seen.extend(of(plane, proxy, &format!("{name}, one ClusterRole"), settles, role).await.1);
    let space = async || drop(plane.namespace("tree").await);
    seen.extend(of(plane, proxy, &format!("{name}, one namespace"), settles, space).await.1);
    seen
}

/// Whether a zone sends this request for itself: reviews of its callers, and samples of derived representations.
fn is_of_a_zone(Seen { verb, uri }: &Seen) -> bool {
    let is_review = verb == "create" && uri.ends_with("reviews");
    let is_sample = verb == "list" && uri.contains("resourceVersionMatch=Exact");
    is_review || is_sample || verb == "get" && uri == "/version"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_leaf_of_a_zone_sends_the_apiserver_no_requests() {
    let idle = Duration::from_secs(bed::number("TREE_IDLE_SECONDS", 1));
    let Some(bed) = bed::audited("tree-idle").await else { return };
    bed.direct().create(CRDS, definition()).await;
    bed.direct().create(ROLES, json!({"metadata": {"name": "tree"}, "rules": []})).await;
    let is_long = bed::number("TREE_IDLE_SECONDS", 0) > 0;
    // A long run measures proxies with their default settings.
    let measured = |plan: Plan| if is_long { plan.comparing() } else { plan };
    let grove = Grove::zones(&bed, &measured(Plan::delegated(&bed))).await;
    let plans = [("none", measured(Plan::tls())), ("delegated", measured(Plan::delegated(&bed)))];
    for (round, (auth, plan)) in plans.into_iter().enumerate() {
        if is_long {
            let direct = plan.clone().start(&bed).await;
            measure(&bed, &direct, &format!("auth {auth}, behind the apiserver"), idle, 2 * round).await;
            direct.terminate().await;
        }
        let leaf = grove.leaf(&bed, plan, 0).start(&bed).await;
        let name = format!("auth {auth}, behind a zone");
        let seen = measure(&bed, &leaf, &name, idle, 2 * round + 1).await;
        let others: Vec<_> = seen.iter().filter(|seen| !is_of_a_zone(seen)).collect();
        assert!(others.is_empty(), "{name}, at the apiserver: {others:?}");
        assert!(seen.len() <= usize::try_from(SEEN_MAX + idle.as_secs() / 4).expect("few"), "{seen:?}");
        leaf.terminate().await;
    }
}
