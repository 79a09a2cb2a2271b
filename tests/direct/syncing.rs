//! Requests wait for their feed's initial list. Those that time out are forwarded, up to a limit, and further ones are
//! refused.

use std::time::Duration;

use base::now_ns;
use demo::{self, RequestKind, RunningDemoApiserver};
use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use tokio::time::Instant;
use verify::ApiserverGuarantee;

use crate::direct::{self, App, History, PODS, Protocol, assert_alike, upstream_client};

const ANY: &str = "/api/v1/pods?resourceVersion=0";

/// A proxy whose upstream does not stream lists, and delays LIST responses.
async fn gated(up: &RunningDemoApiserver, plan: direct::Plan) -> App {
    let app = plan.run().await;
    let known = &app;
    // Discovery lists as well.
    direct::eventually("discovery", || async { known.admin("/readyz").await.status == 200 }).await;
    up.faults().only("pods").answer(RequestKind::Watch, 1, 422, None);
    up.faults().hold_lists();
    app
}

#[tokio::test]
async fn requests_wait_for_initial_list_and_are_served_from_cache() {
    let up = demo::upstream().pods(8).run().await;
    let history = History::begin(&up, PODS).await;
    let app = gated(&up, direct::app(&up)).await;
    let since = now_ns();
    let lists = join_all((0..20).map(|_| app.get(ANY)));
    let watches = join_all((0..20).map(|_| app.watch(PODS).from(0).open()));
    let gate = async {
        up.faults().lists_waiting(1).await;
        // A request that does not wait is forwarded, and is judged for that.
        let waiting = async || app.feed("pods").await.is_some_and(|feed| feed["readers"].as_u64() >= Some(40));
        let is_there = async || waiting().await || up.counts().lists.of("pods") > 1;
        direct::eventually("all clients wait", is_there).await;
        let feed = app.feed("pods").await;
        up.faults().release_lists();
        feed
    };
    let (lists, watches, feed) = tokio::join!(lists, watches, gate);
    history.evidence().answers(&lists).upstream_requests(&up).broken("a start", since, &[]).shows(&[
        ApiserverGuarantee::OneRelist,
        ApiserverGuarantee::ListSnapshot,
        ApiserverGuarantee::Monotone,
    ]);
    assert_eq!(feed.map(|feed| feed["state"].clone()), Some("syncing".into()));
    assert!(lists.iter().all(|list| list.is_cached() && list.items().len() == 8));
    let watches: Vec<_> = watches.into_iter().map(|watch| watch.expect("no refusal")).collect();
    join_all(watches.iter().map(|watch| watch.received(8))).await;
}

#[tokio::test]
async fn lists_after_sync_timeout_are_forwarded_up_to_limit_else_429() {
    let up = demo::upstream().pods(8).run().await;
    let wait = Duration::from_millis(200);
    let app = gated(&up, direct::app(&up).sync_wait(wait).unready_forwards(3)).await;
    let began = Instant::now();
    let mut lists: FuturesUnordered<_> = (0..10).map(|_| app.get(ANY)).collect();
    // The other three are forwarded, and upstream delays them.
    let mut refused: Vec<_> = lists.by_ref().take(7).collect().await;
    assert!(began.elapsed() >= wait, "each of them waits first");
    // The feed's own LIST and the three forwarded ones.
    direct::within("four lists", up.faults().lists_waiting(4)).await;
    let started = Instant::now();
    refused.push(app.get(ANY).await);
    assert!(started.elapsed() >= wait, "however many have been refused");
    up.faults().release_lists();
    let passed: Vec<_> = lists.collect().await;
    let theirs = upstream_client(&up).get(ANY).await;
    for list in &passed {
        assert_eq!((list.status, list.is_cached()), (200, false));
        assert_alike("forwarded", list, &theirs);
    }
    for list in &refused {
        assert_eq!(list.refusal(), (429, "TooManyRequests".to_owned()));
        assert!(list.header("retry-after").is_some_and(|seconds| seconds.parse::<u32>().is_ok_and(|n| n >= 1)));
    }
    app.until_feed("pods", "live", |feed| feed["state"] == "live").await;
    direct::eventually("it is served from memory", || async { app.get(ANY).await.is_cached() }).await;
}

#[tokio::test]
async fn watches_after_sync_timeout_get_429_and_are_not_forwarded() {
    let up = demo::upstream().pods(8).run().await;
    let plan = direct::app(&up).sync_wait(Duration::from_millis(100));
    let app = gated(&up, plan).await;
    let plans = (0..6).map(|n| {
        let plan = app.watch(PODS).over(Protocol::ALL[n % 3]);
        if n < 3 { plan.from(0) } else { plan.initial_events() }
    });
    for refused in join_all(plans.map(direct::WatchPlan::open)).await {
        let refused = refused.err().expect("a refusal");
        let status: serde_json::Value = serde_json::from_slice(&refused.body).unwrap_or_default();
        assert_eq!(refused.status, 429, "{}", refused.text());
        assert!(refused.header("retry-after").is_some_and(|seconds| seconds.parse::<u32>().is_ok_and(|n| n >= 1)));
        assert!(status.is_null() || status["message"] == "storage is (re)initializing", "{status}");
    }
    assert_eq!(up.counts().watches_open.of("pods"), 0, "no private watch upstream");
    up.faults().release_lists();
}

#[tokio::test]
async fn unsynced_resource_does_not_delay_other_resources() {
    let up = demo::upstream().pods(8).run().await;
    up.faults().only("pods").answer(RequestKind::Watch, usize::MAX, 503, None);
    let app = direct::app(&up).sync_wait(Duration::from_millis(300)).run().await;
    app.discovered().await;
    let nodes = async || app.get("/api/v1/nodes?resourceVersion=0").await.is_cached();
    let (pods, ()) = tokio::join!(app.get(ANY), direct::eventually("nodes sync", nodes));
    assert_eq!((pods.status, pods.is_cached()), (200, false), "forwarded");
}

#[tokio::test]
async fn readiness_waits_for_preloaded_feeds() {
    let up = demo::upstream().pods(8).run().await;
    up.faults().hush_watches();
    let app = direct::app(&up).preload("widgets.demo.kube-fanout.io").run().await;
    app.until_feed("widgets", "syncing", |feed| feed["state"] == "syncing").await;
    let ready = app.admin("/readyz").await;
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("[-]feed widgets.v1.demo.kube-fanout.io"), "{}", ready.text());
    assert_eq!(app.admin("/livez").await.status, 200);
    up.faults().unhush_watches();
    let app = &app;
    direct::eventually("ready", || async { app.admin("/readyz").await.status == 200 }).await;
    assert_eq!(app.feed("widgets").await.map(|feed| feed["objects"].clone()), Some(3.into()));
}
