//! The apiserver is killed with SIGKILL and restarted. No watch ends, no acknowledged write is lost or sent twice, and
//! the proxy sends few upstream requests.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::bed::{self, Outcome, Plan, Plane, Proxy, eventually, log_line};

pub const COUNT: usize = 20;

/// The minimum of a feed's first backoff, and the maximum of any. The minimum doubles with each attempt
/// (docs/CONFIG.md, "Fixed limits").
const PAUSES: (Duration, Duration) = (Duration::from_millis(800), Duration::from_secs(30));
/// The number of additional refusals of a feed, by an apiserver that listens before it is ready.
pub const REFUSALS_MAX: i64 = 2;

/// Watches through the proxy that record every frame, up to the version that is written to `until`.
pub async fn watches(plane: &Plane, proxy: &Proxy, path: &str, form: &str, until: &Path) -> crate::bed::Driving {
    let ready = plane.file("ready");
    let watches = plane.drive("watches").at(&proxy.target()).args(["--path", path, "--accept", form, "--verbose"]);
    let watches = watches.args(["--query", "resourceVersion=now&allowWatchBookmarks=true"]);
    let watches = watches.args(["--count", &COUNT.to_string(), "--conns", "2"]);
    let mut watches = watches.until(until).file("--ready-file", &ready).start();
    watches.awaits(&ready).await;
    watches
}

/// The versions of the changes that each watch received, in order of arrival.
fn versions_by_watch(outcome: &Outcome) -> HashMap<u64, Vec<u64>> {
    let mut versions_by_watch: HashMap<u64, Vec<u64>> = HashMap::new();
    for line in outcome.lines().filter(|line| line["kind"] == "frame" && line["type"] != "BOOKMARK") {
        let (watch, version) = (line["watch"].as_u64().expect("a watch"), line["rv"].as_u64().expect("a version"));
        versions_by_watch.entry(watch).or_default().push(version);
    }
    versions_by_watch
}

/// Panics unless no watch ended, all received the same, and each received every acknowledged version exactly once and
/// in order.
pub fn assert_unbroken(outcome: &Outcome, acknowledged: &[u64]) {
    let summary = outcome.summary();
    assert_eq!(summary["ended"], json!({"complete": COUNT}), "{summary}");
    assert_eq!(summary["distinct_complete"], 1, "{summary}");
    let received = versions_by_watch(outcome);
    assert_eq!(received.len(), COUNT);
    for (watch, versions) in received {
        assert!(versions.is_sorted_by(|a, b| a < b), "watch {watch}: in order, and each once: {versions:?}");
        let missing: Vec<_> = acknowledged.iter().filter(|version| versions.binary_search(version).is_err()).collect();
        assert!(missing.is_empty(), "watch {watch} did not receive {missing:?}");
    }
}

/// The proxy's upstream requests, except for watches.
pub async fn questions(proxy: &Proxy) -> Vec<(String, i64)> {
    let metrics = proxy.metrics().await;
    let all = metrics.series("kube_fanout_feed_requests_total", &[]);
    let mut all: Vec<_> = all.map(|(labels, count)| (labels.to_owned(), count)).collect();
    all.sort_by(|(a, _), (b, _)| a.cmp(b));
    all
}

/// The number of backoffs within the downtime of an apiserver. After each of them a feed may have sent a request that
/// failed.
pub fn pauses_within(away: Duration) -> i64 {
    let (mut pauses, mut next, mut left) = (0, PAUSES.0, away);
    while let Some(rest) = left.checked_sub(next) {
        (pauses, next, left) = (pauses + 1, (next * 2).min(PAUSES.1), rest);
    }
    pauses
}

fn write(until: &PathBuf, version: u64) {
    std::fs::write(until, version.to_string()).expect("a file");
}

/// The cluster-wide lists of a resource that this apiserver has answered since its start.
async fn lists(plane: &Plane, resource: &str) -> i64 {
    let labels = [("verb", "LIST"), ("resource", resource), ("scope", "cluster"), ("code", "200")];
    plane.metrics().await.sum("apiserver_request_total", &labels)
}

#[tokio::test]
async fn apiserver_crash_ends_no_watch_and_costs_one_relist_per_feed() {
    let Some(bed) = bed::own("restarts").await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let (busy, idle) = (bed.file("until"), bed.file("until"));
    let pods = [
        watches(&bed, &proxy, "/api/v1/pods", "json", &busy).await,
        watches(&bed, &proxy, "/api/v1/pods", "protobuf", &busy).await,
    ];
    let quiet = watches(&bed, &proxy, "/api/v1/configmaps", "json", &idle).await;
    let initial = proxy.feed_requests("initial").await;
    let churn = bed.drive("churn").args(["--namespace", "default", "--ops", "600", "--rate", "60", "--workers", "2"]);
    let churn = churn.args(["--objects", "30"]).start();
    churn.wrote(100).await;
    bed.kill_apiserver().await;
    let killed = Instant::now();
    bed.start_apiserver().await;
    let away = killed.elapsed();
    log_line(&format!("the apiserver was away for {:.1} s", away.as_secs_f64()));
    let churn = churn.finish().await;
    let failed = churn.lines().filter(|line| !line["error"].is_null()).count();
    let acknowledged = churn.versions();
    write(&busy, *acknowledged.last().expect("it wrote"));
    for watches in pods {
        assert_unbroken(&watches.finish().await, &acknowledged);
    }
    let map = json!({"metadata": {"name": "after"}});
    let last = bed::version_of(&bed.direct().create("/api/v1/namespaces/default/configmaps", map).await);
    write(&idle, last);
    assert_unbroken(&quiet.finish().await, &[last]);
    let (writes, watches) = (acknowledged.len(), 3 * COUNT);
    log_line(&format!(
        "{writes} acknowledged versions, {failed} failed attempts: in {watches} watches once and in order"
    ));
    // The number of failed requests depends on how long the apiserver took to start. Successful ones are counted below.
    // An apiserver that listens before it is ready may ask for a retry after one second.
    let away_seconds = i64::try_from(away.as_secs()).expect("minutes");
    let relists_max = 1 + REFUSALS_MAX + pauses_within(away).max(away_seconds);
    for (labels, count) in &questions(&proxy).await {
        log_line(&format!("upstream requests: {labels} {count}"));
        let is_few = !labels.contains("relist") || *count <= relists_max;
        assert!(is_few, "one relist per feed and incident: {labels} {count}, {relists_max} at most");
    }
    assert_eq!(proxy.feed_requests("initial").await, initial, "no feed started over");
    let gaps = proxy.metrics().await;
    let (mended, lost) = ("kube_fanout_history_gaps_total", [("outcome", "new_history")]);
    assert_eq!(gaps.sum(mended, &lost), 0);
    log_line(&format!("gaps mended: {}", gaps.sum(mended, &[("outcome", "mended")])));
    for resource in ["pods", "configmaps"] {
        log_line(&format!("LISTs of {resource} that the new apiserver answered: {}", lists(&bed, resource).await));
    }
    assert!(lists(&bed, "configmaps").await <= 1);
    assert!(lists(&bed, "pods").await <= 2, "one per form");
}

#[tokio::test]
async fn repeated_apiserver_crashes_end_no_watch_of_idle_resource() {
    let Some(bed) = bed::own("idle").await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let until = bed.file("until");
    let maps = "/api/v1/namespaces/default/configmaps";
    bed.direct().create(maps, json!({"metadata": {"name": "before"}})).await;
    let quiet = watches(&bed, &proxy, "/api/v1/configmaps", "protobuf", &until).await;
    for _ in 0..2 {
        bed.kill_apiserver().await;
        bed.start_apiserver().await;
        let churn = ["--namespace", "default", "--ops", "50", "--resource", "pods"];
        bed.drive("churn").args(churn).start().finish().await;
    }
    let changed = bed.direct().patch(&format!("{maps}/before"), json!({"data": {"k": "v"}})).await;
    let made = bed.direct().create(maps, json!({"metadata": {"name": "after"}})).await;
    let gone: Value = bed.direct().delete(&format!("{maps}/before")).await;
    assert_eq!(gone["status"], "Success");
    let version = bed.direct().version(maps).await;
    let versions = [bed::version_of(&changed), bed::version_of(&made)];
    // The version of the deletion is at most this one, and nothing else deletes configmaps here.
    write(&until, version);
    let outcome = quiet.finish().await;
    assert_unbroken(&outcome, &versions);
    let kinds: Vec<_> = outcome.lines().filter(|line| line["kind"] == "frame" && line["watch"] == 0).collect();
    let kinds: Vec<_> =
        kinds.iter().filter_map(|line| line["type"].as_str()).filter(|kind| *kind != "BOOKMARK").collect();
    assert_eq!(kinds, ["MODIFIED", "ADDED", "DELETED"]);
    for (labels, count) in questions(&proxy).await {
        log_line(&format!("upstream requests: {labels} {count}"));
    }
    assert!(lists(&bed, "configmaps").await <= 2, "one per form and incident");
    assert_eq!(proxy.metrics().await.sum("kube_fanout_history_gaps_total", &[("outcome", "new_history")]), 0);
}

/// Clients have read only protobuf. JSON can be derived from it without upstream.
#[tokio::test]
async fn preloaded_resource_serves_json_in_outage_without_prior_read() {
    let Some(bed) = bed::own("unread").await else { return };
    let maps = "/api/v1/namespaces/default/configmaps";
    bed.direct().create(maps, json!({"metadata": {"name": "before"}})).await;
    let expected = bed.direct().json(maps).await;
    let proxy = Plan::plain().config("preload: [configmaps]\n").start(&bed).await;
    let of = [("resource", "configmaps.v1"), ("representation", "json"), ("mode", "derived")];
    let is_derived = async || proxy.metrics().await.sum("kube_fanout_representation_mode", &of) == 1;
    eventually("it is compared without being read", async || is_derived().await.then_some(())).await;
    bed.kill_apiserver().await;
    let answer = proxy.client().get(&format!("{maps}?resourceVersion=0")).await;
    assert_eq!((answer.status.as_u16(), answer.is_cached()), (200, true), "{}", answer.text());
    assert_eq!(answer.value()["items"], expected["items"]);
}
