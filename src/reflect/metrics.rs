//! The metrics of a feed. Each feed owns its values, which are removed with it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use metrics::{counter, describe_counter};

use crate::feeds::{BackfillOutcome, CountedMetric, FeedCounts, FeedKey};
use crate::upstream::Cause;
use crate::wire::Representation;

/// Describes the metrics that are recorded in this module. Per-feed counts are described where they are exported.
pub fn describe() {
    describe_counter!(
        "kube_fanout_representation_checks_total",
        "comparisons of derived objects with upstream's bytes, by outcome"
    );
}

/// The metric counters of one feed.
#[derive(Clone)]
pub(super) struct FeedMetrics {
    counts: Arc<FeedCounts>,
}

/// The reason for an upstream request besides the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SideRequest {
    /// The first state of a feed.
    Initial,
    /// A list after the history was lost.
    Relist,
    /// A list because the followed server runs another release now.
    Renewal,
    /// A past version of an object, to mend a gap or to find a previous object.
    Past,
    /// A request for upstream's current version.
    Position,
    /// A list of the versions of a small collection, to prove that the cache equals them.
    Equality,
    /// A watch from the feed's version, to prove that the cache has all changes.
    CatchUp,
    /// A list of the current state, because an upstream response contradicts the cached state.
    Doubt,
    /// A read of the history before the first list.
    Prehistory,
    /// A read of versions or an object, to compare them with the cache.
    SelfCheck,
}

/// The outcome of a break in a feed's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GapOutcome {
    Mended,
    NewHistory,
    /// Upstream's storage went back, so the feed started a new history.
    Rewound,
    /// The cached state differed from upstream's.
    Different,
}

/// The outcome of comparing a feed with upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SelfCheckOutcome {
    Same,
    Different,
    /// The self-check compared nothing.
    Skipped,
}

impl FeedMetrics {
    pub(super) fn new(counts: Arc<FeedCounts>) -> Self {
        Self { counts }
    }

    /// Counts a change whose frame has this many bytes.
    pub(super) fn received(&self, bytes: usize) {
        FeedCounts::add(&self.counts.events, 1);
        FeedCounts::add(&self.counts.bytes, bytes as u64);
    }

    pub(super) fn bookmark(&self) {
        FeedCounts::add(&self.counts.bookmarks, 1);
    }

    pub(super) fn duplicate(&self) {
        FeedCounts::add(&self.counts.duplicates, 1);
    }

    /// Counts the upstream watch as open until the result is dropped.
    pub(super) fn watch_open(&self) -> OpenStream {
        FeedCounts::add(&self.counts.watches, 1);
        OpenStream { counts: self.counts.clone() }
    }

    pub(super) fn asked(&self, what: SideRequest) {
        let metric = "kube_fanout_feed_requests_total";
        self.counts.say(CountedMetric { metric, label: "purpose", value: what.as_str() });
    }

    /// Counts a failure of a stream or a list. `why` is one of a fixed set of label values.
    pub(super) fn failed(&self, why: &'static str) {
        self.counts.say(CountedMetric { metric: "kube_fanout_upstream_failures_total", label: "reason", value: why });
    }

    /// Counts a backfill of the history before the first list.
    pub(super) fn looked_back(&self, answer: BackfillOutcome) {
        let metric = "kube_fanout_history_backfills_total";
        self.counts.say(CountedMetric { metric, label: "outcome", value: answer.as_str() });
    }

    /// Counts a comparison of the feed with upstream.
    pub(super) fn self_checked(&self, outcome: SelfCheckOutcome) {
        let value = match outcome {
            SelfCheckOutcome::Same => "same",
            SelfCheckOutcome::Different => "different",
            SelfCheckOutcome::Skipped => "skipped",
        };
        self.counts.say(CountedMetric { metric: "kube_fanout_self_checks_total", label: "outcome", value });
    }

    /// Counts a break of the feed's history by outcome.
    pub(super) fn gap(&self, gap: GapOutcome) {
        let value = match gap {
            GapOutcome::Mended => "mended",
            GapOutcome::NewHistory => "new_history",
            GapOutcome::Rewound => "rewound",
            GapOutcome::Different => "different",
        };
        self.counts.say(CountedMetric { metric: "kube_fanout_history_gaps_total", label: "outcome", value });
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

/// Counts an open upstream watch until it is dropped.
pub(super) struct OpenStream {
    counts: Arc<FeedCounts>,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.counts.watches.fetch_sub(1, Ordering::Relaxed);
    }
}

impl SideRequest {
    /// Returns the cause to which the cost of the request is accounted.
    pub(super) fn cause(self) -> Cause {
        match self {
            Self::Initial | Self::Relist | Self::Renewal | Self::Doubt => Cause::List,
            Self::Position | Self::Equality | Self::CatchUp => Cause::Proof,
            Self::Past | Self::Prehistory => Cause::Past,
            Self::SelfCheck => Cause::SelfCheck,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::Relist => "relist",
            Self::Renewal => "release_change",
            Self::Past => "past_object",
            Self::Position => "position",
            Self::Equality => "equality",
            Self::CatchUp => "catch_up",
            Self::Doubt => "mismatch",
            Self::Prehistory => "backfill",
            Self::SelfCheck => "self_check",
        }
    }
}
