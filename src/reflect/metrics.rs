//! What a feed reports of itself. Handles are resolved once per feed.

use metrics::{Counter, Gauge, Label, counter, gauge};

use crate::cache::FeedKey;
use crate::wire::Representation;

/// The counters of one feed.
#[derive(Clone)]
pub(super) struct FeedMetrics {
    labels: Vec<Label>,
    events: Counter,
    bytes: Counter,
    bookmarks: Counter,
    duplicates: Counter,
    watches: Gauge,
}

/// Why upstream is asked for something besides the one stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// The first state of a feed.
    Initial,
    /// A list after the history was lost.
    Relist,
    /// One object as it was, to mend a gap.
    Past,
    /// Which version is current.
    Position,
    /// A small collection's versions, to prove that the cache equals them.
    Equality,
    /// The history since our version, to prove that the cache has it.
    CatchUp,
}

impl FeedMetrics {
    pub(super) fn new(key: &FeedKey) -> Self {
        let labels: Vec<_> = key.labels().into_iter().map(|(name, value)| Label::new(name, value)).collect();
        Self {
            events: counter!("kube_fanout_upstream_events_total", labels.clone()),
            bytes: counter!("kube_fanout_upstream_bytes_total", labels.clone()),
            bookmarks: counter!("kube_fanout_upstream_bookmarks_total", labels.clone()),
            duplicates: counter!("kube_fanout_upstream_duplicates_total", labels.clone()),
            watches: gauge!("kube_fanout_upstream_watches", labels.clone()),
            labels,
        }
    }

    /// A change came in a frame of this many bytes.
    pub(super) fn received(&self, bytes: usize) {
        self.events.increment(1);
        self.bytes.increment(bytes as u64);
    }

    pub(super) fn bookmark(&self) {
        self.bookmarks.increment(1);
    }

    pub(super) fn duplicate(&self) {
        self.duplicates.increment(1);
    }

    /// Counts the upstream watch as open until dropped.
    pub(super) fn watch_open(&self) -> Open {
        self.watches.increment(1.0);
        Open { watches: self.watches.clone() }
    }

    pub(super) fn asked(&self, what: Asked) {
        let mut labels = self.labels.clone();
        labels.push(Label::new("question", what.as_str()));
        counter!("kube_fanout_upstream_questions_total", labels).increment(1);
    }

    /// A stream or a list failed; `why` is one of a few words.
    pub(super) fn failed(&self, why: &'static str) {
        let mut labels = self.labels.clone();
        labels.push(Label::new("reason", why));
        counter!("kube_fanout_upstream_failures_total", labels).increment(1);
    }

    /// A gap in the history was closed, or a new history had to start.
    pub(super) fn gap(&self, mended: bool) {
        let mut labels = self.labels.clone();
        labels.push(Label::new("outcome", if mended { "mended" } else { "new_history" }));
        counter!("kube_fanout_history_gaps_total", labels).increment(1);
    }
}

/// What is derived was compared with what upstream writes.
pub(super) fn compared(key: &FeedKey, representation: Representation, outcome: &'static str) {
    let labels = [
        ("resource", key.gvr.to_string()),
        ("representation", representation.to_string()),
        ("outcome", outcome.to_owned()),
    ];
    counter!("kube_fanout_representation_checks_total", &labels).increment(1);
}

/// An open upstream watch.
pub(super) struct Open {
    watches: Gauge,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.watches.decrement(1.0);
    }
}

impl Asked {
    fn as_str(self) -> &'static str {
        match self {
            Self::Initial => "initial",
            Self::Relist => "relist",
            Self::Past => "past",
            Self::Position => "position",
            Self::Equality => "equality",
            Self::CatchUp => "catch_up",
        }
    }
}
