//! Bytes to values and back: the work for each change, and the work for each additional representation.

use std::hint::black_box;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kube_fanout::wire::{
    BookmarkTemplate, DeltaFrame, FeedEncoding, FrameSplitter, IncludeObjectPolicy, ListMeta, ObjectRenderer,
    Representation, delta,
};
use kubeapi::{EventType, MetaApiVersion, ResourceVersion};
use pods::{MINOR, Pods};

#[allow(dead_code, reason = "each file uses a part of it")]
#[path = "common/pods.rs"]
mod pods;

const ENCODINGS: [FeedEncoding; 3] = [FeedEncoding::Json, FeedEncoding::Protobuf, FeedEncoding::Table];

/// Bytes that a connection yields at once.
const CHUNK_BYTES: usize = 16 << 10;

/// Not kube-fanout's code: the machine's time for a chain of dependent additions. Results of two machines are compared
/// in units of it.
fn reference(c: &mut Criterion) {
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(4_096).collect();
    let hash = |bytes: &[u8]| {
        bytes
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
    };
    c.bench_function("reference", |b| b.iter(|| hash(black_box(&bytes))));
}

/// A stream split into frames, per byte: little more than a copy, for any chunks.
fn split(c: &mut Criterion) {
    let mut group = c.benchmark_group("split");
    for encoding in [FeedEncoding::Json, FeedEncoding::Protobuf] {
        let pods = Pods::new(encoding);
        let stream: Vec<u8> = (0..100).flat_map(|n| pods.frame(n, n).to_vec()).collect();
        group.throughput(Throughput::Bytes(stream.len() as u64));
        group.bench_function(encoding.as_str(), |b| {
            b.iter(|| {
                let mut splitter = FrameSplitter::new(encoding, 1 << 20);
                for chunk in stream.chunks(CHUNK_BYTES) {
                    splitter.push(chunk);
                    while let Some(frame) = splitter.next_frame().expect("small frames") {
                        black_box(frame);
                    }
                }
            });
        });
    }
    group.finish();
}

/// An object is parsed: one pass over its bytes for key, version, labels and fields, without a copy of it. An object of
/// a page is copied out of the page.
fn decode(c: &mut Criterion) {
    let mut group = c.benchmark_group("decode");
    for encoding in ENCODINGS {
        let pods = Pods::new(encoding);
        let frame = pods.frame(7, 7);
        group.throughput(Throughput::Bytes(frame.len() as u64));
        group.bench_function(BenchmarkId::new("event", encoding), |b| {
            b.iter(|| pods.reader.watch_event(black_box(frame.clone())));
        });
    }
    for encoding in [FeedEncoding::Json, FeedEncoding::Protobuf] {
        let pods = Pods::new(encoding);
        let page = page(&pods, 500);
        assert_eq!(pods.reader.list(&page).expect("a page").items.len(), 500);
        group.throughput(Throughput::Bytes(page.len() as u64));
        group.bench_function(BenchmarkId::new("page of 500", encoding), |b| {
            b.iter(|| pods.reader.list(black_box(&page)));
        });
    }
    group.finish();
}

/// Another representation of a body, per byte of it. This happens once for each event or object that a client requests
/// in that form.
fn transcode(c: &mut Criterion) {
    let (json, metadata) =
        (Representation::Object(FeedEncoding::Json), |encoding| Representation::Metadata(encoding, MetaApiVersion::V1));
    let mut group = c.benchmark_group("transcode");
    for (encoding, name, representation) in [
        (FeedEncoding::Protobuf, "protobuf to JSON", json),
        (FeedEncoding::Protobuf, "protobuf to metadata in JSON", metadata(FeedEncoding::Json)),
        (FeedEncoding::Protobuf, "protobuf to metadata in protobuf", metadata(FeedEncoding::Protobuf)),
        (FeedEncoding::Json, "JSON to metadata in JSON", metadata(FeedEncoding::Json)),
        (FeedEncoding::Json, "JSON to metadata in protobuf", metadata(FeedEncoding::Protobuf)),
        (FeedEncoding::Table, "row without object", Representation::Table(IncludeObjectPolicy::None)),
        (FeedEncoding::Table, "row with metadata", Representation::Table(IncludeObjectPolicy::Metadata)),
    ] {
        let pods = Pods::new(encoding);
        let renderer = ObjectRenderer::derived(representation, &pods.envelope, MINOR).expect("it is derived");
        let object = pods.object(7, 7);
        renderer.body(object.body()).expect("exact");
        group.throughput(Throughput::Bytes(object.body().len() as u64));
        group.bench_function(name, |b| b.iter(|| renderer.body(black_box(object.body()))));
    }
    group.finish();
}

/// Frames that upstream did not send, with one allocation each. Their type differs if an object enters a selection, and
/// their version if it leaves one. The first frame of a Table watch has the columns. Bookmarks are built as well.
fn build(c: &mut Criterion) {
    let mut group = c.benchmark_group("build");
    for encoding in ENCODINGS {
        let pods = Pods::new(encoding);
        let (object, envelope) = (pods.object(7, 7), &pods.envelope);
        let later = ResourceVersion(object.rv.0 + 1);
        let bookmarks = BookmarkTemplate::minimal(envelope);
        group.bench_function(BenchmarkId::new("added", encoding), |b| {
            b.iter(|| envelope.frame(EventType::Added, black_box(object.body())));
        });
        group.bench_function(BenchmarkId::new("deleted, restamped", encoding), |b| {
            b.iter(|| envelope.frame(EventType::Deleted, &black_box(&object).with_resource_version(later)));
        });
        group.bench_function(BenchmarkId::new("bookmark", encoding), |b| {
            b.iter(|| bookmarks.frame(black_box(later), false));
        });
    }
    let rows = Pods::new(FeedEncoding::Table);
    let frame = rows.frame(7, 7);
    group.bench_function("columns", |b| {
        b.iter(|| rows.columns.with_columns(black_box(&frame)).expect("they are known"));
    });
    group.finish();
}

/// A frame between proxies as the difference to the object's earlier version: made once by the sender, and read by each
/// receiver.
fn differences(c: &mut Criterion) {
    let mut group = c.benchmark_group("difference");
    for encoding in [FeedEncoding::Json, FeedEncoding::Protobuf] {
        let pods = Pods::new(encoding);
        let (base, frame) = (pods.frame(7, 7), pods.frame(7, 8));
        let make = || delta(EventType::Modified, Some((ResourceVersion(7), black_box(&base))), black_box(&frame));
        group.throughput(Throughput::Bytes(frame.len() as u64));
        group.bench_function(BenchmarkId::new("make", encoding), |b| b.iter(make));
        let made = make();
        group.bench_function(BenchmarkId::new("read", encoding), |b| {
            b.iter(|| {
                DeltaFrame::parse(black_box(&made)).expect("well-formed").frame(&base, 1 << 20).expect("the base")
            });
        });
    }
    group.finish();
}

/// A page of a LIST, as the apiserver writes it.
fn page(pods: &Pods, count: u64) -> Bytes {
    let rv = ResourceVersion(1_000_001_000);
    let frame = pods.envelope.list(&ListMeta {
        resource_version: rv,
        continue_token: String::new(),
        remaining: None,
        shard: None,
    });
    let objects: Vec<_> = (0..count).map(|n| pods.object(n, n)).collect();
    let items_len = objects.iter().map(|object| frame.item_len(object.body().len())).sum();
    let mut out = BytesMut::from(&frame.head(objects.len(), items_len)[..]);
    for (index, object) in objects.iter().enumerate() {
        frame.put_item(index == 0, object.body(), &mut out);
    }
    out.extend_from_slice(&frame.tail());
    out.freeze()
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(300)).measurement_time(Duration::from_secs(1));
    targets = reference, split, decode, transcode, build, differences
}
criterion_main!(benches);
