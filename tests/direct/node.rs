//! A proxy on a node: what it caches, what it requests from upstream for that, and what it forwards.

use std::future::IntoFuture;

use demo::{self, Pod, RunningDemoApiserver};
use futures_util::future::join_all;
use serde_json::Value;

use crate::direct::{self, App, History, NODES, PODS, Plan, Protocol, assert_alike, upstream_client};

const OURS: &str = "spec.nodeName=node-1";

fn on_node_1(up: &RunningDemoApiserver) -> Plan {
    direct::app(up).with(|config| config.serve.coverage.node = Some("node-1".into()))
}

fn pod(name: &str, node: &str, restarts: u64) -> Pod {
    Pod::new("default", name).node(node).restarts(restarts)
}

/// Pods that move to the node, change there, leave it, return and end; and pods on other nodes.
fn moves(up: &RunningDemoApiserver) -> u64 {
    for (name, node, restarts) in [
        ("a", "", 0),
        ("b", "node-2", 0),
        ("a", "node-1", 0),
        ("b", "node-2", 1),
        ("a", "node-1", 1),
        ("b", "node-1", 1),
    ] {
        up.put_pod(&pod(name, node, restarts));
    }
    up.put_pod(&pod("b", "node-2", 2));
    up.put_pod(&pod("b", "node-1", 3));
    up.delete_pod("default", "b");
    up.put_pod(&pod("end", "node-1", 0))
}

/// Number of objects that the feed of a resource holds.
async fn cached_objects(app: &App, resource: &str) -> u64 {
    app.feed(resource).await.expect("there is one")["objects"].as_u64().expect("a count")
}

#[tokio::test]
async fn node_proxy_requests_and_caches_only_own_pods() {
    let up = demo::upstream().pods(60).seed(101).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = on_node_1(&up).preload("pods").run().await;
    let open = Protocol::ALL.map(|protocol| app.watch(PODS).fields(OURS).from(history.from).over(protocol));
    let watches = join_all(open.map(IntoFuture::into_future)).await;
    let last = moves(&up);
    history.assert_delivered_filtered(&watches, last).await;
    let list = format!("{PODS}?fieldSelector=spec.nodeName%3Dnode-1");
    let (ours, theirs) = (app.get(&list).await, upstream_client(&up).get(&list).await);
    assert!(ours.is_cached());
    assert_alike("the list", &ours, &theirs);
    assert_eq!(cached_objects(&app, "pods").await, theirs.items().len() as u64);
    let feed = app.feed("pods").await.expect("it runs");
    assert_eq!((&feed["selector"], &feed["namespace"]), (&"spec.nodeName=node-1".into(), &Value::Null));
    for query in direct::proxy_queries(&up, PODS) {
        assert!(query.starts_with("fieldSelector=spec.nodeName%3Dnode-1"), "{query}");
    }
}

#[tokio::test]
async fn node_read_after_write_contains_write_amid_other_changes() {
    let up = demo::upstream().pods(60).seed(102).run().await;
    let app = on_node_1(&up).run().await;
    let list = format!("{PODS}?fieldSelector=spec.nodeName%3Dnode-1");
    for n in 0..30 {
        let rv = up.put_pod(&pod("mine", "node-1", n));
        // The stream with the node's selector receives neither these pods nor progress.
        up.put_pod(&pod("other", "node-2", n));
        let read = app.get(&list).await;
        assert!(read.is_cached(), "{}", read.text());
        let found = read.items().into_iter().find(|(key, _)| key == "default/mine");
        assert_eq!(found, Some(("default/mine".to_owned(), rv)));
    }
}

#[tokio::test]
async fn node_proxy_forwards_requests_beyond_its_node() {
    let up = demo::upstream().pods(60).seed(103).run().await;
    let app = on_node_1(&up).run().await;
    for path in [
        PODS.to_owned(),
        format!("{PODS}?resourceVersion=0"),
        format!("{PODS}?fieldSelector=spec.nodeName%3Dnode-2"),
        format!("{PODS}?fieldSelector=spec.nodeName!%3Dnode-1"),
        NODES.to_owned(),
        format!("{NODES}/node-2?resourceVersion=0"),
        "/api/v1/secrets".to_owned(),
        direct::CONFIGMAPS.to_owned(),
    ] {
        let (ours, theirs) = (app.get(&path).await, upstream_client(&up).get(&path).await);
        assert!(!ours.is_cached(), "{path}");
        assert_alike(&path, &ours, &theirs);
    }
    assert!(app.feed("pods").await.is_none(), "none of these requests starts a feed");
    let mine = format!("{NODES}?fieldSelector=metadata.name%3Dnode-1");
    let (ours, theirs) = (app.get(&mine).await, upstream_client(&up).get(&mine).await);
    assert!(ours.is_cached());
    assert_alike(&mine, &ours, &theirs);
    assert_eq!(cached_objects(&app, "nodes").await, 1);
    assert!(app.get(&format!("{NODES}/node-1?resourceVersion=0")).await.is_cached());
    assert!(app.get("/api/v1/services").await.is_cached(), "resources that belong to no node are cached as usual");
}

/// A gap is mended within the selector, by requests that a kubelet's credentials permit.
#[tokio::test]
async fn node_proxy_backfills_own_pods_after_upstream_outage() {
    let up = demo::upstream().pods(60).seed(104).run().await;
    up.put_pod(&pod("a", "node-1", 0));
    up.put_pod(&pod("leaves", "node-1", 0));
    let witness = up.beside();
    let mut history = History::following(&witness, PODS).await;
    let app = on_node_1(&up).run().await;
    let watch = app.watch(PODS).fields(OURS).from(history.from).await;
    let last = up.put_pod(&pod("a", "node-1", 1));
    watch.reached(last).await;
    history.read_to(last).await;
    up.faults().down().await;
    app.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    up.put_pod(&pod("a", "node-1", 2));
    up.put_pod(&pod("comes", "node-2", 0));
    up.put_pod(&pod("comes", "node-1", 1));
    up.put_pod(&pod("leaves", "node-2", 1));
    let last = up.put_pod(&pod("leaves", "node-2", 2));
    history.read_to(last).await;
    up.faults().forget_window();
    up.faults().up().await;
    let last = up.put_pod(&pod("end", "node-1", 0));
    history.assert_delivered(&[watch], last).await;
    for path in [PODS, "/api/v1/namespaces/default/pods"] {
        for query in direct::proxy_queries(&up, path) {
            assert!(query.starts_with("fieldSelector=spec.nodeName%3Dnode-1"), "{query}");
        }
    }
}
