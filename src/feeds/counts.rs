//! Counters of feeds. Callers' requests determine their labels, so the counters are dropped some time after the feed
//! ends.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// The counters of a feed's upstream traffic. If a feed restarts soon, they continue.
#[derive(Debug, Default)]
pub struct FeedTrafficCounts {
    pub events: AtomicU64,
    pub bytes: AtomicU64,
    pub bookmarks: AtomicU64,
    pub duplicates: AtomicU64,
    /// The bytes that were received as differences, and those of the events that they stand for.
    pub delta_bytes: AtomicU64,
    pub delta_plain_bytes: AtomicU64,
    /// The number of watches that are open now.
    pub watches: AtomicU64,
    /// The counts of rare events by metric, in output order.
    reported: Mutex<BTreeMap<LabelledMetric, u64>>,
    /// The reason of the last failure to list or watch; `None` if there was none. A later success does not clear it.
    last_failure: Mutex<Option<String>>,
}

/// A metric of rare events and its one label besides those of the feed. The set of values is fixed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct LabelledMetric {
    pub metric: &'static str,
    pub label: &'static str,
    pub value: &'static str,
}

impl FeedTrafficCounts {
    /// Records why an attempt to list or watch failed. `why` must not contain addresses, users or object names.
    pub fn record_failure(&self, why: String) {
        *self.last_failure.lock() = Some(why);
    }

    /// Returns the reason why the last attempt failed, if any.
    pub fn last_failure(&self) -> Option<String> {
        self.last_failure.lock().clone()
    }

    pub fn add(counter: &AtomicU64, more: u64) {
        counter.fetch_add(more, Ordering::Relaxed);
    }

    pub fn increment(&self, word: LabelledMetric) {
        *self.reported.lock().entry(word).or_default() += 1;
    }

    /// Returns all metrics with their counts, sorted by name.
    pub fn labelled_counts(&self) -> Vec<(LabelledMetric, u64)> {
        self.reported.lock().iter().map(|(word, count)| (*word, *count)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metric_labels_are_counted_separately() {
        let counts = FeedTrafficCounts::default();
        let word = |value| LabelledMetric { metric: "m", label: "l", value };
        ["b", "a", "b"].into_iter().for_each(|value| counts.increment(word(value)));
        assert_eq!(counts.labelled_counts(), [(word("a"), 1), (word("b"), 2)]);
    }
}
