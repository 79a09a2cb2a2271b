//! Creates, changes and deletes pods, at a given rate or a given number of times.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::kinds::PODS;
use super::pods::{Pod, nth};
use super::shared::DemoState;
use super::store::{ObjectStore, WriteDecision};

/// The percentages of events that change the status of a pod and that create a pod. The rest are deletions.
const UPDATES_PERCENT: u32 = 70;
const CREATES_PERCENT: u32 = 15;
/// The interval at which the churn creates the events that are due.
const TICK: Duration = Duration::from_millis(5);
/// The maximum number of events of one tick, if the process was suspended and many are due.
const CATCH_UP_MAX: u64 = 1_000;
/// The number of events after which the churn yields to other tasks.
const BREATH: usize = 100;

/// The pods that the churn creates, changes and deletes. It does not touch pods that tests or clients create.
#[derive(Debug)]
pub(crate) struct ChurnPods {
    live: Vec<Pod>,
    /// The number of the next new pod.
    next: usize,
    target: usize,
    nodes: usize,
    rng: Rng,
}

impl ChurnPods {
    pub(crate) fn new(pods: usize, nodes: usize, seed: u64) -> Self {
        let live = (0..pods).map(|n| nth(n, nodes)).collect();
        Self { live, next: pods, target: pods, nodes, rng: Rng::with_seed(seed) }
    }

    /// Creates one event of the churn; returns its revision.
    fn step(&mut self, store: &ObjectStore) -> u64 {
        let slack = self.target / 10 + 1;
        let too_few = self.live.len() + slack <= self.target || self.live.is_empty();
        let too_many = self.live.len() > self.target + slack;
        match self.rng.u32(0..100) {
            die if die < UPDATES_PERCENT && !self.live.is_empty() => self.update(store),
            die if too_few || (die < UPDATES_PERCENT + CREATES_PERCENT && !too_many) => self.create(store),
            _ => self.delete(store),
        }
    }

    fn update(&mut self, store: &ObjectStore) -> u64 {
        let at = self.rng.usize(..self.live.len());
        let pod = &mut self.live[at];
        match (pod.phase, self.rng.u32(0..10)) {
            ("Running", 0) => pod.phase = "Failed",
            ("Running", _) => pod.restarts += 1,
            _ => pod.phase = "Running",
        }
        put_pod(store, pod)
    }

    fn create(&mut self, store: &ObjectStore) -> u64 {
        let pod = nth(self.next, self.nodes).phase("Pending");
        self.next += 1;
        let revision = put_pod(store, &pod);
        self.live.push(pod);
        revision
    }

    fn delete(&mut self, store: &ObjectStore) -> u64 {
        let at = self.rng.usize(..self.live.len());
        let pod = self.live.swap_remove(at);
        delete_pod(store, &pod.key())
    }
}

/// Creates or replaces the pod; returns the revision.
pub(crate) fn put_pod(store: &ObjectStore, pod: &Pod) -> u64 {
    let written = store.write(PODS, &pod.key(), |current| {
        let (meta, rest) = pod.document(current.map(|current| &current.meta));
        Ok(Some(WriteDecision::Put(meta, rest)))
    });
    written.ok().flatten().map_or_else(|| store.revision(), |written| written.revision)
}

/// Deletes a pod; returns the revision of the deletion, or the current one if there was no such pod.
pub(crate) fn delete_pod(store: &ObjectStore, key: &str) -> u64 {
    let written = store.write(PODS, key, |current| Ok(current.map(|_| WriteDecision::Remove)));
    written.ok().flatten().map_or_else(|| store.revision(), |written| written.revision)
}

/// Creates `n` events as fast as possible; returns the last revision.
pub(crate) async fn churn(shared: &DemoState, population: &Mutex<ChurnPods>, n: usize) -> u64 {
    let mut revision = shared.store.revision();
    for done in 1..=n {
        revision = population.lock().step(&shared.store);
        if done % BREATH == 0 {
            tokio::task::yield_now().await;
        }
    }
    revision
}

/// A running churn. It creates events at a steady rate until it is dropped or the upstream stops.
#[derive(Debug)]
#[must_use = "the churn ends when this is dropped"]
pub struct RunningChurn {
    stop: DropGuard,
    running: JoinHandle<()>,
}

impl RunningChurn {
    /// Starts a task that changes pods at the configured rate.
    pub(crate) fn start(shared: &Arc<DemoState>, population: &Arc<Mutex<ChurnPods>>, events_per_second: u32) -> Self {
        let stop = shared.stopping.child_token();
        let running = run(shared.clone(), population.clone(), events_per_second, stop.clone());
        Self { running: shared.tasks.spawn(running), stop: stop.drop_guard() }
    }

    /// Ends the churn. When this returns, the last event has been written.
    pub async fn stop(self) {
        drop(self.stop);
        // An error means that the churn panicked, and so has ended too.
        let _ = self.running.await;
    }
}

async fn run(
    shared: Arc<DemoState>,
    population: Arc<Mutex<ChurnPods>>,
    events_per_second: u32,
    stop: CancellationToken,
) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let (mut since, mut done) = (Instant::now(), 0);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = ticks.tick() => {}
        }
        let elapsed_ms = u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let due = elapsed_ms.saturating_mul(u64::from(events_per_second)) / 1000;
        if due > done + CATCH_UP_MAX {
            (since, done) = (Instant::now(), 0);
            continue;
        }
        while done < due {
            population.lock().step(&shared.store);
            done += 1;
        }
    }
}
