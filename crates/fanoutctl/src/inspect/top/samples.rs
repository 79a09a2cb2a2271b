//! Sample data for tests.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::poll::{OpenWatchesResult, ProxyPollResult};
use super::rates::{LatencyBuckets, ProxyCounters};
use crate::inspect::metrics::MetricsText;
use crate::inspect::status::ProxyStatus;

/// Returns the counters of a proxy that has delivered this many events.
pub(super) fn counters(at: Instant, delivered: u64) -> ProxyCounters {
    let values = [delivered / 10, delivered, delivered * 300, delivered / 4, 0, 0];
    ProxyCounters { at, values, ages: LatencyBuckets::default(), deliveries: LatencyBuckets::default() }
}

/// Returns the poll of a proxy with two feeds, one of them stale, and three watches.
pub(super) fn look(counters: ProxyCounters) -> ProxyPollResult {
    let status = ProxyStatus {
        name: "unix:/run/admin.sock".to_owned(),
        pending: Vec::new(),
        feeds: vec![feed("pods.v1", "live", 3), feed("nodes.v1", "stale", 1)],
        version: "1.2.3".to_owned(),
        watches: 5_000,
        streams: 6,
        held_bytes: 50 << 20,
        budget_bytes: 700 << 20,
        resident_bytes: 150 << 20,
        restart_required: Vec::new(),
        last_error: None,
        files: Vec::new(),
        metrics: MetricsText(String::new()),
    };
    let rows = vec![watch("a", "Zeta/1", 7), watch("b", "kubelet/v1.37.1 (linux/amd64)", 0), watch("c", "alpha/2", 0)];
    ProxyPollResult { status, counters, watches: OpenWatchesResult::Shown { total: 5_000, rows } }
}

pub(super) fn feed(resource: &str, state: &str, readers: u64) -> Value {
    json!({"resource": resource, "namespace": null, "selector": null, "encoding": "protobuf", "state": state,
        "staleSeconds": (state == "stale").then_some(12), "resourceVersion": "184000", "objects": 1_000 * readers,
        "windowEvents": 900, "memoryBytes": 3_000_000 * readers, "readers": readers})
}

pub(super) fn watch(user: &str, agent: &str, behind: u64) -> Value {
    json!({"user": user, "userAgent": agent, "resource": "pods.v1", "namespace": null, "selectors": "fields",
        "protocol": "h2", "openSeconds": 90, "bytesSent": 4_096, "eventsBehind": behind, "eventsBehindIsLowerBound": false,
        "state": if behind > 0 { "stalled" } else { "idle" }, "stateSeconds": 5})
}
