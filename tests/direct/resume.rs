//! A watch goes on where another one stopped, or is told that it cannot (W2, W6–W8, F5, L2).

use futures_util::future::join_all;
use kube_fanout::demo::{self, RunningUpstream};
use serde_json::Value;

use crate::direct::{self, CONFIGMAPS, Ended, Event, History, NODES, PODS, Protocol, assert_same, straight};

/// Writes pods of one namespace only, so that revisions follow each other without a gap.
fn write(up: &RunningUpstream, times: u64) -> u64 {
    (0..times).fold(up.revision(), |_, n| up.update_pod("default", &format!("p{}", n % 3)))
}

#[tokio::test]
async fn every_version_of_the_window_resumes_exactly_there_and_the_one_before_is_expired() {
    let up = demo::upstream().pods(3).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).window_events(5).run().await;
    let first = app.watch(PODS).from(history.from).await;
    let mut newest = history.from;
    for _ in 0..9 {
        newest = write(&up, 1);
        // One by one: all at once would push out what nobody has read yet.
        first.reached(newest).await;
    }
    history.upto(newest).await;
    let oldest = newest - 4;
    for protocol in Protocol::ALL {
        for from in [oldest - 1, oldest, oldest + 1, newest - 1] {
            let watch = app.watch(PODS).from(from).over(protocol).await;
            watch.reached(newest).await;
            assert_same(&format!("from {from} over {protocol:?}"), &watch.events(), &history.after(from));
        }
        let watch = app.watch(PODS).from(oldest - 2).over(protocol).await;
        assert_eq!(watch.ended().await, Ended::Expired, "{protocol:?}");
    }
    let open: Vec<_> = join_all([newest, newest + 1].map(|from| app.watch(PODS).from(from).into_future())).await;
    let last = write(&up, 3);
    for (from, watch) in [newest, newest + 1].iter().zip(&open) {
        watch.reached(last).await;
        assert_same(&format!("from {from}"), &watch.events(), &history.upto(last).await.after(*from));
    }
}

/// A feed that starts where a client had been is listed, and no list tells what a bookmark looks like.
#[tokio::test]
async fn the_first_bookmark_of_a_feed_that_a_client_came_back_to_is_as_upstreams() {
    let up = demo::upstream().pods(3).run().await;
    let app = direct::app(&up).run().await;
    app.discovered().await;
    for path in [PODS, NODES, CONFIGMAPS] {
        let from = up.revision();
        let resumed = app.watch(path).from(from).await;
        let mut bookmarks = Vec::new();
        for client in [&*app, &straight(&up)] {
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
async fn an_empty_ring_resumes_at_the_lists_version_and_not_before_what_upstream_remembers() {
    let up = demo::upstream().pods(3).run().await;
    up.faults().forget_history();
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    assert_eq!(app.get("/api/v1/pods?resourceVersion=0").await.rv(), history.from);
    let at_list = app.watch(PODS).from(history.from).await;
    let before = app.watch(PODS).from(history.from - 1).await;
    assert_eq!(before.ended().await, Ended::Expired);
    let last = write(&up, 2);
    at_list.reached(last).await;
    assert_same("from the list on", &at_list.events(), &history.upto(last).await.all());
}

#[tokio::test]
async fn an_expired_version_is_a_200_with_one_error_410_and_the_end() {
    let up = demo::upstream().pods(3).run().await;
    let from = up.revision();
    up.faults().forget_history();
    let app = direct::app(&up).run().await;
    for protocol in Protocol::ALL {
        for plan in [app.watch(PODS), app.watch(PODS).bookmarks(), app.watch(PODS).labels("app=api")] {
            let watch = plan.from(1).over(protocol).await;
            assert_eq!(watch.ended().await, Ended::Expired, "{protocol:?}");
            let message = format!("too old resource version: 1 ({from})");
            let said = format!(r#""status":"Failure","message":"{message}","reason":"Expired","code":410"#);
            let status = format!(r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},{said}}}"#);
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
async fn a_version_from_the_future_waits_for_it_in_silence() {
    let up = demo::upstream().pods(3).run().await;
    let mut history = History::begin(&up, PODS).await;
    let app = direct::app(&up).run().await;
    let future = history.from + 5;
    let open = Protocol::ALL.map(|protocol| app.watch(PODS).from(future).bookmarks().over(protocol).into_future());
    let watches = join_all(open).await;
    write(&up, 3);
    up.faults().bookmark();
    let last = write(&up, 5);
    for watch in &watches {
        watch.reached(last).await;
        assert_same("from the future", &watch.changes(), &history.upto(last).await.after(future));
        assert!(watch.bookmarks().iter().all(|bookmark| bookmark.rv > future), "{:?}", watch.bookmarks());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_and_the_watch_from_its_version_leave_no_gap() {
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
    let watches = Box::pin(direct::amid_churn(&up, open)).await;
    let last = up.churn(50).await;
    for (list, watch) in &watches {
        watch.reached(last).await;
        let (rv, seen) = (list.rv(), watch.changes());
        history.upto(last).await;
        let there: Vec<_> = history.state_at(rv).into_iter().map(|event| (event.key, event.rv)).collect();
        assert_eq!(list.items(), there, "the list is the state at {rv}");
        let upto_last = |events: Vec<Event>| events.into_iter().filter(|event| event.rv <= last).collect::<Vec<_>>();
        assert_same(&format!("from {rv}"), &upto_last(seen), &upto_last(history.after(rv)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_hops_between_replicas_and_upstream_sees_everything_once() {
    let up = demo::upstream().pods(60).seed(32).run().await;
    let mut history = History::begin(&up, PODS).await;
    let (one, two) = (direct::app(&up).run().await, direct::app(&up).run().await);
    // The rings of both begin before the first hop.
    let held = [one.watch(PODS).from(history.from).await, two.watch(PODS).from(history.from).await];
    let replicas = [(*one).clone(), (*two).clone(), direct::straight(&up)];
    let hops = async {
        let mut seen: Vec<Event> = Vec::new();
        for hop in 0..30 {
            let from = seen.last().map_or(history.from, |event| event.rv);
            let protocol = if hop % 3 == 2 { Protocol::Http1 } else { Protocol::ALL[hop % 2] };
            let watch = replicas[hop % 3].watch(PODS).from(from).over(protocol).await;
            watch.received(1 + hop % 7).await;
            seen.extend(watch.changes());
        }
        seen
    };
    let seen = direct::amid_churn(&up, hops).await;
    let last = seen.last().expect("something happened").rv;
    let expected: Vec<_> = history.upto(last).await.all().into_iter().filter(|event| event.rv <= last).collect();
    assert_same("all hops", &seen, &expected);
    assert_eq!(held.map(|watch| watch.end()), [None, None]);
}

#[tokio::test]
async fn clients_of_a_restarted_proxy_resume_where_they_were() {
    let up = demo::upstream().pods(30).seed(33).run().await;
    let mut history = History::begin(&up, PODS).await;
    let first = direct::app(&up).run().await;
    let from = join_all((0..6).map(|n| first.watch(PODS).from(history.from).over(Protocol::ALL[n % 3]).into_future()));
    let before = from.await;
    for watch in &before {
        watch.reached(up.churn(3).await).await;
    }
    first.stop().await;
    let seen: Vec<_> = before.iter().map(|watch| watch.events().last().map_or(0, |event| event.rv)).collect();
    up.churn(20).await;
    let second = direct::app(&up).run().await;
    let again = (0..6).map(|n| second.watch(PODS).from(seen[n]).over(Protocol::ALL[n % 3]).into_future());
    let again = join_all(again).await;
    let last = up.churn(5).await;
    history.upto(last).await;
    for (from, watch) in seen.iter().zip(&again) {
        watch.reached(last).await;
        assert_same("behind the restart", &watch.events(), &history.after(*from));
    }
    let lists = direct::asked_by_proxies(&up, PODS).into_iter().filter(|query| !query.contains("watch"));
    assert!(lists.count() <= 2, "a list for each of the two");
}
