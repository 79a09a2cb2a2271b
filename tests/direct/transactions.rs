//! Several events have one version: no client receives that version before all of them have arrived (W3, L1, L2).
//!
//! When an etcd lease expires, all its keys are deleted at one revision. Here upstream's stream stalls between two of
//! these deletions. If the proxy announced their version then, a client that resumed from it would miss the second one.

use std::time::{Duration, Instant};

use demo::{self, RunningUpstream};

use crate::direct::{self, App, Ended, PODS, Watch, eventually, followed, within};

const LEASED: [&str; 4] = ["l0", "l1", "l2", "l3"];

/// An upstream whose open streams have sent two deletions out of four, and the version of all of them.
struct Amid {
    up: RunningUpstream,
    app: App,
    /// Opened before the deletions.
    watch: Watch,
    at: u64,
    /// When the streams stalled.
    since: Instant,
}

/// If a stream is silent for this long between them, the proxy requests the rest on another stream. If the machine
/// stalls as long, a test of the time before that shows nothing, and retries.
const ASKS_AFTER: Duration = Duration::from_secs(1);
/// Number of attempts of such a test.
const TRIES_MAX: usize = 20;

async fn amid(plan: impl FnOnce(direct::Plan) -> direct::Plan) -> Amid {
    amid_for(plan, 600).await.expect("its watch lasts longer than a test")
}

/// The same with a watch of `timeout_seconds`; `None` if it ended before two deletions had arrived.
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
async fn list_during_partial_transaction_has_previous_version() {
    for _ in 0..TRIES_MAX {
        if is_of_the_version_before().await {
            return;
        }
    }
    panic!("the rest had always come before a state was asked for");
}

/// Returns `false` if the proxy had requested the rest before the test requested a state.
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
    // A current read needs a proof, which arrives on another stream and completes the version.
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
async fn read_at_transaction_version_waits_for_all_events() {
    let Amid { app, at, up: _up, watch: _watch, .. } = amid(|plan| plan).await;
    let path = format!("/api/v1/pods?resourceVersion={at}&resourceVersionMatch=NotOlderThan");
    let listed = direct::proven(&app, || path.clone()).await;
    assert!(listed.is_cached() && listed.rv() >= at);
    assert_eq!(leased(&listed.items()), 0);
}

/// How long a watch waits for the rest after its timeout. Requesting the rest takes at least a second.
const REST_MAX: Duration = Duration::from_secs(3);

#[tokio::test]
async fn timed_out_watch_receives_rest_of_transaction_first() {
    const LASTS: u32 = 6;
    for _ in 0..TRIES_MAX {
        // A machine may stall until the watch's timeout, before the stream is between them.
        let Some(Amid { watch, up: _up, app: _app, .. }) = amid_for(|plan| plan, LASTS.into()).await else { continue };
        assert_eq!(watch.ended().await, Ended::Clean);
        let told = gone(&watch);
        // If the machine stalls for this long, the wait has timed out.
        let has_waited = watch.lived() >= Some(Duration::from_secs(LASTS.into()) + REST_MAX);
        if told == GONE || !has_waited {
            assert_eq!(told, GONE);
            return;
        }
    }
    panic!("it always waits in vain");
}

/// However late in the drain a watch must end, it has longer than [`REST_MAX`] to receive the rest before everything
/// closes.
const DRAIN: Duration = Duration::from_secs(12);

#[tokio::test]
async fn drained_watch_receives_rest_of_transaction_first() {
    // If the machine stalls until the drain ends, this shows nothing, and the test retries.
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
async fn broken_stream_resumes_before_partial_transaction() {
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
