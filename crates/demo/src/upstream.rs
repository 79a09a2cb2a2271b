//! The interface of the demo upstream: starts it, changes its objects, and returns the requests that it received.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::io::DuplexStream;

use super::changes::StoreSubscription;
use super::churn::{self, ChurnPods, RunningChurn};
use super::counts::RequestCounts;
use super::fault_injector::FaultInjector;
use super::kinds::{PODS, known};
use super::listener::{ReservedPort, accept, connect, follow_orders};
use super::pods::{NODES, Pod};
use super::reviews::ReviewResponses;
use super::seed;
use super::shared::{DemoSettings, DemoState, ReceivedRequest};
use super::store::{ObjectStore, WriteDecision};

/// The seconds of churn for which a resource keeps its events, by default; `RING_EVENTS` bounds their number.
const RING_SECONDS: u32 = 120;
const RING_EVENTS: std::ops::RangeInclusive<usize> = 10_000..=102_400;

/// An upstream that is not running yet.
#[derive(Clone, Debug)]
pub struct DemoApiserver {
    address: SocketAddr,
    pods: usize,
    nodes: usize,
    rate: u32,
    seed: u64,
    ring_events_max: Option<usize>,
    settings: DemoSettings,
}

/// Describes a small apiserver-alike on a loopback port, by default with no pods and no churn.
#[must_use]
pub fn upstream() -> DemoApiserver {
    DemoApiserver {
        address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
        pods: 0,
        nodes: NODES,
        rate: 0,
        seed: 1,
        ring_events_max: None,
        settings: DemoSettings {
            bookmark_period: Duration::from_secs(60),
            future_wait: Duration::from_secs(3),
            streams_max: 100,
            remember_requests: true,
        },
    }
}

impl DemoApiserver {
    /// Sets the number of pods at the start, which are spread over ten namespaces and all nodes. The churn keeps it
    /// roughly constant.
    #[must_use]
    pub fn pods(self, pods: usize) -> Self {
        Self { pods, ..self }
    }

    #[must_use]
    pub fn nodes(self, nodes: usize) -> Self {
        Self { nodes, ..self }
    }

    /// Sets the number of pod events per second once [`RunningDemoApiserver::churning`] is called.
    #[must_use]
    pub fn rate(self, events_per_second: u32) -> Self {
        Self { rate: events_per_second, ..self }
    }

    /// Seeds the choices of the churn. The same seed makes the same sequence of events.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Self { seed, ..self }
    }

    /// Sets how many events a resource's history holds. Watches from older revisions get 410.
    #[must_use]
    pub fn ring_events_max(self, ring_events_max: usize) -> Self {
        Self { ring_events_max: Some(ring_events_max), ..self }
    }

    #[must_use]
    pub fn bookmark_period(mut self, period: Duration) -> Self {
        self.settings.bookmark_period = period;
        self
    }

    /// Sets how long a read waits for a revision that does not exist yet before it gets 504.
    #[must_use]
    pub fn future_wait(mut self, wait: Duration) -> Self {
        self.settings.future_wait = wait;
        self
    }

    /// Sets how many streams an HTTP/2 client may have open on one connection.
    #[must_use]
    pub fn streams_max(mut self, streams_max: u32) -> Self {
        self.settings.streams_max = streams_max;
        self
    }

    /// Sets whether requests are remembered for [`RunningDemoApiserver::requests`].
    #[must_use]
    pub fn remember_requests(mut self, remember: bool) -> Self {
        self.settings.remember_requests = remember;
        self
    }

    /// Sets the address on which the upstream listens, instead of a free loopback port.
    #[must_use]
    pub fn listen(self, address: SocketAddr) -> Self {
        Self { address, ..self }
    }

    /// Starts the upstream, for tests.
    ///
    /// # Panics
    /// If the address cannot be bound.
    pub async fn run(self) -> RunningDemoApiserver {
        match self.try_run().await {
            Ok(running) => running,
            Err(error) => panic!("the demo upstream cannot listen: {error}"),
        }
    }

    /// Starts the upstream. When this returns, connections are accepted.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn try_run(self) -> io::Result<RunningDemoApiserver> {
        let port = ReservedPort::hold(self.address)?;
        let listener = port.listen()?;
        let running = self.seeded(port.address).await?;
        let shared = &running.shared;
        shared.bound.send_replace(true);
        drop(shared.tasks.spawn(accept(port, listener, shared.clone())));
        Ok(running)
    }

    /// Starts the upstream without a port, reachable only through [`RunningDemoApiserver::connector`]. This is for
    /// tests that pause the clock, which does not stop a kernel's sockets. No work runs on another thread.
    #[must_use]
    pub fn in_memory(self) -> RunningDemoApiserver {
        let address = self.address;
        let store = self.store();
        let running = self.of(store, address);
        let shared = &running.shared;
        shared.bound.send_replace(true);
        drop(shared.tasks.spawn(follow_orders(shared.clone())));
        running
    }

    async fn seeded(self, address: SocketAddr) -> io::Result<RunningDemoApiserver> {
        let seeding = self.clone();
        let store = tokio::task::spawn_blocking(move || seeding.store()).await.map_err(io::Error::other)?;
        Ok(self.of(store, address))
    }

    /// Returns a store with the initial objects.
    fn store(&self) -> ObjectStore {
        let ring_events = usize::try_from(self.rate.saturating_mul(RING_SECONDS)).unwrap_or(usize::MAX);
        let ring_events_max =
            self.ring_events_max.unwrap_or(ring_events.clamp(*RING_EVENTS.start(), *RING_EVENTS.end()));
        let store = ObjectStore::new(ring_events_max);
        seed::seed(&store, self.pods, self.nodes);
        store
    }

    fn of(self, store: ObjectStore, address: SocketAddr) -> RunningDemoApiserver {
        let shared = Arc::new(DemoState::new(Arc::new(store), self.settings));
        let population = Arc::new(Mutex::new(ChurnPods::new(self.pods, self.nodes, self.seed)));
        RunningDemoApiserver { address, shared, population, rate: self.rate }
    }
}

/// A running upstream. It stops when it is dropped; [`RunningDemoApiserver::stop`] also waits for the last stream to
/// end.
#[derive(Debug)]
pub struct RunningDemoApiserver {
    address: SocketAddr,
    shared: Arc<DemoState>,
    population: Arc<Mutex<ChurnPods>>,
    rate: u32,
}

impl RunningDemoApiserver {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts another server on the same storage, on a free loopback port. It has its own connections, counts, reviews
    /// and faults. Faults that concern the storage concern both.
    ///
    /// # Panics
    /// If there is no free port.
    #[must_use]
    pub fn beside(&self) -> Self {
        let listening = ReservedPort::hold(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).and_then(|port| {
            let listener = port.listen()?;
            Ok((port, listener))
        });
        let (port, listener) = listening.unwrap_or_else(|error| panic!("the demo upstream cannot listen: {error}"));
        let shared = Arc::new(DemoState::new(self.shared.store.clone(), self.shared.settings.clone()));
        let beside = Self { address: port.address, shared, population: self.population.clone(), rate: self.rate };
        beside.shared.bound.send_replace(true);
        drop(beside.shared.tasks.spawn(accept(port, listener, beside.shared.clone())));
        beside
    }

    /// Returns `http://127.0.0.1:PORT`, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Returns a function that opens connections within this process, or `None` while the upstream is down.
    /// [`FaultInjector`] that freeze sockets do not freeze them.
    pub fn connector(&self) -> impl Fn() -> Option<DuplexStream> + Send + Sync + 'static + use<> {
        let shared = self.shared.clone();
        move || connect(&shared)
    }

    /// Returns the current revision of the whole store.
    pub fn revision(&self) -> u64 {
        self.shared.store.revision()
    }

    /// Returns how many events a resource has had since the start. Each initial object counts as one.
    ///
    /// # Panics
    /// If the upstream has no such resource: a mistake of the caller.
    pub fn events(&self, plural: &str) -> u64 {
        self.shared.store.events(known(plural))
    }

    pub fn counts(&self) -> RequestCounts {
        self.shared.counts.read()
    }

    /// Completes when the counts satisfy `is_reached`. It has no timeout: a test sets its own.
    pub async fn until(&self, is_reached: impl Fn(&RequestCounts) -> bool) {
        let mut changed = self.shared.counts.subscribe();
        while !is_reached(&self.counts()) {
            if changed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Returns the last few thousand requests, oldest first.
    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.shared.seen()
    }

    pub fn faults(&self) -> FaultInjector {
        FaultInjector::new(self.shared.clone())
    }

    /// Returns the responses to reviews, which a test can set: which tokens are valid, and which users may do what.
    pub fn reviews(&self) -> &ReviewResponses {
        &self.shared.reviews
    }

    /// Creates or replaces a running pod. Returns the revision, as all writes here.
    pub fn create_pod(&self, namespace: &str, name: &str) -> u64 {
        self.put_pod(&Pod::new(namespace, name))
    }

    /// Creates or replaces a pod that the test describes.
    pub fn put_pod(&self, pod: &Pod) -> u64 {
        churn::put_pod(&self.shared.store, pod)
    }

    /// Increments the restart count in the status of a pod; creates the pod if there is none.
    pub fn update_pod(&self, namespace: &str, name: &str) -> u64 {
        let new = Pod::new(namespace, name);
        let found = self.shared.store.get(PODS, &new.key());
        let pod = found.map_or_else(|| new, |object| Pod::of(&object));
        let restarts = pod.restarts + 1;
        self.put_pod(&pod.restarts(restarts))
    }

    /// Deletes a pod; returns the current revision if there is no such pod.
    pub fn delete_pod(&self, namespace: &str, name: &str) -> u64 {
        churn::delete_pod(&self.shared.store, &Pod::new(namespace, name).key())
    }

    /// Deletes the named pods of a namespace that exist, all at one revision, as etcd does when a lease expires.
    pub fn delete_pods_at_once(&self, namespace: &str, names: &[&str]) -> u64 {
        let keys: Vec<_> = names.iter().map(|name| Pod::new(namespace, name).key()).collect();
        self.shared.store.remove_all(PODS, keys.iter().map(String::as_str))
    }

    /// Deletes those of the objects (`namespace/name`) that exist, all at one revision, as etcd does when a lease
    /// expires.
    ///
    /// # Panics
    /// The upstream has no such resource: a mistake in the test.
    pub fn delete_at_once<'a>(&self, plural: &str, keys: impl IntoIterator<Item = &'a str>) -> u64 {
        self.shared.store.remove_all(known(plural), keys)
    }

    /// Subscribes to the changes of a resource from now on, read from the store itself.
    ///
    /// # Panics
    /// If the upstream has no such resource: a mistake in the test.
    pub fn changes(&self, plural: &str) -> StoreSubscription {
        StoreSubscription::of(&self.shared.store, known(plural))
    }

    /// Starts pod events in the demo's mix, at the configured [`rate`](DemoApiserver::rate).
    pub fn churning(&self) -> RunningChurn {
        RunningChurn::start(&self.shared, &self.population, self.rate)
    }

    /// Creates `n` pod events in the demo's mix, as fast as possible.
    pub async fn churn(&self, n: usize) -> u64 {
        churn::churn(&self.shared, &self.population, n).await
    }

    /// Creates or replaces any object, without the checks that a request would meet.
    ///
    /// # Panics
    /// If the upstream has no such resource: a mistake in the test.
    pub fn put(&self, plural: &str, object: serde_json::Value) -> u64 {
        seed::put(&self.shared.store, known(plural), object.into())
    }

    /// Deletes any object; the namespace is empty for cluster-wide resources.
    ///
    /// # Panics
    /// If the upstream has no such resource: a mistake in the test.
    pub fn delete(&self, plural: &str, namespace: &str, name: &str) -> u64 {
        let (kind, key) = (known(plural), key(namespace, name));
        let written = self.shared.store.write(kind, &key, |current| Ok(current.map(|_| WriteDecision::Remove)));
        written.ok().flatten().map_or_else(|| self.revision(), |written| written.revision)
    }

    /// Returns the object as a GET does, without the final newline.
    ///
    /// # Panics
    /// If the upstream has no such resource: a mistake in the test.
    pub fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<Bytes> {
        self.shared.store.get(known(plural), &key(namespace, name)).map(|object| object.body.clone())
    }

    /// Returns `namespace/name` (or `name`) and the resourceVersion of all objects, in the order of a LIST.
    ///
    /// # Panics
    /// If the upstream has no such resource: a mistake in the test.
    pub fn keys(&self, plural: &str) -> Vec<(String, u64)> {
        let (objects, ..) = self.shared.store.now(known(plural));
        objects.iter().map(|object| (object.meta.key(), object.meta.rv)).collect()
    }

    /// Ends every stream cleanly, closes every connection, and waits until that is done.
    pub async fn stop(self) {
        let faults = self.faults();
        faults.thaw();
        faults.unhush_watches();
        faults.release_lists();
        self.shared.stopping.cancel();
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl Drop for RunningDemoApiserver {
    fn drop(&mut self) {
        self.shared.stopping.cancel();
        self.shared.faults.freeze.set(false);
    }
}

fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}
