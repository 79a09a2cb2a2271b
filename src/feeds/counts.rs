//! Counters of feeds. Callers' requests determine their labels, so the counters are dropped some time after the feed
//! ends.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{FEEDS_MAX, FeedKey};

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

/// The counters of all running feeds, and for a while of ended ones.
#[derive(Debug, Default)]
pub(super) struct FeedTrafficRegistry {
    accounts: BTreeMap<FeedKey, FeedTrafficEntry>,
}

#[derive(Debug, Default)]
struct FeedTrafficEntry {
    counts: Arc<FeedTrafficCounts>,
    /// The number of running feeds with this key: a retired feed may end after its successor has started.
    running: usize,
    ended: Option<Instant>,
}

/// The maximum number of ended feeds whose counters are kept.
const ENDED_MAX: usize = FEEDS_MAX;

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

impl FeedTrafficRegistry {
    /// Records the start of a feed. Returns its counters.
    pub(super) fn open(&mut self, key: &FeedKey, kept: Duration) -> Arc<FeedTrafficCounts> {
        self.forget(kept);
        let account = self.accounts.entry(key.clone()).or_default();
        account.running += 1;
        account.ended = None;
        account.counts.clone()
    }

    /// Records the end of a feed.
    pub(super) fn close(&mut self, key: &FeedKey, kept: Duration) {
        if let Some(account) = self.accounts.get_mut(key) {
            account.running = account.running.saturating_sub(1);
            if account.running == 0 {
                account.ended = Some(Instant::now());
            }
        }
        self.forget(kept);
    }

    /// Returns all counters, sorted by key.
    pub(super) fn all(&mut self, kept: Duration) -> Vec<(FeedKey, Arc<FeedTrafficCounts>)> {
        self.forget(kept);
        self.accounts.iter().map(|(key, account)| (key.clone(), account.counts.clone())).collect()
    }

    /// Drops the counters of feeds that ended too long ago, and the oldest above the limit.
    fn forget(&mut self, kept: Duration) {
        self.accounts.retain(|_, account| account.ended.is_none_or(|ended| ended.elapsed() < kept));
        let mut ended: Vec<_> = self.accounts.values().filter_map(|account| account.ended).collect();
        if ended.len() > ENDED_MAX {
            ended.sort_unstable();
            let oldest = ended[ended.len() - ENDED_MAX];
            self.accounts.retain(|_, account| account.ended.is_none_or(|ended| ended >= oldest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feeds::FeedScope;
    use crate::wire::FeedEncoding;
    use kubeapi::Gvr;

    const KEPT: Duration = Duration::from_secs(60);

    fn key(namespace: usize) -> FeedKey {
        let scope = FeedScope::Namespace(format!("n{namespace}").into());
        FeedKey { gvr: Gvr::new("", "v1", "pods"), scope, encoding: FeedEncoding::Json }
    }

    #[tokio::test(start_paused = true)]
    async fn feed_counts_expire_later_and_resume_if_feed_returns() {
        let mut ledger = FeedTrafficRegistry::default();
        let counts = ledger.open(&key(1), KEPT);
        FeedTrafficCounts::add(&counts.events, 7);
        ledger.close(&key(1), KEPT);
        tokio::time::advance(KEPT / 2).await;
        assert_eq!(ledger.all(KEPT).len(), 1, "it can still be read");
        assert_eq!(ledger.open(&key(1), KEPT).events.load(Ordering::Relaxed), 7, "it does not jump back");
        tokio::time::advance(KEPT * 2).await;
        assert_eq!(ledger.all(KEPT).len(), 1, "it runs");
        // The successor starts before its predecessor has ended.
        ledger.open(&key(1), KEPT);
        ledger.close(&key(1), KEPT);
        tokio::time::advance(KEPT * 2).await;
        assert_eq!(ledger.all(KEPT).len(), 1, "one of them runs");
        ledger.close(&key(1), KEPT);
        tokio::time::advance(KEPT).await;
        assert!(ledger.all(KEPT).is_empty() && ledger.accounts.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn ended_feed_counts_are_capped() {
        let mut ledger = FeedTrafficRegistry::default();
        for namespace in 0..10_000 {
            ledger.open(&key(namespace), KEPT);
            tokio::time::advance(Duration::from_millis(1)).await;
            ledger.close(&key(namespace), KEPT);
        }
        assert_eq!(ledger.accounts.len(), ENDED_MAX);
        assert!(ledger.accounts.contains_key(&key(9_999)) && !ledger.accounts.contains_key(&key(8_000)));
        tokio::time::advance(KEPT).await;
        assert!(ledger.all(KEPT).is_empty());
    }

    #[test]
    fn metric_labels_are_counted_separately() {
        let counts = FeedTrafficCounts::default();
        let word = |value| LabelledMetric { metric: "m", label: "l", value };
        ["b", "a", "b"].into_iter().for_each(|value| counts.increment(word(value)));
        assert_eq!(counts.labelled_counts(), [(word("a"), 1), (word("b"), 2)]);
    }
}
