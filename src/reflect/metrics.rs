//! The metrics of a feed. Each feed owns its values, which are removed with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use metrics::{counter, describe_counter};

use super::feed_client::FeedTaskContext;
use crate::feeds::{FeedKey, FeedTrafficCounts, LabelledMetric};
use crate::upstream::UpstreamRequestCause;
use crate::wire::Representation;

/// Describes the metrics that are recorded in this module. Per-feed counts are described where they are exported.
pub fn describe() {
    describe_counter!(
        "kube_fanout_representation_checks_total",
        "comparisons of derived objects with upstream's bytes, by outcome"
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
