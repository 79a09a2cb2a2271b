//! An apiserver, a proxy in front of it and a second proxy in front of that. Each can be killed and restarted.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use base::now_ns;
use serde_json::json;
use tokio::time::{Instant, sleep};
use verify::{FaultRecord, HistoryRecord, HistoryWindowRecord, RequestServerRole};

use crate::bed::{Http, Plan, Plane, Protocol, Proxy, eventually, log_line, version_of};

/// The servers, as a run numbers them.
pub const LEAF: RequestServerRole = RequestServerRole::Subject;
pub const ZONE: RequestServerRole = RequestServerRole::Also(0);
pub const APISERVER: RequestServerRole = RequestServerRole::Also(1);

/// The downtime of a killed server, in addition to its start time.
const AWAY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));
/// Longer than a frame may be delayed relative to a later one.
const SETTLED: Duration = Duration::from_millis(500);
const PROBES: &str = "/api/v1/namespaces/default/configmaps";
const PROBE: &str = "failover-probe";

/// A proxy that keeps its address and its certificate over restarts.
pub struct Tier {
    plan: Plan,
    proxy: Proxy,
}

/// The three servers, and which versions each may have forgotten.
pub struct Tiers<'a> {
    plane: &'a Plane,
    pub zone: Tier,
    pub leaf: Tier,
    /// The apiserver, the zone proxy and the leaf proxy need not know changes up to these versions.
    forgotten: [u64; 3],
    /// The histories of the zone proxy and the leaf proxy begin at these versions at the latest. They request earlier
    /// changes from upstream.
    begun: [u64; 2],
    /// The kills, and what the servers forgot through them.
    pub records: Vec<HistoryRecord>,
}

impl Tier {
    async fn start(plane: &Plane, upstream: Option<PathBuf>) -> Self {
        let plan = Plan::tls().lasting(plane);
        let plan = upstream.into_iter().fold(plan, |plan, upstream| plan.upstream(&upstream));
        let proxy = plan.clone().start(plane).await;
        Self { plan, proxy }
    }

    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    pub fn kill(&self) {
        self.proxy.kill();
    }

    pub async fn start_again(&mut self, plane: &Plane) {
        self.proxy = self.plan.clone().start(plane).await;
    }
}

impl<'a> Tiers<'a> {
    pub async fn start(plane: &'a Plane) -> Self {
        let zone = Tier::start(plane, None).await;
        let upstream = plane.file("zone-kubeconfig");
        fs::write(&upstream, zone.proxy.target().kubeconfig()).expect("a file");
        let leaf = Tier::start(plane, Some(upstream)).await;
        plane.direct().create(PROBES, json!({"metadata": {"name": PROBE}})).await;
        Self { plane, zone, leaf, forgotten: [0; 3], begun: [0; 2], records: Vec::new() }
    }

    /// Waits until both proxies have a history, which they keep until they are killed.
    pub async fn begin(&mut self) {
        self.begun = [self.until_known().await; 2];
    }

    /// Kills one server and restarts it. Returns when both proxies are up to date.
    pub async fn kill(&mut self, victim: RequestServerRole, rng: &mut fastrand::Rng) {
        let (from_ns, began) = (now_ns(), Instant::now());
        let away = AWAY.0 + AWAY.1.saturating_sub(AWAY.0).mul_f64(rng.f64());
        match victim {
            APISERVER => {
                self.plane.kill_apiserver().await;
                sleep(away).await;
                self.plane.start_apiserver().await;
            }
            ZONE => {
                self.zone.kill();
                sleep(away).await;
                self.zone.start_again(self.plane).await;
            }
            _ => {
                self.leaf.kill();
                sleep(away).await;
                self.leaf.start_again(self.plane).await;
            }
        }
        let back = began.elapsed();
        let known = self.forget(victim).await;
        let late = began.elapsed().saturating_sub(back);
        let name = name(victim);
        log_line(&format!(
            "{name} was away for {:.1} s, all was known {:.1} s later",
            back.as_secs_f64(),
            late.as_secs_f64()
        ));
        sleep(SETTLED).await;
        let (name, to_ns) = (format!("the kill of {name}"), now_ns());
        self.records.push(HistoryRecord::Fault(FaultRecord { name, from_ns, to_ns, hits: 1, waives: Vec::new() }));
        for (server, version) in known {
            let resource = "configmaps".to_owned();
            self.records.push(HistoryRecord::Window(HistoryWindowRecord {
                resource,
                version,
                at_ns: from_ns,
                server: Some(server),
            }));
        }
    }

    /// The servers that may have lost history when a killed one is back, each with its version. Waits until both
    /// proxies are up to date.
    async fn forget(&mut self, victim: RequestServerRole) -> Vec<(RequestServerRole, u64)> {
        let [apiserver, zone, _] = self.forgotten;
        // A restarted apiserver's history begins with the current state.
        let now = self.plane.direct().version(PROBES).await;
        let known = self.until_known().await;
        match victim {
            // The proxies can no longer request from it what was before their own history.
            APISERVER => self.forgotten = [now, self.begun[0], self.begun[1]],
            // A restarted proxy knows what its upstream remembers.
            ZONE => (self.forgotten[1], self.begun[0]) = (apiserver, known),
            _ => (self.forgotten[2], self.begun[1]) = (zone, known),
        }
        let all = [APISERVER, ZONE, LEAF].into_iter().zip(self.forgotten);
        all.filter(|(server, _)| *server == victim || victim == APISERVER).collect()
    }

    /// Waits until both proxies have the current state. Returns its version.
    async fn until_known(&self) -> u64 {
        let path = format!("{PROBES}/{PROBE}");
        let annotation = format!("{:x}", fastrand::u64(..));
        let patch = json!({"metadata": {"annotations": {"probe": annotation}}});
        let written = version_of(&self.plane.direct().patch(&path, patch).await);
        for (name, tier) in [("the zone's proxy", &self.zone), ("the leaf", &self.leaf)] {
            let (client, path) = (Http::new(tier.proxy.target(), Protocol::H1), format!("{path}?resourceVersion=0"));
            eventually(&format!("{name} is up to date"), async || {
                let answer = client.try_get(&path).await.filter(|answer| answer.status == 200)?;
                (version_of(&answer.value()) >= written).then_some(())
            })
            .await;
        }
        written
    }

    pub fn assert_sound(&self) {
        self.zone.proxy.assert_sound();
        self.leaf.proxy.assert_sound();
    }
}

/// The name of a server in messages.
pub fn name(server: RequestServerRole) -> &'static str {
    match server {
        LEAF => "the leaf",
        ZONE => "the zone's proxy",
        _ => "the apiserver",
    }
}
