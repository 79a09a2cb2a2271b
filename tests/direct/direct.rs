//! The test harness: it boots the whole application in front of a demo upstream and observes it as a client.
//!
//! It keeps setup and waiting out of the tests. Every wait is for an observable condition, and none exceeds
//! [`PATIENCE`]. A guarantee with a time limit is awaited for that limit plus [`ALLOWANCE`].

mod app;
mod blocks;
mod client;
mod event;
mod evidence;
mod frames;
mod front;
mod history;
mod io;
mod listening;
mod records;
mod stub;
mod watch;

use std::time::Duration;

use demo::{ReceivedRequest, RunningDemoApiserver};
use tokio::time::{Instant, sleep, timeout};

pub use app::{App, Plan, app, by, in_front_of};
pub use blocks::{Shell, blocks, commands, has, repository, skipped, with};
pub use client::{Answer, Call, Client, Protocol, assert_alike, ends_initial_events};
pub use event::{Ended, Event};
pub use front::{Front, Near, Signer};
pub use history::{History, assert_same, without_ages};
pub use io::{Dir, Io, Pair, Place, Trust, pair};
pub use listening::Listening;
pub use stub::{Behind, Failure, Reply, Stub, stub};
pub use watch::{Watch, WatchPlan};

/// The longest wait of any test. It ends a hang and decides nothing else.
pub const PATIENCE: Duration = Duration::from_secs(180);
pub use crate::ALLOWANCE;
/// Maximum time that a read waits for a freshness proof, or for a version that it names (L3, L5).
pub const FRESH_MAX: Duration = Duration::from_secs(3);
/// The first polling interval for conditions that do not signal their changes. It doubles up to [`LOOK_AGAIN_MAX`],
/// because each look uses the processors for which other tests wait.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(40);
/// The interval between rounds of changes by [`during_churn`].
const CHURN_EVERY: Duration = Duration::from_millis(5);
/// Maximum number of rounds of changes by [`during_churn`]. Each change must also be compared, and slow machines would
/// not keep up.
const CHURNS_MAX: usize = 400;

pub const PODS: &str = "/api/v1/pods";
pub const NODES: &str = "/api/v1/nodes";
pub const CONFIGMAPS: &str = "/api/v1/configmaps";
pub const WIDGETS: &str = "/apis/demo.kube-fanout.io/v1/widgets";

/// A client of the upstream, without the proxy in between.
pub fn upstream_client(up: &RunningDemoApiserver) -> Client {
    Client::to(Place::Tcp(up.address()))
}

/// Awaits the value, and fails after [`PATIENCE`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// Awaits the value, and fails after the promised time plus [`ALLOWANCE`].
pub async fn in_time<T>(promised: Duration, what: &str, future: impl Future<Output = T>) -> T {
    let late = |_| panic!("not within {promised:?} and {ALLOWANCE:?}: {what}");
    timeout(promised + ALLOWANCE, future).await.unwrap_or_else(late)
}

/// Polls until `look` returns true, for conditions that do not signal their changes.
pub async fn eventually<F: Future<Output = bool>>(what: &str, look: impl Fn() -> F) {
    within(what, Box::pin(until(look))).await;
}

/// Like [`eventually`], but fails after the promised time plus [`ALLOWANCE`].
pub async fn eventually_in_time<F: Future<Output = bool>>(promised: Duration, what: &str, look: impl Fn() -> F) {
    in_time(promised, what, Box::pin(until(look))).await;
}

/// The response to a read that needs a freshness proof. `path` returns what to read, and may first write something that
/// makes a proof necessary. After [`FRESH_MAX`] the proxy forwards or refuses the read. On a machine that stalls this
/// proves nothing, so the read is repeated for at most [`PATIENCE`].
pub async fn proven(client: &Client, mut path: impl FnMut() -> String) -> Answer {
    let began = Instant::now();
    loop {
        let (path, started) = (path(), Instant::now());
        let answer = client.get(&path).await;
        if answer.is_cached() || started.elapsed() < FRESH_MAX || began.elapsed() >= PATIENCE {
            return answer;
        }
    }
}

async fn until<F: Future<Output = bool>>(look: impl Fn() -> F) {
    let mut pause = LOOK_AGAIN;
    while !look().await {
        sleep(pause).await;
        pause = (2 * pause).min(LOOK_AGAIN_MAX);
    }
}

/// Returns when the proxy's upstream watch of a resource is open, so that a fault for open watches reaches it.
pub async fn followed(up: &RunningDemoApiserver, plural: &str) {
    within("a watch upstream", up.until(|counts| counts.watches_open.of(plural) > 0)).await;
}

/// The requests for a path that came from a proxy, not from a test.
fn proxy_requests(up: &RunningDemoApiserver, path: &str) -> Vec<ReceivedRequest> {
    let ours = |seen: &ReceivedRequest| seen.headers.contains_key("kube-fanout-hops") && seen.uri.path() == path;
    up.requests().into_iter().filter(ours).collect()
}

fn query(seen: &ReceivedRequest) -> &str {
    seen.uri.query().unwrap_or_default()
}

/// Queries of the requests for a path that came from a proxy, not from a test.
pub fn proxy_queries(up: &RunningDemoApiserver, path: &str) -> Vec<String> {
    proxy_requests(up, path).iter().map(|seen| query(seen).to_owned()).collect()
}

/// The proxies' LISTs and watch-lists of the objects of a whole collection. A proof that a small collection is current
/// lists metadata, at any time, and is not one of them.
pub fn whole_lists(up: &RunningDemoApiserver, path: &str) -> usize {
    let is_whole = |seen: &&ReceivedRequest| {
        let query = query(seen);
        let is_list = !query.contains("watch=") || query.contains("sendInitialEvents");
        let accept = seen.headers.get("accept").and_then(|accept| accept.to_str().ok()).unwrap_or_default();
        let is_of_objects = !accept.contains("PartialObjectMetadata");
        is_list && is_of_objects && !query.contains("fieldSelector") && !query.contains("continue")
    };
    proxy_requests(up, path).iter().filter(is_whole).count()
}

/// How often feeds of a collection have opened a watch from a version. A proof's watch has a timeout instead.
pub fn resumed(up: &RunningDemoApiserver, path: &str) -> usize {
    let begins = |query: &&String| query.starts_with("watch=true&allowWatchBookmarks=true&resourceVersion=");
    proxy_queries(up, path).iter().filter(begins).count()
}

/// Fails if a core resource was listed since there were `before` lists. Lists to compare histories are no relists: a
/// stalled machine causes them, as a reopened stream without an event for a second is in doubt.
pub async fn assert_not_listed_again(up: &RunningDemoApiserver, app: &App, plural: &str, before: usize) {
    let lists = whole_lists(up, &format!("/api/v1/{plural}")) - before;
    // Read after the lists, because a comparison is counted before its first list. It may need a second one.
    let compared = app.feed_requests(&format!("{plural}.v1"), "mismatch").await;
    assert!(lists as u64 <= 2 * compared, "{lists} lists, {compared} comparisons");
}

/// Runs `work` while pods change, two every few milliseconds, for at most [`CHURNS_MAX`] rounds.
pub async fn during_churn<T>(up: &RunningDemoApiserver, work: impl Future<Output = T>) -> T {
    let churn = async {
        for _ in 0..CHURNS_MAX {
            up.churn(2).await;
            sleep(CHURN_EVERY).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        done = work => done,
        () = churn => unreachable!("it is pending"),
    }
}

/// A config map with one value.
pub fn configmap(namespace: &str, name: &str, value: &str) -> serde_json::Value {
    serde_json::json!({"metadata": {"name": name, "namespace": namespace}, "data": {"value": value}})
}
