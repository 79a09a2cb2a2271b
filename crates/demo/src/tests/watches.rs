//! Tests of WATCH: where it starts, what it shows, and how it ends.

use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;

use super::super::{Pod, RequestKind, upstream};
use super::Client;
use super::client::End;

const PODS: &str = "/api/v1/namespaces/t1/pods?watch=1";

#[tokio::test]
async fn watch_from_a_version_sends_only_later_events() {
    let up = upstream().run().await;
    let start = up.create_pod("t1", "a");
    let path = format!("{PODS}&resourceVersion={}", start - 1);
    let mut watches = [Client::of(&up).watch(&path).await, Client::of(&up).http2().watch(&path).await];
    let updated = up.update_pod("t1", "a");
    up.create_pod("t2", "elsewhere");
    let deleted = up.delete_pod("t1", "a");
    for watch in &mut watches {
        assert_eq!(watch.event().await, format!("ADDED a @{start}"));
        assert_eq!(watch.event().await, format!("MODIFIED a @{updated}"));
        assert_eq!(watch.event().await, format!("DELETED a @{deleted}"));
    }
    drop(watches);
    up.until(|counts| counts.watches_open.total() == 0).await;
    up.stop().await;
}

#[tokio::test]
async fn watch_after_history_loss_receives_410_in_the_stream() {
    let up = upstream().run().await;
    let start = up.create_pod("t1", "a");
    let now = up.update_pod("t1", "a");
    up.faults().forget_history();
    let mut watch = Client::of(&up).watch(&format!("{PODS}&resourceVersion={start}")).await;
    let error = watch.next().await;
    assert_eq!((&error["type"], &error["object"]["code"]), (&json!("ERROR"), &json!(410)));
    assert_eq!(error["object"]["message"], format!("too old resource version: {start} ({now})"));
    assert_eq!(watch.end().await, End::Clean);
    let mut watch = Client::of(&up).watch(&format!("{PODS}&resourceVersion={now}")).await;
    let next = up.update_pod("t1", "a");
    assert_eq!(watch.event().await, format!("MODIFIED a @{next}"));
}

#[tokio::test]
async fn initial_events_are_sorted_by_key_and_end_with_a_bookmark() {
    let up = upstream().run().await;
    let (b, a) = (up.create_pod("t1", "b"), up.create_pod("t1", "a"));
    for query in ["&allowWatchBookmarks=1", "&allowWatchBookmarks=1&resourceVersion=0"] {
        let mut watch = Client::of(&up).http2().watch(&format!("{PODS}{query}")).await;
        assert_eq!(watch.event().await, format!("ADDED a @{a}"));
        assert_eq!(watch.event().await, format!("ADDED b @{b}"));
        let bookmark = watch.try_next().await.unwrap();
        let metadata = format!(r#"{{"resourceVersion":"{a}","annotations":{{"k8s.io/initial-events-end":"true"}}}}"#);
        let zero = r#""spec":{"containers":null},"status":{}"#;
        let object = format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata},{zero}}}"#);
        let expected = format!("{{\"type\":\"BOOKMARK\",\"object\":{object}}}\n");
        assert_eq!(bookmark, expected);
    }
    let mut without = Client::of(&up).watch(PODS).await;
    without.event().await;
    without.event().await;
    let c = up.create_pod("t1", "c");
    assert_eq!(without.event().await, format!("ADDED c @{c}"));
    assert_eq!(up.counts().watch_lists.of("pods"), 3);

    let none = format!("{PODS}&sendInitialEvents=1&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=1");
    let none = format!("{none}&labelSelector=none%3D1");
    assert_eq!(Client::of(&up).watch(&none).await.event().await, format!("BOOKMARK - @{c}"));
}

#[tokio::test]
async fn object_leaving_selector_is_deleted_and_entering_is_added() {
    let up = upstream().run().await;
    let pod = Pod::new("t1", "a").label("app", "x");
    let start = up.put_pod(&pod);
    let mut watch = Client::of(&up).watch(&format!("{PODS}&labelSelector=app%3Dx&resourceVersion={start}")).await;
    let left = up.put_pod(&pod.clone().label("app", "y"));
    let gone = watch.next().await;
    assert_eq!((&gone["type"], &gone["object"]["metadata"]["labels"]["app"]), (&json!("DELETED"), &json!("x")));
    assert_eq!(gone["object"]["metadata"]["resourceVersion"], left.to_string());
    up.put_pod(&pod.clone().label("app", "y").restarts(1));
    let back = up.put_pod(&pod);
    assert_eq!(watch.event().await, format!("ADDED a @{back}"));

    let mut by_node =
        Client::of(&up).watch(&format!("{PODS}&fieldSelector=spec.nodeName%3Dn9&resourceVersion={back}")).await;
    let moved = up.put_pod(&pod.clone().node("n9"));
    assert_eq!(by_node.event().await, format!("ADDED a @{moved}"));
}

#[tokio::test]
async fn watch_before_bounded_history_fails_with_the_oldest_version() {
    let up = upstream().ring_events_max(3).run().await;
    let first = up.create_pod("t1", "p0");
    for n in 1..5 {
        up.create_pod("t1", &format!("p{n}"));
    }
    let mut watch = Client::of(&up).watch(&format!("{PODS}&resourceVersion={first}")).await;
    let text = format!("too old resource version: {first} ({})", first + 1);
    assert_eq!(watch.next().await["object"]["message"], text);
    let mut boundary = Client::of(&up).watch(&format!("{PODS}&resourceVersion={}", first + 1)).await;
    assert_eq!(boundary.event().await, format!("ADDED p2 @{}", first + 2));
    let mut events = Client::of(&up).watch("/api/v1/events?watch=1&resourceVersion=1").await;
    assert_eq!(events.next().await["object"]["message"], "The resourceVersion for the provided watch is too old.");
}

#[tokio::test]
async fn watch_at_future_version_waits_or_receives_504() {
    let up = upstream().future_wait(Duration::from_millis(20)).run().await;
    let future = up.revision() + 2;
    let initial = "&sendInitialEvents=1&resourceVersionMatch=NotOlderThan";
    let mut refused = Client::of(&up).watch(&format!("{PODS}&resourceVersion={}{initial}", future + 1000)).await;
    assert_eq!(refused.next().await["object"]["code"], 504);
    assert_eq!(refused.end().await, End::Clean);

    let mut waiting = Client::of(&up).watch(&format!("{PODS}&resourceVersion={future}")).await;
    up.until(|counts| counts.watches_open.total() == 1).await;
    up.create_pod("t1", "skipped");
    assert_eq!(up.create_pod("t1", "skipped-too"), future);
    let seen = up.create_pod("t1", "seen");
    assert_eq!(waiting.event().await, format!("ADDED seen @{seen}"));
}

#[tokio::test(start_paused = true)]
async fn watch_timeout_sends_a_bookmark_and_ends_the_stream() {
    let up = upstream().in_memory();
    let client = Client::in_memory(&up);
    let start = up.create_pod("t1", "a");
    let mut over = client.watch(&format!("{PODS}&resourceVersion={start}&timeoutSeconds=-1")).await;
    assert_eq!(over.end().await, End::Clean);
    let began = Instant::now();
    let elsewhere = up.put("configmaps", json!({"metadata": {"name": "x", "namespace": "t1"}}));
    let query = format!("&resourceVersion={start}&allowWatchBookmarks=1&timeoutSeconds=3");
    let mut idle = client.watch(&format!("{PODS}{query}")).await;
    let mut asleep =
        client.watch(&format!("{PODS}&resourceVersion={elsewhere}&allowWatchBookmarks=1&timeoutSeconds=3")).await;
    assert_eq!(idle.event().await, format!("BOOKMARK - @{elsewhere}"));
    assert_eq!(began.elapsed().as_secs(), 1, "two seconds before the end");
    assert_eq!(idle.end().await, End::Clean);
    assert_eq!(began.elapsed().as_secs(), 3);
    assert_eq!(asleep.end().await, End::Clean);
}

#[tokio::test]
async fn periodic_bookmarks_carry_the_last_sent_version() {
    let up = upstream().bookmark_period(Duration::from_millis(10)).run().await;
    let start = up.create_pod("t1", "a");
    let mut watch = Client::of(&up).watch(&format!("{PODS}&resourceVersion={start}&allowWatchBookmarks=1")).await;
    let written = up.create_pod("t1", "b");
    assert_eq!(watch.event().await, format!("ADDED b @{written}"));
    assert_eq!(watch.event().await, format!("BOOKMARK - @{written}"));
    assert_eq!(watch.event().await, format!("BOOKMARK - @{written}"));
}

#[tokio::test]
async fn table_watch_sends_column_definitions_once() {
    let up = upstream().run().await;
    let start = up.create_pod("t1", "a");
    let client = Client::of(&up).accept("application/json;as=Table;v=v1;g=meta.k8s.io");
    let mut watch = client.watch(&format!("{PODS}&resourceVersion={}", start - 1)).await;
    let first = watch.next().await;
    assert_eq!(first["object"]["columnDefinitions"].as_array().unwrap().len(), 9);
    up.update_pod("t1", "a");
    let second = watch.next().await;
    assert_eq!(second["object"]["columnDefinitions"], json!(null));
    assert_eq!(second["object"]["rows"][0]["cells"][3], "1");
}

#[tokio::test]
async fn deprecated_watch_paths_work() {
    let up = upstream().run().await;
    let (a, _) = (up.create_pod("t1", "a"), up.create_pod("t1", "b"));
    let mut one = Client::of(&up).watch("/api/v1/watch/namespaces/t1/pods/a").await;
    assert_eq!(one.event().await, format!("ADDED a @{a}"));
    let updated = up.update_pod("t1", "a");
    assert_eq!(one.event().await, format!("MODIFIED a @{updated}"));
    let refused = Client::of(&up).get("/api/v1/watch/namespaces/t1/pods/a?fieldSelector=metadata.name%3Db").await;
    assert_eq!(refused.json()["message"], "fieldSelector metadata.name doesn't match requested name");
    let unread = Client::of(&up).get("/api/v1/watch").await;
    let why = "failed to create RequestInfo: unable to determine kind and namespace from url, /api/v1/watch";
    assert_eq!(unread.text(), format!("Internal Server Error: \"/api/v1/watch\": {why}\n"));
    assert_eq!((unread.status.as_u16(), unread.headers.get("cache-control")), (500, None));
}

#[tokio::test]
async fn churn_keeps_pod_count_and_watch_receives_every_version() {
    let up = upstream().pods(200).run().await;
    let start = up.revision();
    let mut watch = Client::of(&up).http2().watch(&format!("/api/v1/pods?watch=1&resourceVersion={start}")).await;
    let last = up.churn(500).await;
    assert_eq!(last, start + 500);
    for revision in start + 1..=last {
        assert!(watch.event().await.ends_with(&format!("@{revision}")));
    }
    let pods = up.keys("pods").len();
    assert!((170..=230).contains(&pods), "{pods}");
    let counts = up.counts();
    assert_eq!((counts.watches_opened.of("pods"), counts.lists.total()), (1, 0));
    assert!(up.requests()[0].uri.path().ends_with("/pods"));
    up.faults().only("pods").answer(RequestKind::List, 1, 429, Some(2));
    let refused = Client::of(&up).get("/api/v1/pods").await;
    assert_eq!((refused.status.as_u16(), &refused.json()["details"]["retryAfterSeconds"]), (429, &json!(2)));
    assert_eq!(Client::of(&up).get("/api/v1/pods").await.status, 200);
}
