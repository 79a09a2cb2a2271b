//! The metrics of a feed. Each feed owns its values, which are removed with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use base::WallClock;
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};
use tokio::time::Instant;

use super::feed_client::FeedTaskContext;
use crate::cache::ObjectChange;
use crate::feeds::{FeedKey, FeedTrafficCounts, LabelledMetric};
use crate::upstream::UpstreamRequestCause;
use crate::wire::{self, Representation};
use kubeapi::EventType;

/// Describes the metrics that are recorded in this module. Per-feed counts are described where they are exported.
pub fn describe() {
    describe_counter!(
        "kube_fanout_representation_checks_total",
        "comparisons of derived objects with upstream's bytes, by outcome"
    );
    describe_histogram!(
        "kube_fanout_upstream_event_age_seconds",
        Unit::Seconds,
        "age of events when they are received, from the time in managedFields, which has whole seconds; at most ten \
         events a second of each feed"
    );
}

base::labelled_enum! {
    /// The reason for an upstream request besides the stream.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum FeedRequestPurpose {
        /// The first state of a feed.
        Initial = "initial",
        /// A list after the history was lost.
        Relist = "relist",
        /// A list because the followed server runs another release now.
        ReleaseChange = "release_change",
        /// A past version of an object, to mend a gap or to find a previous object.
        PastObject = "past_object",
        /// A request for upstream's current version.
        Position = "position",
        /// A list of the versions of a small collection, to prove that the cache equals them.
        Equality = "equality",
        /// A watch from the feed's version, to prove that the cache has all changes.
        CatchUp = "catch_up",
        /// A list of the current state, because an upstream response contradicts the cached state.
        Mismatch = "mismatch",
        /// A read of the history before the first list.
        Backfill = "backfill",
        /// A read of versions or an object, to compare them with the cache.
        SelfCheck = "self_check",
    }
}

/// Counts an open upstream watch until it is dropped.
pub(super) struct OpenUpstreamWatchGuard(Arc<FeedTrafficCounts>);

impl Drop for OpenUpstreamWatchGuard {
    fn drop(&mut self) {
        self.0.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Records how old events are when they are received. It examines only some, because the time of a write is inside the
/// object.
#[derive(Debug)]
pub(super) struct EventAgeSampler {
    next: Instant,
}

/// The minimum time between two examined events of a feed.
const EVENT_AGE_INTERVAL: Duration = Duration::from_millis(100);

impl EventAgeSampler {
    pub(super) fn new() -> Self {
        Self { next: Instant::now() }
    }

    /// Records the age of an event that the feed does not have yet, if it is time to examine one. A deletion leaves no
    /// time in the object. If this machine's clock is behind, the age is 0.
    pub(super) fn received(&mut self, key: &FeedKey, change: &ObjectChange) {
        let now = Instant::now();
        if change.event_type == EventType::Deleted || now < self.next {
            return;
        }
        self.next = now + EVENT_AGE_INTERVAL;
        let written = wire::last_write(change.object.body()).and_then(|seconds| u64::try_from(seconds).ok());
        if let Some(written) = written.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds))) {
            let age = WallClock::default().now().duration_since(written).unwrap_or_default();
            histogram!("kube_fanout_upstream_event_age_seconds", "resource" => key.gvr.to_string())
                .record(age.as_secs_f64());
        }
    }
}

impl FeedTaskContext {
    /// Counts the upstream watch as open until the result is dropped.
    pub(super) fn watch_open(&self) -> OpenUpstreamWatchGuard {
        FeedTrafficCounts::add(&self.feed.counts.watches, 1);
        OpenUpstreamWatchGuard(self.feed.counts.clone())
    }

    pub(super) fn count_request(&self, what: FeedRequestPurpose) {
        self.count("kube_fanout_feed_requests_total", "purpose", what.as_str());
    }

    /// Counts a break of the history: `mended`, `new_history`, `rewound` if upstream's storage went back and so did the
    /// feed, or `different` if the feed had something other than upstream.
    pub(super) fn gap(&self, outcome: &'static str) {
        self.count("kube_fanout_history_gaps_total", "outcome", outcome);
    }

    /// Counts an event of the feed. The values of the label are a fixed set.
    pub(super) fn count(&self, metric: &'static str, label: &'static str, value: &'static str) {
        self.feed.counts.increment(LabelledMetric { metric, label, value });
    }
}

/// Counts a comparison of a derived object with upstream's encoding.
pub(super) fn compared(key: &FeedKey, representation: Representation, outcome: &'static str) {
    let labels = [
        ("resource", key.gvr.to_string()),
        ("representation", representation.to_string()),
        ("outcome", outcome.to_owned()),
    ];
    counter!("kube_fanout_representation_checks_total", &labels).increment(1);
}

impl FeedRequestPurpose {
    /// Returns the cause to which the cost of the request is accounted.
    pub(super) fn cause(self) -> UpstreamRequestCause {
        match self {
            Self::Initial | Self::Relist | Self::ReleaseChange | Self::Mismatch => UpstreamRequestCause::List,
            Self::Position | Self::Equality | Self::CatchUp => UpstreamRequestCause::Proof,
            Self::PastObject | Self::Backfill => UpstreamRequestCause::Past,
            Self::SelfCheck => UpstreamRequestCause::SelfCheck,
        }
    }
}
