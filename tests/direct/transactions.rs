//! Several events have one version: no client is given that version before all of them have come (W3, L1, L2).
//!
//! When a lease of etcd expires, all its keys are deleted at one revision. Here upstream's stream stalls between two of
//! these deletions. If the proxy announced their version then, a client that resumed from it would miss the second one.

use std::time::{Duration, Instant};

use demo::{self, RunningUpstream};

use crate::direct::{self, App, Ended, PODS, Watch, eventually, followed, within};

const LEASED: [&str; 4] = ["l0", "l1", "l2", "l3"];

/// An upstream whose open streams have told of two deletions out of four, and the version of all of them.
struct Amid {
    up: RunningUpstream,
    app: App,
    /// Opened before them.
    watch: Watch,
    at: u64,
    /// When the streams stalled.
    since: Instant,
}

/// If a stream is silent for so long between them, the proxy asks for the rest beside it. A test that wants to see the
/// time before that shows nothing on a machine that stalls for as long, and is tried again.
const ASKS_AFTER: Duration = Duration::from_secs(1);
/// How many times such a test is tried.
const TRIES_MAX: usize = 20;

async fn amid(plan: impl FnOnce(direct::Plan) -> direct::Plan) -> Amid {
    amid_for(plan, 600).await.expect("its watch lasts longer than a test")
}

/// The same with a watch of so many seconds; `None` if it was over before two deletions had come.
async fn amid_for(plan: impl FnOnce(direct::Plan) -> direct::Plan, timeout_seconds: i64) -> Option<Amid> {
    let up = demo::upstream().pods(3).run().await;
    for name in LEASED {
        up.create_pod("leased", name);
    }
    let app = plan(direct::app(&up)).run().await;
    let from = app.get(PODS).await.rv();
    followed(&up, "pods").await;
    let watch = app.watch(PODS).from(from).bookmarks().timeout_seconds(timeout_seconds).await;
    up.faults().stall_watches(2);
    let since = Instant::now();
    let at = up.delete_pods_at_once("leased", &LEASED);
    let two = async {
        while watch.is_open() && watch.changes().len() < 2 {
            watch.more_than(watch.events().len()).await;
        }
    };
    within("two deletions", two).await;
    let second = watch.changes().get(1)?.rv;
    assert_eq!(at, second, "of one version");
    Some(Amid { up, app, watch, at, since })
}

fn leased(items: &[(String, u64)]) -> usize {
    items.iter().filter(|(key, _)| key.starts_with("leased/")).count()
}

fn gone(watch: &Watch) -> Vec<String> {
    watch.changes().iter().filter(|event| event.kind == "DELETED").map(|event| event.key.clone()).collect()
}

const GONE: [&str; 4] = ["leased/l0", "leased/l1", "leased/l2", "leased/l3"];

#[tokio::test]
async fn a_state_is_of_the_version_before_until_all_of_them_have_come() {
    for _ in 0..TRIES_MAX {
        if is_of_the_version_before().await {
            return;
        }
    }
    panic!("the rest had always come before a state was asked for");
}

/// Returns `false` if the proxy had asked for the rest before it was asked for a state.
async fn is_of_the_version_before() -> bool {
    let Amid { up, app, watch, at, since } = amid(|plan| plan).await;
    let any = app.get("/api/v1/pods?resourceVersion=0").await;
    if any.rv() == at && since.elapsed() >= ASKS_AFTER {
        return false;
    }
    assert!(any.is_cached() && any.rv() == at - 1, "{} of {at}", any.rv());
    assert_eq!(leased(&any.items()), 4, "all of that version");
    let listed = app.watch(PODS).query("resourceVersion", "0").initial_events().await;
    listed.listed().await;
    if listed.bookmarks()[0].rv == at && since.elapsed() >= ASKS_AFTER {
        return false;
    }
    assert_eq!(listed.bookmarks()[0].rv, at - 1);
    let resumed = app.watch(PODS).from(any.rv()).await;
    // What has to be current is asked for, and comes by another stream: then all of them are known.
    let current = app.get(PODS).await;
    assert!(current.rv() >= at);
    assert_eq!(leased(&current.items()), 0);
    for watch in [&watch, &listed, &resumed] {
        watch.reached(at).await;
        eventually("each of them is told once", async || gone(watch) == GONE).await;
    }
    up.faults().resume_watches();
    let last = up.update_pod("default", "p0");
    for watch in [&watch, &listed, &resumed] {
        watch.reached(last).await;
        assert_eq!(gone(watch), GONE, "the stream that had stalled tells nobody again");
    }
    true
}

#[tokio::test]
async fn who_has_seen_their_version_elsewhere_waits_for_all_of_them() {
    let Amid { app, at, up: _up, watch: _watch, .. } = amid(|plan| plan).await;
    let path = format!("/api/v1/pods?resourceVersion={at}&resourceVersionMatch=NotOlderThan");
    let listed = direct::proven(&app, || path.clone()).await;
    assert!(listed.is_cached() && listed.rv() >= at);
    assert_eq!(leased(&listed.items()), 0);
}

/// How long a watch whose time is up waits for the rest. To ask for it takes a second at least.
const REST_MAX: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_watch_whose_time_is_up_between_them_is_told_the_rest_first() {
    const LASTS: u32 = 6;
    for _ in 0..TRIES_MAX {
        // A machine may stall for so long that its time is up before it is between them.
        let Some(Amid { watch, up: _up, app: _app, .. }) = amid_for(|plan| plan, LASTS.into()).await else { continue };
        assert_eq!(watch.ended().await, Ended::Clean);
        let told = gone(&watch);
        // Where the machine stalls for so long, it has waited in vain.
        let has_waited = watch.lived() >= Some(Duration::from_secs(LASTS.into()) + REST_MAX);
        if told == GONE || !has_waited {
            assert_eq!(told, GONE);
            return;
        }
    }
    panic!("it always waits in vain");
}

/// However late a watch is told to leave, it has longer than [`REST_MAX`] to hear the rest before everything closes.
const DRAIN: Duration = Duration::from_secs(12);

#[tokio::test]
async fn a_watch_that_is_sent_away_between_them_is_told_the_rest_first() {
    // Of a machine that stalls until the drain is over this shows nothing, and it is tried again.
    for _ in 0..TRIES_MAX {
        let Amid { app, watch, up: _up, .. } = amid(|plan| plan.drain(DRAIN)).await;
        let stopping = tokio::spawn(app.stop());
        let ended = watch.ended().await;
        let told = gone(&watch);
        let stopped = stopping.await.expect("it stops");
        if stopped.took < DRAIN {
            assert_eq!((ended, told), (Ended::Clean, GONE.map(str::to_owned).to_vec()));
            return;
        }
    }
    panic!("the drain was always over before the rest came");
}

#[tokio::test]
async fn a_stream_that_breaks_between_them_is_resumed_before_them() {
    for _ in 0..TRIES_MAX {
        let Amid { up, app, watch, at, since } = amid(|plan| plan).await;
        up.faults().drop_connections();
        watch.until("each of them is told", |events| events.len() >= 4).await;
        let is_late = since.elapsed() >= ASKS_AFTER;
        let asked = direct::asked_by_proxies(&up, PODS);
        let resumed = format!("resourceVersion={}", at - 1);
        let is_resumed = asked.iter().any(|query| query.ends_with(&resumed));
        assert!(is_resumed || is_late, "{asked:?}");
        let last = up.update_pod("default", "p0");
        watch.reached(last).await;
        assert_eq!(gone(&watch), GONE);
        assert_eq!(leased(&app.get("/api/v1/pods?resourceVersion=0").await.items()), 0);
        if is_resumed {
            return;
        }
    }
    panic!("the rest had always come before the stream broke");
}
