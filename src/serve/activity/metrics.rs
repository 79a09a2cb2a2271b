//! The metrics of serving.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use metrics::{Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram};
use metrics::{gauge, histogram};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::feeds::FeedKey;
use crate::serve::activity::WatchTransport;
use crate::serve::activity::active_watches::ActiveWatchGuard;
use crate::serve::route::ForwardReason;
use crate::wire::Representation;
use kubeapi::Gvr;

/// The metric handles of watches, shared by all watches with the same labels, because ten thousand watches would each
/// look up and hold them. A sharded map gains nothing, because there are few kinds and each watch looks up once: a
/// lookup takes 50 ns with one lock and 49 ns sharded.
#[derive(Debug, Default)]
pub(crate) struct WatchMetricsRegistry(Mutex<HashMap<WatchMetricLabels, Arc<WatchMetricHandles>>>);

/// The metric labels of a watch.
type WatchMetricLabels = (Gvr, Representation, WatchTransport);

#[derive(Debug)]
struct WatchMetricHandles {
    resource: String,
    labels: Vec<Label>,
    open: Gauge,
    events: Counter,
    bytes: Counter,
    delay: Histogram,
}

/// The metrics of one watch. The caller must report its end with [`ended`](Self::ended).
pub(crate) struct WatchMetrics {
    handles: Arc<WatchMetricHandles>,
    opened: Instant,
    /// The entry of the watch on the debug pages.
    pub(crate) active_watch: ActiveWatchGuard,
}

/// The counters of the bytes of compressed watches.
#[derive(Debug)]
pub(crate) struct GzipWatchBytes {
    /// The bytes of frames before compression.
    pub(crate) before: Counter,
    /// The bytes that are sent.
    pub(crate) after: Counter,
}

impl WatchMetricsRegistry {
    /// Counts a watch as open. `active_watch` is its entry on the debug pages.
    pub(crate) fn open(
        &self,
        key: &FeedKey,
        representation: Representation,
        protocol: WatchTransport,
        active_watch: ActiveWatchGuard,
    ) -> WatchMetrics {
        let kind = (key.gvr.clone(), representation, protocol);
        let handles =
            self.0.lock().entry(kind).or_insert_with_key(|kind| Arc::new(WatchMetricHandles::new(kind))).clone();
        handles.open.increment(1.0);
        WatchMetrics { handles, opened: Instant::now(), active_watch }
    }
}

impl WatchMetricHandles {
    fn new((gvr, representation, protocol): &WatchMetricLabels) -> Self {
        let resource = gvr.to_string();
        let representation = Label::new("representation", representation.as_str());
        let labels = vec![Label::new("resource", resource.clone()), representation];
        let mut with_protocol = labels.clone();
        with_protocol.push(Label::new("protocol", protocol.as_str()));
        Self {
            open: gauge!("kube_fanout_watches_open", with_protocol),
            events: counter!("kube_fanout_watch_events_total", labels.clone()),
            bytes: counter!("kube_fanout_watch_bytes_total", labels.clone()),
            delay: histogram!("kube_fanout_watch_delivery_seconds", labels.clone()),
            resource,
            labels,
        }
    }
}

impl WatchMetrics {
    /// Returns the counters for a watch that is compressed.
    pub(crate) fn gzip_bytes(&self) -> GzipWatchBytes {
        let counter = |stage| {
            let labels = self.handles.labels.iter().cloned().chain([Label::new("stage", stage)]);
            counter!("kube_fanout_watch_gzip_bytes_total", labels.collect::<Vec<_>>())
        };
        GzipWatchBytes { before: counter("before"), after: counter("after") }
    }

    /// Counts frames that are sent, and the bytes of their pieces.
    pub(crate) fn sent(&self, frames: usize, pieces: &[Bytes]) {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        self.handles.events.increment(frames as u64);
        self.handles.bytes.increment(bytes);
        self.active_watch.sent(bytes);
    }

    /// Records that events were passed to the sink. The first of them was applied at `applied`.
    pub(crate) fn delivered(&self, applied: Instant) {
        self.handles.delay.record(applied.elapsed().as_secs_f64());
    }

    /// Records the end of the watch in the metrics, the access log and the debug pages.
    pub(crate) fn ended(&self, reason: &'static str) {
        let (resource, lasted) = (&*self.handles.resource, self.opened.elapsed());
        tracing::debug!(target: "access", resource, reason, ?lasted, "watch ended");
        self.handles.open.decrement(1.0);
        self.active_watch.ended(reason);
        let mut labels = self.handles.labels.clone();
        labels.push(Label::new("reason", reason));
        counter!("kube_fanout_watches_ended_total", labels).increment(1);
    }
}

/// Counts a watch that waits until its state is proven. Dropping it ends the count.
pub(crate) struct PendingWatchGuard(Gauge);

impl PendingWatchGuard {
    pub(crate) fn new() -> Self {
        let waiting = gauge!("kube_fanout_watches_waiting");
        waiting.increment(1.0);
        Self(waiting)
    }
}

impl Drop for PendingWatchGuard {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Counts a request that was answered from the cache.
pub(crate) fn served(verb: &'static str, key: &FeedKey, representation: Representation) {
    let labels = [
        ("verb", verb.to_owned()),
        ("resource", key.gvr.to_string()),
        ("representation", representation.as_str().to_owned()),
    ];
    counter!("kube_fanout_served_total", &labels).increment(1);
}

pub(crate) fn forwarded(reason: ForwardReason) {
    counter!("kube_fanout_forwarded_total", "reason" => reason.as_str()).increment(1);
}

/// Counts a request for discovery, OpenAPI or the version that the proxy answers.
pub(crate) fn served_discovery(kind: &'static str, source: &'static str) {
    counter!("kube_fanout_discovery_served_total", "kind" => kind, "source" => source).increment(1);
}

/// Counts a request of a downstream proxy that this proxy answers instead of the apiserver.
pub(crate) fn answered_proxy(kind: &'static str, source: &'static str) {
    counter!("kube_fanout_downstream_proxy_requests_total", "kind" => kind, "source" => source).increment(1);
}

/// Counts an error response that the proxy generated.
pub(crate) fn refused(code: u16) {
    counter!("kube_fanout_refused_total", "code" => code.to_string()).increment(1);
}

/// Counts audit records by outcome.
pub(crate) fn records(outcome: &'static str, records: usize) {
    counter!("kube_fanout_audit_records_total", "outcome" => outcome).increment(records as u64);
}

/// Sets whether writing the audit log fails.
pub(crate) fn audit_failing(is_failing: bool) {
    gauge!("kube_fanout_audit_failing").set(if is_failing { 1.0 } else { 0.0 });
}

/// Counts GETs and LISTs that share an upstream response.
pub(crate) fn coalesced(requests: usize) {
    counter!("kube_fanout_coalesced_requests_total").increment(requests as u64);
}

/// Registers the descriptions of this module's metrics; docs/METRICS.md lists all metrics.
pub fn describe() {
    describe_gauge!("kube_fanout_watches_open", "watches served from the cache");
    describe_gauge!("kube_fanout_watches_waiting", "watches that wait for their initial state");
    describe_counter!("kube_fanout_watch_events_total", "watch frames sent to clients, bookmarks included");
    describe_counter!("kube_fanout_watch_bytes_total", Unit::Bytes, "bytes of watch frames sent to clients");
    describe_counter!("kube_fanout_watch_gzip_bytes_total", Unit::Bytes, "bytes of compressed watches, by stage");
    describe_histogram!(
        "kube_fanout_watch_delivery_seconds",
        Unit::Seconds,
        "time from the arrival of an event to its delivery"
    );
    describe_counter!("kube_fanout_watches_ended_total", "watches that ended, by reason");
    describe_counter!("kube_fanout_served_total", "requests answered from the cache");
    describe_counter!("kube_fanout_forwarded_total", "requests forwarded to upstream, by reason");
    describe_counter!(
        "kube_fanout_discovery_served_total",
        "requests for discovery, OpenAPI and version that the proxy answered"
    );
    describe_counter!(
        "kube_fanout_downstream_proxy_requests_total",
        "requests of downstream proxies answered in place of the apiserver"
    );
    describe_counter!(
        "kube_fanout_refused_total",
        "requests that the proxy answered with an error of its own, by code"
    );
    describe_counter!("kube_fanout_audit_records_total", "audit records, by outcome");
    describe_gauge!("kube_fanout_audit_failing", "1 while the audit log cannot be written");
    describe_counter!("kube_fanout_coalesced_requests_total", "requests whose upstream response can be shared");
}
