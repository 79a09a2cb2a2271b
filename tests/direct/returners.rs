//! Clients return to a restarted proxy with versions older than its first list. They resume as long as upstream has the
//! history, and receive each change once and in order (W3, W5–W7, F9).

use demo::{self, Pod, RequestKind, RunningDemoApiserver};
use futures_util::future::join_all;
use tokio::time::{Duration, Instant};
use verify::ApiserverGuarantee;

use crate::direct::{self, ALLOWANCE, App, Ended, History, PODS, Protocol};

/// Longer than such a watch waits.
const LONGER_THAN_HELD: Duration = Duration::from_secs(9);

/// A proxy whose feed of pods starts now.
async fn begun(up: &RunningDemoApiserver) -> App {
    let app = direct::app(up).run().await;
    app.discovered().await;
    assert!(app.get("/api/v1/pods?resourceVersion=0").await.is_cached());
    app
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_resume_after_proxy_restart_needs_no_relist() {
    let up = demo::upstream().pods(30).seed(210).run().await;
    let mut history = History::begin(&up, PODS).await;
    let first = direct::app(&up).run().await;
    let before =
        join_all((0..9).map(|n| first.watch(PODS).from(history.from).over(Protocol::ALL[n % 3]).into_future()));
    let before = before.await;
    let mut seen = Vec::new();
    for watch in &before {
        watch.reached(up.churn(7).await).await;
        seen.push(watch.events().last().map_or(0, |event| event.rv));
    }
    first.stop().await;
    up.churn(40).await;
    let second = begun(&up).await;
    up.churn(20).await;
    // One after the other, so that the first ones do not decide for the others.
    let mut again = Vec::new();
    for (n, from) in seen.iter().enumerate().rev() {
        again.push(second.watch(PODS).from(*from).over(Protocol::ALL[n % 3]).await);
        up.churn(3).await;
    }
    let last = up.churn(10).await;
    history.assert_delivered(&again, last).await;
    assert_eq!(
        (second.feed_requests("pods.v1", "initial").await, second.feed_requests("pods.v1", "relist").await),
        (1, 0),
        "one list"
    );
    assert!(second.feed_requests("pods.v1", "backfill").await <= 9);
}

/// Kubernetes issue 59848: a client that reads an old state acts on objects that have changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_resume_state_is_not_served_to_reads() {
    let up = demo::upstream().pods(30).seed(217).run().await;
    let old = up.revision();
    let last = up.churn(40).await;
    let app = direct::app(&up).sync_wait(Duration::from_millis(300)).fresh_wait_of_product().run().await;
    app.discovered().await;
    // Later changes do not arrive.
    up.faults().hush_watches();
    // The feed starts for this watch, even if the watch does not wait for it.
    let _ = app.watch(PODS).from(old).open().await;
    let version = old.to_string();
    app.until_feed("pods", "it begins there", |feed| feed["resourceVersion"] == version.as_str()).await;
    // The watch is refused until the feed is live, so the client retries.
    let late = direct::within("a watch", async {
        loop {
            if let Ok(watch) = app.watch(PODS).from(old).open().await {
                break watch;
            }
        }
    })
    .await;
    for path in [format!("{PODS}?resourceVersion=0"), PODS.to_owned()] {
        let list = app.get(&path).await;
        assert!(list.status == 200 && list.rv() >= last, "{path}: {} of {last}", list.rv());
    }
    let one = app.get("/api/v1/namespaces/default/pods/none?resourceVersion=0").await;
    assert!(!one.is_cached(), "nor one object of it, or that there is none");
    up.faults().unhush_watches();
    late.reached(last).await;
    let state_is_cached = || async { app.get(&format!("{PODS}?resourceVersion=0")).await.is_cached() };
    direct::eventually("once it is proven, it is", state_is_cached).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn too_old_resume_does_not_expire_recent_resumes() {
    // Clients that arrive within 300 ms share the start of a feed. On a busy machine the oldest may arrive long before
    // the others, so that the feed starts twice. That shows nothing, so the test retries.
    for _ in 0..20 {
        let up = demo::upstream().pods(30).seed(218).run().await;
        let ancient = up.revision();
        up.churn(10).await;
        // Storage still has the old states, but the window lacks the changes since.
        up.faults().forget_window();
        let mut history = History::begin(&up, PODS).await;
        up.churn(10).await;
        let app = direct::app(&up).run().await;
        let began = Instant::now();
        let old = app.watch(PODS).from(ancient).into_future();
        let recent = (0..9).map(|n| app.watch(PODS).from(history.from).over(Protocol::ALL[n % 3]).into_future());
        let (old, recent) = tokio::join!(old, join_all(recent));
        let joined = began.elapsed();
        assert_eq!(old.ended().await, Ended::Expired);
        let last = up.churn(10).await;
        history.assert_delivered(&recent, last).await;
        let lists = (app.feed_requests("pods.v1", "initial").await, app.feed_requests("pods.v1", "relist").await);
        if lists == (1, 0) {
            return;
        }
        assert!(joined >= Duration::from_millis(300), "one list: {lists:?}");
    }
    panic!("they never arrived together: nothing was tested");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_late_resumes_share_few_backfill_watches() {
    const FLEET: usize = 300;
    let up = demo::upstream().pods(30).seed(211).run().await;
    let mut history = History::begin(&up, PODS).await;
    up.churn(FLEET).await;
    let app = begun(&up).await;
    let last = up.churn(5).await;
    history.read_to(last).await;
    let mut versions: Vec<_> = history.all().iter().map(|event| event.rv - 1).take(FLEET).collect();
    fastrand::Rng::with_seed(211).shuffle(&mut versions);
    let fleet = join_all(versions.iter().map(|from| app.watch(PODS).from(*from).into_future())).await;
    history.assert_delivered(&fleet, last).await;
    let watches = app.feed_requests("pods.v1", "backfill").await;
    // Each client that resumes from before all earlier ones costs a watch: six on average for a random order, which
    // the machine also influences. The probability of more than 25 is below one in a billion.
    assert!((1..=25).contains(&watches), "{watches} watches for {FLEET} clients that resumed together");
    assert_eq!(app.feed_requests("pods.v1", "initial").await, 1);
}

/// Selections by key: a namespace, one object, or all others.
#[tokio::test]
async fn namespace_or_name_resume_receives_exact_events_from_backfill() {
    let up = demo::upstream().pods(6).seed(212).run().await;
    up.create_pod("default", "old");
    let mut history = History::begin(&up, PODS).await;
    up.update_pod("default", "old");
    for n in 0..4 {
        up.create_pod("default", &format!("new-{n}"));
        up.update_pod("default", &format!("new-{}", n / 2));
        up.create_pod("other", "old");
    }
    up.delete_pod("default", "new-0");
    up.delete_pod("default", "old");
    let app = begun(&up).await;
    let last = up.update_pod("default", "new-1");
    let last = up.update_pod("other", "old").max(last);
    let everything = (PODS, "");
    for (path, fields) in [
        everything,
        ("/api/v1/namespaces/default/pods", ""),
        ("/api/v1/namespaces/other/pods", ""),
        ("/api/v1/namespaces/default/pods", "metadata.name=old"),
        (PODS, "metadata.name=old"),
        (PODS, "metadata.name!=old"),
        (PODS, "metadata.namespace=default"),
    ] {
        let plan = app.watch(path).from(history.from);
        let watch = if fields.is_empty() { plan.await } else { plan.fields(fields).await };
        history.assert_delivered_filtered(&[watch], last).await;
    }
    assert_eq!(app.feed_requests("pods.v1", "backfill").await, 1);
}

/// A node's feed has the node's field selector, so the same selector of its agents needs no further request.
#[tokio::test]
async fn late_resume_on_node_proxy_receives_all_events() {
    let up = demo::upstream().pods(20).seed(217).run().await;
    let pod = |name: &str, node: &str, restarts| Pod::new("default", name).node(node).restarts(restarts);
    up.put_pod(&pod("stays", "node-1", 0));
    up.put_pod(&pod("leaves", "node-1", 0));
    let mut history = History::begin(&up, PODS).await;
    up.put_pod(&pod("stays", "node-1", 1));
    up.put_pod(&pod("comes", "node-2", 0));
    up.put_pod(&pod("leaves", "node-2", 1));
    up.put_pod(&pod("comes", "node-1", 1));
    let on_node = direct::app(&up).with(|config| config.serve.coverage.node = Some("node-1".into()));
    let app = on_node.preload("pods").run().await;
    app.until_feed("pods", "live", |feed| feed["state"] == "live").await;
    let last = up.put_pod(&pod("stays", "node-1", 2));
    for fields in ["spec.nodeName=node-1", "spec.nodeName=node-1,status.phase=Running"] {
        let watch = app.watch(PODS).fields(fields).from(history.from).await;
        history.assert_delivered_filtered(&[watch], last).await;
    }
}

/// Storage is queried whether an object matched the selector before its first change.
#[tokio::test]
async fn selector_resume_from_backfill_receives_exact_transitions() {
    let up = demo::upstream().pods(6).seed(213).run().await;
    let mut history = labelled(&up).await;
    let app = begun(&up).await;
    for selector in ["team=x", "team!=x", "team in (x,y)", "team", "!team"] {
        let watch = app.watch(PODS).labels(selector).from(history.from).await;
        history.assert_delivered_filtered(&[watch], up.revision()).await;
    }
    assert_eq!(
        (app.feed_requests("pods.v1", "backfill").await, app.feed_requests("pods.v1", "past_object").await),
        (1, 3),
        "for all of them"
    );
}

/// Upstream's window has the changes, but storage has forgotten the states before them.
#[tokio::test]
async fn selector_resume_without_past_objects_returns_410() {
    let up = demo::upstream().pods(6).seed(214).run().await;
    let mut history = labelled(&up).await;
    let app = begun(&up).await;
    let everything = app.watch(PODS).from(history.from).await;
    everything.reached(history.all().last().expect("a change").rv).await;
    up.faults().forget_history();
    for selector in ["team=x", "team!=x"] {
        let watch = app.watch(PODS).labels(selector).from(history.from).await;
        assert_eq!(watch.ended().await, Ended::Expired, "{selector}");
    }
    let unfiltered = app.watch(PODS).from(history.from).await;
    history.assert_delivered(&[unfiltered], up.revision()).await;
}

/// Pods that change their team, appear and disappear.
async fn labelled(up: &RunningDemoApiserver) -> History {
    let pod = |name: &str, team: &str| Pod::new("default", name).label("team", team);
    for (name, team) in [("stays", "x"), ("enters", "y"), ("leaves", "x"), ("goes", "x")] {
        up.put_pod(&pod(name, team));
    }
    let mut history = History::begin(up, PODS).await;
    for (name, team) in [("stays", "x"), ("enters", "x"), ("leaves", "y"), ("comes", "x"), ("stays", "x")] {
        up.put_pod(&pod(name, team).restarts(1));
    }
    up.put_pod(&Pod::new("default", "bare"));
    let last = up.delete_pod("default", "goes");
    history.read_to(last).await;
    history
}

#[tokio::test]
async fn resume_before_upstream_history_returns_410_from_memory() {
    let up = demo::upstream().pods(6).seed(214).run().await;
    let from = up.revision();
    let window = up.churn(20).await;
    up.faults().compact(window);
    let app = begun(&up).await;
    let watch = app.watch(PODS).from(from).await;
    assert_eq!(watch.ended().await, Ended::Expired);
    for protocol in Protocol::ALL {
        let (asked_at, watch) = (Instant::now(), app.watch(PODS).from(from - 1).over(protocol).await);
        assert_eq!(watch.ended().await, Ended::Expired, "{protocol:?}");
        assert!(asked_at.elapsed() < Duration::from_secs(1) + ALLOWANCE, "from memory");
    }
    assert_eq!(app.feed_requests("pods.v1", "backfill").await, 1);
}

#[tokio::test]
async fn refused_backfill_returns_410_without_retry() {
    let up = demo::upstream().pods(6).seed(215).run().await;
    let from = up.revision();
    up.churn(20).await;
    let app = begun(&up).await;
    up.faults().only("pods").answer(RequestKind::Watch, 100, 429, Some(1));
    let began = Instant::now();
    let fleet = join_all((0..50).map(|n| app.watch(PODS).from(from + n % 5).into_future())).await;
    for watch in &fleet {
        assert_eq!(watch.ended().await, Ended::Expired);
    }
    assert!(began.elapsed() < LONGER_THAN_HELD + ALLOWANCE, "{:?}", began.elapsed());
    assert_eq!(app.feed_requests("pods.v1", "backfill").await, 1);
}

/// Bookmarks are also correct in backfilled history: no matching event is missing before them.
#[tokio::test]
async fn bookmark_after_backfill_covers_all_earlier_events() {
    let up = demo::upstream().pods(6).seed(216).run().await;
    let mut history = History::begin(&up, PODS).await;
    up.churn(20).await;
    let app = begun(&up).await;
    let watch = app.watch(PODS).from(history.from).bookmarks().await;
    let last = up.churn(3).await;
    watch.reached(last).await;
    // A change of another resource advances the version.
    let beyond = up.put("configmaps", direct::configmap("default", "one", "1"));
    direct::followed(&up, "pods").await;
    up.faults().only("pods").bookmark();
    watch.reached(beyond).await;
    history.read_to(last).await.judge([&watch], &[ApiserverGuarantee::Reliable, ApiserverGuarantee::Bookmarkable]);
    assert!(watch.bookmarks().iter().all(|bookmark| bookmark.rv >= last), "{:?}", watch.bookmarks());
}
