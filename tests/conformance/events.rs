//! Events, for which the apiserver has no watch cache and sends no bookmarks (R-EVENT-4).

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::bed::{self, Plan, RequestSpec, eventually, log_line, version_of};
use crate::event_scenes::{self, EXPIRES_SOON, EventScene, LASTS, LastChange};

const WATCH_LIST: &str = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

fn event(namespace: &str, name: &str, times: &Value) -> Value {
    let mut event = event_scenes::event(namespace, name);
    for (key, time) in times.as_object().expect("an object") {
        event[key] = time.clone();
    }
    event
}

fn names(list: &Value) -> Vec<&str> {
    list["items"].as_array().into_iter().flatten().filter_map(|item| item["metadata"]["name"].as_str()).collect()
}

/// No Event is written after the deletion, so the proxy must find out without one that it was the last change.
#[tokio::test]
async fn reads_after_event_deletion_are_served_from_cache() {
    let Some(bed) = bed::own("events").await else { return };
    let proxy = Plan::plain().start(&bed).await;
    let (through, direct) = (proxy.client(), bed.direct());
    let namespace = bed.namespace("events").await;
    let path = format!("/api/v1/namespaces/{namespace}/events");
    for name in ["kept", "gone"] {
        direct.create(&path, event(&namespace, name, &json!({}))).await;
    }
    eventually("the feed serves", async || through.get(&path).await.is_cached().then_some(())).await;
    direct.delete(&format!("{path}/gone")).await;
    // Changes another resource, so that upstream's version is higher than that of the deletion.
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    direct.create(&maps, json!({"metadata": {"name": "later"}})).await;
    let list = eventually("a LIST from the cache", async || {
        let answer = through.get(&path).await;
        // Each list contains every write that completed before it, whichever server answers it.
        assert_eq!(names(&answer.value()), ["kept"]);
        answer.is_cached().then(|| answer.value())
    })
    .await;
    let mut watch = through.watch(RequestSpec::get(&format!("{path}?{WATCH_LIST}"))).await;
    let state = watch.initial().await;
    assert_eq!(state.iter().filter(|event| event.kind == "ADDED").map(bed::Event::name).collect::<Vec<_>>(), ["kept"]);
    assert!(state.last().is_some_and(|mark| mark.version() >= version_of(&list)));
    eventually("reads of any version see the deletion", async || {
        let any = through.get(&format!("{path}?resourceVersion=0")).await;
        (any.is_cached() && names(&any.value()) == ["kept"]).then_some(())
    })
    .await;
    proxy.assert_sound();
}

/// client-go informers start with a watch-list or with a list.
#[tokio::test]
async fn informers_sync_after_an_event_is_deleted_or_expires() {
    let scenes = [(LastChange::Deletion, LASTS, 3), (LastChange::Expiry, EXPIRES_SOON, 0)];
    join_all(scenes.map(async |(last, ttl, kept)| {
        let Some(bed) = bed::own_with(&format!("events-{last:?}"), &[ttl]).await else { return };
        let proxy = Plan::tls().start(&bed).await;
        let mut scene = EventScene::set(&bed, &proxy, last, kept).await;
        for watchlist in ["on", "off"] {
            // A list of any version may show an older state, and the informer's store has it for a moment.
            scene.change(watchlist == "on").await;
            let synced = scene.sync(&proxy.target(), watchlist, 3).await;
            assert_eq!(synced["objects"], kept);
            log_line(&format!("after a {last:?}, watch-list {watchlist}: {synced}"));
        }
        assert_eq!(proxy.streams("events.v1").await, 1, "the feed serves them");
        proxy.assert_sound();
    }))
    .await;
}

/// The writer of an Event chooses its times. A time that JSON cannot represent must not end other clients' watches.
#[tokio::test]
async fn out_of_range_event_time_does_not_end_json_watches() {
    let Some(bed) = bed::shared().await else { return };
    let proxy = Plan::plain().start(&bed).await;
    let (through, direct) = (proxy.client(), bed.direct());
    let namespace = bed.namespace("times").await;
    let path = format!("/api/v1/namespaces/{namespace}/events");
    let first = version_of(&direct.create(&path, event(&namespace, "first", &json!({}))).await);
    let mut watch = through.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion={first}"))).await;
    let times = ["9999-12-31T23:59:59-23:59", "0000-01-01T00:00:00+23:59", "0001-01-01T00:00:00Z"];
    for (n, time) in times.iter().enumerate() {
        let micro = time.replace(":59-", ":59.123456-").replace(":00+", ":00.123456+").replace("00Z", "00.000000Z");
        let times = json!({"firstTimestamp": time, "eventTime": micro, "reportingComponent": "test",
            "reportingInstance": "i", "action": "Test"});
        direct.create(&path, event(&namespace, &format!("t{n}"), &times)).await;
        let mut theirs = direct.watch(RequestSpec::get(&format!("{path}?watch=1&resourceVersion={first}"))).await;
        let mut expected = theirs.change().await;
        while expected.name() != format!("t{n}") {
            expected = theirs.change().await;
        }
        let actual = watch.change().await;
        assert_eq!(actual.line, expected.line, "{time}");
        log_line(&actual.object["firstTimestamp"].to_string());
    }
    let of = [("resource", "events.v1"), ("representation", "json"), ("mode", "unsupported_object")];
    assert_eq!(proxy.metrics().await.sum("kube_fanout_representation_mode", &of), 0);
    proxy.assert_sound();
}
