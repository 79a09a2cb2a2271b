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

/// The reason for an upstream request besides the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FeedRequestPurpose {
    /// The first state of a feed.
    Initial,
    /// A list after the history was lost.
    Relist,
    /// A list because the followed server runs another release now.
    ReleaseChange,
    /// A past version of an object, to mend a gap or to find a previous object.
    PastObject,
    /// A request for upstream's current version.
    Position,
    /// A list of the versions of a small collection, to prove that the cache equals them.
    Equality,
    /// A watch from the feed's version, to prove that the cache has all changes.
    CatchUp,
    /// A list of the current state, because an upstream response contradicts the cached state.
    Mismatch,
    /// A read of the history before the first list.
    Backfill,
    /// A read of versions or an object, to compare them with the cache.
    SelfCheck,
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
        self.count("kube_fanout_feed_requests_total", "purpose", what.label_and_cause().0);
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
        self.label_and_cause().1
    }

    /// The label value in metrics, and the cause.
    fn label_and_cause(self) -> (&'static str, UpstreamRequestCause) {
        match self {
            Self::Initial => ("initial", UpstreamRequestCause::List),
            Self::Relist => ("relist", UpstreamRequestCause::List),
            Self::ReleaseChange => ("release_change", UpstreamRequestCause::List),
            Self::Mismatch => ("mismatch", UpstreamRequestCause::List),
            Self::Position => ("position", UpstreamRequestCause::Proof),
            Self::Equality => ("equality", UpstreamRequestCause::Proof),
            Self::CatchUp => ("catch_up", UpstreamRequestCause::Proof),
            Self::PastObject => ("past_object", UpstreamRequestCause::Past),
            Self::Backfill => ("backfill", UpstreamRequestCause::Past),
            Self::SelfCheck => ("self_check", UpstreamRequestCause::SelfCheck),
        }
    }
}
