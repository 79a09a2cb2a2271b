//! After a permission is revoked, the watches that needed it end in bounded time, with the reason (R-THREAT-7).
//!
//! The test shows that a watch is live, revokes the permission, and writes matching objects until the watch ends. `make
//! revocation TRIALS=500 LOCAL_TRIALS=300` measures the time in many trials, `make test` in a few.

mod right;

use std::time::{Duration, Instant};

use futures_util::{StreamExt, future, stream};
use http::Method;
use serde_json::json;
use tokio::time::timeout;

use crate::bed::{self, Ended, Event, Http, RequestSpec, Times, Watch, eventually, log_line, number};
use right::{Bench, Loss, Right};

/// How long the test waits for a broken watch after its bound.
const SLACK: Duration = Duration::from_secs(10);

/// Whether the time is measured, with the default configuration. This needs an otherwise idle machine.
fn is_measured() -> bool {
    number("REVOCATION_TRIALS", 0) > 0
}

/// The time within which 99 of 100 watches end after the write, if the proxy verifies tokens and evaluates RBAC.
const LOCAL_P99: Duration = Duration::from_millis(100);
/// The number of concurrent trials of that. More would measure how the machine copes with them.
const LOCAL_AT_ONCE: usize = 2;

/// The time limit for the end of a watch.
fn bound(loss: Loss) -> Duration {
    loss.bound() + if is_measured() { Duration::ZERO } else { bed::ALLOWANCE }
}

/// A watch whose permission was revoked.
struct Outlived {
    /// The time from the revocation to the end.
    lasted: Duration,
    /// What violates the promise.
    wrong: Vec<String>,
    has_ended: bool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn revoked_permission_ends_watch() {
    let Some(bed) = bed::own("revocation").await else { return };
    let bench = Bench::new(bed, false).await;
    let trials = usize::try_from(number("REVOCATION_TRIALS", 1)).expect("a small number");
    let each = Loss::ALL.map(|loss| {
        let bench = &bench;
        async move {
            let trials = stream::iter(0..trials).map(|_| Box::pin(trial(bench, loss)));
            let outlived: Vec<_> = trials.buffer_unordered(loss.at_once()).collect().await;
            log_line(&format!("{loss:?}: {}", summary(&outlived)));
            let wrong = outlived.into_iter().flat_map(|outlived| outlived.wrong);
            wrong.map(|wrong| format!("{loss:?}: {wrong}")).collect::<Vec<_>>()
        }
    });
    let wrong = future::join_all(each).await.concat();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Bindings, roles, and what tokens are bound to: the proxy knows all of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_right_ends_watch_that_the_proxy_decided() {
    let Some(bed) = bed::own("revocation-local").await else { return };
    let bench = Bench::new(bed, true).await;
    let (count, mut wrong) = (number("REVOCATION_LOCAL_TRIALS", 0), Vec::new());
    for loss in Loss::LOCAL {
        let trials = stream::iter(0..count.max(1)).map(|_| Box::pin(trial(&bench, loss)));
        let (mut trials, mut outlived) = (trials.buffer_unordered(LOCAL_AT_ONCE), Vec::new());
        while outlived.last().is_none_or(|outlived: &Outlived| outlived.has_ended)
            && let Some(next) = trials.next().await
        {
            outlived.push(next);
        }
        log_line(&format!("{loss:?}, decided here: {}", summary(&outlived)));
        let p99 = Times::of(outlived.iter().map(|outlived| outlived.lasted).collect()).at(99);
        if count > 0 && p99 > LOCAL_P99 {
            wrong.push(format!("{loss:?}: p99 {p99:.1?}"));
        }
        wrong.extend(outlived.into_iter().flat_map(|one| one.wrong).map(|wrong| format!("{loss:?}: {wrong}")));
        bench.proxy.assert_sound();
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn trial(bench: &Bench, loss: Loss) -> Outlived {
    let right = Right::give(bench, loss).await;
    let caller = bench.proxy.client_of(&right.caller);
    let path = format!("/api/v1/namespaces/{}/configmaps", right.namespace);
    let version = bench.direct.version(&path).await;
    let request = RequestSpec::get(&format!("{path}?watch=1&resourceVersion={version}"));
    // A refusal may close the connection of the next attempt.
    let response = eventually("the watch is accepted", async || {
        caller.try_send(request.clone()).await.filter(|response| response.status() == 200)
    });
    let mut watch = Watch::new(response.await);
    bench.direct.create(&path, json!({"metadata": {"name": "map"}, "data": {"at": "0"}})).await;
    assert_eq!(watch.change().await.name(), "map", "the watch is live");

    let begun = Instant::now();
    let gone = right.take(bench).await;
    let lost = if bench.is_local { begun } else { gone };
    let map = format!("{path}/map");
    let mut written = vec![Instant::now()];
    let ended = {
        let writes = write(&bench.direct, &map, loss, &mut written);
        let patience = lost.saturating_duration_since(Instant::now()) + bound(loss) + SLACK;
        let reads = timeout(patience, read(&mut watch));
        tokio::pin!(writes, reads);
        match future::select(writes, reads).await {
            future::Either::Left((never, _)) => match never {},
            future::Either::Right((ended, _)) => ended,
        }
    };
    let lasted = Instant::now().saturating_duration_since(lost);
    let (mut wrong, has_ended) = (Vec::new(), ended.is_ok());
    match ended {
        Err(_) => wrong.push(format!("it has not ended after {lasted:.1?}")),
        Ok((events, end)) => {
            let late = |event: &&Event| number_of(event).is_some_and(|at| written[at] > lost + bound(loss));
            wrong.extend(events.iter().filter(late).map(|event| format!("a late event: {}", event.line)));
            let last = events.last().map_or_else(String::new, |event| event.line.clone());
            let code = events.last().filter(|event| event.kind == "ERROR").map(|event| event.object["code"].clone());
            if (code, end) != (Some(json!(loss.code())), Ended::Clean) {
                wrong.push(format!("it ended {end:?} with {last:?}"));
            }
            if lasted > bound(loss) {
                wrong.push(format!("it ended after {lasted:.1?}"));
            }
            wrong.extend(let_in(&caller, loss, &request).await);
        }
    }
    right.forget(bench).await;
    Outlived { lasted, wrong, has_ended }
}

/// Writes one object repeatedly, and records the start of each write. The object may disappear together with the
/// permission.
async fn write(direct: &Http, map: &str, loss: Loss, written: &mut Vec<Instant>) -> std::convert::Infallible {
    let mut pace = tokio::time::interval(loss.pace());
    loop {
        pace.tick().await;
        written.push(Instant::now());
        let change = json!({"data": {"at": (written.len() - 1).to_string()}}).to_string();
        let answer =
            direct.fetch(RequestSpec::get(map).with(Method::PATCH, "application/merge-patch+json", change)).await;
        assert!(answer.status == 200 || loss == Loss::NamespaceDeleted, "{map}: {}", answer.text());
    }
}

async fn read(watch: &mut Watch) -> (Vec<Event>, Ended) {
    watch.rest().await
}

/// The number of the write in an event.
fn number_of(event: &Event) -> Option<usize> {
    event.object["data"]["at"].as_str()?.parse().ok()
}

/// Opens the watch again, which must be refused with the expected code. Returns a description of any other answer.
async fn let_in(caller: &Http, loss: Loss, request: &RequestSpec) -> Option<String> {
    let again = RequestSpec { path: format!("{}&timeoutSeconds=1", request.path), ..request.clone() };
    let answered = eventually("it is answered", async || caller.try_send(again.clone()).await);
    let status = answered.await.status().as_u16();
    (status != loss.code()).then(|| format!("the next request gets {status}"))
}

fn summary(outlived: &[Outlived]) -> String {
    let lasted = Times::of(outlived.iter().map(|outlived| outlived.lasted).collect());
    let wrong = outlived.iter().filter(|outlived| !outlived.wrong.is_empty()).count();
    format!("{lasted} trials; {wrong} wrong")
}
