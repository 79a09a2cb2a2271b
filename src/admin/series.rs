//! The metrics of feeds and of the load on upstream, which are read when scraped.
//!
//! The labels of a feed come from callers' requests, above all the namespaces, and a metrics registry never drops a
//! series. So feeds are not recorded in a registry. Their series are written from the existing feeds, and end with
//! them.

use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use crate::cache::{CacheStats, FeedState, MemoryUse};
use crate::feeds::{
    DerivedRepresentationMode, DerivedRepresentationRefusal, Feed, FeedKey, FeedRegistry, FeedTrafficCounts,
};

/// A metric of a feed: its name, its help text, and the function that reads it.
type FeedMetric<T> = (&'static str, &'static str, fn(&T) -> f64);

/// The values of a running feed at one time.
struct FeedSample {
    labels: String,
    state: FeedState,
    stats: CacheStats,
    feed: Arc<Feed>,
}

const STATES: [&str; 4] = ["syncing", "live", "stale", "ended"];

const GAUGES: [FeedMetric<FeedSample>; 10] = [
    ("kube_fanout_feed_stale_seconds", "time since the upstream watch of a feed ended", stale),
    ("kube_fanout_feed_objects", "objects in the cache", |of| of.stats.objects as f64),
    ("kube_fanout_feed_object_bytes", "bytes of the objects in the cache", |of| of.stats.object_bytes as f64),
    ("kube_fanout_feed_memory_bytes", "memory of everything that a feed keeps alive", |of| {
        of.stats.memory_bytes as f64
    }),
    ("kube_fanout_feed_resource_version", "resourceVersion that a feed has reached", |of| of.stats.progress.0 as f64),
    ("kube_fanout_window_events", "events in the history window", |of| of.stats.events as f64),
    ("kube_fanout_window_bytes", "bytes of the events in the history window", |of| of.stats.event_bytes as f64),
    ("kube_fanout_window_span_seconds", "time between the oldest and the newest event", |of| of.stats.span_seconds),
    ("kube_fanout_lanes", "lanes besides the lane of all events", |of| of.stats.lanes as f64),
    ("kube_fanout_derived_bytes", "bytes of cached derived representations", |of| of.stats.derived_bytes as f64),
];

const COUNTERS: [FeedMetric<FeedTrafficCounts>; 6] = [
    ("kube_fanout_upstream_events_total", "events received from upstream", |of| read(&of.events)),
    ("kube_fanout_upstream_bytes_total", "bytes of watch events received from upstream", |of| read(&of.bytes)),
    ("kube_fanout_upstream_bookmarks_total", "bookmarks received from upstream", |of| read(&of.bookmarks)),
    ("kube_fanout_upstream_duplicates_total", "events received more than once", |of| read(&of.duplicates)),
    ("kube_fanout_upstream_delta_bytes_total", "bytes received as deltas", |of| read(&of.delta_bytes)),
    ("kube_fanout_upstream_delta_plain_bytes_total", "bytes of those events", |of| read(&of.delta_plain_bytes)),
];

/// The counters of feeds that have one more label, such as a reason.
const LABELLED_COUNTERS: [(&str, &str); 5] = [
    ("kube_fanout_feed_requests_total", "requests of feeds besides their watch, by purpose"),
    ("kube_fanout_upstream_failures_total", "failed upstream watches and lists, by reason"),
    ("kube_fanout_history_gaps_total", "gaps in upstream's history, by outcome"),
    ("kube_fanout_self_checks_total", "comparisons of feeds with upstream, by outcome"),
    ("kube_fanout_history_backfills_total", "reads of the history before a feed's first list, by outcome"),
];

/// The metrics of the memory of all feeds: its budget, how much of it is used, and what was evicted.
const MEMORY: [(&str, &str); 3] = [
    ("kube_fanout_memory_budget_bytes", "memory budget of all feeds"),
    ("kube_fanout_memory_used_bytes", "memory used by all feeds, by kind"),
    ("kube_fanout_memory_evictions_total", "evictions because the memory budget was used up"),
];

/// Appends all metrics of feeds in Prometheus' text format.
pub(super) fn write(feeds: &FeedRegistry, out: &mut String) {
    write_memory(&feeds.memory(), out);
    write_feeds(feeds, out);
}

fn write_memory(memory: &MemoryUse, out: &mut String) {
    let [(budget, budget_help), (used, used_help), (evicted, evicted_help)] = MEMORY;
    head(out, budget, "gauge", budget_help);
    let _ = writeln!(out, "{budget} {}", memory.bytes_max);
    head(out, used, "gauge", used_help);
    for (kind, bytes) in memory.used {
        let _ = writeln!(out, "{used}{{kind=\"{}\"}} {bytes}", kind.as_str());
    }
    head(out, evicted, "counter", evicted_help);
    for (what, times) in memory.reclaimed {
        let _ = writeln!(out, "{evicted}{{what=\"{}\"}} {times}", what.as_str());
    }
}

fn write_feeds(feeds: &FeedRegistry, out: &mut String) {
    let running: Vec<_> = feeds.all().into_iter().map(FeedSample::of).collect();
    let counts: Vec<_> = feeds.counts().into_iter().map(|(key, counts)| (labels(&key), counts)).collect();
    for (name, help, value) in GAUGES {
        head(out, name, "gauge", help);
        running.iter().for_each(|of| line(out, name, &of.labels, None, value(of)));
    }
    head(out, "kube_fanout_feed_state", "gauge", "1 for the state that a feed is in");
    let states: HashMap<_, _> = running.iter().map(|of| (&of.labels, state_name(of.state))).collect();
    for (labels, _) in &counts {
        let state = states.get(labels).copied().unwrap_or("ended");
        for other in STATES {
            let is = f64::from(u8::from(other == state));
            line(out, "kube_fanout_feed_state", labels, Some(("state", other)), is);
        }
    }
    head(out, "kube_fanout_representation_mode", "gauge", "1 for the mode of a representation");
    for of in &running {
        for (representation, mode) in of.feed.renderings.all() {
            let labels = format!("{},representation=\"{}\"", of.labels, representation.as_str());
            line(out, "kube_fanout_representation_mode", &labels, Some(("mode", mode_name(&mode))), 1.0);
        }
    }
    head(out, "kube_fanout_upstream_watches", "gauge", "open upstream watches");
    counts.iter().for_each(|(labels, of)| line(out, "kube_fanout_upstream_watches", labels, None, read(&of.watches)));
    for (name, help, value) in COUNTERS {
        head(out, name, "counter", help);
        counts.iter().for_each(|(labels, of)| line(out, name, labels, None, value(of)));
    }
    let counters: Vec<_> = counts.iter().map(|(labels, of)| (labels, of.labelled_counts())).collect();
    for (name, help) in LABELLED_COUNTERS {
        head(out, name, "counter", help);
        for (labels, counters) in &counters {
            let of_this = counters.iter().filter(|(label, _)| label.metric == name);
            of_this.for_each(|(label, count)| line(out, name, labels, Some((label.label, label.value)), count));
        }
    }
}

/// The cost of one cause in the response of `/debug/cost`, for the load on upstream. The caller supplies it, so that a
/// probe does not depend on the code that talks to upstream. All numbers are totals since the start, except
/// `streamsOpen`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamCostRow {
    pub cause: &'static str,
    pub requests: u64,
    pub streams_opened: u64,
    pub streams_open: u64,
    /// The bytes of response bodies as received.
    pub body_bytes: u64,
    /// The number of reviews that the proxy answered itself, without a request.
    pub answered_here: u64,
}

/// A function that returns the current cost of every cause.
pub type UpstreamCostReader = Arc<dyn Fn() -> Vec<UpstreamCostRow> + Send + Sync>;

/// A metric: its name, its help text, its type, and the function that reads it.
type UpstreamCostMetric = (&'static str, &'static str, &'static str, fn(&UpstreamCostRow) -> u64);

const COSTS: [UpstreamCostMetric; 4] = [
    ("kube_fanout_upstream_requests_total", "requests sent upstream, by cause", "counter", |of| of.requests),
    ("kube_fanout_upstream_streams_opened_total", "streams opened upstream", "counter", |of| of.streams_opened),
    ("kube_fanout_upstream_streams_open", "streams open upstream", "gauge", |of| of.streams_open),
    ("kube_fanout_upstream_body_bytes_total", "bytes of upstream response bodies, as received", "counter", |of| {
        of.body_bytes
    }),
];

/// Appends the metrics in Prometheus' text format.
pub(super) fn write_costs(rows: &[UpstreamCostRow], out: &mut String) {
    for (name, help, kind, value) in COSTS {
        head(out, name, kind, help);
        for row in rows {
            let _ = writeln!(out, "{name}{{cause=\"{}\"}} {}", row.cause, value(row));
        }
    }
}

impl FeedSample {
    fn of(feed: Arc<Feed>) -> Self {
        let (labels, state, stats) = (labels(&feed.spec.key), feed.reader.state(), feed.reader.stats());
        Self { labels, state, stats, feed }
    }
}

fn read(counter: &AtomicU64) -> f64 {
    counter.load(Ordering::Relaxed) as f64
}

fn stale(of: &FeedSample) -> f64 {
    match of.state {
        FeedState::Stale { since } => since.elapsed().as_secs_f64(),
        _ => 0.0,
    }
}

fn state_name(state: FeedState) -> &'static str {
    match state {
        FeedState::Syncing => "syncing",
        FeedState::Live => "live",
        FeedState::Stale { .. } => "stale",
        FeedState::Ended(_) => "ended",
    }
}

fn mode_name(mode: &DerivedRepresentationMode) -> &'static str {
    match mode {
        DerivedRepresentationMode::Requested => "pending",
        DerivedRepresentationMode::Derived(_) => "derived",
        DerivedRepresentationMode::Refused(reason) => DerivedRepresentationRefusal::as_str(*reason),
    }
}

fn labels(key: &FeedKey) -> String {
    let labels = key.labels().map(|(name, value)| format!("{name}=\"{}\"", escaped(&value)));
    labels.join(",")
}

/// Escapes a label's value, which is in quotes (Prometheus, "Text-based format").
pub(super) fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Appends the help text and the type of a metric.
pub(super) fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(out: &mut String, name: &str, labels: &str, more: Option<(&str, &str)>, value: impl Display) {
    let _ = match more {
        Some((label, text)) => writeln!(out, "{name}{{{labels},{label}=\"{text}\"}} {value}"),
        None => writeln!(out, "{name}{{{labels}}} {value}"),
    };
}

#[cfg(test)]
mod tests;
