//! A feed of pods with its writer, and clients whose sinks are the tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::auth::{Authorizer, Caller, ReadPermission, ReadableNamespaces};
use crate::cache::{
    CacheConfig, CacheReader, CacheWriter, CollectionView, FeedEndReason, FeedSnapshot, FeedState, ObjectChange,
    ObjectChunk, OpenedWatch, WatchStartPosition,
};
use crate::feeds::{FeedHandle, FeedRegistry, FeedScope, FeedStartRequest};
use crate::listing::ScanBudget;
use crate::listing::{CallerCpuSlices, CpuSlice};
use crate::serve::activity::metrics::WatchMetricsRegistry;
use crate::serve::activity::{ActiveWatches, UserAndAgent, WatchTransport};
use crate::serve::feed_spec;
use crate::serve::limits::{
    ConcurrencyConfig, ConcurrencyLimits, ConcurrencyPermit, SlowReaderLimits, SlowReaderReaper,
};
use crate::serve::read::FeedWithRenderer;
use crate::serve::watch::session::{WatchBatch, WatchOptions, WatchSession, WatchTimers};
use crate::upstream::tests::upstream_resource;
use crate::wire::{FeedEncoding, JsonLayout, ObjectReader, ObjectRenderer, ObjectRevision, Representation, WatchItem};
use base::{AbortSignal, DrainTrigger, DrainWatch};
use kubeapi::{
    EventType, Gvr, LabelSelector, MetaApiVersion, RequestInfo, ResourceVersion, SelectableFieldTable, Selector,
    UrlQuery,
};

/// The environment of the watches: a feed that is live from version 10 on.
pub(super) struct Stage {
    pub(super) writer: CacheWriter,
    pub(super) reader: CacheReader,
    drain: DrainTrigger,
    pub(super) feed: FeedHandle,
    pub(super) watch: DrainWatch,
    concurrency: ConcurrencyLimits,
    slices: CallerCpuSlices,
    /// How long ago the watches were requested.
    pub(super) waited: Duration,
    pub(super) slow_readers: SlowReaderReaper,
    pub(super) feeds: FeedRegistry,
    _demands: mpsc::Receiver<FeedStartRequest>,
}

/// One watch and its client.
pub(super) struct Client {
    pub(super) session: WatchSession,
    pub(super) abort: AbortSignal,
    wakes: Arc<WakeCounter>,
}

#[derive(Default)]
struct WakeCounter(AtomicUsize);

impl Wake for WakeCounter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub(super) const ROOM: usize = 32 << 10;

/// With bookmarks, and without a timeout for the first half hour.
pub(super) const TERMS: WatchOptions = WatchOptions {
    bookmarks: true,
    end_bookmark: false,
    timeout_seconds: None,
    duration_min: Duration::from_secs(1800),
    by_proxy: false,
    deltas_after: None,
    changes_before_state: None,
};

/// A watch-list: the state, and a bookmark that marks its end.
pub(super) const WATCH_LIST: WatchOptions = WatchOptions { end_bookmark: true, ..TERMS };

pub(super) fn lasting(seconds: i64) -> WatchOptions {
    WatchOptions { timeout_seconds: Some(seconds), ..TERMS }
}

impl Stage {
    /// Creates a feed with short lanes that was listed at version 10 with these objects: `name`, `app`, version.
    pub(super) fn new(mut config: CacheConfig, pods: &[(&str, &str, u64)]) -> Self {
        config.lane_events_max = 3;
        let (feeds, mut demands) = FeedRegistry::new(config);
        let feed = feeds
            .handle(
                &feed_spec(
                    &upstream_resource(Gvr::new("", "v1", "pods"), "Pod"),
                    FeedScope::Cluster,
                    FeedEncoding::Json,
                ),
                None,
            )
            .expect("there is room");
        let FeedStartRequest { mut writer, .. } = demands.try_recv().expect("the feed is demanded");
        let objects = pods.iter().map(|(name, app, rv)| added(name, app, *rv).object);
        writer.replace(FeedSnapshot::from_objects(ResourceVersion(10), objects.collect::<Vec<ObjectRevision>>()));
        writer.set_state(FeedState::Live);
        let (drain, watch) = DrainTrigger::new();
        let concurrency =
            ConcurrencyLimits::new(&ConcurrencyConfig { watches_max: 100, ..ConcurrencyConfig::default() });
        let (slow_readers, slices) =
            (SlowReaderReaper::new(SlowReaderLimits::default(), Duration::from_secs(60)), CallerCpuSlices::new(1));
        tokio::spawn(slow_readers.clone().run(watch.clone()));
        let reader = feed.reader.clone();
        let waited = Duration::ZERO;
        Self { writer, reader, drain, feed, watch, concurrency, slow_readers, slices, waited, feeds, _demands: demands }
    }

    pub(super) fn empty() -> Self {
        Self::new(CacheConfig::default(), &[])
    }

    pub(super) fn put(&mut self, name: &str, app: &str, rv: u64) {
        self.writer.apply([added(name, app, rv)]).expect("in order");
    }

    pub(super) fn delete(&mut self, name: &str, app: &str, rv: u64) {
        self.writer.apply([deleted(name, app, rv)]).expect("in order");
    }

    /// Applies a bookmark from upstream.
    pub(super) fn bookmark(&mut self, rv: u64) {
        self.writer.advance(ResourceVersion(rv), true);
    }

    /// Advances the feed's version without a message from upstream's stream.
    pub(super) fn advance(&mut self, rv: u64) {
        self.writer.advance(ResourceVersion(rv), false);
    }

    pub(super) fn watch_after(&self, rv: u64, options: WatchOptions) -> Client {
        let opened = self.reader.open(WatchStartPosition::After(ResourceVersion(rv)), CollectionView::everything());
        self.client(opened.expect("in the ring"), options)
    }

    pub(super) fn watch_current(&self, view: CollectionView, options: WatchOptions) -> Client {
        self.client(self.reader.open(WatchStartPosition::Current, view).expect("current"), options)
    }

    /// Opens a watch that shows what `readable` allows.
    pub(super) fn watch_part(
        &self,
        readable: &ReadableNamespaces,
        start: WatchStartPosition,
        view: CollectionView,
        options: WatchOptions,
    ) -> Client {
        let opened = self.reader.open(start, view).expect("in the ring");
        self.permitted(
            &ReadPermission::for_part(readable.clone()),
            opened,
            (None, ObjectRenderer::verbatim(self.reader.envelope())),
            &options,
        )
    }

    /// Opens a partial watch with an initial state, which sends only the metadata of objects.
    pub(super) fn watch_metadata_of_part(&self, readable: &ReadableNamespaces, options: WatchOptions) -> Client {
        let opened = self.reader.open(WatchStartPosition::Current, CollectionView::everything()).expect("current");
        let metadata = Representation::Metadata(FeedEncoding::Json, MetaApiVersion::V1);
        let renderer = ObjectRenderer::derived(metadata, self.reader.envelope(), 34).expect("of anything");
        self.permitted(&ReadPermission::for_part(readable.clone()), opened, (None, renderer), &options)
    }

    /// Opens a watch whose sink accepts chunks of frames.
    pub(super) fn watch_in_chunks(&self, view: CollectionView, options: WatchOptions) -> Client {
        let opened = self.reader.open(WatchStartPosition::Current, view).expect("current");
        let chunks =
            opened.snapshot.as_ref().expect("asked for").chunks().now_or_never().expect("few enough for one go");
        self.client_of(opened, Some(chunks), options)
    }

    pub(super) fn client(&self, opened: OpenedWatch, options: WatchOptions) -> Client {
        self.client_of(opened, None, options)
    }

    fn client_of(&self, opened: OpenedWatch, chunks: Option<Arc<[ObjectChunk]>>, options: WatchOptions) -> Client {
        let request = RequestInfo::parse("GET", "/api/v1/pods", &UrlQuery::parse("watch=1")).expect("a plain path");
        let grant =
            Authorizer::open().grant(&Caller::ProxyItself, &request).now_or_never().expect("no review is needed");
        self.permitted(
            &grant.expect("the caller is the proxy"),
            opened,
            (chunks, ObjectRenderer::verbatim(self.reader.envelope())),
            &options,
        )
    }

    fn permitted(
        &self,
        permit: &ReadPermission,
        opened: OpenedWatch,
        (chunks, renderer): (Option<Arc<[ObjectChunk]>>, ObjectRenderer),
        options: &WatchOptions,
    ) -> Client {
        let (abort, key) = (AbortSignal::default(), &self.feed.spec.key);
        let OpenedWatch { snapshot, cursor } = opened;
        let (representation, protocol) = (Representation::Object(FeedEncoding::Json), WatchTransport::Http1);
        let (client, follower) = (UserAndAgent::default(), cursor.follower());
        let active_watch = ActiveWatches::default().opened(client, follower, representation, protocol);
        let metrics = WatchMetricsRegistry::default().open(key, representation, protocol, active_watch);
        let received = Instant::now() - self.waited;
        let (grant, slow_readers) = (permit.grant_status(), self.slow_readers.clone());
        let timers = WatchTimers::start(received, options, grant, slow_readers, abort.clone(), &self.watch);
        let scan_budget = ScanBudget::new(self.slices.clone(), None, cursor.view().is_expensive());
        let state = snapshot.clone().unwrap_or_else(|| cursor.capture().snapshot);
        let mut namespaces: Vec<Arc<str>> =
            state.select(cursor.view(), true, None).map(|object| object.key.namespace().into()).collect();
        namespaces.dedup();
        let source = FeedWithRenderer { feed: self.feed.clone(), renderer };
        let mut session = WatchSession::new(source, cursor, options, timers, self.permit(), scan_budget, metrics);
        match (permit.namespaces(), snapshot) {
            (Some(part), snapshot) => session.show_part(part.clone(), namespaces, snapshot),
            (None, Some(snapshot)) => session.send_state(snapshot, permit, chunks),
            (None, None) => {}
        }
        Client { session, abort, wakes: Arc::default() }
    }

    fn permit(&self) -> ConcurrencyPermit {
        self.concurrency.watch(None, 0).expect("there is room")
    }

    /// Takes the only slice, as another task would.
    pub(super) fn take_slice(&self) -> CpuSlice {
        self.slices.take(&None).expect("no slice is taken")
    }

    /// Returns how many more watches can be opened.
    pub(super) fn free_places(&self) -> usize {
        std::iter::from_fn(|| self.concurrency.watch(None, 0).ok()).collect::<Vec<_>>().len()
    }

    /// Ends the feed as a supervisor would. The proxy keeps running.
    pub(super) fn end_feed(self, end: FeedEndReason) -> DrainTrigger {
        let Self { mut writer, drain, .. } = self;
        writer.set_state(FeedState::Ended(end));
        drain
    }

    /// Starts the drain. From now on, only the watches keep the proxy from ending.
    pub(super) async fn drain(self, grace: Duration) -> (CacheWriter, JoinHandle<bool>) {
        let Self { writer, drain, .. } = self;
        let ending = tokio::spawn(drain.drain(grace));
        pass_ms(0).await;
        (writer, ending)
    }
}

impl Client {
    /// Returns all frames that are available now, one per frame. ` end` marks the end of an initial state, and `over`
    /// the end of the watch.
    pub(super) fn reported(&mut self) -> Vec<String> {
        let mut reported = Vec::new();
        // A thousand polls at one instant would be a loop.
        for _ in 0..1_000 {
            match self.poll(ROOM) {
                Poll::Ready(Some(frames)) => reported.extend(frames),
                Poll::Ready(None) => {
                    reported.push("over".to_owned());
                    return reported;
                }
                Poll::Pending => return reported,
            }
        }
        panic!("it never stops: {reported:?}")
    }

    /// Returns the next pieces as the sink receives them.
    pub(super) fn pieces(&mut self, bytes_max: usize) -> Vec<Bytes> {
        let mut batch = WatchBatch { bytes_max, ..WatchBatch::new() };
        let waker = Waker::from(self.wakes.clone());
        let _ = self.session.poll_frames(&mut Context::from_waker(&waker), &mut batch);
        batch.frames
    }

    pub(super) fn poll(&mut self, bytes_max: usize) -> Poll<Option<Vec<String>>> {
        let mut batch = WatchBatch { bytes_max, ..WatchBatch::new() };
        let waker = Waker::from(self.wakes.clone());
        let polled = self.session.poll_frames(&mut Context::from_waker(&waker), &mut batch);
        let frames: Vec<_> = batch.frames.iter().map(said).collect();
        assert_eq!(frames.is_empty(), polled != Poll::Ready(Some(())), "{polled:?} with {frames:?}");
        polled.map(|more| more.map(|()| frames))
    }

    /// Returns how often the task of this watch was woken.
    pub(super) fn woken(&self) -> usize {
        self.wakes.0.load(Ordering::SeqCst)
    }
}

/// Advances the time, and lets the waiting tasks run.
pub(super) async fn pass(seconds: u64) {
    pass_ms(seconds * 1_000).await;
}

pub(super) async fn pass_ms(milliseconds: u64) {
    tokio::time::advance(Duration::from_millis(milliseconds)).await;
    // A separate task handles the timers.
    tokio::task::yield_now().await;
    tokio::task::yield_now().await;
}

/// Returns a view of the objects with the label `app=x`.
pub(super) fn app_x() -> CollectionView {
    let labels = LabelSelector::parse("app=x").expect("a label selector");
    CollectionView::new(None, Selector { labels, ..Selector::everything() })
}

pub(super) fn added(name: &str, app: &str, rv: u64) -> ObjectChange {
    change(EventType::Added, name, app, rv)
}

pub(super) fn deleted(name: &str, app: &str, rv: u64) -> ObjectChange {
    change(EventType::Deleted, name, app, rv)
}

/// Returns a change in namespace `a`, unless the name contains another namespace.
fn change(event_type: EventType, name: &str, app: &str, rv: u64) -> ObjectChange {
    let (namespace, name) = name.split_once('/').unwrap_or(("a", name));
    let frame = format!(
        r#"{{"type":"{event_type}","object":{{"kind":"Pod","apiVersion":"v1","metadata":{{{}}}}}}}"#,
        format_args!(
            r#""name":"{name}","namespace":"{namespace}","resourceVersion":"{rv}",{}"#,
            format_args!(r#""labels":{{"app":"{app}"}},"annotations":{{"written":"{rv}"}}"#)
        )
    ) + "\n";
    let reader = ObjectReader::new(FeedEncoding::Json, JsonLayout::BuiltIn, Arc::new(SelectableFieldTable::default()));
    match reader.watch_event(frame.into()).expect("a well-formed frame") {
        WatchItem::Change { event_type, object, frame } => ObjectChange { event_type, object, frame: Some(frame) },
        other => panic!("{other:?} is not a change"),
    }
}

/// Formats a frame: `ADDED p 11`, `ADDED b/p 11`, `BOOKMARK 20`, `BOOKMARK 20 end`, `ERROR 410 Expired: too old …`. A
/// deletion includes the version of the object if it differs: `DELETED p 12 as of 11`.
fn said(frame: &Bytes) -> String {
    let line = std::str::from_utf8(frame).expect("text");
    assert!(line.ends_with("}\n") && line.matches('\n').count() == 1, "not one line: {line:?}");
    let event: Value = serde_json::from_str(line).expect("one JSON document");
    let (event_type, object) = (event["type"].as_str().expect("a type"), &event["object"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (name, rv) = (text(&object["metadata"]["name"]), text(&object["metadata"]["resourceVersion"]));
    match event_type {
        "ERROR" => format!("ERROR {} {}: {}", object["code"], text(&object["reason"]), text(&object["message"])),
        "BOOKMARK" => {
            let ends = object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true";
            format!("BOOKMARK {rv}{}", if ends { " end" } else { "" })
        }
        _ => {
            let namespace = text(&object["metadata"]["namespace"]);
            let name = if namespace == "a" { name } else { format!("{namespace}/{name}") };
            match text(&object["metadata"]["annotations"]["written"]) {
                written if written == rv => format!("{event_type} {name} {rv}"),
                written => format!("{event_type} {name} {rv} as of {written}"),
            }
        }
    }
}
