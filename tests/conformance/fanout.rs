//! The proxy serves many client watches from one upstream stream, and all receive the same events.

use std::collections::BTreeSet;
use std::path::Path;

use futures_util::future::join_all;
use serde_json::json;

use crate::bed::{self, BULK_PODS, Event, Frame, Plan, Plane, Proxy, RequestSpec, Watch, eventually, log_line};

const PODS: &str = "/api/v1/pods";
const WATCH_LIST: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

/// Writes directly to the apiserver, and then writes the last version to `until` for the watchers.
async fn churn(plane: &Plane, namespace: &str, ops: usize, until: &Path) -> Vec<u64> {
    let ops = ops.to_string();
    let args = ["--namespace", namespace, "--ops", &ops, "--objects", "40", "--workers", "4"];
    let done = plane.drive("churn").args(args).start().finish().await;
    let versions = done.versions();
    std::fs::write(until, versions.last().expect("something was written").to_string()).expect("a file");
    versions
}

#[tokio::test]
async fn thousand_watches_per_encoding_share_one_upstream_stream() {
    let Some(bed) = bed::alone().await else { return };
    bed.load().await;
    let proxy = Plan::tls().start(&bed).await;
    let before = bed.settled_watches("pods").await;
    let until = bed.file("until");
    let mut runs = Vec::new();
    for (query, count) in [("resourceVersion=now", 1000), (WATCH_LIST, 10)] {
        for form in ["json", "protobuf"] {
            let ready = bed.file("ready");
            let watches = bed.drive("watches").at(&proxy.target()).args(["--reference-server", bed.url()]);
            let watches = watches.args(["--path", PODS, "--query", query, "--accept", form, "--conns", "10"]);
            let watches = watches.args(["--count", &count.to_string()]).until(&until).file("--ready-file", &ready);
            runs.push((form, count, watches.start(), ready));
        }
    }
    for (_, _, run, ready) in &mut runs {
        run.awaits(ready).await;
    }
    eventually("one feed and four references are what the apiserver sees", async || {
        (bed.open_watches("pods").await == before + 5).then_some(())
    })
    .await;
    let started = std::time::Instant::now();
    let namespace = bed.namespace("thousand").await;
    let versions = churn(&bed, &namespace, 200, &until).await;
    for (form, count, run, _) in runs {
        let summary = run.finish().await.summary();
        let took = started.elapsed().as_secs_f64();
        assert_eq!(summary["equal"], count, "{summary}");
        assert_eq!(summary["ended"]["complete"], count, "{summary}");
        assert_eq!(summary["distinct_complete"], 1, "{summary}");
        let (events, bytes) = (summary["events"].as_u64().unwrap_or(0), summary["bytes"].as_f64().unwrap_or(0.0));
        assert!(events >= count * versions.len() as u64, "every acknowledged write is an event: {summary}");
        let mebibytes = bytes / f64::from(1 << 20);
        log_line(&format!(
            "{form}: {count} watches equal, {events} events, {mebibytes:.0} MiB, {took:.1} s after the writes began"
        ));
    }
    let streams = proxy.streams("pods.v1").await;
    log_line(&format!("streams upstream: {streams} for 2020 watches of {BULK_PODS} pods and more"));
    assert_eq!(streams, 1, "whatever the form");
    assert_eq!(proxy.feed_requests("relist").await, 0);
}

/// The bytes of the initial events, including the bookmark that ends them, and its version.
async fn initial_bytes(watch: &mut Watch) -> (Vec<u8>, u64) {
    let mut bytes = Vec::new();
    loop {
        let frame = watch.frame().await.expect("the initial events end with a bookmark");
        let Frame::Json(line) = &frame else { panic!("not requested: {frame:?}") };
        if line.starts_with(b"{\"type\":\"BOOKMARK\"") {
            let bookmark = Event::parse(&frame);
            assert!(bookmark.ends_initial(), "{}", bookmark.line);
            return (bytes, bookmark.version());
        }
        bytes.extend_from_slice(line);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_proxy_serves_500_watch_lists_from_one_upstream_stream() {
    let Some(bed) = bed::alone().await else { return };
    bed.load().await;
    let namespace = bed.namespace("cold").await;
    let load = ["--namespace", &namespace, "--pods", "100", "--size", "2500", "--prefix", "cold"];
    bed.drive("load").args(load).start().finish().await;
    let path = format!("/api/v1/namespaces/{namespace}/pods?watch=1&{WATCH_LIST}");
    let proxy = Plan::tls().start(&bed).await;
    let before = bed.settled_watches("pods").await;
    let started = std::time::Instant::now();
    // Several connections, so that no request waits for another one's response.
    let clients: Vec<_> = (0..5).map(|_| proxy.client()).collect();
    let requests = (0..500).map(|at| {
        let client = clients[at % clients.len()].clone();
        let path = path.clone();
        tokio::spawn(async move {
            let sent = started.elapsed();
            let mut watch = client.watch(RequestSpec::get(&path)).await;
            let initial = initial_bytes(&mut watch).await;
            (sent, started.elapsed(), watch, initial)
        })
    });
    let answered: Vec<_> = join_all(requests).await.into_iter().map(|done| done.expect("no panic")).collect();
    let (initial, _direct) = bed.direct().begin(RequestSpec::get(&path)).await;
    let lines = initial.iter().filter(|event| !event.ends_initial()).map(|event| event.line.as_bytes());
    let expected: Vec<u8> = lines.flatten().copied().collect();
    assert!(answered.iter().all(|(_, _, _, (bytes, _))| *bytes == expected), "all equal the apiserver's");
    let metrics = proxy.metrics().await;
    assert_eq!(proxy.streams("pods.v1").await, 1);
    assert_eq!(metrics.sum("kube_fanout_watches_open", &[]), 500);
    let initial = [("resource", "pods.v1"), ("purpose", "initial")];
    assert_eq!(metrics.sum("kube_fanout_feed_requests_total", &initial), 1);
    assert_eq!(proxy.forwarded().await, [], "no request was forwarded");
    eventually("the feed and the reference are what the apiserver sees", async || {
        (bed.open_watches("pods").await == before + 2).then_some(())
    })
    .await;
    let last_sent = answered.iter().map(|(sent, ..)| *sent).max().unwrap_or_default();
    let mut took: Vec<_> = answered.iter().map(|(_, done, ..)| *done).collect();
    took.sort();
    let (positions, proofs) = (proxy.feed_requests("position").await, proxy.feed_requests("equality").await);
    log_line(&format!(
        "500 watch-lists sent within {last_sent:.1?}: median {:.1?}, last {:.1?}, {} bytes each; upstream requests: \
         position {positions}, equality {proofs}",
        took[250],
        took[499],
        expected.len()
    ));
    everyone_sees_the_next_change(&bed, &namespace, answered.into_iter().map(|(_, _, watch, _)| watch).collect()).await;
}

async fn everyone_sees_the_next_change(bed: &Plane, namespace: &str, mut watches: Vec<Watch>) {
    let pod = json!({"metadata": {"name": "next"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    let created = bed.direct().create(&format!("/api/v1/namespaces/{namespace}/pods"), pod).await;
    let version = bed::version_of(&created);
    let next = join_all(watches.iter_mut().map(Watch::change)).await;
    assert!(next.iter().all(|event| event.kind == "ADDED" && event.version() == version));
    assert!(next.iter().all(|event| event.line == next[0].line), "one event, one form, the same bytes");
}

/// A stalled watch does not affect the others. When its client reads again, it continues where it was or receives a
/// 410.
async fn one_stuck_among_a_hundred(plan: Plan, bed: &Plane) -> (serde_json::Value, Proxy) {
    let proxy = plan.start(bed).await;
    let namespace = bed.namespace("stuck").await;
    let (until, ready) = (bed.file("until"), bed.file("ready"));
    let watches = bed.drive("watches").at(&proxy.target()).args(["--reference-server", bed.url()]);
    let path = format!("/api/v1/namespaces/{namespace}/pods");
    let watches = watches.args(["--path", &path, "--query", "resourceVersion=now", "--window", "16384"]);
    let watches = watches.args(["--count", "100", "--conns", "4", "--stuck", "1"]);
    let mut watches = watches.until(&until).file("--ready-file", &ready).start();
    watches.awaits(&ready).await;
    // The writer waits for the other watches, however slow this machine is, because they must not fall out of the
    // window too.
    let mut written = BTreeSet::new();
    for _ in 0..8 {
        // A write without a change returns the previous version.
        written.extend(churn(bed, &namespace, 50, &bed.file("so-far")).await);
        let events = i64::try_from(written.len()).expect("few");
        eventually("the other watches received the writes", async || {
            let handed = proxy.metrics().await.sum("kube_fanout_watch_events_total", &[]);
            (handed >= 99 * events).then_some(())
        })
        .await;
    }
    std::fs::write(&until, written.last().expect("something").to_string()).expect("a file");
    let summary = watches.finish().await.summary();
    assert_eq!(summary["ended"], json!({"complete": 99}), "{summary}");
    assert_eq!(summary["distinct_complete"], 1, "{summary}");
    assert_eq!(summary["different"], 0, "{summary}");
    (summary, proxy)
}

#[tokio::test]
async fn stuck_reader_resumes_and_does_not_delay_others() {
    let Some(bed) = bed::shared().await else { return };
    let (summary, _) = one_stuck_among_a_hundred(Plan::tls(), &bed).await;
    assert_eq!(summary["stuck_ended"], json!({"complete": 1}), "{summary}");
    log_line(&format!("{summary}"));
}

#[tokio::test]
async fn stuck_reader_beyond_history_window_receives_410() {
    // No other test writes pods, so the small window contains only this test's events.
    let Some(bed) = bed::alone().await else { return };
    let plan = Plan::tls().config("window:\n  events: 200\n");
    let (summary, proxy) = one_stuck_among_a_hundred(plan, &bed).await;
    assert_eq!(summary["stuck_ended"], json!({"error-event": 1}), "{summary}");
    let expired = proxy.metrics().await.sum("kube_fanout_watches_ended_total", &[("reason", "expired")]);
    assert_eq!(expired, 1);
    log_line(&format!("{summary}"));
}
