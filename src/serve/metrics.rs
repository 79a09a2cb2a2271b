//! The metrics of serving.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use metrics::{Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge, describe_histogram};
use metrics::{gauge, histogram};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::active_watches::ActiveWatch;
use super::route::ForwardReason;
use super::watch_end::WatchEnd;
use super::watch_transport::WatchTransport;
use crate::feeds::FeedKey;
use crate::wire::Representation;
use kubeapi::{Gvr, ResourceVersion};

/// The handles of watches, looked up once for all that are alike: ten thousand would look up and hold the same ones.
/// There are a few kinds, and each watch looks once, so a map in parts gains nothing: one thread finds one in 50 ns
/// with one lock, and in 49 ns in parts.
#[derive(Debug, Default)]
pub(super) struct Watches(Mutex<HashMap<Kind, Arc<Handles>>>);

/// The labels of a watch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    gvr: Gvr,
    representation: Representation,
    protocol: WatchTransport,
}

struct Handles {
    resource: String,
    labels: Vec<Label>,
    open: Gauge,
    events: Counter,
    bytes: Counter,
    delay: Histogram,
}

/// The metrics of one watch. The gauge of open watches falls when it is dropped.
pub(super) struct WatchMetrics {
    of: Arc<Handles>,
    opened: Instant,
    /// What onlookers see of it.
    sighting: Option<ActiveWatch>,
}

impl Watches {
    /// Counts a watch as open.
    pub(super) fn open(&self, key: &FeedKey, representation: Representation, protocol: WatchTransport) -> WatchMetrics {
        let kind = Kind { gvr: key.gvr.clone(), representation, protocol };
        let of = self.0.lock().entry(kind).or_insert_with_key(|kind| Arc::new(Handles::of(kind))).clone();
        of.open.increment(1.0);
        WatchMetrics { of, opened: Instant::now(), sighting: None }
    }
}

impl Handles {
    fn of(kind: &Kind) -> Self {
        let resource = kind.gvr.to_string();
        let representation = Label::new("representation", kind.representation.as_str());
        let labels = vec![Label::new("resource", resource.clone()), representation];
        let mut with_protocol = labels.clone();
        with_protocol.push(Label::new("protocol", kind.protocol.as_str()));
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

impl fmt::Debug for Handles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handles").field("resource", &self.resource).finish_non_exhaustive()
    }
}

impl WatchMetrics {
    /// The same watch, which onlookers see.
    pub(super) fn seen(self, sighting: ActiveWatch) -> Self {
        Self { sighting: Some(sighting), ..self }
    }

    /// Counts frames, which are sent in these pieces.
    pub(super) fn sent(&self, frames: usize, pieces: &[Bytes]) {
        let bytes = pieces.iter().map(|piece| piece.len() as u64).sum();
        self.of.events.increment(frames as u64);
        self.of.bytes.increment(bytes);
        if let Some(sighting) = &self.sighting {
            sighting.sent(bytes);
        }
    }

    /// Notes how far the client has been told, the position of the next event, and whether there is nothing to say.
    pub(super) fn told(&self, rv: ResourceVersion, next: u64, is_parked: bool) {
        if let Some(sighting) = &self.sighting {
            sighting.told(rv.0, next, is_parked);
        }
    }

    /// Notes that events were handed to the sink. The first of them was applied at `applied`.
    pub(super) fn delivered(&self, applied: Instant) {
        self.of.delay.record(applied.elapsed().as_secs_f64());
    }

    /// Notes that the watch is over: in the metrics, and with a line in the access log.
    pub(super) fn ended(&self, end: WatchEnd) {
        let (resource, reason, lasted) = (&*self.of.resource, end.as_str(), self.opened.elapsed());
        tracing::debug!(target: "access", resource, reason, ?lasted, "watch ended");
        self.of.open.decrement(1.0);
        if let Some(sighting) = &self.sighting {
            sighting.ended(reason);
        }
        let mut labels = self.of.labels.clone();
        labels.push(Label::new("reason", end.as_str()));
        counter!("kube_fanout_watches_ended_total", labels).increment(1);
    }
}

/// Counts a watch that is held until its state is proven.
pub(super) struct HeldWatch(Gauge);

impl HeldWatch {
    pub(super) fn new() -> Self {
        let held = gauge!("kube_fanout_watches_held");
        held.increment(1.0);
        Self(held)
    }
}

impl Drop for HeldWatch {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// Counts a request that was answered from the cache.
pub(super) fn served(verb: &'static str, key: &FeedKey, representation: Representation) {
    let labels = [
        ("verb", verb.to_owned()),
        ("resource", key.gvr.to_string()),
        ("representation", representation.as_str().to_owned()),
    ];
    counter!("kube_fanout_served_total", &labels).increment(1);
}

pub(super) fn forwarded(reason: ForwardReason) {
    counter!("kube_fanout_forwarded_total", "reason" => reason.as_str()).increment(1);
}

/// Where an answer to another proxy comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AnsweredFrom {
    Memory,
    /// From a question to upstream, which others may share.
    Upstream,
}

/// Counts an answer to another proxy that its upstream would have given otherwise.
pub(super) fn answered_proxy(what: &'static str, from: AnsweredFrom) {
    let from = if from == AnsweredFrom::Memory { "memory" } else { "upstream" };
    counter!("kube_fanout_proxy_answers_total", "what" => what, "from" => from).increment(1);
}

/// Counts a request that was answered by an error of ours.
pub(super) fn refused(code: u16) {
    counter!("kube_fanout_refused_total", "code" => code.to_string()).increment(1);
}

/// Counts records of the audit log by what became of them.
pub(super) fn records(outcome: &'static str, records: usize) {
    counter!("kube_fanout_audit_records_total", "outcome" => outcome).increment(records as u64);
}

/// Says whether the audit log cannot be written.
pub(super) fn audit_failing(is_failing: bool) {
    gauge!("kube_fanout_audit_failing").set(if is_failing { 1.0 } else { 0.0 });
}

/// Counts GETs and LISTs that share an upstream answer.
pub(super) fn coalesced(requests: usize) {
    counter!("kube_fanout_coalesced_requests_total").increment(requests as u64);
}

/// Describes the metrics of this module; docs/METRICS.md has all of them.
pub fn describe() {
    describe_gauge!("kube_fanout_watches_open", "watches served from the cache");
    describe_gauge!("kube_fanout_watches_held", "watches that wait for the proof of the state that they begin with");
    describe_counter!("kube_fanout_watch_events_total", "frames delivered to watches, bookmarks included");
    describe_counter!("kube_fanout_watch_bytes_total", Unit::Bytes, "bytes of those frames");
    describe_histogram!("kube_fanout_watch_delivery_seconds", Unit::Seconds, "from an event's arrival to its delivery");
    describe_counter!("kube_fanout_watches_ended_total", "watches that ended, by reason");
    describe_counter!("kube_fanout_served_total", "requests answered from the cache");
    describe_counter!("kube_fanout_forwarded_total", "requests passed through, by reason");
    describe_counter!("kube_fanout_proxy_answers_total", "what proxies asked of upstream as such, answered here");
    describe_counter!("kube_fanout_refused_total", "requests answered by an error of the proxy, by code");
    describe_counter!("kube_fanout_audit_records_total", "records of answered requests, by what became of them");
    describe_gauge!("kube_fanout_audit_failing", "1 while the audit log cannot be written");
    describe_counter!("kube_fanout_coalesced_requests_total", "requests that shared an upstream answer");
}
