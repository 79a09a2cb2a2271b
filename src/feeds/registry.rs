use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::refused_feeds::FeedRefusal;
use super::{
    DerivedRepresentationMode, DerivedRepresentationRefusal, DerivedRepresentations, FEEDS_MAX, Feed, FeedHandle,
    FeedKey, FeedSpec, FeedTrafficCounts,
};
use crate::cache::{CacheConfig, CacheWriter, FeedEndReason, FeedState, MemoryBudget, MemoryUse, SnapshotPins};
use crate::wire::{FeedEncoding, Representation};
use base::Reloadable;
use kubeapi::ResourceVersion;

/// A request to start a feed: the feed and its writer, for the supervisor of reflectors.
#[derive(Debug)]
pub struct FeedStartRequest {
    pub feed: Arc<Feed>,
    pub writer: CacheWriter,
}

/// The registry of feeds. Clones share it.
#[derive(Debug, Clone)]
pub struct FeedRegistry {
    shared: Arc<FeedRegistryState>,
}

#[derive(Debug)]
struct FeedRegistryState {
    config: Reloadable<CacheConfig>,
    budget: Arc<MemoryBudget>,
    /// One lock covers all feeds, because the number of feeds and the others of a resource affect each feed. A sharded
    /// lock would not be faster, because most look-ups are for the same feed. One, two and four threads took 50, 104
    /// and 206 ns with one lock, and 47, 97 and 206 ns with shards.
    feeds: Mutex<FeedRecords>,
    start_requests: mpsc::Sender<FeedStartRequest>,
}

/// The running feeds, and for a while the records of ended ones.
type FeedRecords = BTreeMap<FeedKey, FeedRecord>;

/// A feed, and what outlives it.
#[derive(Debug, Default)]
struct FeedRecord {
    feed: Option<Arc<Feed>>,
    /// The number of feeds that have started and not ended: a retired feed may end after its successor has started.
    running: usize,
    /// The time at which the last running feed ended.
    ended: Option<Instant>,
    /// The time at which a feed of another definition was retired.
    retired: Option<Instant>,
    /// The lasting reason for which the feed ended last.
    refusal: Option<FeedRefusal>,
    /// How other representations are obtained. Refusals outlive the feed that found them.
    renderings: Option<Arc<DerivedRepresentations>>,
    counts: Arc<FeedTrafficCounts>,
}

/// The reason that a feed is not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedUnavailable {
    /// The feed was tried recently and ended for the given reason.
    Ended(FeedEndReason),
    /// The maximum number of feeds, [`FEEDS_MAX`], is running.
    TooMany,
}

/// The maximum number of ended feeds that are remembered.
const ENDED_MAX: usize = FEEDS_MAX;
/// The time for which an apiserver may still use an older definition than another server has already served.
const DEFINITION_GRACE: Duration = Duration::from_secs(10);

impl FeedRegistry {
    /// Creates the registry, and the channel of demands for a supervisor.
    pub fn new(config: CacheConfig) -> (Self, mpsc::Receiver<FeedStartRequest>) {
        let (demand, demands) = mpsc::channel(FEEDS_MAX);
        let budget = MemoryBudget::new(config.memory_bytes_max, SnapshotPins::default());
        let shared =
            FeedRegistryState { config: config.into(), budget, feeds: Mutex::default(), start_requests: demand };
        (Self { shared: Arc::new(shared) }, demands)
    }

    /// Applies new history limits to running and future feeds. Only readers that lag further lose their position.
    pub fn tune(&self, to: &CacheConfig) {
        let all: Vec<_> = {
            let feeds = self.shared.feeds.lock();
            self.shared.config.set(self.shared.config.get().keeping(to));
            running(&feeds).cloned().collect()
        };
        let config = self.shared.config.get();
        all.iter().for_each(|feed| feed.reader.apply_config((*config).clone()));
    }

    /// Returns the feed for `spec`, and starts it if it does not run. `resume` is the version that the caller wants to
    /// resume after; a feed that is still starting may take it into account.
    pub fn handle(&self, spec: &FeedSpec, resume: Option<ResourceVersion>) -> Result<FeedHandle, FeedUnavailable> {
        let mut feeds = self.shared.feeds.lock();
        if let Some(record) = feeds.get_mut(&spec.key) {
            if let Some(feed) = record.feed.clone()
                && !matches!(feed.reader.state(), FeedState::Ended(_))
            {
                if feed.spec == *spec {
                    feed.note_resume(resume);
                    return Ok(FeedHandle::new(feed));
                }
                // The resource's definition has changed, so the objects of the old feed no longer match it.
                record.retire(&feed);
            }
            let free = self.shared.budget.free();
            if let Some(refusal) = record.refusal.as_ref().filter(|refusal| refusal.is_in_effect(free)) {
                return Err(FeedUnavailable::Ended(refusal.end));
            }
        }
        if running(&feeds).count() >= FEEDS_MAX {
            return Err(FeedUnavailable::TooMany);
        }
        let config = self.shared.config.get();
        forget(&mut feeds, config.counts_age_max);
        let served_before = served_version(&spec.key, &feeds);
        let record = feeds.entry(spec.key.clone()).or_default();
        let (counts, renderings) = record.begin(&spec.key, config.counts_age_max);
        let settled = record.retired.map(|retired| retired + DEFINITION_GRACE);
        let (writer, feed) =
            Feed::new(spec.clone(), (*config).clone(), &self.shared.budget, counts, renderings, settled);
        feed.served_before.store(served_before.0, Ordering::Relaxed);
        let feed = Arc::new(feed);
        feed.note_resume(resume);
        if self.shared.start_requests.try_send(FeedStartRequest { feed: feed.clone(), writer }).is_err() {
            record.close();
            return Err(FeedUnavailable::TooMany);
        }
        record.feed = Some(feed.clone());
        Ok(FeedHandle::new(feed))
    }

    /// Returns the feed for `key` if it runs with the given edition of the resource's definition.
    pub fn find(&self, key: &FeedKey, edition: Option<&Arc<str>>) -> Option<FeedHandle> {
        let feed = self.shared.feeds.lock().get(key)?.feed.clone()?;
        let is_over = matches!(feed.reader.state(), FeedState::Ended(_));
        (!is_over && feed.spec.edition.as_ref() == edition).then(|| FeedHandle::new(feed))
    }

    /// Returns the reason that a representation of the feed's objects is not derived, whether or not the feed runs.
    pub fn derivation_refusal(
        &self,
        key: &FeedKey,
        representation: Representation,
    ) -> Option<DerivedRepresentationRefusal> {
        match self.shared.feeds.lock().get(key)?.renderings.as_ref()?.mode(representation)? {
            DerivedRepresentationMode::Refused(reason) => Some(reason),
            DerivedRepresentationMode::Requested | DerivedRepresentationMode::Derived(_) => None,
        }
    }

    /// Returns the pins on states of all feeds.
    pub fn pins(&self) -> &SnapshotPins {
        self.shared.budget.pins()
    }

    /// Returns every feed, sorted by key.
    pub fn all(&self) -> Vec<Arc<Feed>> {
        running(&self.shared.feeds.lock()).cloned().collect()
    }

    /// Returns whether every feed that has a state has been disconnected from upstream for `min` or longer.
    pub fn are_stale(&self, min: Duration) -> bool {
        let feeds = self.shared.feeds.lock();
        let mut are_stale = running(&feeds).filter_map(|feed| match feed.reader.state() {
            FeedState::Live => Some(false),
            FeedState::Stale { since } => Some(since.elapsed() >= min),
            FeedState::Syncing | FeedState::Ended(_) => None,
        });
        are_stale.next() == Some(true) && are_stale.all(|is_stale| is_stale)
    }

    /// Returns the memory use and limit of all feeds.
    pub fn memory(&self) -> MemoryUse {
        self.shared.budget.memory()
    }

    /// Removes a feed that has ended. If the feed was refused, it is not retried for a while.
    pub fn ended(&self, feed: &Arc<Feed>, end: FeedEndReason) {
        let (mut feeds, config) = (self.shared.feeds.lock(), self.shared.config.get());
        if let Some(record) = feeds.get_mut(&feed.spec.key) {
            record.remove(feed);
            if end.is_refusal() {
                let served = feed.reader.progress().rv > ResourceVersion::default();
                let weighed = (feed.reader.required_bytes(), served);
                record.refusal = Some(FeedRefusal::new(record.refusal.take(), end, weighed, config.refused));
            }
            record.close();
        }
        forget(&mut feeds, config.counts_age_max);
    }

    /// Returns the counters of every running or recently ended feed, sorted by key.
    pub fn counts(&self) -> Vec<(FeedKey, Arc<FeedTrafficCounts>)> {
        let kept = self.shared.config.get().counts_age_max;
        let feeds = self.shared.feeds.lock();
        let is_counted = |(_, record): &(&FeedKey, &FeedRecord)| record.has_counts(kept);
        feeds.iter().filter(is_counted).map(|(key, record)| (key.clone(), record.counts.clone())).collect()
    }

    /// Removes a feed if it has had no readers for `idle_max`. Returns whether it was idle. No caller can get a handle
    /// between the check and the removal.
    pub fn end_if_idle(&self, feed: &Arc<Feed>, idle_max: Duration) -> bool {
        let mut feeds = self.shared.feeds.lock();
        let idle = feed.idle_for() >= idle_max;
        if idle && let Some(record) = feeds.get_mut(&feed.spec.key) {
            record.remove(feed);
        }
        idle
    }

    /// Ends a feed that no longer matches its resource. Its watches end, and the next request starts a new feed.
    pub fn retire(&self, feed: &Arc<Feed>) {
        if let Some(record) = self.shared.feeds.lock().get_mut(&feed.spec.key) {
            record.retire(feed);
        }
    }

    /// Discards refusals, because upstream serves other resources now. Refusals for memory or for missing permissions
    /// stay, because they are not affected.
    pub fn clear_refusals(&self) {
        self.clear_refusals_unless(|end| matches!(end, FeedEndReason::OverBudget | FeedEndReason::Forbidden));
    }

    /// Discards refusals for resources that upstream did not serve, because it may serve them now.
    pub fn clear_not_found(&self) {
        self.clear_refusals_unless(|end| end != FeedEndReason::Gone);
    }

    fn clear_refusals_unless(&self, stays: impl Fn(FeedEndReason) -> bool) {
        for record in self.shared.feeds.lock().values_mut() {
            record.refusal.take_if(|refusal| !stays(refusal.end));
        }
    }

    /// Records that the permissions of the proxy's identity may have changed: forbidden feeds are retried with the
    /// delay of a first refusal. Frequent calls do not cause more frequent retries.
    pub fn on_permissions_changed(&self) {
        let waits = self.shared.config.get().refused;
        for refusal in self.shared.feeds.lock().values_mut().filter_map(|record| record.refusal.as_mut()) {
            refusal.on_permissions_changed(waits);
        }
    }
}

impl FeedRecord {
    /// Records the start of a feed. Returns its counters, which continue those of a recent one, and its renderings.
    fn begin(&mut self, key: &FeedKey, kept: Duration) -> (Arc<FeedTrafficCounts>, Arc<DerivedRepresentations>) {
        if !self.has_counts(kept) {
            self.counts = Arc::default();
        }
        (self.running, self.ended) = (self.running + 1, None);
        // Clients that read JSON also need it in an outage, when it can no longer be compared with upstream's.
        let expected = (key.encoding == FeedEncoding::Protobuf).then_some(Representation::Object(FeedEncoding::Json));
        let renderings =
            self.renderings.get_or_insert_with(|| Arc::new(DerivedRepresentations::with_expected(expected)));
        renderings.begin();
        (self.counts.clone(), renderings.clone())
    }

    /// Records the end of a feed. Of its renderings, only refusals are kept.
    fn close(&mut self) {
        self.running = self.running.saturating_sub(1);
        if self.running == 0 {
            self.ended = Some(Instant::now());
        }
        if self.feed.is_none() {
            self.renderings.take_if(|renderings| !renderings.has_refused());
        }
    }

    /// Removes a feed, unless another one has replaced it.
    fn remove(&mut self, feed: &Arc<Feed>) {
        self.feed.take_if(|current| Arc::ptr_eq(current, feed));
    }

    /// Ends a feed that no longer matches its resource.
    fn retire(&mut self, feed: &Arc<Feed>) {
        self.remove(feed);
        self.retired = Some(Instant::now());
        feed.retired.cancel();
    }

    /// Whether the counters are of a running feed or one that ended within `kept`.
    fn has_counts(&self, kept: Duration) -> bool {
        self.ended.is_none_or(|ended| ended.elapsed() < kept)
    }
}

/// Drops the records of feeds that ended too long ago, and the oldest above the limit, except refusals, which expire
/// by themselves. `kept` is the time for which counters are kept.
fn forget(feeds: &mut FeedRecords, kept: Duration) {
    feeds.retain(|_, record| {
        record.refusal.take_if(|refusal| refusal.is_forgotten());
        record.retired.take_if(|retired| retired.elapsed() >= DEFINITION_GRACE);
        record.has_counts(kept) || record.retired.is_some() || record.refusal.is_some() || record.renderings.is_some()
    });
    let mut ended: Vec<_> =
        feeds.values().filter(|record| record.refusal.is_none()).filter_map(|record| record.ended).collect();
    if ended.len() > ENDED_MAX {
        ended.sort_unstable();
        let oldest = ended[ended.len() - ENDED_MAX];
        feeds.retain(|_, record| record.refusal.is_some() || record.ended.is_none_or(|ended| ended >= oldest));
    }
}

fn running(feeds: &FeedRecords) -> impl Iterator<Item = &Arc<Feed>> {
    feeds.values().filter_map(|record| record.feed.as_ref())
}

/// Returns the latest version that a live feed of the resource has reached.
fn served_version(key: &FeedKey, feeds: &FeedRecords) -> ResourceVersion {
    let others = running(feeds).filter(|feed| feed.spec.key.gvr == key.gvr && feed.reader.state() == FeedState::Live);
    others.map(|feed| feed.reader.served_version()).max().unwrap_or_default()
}
