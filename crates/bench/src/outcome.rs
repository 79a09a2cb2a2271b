use hdrhistogram::Histogram;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

/// Which direction of a figure is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Better {
    Less,
    More,
    /// The figure describes the load, not the result.
    Neither,
}

/// Every figure: its name, unit, better direction and description. They are documented in docs/tools/BENCH.md.
pub(super) const CATALOGUE: &[(&str, &str, Better, &str)] = &[
    ("watches", "", Better::Neither, "watches that were opened"),
    ("connections", "", Better::Neither, "connections that they share"),
    ("opening_s", "s", Better::Less, "until every watch had what it begins with"),
    ("opening_cpu_ms_per_watch", "ms", Better::Less, "CPU of the server for opening a watch"),
    ("synced_p50_ms", "ms", Better::Less, "until a watch had what it begins with, or was resumed: median"),
    ("synced_p99_ms", "ms", Better::Less, "the same, 99 of 100"),
    ("synced_max_ms", "ms", Better::Less, "the same, the last one"),
    ("writes_per_s", "1/s", Better::Neither, "writes that were accepted"),
    ("deliveries_per_s", "1/s", Better::More, "events that arrived, at all watches together"),
    ("bytes_per_s", "B/s", Better::Neither, "bytes that arrived"),
    ("latency_p50_ms", "ms", Better::Less, "from when a write was meant to happen to its arrival: median"),
    ("latency_p90_ms", "ms", Better::Less, "the same, 9 of 10"),
    ("latency_p99_ms", "ms", Better::Less, "the same, 99 of 100"),
    ("latency_p999_ms", "ms", Better::Less, "the same, 999 of 1000"),
    ("latency_max_ms", "ms", Better::Less, "the same, the last one"),
    ("requests", "", Better::Neither, "requests that were answered"),
    ("requests_per_s", "1/s", Better::More, "requests that were answered, a second"),
    ("request_p50_ms", "ms", Better::Less, "from a request to the last byte of its answer: median"),
    ("request_p99_ms", "ms", Better::Less, "the same, 99 of 100"),
    ("request_max_ms", "ms", Better::Less, "the same, the last one"),
    ("request_bytes", "B", Better::Neither, "bytes of an answer"),
    ("cpu_us_per_delivery", "µs", Better::Less, "CPU of the server for a delivery"),
    ("cpu_us_per_write", "µs", Better::Less, "CPU of the server for a write, with all that it sets off"),
    ("cpu_ms_per_request", "ms", Better::Less, "CPU of the server for a request"),
    (
        "cpu_ms_per_informer",
        "ms",
        Better::Less,
        "CPU of the server for an informer that joins, or for a watch that resumes",
    ),
    ("cpu_cores", "cores", Better::Less, "CPU of the server"),
    ("memory_kib_per_watch", "KiB", Better::Less, "memory of the server for a watch: after opening less before"),
    ("memory_mib", "MiB", Better::Less, "memory of the server when the watches are open"),
    ("memory_pss_mib", "MiB", Better::Less, "the same, of what is shared only its share"),
    ("memory_peak_mib", "MiB", Better::Less, "its highest during the run"),
    ("bookmarks", "", Better::Neither, "bookmarks that arrived"),
    ("missed", "", Better::Less, "events that did not arrive in time"),
    ("repeated", "", Better::Less, "events that arrived again"),
    ("unexpected", "", Better::Neither, "events beyond those that were written here"),
    ("resumed", "", Better::Neither, "streams that ended and went on"),
    ("relisted", "", Better::Less, "streams that had to begin anew"),
    ("refused", "", Better::Less, "watches or requests that were refused"),
    ("broken", "", Better::Less, "connections and streams that broke"),
    ("writes_failed", "", Better::Less, "writes that failed"),
    ("write_p50_ms", "ms", Better::Neither, "from sending a write to its answer: median"),
    ("write_p99_ms", "ms", Better::Neither, "the same, 99 of 100"),
    ("schedule_lag_p99_ms", "ms", Better::Neither, "how late writes were sent, 99 of 100"),
    ("generator_cores", "cores", Better::Neither, "CPU of the generator itself"),
    ("generator_us_per_delivery", "µs", Better::Neither, "CPU of the generator for a delivery"),
];

/// Percentiles that are recorded for charts.
const CURVE: [f64; 12] = [10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 100.0];

/// The measured figures, by the names of the catalogue and in its order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures(Vec<(&'static str, f64)>);

impl Figures {
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

impl Serialize for Figures {
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
pub struct RunOutcome {
    pub side: String,
    pub target: String,
    pub variant: String,
    pub round: usize,
    /// Whether the user ended the run early. Then the figures cover the shorter time.
    pub interrupted: bool,
    pub figures: Figures,
    /// Latency in milliseconds by percentile.
    pub percentiles: Vec<(f64, f64)>,
    /// The negotiated cipher suite, if watches were measured over TLS.
    pub cipher: Option<&'static str>,
    /// Caveats for the reader of the figures.
    pub notes: Vec<String>,
}

impl RunOutcome {
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
