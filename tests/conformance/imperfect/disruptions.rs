//! The disturbances of the control plane while clients are active.

use std::collections::VecDeque;
use std::time::Duration;

use base::now_ns;
use base64::Engine as _;
use fastrand::Rng;
use futures_util::future::join;
use http::Method;
use serde_json::json;
use tokio::time::{Instant, sleep};
use verify::FaultRecord;

use super::lag::Lag;
use super::{Background, Scene, Stage};
use crate::bed::{
    ALLOWANCE, Http, Identity, Protocol, Proxy, RequestSpec, Target, eventually, is_ready, log_line, version_of,
};

/// A disturbance, with the name that the record uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disruption {
    /// Ends all connections of the balancer.
    Cut,
    /// Changes the lag of the second apiserver.
    Slower,
    /// Withholds all etcd events from the second apiserver for a while.
    Hold,
    PauseFirst,
    PauseSecond,
    KillFirst,
    KillSecond,
    /// Stops and restarts both apiservers, one after the other.
    RestartBoth,
    KillEtcd,
}

/// Configmaps are stored as JSON, so that etcd shows them. A terminating server closes its watches, instead of waiting
/// a minute for their end. Two servers on one machine have the same hostname, by which they would otherwise identify
/// each other.
pub const FLAGS: [&str; 3] = [
    "--storage-media-type=application/json",
    "--shutdown-watch-termination-grace-period=500ms",
    "--feature-gates=APIServerIdentity=false,UnknownVersionInteroperabilityProxy=false",
];

/// The longest backoff of a feed (docs/CONFIG.md, "Fixed limits").
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The time before the end of a run without new disturbances.
const CALM: Duration = Duration::from_secs(2);

/// Causes one disturbance after the other at drawn times, until a run is over. The effect of each ends when all proxies
/// have the latest writes.
pub async fn until_over(
    stage: &Stage<'_>,
    scene: &Scene,
    proxies: &[(Proxy, &str)],
    seed: u64,
    duration: Duration,
) -> Vec<FaultRecord> {
    let (over, mut rng) = (Instant::now() + duration.saturating_sub(CALM), Rng::with_seed(seed));
    let namespace = stage.plane.namespace("disruptions").await;
    let (mut faults, mut longest) = (Vec::new(), Duration::ZERO);
    // First each once, in a drawn order, and then any.
    let mut first = scene.disruptions.to_vec();
    rng.shuffle(&mut first);
    let mut disruptions = first.into_iter();
    loop {
        sleep(Duration::from_millis(rng.u64(300..1500))).await;
        if Instant::now() >= over {
            break;
        }
        let disruption = disruptions.next().unwrap_or_else(|| *rng.choice(scene.disruptions).expect("there are some"));
        let from_ns = now_ns();
        stage.carry_out(disruption, &mut rng).await;
        let known = known(stage, &namespace, proxies).await;
        assert!(known < LONGEST_WAIT + ALLOWANCE, "{disruption:?}: feeds were without their streams for {known:?}");
        longest = longest.max(known);
        let to_ns = now_ns() + 1_000_000_000;
        faults.push(FaultRecord { name: format!("{disruption:?}"), from_ns, to_ns, hits: 1, waives: Vec::new() });
    }
    log_line(&format!("{}: all was known {:.1} s after a disruption at most", scene.name, longest.as_secs_f64()));
    faults
}

impl Stage<'_> {
    async fn carry_out(&self, disruption: Disruption, rng: &mut Rng) {
        match disruption {
            Disruption::Cut => self.balancer.cut(),
            Disruption::Slower => self.relay.set(Lag::By(Duration::from_millis(rng.u64(100..1500)))),
            Disruption::Hold => {
                self.relay.set(Lag::Held);
                sleep(Duration::from_millis(rng.u64(300..2000))).await;
                self.relay.set(Lag::By(super::LAG));
            }
            Disruption::PauseFirst => {
                self.plane.signal_apiserver("STOP");
                sleep(Duration::from_millis(rng.u64(200..3000))).await;
                self.plane.signal_apiserver("CONT");
            }
            Disruption::PauseSecond => {
                self.sibling.signal("STOP");
                sleep(Duration::from_millis(rng.u64(200..3000))).await;
                self.sibling.signal("CONT");
            }
            Disruption::KillFirst => {
                self.plane.kill_apiserver().await;
                sleep(Duration::from_millis(rng.u64(0..2000))).await;
                self.plane.start_apiserver().await;
            }
            Disruption::KillSecond => {
                self.sibling.kill();
                sleep(Duration::from_millis(rng.u64(0..2000))).await;
                self.sibling.start_again().await;
            }
            Disruption::RestartBoth => self.restart_both().await,
            Disruption::KillEtcd => {
                self.plane.kill_etcd().await;
                sleep(Duration::from_millis(rng.u64(0..2000))).await;
                self.plane.start_etcd().await;
            }
        }
    }

    /// Stops and restarts each in turn, while the other one serves.
    pub async fn restart_both(&self) {
        self.plane.stop_apiserver().await;
        self.plane.start_apiserver().await;
        self.sibling.stop().await;
        self.sibling.start_again().await;
    }
}

/// Measures the time until all proxies have the latest writes.
async fn known(stage: &Stage<'_>, namespace: &str, proxies: &[(Proxy, &str)]) -> Duration {
    let target = stage.plane.target();
    is_ready(&target).await;
    let (direct, mut longest) = (Http::new(target, Protocol::H1), Duration::ZERO);
    for (proxy, resource) in proxies {
        let (client, (group, plural, kind)) = (proxy.client(), of(resource));
        let path = format!("{group}/namespaces/{namespace}/{plural}");
        let version = group.rsplit_once("/apis/").map_or("v1", |(_, version)| version);
        let made = json!({"apiVersion": version, "kind": kind, "metadata": {"generateName": "known-"}});
        let request = RequestSpec::get(&path).with(Method::POST, "application/json", made.to_string());
        // A definition that another task creates may not be served yet.
        let written = eventually("it is written", async || {
            let answer = direct.try_fetch(request.clone()).await.ok().filter(|answer| answer.status == 201)?;
            Some(version_of(&answer.value()))
        })
        .await;
        let since = Instant::now();
        eventually("it is known", async || {
            let list = client.try_get(&format!("{path}?resourceVersion=0")).await?;
            (list.status == 200 && list.is_cached() && version_of(&list.value()) >= written).then_some(())
        })
        .await;
        longest = longest.max(since.elapsed());
    }
    longest
}

/// The path, name and kind of a resource.
fn of(resource: &str) -> (&'static str, &'static str, &'static str) {
    match resource {
        super::BUILT_IN => ("/api/v1", "configmaps", "ConfigMap"),
        _ => ("/apis/verify.kube-fanout.io/v1", "samples", "Sample"),
    }
}

/// Compacts etcd periodically through the JSON gateway of its client URL, up to the version from `keep` ago.
pub fn compact(etcd_url: &str, every: Duration, keep: Duration) -> Background {
    let etcd = Http::new(Target { url: etcd_url.to_owned(), ca: None, identity: Identity::anonymous() }, Protocol::H1);
    let post = async move |path: &str, body: serde_json::Value| {
        let request = RequestSpec::get(path).with(Method::POST, "application/json", body.to_string());
        etcd.try_fetch(request).await.ok().map(|answer| answer.value())
    };
    let key = base64::engine::general_purpose::STANDARD.encode("none");
    let compact = async move {
        let mut revisions: VecDeque<(Instant, String)> = VecDeque::new();
        loop {
            let (range, ()) = join(post("/v3/kv/range", json!({"key": key})), sleep(every)).await;
            let revision = range.and_then(|range| Some(range["header"]["revision"].as_str()?.to_owned()));
            revisions.extend(revision.map(|revision| (Instant::now(), revision)));
            let old = revisions.partition_point(|(at, _)| at.elapsed() >= keep);
            if let Some((_, revision)) = revisions.drain(..old).next_back() {
                post("/v3/kv/compaction", json!({"revision": revision})).await;
            }
        }
    };
    Background(tokio::spawn(compact).abort_handle())
}
