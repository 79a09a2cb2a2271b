//! A watch resumes where another one stopped, or receives 410 (W2, W6–W8, F5, L2).

use base::now_ns;
use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use serde_json::Value;
use verify::ApiserverGuarantee;

use crate::direct::{self, CONFIGMAPS, Ended, History, NODES, PODS, Protocol, Watch, upstream_client};

/// Writes pods of one namespace only, so that revisions are consecutive.
fn write(up: &RunningDemoApiserver, times: u64) -> u64 {
    (0..times).fold(up.revision(), |_, n| up.update_pod("default", &format!("p{}", n % 3)))
}

#[tokio::test]
async fn resume_works_within_window_and_returns_410_before() {
    let up = demo::upstream().pods(3).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).window_events(5).run().await;
    let first = app.watch(PODS).from(history.from).await;
    let mut newest = history.from;
    for _ in 0..9 {
        newest = write(&up, 1);
        // One by one, because all at once would evict events that were not read yet.
        first.reached(newest).await;
    }
    history.read_to(newest).await;
    let oldest = newest - 4;
    let (mut within, mut before) = (vec![first], Vec::new());
    for protocol in Protocol::ALL {
        for from in [oldest - 1, oldest, oldest + 1, newest - 1] {
            within.push(app.watch(PODS).from(from).over(protocol).await);
        }
        before.push(app.watch(PODS).from(oldest - 2).over(protocol).await);
    }
    join_all(within.iter().map(|watch| watch.reached(newest))).await;
    join_all(before.iter().map(|watch| watch.reached_or_ended(newest))).await;
    within.extend(join_all([newest, newest + 1].map(|from| app.watch(PODS).from(from).into_future())).await);
    let last = write(&up, 3);
    join_all(within.iter().map(|watch| watch.reached(last))).await;
    let mut evidence = history.read_to(last).await.evidence();
    evidence.watches(within.iter().chain(&before)).window(5).overdue();
    evidence.shows(&[
        ApiserverGuarantee::Resumable,
        ApiserverGuarantee::Reliable,
        ApiserverGuarantee::Future,
        ApiserverGuarantee::Expired,
    ]);
    assert!(before.iter().all(|watch| watch.end() == Some(Ended::Expired)));
}

/// A feed that starts at a client's version lists, and a list does not show the form of a bookmark.
#[tokio::test]
async fn first_bookmark_of_resumed_feed_matches_upstream() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    for path in [PODS, NODES, CONFIGMAPS] {
        let from = up.revision();
        let resumed = app.watch(path).from(from).await;
        let mut bookmarks = Vec::new();
        for client in [&*app, &upstream_client(&up)] {
            let listed = client.watch(path).query("resourceVersion", &from.to_string()).initial_events().await;
            listed.listed().await;
            let mut bookmark = listed.bookmarks().remove(0).object();
            bookmark["metadata"]["resourceVersion"] = Value::Null;
            bookmarks.push(bookmark);
        }
        assert_eq!(bookmarks[0], bookmarks[1], "{path}");
        assert!(resumed.is_open());
    }
}

#[tokio::test]
async fn resume_without_history_starts_at_list_version_else_410() {
    let up = demo::upstream().pods(3).run().await;
    let mut history = History::begin(&up, PODS).await;
    let listed = write(&up, 1);
    history.read_to(listed).await;
    up.faults().forget_history();
    let app = direct::app(&up).run().await;
    assert_eq!(app.get("/api/v1/pods?resourceVersion=0").await.rv(), listed);
    let at_list = app.watch(PODS).from(listed).await;
    let before = app.watch(PODS).from(listed - 1).await;
    let last = write(&up, 2);
    at_list.reached(last).await;
    before.reached_or_ended(last).await;
    let mut evidence = history.read_to(last).await.evidence();
    evidence
        .watches([&at_list, &before])
        .forgotten(listed)
        .overdue()
        .shows(&[ApiserverGuarantee::Resumable, ApiserverGuarantee::Expired]);
    assert_eq!((at_list.end(), before.end()), (None, Some(Ended::Expired)));
}

#[tokio::test]
async fn watch_from_expired_version_gets_200_and_one_410_event() {
    let up = demo::upstream().pods(3).run().await;
    let from = up.revision();
    up.faults().forget_history();
    let app = direct::app(&up).run().await;
    for protocol in Protocol::ALL {
        for plan in [app.watch(PODS), app.watch(PODS).bookmarks(), app.watch(PODS).labels("app=api")] {
            let watch = plan.from(1).over(protocol).await;
            assert_eq!(watch.ended().await, Ended::Expired, "{protocol:?}");
            let message = format!("too old resource version: 1 ({from})");
            let fields = format!(r#""status":"Failure","message":"{message}","reason":"Expired","code":410"#);
            let status = format!(r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},{fields}}}"#);
            let bodies: Vec<_> = watch.events().iter().map(|event| event.body.clone()).collect();
            assert_eq!(bodies, [status]);
            if protocol != Protocol::WebSocket {
                assert_eq!(watch.headers["content-type"], "application/json");
                assert_eq!(watch.headers["kube-fanout-served"], "cache");
            }
        }
    }
}

#[tokio::test]
async fn watch_from_future_version_sends_nothing_until_then() {
    let up = demo::upstream().pods(3).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let future = history.from + 5;
    let open = Protocol::ALL.map(|protocol| app.watch(PODS).from(future).bookmarks().over(protocol).into_future());
    let watches = join_all(open).await;
    write(&up, 3);
    up.faults().bookmark();
    let last = write(&up, 5);
    join_all(watches.iter().map(|watch| watch.reached(last))).await;
    history
        .read_to(last)
        .await
        .judge(&watches, &[ApiserverGuarantee::Future, ApiserverGuarantee::Reliable, ApiserverGuarantee::Resumable]);
    for watch in &watches {
        assert!(watch.bookmarks().iter().all(|bookmark| bookmark.rv > future), "{:?}", watch.bookmarks());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_from_list_version_misses_no_event() {
    let up = demo::upstream().pods(60).seed(31).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let open = async {
        let mut watches = Vec::new();
        for n in 0..40 {
            let path = if n % 2 == 0 { "/api/v1/pods?resourceVersion=0" } else { PODS };
            let list = app.get(path).await;
            let rv = list.rv();
            watches.push((list, app.watch(PODS).from(rv).over(Protocol::ALL[n % 3]).await));
        }
        watches
    };
    let watches = Box::pin(direct::during_churn(&up, open)).await;
    let last = up.churn(50).await;
    let mut evidence = history.read_to(last).await.evidence();
    for (list, watch) in &watches {
        watch.reached(last).await;
        let listed = evidence.answer(list);
        evidence.resumed(watch, Some(listed));
    }
    evidence.shows(&[
        ApiserverGuarantee::ListSnapshot,
        ApiserverGuarantee::Continuity,
        ApiserverGuarantee::Resumable,
        ApiserverGuarantee::Reliable,
    ]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watch_moving_between_replicas_receives_each_event_once() {
    let up = demo::upstream().pods(60).seed(32).run().await;
    let mut history = History::begin(&up, PODS).await;
    let (one, two) = (direct::app(&up).run().await, direct::app(&up).run().await);
    let begun = history.from;
    // The rings of both start before the first hop.
    let open_watches = [one.watch(PODS).from(history.from).await, two.watch(PODS).from(history.from).await];
    let replicas = [(*one).clone(), (*two).clone(), direct::upstream_client(&up)];
    let hops = async {
        let (mut from, mut watches) = (begun, Vec::new());
        for hop in 0..30 {
            let protocol = if hop % 3 == 2 { Protocol::Http1 } else { Protocol::ALL[hop % 2] };
            let mut watch = replicas[hop % 3].watch(PODS).from(from).over(protocol).await;
            let changes = 1 + hop % 7;
            up.churn(changes).await;
            watch.received(changes).await;
            watch.leave().await;
            from = watch.changes().last().expect("something happened").rv;
            watches.push(watch);
        }
        watches
    };
    let hops = direct::during_churn(&up, hops).await;
    let last = up.churn(1).await;
    join_all(open_watches.iter().map(|watch| watch.reached(last))).await;
    let mut evidence = history.read_to(last).await.evidence();
    let mut before = None;
    for watch in &hops {
        before = Some(evidence.resumed(watch, before));
    }
    evidence.watches(&open_watches).shows(&[
        ApiserverGuarantee::Resumable,
        ApiserverGuarantee::Reliable,
        ApiserverGuarantee::Unique,
    ]);
    assert_eq!(open_watches.map(|watch| watch.end()), [None, None]);
}

#[tokio::test]
async fn clients_resume_after_proxy_restart() {
    let up = demo::upstream().pods(30).seed(33).run().await;
    let mut history = History::begin(&up, PODS).await;
    let first = direct::app(&up).run().await;
    let from = join_all((0..6).map(|n| first.watch(PODS).from(history.from).over(Protocol::ALL[n % 3]).into_future()));
    let before = from.await;
    for watch in &before {
        watch.reached(up.churn(3).await).await;
    }
    let stopped_ns = now_ns();
    first.stop().await;
    let seen: Vec<_> = before.iter().map(|watch| watch.events().last().map_or(0, |event| event.rv)).collect();
    up.churn(20).await;
    let second = direct::app(&up).run().await;
    let again = (0..6).map(|n| second.watch(PODS).from(seen[n]).over(Protocol::ALL[n % 3]).into_future());
    let again = join_all(again).await;
    let last = up.churn(5).await;
    join_all(again.iter().map(|watch| watch.reached(last))).await;
    let mut evidence = history.read_to(last).await.evidence();
    for (before, again) in before.iter().zip(&again) {
        let before = evidence.watch(before);
        evidence.resumed(again, Some(before));
    }
    evidence.broken("the first one stops", stopped_ns, &[]);
    evidence.shows(&[ApiserverGuarantee::Resumable, ApiserverGuarantee::Reliable, ApiserverGuarantee::Unique]);
    assert!(again.iter().all(Watch::is_open));
    assert!(direct::whole_lists(&up, PODS) <= 2, "a list for each of the two");
}
