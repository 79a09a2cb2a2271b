//! The hot path without sockets: a change in, frames out, for readers that match and readers that do not.

use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use kube_fanout::cache::{CacheReader, CacheWriter, Change, Config, Cursor, Snapshot, Start, View};
use kube_fanout::kube::{FieldSelector, FieldTable, Gvr, LabelSelector, ResourceVersion, Selector};
use kube_fanout::wire::{Envelope, Form, ObjectReader, Shape, WatchItem};

/// A pod of about 2.5 KB on one of ten nodes, as the apiserver writes it into a watch.
fn frame(n: u64, rv: u64) -> Bytes {
    let filler = "x".repeat(2_200);
    let node = n % 10;
    let head = r#"{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1""#;
    let labels = format!(r#""labels":{{"app":"a{node}"}},"annotations":{{"filler":"{filler}"}}"#);
    let metadata = format!(r#""name":"p{n}","namespace":"ns{}","resourceVersion":"{rv}",{labels}"#, n % 5);
    let spec = format!(r#""spec":{{"containers":[],"nodeName":"n{node}"}},"status":{{"phase":"Running"}}"#);
    format!("{head},\"metadata\":{{{metadata}}},{spec}}}}}\n").into()
}

struct Bench {
    reader: ObjectReader,
    fields: FieldTable,
    writer: CacheWriter,
    cache: CacheReader,
    rv: u64,
}

impl Bench {
    fn new() -> Self {
        let gvr = Gvr::new("", "v1", "pods");
        let fields = FieldTable::of_builtin(&gvr, true);
        let reader = ObjectReader::new(Form::Json, Shape::BuiltIn, Arc::new(fields.clone()));
        let envelope = Envelope::new(Form::Json, "v1", "Pod", Shape::BuiltIn);
        let lane = Some("spec.nodeName");
        let (mut writer, cache) = CacheWriter::new(Config::default(), gvr, envelope, true, &fields, lane);
        writer.replace(Snapshot::from_objects(ResourceVersion(1), Vec::new()));
        Self { reader, fields, writer, cache, rv: 1 }
    }

    fn change(&mut self, n: u64) -> Change {
        self.rv += 1;
        match self.reader.watch_event(frame(n, self.rv)) {
            Ok(WatchItem::Change { event_type, object, frame }) => Change { event_type, object, frame: Some(frame) },
            other => panic!("a pod reads as one: {other:?}"),
        }
    }

    fn watches(&self, n: usize, selector: &str) -> Vec<Cursor> {
        let fields =
            FieldSelector::parse(selector).and_then(|parsed| parsed.compile(&self.fields)).expect("a selector");
        let selector = Selector { labels: LabelSelector::parse("").expect("empty"), fields };
        let open = || self.cache.open(Start::Current, View::new(None, selector.clone())).expect("current").cursor;
        (0..n).map(|_| open()).collect()
    }
}

fn decode(c: &mut Criterion) {
    let bench = Bench::new();
    let frame = frame(7, 7);
    let mut group = c.benchmark_group("decode");
    group.throughput(Throughput::Bytes(frame.len() as u64));
    group.bench_function("json pod", |b| b.iter(|| bench.reader.watch_event(black_box(frame.clone()))));
    group.finish();
}

/// What one change costs the writer, by how many watches are open that it does not match: it should not depend on them.
fn apply(c: &mut Criterion) {
    let mut group = c.benchmark_group("apply, watches of another node open");
    for watches in [0, 100, 10_000] {
        let mut bench = Bench::new();
        let mut idle = bench.watches(watches, "spec.nodeName=elsewhere");
        let waker = std::task::Waker::noop();
        for cursor in &mut idle {
            cursor.pull(usize::MAX, Some(waker), &mut Vec::new());
        }
        group.bench_function(BenchmarkId::from_parameter(watches), |b| {
            b.iter_batched(
                || (),
                |()| {
                    let change = bench.change(7);
                    bench.writer.apply(change).expect("in order")
                },
                BatchSize::SmallInput,
            );
        });
    }
    group.finish();
}

/// One change and its delivery to every watch, per delivery.
fn fan_out(c: &mut Criterion) {
    let mut group = c.benchmark_group("fan out to watches of everything");
    for watches in [1, 100, 1_000] {
        let mut bench = Bench::new();
        let mut cursors = bench.watches(watches, "");
        let mut batch = Vec::new();
        group.throughput(Throughput::Elements(watches as u64));
        group.bench_function(BenchmarkId::from_parameter(watches), |b| {
            b.iter(|| {
                let change = bench.change(7);
                bench.writer.apply(change).expect("in order");
                for cursor in &mut cursors {
                    batch.clear();
                    black_box(cursor.pull(usize::MAX, None, &mut batch));
                }
            });
        });
    }
    group.finish();
}

criterion_group! {
    name = benches;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = decode, apply, fan_out
}
criterion_main!(benches);
