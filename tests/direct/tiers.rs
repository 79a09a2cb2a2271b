//! A proxy whose upstream is a proxy: what reaches its clients, and which requests the apiserver receives (F5, W10).

use demo::{self, ReceivedRequest, RunningDemoApiserver};
use futures_util::future::join_all;

use crate::clock::bookmarks_cross;
use crate::direct::{self, App, History, PODS, Protocol};

/// Header with the proxy's name. A forwarded request also has the names of all proxies before it.
const HOPS: &str = "kube-fanout-hops";
const CLIENTS: usize = 40;

/// A zone proxy in front of upstream, and a leaf proxy in front of the zone.
async fn tiers(up: &RunningDemoApiserver) -> (App, App) {
    let zone = direct::app(up).run().await;
    zone.discovered().await;
    let leaf = direct::in_front_of(&zone.url()).run().await;
    leaf.discovered().await;
    (zone, leaf)
}

/// Upstream requests for a path: the zone's own, and those of the leaf or its clients through the zone.
fn seen(up: &RunningDemoApiserver, path: &str) -> (usize, usize) {
    let hops = |seen: &ReceivedRequest| {
        let values = seen.headers.get_all(HOPS).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).count()
    };
    let requests = up.requests();
    let of = |is_included: fn(usize) -> bool| {
        requests.iter().filter(|seen| seen.uri.path() == path && is_included(hops(seen))).count()
    };
    (of(|hops| hops == 1), of(|hops| hops > 1))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_clients_cost_upstream_only_zone_freshness_checks() {
    let up = demo::upstream().pods(60).seed(71).run().await;
    let (_zone, leaf) = tiers(&up).await;
    let mut history = History::begin(&up, PODS).await;
    let first = leaf.watch(PODS).from(history.from).await;
    direct::followed(&up, "pods").await;
    // A feed that started at a client's version is proven once before it is served.
    assert_eq!(leaf.get(&format!("{PODS}?resourceVersion=0")).await.status, 200);
    let before = seen(&up, PODS);
    assert_eq!(before.1, 0, "the leaf's own state and stream are the zone's");
    let open = (0..CLIENTS).map(|n| leaf.watch(PODS).from(history.from).over(Protocol::ALL[n % 3]).into_future());
    let mut watches = join_all(open).await;
    watches.push(first);
    for _ in 0..CLIENTS {
        assert_eq!(leaf.get(&format!("{PODS}?resourceVersion=0")).await.status, 200);
    }
    let last = up.churn(30).await;
    history.assert_delivered(&watches, last).await;
    assert_eq!(seen(&up, PODS), before, "watches, and what needs no proof");
    assert_eq!(up.counts().watches_open.of("pods"), 1);
    for n in 0..10 {
        let rv = up.update_pod("default", &format!("mine-{n}"));
        let list = leaf.get(PODS).await;
        assert!(list.rv() >= rv, "{} < {rv}", list.rv());
        assert_eq!(list.headers["kube-fanout-served"], "cache");
    }
    let (zones, through) = seen(&up, PODS);
    assert_eq!(through, 0, "what the leaf asks to prove it the zone answers");
    let passed_on = zones - before.0;
    // A stalled machine repeats each request a few times, but there are many more clients.
    assert!(passed_on <= 10 * 10, "{passed_on} questions for 10 reads");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bookmark_passes_two_tiers_unchanged_within_one_second() {
    let up = demo::upstream().pods(3).run().await;
    let (zone, leaf) = tiers(&up).await;
    let from = up.revision();
    let open = Protocol::ALL.map(|protocol| leaf.watch(PODS).from(from).bookmarks().over(protocol).into_future());
    let watches = join_all(open).await;
    direct::followed(&up, "pods").await;
    zone.until_feed("pods", "the leaf follows it", |feed| feed["readers"] == 1).await;
    bookmarks_cross(&up, from, &watches).await;
}
