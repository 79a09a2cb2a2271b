//! Hundreds of clients that arrive together at a new proxy cost upstream only a few requests (F4).

use std::sync::atomic::{AtomicBool, Ordering};

use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use tokio::time::Instant;

use crate::direct::{self, App, FRESH_MAX, PODS, assert_same, upstream_client};

/// How many requests may wait at once in a test of that limit.
const WAITING: usize = 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_watch_lists_on_cold_cache_share_one_upstream_watch() {
    let up = demo::upstream().pods(30).run().await;
    let app = direct::app(&up).run().await;
    let connections = join_all((0..5).map(|_| app.multiplexed())).await;
    let open = (0..500).map(|n| connections[n % 5].watch(PODS).initial_events().from(0).into_future());
    let watches = join_all(open).await;
    join_all(watches.iter().map(direct::Watch::listed)).await;
    let counts = up.counts();
    let opened = (counts.watch_lists.of("pods"), counts.watches_opened.of("pods"), counts.lists.of("pods"));
    assert_eq!(opened, (1, 1, 0), "watch-lists, watches, lists");
    let theirs = upstream_client(&up).watch(PODS).initial_events().await;
    theirs.listed().await;
    watches.iter().for_each(|watch| assert_same("a cold watch", &watch.events(), &theirs.events()));
}

/// A new proxy whose upstream watches are silent, streamed lists included. The proxy lets every client wait.
async fn with_silent_upstream(up: &RunningDemoApiserver) -> App {
    let app = direct::app(up).sync_wait(direct::PATIENCE).run().await;
    app.discovered().await;
    up.faults().hush_watches();
    app
}

/// Ends the silence when this many readers wait, however long that takes on a busy machine. Returns that time.
async fn end_silence_when_waiting(up: &RunningDemoApiserver, app: &App, readers: u64) -> Instant {
    app.until_feed("pods", "all wait", |feed| feed["readers"].as_u64() >= Some(readers)).await;
    up.faults().unhush_watches();
    Instant::now()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_consistent_watch_lists_share_freshness_checks() {
    let up = demo::upstream().pods(30).run().await;
    let app = with_silent_upstream(&up).await;
    let connections = join_all((0..5).map(|_| app.multiplexed())).await;
    let open = join_all((0..500).map(|n| connections[n % 5].watch(PODS).initial_events().into_future()));
    let (watches, _) = tokio::join!(open, end_silence_when_waiting(&up, &app, 500));
    join_all(watches.iter().map(direct::Watch::listed)).await;
    let counts = up.counts();
    assert!(counts.watch_lists.of("pods") <= 25, "{} watch-lists", counts.watch_lists.of("pods"));
    assert!(counts.lists.of("pods") <= 10, "{} lists", counts.lists.of("pods"));
    direct::within("one that stays", up.until(|counts| counts.watches_open.of("pods") == 1)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_lists_on_cold_cache_share_upstream_requests() {
    for _ in 0..30 {
        let up = demo::upstream().pods(30).run().await;
        let app = with_silent_upstream(&up).await;
        let connections = join_all((0..3).map(|_| app.multiplexed())).await;
        let lists = join_all((0..300).map(|n| connections[n % 3].get(PODS)));
        let (lists, resumed) = tokio::join!(lists, end_silence_when_waiting(&up, &app, 300));
        let (took, served) = (resumed.elapsed(), lists.iter().filter(|list| list.is_cached()).count());
        // A read that waited for this long is forwarded. On a machine that stalls this shows nothing.
        if served < 290 && took >= FRESH_MAX {
            continue;
        }
        assert!(served >= 290, "{served} of 300 from the cache");
        let expected = upstream_client(&up).get(PODS).await;
        for list in &lists {
            assert!(list.body == expected.body, "{}", list.text());
        }
        let counts = up.counts();
        let questions = counts.lists.of("pods") + counts.watch_lists.of("pods");
        assert!(questions <= 40, "{questions} questions");
        return;
    }
    panic!("each time they are passed on, after a while");
}

#[tokio::test]
async fn proxy_becomes_ready_when_upstream_starts_later() {
    let up = demo::upstream().pods(4).run().await;
    up.faults().down().await;
    let app = direct::app(&up).run().await;
    let refused = app.get(PODS).await;
    assert_eq!(refused.refusal().0, 503);
    assert!(refused.header("retry-after").is_some());
    let ready = app.admin("/readyz").await;
    assert_eq!((ready.status, ready.text().contains("[-]discovery")), (503, true), "{}", ready.text());
    assert_eq!(app.admin("/livez").await.status, 200, "a restart would not help");
    up.faults().up().await;
    let app = &app;
    direct::eventually("ready", || async { app.admin("/readyz").await.status == 200 }).await;
    let list = app.get(PODS).await;
    assert_eq!((list.status, list.is_cached()), (200, true));
}

#[tokio::test]
async fn feed_lists_in_pages_if_upstream_rejects_watch_list() {
    for code in [400, 422] {
        let up = demo::upstream().pods(1200).run().await;
        up.faults().only("pods").answer(demo::RequestKind::Watch, 1, code, None);
        let app = direct::app(&up).run().await;
        let watch = app.watch(PODS).initial_events().from(0).await;
        watch.listed().await;
        let theirs = upstream_client(&up).watch(PODS).initial_events().await;
        theirs.listed().await;
        assert_same("the objects", &watch.changes(), &theirs.changes());
        let last = up.create_pod("default", "later");
        watch.reached(last).await;
        let pages = direct::proxy_queries(&up, PODS).iter().filter(|query| query.contains("limit=")).count();
        assert_eq!(pages, 3, "pages of 500");
    }
}

/// The version that the pages belong to may expire while they are read.
#[tokio::test]
async fn expired_page_token_restarts_list_then_falls_back_to_full_list() {
    for (expired, whole) in [(1, 0), (2, 1)] {
        let up = demo::upstream().pods(1200).run().await;
        up.faults().only("pods").answer(demo::RequestKind::Watch, 1, 422, None);
        up.faults().only("pods").answer(demo::RequestKind::Page, expired, 410, None);
        let app = direct::app(&up).run().await;
        let list = app.get("/api/v1/pods?resourceVersion=0").await;
        assert_eq!((list.is_cached(), list.items()), (true, upstream_client(&up).get(PODS).await.items()));
        let queries = direct::proxy_queries(&up, PODS);
        let is_list = |query: &&String| !query.contains("watch=true") && !query.contains("fieldSelector");
        let lists: Vec<_> = queries.iter().filter(is_list).collect();
        let in_one = lists.iter().filter(|query| !query.contains("limit=")).count();
        let firsts = lists.iter().filter(|query| query.contains("limit=500") && !query.contains("continue=")).count();
        assert_eq!((firsts, in_one), (2, whole), "{lists:?}");
    }
}

#[tokio::test]
async fn endless_pagination_aborts_feed_and_forwards_its_requests() {
    let up = demo::upstream().pods(1200).run().await;
    up.faults().only("pods").answer(demo::RequestKind::Watch, 1, 422, None);
    up.faults().pages_never_end();
    let app = direct::app(&up).run().await;
    let list = app.get("/api/v1/pods?resourceVersion=0").await;
    assert_eq!((list.status, list.is_cached(), list.items().len()), (200, false, 1200));
    let pages = direct::proxy_queries(&up, PODS).iter().filter(|query| query.contains("continue=")).count();
    assert!((1..=20).contains(&pages), "{pages} pages");
    let others = app.get("/api/v1/configmaps?resourceVersion=0").await;
    assert_eq!((others.status, others.is_cached()), (200, true));
}

/// Clients return before the proxy has reached upstream for the first time, and more of them than may wait.
#[tokio::test]
async fn watches_before_first_discovery_are_never_forwarded() {
    let up = demo::upstream().pods(4).run().await;
    let rv = upstream_client(&up).get(PODS).await.rv();
    up.faults().down().await;
    let app = direct::app(&up).with(|config| config.serve.limits.lists_bytes_max = WAITING * (16 << 10)).run().await;
    direct::eventually("discovery has failed", || async {
        app.admin("/readyz").await.text().contains("upstream cannot be reached")
    })
    .await;
    let is_refused = AtomicBool::new(false);
    let clients = (0..2 * WAITING).map(|_| async {
        loop {
            match app.watch(PODS).from(rv).open().await {
                Ok(watch) => return watch,
                Err(refusal) => {
                    assert!([429, 503].contains(&refusal.status), "{}", refusal.text());
                    is_refused.fetch_or(refusal.status == 429, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            }
        }
    });
    let faults = up.faults();
    let back = async {
        direct::eventually("the others are refused", async || is_refused.load(Ordering::Relaxed)).await;
        faults.up().await;
    };
    let (watches, ()) = tokio::join!(join_all(clients), back);
    let last = up.create_pod("default", "later");
    join_all(watches.iter().map(|watch| watch.reached(last))).await;
    assert!(watches.iter().all(|watch| watch.headers.get("kube-fanout-served").is_some_and(|by| by == "cache")));
}

#[tokio::test]
async fn feed_retries_initial_list_after_transient_error() {
    let up = demo::upstream().pods(4).run().await;
    for (code, retry_after) in [(429, Some(1)), (500, None), (503, None), (504, None)] {
        up.faults().only("pods").answer(demo::RequestKind::Watch, 1, code, retry_after);
    }
    let app = direct::app(&up).run().await;
    let began = Instant::now();
    let list = app.get("/api/v1/pods?resourceVersion=0").await;
    assert_eq!((list.status, list.is_cached(), list.items().len()), (200, true, 4));
    assert!(began.elapsed() >= std::time::Duration::from_secs(1), "Retry-After is heeded");
    assert_eq!(up.counts().lists.of("pods"), 0, "a server that is busy is not one without streamed lists");
}

#[tokio::test]
async fn namespace_is_cached_without_cluster_wide_list_permission() {
    let up = demo::upstream().pods(40).run().await;
    up.faults().only("pods").answer(demo::RequestKind::Watch, 1, 403, None);
    let app = direct::app(&up).run().await;
    let path = "/api/v1/namespaces/default/pods";
    let list = app.get(path).await;
    assert!(list.is_cached());
    assert!(list.body == upstream_client(&up).get(path).await.body);
    let everything = app.get(PODS).await;
    assert!(!everything.is_cached(), "which upstream decides about");
    let watch = app.watch(path).from(list.rv()).await;
    let last = up.create_pod("default", "later");
    watch.reached(last).await;
    assert_eq!(watch.events().len(), 1);
}
