use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::counts::FeedTrafficRegistry;
use super::refused_feeds::RefusedFeeds;
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
    feeds: Mutex<BTreeMap<FeedKey, Arc<Feed>>>,
    /// The feeds that ended for a lasting reason, and are not retried for a while.
    refused: Mutex<RefusedFeeds>,
    /// How other representations of each feed are obtained. Refusals outlive the feed that found them. This field and
    /// the following ones change when feeds start and end, under the lock of `feeds`.
    renderings: Mutex<BTreeMap<FeedKey, Arc<DerivedRepresentations>>>,
    /// The retirement times of feeds whose successors have not settled.
    outdated: Mutex<BTreeMap<FeedKey, Instant>>,
    counts: Mutex<FeedTrafficRegistry>,
    start_requests: mpsc::Sender<FeedStartRequest>,
}

/// The reason that a feed is not available.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedUnavailable {
    /// The feed was tried recently and ended for the given reason.
    Ended(FeedEndReason),
    /// The maximum number of feeds, [`FEEDS_MAX`], is running.
    TooMany,
}

/// The time for which an apiserver may still use an older definition than another server has already served.
const DEFINITION_GRACE: Duration = Duration::from_secs(10);

impl FeedRegistry {
    /// Creates the registry, and the channel of demands for a supervisor.
    pub fn new(config: CacheConfig) -> (Self, mpsc::Receiver<FeedStartRequest>) {
        let (demand, demands) = mpsc::channel(FEEDS_MAX);
        let budget = MemoryBudget::new(config.memory_bytes_max, SnapshotPins::default());
        let shared = FeedRegistryState {
            config: config.into(),
            budget,
            feeds: Mutex::default(),
            refused: Mutex::default(),
            renderings: Mutex::default(),
            outdated: Mutex::default(),
            counts: Mutex::default(),
            start_requests: demand,
        };
        (Self { shared: Arc::new(shared) }, demands)
    }

    /// Applies new history limits to running and future feeds. Only readers that lag further lose their position.
    pub fn tune(&self, to: &CacheConfig) {
        let running: Vec<_> = {
            let feeds = self.shared.feeds.lock();
            self.shared.config.set(self.shared.config.get().keeping(to));
            feeds.values().cloned().collect()
        };
        let config = self.shared.config.get();
        running.iter().for_each(|feed| feed.reader.apply_config((*config).clone()));
    }

    /// Returns the feed for `spec`, and starts it if it does not run. `resume` is the version that the caller wants to
    /// resume after; a feed that is still starting may take it into account.
    pub fn handle(&self, spec: &FeedSpec, resume: Option<ResourceVersion>) -> Result<FeedHandle, FeedUnavailable> {
        let mut feeds = self.shared.feeds.lock();
        if let Some(feed) = feeds.get(&spec.key)
            && !matches!(feed.reader.state(), FeedState::Ended(_))
        {
            if feed.spec == *spec {
                feed.note_resume(resume);
                return Ok(FeedHandle::new(feed.clone()));
            }
            // The resource's definition has changed, so the objects of the old feed no longer match it.
            self.outdate(feed);
            feeds.remove(&spec.key);
        }
        let refused = self.shared.refused.lock().find(&spec.key, self.shared.budget.free());
        if let Some(end) = refused {
            return Err(FeedUnavailable::Ended(end));
        }
        if feeds.len() >= FEEDS_MAX {
            return Err(FeedUnavailable::TooMany);
        }
        let renderings = self.renderings_of(&spec.key, &feeds);
        let settled = self.shared.outdated.lock().get(&spec.key).map(|retired| *retired + DEFINITION_GRACE);
        let config = self.shared.config.get();
        let counts = self.shared.counts.lock().open(&spec.key, config.counts_age_max);
        let (writer, feed) =
            Feed::new(spec.clone(), (*config).clone(), &self.shared.budget, counts, renderings, settled);
        feed.served_before.store(served_version(&spec.key, &feeds).0, Ordering::Relaxed);
        let feed = Arc::new(feed);
        feed.note_resume(resume);
        if self.shared.start_requests.try_send(FeedStartRequest { feed: feed.clone(), writer }).is_err() {
            self.close(&spec.key, &feeds);
            return Err(FeedUnavailable::TooMany);
        }
        feeds.insert(spec.key.clone(), feed.clone());
        Ok(FeedHandle::new(feed))
    }

    /// Returns the feed for `key` if it runs with the given edition of the resource's definition.
    pub fn find(&self, key: &FeedKey, edition: Option<&Arc<str>>) -> Option<FeedHandle> {
        let feed = self.shared.feeds.lock().get(key).cloned()?;
        let is_over = matches!(feed.reader.state(), FeedState::Ended(_));
        (!is_over && feed.spec.edition.as_ref() == edition).then(|| FeedHandle::new(feed))
    }

    /// Returns the reason that a representation of the feed's objects is not derived, whether or not the feed runs.
    pub fn derivation_refusal(
        &self,
        key: &FeedKey,
        representation: Representation,
    ) -> Option<DerivedRepresentationRefusal> {
        match self.shared.renderings.lock().get(key)?.mode(representation)? {
            DerivedRepresentationMode::Refused(reason) => Some(reason),
            DerivedRepresentationMode::Requested | DerivedRepresentationMode::Derived(_) => None,
        }
    }

    /// Returns the renderings for a feed that starts.
    fn renderings_of(&self, key: &FeedKey, running: &BTreeMap<FeedKey, Arc<Feed>>) -> Arc<DerivedRepresentations> {
        let mut all = self.shared.renderings.lock();
        if all.len() >= FEEDS_MAX {
            all.retain(|key, _| running.contains_key(key));
        }
        // Clients that read JSON also need it in an outage, when it can no longer be compared with upstream's.
        let expected = (key.encoding == FeedEncoding::Protobuf).then_some(Representation::Object(FeedEncoding::Json));
        let renderings =
            all.entry(key.clone()).or_insert_with(|| Arc::new(DerivedRepresentations::with_expected(expected))).clone();
        renderings.begin();
        renderings
    }

    /// Returns the pins on states of all feeds.
    pub fn pins(&self) -> &SnapshotPins {
        self.shared.budget.pins()
    }

    /// Returns every feed, sorted by key.
    pub fn all(&self) -> Vec<Arc<Feed>> {
        self.shared.feeds.lock().values().cloned().collect()
    }

    /// Returns the memory use and limit of all feeds.
    pub fn memory(&self) -> MemoryUse {
        self.shared.budget.memory()
    }

    /// Removes a feed that has ended. If the feed was refused, it is not retried for a while.
    pub fn ended(&self, feed: &Arc<Feed>, end: FeedEndReason) {
        let key = &feed.spec.key;
        let mut feeds = self.shared.feeds.lock();
        remove(&mut feeds, feed);
        if end.is_refusal() {
            let served = feed.reader.progress().rv > ResourceVersion::default();
            let waits = self.shared.config.get().refused;
            self.shared.refused.lock().put(key, end, (feed.reader.required_bytes(), served), waits);
        }
        self.close(key, &feeds);
    }

    /// Drops the data of an ended feed, except refusals, and except its counters for a while.
    fn close(&self, key: &FeedKey, running: &BTreeMap<FeedKey, Arc<Feed>>) {
        self.shared.counts.lock().close(key, self.shared.config.get().counts_age_max);
        if !running.contains_key(key) {
            self.shared.renderings.lock().retain(|of, renderings| of != key || renderings.has_refused());
        }
    }

    /// Returns the counters of every running or recently ended feed, sorted by key.
    pub fn counts(&self) -> Vec<(FeedKey, Arc<FeedTrafficCounts>)> {
        self.shared.counts.lock().all(self.shared.config.get().counts_age_max)
    }

    /// Removes a feed if it has had no readers for `idle_max`. Returns whether it was idle. No caller can get a handle
    /// between the check and the removal.
    pub fn end_if_idle(&self, feed: &Arc<Feed>, idle_max: Duration) -> bool {
        let mut feeds = self.shared.feeds.lock();
        let idle = feed.idle_for() >= idle_max;
        if idle {
            remove(&mut feeds, feed);
        }
        idle
    }

    /// Ends a feed that no longer matches its resource. Its watches end, and the next request starts a new feed.
    pub fn retire(&self, feed: &Arc<Feed>) {
        let mut feeds = self.shared.feeds.lock();
        self.outdate(feed);
        remove(&mut feeds, feed);
    }

    /// Discards refusals, because upstream serves other resources now. Refusals for memory or for missing permissions
    /// stay.
    pub fn clear_refusals(&self) {
        self.shared.refused.lock().forget();
    }

    /// Discards refusals for resources that upstream did not serve, because it may serve them now.
    pub fn clear_not_found(&self) {
        self.shared.refused.lock().clear_not_found();
    }

    /// Records that the proxy's permissions may have changed: forbidden feeds are retried soon.
    pub fn on_permissions_changed(&self) {
        self.shared.refused.lock().on_permissions_changed(self.shared.config.get().refused);
    }

    fn outdate(&self, feed: &Feed) {
        let mut outdated = self.shared.outdated.lock();
        outdated.retain(|_, retired| retired.elapsed() < DEFINITION_GRACE);
        outdated.insert(feed.spec.key.clone(), Instant::now());
        feed.retired.cancel();
    }
}

/// Removes a feed, unless another one has replaced it.
fn remove(feeds: &mut BTreeMap<FeedKey, Arc<Feed>>, feed: &Arc<Feed>) {
    if feeds.get(&feed.spec.key).is_some_and(|current| Arc::ptr_eq(current, feed)) {
        feeds.remove(&feed.spec.key);
    }
}

/// Returns the latest version that a live feed of the resource has reached.
fn served_version(key: &FeedKey, feeds: &BTreeMap<FeedKey, Arc<Feed>>) -> ResourceVersion {
    let others = feeds.values().filter(|feed| feed.spec.key.gvr == key.gvr && feed.reader.state() == FeedState::Live);
    others.map(|feed| feed.reader.served_version()).max().unwrap_or_default()
}
