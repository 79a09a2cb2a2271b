//! The hot path without sockets: a change in, frames out, for readers that match and readers that do not.

use std::hint::black_box;
use std::sync::Arc;
use std::task::Waker;
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
        // A ring that is full soon: an event that stays costs fresh memory, and how many do depends on the run.
        let config = Config { window_events_max: 1_000, ..Config::default() };
        let (mut writer, cache) = CacheWriter::new(config, gvr, envelope, true);
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

    fn watch(&self, namespace: Option<&str>, labels: &str, fields: &str) -> Cursor {
        let fields = FieldSelector::parse(fields).and_then(|parsed| parsed.compile(&self.fields)).expect("a selector");
        let selector = Selector { labels: LabelSelector::parse(labels).expect("a selector"), fields };
        self.cache.open(Start::Current, View::new(namespace, selector)).expect("current").cursor
    }

    /// A watch of a sort that no pod of this file is seen by; those of one `value` see the same.
    fn watch_other(&self, sort: &str, value: usize) -> Cursor {
        match sort {
            "namespace" => self.watch(Some(&format!("other-{value}")), "", ""),
            "name" => self.watch(Some("ns0"), "", &format!("metadata.name=other-{value}")),
            "node" => self.watch(None, "", &format!("spec.nodeName=other-{value}")),
            "phase" => self.watch(None, "", &format!("status.phase=other-{value}")),
            "label" => self.watch(None, &format!("app=other-{value}"), ""),
            "label of a namespace" => self.watch(Some("ns0"), &format!("app=other-{value}"), ""),
            "set of labels" => self.watch(None, &format!("app in (other-{value},another-{value})"), ""),
            "other label" => self.watch(None, &format!("other-{value}=yes"), ""),
            _ => unreachable!("{sort} is no sort of watch"),
        }
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

const SORTS: [&str; 8] =
    ["namespace", "name", "node", "phase", "label", "label of a namespace", "set of labels", "other label"];

/// What one change costs the writer, by how many watches are open that it does not match: it should not depend on
/// them, whether they follow one lane or ten thousand.
fn apply(c: &mut Criterion) {
    let mut group = c.benchmark_group("apply, other watches open");
    let mut measure = |name: &str, sort: &str, watches: usize, lanes: usize| {
        let mut bench = Bench::new();
        let mut idle: Vec<_> = (0..watches).map(|n| bench.watch_other(sort, n % lanes)).collect();
        for cursor in &mut idle {
            cursor.pull(usize::MAX, Some(Waker::noop()), &mut Vec::new());
        }
        for n in 0..2_000 {
            let change = bench.change(n % 50);
            bench.writer.apply(change).expect("in order");
        }
        group.bench_function(BenchmarkId::new(name, watches), |b| {
            b.iter_batched(
                || (),
                |()| {
                    let change = bench.change(7);
                    bench.writer.apply(change).expect("in order")
                },
                BatchSize::SmallInput,
            );
        });
    };
    measure("none", "namespace", 0, 1);
    for sort in SORTS {
        for watches in [100, 10_000] {
            measure(&format!("one {sort}"), sort, watches, 1);
            measure(&format!("a {sort} each"), sort, watches, watches);
        }
    }
    group.finish();
}

/// One change and its delivery to every watch, per delivery.
fn fan_out(c: &mut Criterion) {
    let mut group = c.benchmark_group("fan out to watches of everything");
    for watches in [1_usize, 100, 1_000] {
        let mut bench = Bench::new();
        let mut cursors: Vec<_> = (0..watches).map(|_| bench.watch(None, "", "")).collect();
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
