//! Runs feeds against an in-memory upstream, on a paused clock that advances only when all tasks are idle.

mod breaks;
mod gaps;
mod proofs;
mod refusals;
mod resuming_clients;
mod self_checks;
mod transactions;

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Uri};
use tokio::time::{Instant, sleep, timeout};

use super::{ReflectConfig, ReflectorSupervisor};
use crate::cache::{CacheConfig, FeedEndReason, FeedState};
use crate::feeds::{FeedHandle, FeedKey, FeedRegistry, FeedScope, FeedSpec};
use crate::upstream::{SERVED, STALE, UpstreamClient, UpstreamRequestCause};
use crate::wire::FeedEncoding;
use base::BackgroundTasks;
use demo::{DemoApiserver, RunningDemoApiserver, upstream};
use kubeapi::{Gvr, ResourceVersion};

/// A feed of pods and its upstream.
struct Scene {
    up: RunningDemoApiserver,
    feeds: FeedRegistry,
    feed: FeedHandle,
    client: UpstreamClient,
    _tasks: BackgroundTasks,
}

/// The timeout for conditions that must occur eventually.
const NEVER: Duration = Duration::from_secs(24 * 3600);

pub(super) fn spec() -> FeedSpec {
    FeedSpec::like_pods(FeedKey {
        gvr: Gvr::new("", "v1", "pods"),
        scope: FeedScope::Cluster,
        encoding: FeedEncoding::Json,
    })
}

pub(super) fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

impl Scene {
    /// Demands a feed. Self-checks are off, because they would run at random times.
    fn begun(up: RunningDemoApiserver) -> Self {
        Self::begun_with(up, CacheConfig::default())
    }

    fn begun_with(up: RunningDemoApiserver, config: CacheConfig) -> Self {
        Self::configured(up, config, ReflectConfig { self_check: None, ..ReflectConfig::default() })
    }

    fn configured(up: RunningDemoApiserver, config: CacheConfig, reflect: ReflectConfig) -> Self {
        Self::following(&spec(), up, config, reflect, None)
    }

    /// A live feed that begins at the version from which a client resumes, as after a restart of the proxy.
    async fn resumed(up: RunningDemoApiserver, from: u64) -> Self {
        let reflect = ReflectConfig { self_check: None, ..ReflectConfig::default() };
        let scene = Self::following(&spec(), up, CacheConfig::default(), reflect, Some(ResourceVersion(from)));
        scene.until_state("live", |state| state == FeedState::Live).await;
        scene
    }

    /// A live feed of `events` Events.
    async fn of_events(up: RunningDemoApiserver, events: u32) -> Self {
        for n in 0..events {
            let metadata = serde_json::json!({"name": format!("e{n}"), "namespace": "t1"});
            up.put("events", serde_json::json!({"metadata": metadata}));
        }
        let key = FeedKey { gvr: Gvr::new("", "v1", "events"), ..spec().key };
        let spec = FeedSpec { kind: "Event".into(), list_kind: "EventList".into(), ..FeedSpec::like_pods(key) };
        let reflect = ReflectConfig { self_check: None, ..ReflectConfig::default() };
        Self::following(&spec, up, CacheConfig::default(), reflect, None).serving().await
    }

    fn following(
        spec: &FeedSpec,
        up: RunningDemoApiserver,
        config: CacheConfig,
        reflect: ReflectConfig,
        resume: Option<ResourceVersion>,
    ) -> Self {
        // Seeds the random duration of the upstream's watches, half an hour to an hour.
        fastrand::seed(1);
        let (feeds, demands) = FeedRegistry::new(config);
        let (client, tasks) = (UpstreamClient::in_memory(up.connector()), BackgroundTasks::new());
        let supervisor = ReflectorSupervisor::new(client.clone(), feeds.clone(), reflect, tasks.clone());
        tasks.spawn("supervisor", supervisor.run(demands));
        let feed = feeds.handle(spec, resume).expect("there is room");
        Self { up, feeds, feed, client, _tasks: tasks }
    }

    /// A live feed that has run for a while.
    async fn of(up: DemoApiserver) -> Self {
        Self::begun(up.in_memory()).serving().await
    }

    /// A live feed with self-checks.
    async fn checked(up: DemoApiserver) -> Self {
        Self::configured(up.in_memory(), CacheConfig::default(), ReflectConfig::default()).serving().await
    }

    async fn serving(self) -> Self {
        self.until_state("live", |state| state == FeedState::Live).await;
        sleep(seconds(10)).await;
        self
    }

    /// A feed of config maps from the same upstream.
    fn other(&self) -> FeedHandle {
        let key = FeedKey { gvr: Gvr::new("", "v1", "configmaps"), ..spec().key };
        let spec = FeedSpec { kind: "ConfigMap".into(), list_kind: "ConfigMapList".into(), ..FeedSpec::like_pods(key) };
        self.feeds.handle(&spec, None).expect("there is room")
    }

    /// Waits until the feed is in a state that satisfies `is`. Returns the time that it took.
    async fn until_state(&self, what: &str, is: impl Fn(FeedState) -> bool) -> Duration {
        let (began, mut state) = (Instant::now(), self.feed.reader.watch_state());
        let reached = timeout(NEVER, state.wait_for(|state| is(*state))).await.is_ok();
        assert!(reached, "{what}: {:?}", self.feed.reader.state());
        began.elapsed()
    }

    /// Waits until the feed has reached `revision`. Returns the time that it took.
    async fn until(&self, revision: u64) -> Duration {
        let began = Instant::now();
        let reached = timeout(NEVER, self.feed.reader.reached(ResourceVersion(revision))).await.is_ok();
        assert!(reached, "{revision} of {:?}", self.feed.reader.progress());
        began.elapsed()
    }

    /// Waits for a proof that the feed has everything that was written before. Returns the time that it took.
    async fn proof(&self) -> Duration {
        // A reader that arrives at the very moment of a request is covered by it.
        sleep(Duration::from_millis(1)).await;
        let came = Instant::now();
        assert!(timeout(NEVER, self.feed.freshness.wait_proven(came)).await.is_ok(), "no proof in a day");
        came.elapsed()
    }

    /// Whether a reader that arrives now still waits for a proof after `long`.
    async fn waits(&self, long: Duration) -> bool {
        timeout(long, self.feed.freshness.wait_proven(Instant::now())).await.is_err()
    }

    /// Makes upstream answer as a proxy does whose feed has been disconnected for `stale` seconds, if any.
    fn is_a_proxy(&self, stale: Option<u64>) {
        let mut headers = HeaderMap::from_iter([(SERVED, HeaderValue::from_static("cache"))]);
        headers.extend(stale.map(|seconds| (STALE, seconds.into())));
        self.up.faults().send_headers(headers);
    }

    /// Writes an object that is not of the feed.
    fn elsewhere(&self, number: u32) -> u64 {
        let metadata = serde_json::json!({"name": format!("c{number}"), "namespace": "t1"});
        self.up.put("configmaps", serde_json::json!({"metadata": metadata}))
    }

    /// Sends an unrelated request to upstream. Returns whether it succeeded.
    async fn ask(&self) -> bool {
        self.client.fetch(UpstreamRequestCause::List, "/api/v1/configmaps?limit=1", "application/json").await.is_ok()
    }

    /// The sum of the feed's counts whose label has this value.
    fn said(&self, value: &str) -> u64 {
        self.feed.counts.labelled_counts().iter().filter(|(word, _)| word.value == value).map(|(_, count)| count).sum()
    }

    /// Whether the feed holds what upstream does.
    fn is_true(&self) -> bool {
        let snapshot = self.feed.reader.snapshot();
        let cached = snapshot.iter().map(|object| (object.key.as_str().to_owned(), object.rv.0));
        cached.eq(self.up.keys("pods"))
    }

    /// The `resourceVersion` from which the last watch began.
    fn last_start(&self) -> Option<u64> {
        let requests = self.up.requests();
        let watch = requests.iter().rev().find(|request| is_plain_watch(&request.uri))?;
        watch.uri.query()?.split('&').find_map(|pair| pair.strip_prefix("resourceVersion="))?.parse().ok()
    }
}

fn is_plain_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.contains("watch=true") && !query.contains("sendInitialEvents"))
}
