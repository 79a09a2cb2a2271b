//! The cache without sockets: a change in, frames out, for readers that match and readers that do not.

use std::cell::OnceCell;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kube_fanout::cache::{
    CacheConfig, CacheReader, CacheWriter, CollectionView, FeedCursor, FeedSnapshot, MemoryBudget, ObjectChange,
    PullResult, SnapshotPins, WatchStartPosition,
};
use kube_fanout::wire::{FeedEncoding, ObjectRenderer, Representation};
use kubeapi::{MetaApiVersion, ResourceVersion, Selector, ShardSelector};
use pods::{MINOR, Pods, view};

#[allow(dead_code, reason = "each file uses a part of it")]
#[path = "common/pods.rs"]
mod pods;

/// Number of prepared changes per timed batch. More would evict the measured data from the processor's caches.
const BATCH: BatchSize = BatchSize::NumIterations(64);

/// Events in the ring, which is full during measurements, because an event that stays would allocate memory.
const EVENTS: u64 = 1_000;

/// A feed of pods, and a source of changes that cycles through fifty of them.
struct Bench {
    writer: CacheWriter,
    cache: CacheReader,
    changes: Changes,
}

struct Changes {
    pods: Pods,
    rv: u64,
}

impl Bench {
    fn new() -> Self {
        let pods = Pods::new(FeedEncoding::Protobuf);
        let config =
            CacheConfig { window_events_max: usize::try_from(EVENTS).expect("a few"), ..CacheConfig::default() };
        let budget = MemoryBudget::new(config.memory_bytes_max, SnapshotPins::default());
        let (mut writer, cache) = CacheWriter::within(&budget, config, Pods::gvr(), pods.envelope.clone(), true);
        writer.replace(FeedSnapshot::from_objects(ResourceVersion(1), Vec::new()));
        Self { writer, cache, changes: Changes { pods, rv: 0 } }
    }

    fn change(&mut self, changes: u64) {
        for _ in 0..changes {
            let change = self.changes.next();
            self.writer.apply([change]).expect("in order");
        }
    }

    fn open(&self, view: CollectionView) -> FeedCursor {
        self.cache.open(WatchStartPosition::Current, view).expect("current").cursor
    }
}

impl Changes {
    fn next(&mut self) -> ObjectChange {
        self.rv += 1;
        self.pods.change(self.rv % 50, self.rv)
    }
}

const SORTS: [&str; 8] =
    ["namespace", "name", "node", "phase", "label", "label of a namespace", "set of labels", "strange label"];

/// A view of this sort that matches none of the pods; those with the same `value` are equal.
fn elsewhere(sort: &str, value: usize) -> CollectionView {
    match sort {
        "namespace" => view(Some(&format!("other-{value}")), "", ""),
        "name" => view(Some("shop-0"), "", &format!("metadata.name=other-{value}")),
        "node" => view(None, "", &format!("spec.nodeName=other-{value}")),
        "phase" => view(None, "", &format!("status.phase=other-{value}")),
        "label" => view(None, &format!("app=other-{value}"), ""),
        "label of a namespace" => view(Some("shop-0"), &format!("app=other-{value}"), ""),
        "set of labels" => view(None, &format!("app in (other-{value},another-{value})"), ""),
        "strange label" => view(None, &format!("other-{value}=yes"), ""),
        _ => unreachable!("{sort} is no sort of watch"),
    }
}

/// Cost of one change to the writer, store, ring and lanes, by the number of open watches that it does not concern. The
/// cost should not depend on that number, whether the watches share one lane or use ten thousand.
fn append(c: &mut Criterion) {
    let mut group = c.benchmark_group("append");
    group.throughput(Throughput::Elements(1));
    let mut measure = |name: &str, sort: &str, watches: usize, lanes: usize| {
        // The closure runs for each sample, and not at all if another benchmark is selected.
        let mut made = None;
        group.bench_function(BenchmarkId::new(name, watches), |b| {
            let (Bench { writer, changes, .. }, _) = made.get_or_insert_with(|| {
                let mut bench = Bench::new();
                let mut idle: Vec<_> = (0..watches).map(|n| bench.open(elsewhere(sort, n % lanes))).collect();
                for cursor in &mut idle {
                    cursor.pull(usize::MAX, Some(Waker::noop()), &mut Vec::new());
                }
                bench.change(2 * EVENTS);
                (bench, idle)
            });
            b.iter_batched(|| changes.next(), |change| writer.apply([change]).expect("in order"), BATCH);
        });
    };
    measure("no watch", "namespace", 0, 1);
    for sort in SORTS {
        measure(&format!("one {sort}"), sort, 10_000, 1);
        measure(&format!("a {sort} each"), sort, 10_000, 10_000);
    }
    group.finish();
}

/// One change and its delivery to every watch, or to those of one shard, for each open watch: a reference count and a
/// look at the ring, without a copy.
fn fan_out(c: &mut Criterion) {
    let mut group = c.benchmark_group("fan out");
    for watches in [1_usize, 100, 1_000] {
        group.throughput(Throughput::Elements(watches as u64));
        let (mut made, mut batch) = (None, Vec::new());
        group.bench_function(BenchmarkId::new("watches of everything", watches), |b| {
            let (Bench { writer, changes, .. }, cursors) = made.get_or_insert_with(|| {
                let mut bench = Bench::new();
                bench.change(2 * EVENTS);
                let cursors: Vec<_> = (0..watches).map(|_| bench.open(CollectionView::everything())).collect();
                (bench, cursors)
            });
            let deliver = |change| {
                writer.apply([change]).expect("in order");
                for cursor in &mut *cursors {
                    batch.clear();
                    black_box(cursor.pull(usize::MAX, None, &mut batch));
                }
            };
            b.iter_batched(|| changes.next(), deliver, BATCH);
        });
    }
    let (mut made, mut batch) = (None, Vec::new());
    group.throughput(Throughput::Elements(1_000));
    group.bench_function(BenchmarkId::new("watches in ten shards", 1_000), |b| {
        let (Bench { writer, changes, .. }, shards) = made.get_or_insert_with(|| {
            let mut bench = Bench::new();
            bench.change(2 * EVENTS);
            let mut shards: Vec<_> = (0..10).map(|n| Shard::open(&bench, n)).collect();
            shards.iter_mut().for_each(|shard| shard.pull(&mut Vec::new()));
            (bench, shards)
        });
        let deliver = |change| {
            writer.apply([change]).expect("in order");
            for shard in shards.iter_mut().filter(|shard| shard.woken.0.swap(false, Ordering::Relaxed)) {
                shard.pull(&mut batch);
            }
        };
        b.iter_batched(|| changes.next(), deliver, BATCH);
    });
    group.finish();
}

/// A hundred watches of the namespaces in a tenth of the hashes. They are pulled if one of them was woken.
struct Shard {
    cursors: Vec<FeedCursor>,
    woken: Arc<Woken>,
}

#[derive(Default)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Shard {
    fn open(bench: &Bench, n: u128) -> Self {
        let [start, end] = [n, n + 1].map(|n| (n << 64) / 10);
        let text = format!("shardRange(object.metadata.namespace, '{start:#018x}', '{end:#018x}')");
        let shard = ShardSelector::parse(&text).map(Box::new);
        let view = CollectionView::new(None, Selector { shard, ..Selector::everything() });
        Self { cursors: (0..100).map(|_| bench.open(view.clone())).collect(), woken: Arc::default() }
    }

    fn pull(&mut self, batch: &mut Vec<Bytes>) {
        let waker = Waker::from(self.woken.clone());
        for cursor in &mut self.cursors {
            batch.clear();
            black_box(cursor.pull(usize::MAX, Some(&waker), batch));
        }
    }
}

/// Cost of a reader that is a whole ring behind and pulls everything at once. Visible events are passed on unchanged.
/// JSON and metadata were derived before, as for all readers but the first.
fn pull(c: &mut Criterion) {
    let renderer = |cache: &CacheReader, representation| {
        ObjectRenderer::derived(representation, cache.envelope(), MINOR).expect("derived from protobuf")
    };
    let (json, metadata) =
        (Representation::Object(FeedEncoding::Json), Representation::Metadata(FeedEncoding::Json, MetaApiVersion::V1));
    let mut group = c.benchmark_group("pull the ring");
    group.throughput(Throughput::Elements(EVENTS));
    for (name, view, representation) in [
        ("everything", CollectionView::everything(), None),
        ("a namespace", view(Some("shop-3"), "", ""), None),
        ("a label", view(None, "app=app-0,pod-template-hash", ""), None),
        ("what is not over", view(None, "", "status.phase!=Succeeded,status.phase!=Failed"), None),
        ("everything as JSON", CollectionView::everything(), Some(json)),
        ("everything as metadata", CollectionView::everything(), Some(metadata)),
    ] {
        let made = OnceCell::new();
        group.bench_function(name, |b| {
            let bench = made.get_or_init(|| {
                let mut bench = Bench::new();
                bench.change(2 * EVENTS);
                bench
            });
            let behind = || {
                let start = WatchStartPosition::After(bench.cache.floor());
                let cursor = bench.cache.open(start, view.clone()).expect("in the ring").cursor;
                let cursor = match representation {
                    Some(representation) => cursor.rendered_by(renderer(&bench.cache, representation)),
                    None => cursor,
                };
                (cursor, Vec::with_capacity(1_024))
            };
            let pull = |(mut cursor, mut batch): (FeedCursor, Vec<_>)| {
                while matches!(cursor.pull(usize::MAX, None, &mut batch), PullResult::Frames { .. }) {}
                (cursor, batch)
            };
            b.iter_batched(behind, pull, BatchSize::PerIteration);
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = append, fan_out, pull
}
criterion_main!(benches);
