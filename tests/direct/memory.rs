//! A collection that grows until it exceeds the proxy's memory budget (I2). The proxy runs in a process of its own,
//! whose memory can be measured.

use demo::{self, RunningDemoApiserver};

use crate::direct::{self, CONFIGMAPS, Dir, Ended, PODS, configmap, eventually};
use crate::process::{Process, metric};

const MEBIBYTES: usize = 8;
/// The chargeable part of the budget; the rest is allocator overhead.
const BUDGET: f64 = (MEBIBYTES << 20) as f64 * 0.75;
const OBJECT_BYTES: usize = 40_000;
/// An object with its overhead: all feeds together may exceed the budget by this much.
const ONE_OBJECT: f64 = OBJECT_BYTES as f64 + 4_096.0;

async fn process(dir: &Dir, up: &RunningDemoApiserver) -> Process {
    let file = dir.file("config", &format!("feeds: {{memoryMebibytes: {MEBIBYTES}}}"));
    Process::serve(dir, &up.url(), &["--config", file.to_str().expect("a path")]).await
}

/// Bytes that all feeds hold, according to the metrics.
fn used_bytes(metrics: &str) -> f64 {
    let kinds = ["objects", "events", "derived", "states", "staged"];
    kinds.map(|kind| metric(metrics, "kube_fanout_memory_used_bytes", &format!("\"{kind}\""))).iter().sum()
}

/// Creates objects of this size until they have five times the bytes of the budget, and calls `look` after each. Many
/// at once would leave the ring before any client could read them.
async fn grow(up: &RunningDemoApiserver, mut look: impl AsyncFnMut(u64)) -> u64 {
    let count = 5 * (MEBIBYTES << 20) / OBJECT_BYTES;
    let value = "x".repeat(OBJECT_BYTES);
    let mut last = 0;
    for n in 0..count {
        last = up.put("configmaps", configmap("default", &format!("large-{n}"), &value));
        look(last).await;
    }
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resource_outgrowing_memory_budget_is_forwarded() {
    let up = demo::upstream().pods(20).seed(301).run().await;
    let dir = Dir::new();
    let process = process(&dir, &up).await;
    let client = process.client();
    for path in [CONFIGMAPS, PODS] {
        assert!(direct::proven(&client, || path.to_owned()).await.is_cached());
    }
    let (growing, other) = (client.watch(CONFIGMAPS).await, client.watch(PODS).await);
    let last = grow(&up, async |newest| {
        growing.reached_or_ended(newest).await;
        let metrics = process.metrics().await;
        assert!(used_bytes(&metrics) <= BUDGET + ONE_OBJECT, "{} of {BUDGET}", used_bytes(&metrics));
    })
    .await;
    assert_eq!(growing.ended().await, Ended::Clean, "its client resumes from its last version");
    let received = growing.events().len();
    assert!(received > 50, "it received {received} changes while they fitted");
    let metrics = process.metrics().await;
    assert_eq!(metric(&metrics, "kube_fanout_memory_budget_bytes", "").total_cmp(&BUDGET), std::cmp::Ordering::Equal);
    assert!(metric(&metrics, "kube_fanout_memory_evictions_total", "what=\"history\"") > 0.0, "before a feed ends");
    assert!(metric(&metrics, "kube_fanout_memory_evictions_total", "what=\"feed\"") > 0.0);
    let given_back = || async { used_bytes(&process.metrics().await) < BUDGET / 4.0 };
    eventually("it was released", given_back).await;
    let listed = client.get(CONFIGMAPS).await;
    assert!(!listed.is_cached() && listed.rv() >= last);
    let again = client.watch(CONFIGMAPS).from(listed.rv()).await;
    assert!(metric(&process.metrics().await, "kube_fanout_forwarded_total", "over_budget") > 0.0);
    again.reached(up.put("configmaps", configmap("default", "one-more", "x"))).await;
    assert!(direct::proven(&client, || PODS.to_owned()).await.is_cached());
    other.reached(up.create_pod("default", "one-more")).await;
}

/// A collection that does not fit is never cached in part, however often it is requested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn resource_above_memory_budget_is_listed_only_once() {
    let up = demo::upstream().pods(20).seed(302).run().await;
    let last = grow(&up, async |_| {}).await;
    let dir = Dir::new();
    let process = process(&dir, &up).await;
    let client = process.client();
    for _ in 0..3 {
        let listed = client.get(CONFIGMAPS).await;
        assert!(!listed.is_cached() && listed.rv() >= last);
        assert!(direct::proven(&client, || PODS.to_owned()).await.is_cached());
    }
    let metrics = process.metrics().await;
    assert_eq!(
        metric(&metrics, "kube_fanout_feed_requests_total", "configmaps").total_cmp(&1.0),
        std::cmp::Ordering::Equal
    );
    assert!(used_bytes(&metrics) < BUDGET / 4.0, "{}", used_bytes(&metrics));
}
