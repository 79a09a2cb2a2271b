//! An imperfect control plane: two kube-apiservers on one etcd, one of which lags. The proxy reaches them by one
//! address or by both. They are killed, paused and restarted in turn, connections are cut, and etcd is compacted
//! continuously. `make imperfect` runs longer.

mod balancer;
mod disruptions;
mod lag;
mod rolling;
mod rotation;
mod trial;

use std::time::Duration;

use serde_json::json;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use verify::{ApiserverGuarantee, VerdictRequirements};

use crate::bed::{
    self, Plan, Plane, Proxy, RequestSpec, Seed, Sibling, Target, eventually, log_line, version_of, write_kubeconfig,
};
use balancer::Balancer;
use disruptions::Disruption;
use lag::{Lag, LagRelay};
use trial::Trial;

/// The duration of a part of a run in `make test`.
const SHORT: Duration = Duration::from_secs(8);
/// The maximum number of attempts for such a part. On a slow machine an attempt may be inconclusive.
const SHORT_PLAYS_MAX: usize = 3;
/// How long the same watches continue over rolling restarts.
const ROUND: Duration = Duration::from_secs(45);
/// The interval of etcd's compactions.
const COMPACT_EVERY: Duration = Duration::from_millis(200);
/// The initial lag of the second apiserver.
const LAG: Duration = Duration::from_millis(700);

/// How much of its history etcd keeps while apiservers are paused. One that is paused for longer must relist.
const KEPT: Duration = Duration::from_secs(5);

const BUILT_IN: &str = "configmaps";
const CUSTOM: &str = "samples.verify.kube-fanout.io";

/// The control plane: the first apiserver, the second one with a relay to etcd, and an address for both.
struct Stage<'a> {
    plane: &'a Plane,
    sibling: Sibling,
    relay: LagRelay,
    balancer: Balancer,
}

/// How a proxy reaches the two apiservers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// By one address with a TCP load balancer.
    Balanced,
    /// By their own addresses (`upstream.servers`).
    Listed,
}

/// A part of a run.
struct Scene {
    name: &'static str,
    /// The proxies of the part, each with its clients, which run concurrently.
    proxies: &'static [(Access, &'static str)],
    disruptions: &'static [Disruption],
    lag: Duration,
    /// How much of its history etcd keeps; `None` without compactions.
    keeps: Option<Duration>,
}

const LAGGING: Scene = Scene {
    name: "one of two behind one address lags",
    proxies: &[(Access::Balanced, BUILT_IN), (Access::Balanced, CUSTOM)],
    disruptions: &[Disruption::Cut, Disruption::Slower, Disruption::Hold, Disruption::PauseSecond],
    lag: LAG,
    keeps: None,
};
const LISTED: Scene = Scene {
    name: "two that are named, of which the first fails",
    proxies: &[(Access::Listed, BUILT_IN), (Access::Listed, CUSTOM)],
    disruptions: &[Disruption::KillFirst, Disruption::PauseFirst, Disruption::Slower],
    lag: LAG,
    keeps: None,
};
const ROLLING: Scene = Scene {
    name: "rolling restarts",
    proxies: &[(Access::Balanced, BUILT_IN), (Access::Listed, CUSTOM)],
    disruptions: &[Disruption::RestartBoth],
    lag: Duration::ZERO,
    keeps: None,
};
const COMPACTED: Scene = Scene {
    name: "compaction all the time",
    proxies: &[(Access::Balanced, BUILT_IN), (Access::Listed, CUSTOM)],
    disruptions: &[Disruption::Cut],
    lag: Duration::ZERO,
    keeps: Some(Duration::ZERO),
};
const EVERYTHING: Scene = Scene {
    name: "all of it",
    proxies: &[(Access::Balanced, BUILT_IN), (Access::Listed, CUSTOM)],
    disruptions: &[
        Disruption::Cut,
        Disruption::Slower,
        Disruption::Hold,
        Disruption::PauseFirst,
        Disruption::PauseSecond,
        Disruption::KillFirst,
        Disruption::KillSecond,
        Disruption::RestartBoth,
        Disruption::KillEtcd,
    ],
    lag: LAG,
    keeps: Some(KEPT),
};
/// The part that is short enough for `make test`. It restarts no apiserver, which `rolling` does.
const BRIEFLY: Scene =
    Scene { name: "briefly", disruptions: &[Disruption::Cut, Disruption::Hold, Disruption::PauseFirst], ..EVERYTHING };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guarantees_hold_when_apiservers_lag_pause_or_restart() {
    let seconds = bed::number("IMPERFECT_SECONDS", 0);
    let seed = Seed::new("IMPERFECT_SEED", |seed| format!("make imperfect SECONDS={} SEED={seed}", seconds.max(60)));
    let Some(bed) = bed::own_with("imperfect", &disruptions::FLAGS).await else { return };
    let stage = Stage::set(&bed).await;
    stage.the_pair_goes_back_and_the_proxy_does_not().await;
    if seconds == 0 {
        stage.play_briefly(&seed).await;
        stage.restarts_end_no_watch(Duration::ZERO).await;
        return;
    }
    let scenes = [LAGGING, LISTED, ROLLING, COMPACTED, EVERYTHING];
    let each = Duration::from_secs(seconds).div_f64(2.0 + scenes.len() as f64);
    stage.the_pair_itself(seed.first(), each).await;
    for (scene, seed) in scenes.iter().zip(seed.rounds()) {
        let lacks = stage.play(scene, seed, each).await;
        assert!(lacks.is_empty(), "{}: the run is void: {lacks:?}", scene.name);
    }
    let over = Instant::now() + each;
    while Instant::now() < over {
        stage.restarts_end_no_watch(ROUND.min(over - Instant::now())).await;
    }
}

impl<'a> Stage<'a> {
    async fn set(plane: &'a Plane) -> Self {
        let relay = LagRelay::start(&plane.etcd_url()).await;
        let sibling = Sibling::start(plane, relay.port).await;
        let balancer = Balancer::start(plane, &[plane.target(), sibling.target()]).await;
        Self { plane, sibling, relay, balancer }
    }

    /// Both apiservers, as one server.
    fn both(&self) -> Target {
        self.balancer.target(&self.plane.user("admin"))
    }

    async fn proxy(&self, access: Access) -> Proxy {
        let (token, both) = (json!({"token": self.plane.user("admin").token}), self.both());
        let kubeconfig = self.plane.file("imperfect.kubeconfig");
        write_kubeconfig(&kubeconfig, &both.url, &self.plane.ca(), &token);
        let plan = Plan::tls().upstream(&kubeconfig);
        let servers = [self.plane.url(), &self.sibling.target().url].map(str::to_owned);
        match access {
            Access::Balanced => plan.start(self.plane).await,
            Access::Listed => {
                plan.config(&json!({"upstream": {"servers": servers}}).to_string()).start(self.plane).await
            }
        }
    }

    /// Both apiservers in turn answer from their watch caches. Clients of the balancer go back to older versions.
    /// Clients of the proxy do not, whichever server its feed's stream is from.
    async fn the_pair_goes_back_and_the_proxy_does_not(&self) {
        let path = format!("/api/v1/namespaces/{}/configmaps", self.plane.namespace("lag").await);
        let any = format!("{path}?resourceVersion=0");
        let servers = [self.plane.direct(), self.sibling.direct()];
        let proxy = self.proxy(Access::Balanced).await;
        let through = proxy.client();
        let known = async |version: u64, client: &bed::Http| {
            eventually("the writes are known", async || {
                let list = client.try_get(&any).await.filter(|list| list.status == 200)?;
                (version_of(&list.value()) >= version).then_some(())
            })
            .await;
        };
        let first = version_of(&servers[0].create(&path, json!({"metadata": {"name": "first"}})).await);
        known(first, &servers[1]).await;
        self.relay.set(Lag::Held);
        let second = version_of(&servers[0].create(&path, json!({"metadata": {"name": "second"}})).await);
        known(second, &servers[0]).await;
        let [new, old] = [servers[0].json(&any).await, servers[1].json(&any).await].map(|list| version_of(&list));
        assert!(old < second && second <= new, "the pair goes back: {new}, then {old}");
        let current = version_of(&through.json(&path).await);
        assert!(current >= second, "a current list has the writes");
        let watch = RequestSpec::get(&format!("{path}?watch=1&resourceVersion={current}"));
        let mut watch = through.watch(watch).await;
        let mut newest_seen = current;
        // The connections go to both in turn.
        for _ in 0..6 {
            self.balancer.cut();
            let list = through.get(&any).await;
            if list.is_cached() {
                let version = version_of(&list.value());
                assert!(version >= newest_seen, "the proxy went back: {newest_seen}, then {version}");
                newest_seen = version;
            }
        }
        self.relay.set(Lag::By(Duration::ZERO));
        let third = version_of(&servers[0].create(&path, json!({"metadata": {"name": "third"}})).await);
        known(third, &through).await;
        assert_eq!(watch.change().await.name(), "third", "nothing twice, and nothing is missing");
        log_line(&format!(
            "the pair went back from {new} to {old}, and the proxy did not: {current}, then {newest_seen}"
        ));
        proxy.assert_sound();
    }

    /// Checks the balanced pair without a proxy: reads from the cache go back, because the second one lags.
    async fn the_pair_itself(&self, seed: u64, duration: Duration) {
        self.relay.set(Lag::By(LAG));
        let trial =
            Trial { subject: self.both(), direct: self.plane.url().to_owned(), resource: BUILT_IN, duration, seed };
        let record = trial.run(self.plane).await;
        let found = record.found(&[], &VerdictRequirements::default());
        log_line(&format!("the pair itself, without a proxy: {}", trial::figures(&found.text)));
        assert!(found.broken.contains(&ApiserverGuarantee::Monotone), "{}", found.text);
        self.relay.set(Lag::By(Duration::ZERO));
    }

    /// Runs the part for `make test`, and repeats it while it is void. Panics at once if a promise was broken.
    async fn play_briefly(&self, seed: &Seed) {
        let mut lacks = Vec::new();
        for seed in seed.rounds().take(SHORT_PLAYS_MAX) {
            lacks = self.play(&BRIEFLY, seed, SHORT).await;
            if lacks.is_empty() {
                break;
            }
            log_line(&format!("{}: the run is void: {lacks:?}", BRIEFLY.name));
        }
        assert!(lacks.is_empty(), "{}: every run was void, the last one for {lacks:?}", BRIEFLY.name);
    }

    /// Runs one part: a proxy for each resource, with clients and writers, during the disturbances. Panics if a promise
    /// was broken. Returns the counts that were too low.
    async fn play(&self, scene: &Scene, seed: u64, duration: Duration) -> Vec<String> {
        self.relay.set(Lag::By(scene.lag));
        let compactions = scene.keeps.map(|keep| disruptions::compact(&self.plane.etcd_url(), COMPACT_EVERY, keep));
        let mut proxies = Vec::new();
        for (access, resource) in scene.proxies {
            proxies.push((self.proxy(*access).await, *resource));
        }
        let direct = if scene.disruptions.contains(&Disruption::RestartBoth) {
            self.both().url
        } else {
            self.sibling.target().url
        };
        let trials = proxies.iter().map(|(proxy, resource)| {
            let (subject, direct) = (proxy.target(), direct.clone());
            let trial = Trial { subject, direct, resource, duration, seed };
            async move { trial.run(self.plane).await }
        });
        let doing = disruptions::until_over(self, scene, &proxies, seed, duration);
        let (records, faults) = tokio::join!(futures_util::future::join_all(trials), doing);
        drop(compactions);
        self.relay.set(Lag::By(Duration::ZERO));
        let mut lacks = Vec::new();
        for (record, (proxy, resource)) in records.iter().zip(&proxies) {
            log_line(&format!("{}: {resource}: {}", scene.name, lists(proxy).await));
            // An apiserver that lags by three seconds refuses a version that the client knows as a future one. So does
            // a proxy in front of it.
            let broken_upstream: &[ApiserverGuarantee] =
                if scene.lag.is_zero() { &[] } else { &[ApiserverGuarantee::Future] };
            let (figures, too_little) = record.judge(&faults, broken_upstream);
            log_line(&format!("{}: {resource}: {figures}", scene.name));
            lacks.extend(too_little);
            proxy.assert_sound();
        }
        let (count, connections) = (faults.len(), self.balancer.counts());
        log_line(&format!(
            "{}: {count} times something was done; connections balanced so far: {connections:?}",
            scene.name
        ));
        lacks
    }
}

/// The upstream lists of a proxy for its feeds, by cause.
async fn lists(proxy: &Proxy) -> String {
    let questions = ["initial", "relist", "mismatch", "release_change"];
    let mut parts = Vec::new();
    for question in questions {
        parts.push(format!("{question} {}", proxy.feed_requests(question).await));
    }
    let metrics = proxy.metrics().await;
    let gaps = |outcome| metrics.sum("kube_fanout_history_gaps_total", &[("outcome", outcome)]);
    parts.push(format!(
        "gaps mended {}, new histories {}, rewound {}",
        gaps("mended"),
        gaps("new_history"),
        gaps("rewound")
    ));
    parts.push(format!("switches {}", metrics.sum("kube_fanout_upstream_server_switches_total", &[])));
    parts.join(", ")
}

/// Aborts a task when this value is dropped.
struct Background(AbortHandle);

impl Drop for Background {
    fn drop(&mut self) {
        self.0.abort();
    }
}
