//! The proxy's load on upstream by cause, as a page and as metrics. The counts are supplied by the caller, so that a
//! probe does not depend on the code that talks to upstream.

use std::fmt::Write;
use std::sync::Arc;

use serde::Serialize;

/// The cost of one cause in the response of `/debug/cost`. All numbers are totals since the start, except
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

const METRICS: [UpstreamCostMetric; 4] = [
    ("kube_fanout_upstream_requests_total", "requests sent upstream, by cause", "counter", |of| of.requests),
    ("kube_fanout_upstream_streams_opened_total", "streams opened upstream", "counter", |of| of.streams_opened),
    ("kube_fanout_upstream_streams_open", "streams open upstream", "gauge", |of| of.streams_open),
    ("kube_fanout_upstream_body_bytes_total", "bytes of upstream response bodies, as received", "counter", |of| {
        of.body_bytes
    }),
];

/// Appends the metrics in Prometheus' text format.
pub(super) fn write(rows: &[UpstreamCostRow], out: &mut String) {
    for (name, help, kind, value) in METRICS {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for row in rows {
            let _ = writeln!(out, "{name}{{cause=\"{}\"}} {}", row.cause, value(row));
        }
    }
}
