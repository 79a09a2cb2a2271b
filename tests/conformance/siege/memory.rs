//! Memory that attackers can make the proxy use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt, stream};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::bench::Bench;
use crate::bed::{self, BULK_PODS, PATIENCE, Plan, Proxy, RequestSpec, log_line, number, unique};
use crate::hostile::streams::{Fields, field, frame, head, hello};

const SETTINGS: u8 = 4;
/// A thousand watches, each of which receives fifty events per second.
const DELIVERIES: [&str; 6] = ["--watches", "1000", "--connections", "10", "--rate", "50"];
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The limit of resident memory above that of an idle process, relative to the budget. The excess is the allocator's
/// overhead.
const SHARE_MAX: f64 = 1.25;
/// The size of a `ConfigMap` by which the collection grows, in KiB.
const MAP_KIB: usize = 100;

/// The proxy's memory during a load.
#[derive(Debug, Clone)]
pub struct Seen {
    before: u64,
    pub max: u64,
    last: u64,
    /// All samples, in order.
    looks: Vec<u64>,
}

/// Samples the memory of a process periodically.
pub struct Watcher {
    over: Arc<AtomicBool>,
    task: JoinHandle<Vec<u64>>,
    before: u64,
}

impl Watcher {
    pub fn of(proxy: &Arc<Proxy>) -> Self {
        let (over, proxy) = (Arc::new(AtomicBool::new(false)), proxy.clone());
        let (until, before) = (over.clone(), proxy.resident_bytes());
        let task = tokio::spawn(async move {
            let mut looks = Vec::new();
            while !until.load(Ordering::SeqCst) {
                looks.push(proxy.resident_bytes());
                sleep(LOOK_EVERY).await;
            }
            looks
        });
        Self { over, task, before }
    }

    pub async fn seen(self) -> Seen {
        self.over.store(true, Ordering::SeqCst);
        let looks = self.task.await.expect("it only looks");
        let (max, last) = (looks.iter().max(), looks.last());
        let some = "it has looked once";
        Seen { before: self.before, max: *max.expect(some), last: *last.expect(some), looks }
    }
}

impl Seen {
    /// The largest used share of the budget, above the memory of the process before it caches anything.
    fn share(&self, what: &str, budget_mib: u64) -> f64 {
        let taken = self.max - self.before.min(self.max);
        let [before, max, last] = [self.before, self.max, self.last].map(|bytes| bytes as f64 / f64::from(1 << 20));
        let share = taken as f64 / (budget_mib << 20) as f64;
        log_line(&format!(
            "{what}: {before:.1} MiB before, {max:.1} at most, {last:.1} at last: {share:.2} of {budget_mib} MiB"
        ));
        share
    }
}

fn budget(mib: u64) -> String {
    format!("feeds: {{memoryMebibytes: {mib}}}")
}

/// A watched collection that outgrows the budget.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn growing_resource_does_not_exceed_the_memory_budget() {
    let Some(bed) = bed::own("growth").await else { return };
    let mib = number("SIEGE_BUDGET", 24);
    let proxy = Arc::new(Plan::tls().config(&budget(mib)).start(&bed).await);
    let namespace = bed.namespace("growth").await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let kinds = ["application/json", "application/vnd.kubernetes.protobuf"];
    let query = "watch=true&allowWatchBookmarks=true";
    // Reads both encodings, and lists of them, so that derived representations count too.
    for path in ["/api/v1/configmaps", maps.as_str()] {
        assert_eq!(proxy.client().get(&format!("{path}?resourceVersion=0")).await.status, 200);
    }
    let watcher = Watcher::of(&proxy);
    let mut watches = Vec::new();
    for kind in kinds {
        let http = proxy.client();
        let request = RequestSpec::get(&format!("/api/v1/configmaps?{query}")).accept(kind);
        watches.push(tokio::spawn(async move {
            // When the watch ends because its feed is dropped, the client opens another one.
            loop {
                let mut body = http.send(request.clone()).await.into_body();
                while let Some(Ok(_)) = http_body_util::BodyExt::frame(&mut body).await {}
                sleep(Duration::from_millis(100)).await;
            }
        }));
    }
    let count = usize::try_from(5 * mib * 1024).expect("small") / MAP_KIB;
    let (direct, filler) = (bed.direct(), "x".repeat(MAP_KIB << 10));
    stream::iter(0..count)
        .for_each_concurrent(8, |at| {
            let map = json!({"metadata": {"name": format!("map-{at}")}, "data": {"filler": filler}});
            let (direct, maps) = (&direct, &maps);
            async move { drop(direct.create(maps, map).await) }
        })
        .await;
    let listed = proxy.client().get(&format!("{maps}?limit=10")).await;
    assert_eq!((listed.status.as_u16(), listed.value()["items"].as_array().map(Vec::len)), (200, Some(10)));
    // The proxy may retry the feed after a while, which must not use more memory.
    sleep(Duration::from_secs(number("SIEGE_SECONDS", 2))).await;
    let seen = watcher.seen().await;
    watches.iter().for_each(JoinHandle::abort);
    let share = seen.share("a collection of five budgets", mib);
    assert!(share <= SHARE_MAX, "{share:.2} of the budget");
    let metrics = proxy.metrics().await;
    assert!(metrics.sum("kube_fanout_forwarded_total", &[("reason", "over_budget")]) > 0, "it passes through");
    proxy.assert_sound();
}

fn question(path: &str, token: &str) -> Fields {
    let fields = [(":method", "GET"), (":scheme", "https"), (":authority", "127.0.0.1"), (":path", path)];
    let mut fields: Fields = fields.iter().map(|(name, value)| field(name, value)).collect();
    fields.push(field("authorization", &format!("Bearer {token}")));
    fields
}

/// Watch-lists that no client reads, while their initial state is replaced repeatedly.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_watch_lists_stay_within_memory_budget_under_churn() {
    const STREAMS: u32 = 100;
    let Some(bed) = bed::own("stuck").await else { return };
    bed.load().await;
    let mib = number("SIEGE_BUDGET", 24) + 24;
    let proxy = Arc::new(Plan::tls().config(&budget(mib)).start(&bed).await);
    let (pods, watcher) = ("/api/v1/pods", Watcher::of(&proxy));
    let whole = proxy.client().json(&format!("{pods}?resourceVersion=0")).await;
    assert!(whole["items"].as_array().expect("a list").len() >= BULK_PODS);
    let (namespace, ops) = (unique("churn"), (number("SIEGE_SECONDS", 2) * 400).to_string());
    let args = ["--namespace", &namespace, "--ops", &ops, "--objects", "400", "--workers", "8"];
    let churn = bed.drive("churn").args(args).start();
    let token = bed.user("admin").token;
    let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let path = format!("{pods}?watch=true&resourceVersion=0&{initial}");
    let mut connections = Vec::new();
    for _ in 0..number("SIEGE_STUCK", 300).div_ceil(u64::from(STREAMS)) {
        // Every connection starts with a different state.
        let mut io = proxy.target().connect("h2").await;
        let mut bytes = [hello(), frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
        for stream in 0..STREAMS {
            bytes.extend(head(2 * stream + 1, &question(&path, &token), true));
        }
        io.write_all(&bytes).await.expect("it is sent");
        connections.push(io);
        sleep(Duration::from_millis(200)).await;
    }
    churn.finish_within(PATIENCE.max(Duration::from_secs(number("SIEGE_SECONDS", 2) * 10))).await;
    let share = watcher.seen().await.share("unread watch-lists", mib);
    assert!(share <= SHARE_MAX, "{share:.2} of the budget");
    assert_eq!(proxy.client().get(&format!("{pods}?resourceVersion=0&limit=1")).await.status, 200);
    proxy.assert_sound();
    drop(connections);
}

/// Deliveries, without reads of metrics.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn steady_event_delivery_does_not_grow_memory() {
    let Some(bed) = bed::own("steady").await else { return };
    let mib = 256;
    let proxy = Arc::new(Plan::tls().config(&budget(mib)).without_admin().start(&bed).await);
    let seconds = number("SIEGE_STEADY", 8);
    let bench = Bench::start(&bed, &proxy, &bed.kubeconfig(), seconds, &DELIVERIES);
    bench.measures().await;
    let watcher = Watcher::of(&proxy);
    let figures = bench.finish().await;
    let seen = watcher.seen().await;
    let quarter = seen.looks.len() / 4;
    let median = |looks: &[u64]| {
        let mut looks = looks.to_vec();
        looks.sort_unstable();
        looks[looks.len() / 2] as f64 / f64::from(1 << 20)
    };
    let (early, late) = (median(&seen.looks[quarter..2 * quarter]), median(&seen.looks[3 * quarter..]));
    let rate = figures["deliveries_per_s"].as_f64().expect("a figure");
    log_line(&format!(
        "{seconds} s of {rate:.0} deliveries a second: {early:.1} MiB in the second quarter, {late:.1} in the last"
    ));
    // In a short run the window of recent events is still filling.
    let filling = if seconds < 60 { 48.0 } else { 8.0 };
    assert!(late < early * 1.1 + filling, "from {early:.1} to {late:.1} MiB");
    let share = seen.share("deliveries", mib);
    assert!(share <= SHARE_MAX, "{share:.2} of the budget");
    // Only a long run must reach the rate: a short one includes the start, and other tests run in parallel.
    assert!(seconds < 60 || rate > 45_000.0, "{rate:.0} deliveries a second");
    proxy.assert_sound();
}

/// After a stall every watch catches up at once, with its own buffer. This memory is released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn memory_is_released_after_a_stall() {
    const STALL: Duration = Duration::from_secs(4);
    let Some(bed) = bed::own("stall").await else { return };
    let proxy = Arc::new(Plan::tls().without_admin().start(&bed).await);
    let bench = Bench::start(&bed, &proxy, &bed.kubeconfig(), 30, &DELIVERIES);
    bench.measures().await;
    // Includes the watches, which are not part of the cost of a stall.
    let watcher = Watcher::of(&proxy);
    proxy.stop();
    sleep(STALL).await;
    proxy.go_on();
    bench.finish().await;
    let Seen { before, max, last, .. } = watcher.seen().await;
    let [before, max, last] = [before, max, last].map(|bytes| bytes as f64 / f64::from(1 << 20));
    log_line(&format!("a stall of {STALL:?}: {before:.1} MiB before, {max:.1} at most, {last:.1} at last"));
    assert!(max > before + 20.0, "the watches had something to catch up with");
    assert!(last < before + (max - before) * 0.4, "{last:.1} MiB stay");
    proxy.assert_sound();
}
