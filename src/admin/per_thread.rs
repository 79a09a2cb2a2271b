//! The metrics that are recorded at each delivery. Each thread has its own integers, which are summed when the metrics
//! are scraped. So no cache line moves between cores, and nothing accumulates between scrapes.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use metrics::{
    Counter, CounterFn, Gauge, Histogram, HistogramFn, Key, KeyName, Label, Metadata, Recorder, SharedString, Unit,
};
use parking_lot::Mutex;

use super::series::{escaped, head};

/// A metrics recorder that keeps histograms, and counters with given names, per thread. All other metrics go to the
/// recorder `inner`.
pub(super) struct PerThreadMetricsRecorder<R> {
    inner: R,
    counters: &'static [&'static str],
    per_thread: PerThreadMetrics,
}

/// The metrics that are kept per thread. Clones share them.
#[derive(Clone, Default)]
pub(super) struct PerThreadMetrics(Arc<PerThreadMetricsState>);

#[derive(Default)]
struct PerThreadMetricsState {
    counters: Mutex<HashMap<Key, SummedCounter>>,
    histograms: Mutex<HashMap<Key, Arc<PerThreadSlots<HistogramBuckets>>>>,
    help: Mutex<HashMap<String, SharedString>>,
}

/// The values of a counter, and the counter of `inner` that receives their sum.
type SummedCounter = (Arc<PerThreadSlots<AtomicU64>>, Counter);

/// The maximum number of slots. There is one slot per thread, up to this limit; threads that share a slot only lose
/// time.
const SLOTS_MAX: usize = 64;

/// The upper bounds of the buckets of all durations, in seconds. A delivery takes 0.1 ms on an idle machine.
const BUCKETS: [f64; 14] = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 2.5, 10.0, 60.0];

/// One value per slot of a thread. Each slot has its own cache lines, because processors fetch two lines of 64 bytes at
/// a time.
#[derive(Debug)]
struct PerThreadSlots<T>(Box<[CachePadded<T>]>);

#[derive(Debug, Default)]
#[repr(align(128))]
struct CachePadded<T>(T);

/// The counts of delays per bucket: the first whose bound is at least the delay. The last one is for longer delays.
#[derive(Debug, Default)]
struct HistogramBuckets {
    counts: [AtomicU64; BUCKETS.len() + 1],
    nanos: AtomicU64,
}

impl<T: Default> PerThreadSlots<T> {
    fn new() -> Self {
        // Connections use one thread per core, and other work uses as many.
        let threads = 2 * std::thread::available_parallelism().map_or(1, usize::from);
        Self((0..threads.min(SLOTS_MAX)).map(|_| CachePadded::default()).collect())
    }
}

impl<T> PerThreadSlots<T> {
    /// Returns the slot of the current thread.
    fn current_thread(&self) -> &T {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        &self.0[NUMBER.with(|number| *number) % self.0.len()].0
    }

    fn all(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|slot| &slot.0)
    }
}

fn sum<'a>(counts: impl Iterator<Item = &'a AtomicU64>) -> u64 {
    counts.map(|count| count.load(Ordering::Relaxed)).sum()
}

impl CounterFn for PerThreadSlots<AtomicU64> {
    fn increment(&self, value: u64) {
        self.current_thread().fetch_add(value, Ordering::Relaxed);
    }

    /// Does nothing: the counters are only set as sums, on the inner recorder.
    fn absolute(&self, _: u64) {}
}

impl HistogramFn for PerThreadSlots<HistogramBuckets> {
    fn record(&self, seconds: f64) {
        let slot = self.current_thread();
        let bucket = BUCKETS.partition_point(|most| *most < seconds);
        slot.counts[bucket].fetch_add(1, Ordering::Relaxed);
        let nanos = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_nanos();
        slot.nanos.fetch_add(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl<R> PerThreadMetricsRecorder<R> {
    /// Creates the recorder. `counters` are the names of those that are kept per thread.
    pub(super) fn new(inner: R, counters: &'static [&'static str]) -> Self {
        Self { inner, counters, per_thread: PerThreadMetrics::default() }
    }

    pub(super) fn per_thread(&self) -> PerThreadMetrics {
        self.per_thread.clone()
    }
}

impl<R: Recorder> Recorder for PerThreadMetricsRecorder<R> {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.inner.describe_counter(name, unit, help);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, help: SharedString) {
        self.inner.describe_gauge(name, unit, help);
    }

    fn describe_histogram(&self, name: KeyName, _: Option<Unit>, help: SharedString) {
        self.per_thread.0.help.lock().insert(name.as_str().to_owned(), help);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        if !self.counters.contains(&key.name()) {
            return self.inner.register_counter(key, metadata);
        }
        let mut counters = self.per_thread.0.counters.lock();
        let (counts, _) = counters
            .entry(key.clone())
            .or_insert_with(|| (Arc::new(PerThreadSlots::new()), self.inner.register_counter(key, metadata)));
        Counter::from_arc(counts.clone())
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.inner.register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        let mut histograms = self.per_thread.0.histograms.lock();
        let delays = histograms.entry(key.clone()).or_insert_with(|| Arc::new(PerThreadSlots::new()));
        Histogram::from_arc(delays.clone())
    }
}

impl PerThreadMetrics {
    /// Sets the counters of the inner recorder to the sums over all threads.
    pub(super) fn publish_counters(&self) {
        for (counts, reported) in self.0.counters.lock().values() {
            reported.absolute(sum(counts.all()));
        }
    }

    /// Appends the histograms in Prometheus' text format.
    pub(super) fn write(&self, out: &mut String) {
        let histograms = self.0.histograms.lock();
        let mut by_name: Vec<_> = histograms.iter().collect();
        by_name.sort_by_key(|(key, _)| *key);
        let mut last = None;
        for (key, delays) in by_name {
            if last != Some(key.name()) {
                let help = self.0.help.lock().get(key.name()).cloned().unwrap_or_default();
                head(out, key.name(), "histogram", &help);
                last = Some(key.name());
            }
            delays.write(key, out);
        }
    }
}

impl PerThreadSlots<HistogramBuckets> {
    fn write(&self, key: &Key, out: &mut String) {
        let labels: Vec<_> = key.labels().map(pair).collect();
        let (name, labels) = (key.name(), labels.join(","));
        let comma = if labels.is_empty() { "" } else { "," };
        let mut so_far = 0;
        // Writing to a String does not fail.
        for (n, most) in BUCKETS.iter().map(f64::to_string).chain(["+Inf".to_owned()]).enumerate() {
            so_far += sum(self.all().map(|slot| &slot.counts[n]));
            let _ = writeln!(out, "{name}_bucket{{{labels}{comma}le=\"{most}\"}} {so_far}");
        }
        let seconds = sum(self.all().map(|slot| &slot.nanos)) as f64 / 1e9;
        let _ = writeln!(out, "{name}_sum{{{labels}}} {seconds}\n{name}_count{{{labels}}} {so_far}");
    }
}

fn pair(label: &Label) -> String {
    format!("{}=\"{}\"", label.key(), escaped(label.value()))
}

#[cfg(test)]
mod tests {
    use metrics::{Level, NoopRecorder};
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;

    const HERE: Metadata<'static> = Metadata::new("", Level::INFO, None);

    #[test]
    fn counter_sums_increments_of_all_threads() {
        let inner = PrometheusBuilder::new().build_recorder();
        let handle = inner.handle();
        let recorder = PerThreadMetricsRecorder::new(inner, &["events"]);
        let [kept, other] = ["events", "other"].map(|name| recorder.register_counter(&Key::from_name(name), &HERE));
        std::thread::scope(|scope| {
            for n in 0..100 {
                let (kept, other) = (kept.clone(), other.clone());
                scope.spawn(move || (kept.increment(n), other.increment(1)));
            }
        });
        recorder.register_counter(&Key::from_name("events"), &HERE).increment(1);
        assert!(handle.render().contains("events 0"), "the sum is published only when the metrics are rendered");
        recorder.per_thread().publish_counters();
        let text = handle.render();
        assert!(text.contains("events 4951\n") && text.contains("other 100\n"), "{text}");
    }

    #[test]
    fn histogram_renders_cumulative_buckets_sum_and_count() {
        let recorder = PerThreadMetricsRecorder::new(NoopRecorder, &[]);
        recorder.describe_histogram("d_seconds".into(), None, "a delay".into());
        let labels = vec![Label::new("resource", "p\"x")];
        let key = Key::from_parts("d_seconds", labels);
        for seconds in [0.0, 0.0001, 0.0002, 0.04, 11.0, -1.0] {
            recorder.register_histogram(&key, &HERE).record(seconds);
        }
        let mut text = String::new();
        recorder.per_thread().write(&mut text);
        let expected = [
            "# HELP d_seconds a delay\n# TYPE d_seconds histogram\n",
            "d_seconds_bucket{resource=\"p\\\"x\",le=\"0.0001\"} 3\n",
            "d_seconds_bucket{resource=\"p\\\"x\",le=\"0.00025\"} 4\n",
            "d_seconds_bucket{resource=\"p\\\"x\",le=\"0.01\"} 4\n",
            "d_seconds_bucket{resource=\"p\\\"x\",le=\"0.05\"} 5\n",
            "d_seconds_bucket{resource=\"p\\\"x\",le=\"10\"} 5\n",
            "d_seconds_bucket{resource=\"p\\\"x\",le=\"+Inf\"} 6\n",
            "d_seconds_sum{resource=\"p\\\"x\"} 11.0403\n",
            "d_seconds_count{resource=\"p\\\"x\"} 6\n",
        ];
        for line in expected {
            assert!(text.contains(line), "{line}: {text}");
        }
    }
}
