use hdrhistogram::Histogram;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

/// The direction in which a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BetterDirection {
    Less,
    More,
    /// The figure describes the load, not the result.
    Neither,
}

/// Every figure: its name, its unit, which direction is better, and the description that users see.
pub(super) const CATALOGUE: &[(&str, &str, BetterDirection, &str)] = &[
    ("watches", "", BetterDirection::Neither, "opened watches"),
    ("connections", "", BetterDirection::Neither, "connections that the watches share"),
    ("opening_s", "s", BetterDirection::Less, "time until all watches were synced"),
    ("opening_cpu_ms_per_watch", "ms", BetterDirection::Less, "server CPU time per opened watch"),
    ("synced_p50_ms", "ms", BetterDirection::Less, "time until a watch was synced or resumed: median"),
    ("synced_p99_ms", "ms", BetterDirection::Less, "the same, 99th percentile"),
    ("synced_max_ms", "ms", BetterDirection::Less, "the same, maximum"),
    ("writes_per_s", "1/s", BetterDirection::Neither, "successful writes per second"),
    ("deliveries_per_s", "1/s", BetterDirection::More, "events received per second, all watches together"),
    ("bytes_per_s", "B/s", BetterDirection::Neither, "bytes received per second"),
    ("bytes_per_delivery", "B", BetterDirection::Less, "bytes received per delivered event"),
    ("plain_bytes_per_delivery", "B", BetterDirection::Neither, "the same, after decompression"),
    (
        "latency_p50_ms",
        "ms",
        BetterDirection::Less,
        "delivery latency, from the scheduled time of a write to the event: median",
    ),
    ("latency_p90_ms", "ms", BetterDirection::Less, "the same, 90th percentile"),
    ("latency_p99_ms", "ms", BetterDirection::Less, "the same, 99th percentile"),
    ("latency_p999_ms", "ms", BetterDirection::Less, "the same, 99.9th percentile"),
    ("latency_max_ms", "ms", BetterDirection::Less, "the same, maximum"),
    ("requests", "", BetterDirection::Neither, "completed requests"),
    ("requests_per_s", "1/s", BetterDirection::More, "completed requests per second"),
    ("request_p50_ms", "ms", BetterDirection::Less, "time from a request to the last byte of its response: median"),
    ("request_p99_ms", "ms", BetterDirection::Less, "the same, 99th percentile"),
    ("request_max_ms", "ms", BetterDirection::Less, "the same, maximum"),
    ("request_bytes", "B", BetterDirection::Less, "size of a response"),
    ("request_plain_bytes", "B", BetterDirection::Neither, "the same, after decompression"),
    ("cpu_us_per_delivery", "µs", BetterDirection::Less, "server CPU time per delivered event"),
    ("cpu_us_per_write", "µs", BetterDirection::Less, "server CPU time per write, deliveries included"),
    ("cpu_ms_per_request", "ms", BetterDirection::Less, "server CPU time per request"),
    (
        "cpu_ms_per_informer",
        "ms",
        BetterDirection::Less,
        "server CPU time per informer that starts, or per watch that resumes",
    ),
    ("cpu_cores", "cores", BetterDirection::Less, "server CPU use"),
    ("memory_kib_per_watch", "KiB", BetterDirection::Less, "server memory per watch: after opening minus before"),
    ("memory_mib", "MiB", BetterDirection::Less, "server memory while the watches are open"),
    ("memory_pss_mib", "MiB", BetterDirection::Less, "the same, as proportional set size"),
    ("memory_peak_mib", "MiB", BetterDirection::Less, "peak server memory"),
    ("compressed", "", BetterDirection::Neither, "opened streams that the server compressed"),
    ("bookmarks", "", BetterDirection::Neither, "bookmarks received"),
    ("missed", "", BetterDirection::Less, "events not received in time"),
    ("repeated", "", BetterDirection::Less, "events received more than once"),
    ("unexpected", "", BetterDirection::Neither, "events of writes by others"),
    ("resumed", "", BetterDirection::Neither, "streams that ended and resumed"),
    ("relisted", "", BetterDirection::Less, "streams that had to relist"),
    ("refused", "", BetterDirection::Less, "refused watches or requests"),
    ("broken", "", BetterDirection::Less, "broken connections and streams"),
    ("writes_failed", "", BetterDirection::Less, "failed writes"),
    ("write_p50_ms", "ms", BetterDirection::Neither, "time from a write to its response: median"),
    ("write_p99_ms", "ms", BetterDirection::Neither, "the same, 99th percentile"),
    (
        "schedule_lag_p99_ms",
        "ms",
        BetterDirection::Neither,
        "delay of writes after their scheduled time: 99th percentile",
    ),
    ("generator_cores", "cores", BetterDirection::Neither, "CPU use of the load generator"),
    (
        "inflate_us_per_delivery",
        "µs",
        BetterDirection::Neither,
        "load generator CPU time for decompression per delivered event, part of generator_us_per_delivery",
    ),
    ("generator_us_per_delivery", "µs", BetterDirection::Neither, "load generator CPU time per delivered event"),
];

/// The percentiles that are kept for charts.
const CURVE: [f64; 12] = [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 100.0];

/// The measured figures, by the names of the catalogue and in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BenchFigures(Vec<(&'static str, f64)>);

impl BenchFigures {
    pub(super) fn put(&mut self, name: &'static str, value: f64) {
        debug_assert!(CATALOGUE.iter().any(|(known, ..)| *known == name), "{name} is in no catalogue");
        if value.is_finite() {
            self.0.push((name, value));
        }
    }

    pub(super) fn put_some(&mut self, name: &'static str, value: Option<f64>) {
        if let Some(value) = value {
            self.put(name, value);
        }
    }

    /// Returns the value of a figure, if it was measured.
    pub fn of(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(known, _)| *known == name).map(|(_, value)| *value)
    }
}

impl Serialize for BenchFigures {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        let known = CATALOGUE.iter().filter_map(|(name, ..)| Some((name, self.of(name)?)));
        for (name, value) in known {
            map.serialize_entry(name, &value)?;
        }
        map.end()
    }
}

/// The result of one run against one server.
#[derive(Clone, Debug, Serialize)]
pub struct BenchRunOutcome {
    pub side: String,
    pub target: String,
    pub variant: String,
    pub round: usize,
    /// Whether the run was interrupted; the figures cover the time until then.
    pub interrupted: bool,
    pub figures: BenchFigures,
    /// The latency in milliseconds, by percentile.
    pub percentiles: Vec<(f64, f64)>,
    /// The negotiated cipher suite, if the watches use TLS.
    pub cipher: Option<&'static str>,
    /// Warnings about the measured figures.
    pub notes: Vec<String>,
}

impl BenchRunOutcome {
    /// Whether every watch received every event exactly once.
    pub fn is_complete(&self) -> bool {
        let none = |name| self.figures.of(name).unwrap_or(0.0) == 0.0;
        none("missed") && none("repeated")
    }
}

/// Converts microseconds to milliseconds.
pub(super) fn ms(us: u64) -> f64 {
    us as f64 / 1000.0
}

pub(super) fn quantile_ms(histogram: &Histogram<u64>, quantile: f64) -> Option<f64> {
    (!histogram.is_empty()).then(|| ms(histogram.value_at_quantile(quantile)))
}

/// Returns the percentiles of a histogram for a chart.
pub(super) fn curve(histogram: &Histogram<u64>) -> Vec<(f64, f64)> {
    let at = |percentile: &f64| Some((*percentile, quantile_ms(histogram, percentile / 100.0)?));
    CURVE.iter().filter_map(at).collect()
}
