//! Memory charges equal the memory alive, and the order of eviction above the limit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::advance;

use crate::cache::tests::fixture::{POD, Pod, drawn_seed, reported, rv, view};
use crate::cache::{
    CacheConfig, CacheReader, CacheWriter, ChunkObjectEncoding, CollectionView, EncodedChunkKey, FeedEndReason,
    FeedEvent, FeedSnapshot, FeedState, MemoryKind, MemoryUse, ObjectChange, PlainChunk, ReclaimableMemoryKind,
    WatchStartPosition,
};
use crate::feeds::{Feed, FeedHandle, FeedKey, FeedRegistry, FeedScope, FeedSpec, FeedStartRequest, FeedUnavailable};
use crate::wire::{FeedEncoding, FrameEnvelope, JsonLayout, ObjectReader, ObjectRevision, Representation, WatchItem};
use base::{AbortSignal, MemoryAccount};
use kubeapi::{EventType, Gvr};

/// A feed with its writer, charged as a reflector's feed is.
struct Stage {
    feed: Arc<Feed>,
    writer: CacheWriter,
    reader: ObjectReader,
    /// Keeps the feed registered.
    _lease: FeedHandle,
}

fn spec(resource: &str) -> FeedSpec {
    FeedSpec::like_pods(FeedKey {
        gvr: Gvr::new("", "v1", resource),
        scope: FeedScope::Cluster,
        encoding: FeedEncoding::Json,
    })
}

fn feeds(memory_bytes_max: usize) -> (FeedRegistry, mpsc::Receiver<FeedStartRequest>) {
    FeedRegistry::new(CacheConfig { memory_bytes_max, ..CacheConfig::default() })
}

fn stage(feeds: &FeedRegistry, demands: &mut mpsc::Receiver<FeedStartRequest>, resource: &str) -> Stage {
    let lease = feeds.handle(&spec(resource), None).expect("there is room");
    let FeedStartRequest { feed, writer } = demands.try_recv().expect("it is demanded");
    let reader =
        ObjectReader::new(FeedEncoding::Json, JsonLayout::BuiltIn, Arc::default()).with_account(feed.reader.account());
    Stage { feed, writer, reader, _lease: lease }
}

impl Stage {
    fn change(&self, frame: Bytes) -> ObjectChange {
        match self.reader.watch_event(frame).expect("well-formed") {
            WatchItem::Change { event_type, object, frame } => ObjectChange { event_type, object, frame: Some(frame) },
            other => panic!("{other:?} is not a change"),
        }
    }

    fn apply(&mut self, event_type: EventType, pod: &Pod, version: u64) {
        let change = self.change(pod.frame(event_type, version));
        self.writer.apply([change]).expect("in order");
    }

    /// Adds an object of about `bytes` bytes.
    fn put(&mut self, name: &str, version: u64, bytes: usize) {
        let frame = large(EventType::Added, name, version, bytes);
        let change = self.change(frame);
        self.writer.apply([change]).expect("in order");
    }

    fn list(&mut self, version: u64, objects: impl IntoIterator<Item = (String, usize)>) {
        let mut staged = self.feed.reader.stage();
        for (name, bytes) in objects {
            let change = self.change(large(EventType::Added, &name, version, bytes));
            staged.push(change.object).expect("there is room");
        }
        self.writer.replace(staged.finish(rv(version)));
        self.writer.set_state(FeedState::Live);
    }

    /// Caches a derived chunk.
    fn derive(&self, chunk: u128, bytes: usize) -> PlainChunk {
        let chunks = self.feed.reader.chunks();
        let make = || -> Result<(PlainChunk, usize), &str> {
            Ok((Arc::from([chunks.account().charge_bytes(vec![0; bytes].into())]), bytes))
        };
        match chunks.poll_plain(in_json(chunk), false, &Context::from_waker(Waker::noop()), make) {
            Poll::Ready(Ok(plain)) => plain,
            _ => panic!("it is made at once"),
        }
    }

    fn has_derived(&self, chunk: u128) -> bool {
        let chunks = self.feed.reader.chunks();
        let made = chunks.poll_plain(in_json(chunk), false, &Context::from_waker(Waker::noop()), || Err("not there"));
        matches!(made, Poll::Ready(Ok(_)))
    }
}

/// The format of the chunk with that name.
fn in_json(chunk: u128) -> EncodedChunkKey {
    let (representation, part) = (Representation::Object(FeedEncoding::Json), ChunkObjectEncoding::Items);
    EncodedChunkKey { chunk, representation, release: 36, part }
}

fn large(event_type: EventType, name: &str, version: u64, bytes: usize) -> Bytes {
    let pad = "x".repeat(bytes);
    let metadata = format!(r#""name":"{name}","namespace":"a","resourceVersion":"{version}""#);
    let object =
        format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{{metadata},"annotations":{{"pad":"{pad}"}}}}}}"#);
    format!("{{\"type\":\"{event_type}\",\"object\":{object}}}\n").into()
}

fn bytes_of(memory: &MemoryUse, kind: MemoryKind) -> usize {
    memory.used[kind as usize].1
}

fn gone(feeds: &FeedRegistry) -> Vec<ReclaimableMemoryKind> {
    feeds.memory().reclaimed.into_iter().filter(|(_, times)| *times > 0).map(|(gone, _)| gone).collect()
}

fn total(feeds: &FeedRegistry) -> usize {
    feeds.memory().used.iter().map(|(_, bytes)| bytes).sum()
}

/// Returns the bytes of every reachable object, each counted once.
fn alive(stage: &Stage, states: &[FeedSnapshot]) -> usize {
    let mut objects: BTreeMap<*const ObjectRevision, usize> = BTreeMap::new();
    let mut see = |object: &Arc<ObjectRevision>| {
        objects.insert(Arc::as_ptr(object), object.charged_bytes());
    };
    let now = stage.feed.reader.snapshot();
    states.iter().chain([&now]).flat_map(FeedSnapshot::iter).for_each(&mut see);
    for event in stage.feed.reader.events() {
        see(&event.object);
        event.previous.iter().for_each(&mut see);
    }
    objects.values().sum()
}

#[test]
fn memory_accounting_matches_live_data_in_random_runs() {
    const NAMES: [&str; 4] = ["p", "q", "r", "s"];
    let seed = drawn_seed();
    let mut random = fastrand::Rng::with_seed(seed);
    for _ in 0..50 {
        let (feeds, mut demands) = FeedRegistry::new(CacheConfig { window_events_max: 5, ..CacheConfig::default() });
        let mut stage = stage(&feeds, &mut demands, "pods");
        let mut states: Vec<FeedSnapshot> = Vec::new();
        let mut cursors = Vec::new();
        stage.writer.replace(stage.feed.reader.stage().finish(rv(1)));
        for version in 2..80 {
            let pod = Pod { name: NAMES[random.usize(..4)], note: random.u32(..4), ..POD };
            let is_there = stage.feed.reader.snapshot().iter().any(|object| object.key.as_str() == pod.key());
            match random.u8(..10) {
                0..=4 => {
                    let event_type = if is_there { EventType::Modified } else { EventType::Added };
                    stage.apply(event_type, &pod, version);
                }
                5 => stage.apply(EventType::Deleted, &pod, version),
                6 => states.push(stage.feed.reader.snapshot()),
                7 if !states.is_empty() => drop(states.swap_remove(random.usize(..states.len()))),
                8 => {
                    cursors.extend(
                        stage
                            .feed
                            .reader
                            .open(WatchStartPosition::Current, CollectionView::everything())
                            .map(|it| it.cursor)
                            .ok(),
                    );
                }
                _ if version % 3 == 0 => {
                    let mut staged = stage.feed.reader.stage();
                    let listed = stage.change(pod.frame(EventType::Added, version));
                    staged.push(listed.object).expect("there is room");
                    stage.writer.replace(staged.finish(rv(version)));
                }
                _ => stage.writer.advance(rv(version), false),
            }
            let memory = feeds.memory();
            assert_eq!(bytes_of(&memory, MemoryKind::Objects), alive(&stage, &states), "at {version} with seed {seed}");
            let events = stage.feed.reader.stats().events;
            assert_eq!(
                bytes_of(&memory, MemoryKind::Events),
                events * FeedEvent::OVERHEAD_BYTES,
                "at {version} with seed {seed}"
            );
            assert!(!states.is_empty() || bytes_of(&memory, MemoryKind::States) == 0, "at {version} with seed {seed}");
        }
        let kept: usize = {
            drop(stage.writer);
            let kept: BTreeMap<_, _> = states
                .iter()
                .flat_map(FeedSnapshot::iter)
                .map(|object| (Arc::as_ptr(object), object.charged_bytes()))
                .collect();
            kept.values().sum()
        };
        assert_eq!(bytes_of(&feeds.memory(), MemoryKind::Objects), kept, "only what is still read is left: {seed}");
        drop(states);
        assert_eq!(total(&feeds), 0, "cursors hold nothing of a feed that is over: {seed}");
    }
}

const OBJECT: usize = 20_000;

/// Derived bytes by last use, across feeds; then paging; then watches that are receiving a state; then history; the
/// state last.
#[tokio::test(start_paused = true)]
async fn memory_pressure_evicts_the_cheapest_data_first() {
    const MAX: usize = 4 << 20;
    let (feeds, mut demands) = feeds(MAX);
    let (mut busy, quiet) = (stage(&feeds, &mut demands, "pods"), stage(&feeds, &mut demands, "nodes"));
    busy.list(10, [("p".to_owned(), OBJECT)]);
    for (chunk, stage) in [(1, &quiet), (2, &busy), (3, &quiet)] {
        advance(Duration::from_secs(1)).await;
        stage.derive(chunk, 200_000);
    }
    advance(Duration::from_secs(1)).await;
    assert!(quiet.has_derived(1), "used again: now it is the last to go");
    busy.put("p", 11, OBJECT);
    busy.feed.reader.keep_for_paging(&busy.feed.reader.snapshot());
    let (pinned, cut) = (busy.feed.reader.snapshot(), AbortSignal::default());
    let pin = busy.feed.pin(&pinned, cut.clone());
    busy.put("p", 12, OBJECT);
    let mut version = 13;
    let mut until = |busy: &mut Stage, expected: ReclaimableMemoryKind| {
        while !gone(&feeds).contains(&expected) {
            busy.put(&format!("p-{version}"), version, OBJECT);
            version += 1;
            assert!(total(&feeds) <= MAX, "{:?}", feeds.memory());
        }
    };
    until(&mut busy, ReclaimableMemoryKind::Derived);
    assert_eq!((busy.has_derived(2), quiet.has_derived(3), quiet.has_derived(1)), (false, false, true));
    assert_eq!(gone(&feeds), [ReclaimableMemoryKind::Derived]);
    until(&mut busy, ReclaimableMemoryKind::History);
    assert!(!quiet.has_derived(1));
    assert!(busy.feed.reader.paging_snapshot(rv(11)).is_none(), "the client that pages asks upstream");
    assert_eq!(cut.reason(), Some("memory_pressure"), "the watch that is being sent is cut");
    assert!(!gone(&feeds).contains(&ReclaimableMemoryKind::Feed));
    drop((pin, pinned));
    let stats = busy.feed.reader.stats();
    assert!(stats.events > 1 && stats.floor > rv(11), "{stats:?}");
    assert_eq!(busy.feed.reader.current().map(|state| state.len()), Some(stats.objects));
}

#[test]
fn watch_expires_if_memory_pressure_shortens_its_ring() {
    const MAX: usize = 2 << 20;
    let (feeds, mut demands) = feeds(MAX);
    let mut stage = stage(&feeds, &mut demands, "pods");
    stage.list(10, []);
    let mut late = stage
        .feed
        .reader
        .open(WatchStartPosition::After(rv(10)), CollectionView::everything())
        .expect("in the ring")
        .cursor;
    for version in 11..200 {
        stage.put("p", version, OBJECT);
        assert!(total(&feeds) <= MAX);
    }
    let floor = stage.feed.reader.stats().floor;
    assert_eq!(reported(&mut late), [format!("expired {floor}")]);
    assert!(stage.feed.reader.stats().event_bytes <= MAX / 4 + 3 * OBJECT, "a quarter of the memory");
}

/// The table of which feed ends is in `outgrown`.
#[test]
fn feed_that_outgrows_memory_ends_and_others_continue() {
    const MAX: usize = 4 << 20;
    let (feeds, mut demands) = feeds(MAX);
    let (mut growing, mut small) = (stage(&feeds, &mut demands, "pods"), stage(&feeds, &mut demands, "nodes"));
    growing.list(10, []);
    small.list(10, [("n".to_owned(), OBJECT)]);
    let mut stuck =
        growing.feed.reader.open(WatchStartPosition::After(rv(10)), view("a", "", "")).expect("in the ring").cursor;
    let mut version = 11;
    while !growing.writer.is_over_budget() {
        growing.put(&format!("p-{version}"), version, OBJECT);
        small.put("n", version, 100);
        version += 1;
        assert!(total(&feeds) <= MAX + OBJECT + 2_000, "by one object at most: {:?}", feeds.memory());
    }
    assert!(version > 100 && !small.writer.is_over_budget());
    let weighed = growing.feed.reader.required_bytes();
    assert!(weighed > MAX * 3 / 4, "{weighed}");
    feeds.ended(&growing.feed, FeedEndReason::OverBudget);
    growing.writer.set_state(FeedState::Ended(FeedEndReason::OverBudget));
    drop(growing.writer);
    assert!(total(&feeds) < MAX / 4, "readers are left: {:?}", feeds.memory());
    assert!(growing.feed.reader.current().is_none(), "no reader sees an empty state");
    assert!(growing.feed.reader.snapshot_at(rv(version)).is_none());
    let mut opened = growing.feed.reader.open(WatchStartPosition::Current, view("b", "", "")).expect("it ends at once");
    assert!(opened.snapshot.is_none());
    for cursor in [&mut stuck, &mut opened.cursor] {
        assert_eq!(reported(cursor).len(), 1, "expired: the session looks why");
    }
    small.put("n", version + 1, 100);
    assert_eq!(small.feed.reader.state(), FeedState::Live);
}

#[test]
fn concurrent_lists_share_one_memory_limit() {
    const MAX: usize = 2 << 20;
    let (feeds, mut demands) = feeds(MAX);
    let stages = [stage(&feeds, &mut demands, "pods"), stage(&feeds, &mut demands, "nodes")];
    let mut staged: Vec<_> = stages.iter().map(|stage| stage.feed.reader.stage()).collect();
    let object = |n: usize| {
        let frame = large(EventType::Added, &format!("p-{n}"), 10, OBJECT);
        stages[n % 2].change(frame).object
    };
    let refused = (0..100_000).find(|n| staged[n % 2].push(object(*n)).is_err()).expect("it does not fit for ever");
    assert!(refused * OBJECT < MAX && (refused + 3) * OBJECT > MAX * 9 / 10, "{refused}");
    drop(staged.remove(refused % 2));
    let mut left = staged.remove(0);
    let more = object(refused + 1);
    left.push(more).expect("the other has given its memory back");
}

/// A feed with an older state that is kept and as large as the current one; the ring has none of it.
fn busy(
    feeds: &FeedRegistry,
    demands: &mut mpsc::Receiver<FeedStartRequest>,
    keep: impl FnOnce(&Stage, FeedSnapshot),
) -> Stage {
    let mut busy = stage(feeds, demands, "pods");
    let names = || (0..23).map(|n| format!("p-{n}"));
    busy.list(10, names().map(|name| (name, 3 * OBJECT)));
    keep(&busy, busy.feed.reader.snapshot());
    names().zip(11..).for_each(|(name, version)| busy.put(&name, version, 3 * OBJECT));
    assert_eq!(gone(feeds), [], "all of it fits: {}", total(feeds));
    busy
}

/// A collection is not refused because of snapshots of paging clients.
#[test]
fn list_page_evicts_paging_snapshots_to_fit() {
    let config = CacheConfig { memory_bytes_max: 4 << 20, window_events_max: 1, ..CacheConfig::default() };
    let (feeds, mut demands) = FeedRegistry::new(config);
    let _busy = busy(&feeds, &mut demands, |stage, state| stage.feed.reader.keep_for_paging(&state));
    let mut staged = stage(&feeds, &mut demands, "nodes").feed.reader.stage();
    staged.page_grows_to(1 << 20).expect("there is room");
    assert!(staged.page_is_read().is_ok(), "there is room without paging clients: {:?}", feeds.memory());
    assert_eq!(gone(&feeds), [ReclaimableMemoryKind::Paging]);
    assert!(staged.page_grows_to(3 << 20).is_err(), "there is none for so much");
}

/// Nor because of watches that are receiving an older state. These end within moments; until then the limit may be
/// exceeded slightly.
#[test]
fn listed_object_cuts_watches_that_pin_old_state_to_fit() {
    const MAX: usize = 4 << 20;
    let config = CacheConfig { memory_bytes_max: MAX, window_events_max: 1, ..CacheConfig::default() };
    let (feeds, mut demands) = FeedRegistry::new(config);
    let (cut, mut pin) = (AbortSignal::default(), None);
    let _busy = busy(&feeds, &mut demands, |stage, state| {
        pin = Some((stage.feed.pin(&state, cut.clone()), state));
    });
    let next = stage(&feeds, &mut demands, "nodes");
    let mut staged = next.feed.reader.stage();
    staged.page_grows_to(MAX - total(&feeds) - OBJECT).expect("it fits");
    assert!(staged.page_is_read().is_err() && !cut.is_aborted(), "no response is cut: the page cannot wait");
    let object = |name: &str| next.change(large(EventType::Added, name, 10, 12 * OBJECT)).object;
    staged.push(object("n")).expect("there is room in a moment");
    assert_eq!((cut.reason(), gone(&feeds)), (Some("memory_pressure"), vec![ReclaimableMemoryKind::Watches]));
    assert!(total(&feeds) <= MAX + MAX / 16, "{:?}", feeds.memory());
    drop(pin);
    staged.push(object("m")).expect("there is room");
    assert!(total(&feeds) <= MAX, "{:?}", feeds.memory());
}

#[test]
fn list_page_is_charged_during_decoding() {
    let (feeds, mut demands) = feeds(1 << 20);
    let stage = stage(&feeds, &mut demands, "pods");
    let mut staged = stage.feed.reader.stage();
    assert!(staged.page_grows_to(600 << 10).is_ok());
    assert_eq!(bytes_of(&feeds.memory(), MemoryKind::Staged), 600 << 10);
    assert!(staged.page_is_read().is_err(), "its objects take as much again");
    assert!(staged.page_grows_to(500 << 10).is_ok() && staged.page_is_read().is_ok());
    assert!(staged.page_grows_to((1 << 20) + 1).is_err());
    staged.page_done();
    assert_eq!(total(&feeds), 0);
}

/// Each attempt would cost upstream a list.
#[tokio::test(start_paused = true)]
async fn over_budget_feed_retries_with_backoff_or_when_memory_frees() {
    let (feeds, mut demands) = feeds(1 << 20);
    let fail = |demand: FeedStartRequest, bytes: usize| {
        let mut staged = demand.feed.reader.stage();
        assert!(staged.page_grows_to(bytes).is_err());
        drop(staged);
        feeds.ended(&demand.feed, FeedEndReason::OverBudget);
    };
    // As large as the whole limit, so there is never room for it.
    drop(feeds.handle(&spec("pods"), None).expect("there is room"));
    fail(demands.try_recv().expect("it is demanded"), (1 << 20) + 1);
    let refused =
        || feeds.handle(&spec("pods"), None).map(drop) == Err(FeedUnavailable::Ended(FeedEndReason::OverBudget));
    advance(Duration::from_secs(59 * 60)).await;
    feeds.clear_refusals();
    assert!(refused(), "nothing has become free");
    advance(Duration::from_secs(60)).await;
    assert!(!refused(), "it may have become smaller: once an hour");
    let again = demands.try_recv().expect("it is demanded");
    let weight = 900 << 10;
    // Other feeds hold memory, so a smaller feed does not fit either.
    let other = stage(&feeds, &mut demands, "nodes");
    let mut pages = other.feed.reader.stage();
    pages.page_grows_to(200 << 10).expect("there is room");
    fail(again, weight);
    advance(Duration::from_secs(61)).await;
    assert!(refused(), "there is no room for what it weighed, and it was the second time");
    drop(pages);
    assert!(!refused(), "now there is");
}

#[test]
fn derived_bytes_are_charged_while_they_are_sent() {
    let (feeds, mut demands) = feeds(1 << 20);
    let stage = stage(&feeds, &mut demands, "pods");
    let sent = stage.derive(1, 600 << 10);
    assert_eq!(bytes_of(&feeds.memory(), MemoryKind::Derived), (600 << 10) + MemoryAccount::OVERHEAD_BYTES);
    let other = stage.derive(2, 600 << 10);
    assert!(!stage.has_derived(1) && !stage.has_derived(2), "both are too much, and no other entry is evicted");
    assert!(bytes_of(&feeds.memory(), MemoryKind::Derived) > 1 << 20, "they are being sent");
    drop((sent, other));
    assert_eq!(total(&feeds), 0);
}

/// As in benches and tests of the cache alone: a cache has its own budget, and its objects are not charged.
#[test]
fn standalone_cache_charges_no_shared_memory() {
    let envelope = FrameEnvelope::new(FeedEncoding::Json, "v1", "Pod", JsonLayout::BuiltIn);
    let (_writer, reader): (CacheWriter, CacheReader) =
        CacheWriter::new(CacheConfig::default(), Gvr::new("", "v1", "pods"), envelope, true);
    assert_eq!(reader.stats().memory_bytes, 0);
}
