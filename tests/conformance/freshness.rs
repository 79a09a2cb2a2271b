//! A read without a resourceVersion sees every write that completed before it, by any client and by any path.
//!
//! `FRESHNESS_TRIALS=10000 cargo test --test conformance freshness` runs more. A trial takes about a second on a large
//! collection that is idle while the rest of the cluster is not.

use std::time::Instant;

use serde_json::json;

use crate::bed::{self, Http, Plan, Plane, Proxy, RequestSpec, log_line, version_of};

/// The load besides the writes that are read back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Beside {
    /// Another object of the resource changes continuously, so its stream makes progress.
    Busy,
    /// No load.
    Idle,
    /// Only other resources change, so the cluster's version runs ahead of the resource's stream. The proxy must prove
    /// that the stream has missed nothing.
    Elsewhere,
}

async fn no_read_misses_a_write(bed: &Plane, resource: &str, beside: Beside, trials: usize) -> Proxy {
    let proxy = Plan::tls().start(bed).await;
    let namespace = bed.namespace("fresh").await;
    let trials = std::env::var("FRESHNESS_TRIALS").unwrap_or_else(|_| trials.to_string());
    let run = bed.drive("freshness").at(&proxy.target()).file("--write-kubeconfig", &bed.kubeconfig());
    let run = run.args(["--resource", resource, "--namespace", &namespace, "--trials", &trials, "--timeout", "5h"]);
    let run = if beside == Beside::Busy { run } else { run.args(["--idle", "--pause", "20ms"]) };
    let other = if resource == "pods" { "configmaps" } else { "pods" };
    let elsewhere = (beside == Beside::Elsewhere).then(|| {
        let churn = ["--namespace", &namespace, "--resource", other, "--ops", "100000000", "--workers", "4"];
        bed.drive("churn").args(churn).args(["--rate", "600", "--timeout", "5h"]).start()
    });
    let started = std::time::Instant::now();
    let summary = run.start().finish_within(std::time::Duration::from_secs(5 * 3600)).await.summary();
    drop(elsewhere);
    assert_eq!(summary["misses"], 0, "{summary}");
    // Three of four reads are lists. The cache answers all of them, except if the proof is late.
    let served = proxy.metrics().await.sum("kube_fanout_served_total", &[]);
    let trials: i64 = trials.parse().expect("a number");
    assert!(served >= trials / 2, "{served} of {trials} from the cache");
    let mut counts = Vec::new();
    for question in ["position", "equality", "catch_up"] {
        counts.push(format!("{question} {}", proxy.feed_requests(question).await));
    }
    let (counts, took) = (counts.join(", "), started.elapsed().as_secs_f64());
    log_line(&format!("{resource}, {beside:?}: {trials} trials, 0 misses, {took:.0} s; upstream requests: {counts}"));
    for (read, latency) in summary["latency"].as_object().into_iter().flatten() {
        let [p50, p99, max] = ["p50_ms", "p99_ms", "max_ms"].map(|name| latency[name].as_f64().unwrap_or(f64::NAN));
        log_line(&format!("{resource}, {beside:?}: {read} p50 {p50:.1} ms, p99 {p99:.1} ms, max {max:.1} ms"));
    }
    log_line(&format!("{resource}, {beside:?}: forwarded: {:?}", proxy.forwarded().await));
    proxy
}

#[tokio::test]
async fn reads_of_busy_configmaps_miss_no_write() {
    let Some(bed) = bed::shared().await else { return };
    no_read_misses_a_write(&bed, "configmaps", Beside::Busy, 600).await;
}

#[tokio::test]
async fn reads_of_busy_pods_miss_no_write() {
    let Some(bed) = bed::shared().await else { return };
    bed.load().await;
    no_read_misses_a_write(&bed, "pods", Beside::Busy, 600).await;
}

#[tokio::test]
async fn reads_of_idle_configmaps_miss_no_write() {
    let Some(bed) = bed::alone().await else { return };
    no_read_misses_a_write(&bed, "configmaps", Beside::Idle, 200).await;
}

#[tokio::test]
async fn configmap_reads_miss_no_write_while_others_change() {
    let Some(bed) = bed::alone().await else { return };
    let proxy = no_read_misses_a_write(&bed, "configmaps", Beside::Elsewhere, 100).await;
    assert!(proxy.feed_requests("equality").await > 0, "proofs were needed");
}

#[tokio::test]
async fn reads_of_3000_pods_miss_no_write_while_others_change() {
    let Some(bed) = bed::alone().await else { return };
    bed.load().await;
    let proxy = no_read_misses_a_write(&bed, "pods", Beside::Elsewhere, 40).await;
    assert!(proxy.feed_requests("catch_up").await + proxy.feed_requests("equality").await > 0, "proofs were needed");
}

/// A client that has seen a version of another resource can read a quiet resource at that version, as from the
/// apiserver. This also holds while other clients request versions that never come.
#[tokio::test]
async fn quiet_resource_reaches_cluster_version_despite_future_reads() {
    let Some(bed) = bed::quiet("seen-elsewhere").await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let (client, direct) = (proxy.client(), bed.direct());
    let quiet = "/api/v1/namespaces/default/secrets?resourceVersion=";
    let never = direct.version("/api/v1/namespaces/default/secrets").await + 1_000_000_000;
    client.until_ok("from the cache", RequestSpec::get(&format!("{quiet}0"))).await;
    let hopeless = async {
        for later in 0.. {
            client.get(&format!("{quiet}{}", never + later)).await;
        }
    };
    let seeing = async {
        let mut was_late = false;
        for number in 0..6 {
            let map = json!({"metadata": {"name": format!("seen-elsewhere-{number}")}});
            let seen = version_of(&direct.create("/api/v1/namespaces/default/configmaps", map).await);
            let timed_read = async |at: &Http| {
                let started = Instant::now();
                (at.get(&format!("{quiet}{seen}")).await, started.elapsed().as_secs_f64())
            };
            let (mut answer, mut took) = timed_read(&client).await;
            // On a slow machine, one of them may be late.
            if answer.status == 504 && !std::mem::replace(&mut was_late, true) {
                (answer, took) = timed_read(&client).await;
            }
            assert!(answer.status == 200 && answer.is_cached(), "{seen}: {}", answer.text());
            let (there, took_there) = timed_read(&direct).await;
            assert_eq!(there.status, 200);
            log_line(&format!("version {seen} arrives after {took:.2} s, from the apiserver after {took_there:.2} s"));
        }
    };
    tokio::select! {
        () = hopeless => unreachable!("there are always later versions"),
        () = seeing => {}
    }
    proxy.assert_sound();
}
