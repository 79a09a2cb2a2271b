//! The harness boots the whole application in front of a demo upstream and looks at it as clients do.
//!
//! It keeps setup and waiting out of the tests. Every wait is for something that can be observed, and none is longer
//! than [`PATIENCE`]. What is promised within a time is waited for that time and [`ALLOWANCE`].

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

use demo::{ReceivedRequest, RunningUpstream};
use tokio::time::{Instant, sleep, timeout};

pub use app::{App, Plan, app, by, in_front_of};
pub use blocks::{Shell, blocks, commands, has, repository, skipped, with};
pub use client::{Answer, Client, Protocol, assert_alike};
pub use event::{Ended, Event};
pub use front::{Front, Near, Signer};
pub use history::{History, assert_same};
pub use io::{Dir, Io, Pair, Place, Trust, pair};
pub use listening::Listening;
pub use stub::{Behind, Failure, Reply, Stub, stub};
pub use watch::{Watch, WatchPlan};

/// The longest wait of any test. It ends a hang and decides nothing else.
pub const PATIENCE: Duration = Duration::from_secs(180);
pub use crate::ALLOWANCE;
/// How long a read waits for a proof, or for a version that it names (L3, L5).
pub const FRESH_MAX: Duration = Duration::from_secs(3);
/// The time between two looks at something that does not signal its changes.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// How often [`amid_churn`] changes pods at most: what changes has to be compared too, and slow machines would drown.
const CHURNS_MAX: usize = 400;

pub const PODS: &str = "/api/v1/pods";
pub const NODES: &str = "/api/v1/nodes";
pub const CONFIGMAPS: &str = "/api/v1/configmaps";
pub const WIDGETS: &str = "/apis/demo.kube-fanout.io/v1/widgets";

/// A client of the upstream itself, without the proxy in between.
pub fn straight(up: &RunningUpstream) -> Client {
    Client::to(Place::Tcp(up.address()))
}

/// Waits for the value, and fails if it takes longer than [`PATIENCE`].
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("not within {PATIENCE:?}: {what}"))
}

/// Waits for the value, and fails if it takes longer than is promised, with [`ALLOWANCE`].
pub async fn in_time<T>(promised: Duration, what: &str, future: impl Future<Output = T>) -> T {
    let late = |_| panic!("not within {promised:?} and {ALLOWANCE:?}: {what}");
    timeout(promised + ALLOWANCE, future).await.unwrap_or_else(late)
}

/// Looks again and again until `look` returns true, for things that do not signal their changes.
pub async fn eventually<F: Future<Output = bool>>(what: &str, look: impl Fn() -> F) {
    within(what, Box::pin(until(look))).await;
}

/// Does the same as [`eventually`], and fails if it takes longer than is promised.
pub async fn eventually_in_time<F: Future<Output = bool>>(promised: Duration, what: &str, look: impl Fn() -> F) {
    in_time(promised, what, Box::pin(until(look))).await;
}

/// The answer to a read that needs a proof. `path` says what is read, and may write before that what makes a proof
/// necessary. A read that has waited for [`FRESH_MAX`] is passed on or refused. On a machine that stalls this shows
/// nothing, so the read is repeated, for [`PATIENCE`] at most.
pub async fn proven(client: &Client, mut path: impl FnMut() -> String) -> Answer {
    let began = Instant::now();
    loop {
        let (path, asked) = (path(), Instant::now());
        let answer = client.get(&path).await;
        if answer.is_cached() || asked.elapsed() < FRESH_MAX || began.elapsed() >= PATIENCE {
            return answer;
        }
    }
}

async fn until<F: Future<Output = bool>>(look: impl Fn() -> F) {
    while !look().await {
        sleep(LOOK_AGAIN).await;
    }
}

/// Returns when the proxy's watch of a resource is open upstream. A fault that is ordered for open watches then
/// reaches it.
pub async fn followed(up: &RunningUpstream, plural: &str) {
    within("a watch upstream", up.until(|counts| counts.watches_open.of(plural) > 0)).await;
}

/// The queries of those requests for a path that came from a proxy, not from a test.
pub fn asked_by_proxies(up: &RunningUpstream, path: &str) -> Vec<String> {
    let ours = |seen: &ReceivedRequest| seen.headers.contains_key("kube-fanout-hops") && seen.uri.path() == path;
    up.requests().iter().filter(|seen| ours(seen)).map(|seen| seen.uri.query().unwrap_or_default().to_owned()).collect()
}

/// Does `work` while pods change, two every few milliseconds, until [`CHURNS_MAX`] is reached.
pub async fn amid_churn<T>(up: &RunningUpstream, work: impl Future<Output = T>) -> T {
    let churn = async {
        for _ in 0..CHURNS_MAX {
            up.churn(2).await;
            sleep(LOOK_AGAIN).await;
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        done = work => done,
        () = churn => unreachable!("it is pending"),
    }
}

/// A configmap with one value.
pub fn configmap(namespace: &str, name: &str, value: &str) -> serde_json::Value {
    serde_json::json!({"metadata": {"name": name, "namespace": namespace}, "data": {"value": value}})
}
