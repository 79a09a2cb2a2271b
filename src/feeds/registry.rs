use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::counts::Ledger;
use super::feed::Common;
use super::refusals::Refusals;
use super::{FEEDS_MAX, Feed, FeedCounts, FeedHandle, FeedKey, FeedSpec, RenderingMode, RenderingRefusal, Renderings};
use crate::cache::{Budget, CacheConfig, CacheWriter, FeedEnd, FeedState, MemoryUse, Pins};
use crate::wire::{Encoding, Representation};
use base::Reloadable;
use kubeapi::ResourceVersion;

/// A request for a feed that does not run: its writer, for whoever runs reflectors.
#[derive(Debug)]
pub struct Demand {
    pub feed: Arc<Feed>,
    pub writer: CacheWriter,
}

/// The registry of feeds. Cloning shares.
#[derive(Debug, Clone)]
pub struct Feeds {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: Reloadable<CacheConfig>,
    budget: Arc<Budget>,
    /// With one lock: what becomes of one feed is decided by how many there are, and by the others of its resource. In
    /// parts it would be found no sooner, for most look for the same: one, two and four threads took 50, 104 and 206 ns
    /// with one lock, and 47, 97 and 206 ns in parts (benches/README.md).
    feeds: Mutex<BTreeMap<FeedKey, Arc<Feed>>>,
    /// Feeds that ended for a reason that lasts.
    refused: Mutex<Refusals>,
    /// How other representations are obtained, for each feed: refusals outlive the feed that found them. This and what
    /// follows changes where feeds begin and end, under their lock.
    renderings: Mutex<BTreeMap<FeedKey, Renderings>>,
    /// When feeds were retired, for as long as the feeds in their place have not settled.
    outdated: Mutex<BTreeMap<FeedKey, Instant>>,
    counts: Mutex<Ledger>,
    demand: mpsc::Sender<Demand>,
}

/// Why there is no such feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// It was tried a short while ago and ended for this reason.
    Ended(FeedEnd),
    /// There are [`FEEDS_MAX`] feeds already.
    TooMany,
}

/// How long an apiserver may still answer by an older definition than the one that we have read from another server.
const SETTLING: Duration = Duration::from_secs(10);

impl Feeds {
    /// Makes the registry, and the channel of demands that a supervisor serves.
    pub fn new(config: CacheConfig) -> (Self, mpsc::Receiver<Demand>) {
        let (demand, demands) = mpsc::channel(FEEDS_MAX);
        let budget = Budget::new(config.memory_bytes_max, Pins::default());
        let shared = Shared {
            config: config.into(),
            budget,
            feeds: Mutex::default(),
            refused: Mutex::default(),
            renderings: Mutex::default(),
            outdated: Mutex::default(),
            counts: Mutex::default(),
            demand,
        };
        (Self { shared: Arc::new(shared) }, demands)
    }

    /// Keeps as much history as that from now on, in feeds that run and in those that come. Only readers who are
    /// further behind than that lose their place.
    pub fn tune(&self, to: &CacheConfig) {
        let running: Vec<_> = {
            let feeds = self.shared.feeds.lock();
            self.shared.config.set(self.shared.config.get().keeping(to));
            feeds.values().cloned().collect()
        };
        let config = self.shared.config.get();
        running.iter().for_each(|feed| feed.reader.tune((*config).clone()));
    }

    /// The feed for `spec`. It is started if it does not run. `resume` is the version behind which the caller wants to
    /// go on: a feed that is only starting may take it into account.
    pub fn handle(&self, spec: &FeedSpec, resume: Option<ResourceVersion>) -> Result<FeedHandle, Unavailable> {
        let mut feeds = self.shared.feeds.lock();
        if let Some(feed) = feeds.get(&spec.key)
            && !matches!(feed.reader.state(), FeedState::Ended(_))
        {
            if feed.spec == *spec {
                feed.note_resume(resume);
                return Ok(FeedHandle::new(feed.clone()));
            }
            // The resource's definition has changed: the objects that were read no longer fit it.
            self.outdate(feed);
            feeds.remove(&spec.key);
        }
        let refused = self.shared.refused.lock().find(&spec.key, self.shared.budget.free());
        if let Some(end) = refused {
            return Err(Unavailable::Ended(end));
        }
        if feeds.len() >= FEEDS_MAX {
            return Err(Unavailable::TooMany);
        }
        let renderings = self.renderings_of(&spec.key, &feeds);
        let settled = self.shared.outdated.lock().get(&spec.key).map(|retired| *retired + SETTLING);
        let config = self.shared.config.get();
        let counts = self.shared.counts.lock().open(&spec.key, config.counts_age_max);
        let common = Common { config: (*config).clone(), budget: self.shared.budget.clone(), counts };
        let (writer, feed) = Feed::new(spec.clone(), common, renderings, settled);
        feed.shown.store(shown(&spec.key, &feeds).0, Ordering::Relaxed);
        let feed = Arc::new(feed);
        feed.note_resume(resume);
        if self.shared.demand.try_send(Demand { feed: feed.clone(), writer }).is_err() {
            self.close(&spec.key, &feeds);
            return Err(Unavailable::TooMany);
        }
        feeds.insert(spec.key.clone(), feed.clone());
        Ok(FeedHandle::new(feed))
    }

    /// The feed for `key` if it runs, and reads objects under this edition of their definition.
    pub fn find(&self, key: &FeedKey, edition: Option<&Arc<str>>) -> Option<FeedHandle> {
        let feed = self.shared.feeds.lock().get(key).cloned()?;
        let is_over = matches!(feed.reader.state(), FeedState::Ended(_));
        (!is_over && feed.spec.edition.as_ref() == edition).then(|| FeedHandle::new(feed))
    }

    /// Why a representation of this feed's objects is not derived, whether or not the feed runs.
    pub fn underivable(&self, key: &FeedKey, representation: Representation) -> Option<RenderingRefusal> {
        match self.shared.renderings.lock().get(key)?.mode(representation)? {
            RenderingMode::Refused(reason) => Some(reason),
            RenderingMode::Wanted | RenderingMode::Derived(_) => None,
        }
    }

    /// The renderings for a feed that begins.
    fn renderings_of(&self, key: &FeedKey, running: &BTreeMap<FeedKey, Arc<Feed>>) -> Renderings {
        let mut all = self.shared.renderings.lock();
        if all.len() >= FEEDS_MAX {
            all.retain(|key, _| running.contains_key(key));
        }
        // Clients that read JSON need it in an outage, too, when upstream can no longer be asked to qualify it.
        let expected = (key.encoding == Encoding::Protobuf).then_some(Representation::Object(Encoding::Json));
        let renderings = all.entry(key.clone()).or_insert_with(|| Renderings::expecting(expected)).clone();
        renderings.begin();
        renderings
    }

    /// The pins on states of all feeds.
    pub fn pins(&self) -> &Pins {
        self.shared.budget.pins()
    }

    /// Every feed, in the order of their keys.
    pub fn all(&self) -> Vec<Arc<Feed>> {
        let mut all: Vec<_> = self.shared.feeds.lock().values().cloned().collect();
        all.sort_by(|a, b| a.spec.key.cmp(&b.spec.key));
        all
    }

    /// The memory that all feeds hold, and may hold.
    pub fn memory(&self) -> MemoryUse {
        self.shared.budget.memory()
    }

    /// Removes a feed that has ended. If it was refused, it is not tried again for a while.
    pub fn ended(&self, feed: &Arc<Feed>, end: FeedEnd) {
        let key = &feed.spec.key;
        let mut feeds = self.shared.feeds.lock();
        // Another feed may have taken its place.
        if feeds.get(key).is_some_and(|current| Arc::ptr_eq(current, feed)) {
            feeds.remove(key);
        }
        if end.is_refusal() {
            let served = feed.reader.progress().rv > ResourceVersion::default();
            let waits = self.shared.config.get().refused;
            self.shared.refused.lock().put(key, end, (feed.reader.weighed(), served), waits);
        }
        self.close(key, &feeds);
    }

    /// Forgets what belongs to a feed that is over, except refusals, and its counts for a while.
    fn close(&self, key: &FeedKey, running: &BTreeMap<FeedKey, Arc<Feed>>) {
        self.shared.counts.lock().close(key, self.shared.config.get().counts_age_max);
        if !running.contains_key(key) {
            self.shared.renderings.lock().retain(|of, renderings| of != key || renderings.has_refused());
        }
    }

    /// The counts of every feed, and of feeds that ended lately, in the order of their keys.
    pub fn counts(&self) -> Vec<(FeedKey, Arc<FeedCounts>)> {
        self.shared.counts.lock().all(self.shared.config.get().counts_age_max)
    }

    /// Removes a feed if nobody has read it for `idle_max`. Returns whether it did. Nobody can get a handle between the
    /// look and the removal.
    pub fn end_if_idle(&self, feed: &Arc<Feed>, idle_max: Duration) -> bool {
        let mut feeds = self.shared.feeds.lock();
        let idle = feed.idle_for() >= idle_max;
        if idle && feeds.get(&feed.spec.key).is_some_and(|current| Arc::ptr_eq(current, feed)) {
            feeds.remove(&feed.spec.key);
        }
        idle
    }

    /// Ends a feed that no longer fits its resource. Its watches end with it, and whoever asks next starts another one.
    pub fn retire(&self, feed: &Arc<Feed>) {
        let mut feeds = self.shared.feeds.lock();
        self.outdate(feed);
        if feeds.get(&feed.spec.key).is_some_and(|current| Arc::ptr_eq(current, feed)) {
            feeds.remove(&feed.spec.key);
        }
    }

    /// Forgets refusals, because upstream serves other resources now. Those of feeds that do not fit into the memory,
    /// or that may not be read, stay.
    pub fn forget_refusals(&self) {
        self.shared.refused.lock().forget();
    }

    /// Forgets which resources upstream did not know, because it may have learned of them.
    pub fn forget_gone(&self) {
        self.shared.refused.lock().forget_gone();
    }

    /// Notes that our rights may have changed: feeds that may not be read are tried again soon.
    pub fn rights_changed(&self) {
        self.shared.refused.lock().rights_changed(self.shared.config.get().refused);
    }

    fn outdate(&self, feed: &Feed) {
        let mut outdated = self.shared.outdated.lock();
        outdated.retain(|_, retired| retired.elapsed() < SETTLING);
        outdated.insert(feed.spec.key.clone(), Instant::now());
        feed.retired.cancel();
    }
}

/// The latest version that a live feed of the resource has reached.
fn shown(key: &FeedKey, feeds: &BTreeMap<FeedKey, Arc<Feed>>) -> ResourceVersion {
    let others = feeds.values().filter(|feed| feed.spec.key.gvr == key.gvr && feed.reader.state() == FeedState::Live);
    others.map(|feed| feed.reader.newest().max(feed.reader.shown_at())).max().unwrap_or_default()
}
