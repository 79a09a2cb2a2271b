//! The load that an idle proxy puts on the apiserver. A fleet multiplies it by the number of its proxies.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bed::{self, Frame, Http, Plan, Proxy, RequestSpec, Watch, eventually, log_line, rbac};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
/// The causes of requests for each open watch: its permission is reviewed every ten minutes, and its token every
/// minute.
const REVIEWS: &str = "lease_review";
const TOKENS: &str = "token_review";
const OF_A_WATCH: [&str; 2] = [REVIEWS, TOKENS];
/// Each stream receives a bookmark once a minute, whatever else happens.
const BOOKMARK_BYTES_MAX: u64 = 200;

/// The costs of one cause, from the costs page.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Cost {
    requests: u64,
    streams: u64,
    bytes: u64,
}

type Costs = BTreeMap<String, Cost>;

async fn costs(proxy: &Proxy) -> Costs {
    let page = proxy.admin().json("/debug/cost").await;
    let read = |of: &Value| {
        let number = |name: &str| of[name].as_u64().expect("a number");
        let cost = Cost { requests: number("requests"), streams: number("streamsOpen"), bytes: number("bodyBytes") };
        (of["cause"].as_str().expect("a word").to_owned(), cost)
    };
    page.as_array().expect("a list").iter().map(read).collect()
}

/// The number of upstream requests, without those for open watches.
fn requests(costs: &Costs, of_watches: &[&str]) -> u64 {
    costs.iter().filter(|(cause, _)| !of_watches.contains(&cause.as_str())).map(|(_, cost)| cost.requests).sum()
}

/// Waits until the proxy has sent no requests for a while. Returns the costs at the end, and those of the last part of
/// that time. A new feed is compared with upstream within six seconds, and not again.
async fn rested(proxy: &Proxy, of_watches: &[&str]) -> (Costs, Costs) {
    let quiet = Duration::from_secs(bed::number("REST_SECONDS", 8));
    let mut last = (Instant::now(), costs(proxy).await);
    eventually("no further request is sent", async || {
        let now = costs(proxy).await;
        if requests(&now, of_watches) != requests(&last.1, of_watches) {
            last = (Instant::now(), now);
            return None;
        }
        (last.0.elapsed() >= quiet).then_some((now.clone(), since(&last.1, &now)))
    })
    .await
}

/// The additional costs, and the streams that are open now.
fn since(before: &Costs, now: &Costs) -> Costs {
    let more = |(cause, now): (&String, &Cost)| {
        let before = before[cause];
        let (requests, bytes) = (now.requests - before.requests, now.bytes - before.bytes);
        (cause.clone(), Cost { requests, bytes, streams: now.streams })
    };
    now.iter().map(more).collect()
}

/// The costs that are not zero, as text.
fn summary(costs: &Costs) -> String {
    let some = costs.iter().filter(|(_, cost)| **cost != Cost::default());
    let each = some.map(|(cause, Cost { requests, streams, bytes })| {
        format!("{cause}: {requests} requests, {streams} streams open, {bytes} bytes")
    });
    each.collect::<Vec<_>>().join("; ")
}

/// A watch of all new events, in the encoding of feeds of built-in resources.
async fn everything_new(direct: &Http, path: &str) -> Watch {
    let version = direct.version(path).await;
    direct.watch(RequestSpec::get(&format!("{path}?watch=true&resourceVersion={version}")).accept(PROTOBUF)).await
}

/// The size of the next event in bytes.
async fn event_bytes(watch: &mut Watch) -> u64 {
    match watch.frame().await.expect("an event") {
        Frame::Protobuf(bytes) | Frame::Json(bytes) => bytes.len() as u64,
    }
}

fn definition() -> Value {
    let properties: serde_json::Map<_, _> = (0..40)
        .map(|n| (format!("field{n}"), json!({"type": "string", "description": format!("what field {n} is good for")})))
        .collect();
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": {
        "type": "object", "properties": properties,
    }}}});
    let version = json!({"name": "v1", "served": true, "storage": true, "schema": schema});
    let names = json!({"plural": "mice", "singular": "mouse", "kind": "Mouse", "listKind": "Mischief"});
    let spec = json!({"group": "rest.example.com", "scope": "Namespaced", "names": names, "versions": [version]});
    json!({"metadata": {"name": "mice.rest.example.com"}, "spec": spec})
}

/// Panics unless exactly two resources are watched: CustomResourceDefinitions and APIServices.
fn assert_costs_two_streams(rest: &Costs, of: &str) {
    let open: u64 = rest.values().map(|cost| cost.streams).sum();
    assert_eq!((open, rest["definitions"].streams), (2, 2), "{of}: {rest:?}");
}

#[tokio::test]
async fn irrelevant_change_causes_no_upstream_request() {
    let Some(bed) = bed::quiet("rest").await else { return };
    let direct = bed.direct();
    let roles = rbac::collection(None, "roles");
    direct.create(DEFINITIONS, definition()).await;
    direct.create(&roles, json!({"metadata": {"name": "rest"}, "rules": []})).await;
    let established = format!("{DEFINITIONS}/mice.rest.example.com");
    eventually("the definition is established", async || {
        let crd = direct.json(&established).await.to_string();
        crd.contains(r#""status":"True","type":"Established""#).then_some(())
    })
    .await;

    let (open, idle) = tokio::join!(Plan::tls().start(&bed), Plan::delegated(&bed).start(&bed));
    let leased = Plan::delegated(&bed).start(&bed).await;
    // The third proxy has a client watch, so that it watches RBAC.
    let watch = leased
        .client()
        .watch(RequestSpec::get("/api/v1/configmaps?watch=true&fieldSelector=metadata.name%3Dnone"))
        .await;
    eventually("RBAC is synced", async || {
        (leased.metrics().await.sum("kube_fanout_auth_policy_watched", &[]) == 1).then_some(())
    })
    .await;

    let proxies = [("auth: none", &open), ("auth: delegated", &idle), ("auth: delegated and a watch", &leased)];
    let (a, b, c) = tokio::join!(rested(&open, &[]), rested(&idle, &[]), rested(&leased, &OF_A_WATCH));
    let mut before = Vec::new();
    for ((of, _), (all, at_rest)) in proxies.iter().zip([a, b, c]) {
        log_line(&format!("{of}: since the start: {}", summary(&all)));
        log_line(&format!("{of}: at rest: {}", summary(&at_rest)));
        before.push(all);
    }
    assert_costs_two_streams(&before[0], proxies[0].0);
    assert_costs_two_streams(&before[1], proxies[1].0);
    assert_eq!(before[2]["rbac"].streams, 4, "{:?}", before[2]);

    let (mut definitions, mut cluster_roles) =
        tokio::join!(everything_new(&direct, DEFINITIONS), everything_new(&direct, &roles));
    let label = json!({"metadata": {"labels": {"seen": "yes"}}});
    direct.patch(&established, label).await;
    direct.patch(&format!("{roles}/rest"), json!({"rules": [{"nonResourceURLs": ["/x"], "verbs": ["get"]}]})).await;
    direct.create("/api/v1/namespaces", json!({"metadata": {"name": "rest"}})).await;
    let of_definition = event_bytes(&mut definitions).await;
    let of_role = event_bytes(&mut cluster_roles).await;
    log_line(&format!("the events: {of_definition} bytes of a definition, {of_role} of a ClusterRole"));
    for ((_, proxy), before) in proxies.iter().zip(&before) {
        let is_synced = async || {
            let more = since(before, &costs(proxy).await);
            let hears_rbac = before["rbac"].streams == 0 || more["rbac"].bytes >= of_role;
            (more["definitions"].bytes >= of_definition && hears_rbac).then_some(())
        };
        eventually("the changes are cached", is_synced).await;
    }
    let (a, b, c) = tokio::join!(rested(&open, &[]), rested(&idle, &[]), rested(&leased, &OF_A_WATCH));
    for (((of, _), before), (now, _)) in proxies.iter().zip(&before).zip([a, b, c]) {
        let more = since(before, &now);
        log_line(&format!("{of}: three changes: {}", summary(&more)));
        let of_watches: &[&str] = if more["rbac"].streams == 0 { &[] } else { &OF_A_WATCH };
        assert_eq!(requests(&more, of_watches), 0, "{of}: {more:?}");
        let most = |event: u64, streams: u64| event * 6 / 5 + streams * BOOKMARK_BYTES_MAX;
        assert!(more["definitions"].bytes <= most(of_definition, 2), "{of}: {more:?}");
        let of_rbac = if more["rbac"].streams == 0 { 0 } else { most(of_role, 4) };
        assert!(more["rbac"].bytes <= of_rbac, "{of}: {more:?}");
        assert!(more["watch"].bytes <= BOOKMARK_BYTES_MAX, "{of}: {more:?}");
        assert!(more[REVIEWS].requests <= 2 && more[TOKENS].requests <= 4, "what a watch costs in any case: {more:?}");
    }
    drop(watch);
    for (_, proxy) in proxies {
        proxy.assert_sound();
    }
}
