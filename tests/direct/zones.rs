//! A proxy whose upstream is a proxy: a leaf below two zones, whose positions are those of their own feeds (F5, F11,
//! L5, W10).

use std::time::{Duration, Instant};

use base::BackoffBounds;
use demo::{self, RequestKind, RunningDemoApiserver};
use serde_json::json;

use crate::direct::{self, App, Ended, History, PODS, Watch, eventually, in_time};
use crate::endpoints;

/// Two zones with one upstream, and a leaf that prefers the first.
struct Tree {
    up: RunningDemoApiserver,
    first: App,
    second: App,
    leaf: App,
    history: History,
    /// A watch at the leaf that has received everything.
    watch: Watch,
}

async fn upstream(seed: u64) -> RunningDemoApiserver {
    // A bookmark would end the hang of a watch that waits for a version.
    demo::upstream().pods(20).seed(seed).bookmark_period(Duration::from_secs(600)).run().await
}

async fn tree(seed: u64) -> Tree {
    let up = upstream(seed).await;
    let second = direct::app(&up).run().await;
    tree_with(up, second).await
}

/// Both zones and the leaf watch pods, and are at the same version.
async fn tree_with(up: RunningDemoApiserver, second: App) -> Tree {
    let mut history = History::begin(&up, PODS).await;
    let first = direct::app(&up).run().await;
    let leaf = endpoints::in_front_of(&[first.url(), second.url()]).run().await;
    second.get(PODS).await;
    let watch = leaf.watch(PODS).from(history.from).await;
    let last = up.churn(10).await;
    watch.reached(last).await;
    second.reached("pods", last).await;
    history.read_to(last).await;
    Tree { up, first, second, leaf, history, watch }
}

/// The version of a proxy's feed of pods.
async fn reach(app: &App) -> u64 {
    let feed = app.feed("pods").await.expect("a feed");
    feed["resourceVersion"].as_str().and_then(|rv| rv.parse().ok()).expect("a version")
}

/// Advances the leaf and its zone further than the other zone, with the same state.
async fn others_change(tree: &Tree) -> u64 {
    let elsewhere = tree.up.put("nodes", json!({"metadata": {"name": "new"}}));
    let path = format!("{PODS}?resourceVersion={elsewhere}&resourceVersionMatch=NotOlderThan");
    let has_come = || async {
        let newer = tree.leaf.get(&path).await;
        // Upstream's response if the version is not reached in three seconds; clients retry.
        if newer.status == 504 {
            return false;
        }
        assert_eq!((newer.status, newer.is_cached()), (200, true), "{}", newer.text());
        assert!(newer.rv() >= elsewhere);
        true
    };
    eventually("the leaf has reached the version", has_come).await;
    elsewhere
}

/// Stops the first zone. The leaf then proves by the second one that it is current at `elsewhere`, and its watch
/// continues.
async fn continue_without_the_first(mut tree: Tree, elsewhere: u64) {
    tree.first.begin_stop();
    let is_proven = || async {
        let list = tree.leaf.get(PODS).await;
        list.status == 200 && list.is_cached() && list.rv() >= elsewhere
    };
    eventually("the leaf proves what it has by the second zone", is_proven).await;
    let last = tree.up.churn(10).await;
    tree.watch.reached(last).await;
    let received = tree.watch.changes();
    direct::assert_same("the leaf's watch", &received, &tree.history.read_to(last).await.all());
    assert!(tree.watch.is_open());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lagging_zone_is_not_mistaken_for_restored_storage() {
    let tree = tree(501).await;
    let elsewhere = others_change(&tree).await;
    assert!(reach(&tree.second).await < elsewhere, "the second is not notified");
    continue_without_the_first(tree, elsewhere).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zone_catches_up_with_resume_version_of_leaf() {
    let tree = tree(502).await;
    let elsewhere = others_change(&tree).await;
    assert!(reach(&tree.second).await < elsewhere);
    let watch = tree.second.watch(PODS).from(elsewhere).bookmarks().await;
    let is_there = || async { reach(&tree.second).await >= elsewhere };
    // Sooner than upstream's own bookmark, which comes once a minute.
    in_time(
        Duration::from_secs(3),
        "the zone receives the request",
        eventually("it has reached the version", is_there),
    )
    .await;
    assert!(watch.is_open() && watch.changes().is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_freshness_check_costs_upstream_one_zone_check() {
    let tree = tree(503).await;
    let requests = |up: &RunningDemoApiserver| direct::proxy_queries(up, PODS).len();
    for n in 0..3 {
        tree.up.put("nodes", json!({"metadata": {"name": format!("new-{n}")}}));
        let (before, began) = (requests(&tree.up), Instant::now());
        let list = tree.leaf.get(PODS).await;
        assert!(list.is_cached(), "{}: {}", list.status, list.text());
        let questions = requests(&tree.up) - before;
        // A position request and a comparison of the zone's own, and a catch-up watch. On a machine that stalls each is
        // repeated.
        let questions_max = 6 * (1 + usize::try_from(began.elapsed().as_secs()).expect("a test takes minutes"));
        assert!(questions <= questions_max, "{questions}, {questions_max} at most");
    }
}

/// The second zone has lost its stream, so it cannot reach a version that the leaf has from the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lagging_zone_without_a_stream_is_not_mistaken_for_restored_storage() {
    let up = upstream(504).await;
    let (beside, retry) = (up.beside(), Duration::from_secs(15));
    let second = direct::app(&beside).fresh_wait_of_product();
    let second = second.with(|config| config.reflect.retry = BackoffBounds { first: retry, longest: retry });
    let second = second.run().await;
    let tree = tree_with(up, second).await;
    let elsewhere = others_change(&tree).await;
    beside.faults().only("pods").answer(RequestKind::Watch, 1, 503, None);
    beside.faults().only("pods").end_watches();
    tree.second.until_feed("pods", "stale", |feed| feed["state"] == "stale").await;
    assert!(reach(&tree.second).await < elsewhere, "the second is not notified");
    continue_without_the_first(tree, elsewhere).await;
}

/// The zone has never had another history, so only its answers show the leaf that the storage went back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restored_storage_is_detected_below_a_zone_that_starts_after_it() {
    let up = demo::upstream().pods(20).seed(505).run().await;
    let (backup, from) = (up.faults().backup(), up.revision());
    let (mut first, second) = (direct::app(&up).run().await, direct::app(&up).fresh_wait_of_product().run().await);
    let leaf = endpoints::in_front_of(&[first.url(), second.url()]).run().await;
    let watch = leaf.watch(PODS).from(from).await;
    watch.reached(up.churn(10).await).await;
    up.faults().down().await;
    up.faults().restore(&backup);
    first.begin_stop();
    up.faults().up().await;
    assert_eq!(watch.ended().await, Ended::Expired);
    let is_restored = || async {
        let list = leaf.get(PODS).await;
        list.status == 200 && list.is_cached() && list.rv() == up.revision()
    };
    eventually("the leaf has the restored state", is_restored).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_leaves_a_zone_that_has_lost_its_apiserver() {
    let up = demo::upstream().pods(20).seed(506).run().await;
    let beside = up.beside();
    let zone = |up| direct::app(up).fresh_wait_of_product();
    let (first, second) = (zone(&up).run().await, zone(&beside).run().await);
    let leaf = endpoints::in_front_of(&[first.url(), second.url()]).run().await;
    let watch = leaf.watch(PODS).from(up.revision()).await;
    let seen = up.churn(10).await;
    watch.reached(seen).await;
    up.faults().down().await;
    let last = beside.create_pod("default", "new");
    let is_current = || async {
        let list = leaf.get(PODS).await;
        list.status == 200 && list.is_cached() && list.rv() >= last
    };
    eventually("the leaf reads by the second zone", is_current).await;
    watch.reached(last).await;
    assert!(watch.is_open());
}
