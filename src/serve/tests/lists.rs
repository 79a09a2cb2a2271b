//! The bytes of a LIST are those of its objects in order, however the LIST is assembled.

mod compressed;
mod printed;

use std::future::poll_fn;
use std::io::Read as _;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::BodyExt;

use crate::auth::{Authorizer, Caller, ReadPermission};
use crate::cache::{CacheConfig, CollectionView, FeedSnapshot, ObjectChunk};
use crate::feeds::{FeedHandle, FeedRegistry, FeedScope, FeedStartRequest};
use crate::listing::page::page;
use crate::listing::{CallerCpuSlices, GzipList, ListBody, ListPageRequest, PlainList, ScanPacer, ScanQueue};
use crate::serve::ResponseBody;
use crate::serve::feed_spec;
use crate::serve::limits::{ConcurrencyConfig, ConcurrencyLimits, SlowReaderLimits, SlowReaderReaper};
use crate::upstream::tests::upstream_resource;
use crate::wire::{
    FeedEncoding, JsonLayout, ListMeta, ObjectReader, ObjectRenderer, ObjectRevision, Representation, WatchItem,
};
use base::AbortSignal;
use kubeapi::{
    ContinueToken, ContinueVersion, Gvr, LabelSelector, ListPageSource, ListPlan, MetaApiVersion, RequestInfo,
    ResourceVersion, ResourceVersionMatch, SelectableFieldTable, Selector, UrlQuery,
};

const REPRESENTATIONS: [Representation; 3] = [
    Representation::Object(FeedEncoding::Json),
    Representation::Metadata(FeedEncoding::Json, MetaApiVersion::V1),
    Representation::Metadata(FeedEncoding::Protobuf, MetaApiVersion::V1),
];
const NAMESPACES: [&str; 4] = ["t1", "t1-a", "t1.a", "t2"];

fn padded(namespace: &str, name: usize, rv: u64, bytes: usize) -> ObjectRevision {
    pod(namespace, name, rv, &"p".repeat(bytes))
}

fn pod(namespace: &str, name: usize, rv: u64, padding: &str) -> ObjectRevision {
    let app = ["x", "y"][name % 2];
    let labels = format!(r#""labels":{{"app":"{app}"}},"annotations":{{"padding":"{padding}"}}"#);
    let metadata = format!(r#""name":"p{name:03}","namespace":"{namespace}","resourceVersion":"{rv}",{labels}"#);
    let object = format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{{metadata}}},"spec":{{}},"status":{{}}}}"#);
    let reader = ObjectReader::new(FeedEncoding::Json, JsonLayout::BuiltIn, Arc::new(SelectableFieldTable::default()));
    match reader.watch_event(format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n").into()).expect("well-formed") {
        WatchItem::Change { object, .. } => object,
        other => panic!("{other:?} is not a change"),
    }
}

/// Creates a feed of pods with these objects.
fn feed(objects: Vec<ObjectRevision>) -> (FeedHandle, (FeedRegistry, FeedStartRequest)) {
    let pods = upstream_resource(Gvr::new("", "v1", "pods"), "Pod");
    let (feeds, mut demands) = FeedRegistry::new(CacheConfig::default());
    let feed = feeds.handle(&feed_spec(&pods, FeedScope::Cluster, pods.encoding), None).expect("there is room");
    let mut demand = demands.try_recv().expect("the feed is demanded");
    demand.writer.replace(FeedSnapshot::from_objects(ResourceVersion(1_000), objects));
    (feed, (feeds, demand))
}

fn permit() -> ReadPermission {
    let request = RequestInfo::parse("GET", "/api/v1/pods", &UrlQuery::parse("")).expect("a plain path");
    let grant =
        Authorizer::open().grant(&Caller::ProxyItself, &request).now_or_never().expect("decided without a review");
    grant.expect("the caller is the proxy")
}

fn renderer(feed: &FeedHandle, representation: Representation) -> ObjectRenderer {
    let feed = feed.reader.envelope();
    ObjectRenderer::derived(representation, feed, 36).unwrap_or_else(|| ObjectRenderer::verbatim(feed))
}

fn pace() -> ScanPacer {
    ScanPacer::new(None, (ScanQueue::at_a_time(1), CallerCpuSlices::new(1)), None)
}

/// Returns the bytes that the client receives, after checking that the compressed form is equal.
async fn listed(feed: &FeedHandle, read: &ListPageRequest, renderer: &ObjectRenderer) -> Vec<u8> {
    let written = async || {
        let page = page(&permit(), feed, &feed.reader.snapshot(), read, &mut pace()).await;
        PlainList::prepare(page, renderer, &mut pace()).await.expect("everything can be written")
    };
    let (mut plain, mut deflated) = (Vec::new(), Vec::new());
    let mut list = ListBody::new(written().await);
    while let Some(chunk) = poll_fn(|cx| list.poll_chunk(cx)).await {
        let chunk = chunk.expect("it was written before");
        assert!(!chunk.is_empty());
        plain.extend_from_slice(&chunk);
    }
    assert!(list.is_over());
    let list = written().await;
    assert_eq!(list.is_worth_compressing(), plain.len() > crate::listing::PLAIN_BYTES_MAX);
    let mut list = ListBody::new(GzipList::new(list));
    while let Some(chunk) = poll_fn(|cx| list.poll_chunk(cx)).await {
        deflated.extend_from_slice(&chunk.expect("it was written before"));
    }
    let mut inflated = Vec::new();
    flate2::bufread::GzDecoder::new(deflated.as_slice()).read_to_end(&mut inflated).expect("one whole member");
    assert_eq!(inflated, plain);
    plain
}

/// Returns the expected bytes, assembled object by object.
fn expected(feed: &FeedHandle, read: &ListPageRequest, renderer: &ObjectRenderer) -> Vec<u8> {
    let snapshot = feed.reader.snapshot();
    let start = read.plan.start.as_ref().map(|start| match read.view.namespace() {
        Some(namespace) => format!("{namespace}/{start}"),
        None => start.clone(),
    });
    let scoped = |object: &&Arc<ObjectRevision>| {
        read.view.namespace().is_none_or(|namespace| object.key.namespace() == namespace)
            && start.as_deref().is_none_or(|start| object.key.as_str() >= start)
    };
    let all: Vec<_> = snapshot.iter().filter(scoped).collect();
    let limit = read.plan.limit.map_or(usize::MAX, |limit| usize::try_from(limit).expect("small"));
    let found: Vec<_> = all.iter().copied().filter(|object| read.view.matches(object)).take(limit).collect();
    let last = found.last().filter(|_| found.len() == limit);
    let left = last.map_or(0, |last| all.iter().filter(|object| object.key > last.key).count());
    let mut meta = ListMeta { resource_version: snapshot.rv, ..ListMeta::default() };
    if let (Some(last), true) = (last, left > 0) {
        let at = ContinueVersion::Version(snapshot.rv);
        meta.continue_token = ContinueToken::after(at, &last.key, read.in_namespace).encode(read.pages);
        meta.remaining = read.view.selector().is_everything().then(|| i64::try_from(left).expect("few"));
    }
    let bodies: Vec<Bytes> = found.iter().map(|object| renderer.body(object.body()).expect("written")).collect();
    let frame = renderer.list(&meta, bodies.len());
    let items_len = bodies.iter().map(|body| frame.item_len(body.len())).sum();
    let mut out = frame.head(bodies.len(), items_len).to_vec();
    for (index, body) in bodies.iter().enumerate() {
        frame.put_item(index == 0, body, &mut out);
    }
    out.extend_from_slice(&frame.tail());
    assert_eq!(out.len(), frame.content_length(bodies.len(), items_len));
    out
}

fn reads(random: &mut fastrand::Rng) -> ListPageRequest {
    let namespace = random.bool().then(|| NAMESPACES[random.usize(..NAMESPACES.len())]);
    let labels = LabelSelector::parse(["", "", "app=x"][random.usize(..3)]).expect("a label selector");
    let start = random.bool().then(|| {
        let name = format!("p{:03}\0", random.usize(..60));
        if namespace.is_some() { name } else { format!("{}/{name}", NAMESPACES[random.usize(..NAMESPACES.len())]) }
    });
    let plan = ListPlan { version: ResourceVersionMatch::Any, limit: random.bool().then(|| random.u64(1..80)), start };
    let view = CollectionView::new(namespace, Selector { labels, ..Selector::everything() });
    ListPageRequest {
        representation: REPRESENTATIONS[0],
        view,
        plan,
        in_namespace: namespace.is_some(),
        pages: ListPageSource::FromCache,
    }
}

#[tokio::test(start_paused = true)]
async fn list_response_equals_rendered_objects() {
    let mut random = fastrand::Rng::with_seed(31);
    for round in 0..12 {
        // Some objects are large enough to be shared rather than copied; some rounds have none of these.
        let longest = [200, 5_000, 60_000][round % 3];
        let of = |namespace: &&'static str, random: &mut fastrand::Rng| {
            let count = random.usize(..60);
            let pods = (0..count).map(|name| padded(namespace, name, random.u64(1..1_000), random.usize(..longest)));
            pods.collect::<Vec<_>>()
        };
        let objects = NAMESPACES.iter().flat_map(|namespace| of(namespace, &mut random)).collect();
        let (feed, _feeds) = feed(objects);
        for _ in 0..20 {
            let read = reads(&mut random);
            for representation in REPRESENTATIONS {
                let renderer = renderer(&feed, representation);
                let (ours, theirs) = (listed(&feed, &read, &renderer).await, expected(&feed, &read, &renderer));
                assert!(ours == theirs, "{read:?} as {representation}: {} and {} bytes", ours.len(), theirs.len());
            }
        }
    }
}

/// Ten lists share the memory of each chunk, and so do ten compressed ones.
#[tokio::test]
async fn lists_share_chunk_memory() {
    let objects: Vec<_> = (0..200).map(|name| padded("a", name, 7, 5_000)).collect();
    let (feed, _feeds) = feed(objects);
    let plan = ListPlan { version: ResourceVersionMatch::Any, limit: None, start: None };
    let view = CollectionView::everything();
    let read = ListPageRequest {
        representation: REPRESENTATIONS[0],
        view,
        plan,
        in_namespace: false,
        pages: ListPageSource::FromCache,
    };
    let renderer = renderer(&feed, REPRESENTATIONS[0]);
    let mut addresses = Vec::new();
    for _ in 0..10 {
        let page = page(&permit(), &feed, &feed.reader.snapshot(), &read, &mut pace()).await;
        let mut list = ListBody::new(PlainList::prepare(page, &renderer, &mut pace()).await.expect("as it came"));
        let mut chunks = Vec::new();
        while let Some(chunk) = poll_fn(|cx| list.poll_chunk(cx)).await {
            chunks.push(chunk.expect("as it came"));
        }
        let large = chunks.iter().filter(|chunk| chunk.len() > 16 << 10);
        addresses.push(large.map(|chunk| chunk.as_ptr()).collect::<Vec<_>>());
    }
    assert!(addresses[0].len() >= 200 * 5_000 / ObjectChunk::BYTES_MAX);
    assert!(addresses.iter().all(|others| *others == addresses[0]));
    let derived_bytes = feed.reader.stats().derived_bytes;
    assert!((200 * 5_000..200 * 5_300).contains(&derived_bytes), "{derived_bytes} bytes are kept");
}

/// A client that does not read keeps nothing alive for longer than the apiserver would.
#[tokio::test(start_paused = true)]
async fn unread_list_is_cut_and_releases_its_snapshot() {
    let (feed, feeds) = feed((0..100).map(|name| padded("a", name, 7, 5_000)).collect());
    let plan = ListPlan { version: ResourceVersionMatch::Any, limit: None, start: None };
    let read = ListPageRequest {
        representation: REPRESENTATIONS[0],
        view: CollectionView::everything(),
        plan,
        in_namespace: false,
        pages: ListPageSource::FromCache,
    };
    let page = page(&permit(), &feed, &feed.reader.snapshot(), &read, &mut pace()).await;
    let permit = ConcurrencyLimits::new(&ConcurrencyConfig::default()).list(None, page.bytes()).expect("there is room");
    let list = PlainList::prepare(page, &renderer(&feed, REPRESENTATIONS[0]), &mut pace()).await.expect("as it came");
    let (abort, pins) = (AbortSignal::default(), feeds.0.pins());
    let slow_readers = SlowReaderReaper::new(SlowReaderLimits::default(), Duration::from_secs(60));
    tokio::spawn(slow_readers.timers().clone().run());
    let pin = slow_readers.pin(&feed, &feed.reader.snapshot(), &abort, true);
    let mut body = ResponseBody::list(ListBody::new(list), permit, pin);
    assert!(matches!(body.frame().await, Some(Ok(_))));
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert!(matches!(body.frame().await, Some(Ok(_))));
    assert_eq!((abort.reason(), pins.len()), (None, 1));
    tokio::time::sleep(Duration::from_secs(3)).await;
    // The connection driver drops the body after the abort.
    assert_eq!(abort.reason(), Some("too_slow"));
    drop(body);
    assert!(pins.is_empty());
}

/// The attack: a selector that matches nothing, again and again. Waiting tasks run every few thousand objects.
#[tokio::test(start_paused = true)]
async fn large_scan_yields_every_few_thousand_objects() {
    let (feed, _feeds) = feed((0..6_000).map(|name| padded("a", name, 7, 0)).collect());
    let snapshot = feed.reader.snapshot();
    let (scans, slices, everybody) =
        (ScanQueue::at_a_time(1), CallerCpuSlices::new(1), ReadPermission::clone(&permit()));
    for (labels, limit, least) in [("!app", None, 2), ("app=x", None, 2), ("app=x", Some(3), 0), ("app,!app", None, 0)]
    {
        let selector = Selector { labels: LabelSelector::parse(labels).expect("valid"), ..Selector::everything() };
        let (plan, view) =
            (ListPlan { version: ResourceVersionMatch::Any, limit, start: None }, CollectionView::new(None, selector));
        let read = ListPageRequest {
            representation: REPRESENTATIONS[0],
            view,
            plan,
            in_namespace: false,
            pages: ListPageSource::FromCache,
        };
        let mut pace = ScanPacer::new(None, (scans.clone(), slices.clone()), None);
        page(&everybody, &feed, &snapshot, &read, &mut pace).await;
        assert!((least..least + 3).contains(&pace.yields()), "{labels}: {} times", pace.yields());
    }
}

/// When the scan started, it was estimated to need no turn.
#[tokio::test(start_paused = true)]
async fn scan_longer_than_estimated_waits_for_its_turn() {
    let (feed, _feeds) = feed((0..6_000).map(|name| padded("a", name, 7, 0)).collect());
    let (snapshot, everybody) = (feed.reader.snapshot(), ReadPermission::clone(&permit()));
    let scans = ScanQueue::at_a_time(1);
    let others = scans.acquire(None).now_or_never().expect("at once").expect("no scan runs");
    let selector = Selector { labels: LabelSelector::parse("!app").expect("valid"), ..Selector::everything() };
    let (plan, view) = (
        ListPlan { version: ResourceVersionMatch::Any, limit: None, start: None },
        CollectionView::new(None, selector),
    );
    let read = ListPageRequest {
        representation: REPRESENTATIONS[0],
        view,
        plan,
        in_namespace: false,
        pages: ListPageSource::FromCache,
    };
    let mut pace = ScanPacer::new(None, (scans, CallerCpuSlices::new(1)), None);
    let mut listed = pin!(page(&everybody, &feed, &snapshot, &read, &mut pace));
    let early = tokio::time::timeout(Duration::from_secs(60), listed.as_mut()).await;
    assert!(early.is_err(), "it scanned everything while others had the turn");
    drop(others);
    listed.await;
}
