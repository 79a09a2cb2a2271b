//! Several events at one version (W3, W17, L1, L2).
//!
//! When an etcd lease expires, all its Events are deleted at one revision, and upstream sends the deletions one by one.

use std::time::Duration;

use demo::RunningDemoApiserver;
use serde_json::json;
use tokio::time::sleep;

use crate::direct::{self, App, Event, PODS, Watch, eventually, followed};

const EVENTS: &str = "/api/v1/events";
const ANY: &str = "/api/v1/events?resourceVersion=0";
const LEASED: [&str; 4] = ["leased/l0", "leased/l1", "leased/l2", "leased/l3"];
const ROUNDS: usize = 20;
/// Number of attempts of a test that shows nothing if the machine stalls for as long as the proxy waits for the rest of
/// a transaction.
const TRIES_MAX: usize = 20;

fn add(up: &RunningDemoApiserver, key: &str) -> u64 {
    let (namespace, name) = key.split_once('/').expect("a key");
    up.put("events", json!({"metadata": {"name": name, "namespace": namespace}}))
}

fn lease(up: &RunningDemoApiserver) {
    for key in LEASED {
        add(up, key);
    }
}

/// A proxy that follows an Event that stays and four that expire, and the version of its list.
async fn leased() -> (RunningDemoApiserver, App, u64) {
    let up = demo::upstream().run().await;
    add(&up, "default/stays");
    lease(&up);
    let app = direct::app(&up).run().await;
    let from = app.get(EVENTS).await.rv();
    followed(&up, "events").await;
    (up, app, from)
}

fn count(items: &[(String, u64)]) -> usize {
    items.iter().filter(|(key, _)| key.starts_with("leased/")).count()
}

fn gone(watch: &Watch) -> Vec<String> {
    watch.changes().iter().filter(|event| event.kind == "DELETED").map(|event| event.key.clone()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_list_or_initial_state_has_a_part_of_the_deletions_of_one_version() {
    let (up, app, from) = leased().await;
    let watch = app.watch(EVENTS).from(from).await;
    for round in 0..ROUNDS {
        let at = up.delete_at_once("events", LEASED);
        let seen = Box::pin(async {
            loop {
                let list = app.get(ANY).await;
                let expected = if list.rv() >= at { 0 } else { LEASED.len() };
                assert_eq!(count(&list.items()), expected, "at {} of {at}", list.rv());
                let initial = app.watch(EVENTS).query("resourceVersion", "0").initial_events().await;
                initial.listed().await;
                let mark = initial.bookmarks()[0].rv;
                let changes = initial.changes();
                let added = changes.iter().filter(|event| event.kind == "ADDED" && event.key.starts_with("leased/"));
                assert_eq!(added.count(), if mark >= at { 0 } else { LEASED.len() }, "at {mark} of {at}");
                if list.rv() >= at {
                    return;
                }
            }
        });
        direct::within("their version", seen).await;
        // The version is reached with the first of them.
        let expected = (round + 1) * LEASED.len();
        let deleted = |event: &&Event| event.kind == "DELETED";
        watch.until("each of them is sent", |events| events.iter().filter(deleted).count() >= expected).await;
        assert_eq!(gone(&watch)[round * LEASED.len()..], LEASED);
        lease(&up);
        app.reached("events", up.revision()).await;
    }
}

/// The deletion is the last change, so nothing but silence shows that its version is complete.
#[tokio::test]
async fn current_read_after_the_deletions_has_all_of_them() {
    let (up, app, _) = leased().await;
    let at = up.delete_at_once("events", LEASED);
    let list = direct::proven(&app, || EVENTS.to_owned()).await;
    assert!(list.is_cached() && list.rv() >= at);
    assert_eq!(count(&list.items()), 0);
    let not_older = format!("{EVENTS}?resourceVersion={at}&resourceVersionMatch=NotOlderThan");
    let list = direct::proven(&app, || not_older.clone()).await;
    assert!(list.is_cached() && list.rv() >= at);
    assert_eq!(count(&list.items()), 0);
    // A client that has this version has all of it.
    let resumed = app.watch(EVENTS).from(at).await;
    let last = add(&up, "default/stays");
    resumed.reached(last).await;
    assert_eq!(resumed.changes().len(), 1);
}

#[tokio::test]
async fn stream_that_breaks_between_the_deletions_is_resumed_before_them() {
    for _ in 0..TRIES_MAX {
        let (up, app, from) = leased().await;
        let watch = app.watch(EVENTS).from(from).await;
        up.faults().stall_watches(2);
        let at = up.delete_at_once("events", LEASED);
        sleep(Duration::from_millis(20)).await;
        up.faults().drop_connections();
        let is_delayed = watch.changes().is_empty();
        watch.until("each of them is sent", |events| events.len() >= LEASED.len()).await;
        let last = add(&up, "default/stays");
        watch.reached(last).await;
        let queries = direct::proxy_queries(&up, EVENTS);
        let repeats = |query: &String| {
            let version = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")?.parse::<u64>().ok());
            query.contains("watch=true") && version.is_some_and(|version| version < at)
        };
        let is_resumed = queries.iter().any(repeats);
        assert_eq!(gone(&watch), LEASED);
        assert_eq!(count(&app.get(ANY).await.items()), 0);
        if is_delayed && is_resumed {
            return;
        }
    }
    panic!("the stream always broke too late");
}

/// Pods have no leases. If another upstream sends several events at one version, each is applied and delivered when it
/// arrives.
#[tokio::test]
async fn further_event_of_a_pod_at_one_version_is_applied_and_delivered_in_order() {
    const NAMES: [&str; 4] = ["l0", "l1", "l2", "l3"];
    let up = demo::upstream().pods(3).run().await;
    for name in NAMES {
        up.create_pod("leased", name);
    }
    let app = direct::app(&up).run().await;
    let from = app.get(PODS).await.rv();
    followed(&up, "pods").await;
    let watch = app.watch(PODS).from(from).await;
    up.faults().stall_watches(2);
    let at = up.delete_pods_at_once("leased", &NAMES);
    watch.until("two deletions", |events| events.len() >= 2).await;
    let any = app.get("/api/v1/pods?resourceVersion=0").await;
    assert_eq!((any.is_cached(), any.rv(), count(&any.items())), (true, at, 2));
    up.faults().resume_watches();
    let last = up.update_pod("default", "p0");
    watch.reached(last).await;
    assert_eq!(gone(&watch), LEASED);
    assert!(watch.changes()[..4].iter().all(|event| event.rv == at));
    eventually("the state has all of them", async || {
        let any = app.get("/api/v1/pods?resourceVersion=0").await;
        any.rv() >= last && count(&any.items()) == 0
    })
    .await;
}
