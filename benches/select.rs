//! Selection: which objects a selector matches, how they are found in a collection, and a LIST of them.

use std::cell::OnceCell;
use std::hint::black_box;
use std::time::Duration;

use bytes::BytesMut;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kube_fanout::cache::{CollectionView, FeedSnapshot};
use kube_fanout::wire::{FeedEncoding, ListMeta};
use pods::{Pods, selector, view};

#[allow(dead_code, reason = "each file uses a part of it")]
#[path = "common/pods.rs"]
mod pods;

/// Number of objects matched in one iteration, because a single one is too short to be timed well.
const MATCHED: u64 = 1_000;

/// Size of the pieces of a LIST.
const CHUNK_BYTES: usize = 64 << 10;

/// Whether an object matches, per object: a few comparisons in one piece of memory, and no allocation.
fn matches(c: &mut Criterion) {
    let pods = Pods::new(FeedEncoding::Protobuf);
    let objects: Vec<_> = (0..MATCHED).map(|n| pods.object(n, n)).collect();
    let many = |each: fn(usize) -> String| (0..1_000).map(each).collect::<Vec<_>>().join(",");
    let (again, keys) = (many(|_| "!aa".to_owned()), many(|n| format!("!key-{n}")));
    let set = format!("app notin ({})", many(|n| format!("value-{n}")));
    let mut group = c.benchmark_group("match");
    group.throughput(Throughput::Elements(MATCHED));
    for (name, labels, fields) in [
        ("label equals", "app=app-3", ""),
        ("label in set", "app in (app-1,app-3,app-5,app-7)", ""),
        ("label exists", "pod-template-hash", ""),
        ("label is absent", "!example.com/canary", ""),
        ("three labels", "app!=app-3,pod-template-hash=7d9f8c6b5d,!example.com/canary", ""),
        ("one label a thousand times", &*again, ""),
        ("a thousand labels", &*keys, ""),
        ("a set of a thousand", &*set, ""),
        ("name", "", "metadata.name=checkout-7d9f8c6b5d-000007"),
        ("field equals", "", "spec.nodeName=node-3"),
        ("two fields", "", "status.phase!=Succeeded,status.phase!=Failed"),
        ("labels and fields", "app=app-3,pod-template-hash", "spec.nodeName=node-3,status.phase=Running"),
    ] {
        let selector = selector(labels, fields);
        let count = || objects.iter().filter(|object| selector.matches(&object.key, &object.attributes)).count();
        group.bench_function(name, |b| b.iter(|| black_box(count())));
    }
    group.finish();
}

/// Cost of a selection by the size of the collection: a name costs a lookup, a namespace its own objects, and
/// everything else a scan of all objects.
fn select(c: &mut Criterion) {
    let mut group = c.benchmark_group("select");
    for objects in [3_000, 100_000] {
        let snapshot = OnceCell::new();
        group.throughput(Throughput::Elements(objects));
        if objects > 3_000 {
            group.sample_size(20);
        }
        for (name, view) in [
            ("everything", CollectionView::everything()),
            ("a namespace", view(Some("shop-3"), "", "")),
            ("a name", view(Some("shop-7"), "", "metadata.name=checkout-7d9f8c6b5d-000007")),
            ("a label", view(None, "app=app-3", "")),
            ("a node", view(None, "", "spec.nodeName=node-3")),
        ] {
            group.bench_function(BenchmarkId::new(name, objects), |b| {
                let snapshot = snapshot.get_or_init(|| Pods::new(FeedEncoding::Protobuf).snapshot(objects));
                b.iter(|| black_box(snapshot.select(&view, true, None).count()));
            });
        }
    }
    group.finish();
}

/// A whole LIST of bodies as they are: one copy of each, after a pass for the length. Per byte.
fn list(c: &mut Criterion) {
    let mut group = c.benchmark_group("list");
    for (encoding, objects) in [
        (FeedEncoding::Json, 3_000),
        (FeedEncoding::Protobuf, 3_000),
        (FeedEncoding::Json, 100_000),
        (FeedEncoding::Protobuf, 100_000),
    ] {
        if objects > 3_000 {
            group.sample_size(10);
        }
        let feed = OnceCell::new();
        group.bench_function(BenchmarkId::new(encoding.as_str(), objects), |b| {
            let (pods, snapshot) = feed.get_or_init(|| {
                let pods = Pods::new(encoding);
                let snapshot = pods.snapshot(objects);
                (pods, snapshot)
            });
            let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
            b.iter(|| black_box(assemble(pods, snapshot, &mut chunk)));
        });
    }
    group.finish();
}

/// Writes a LIST and discards it, chunk by chunk; returns its size.
fn assemble(pods: &Pods, snapshot: &FeedSnapshot, chunk: &mut BytesMut) -> usize {
    let view = CollectionView::everything();
    let meta = ListMeta { resource_version: snapshot.rv, continue_token: String::new(), remaining: None, shard: None };
    let frame = pods.envelope.list(&meta);
    let items = || snapshot.select(&view, true, None);
    let items_len = items().map(|object| frame.item_len(object.body().len())).sum();
    let mut written = 0;
    chunk.clear();
    chunk.extend_from_slice(&frame.head(snapshot.len(), items_len));
    for (index, object) in items().enumerate() {
        if chunk.len() + frame.item_len(object.body().len()) > CHUNK_BYTES {
            written += black_box(&chunk[..]).len();
            chunk.clear();
        }
        frame.put_item(index == 0, object.body(), chunk);
    }
    chunk.extend_from_slice(&frame.tail());
    written += black_box(&chunk[..]).len();
    assert_eq!(written, frame.content_length(snapshot.len(), items_len), "the length that was announced");
    written
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = matches, select, list
}
criterion_main!(benches);
