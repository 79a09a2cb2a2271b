use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::budget::{Budget, MemoryUse};
use super::counts::Ledger;
use super::lifecycle::FeedEnd;
use super::refused::Refusals;
use super::{
    CacheConfig, CacheReader, CacheWriter, FeedCounts, FeedKey, FeedState, Freshness, Pin, PinTerms, Pins,
    RenderingMode, RenderingRefusal, Renderings, Snapshot, Vintage,
};
use crate::base::Cut;
use crate::kube::{FieldTable, ResourceVersion};
use crate::wire::{Columns, Envelope, JsonLayout, Representation};

/// A feed and what is needed to read its objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FeedSpec {
    pub key: FeedKey,
    pub kind: Arc<str>,
    pub list_kind: Arc<str>,
    /// Of the resource's definition, if it has one: objects that were read under another one may read differently now.
    pub edition: Option<Arc<str>>,
    pub shape: JsonLayout,
    pub namespaced: bool,
    pub fields: Arc<FieldTable>,
    /// Key of the selectable field by which upstream finds what it lists, if it has such an index.
    pub index_field: Option<Arc<str>>,
}

/// A running feed, as its readers hold it.
#[derive(Debug)]
pub struct Feed {
    pub spec: FeedSpec,
    pub reader: CacheReader,
    pub currency: Freshness,
    pub renderings: Renderings,
    pub vintage: Vintage,
    /// Of a feed of Tables.
    pub columns: Columns,
    /// What happened to it upstream.
    pub counts: Arc<FeedCounts>,
    pins: Pins,
    leases: AtomicUsize,
    last_used: Mutex<Instant>,
    retired: CancellationToken,
    /// Until then upstream may still answer by the definition that the feed before this one was retired for.
    settled: Option<Instant>,
    /// The oldest version that somebody wants to go on from, while the feed starts.
    resume: Mutex<Option<ResourceVersion>>,
    /// How far another feed of the resource was when this one began: its clients are not to see it older again.
    shown: AtomicU64,
}

/// Keeps a feed from being idle.
#[derive(Debug, Clone)]
pub struct FeedHandle {
    inner: Arc<LeaseInner>,
}

#[derive(Debug)]
struct LeaseInner {
    feed: Arc<Feed>,
}

/// What a feed has of its registry.
struct Common {
    config: CacheConfig,
    budget: Arc<Budget>,
    counts: Arc<FeedCounts>,
}

/// Somebody wants a feed: its writer goes to whoever runs reflectors.
#[derive(Debug)]
pub struct Demand {
    pub feed: Arc<Feed>,
    pub writer: CacheWriter,
}

/// The feeds there are. Cloning shares.
#[derive(Debug, Clone)]
pub struct Feeds {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: CacheConfig,
    budget: Arc<Budget>,
    feeds: Mutex<HashMap<FeedKey, Arc<Feed>>>,
    /// Feeds that ended for a reason that will not go away at once.
    refused: Mutex<Refusals>,
    /// How other representations are had: refusals outlive the feed that they were found by.
    renderings: Mutex<HashMap<FeedKey, Renderings>>,
    /// When feeds were retired, for as long as what takes their place has not settled.
    outdated: Mutex<HashMap<FeedKey, Instant>>,
    counts: Mutex<Ledger>,
    demand: mpsc::Sender<Demand>,
}

/// Why there is no such feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unavailable {
    /// It was tried a short while ago and ended so.
    Ended(FeedEnd),
    /// There are [`FEEDS_MAX`] feeds already.
    TooMany,
}

/// Feeds that may run at once.
pub const FEEDS_MAX: usize = 1_000;
/// How long an apiserver may take to answer by a definition that we have read from another one.
const SETTLING: Duration = Duration::from_secs(10);

impl Feeds {
    /// The registry, and the demands that a supervisor serves.
    pub fn new(config: CacheConfig) -> (Self, mpsc::Receiver<Demand>) {
        let (demand, demands) = mpsc::channel(FEEDS_MAX);
        let budget = Budget::new(config.memory_bytes_max, Pins::default());
        let shared = Shared {
            config,
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

    /// The feed for `spec`, started if there is none. `resume` is the version behind which the caller wants to go on: a
    /// feed that is only starting may take it into account.
    pub fn lease(&self, spec: &FeedSpec, resume: Option<ResourceVersion>) -> Result<FeedHandle, Unavailable> {
        let mut feeds = self.shared.feeds.lock();
        if let Some(feed) = feeds.get(&spec.key)
            && !matches!(feed.reader.state(), FeedState::Ended(_))
        {
            if feed.spec == *spec {
                feed.note_resume(resume);
                return Ok(FeedHandle::new(feed.clone()));
            }
            // The resource's definition has changed; what was read of its objects no longer fits.
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
        let counts = self.shared.counts.lock().open(&spec.key, self.shared.config.counts_age_max);
        let Shared { config, budget, .. } = &*self.shared;
        let common = Common { config: config.clone(), budget: budget.clone(), counts };
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

    /// The feed for `key` if it runs.
    pub fn find(&self, key: &FeedKey) -> Option<FeedHandle> {
        let feed = self.shared.feeds.lock().get(key).cloned()?;
        (!matches!(feed.reader.state(), FeedState::Ended(_))).then(|| FeedHandle::new(feed))
    }

    /// Why a representation of this feed's objects is not derived, whether the feed runs or not.
    pub fn underivable(&self, key: &FeedKey, representation: Representation) -> Option<RenderingRefusal> {
        match self.shared.renderings.lock().get(key)?.mode(representation)? {
            RenderingMode::Refused(reason) => Some(reason),
            RenderingMode::Wanted | RenderingMode::Derived(_) => None,
        }
    }

    /// For a feed that begins.
    fn renderings_of(&self, key: &FeedKey, running: &HashMap<FeedKey, Arc<Feed>>) -> Renderings {
        let mut all = self.shared.renderings.lock();
        if all.len() >= FEEDS_MAX {
            all.retain(|key, _| running.contains_key(key));
        }
        let renderings = all.entry(key.clone()).or_default().clone();
        renderings.begin();
        renderings
    }

    /// The states that are kept for those who are being told them, of all feeds.
    pub fn pins(&self) -> &Pins {
        self.shared.budget.pins()
    }

    /// Every feed, in the order of their keys.
    pub fn all(&self) -> Vec<Arc<Feed>> {
        let mut all: Vec<_> = self.shared.feeds.lock().values().cloned().collect();
        all.sort_by(|a, b| a.spec.key.cmp(&b.spec.key));
        all
    }

    /// What all feeds hold together, and may hold.
    pub fn memory(&self) -> MemoryUse {
        self.shared.budget.memory()
    }

    /// Forgets a feed that ended; one that was refused is not tried again for a while.
    pub fn ended(&self, feed: &Arc<Feed>, end: FeedEnd) {
        let key = &feed.spec.key;
        let mut feeds = self.shared.feeds.lock();
        // Another may have taken its place.
        if feeds.get(key).is_some_and(|current| Arc::ptr_eq(current, feed)) {
            feeds.remove(key);
        }
        if end.is_refusal() {
            let served = feed.reader.progress().rv > ResourceVersion::default();
            let waits = self.shared.config.refused;
            self.shared.refused.lock().put(key, end, (feed.reader.weighed(), served), waits);
        }
        self.close(key, &feeds);
    }

    /// Nothing is left of a feed that is over but refusals, and what it counted for a while.
    fn close(&self, key: &FeedKey, running: &HashMap<FeedKey, Arc<Feed>>) {
        self.shared.counts.lock().close(key, self.shared.config.counts_age_max);
        if !running.contains_key(key) {
            self.shared.renderings.lock().retain(|of, renderings| of != key || renderings.has_refused());
        }
    }

    /// What has been counted of every feed, and of those that ended a while ago at most, in the order of their keys.
    pub fn counts(&self) -> Vec<(FeedKey, Arc<FeedCounts>)> {
        self.shared.counts.lock().all(self.shared.config.counts_age_max)
    }

    /// Takes a feed out of the registry if nobody has read it for so long; says whether it did. Nobody can lease it
    /// between the look and the removal.
    pub fn end_if_idle(&self, feed: &Arc<Feed>, idle_max: Duration) -> bool {
        let mut feeds = self.shared.feeds.lock();
        let idle = feed.idle_for() >= idle_max;
        if idle && feeds.get(&feed.spec.key).is_some_and(|current| Arc::ptr_eq(current, feed)) {
            feeds.remove(&feed.spec.key);
        }
        idle
    }

    /// Ends a feed that no longer fits its resource. Its watches end with it; whoever asks next starts another one.
    pub fn retire(&self, feed: &Arc<Feed>) {
        let mut feeds = self.shared.feeds.lock();
        self.outdate(feed);
        if feeds.get(&feed.spec.key).is_some_and(|current| Arc::ptr_eq(current, feed)) {
            feeds.remove(&feed.spec.key);
        }
    }

    /// Forgets refusals: what is served has changed. What does not fit into the memory, or may not be read, is not
    /// concerned.
    pub fn forget_refusals(&self) {
        self.shared.refused.lock().forget();
    }

    /// Forgets which resources upstream did not know: it may have learned of them.
    pub fn forget_gone(&self) {
        self.shared.refused.lock().forget_gone();
    }

    /// What our identity may not read is tried again soon: that may have changed.
    pub fn rights_changed(&self) {
        self.shared.refused.lock().rights_changed(self.shared.config.refused);
    }

    fn outdate(&self, feed: &Feed) {
        let mut outdated = self.shared.outdated.lock();
        outdated.retain(|_, retired| retired.elapsed() < SETTLING);
        outdated.insert(feed.spec.key.clone(), Instant::now());
        feed.retired.cancel();
    }
}

impl Feed {
    fn new(
        spec: FeedSpec,
        Common { config, budget, counts }: Common,
        renderings: Renderings,
        settled: Option<Instant>,
    ) -> (CacheWriter, Self) {
        let envelope = spec.envelope();
        let (writer, reader) = CacheWriter::within(&budget, config, spec.key.gvr.clone(), envelope, spec.namespaced);
        let currency = Freshness::default();
        let last_used = Mutex::new(Instant::now());
        let (leases, retired, resume) = (AtomicUsize::new(0), CancellationToken::new(), Mutex::default());
        let (columns, shown) = (Columns::default(), AtomicU64::new(0));
        (
            writer,
            Self {
                spec,
                reader,
                currency,
                renderings,
                vintage: Vintage::default(),
                columns,
                counts,
                pins: budget.pins().clone(),
                leases,
                last_used,
                retired,
                settled,
                resume,
                shown,
            },
        )
    }

    /// Keeps a state of this feed for somebody who is being told it, and who can be cut.
    pub fn pin(&self, snapshot: &Snapshot, cut: Cut, terms: PinTerms) -> Pin {
        self.reader.pin(&self.pins, snapshot, cut, terms)
    }

    /// Completes when the feed is to end, because what it reads no longer fits the resource.
    pub async fn retired(&self) {
        self.retired.cancelled().await;
    }

    /// A representation of this feed's objects is not exact, or cannot be made of one of them: nobody gets it from here
    /// any more. Its watches are woken, to end.
    pub fn refuse(&self, representation: Representation, reason: RenderingRefusal, why: &dyn fmt::Display) {
        if self.renderings.refuse(representation, reason) {
            let (feed, reason) = (&self.spec.key, reason.as_str());
            tracing::warn!(%feed, %representation, reason, %why, "not derived any more; asked of upstream instead");
            self.reader.nudge();
        }
    }

    /// Whether it took the place of a retired feed a moment ago: an apiserver that ends its stream now may have filled
    /// it by the definition that is no more.
    pub fn is_settling(&self) -> bool {
        self.settled.is_some_and(|settled| Instant::now() < settled)
    }

    /// The oldest version that somebody who waits for this feed wants to go on from.
    pub fn oldest_resume(&self) -> Option<ResourceVersion> {
        *self.resume.lock()
    }

    /// How far another feed of the resource was when this one began: nothing older is to be shown.
    pub fn shown_before(&self) -> ResourceVersion {
        ResourceVersion(self.shown.load(Ordering::Relaxed))
    }

    /// That version does not come: upstream may have been restored from a backup.
    pub fn forget_shown(&self) {
        self.shown.store(0, Ordering::Relaxed);
    }

    fn note_resume(&self, rv: Option<ResourceVersion>) {
        if let (Some(rv), FeedState::Syncing) = (rv, self.reader.state()) {
            let mut oldest = self.resume.lock();
            *oldest = Some(oldest.map_or(rv, |oldest| oldest.min(rv)));
        }
    }

    /// How long nobody has read it; zero while somebody does.
    pub fn idle_for(&self) -> Duration {
        if self.leases.load(Ordering::Relaxed) > 0 { Duration::ZERO } else { self.last_used.lock().elapsed() }
    }

    /// Readers at this moment.
    pub fn readers(&self) -> usize {
        self.leases.load(Ordering::Relaxed)
    }
}

/// How far the other feeds of a resource are that are live.
fn shown(key: &FeedKey, feeds: &HashMap<FeedKey, Arc<Feed>>) -> ResourceVersion {
    let others = feeds.values().filter(|feed| feed.spec.key.gvr == key.gvr && feed.reader.state() == FeedState::Live);
    others.map(|feed| feed.reader.progress().rv).max().unwrap_or_default()
}

impl FeedHandle {
    fn new(feed: Arc<Feed>) -> Self {
        feed.leases.fetch_add(1, Ordering::Relaxed);
        Self { inner: Arc::new(LeaseInner { feed }) }
    }
}

impl std::ops::Deref for FeedHandle {
    type Target = Feed;

    fn deref(&self) -> &Feed {
        &self.inner.feed
    }
}

impl Drop for LeaseInner {
    fn drop(&mut self) {
        *self.feed.last_used.lock() = Instant::now();
        self.feed.leases.fetch_sub(1, Ordering::Relaxed);
    }
}

impl FeedSpec {
    /// Of a resource whose objects are written as Pods are.
    #[cfg(test)]
    pub(crate) fn like_pods(key: FeedKey) -> Self {
        Self {
            key,
            kind: "Pod".into(),
            list_kind: "PodList".into(),
            edition: None,
            shape: JsonLayout::BuiltIn,
            namespaced: true,
            fields: Arc::default(),
            index_field: None,
        }
    }

    /// How the feed's objects are framed.
    pub fn envelope(&self) -> Envelope {
        Envelope::new(self.key.form, &self.key.gvr.api_version(), &self.kind, self.shape)
            .with_list_kind(&self.list_kind)
    }
}
