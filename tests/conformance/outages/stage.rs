//! A control plane, a proxy in front of it, and clients that follow quiet and busy resources through outages of both.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base::now_ns;
use futures_util::future::join_all;
use serde_json::json;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use verify::ApiserverGuarantee;

use super::drawn::{Begins, Outage, Victim};
use super::stored;
use super::tally::Tally;
use super::writer::Writer;
use crate::bed::{self, Metrics, Plan, Plane, Protocol, Proxy, version_of, within};
use crate::event_scenes::event;
use crate::follower::Follower;
use crate::ledger::Ledger;

const MAPS: &str = "/api/v1/configmaps";
const EVENTS: &str = "/api/v1/events";
/// Resources without writes during a sequence.
const QUIET: [&str; 3] = ["/api/v1/limitranges", "/api/v1/resourcequotas", "/api/v1/serviceaccounts"];
/// The clients of each resource.
const CLIENTS: [Protocol; 2] = [Protocol::H1, Protocol::H2];
/// The name of the object that is written after each sequence.
const FENCE: &str = "fence";
/// The polling interval for the proxy's actions.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
const PROMISES: [ApiserverGuarantee; 3] =
    [ApiserverGuarantee::Continuity, ApiserverGuarantee::Reliable, ApiserverGuarantee::Typed];

pub struct Stage<'a> {
    plane: &'a Plane,
    plan: Plan,
    proxy: Proxy,
    namespace: String,
    /// The apiserver need not know changes up to this version, because its watch caches started after them.
    forgotten: u64,
    /// The proxy's start time, until all clients watch it. Before that, only the apiserver has earlier changes.
    new_since: Option<u64>,
    pub tally: Tally,
}

/// The clients of one resource.
struct Followed {
    ledger: Arc<Ledger>,
    followers: Vec<JoinHandle<Follower>>,
    positions: Vec<Arc<AtomicU64>>,
    goal: watch::Sender<Option<u64>>,
}

impl<'a> Stage<'a> {
    pub async fn set(plane: &'a Plane) -> Self {
        let plan = Plan::tls().lasting(plane);
        let proxy = plan.clone().start(plane).await;
        let namespace = plane.namespace("outages").await;
        let direct = plane.direct();
        let metadata = json!({"name": FENCE});
        let limits = json!([{"type": "Container", "max": {"cpu": "2"}}]);
        for (resource, object) in [
            ("limitranges", json!({"metadata": metadata, "spec": {"limits": limits}})),
            ("resourcequotas", json!({"metadata": metadata, "spec": {"hard": {"pods": "10"}}})),
            ("serviceaccounts", json!({"metadata": metadata})),
            ("configmaps", json!({"metadata": metadata})),
        ] {
            direct.create(&format!("/api/v1/namespaces/{namespace}/{resource}"), object).await;
        }
        Self { plane, plan, proxy, namespace, forgotten: 0, new_since: None, tally: Tally::default() }
    }

    /// Runs a sequence. Panics if a watch ended although upstream has the history, or if a promise was broken.
    pub async fn play(&mut self, outages: &[Outage], rng: &mut fastrand::Rng) {
        let followed = self.begin().await;
        let maps = followed.iter().find(|of| of.ledger.path() == MAPS).expect("they are followed");
        let mut writer = Writer::new(&self.plane.namespace("busy").await, rng.fork());
        let lives_before = self.tally.kills_of_proxy;
        let mut down_since = None;
        for (at, outage) in outages.iter().enumerate() {
            let next = outages.get(at + 1).map_or(Begins::Apart, |next| next.begins);
            self.settle(&followed).await;
            down_since.get_or_insert_with(now_ns);
            self.break_off(outage, &mut writer, maps, rng).await;
            if self.start_again(outage, next, followed.len() * CLIENTS.len()).await {
                continue;
            }
            self.ready(&followed).await;
            if let Some(since) = down_since.take() {
                followed.iter().for_each(|of| of.ledger.disturbed(since));
            }
            writer.change(self.plane, outage.maps, outage.events, maps.position()).await;
            sleep(outage.pause).await;
        }
        let lives = self.tally.kills_of_proxy - lives_before;
        self.end(followed, lives).await;
    }

    async fn begin(&self) -> Vec<Followed> {
        let mut followed = Vec::new();
        for path in all_paths() {
            let ledger = Arc::new(Ledger::begin(self.plane, path).await);
            let (goal, goals) = watch::channel(None);
            let (begin, mut begun) = watch::channel(0);
            let clients = CLIENTS.map(|protocol| Follower::new(self.proxy.target(), protocol, &ledger, &begin));
            let positions = clients.iter().map(Follower::position).collect();
            let followers = clients.into_iter().map(|client| tokio::spawn(client.follow(goals.clone()))).collect();
            let all = begun.wait_for(|begun| *begun == CLIENTS.len());
            within("all clients have begun", all).await.expect("they tell it");
            followed.push(Followed { ledger, followers, positions, goal });
        }
        followed
    }

    /// Kills the servers of the outage.
    async fn break_off(&mut self, outage: &Outage, writer: &mut Writer, maps: &Followed, rng: &mut fastrand::Rng) {
        let begun = now_ns();
        self.tally.note(&self.proxy.metrics().await);
        match outage.victim {
            Victim::Apiserver => self.plane.kill_apiserver().await,
            Victim::ApiserverUnheard => {
                self.proxy.stop();
                let followed = maps.position();
                self.plane.kill_apiserver().await;
                self.plane.start_apiserver().await;
                writer.change(self.plane, outage.maps.max(1), outage.events, followed).await;
                self.plane.kill_apiserver().await;
                self.proxy.go_on();
            }
            Victim::Proxy => self.kill_proxy(begun),
            Victim::Both if rng.bool() => {
                self.kill_proxy(begun);
                self.plane.kill_apiserver().await;
            }
            Victim::Both => {
                self.plane.kill_apiserver().await;
                self.kill_proxy(begun);
            }
        }
        self.tally.outage(outage);
    }

    fn kill_proxy(&mut self, begun: u64) {
        self.proxy.assert_sound();
        self.proxy.kill();
        self.tally.over();
        self.new_since.get_or_insert(begun);
    }

    /// Restarts the killed servers. Returns whether the start condition of the next outage occurred, usually before all
    /// servers are ready.
    async fn start_again(&mut self, outage: &Outage, next: Begins, watches: usize) -> bool {
        let (plane, before) = (self.plane, self.tally.of_this_life());
        let is_seen = match outage.victim {
            Victim::Apiserver | Victim::ApiserverUnheard => tokio::select! {
                is_seen = recovery_begins(&self.proxy, next, &before, None) => is_seen,
                () = plane.start_apiserver() => false,
            },
            Victim::Proxy => {
                self.proxy = self.plan.clone().start(plane).await;
                false
            }
            Victim::Both => {
                let proxy = self.plan.clone().start(plane);
                let (proxy, ()) = tokio::join!(proxy, plane.start_apiserver());
                self.proxy = proxy;
                false
            }
        };
        let recovers = recovery_begins(&self.proxy, next, &before, Some(watches));
        let is_seen = is_seen || next != Begins::Apart && within("the proxy recovers", recovers).await;
        if is_seen {
            self.tally.overlap(next);
        }
        is_seen
    }

    /// Waits until the apiserver is ready, and records which changes the servers may have forgotten.
    async fn ready(&mut self, followed: &[Followed]) {
        bed::is_ready(&self.plane.target()).await;
        self.forgotten = self.plane.direct().version(MAPS).await;
        let Some(since) = self.new_since else { return };
        // The apiserver has no watch cache of Events, and reads their history from etcd.
        for of in followed.iter().filter(|of| of.ledger.path() != EVENTS) {
            of.ledger.may_be_forgotten(self.forgotten, since);
        }
    }

    /// Checks whether all clients watch the proxy, and whether the proxy has a proven state. From then on it keeps the
    /// history itself.
    async fn settle(&mut self, followed: &[Followed]) {
        let metrics = self.proxy.metrics().await;
        let goes_on = is_settled(&metrics, followed.len() * CLIENTS.len());
        if self.new_since.is_some() && goes_on && all_paths().all(|path| is_known(&metrics, path)) {
            self.ready(followed).await;
            self.new_since = None;
        }
    }

    /// Writes to each resource, and checks the events that its clients received up to that.
    async fn end(&mut self, followed: Vec<Followed>, lives: u32) {
        let mut goals = Vec::new();
        for of in &followed {
            let goal = self.fence(of.ledger.path()).await;
            of.goal.send(Some(goal)).expect("clients follow");
            goals.push(goal);
        }
        for (of, goal) in followed.into_iter().zip(goals) {
            let path = of.ledger.path().to_owned();
            let what = format!("clients of {path} have reached {goal}");
            let mut promises = [].as_slice();
            for client in within(&what, join_all(of.followers)).await {
                let client = client.expect("no panic");
                // A client that had to list again may have the only change from its list.
                if client.expired == 0 {
                    promises = &PROMISES;
                }
                self.tally.client(&client);
                let passed = &client.passed;
                assert!(
                    client.resumed <= lives + client.expired,
                    "a watch of {path} ended, and no proxy had; forwarded: {passed:?}"
                );
                assert_eq!(client.lists, 1 + client.expired, "{path}");
            }
            let resource = path.trim_start_matches("/api/v1/");
            let changes = stored::changes(self.plane, resource, of.ledger.from(), goal).await;
            self.tally.changes += changes.len();
            of.ledger.judge(&changes, goal, promises);
        }
        self.new_since = None;
        self.tally.note(&self.proxy.metrics().await);
        self.proxy.assert_sound();
    }

    /// Changes an object of a resource. Returns its version.
    async fn fence(&self, path: &str) -> u64 {
        let (direct, namespace) = (self.plane.direct(), &self.namespace);
        let own = format!("/api/v1/namespaces/{namespace}/{}", path.trim_start_matches("/api/v1/"));
        let changed = if path == EVENTS {
            direct.create(&own, event(namespace, &bed::unique(FENCE))).await
        } else {
            let patch = json!({"metadata": {"annotations": {"fence": bed::unique(FENCE)}}});
            direct.patch(&format!("{own}/{FENCE}"), patch).await
        };
        version_of(&changed)
    }
}

impl Followed {
    /// The version that all clients have reached.
    fn position(&self) -> u64 {
        self.positions.iter().map(|at| at.load(Ordering::Relaxed)).min().unwrap_or(0)
    }
}

/// Waits until the proxy has started the recovery step for which the next outage waits. Its upstream requests since the
/// scrape `before` show that. With a number of watches, returns `false` once that many are open and settled.
async fn recovery_begins(proxy: &Proxy, next: Begins, before: &Tally, watches: Option<usize>) -> bool {
    loop {
        let metrics = proxy.metrics().await;
        let mut since = before.clone();
        since.note(&metrics);
        let is_begun = match next {
            Begins::Apart => false,
            Begins::DuringRelist => since.lists() > before.lists(),
            Begins::DuringMend => since.past() > before.past(),
        };
        if is_begun || watches.is_some_and(|watches| is_settled(&metrics, watches)) {
            return is_begun;
        }
        sleep(LOOK_AGAIN).await;
    }
}

fn all_paths() -> impl Iterator<Item = &'static str> {
    [MAPS, EVENTS].into_iter().chain(QUIET)
}

/// Whether a feed knows the age of its state: it was a consistent list, or a proof was requested. The first upstream
/// version request belongs to the list of a client's version.
fn is_known(metrics: &Metrics, path: &str) -> bool {
    let resource = format!("{}.v1", path.trim_start_matches("/api/v1/"));
    let requests = |purpose| {
        let labels = [("resource", resource.as_str()), ("purpose", purpose)];
        metrics.sum("kube_fanout_feed_requests_total", &labels)
    };
    requests("initial") + requests("equality") + requests("catch_up") > 0 || requests("position") > 1
}

/// Whether this many watches are open at the proxy, all with feeds that follow upstream.
fn is_settled(metrics: &Metrics, watches: usize) -> bool {
    let open = metrics.sum("kube_fanout_watches_open", &[]);
    let waiting = metrics.sum("kube_fanout_watches_waiting", &[]);
    let feeds = metrics.sum("kube_fanout_feed_state", &[]);
    let live = metrics.sum("kube_fanout_feed_state", &[("state", "live")]);
    usize::try_from(open) == Ok(watches) && waiting == 0 && live == feeds
}
