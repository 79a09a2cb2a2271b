use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{BodyRelease, FeedCounts, FeedSpec, Freshness, RenderingRefusal, Renderings, ResumeBackfills};
use crate::cache::{Budget, CacheConfig, CacheReader, CacheWriter, FeedState, Pin, PinTerms, Pins, Snapshot};
use crate::wire::{Columns, Representation};
use base::Cut;
use kubeapi::ResourceVersion;

/// A running feed, as its readers hold it.
#[derive(Debug)]
pub struct Feed {
    pub spec: FeedSpec,
    pub reader: CacheReader,
    pub freshness: Freshness,
    pub renderings: Renderings,
    pub vintage: BodyRelease,
    pub returners: ResumeBackfills,
    /// The columns of a feed of Tables.
    pub columns: Columns,
    /// What happened to the feed upstream.
    pub counts: Arc<FeedCounts>,
    pins: Pins,
    leases: AtomicUsize,
    /// How many of the leases only keep the feed running.
    keepers: AtomicUsize,
    /// How many watches are of other proxies.
    proxies: AtomicUsize,
    last_used: Mutex<Instant>,
    last_read: Mutex<Option<Instant>>,
    pub(super) retired: CancellationToken,
    /// Until this time upstream may still answer by the definition for which the feed before this one was retired.
    settled: Option<Instant>,
    /// The oldest version behind which somebody wants to go on, while the feed starts.
    resume: Mutex<Option<ResourceVersion>>,
    /// The version that another feed of the resource had reached when this one began. Its clients must not see it older
    /// again.
    pub(super) shown: AtomicU64,
    /// When the feed began with a state that upstream had left already, if it did.
    began_behind: OnceLock<Instant>,
}

/// Keeps a feed from being idle.
#[derive(Debug, Clone)]
pub struct FeedHandle {
    inner: Arc<HandleInner>,
}

#[derive(Debug)]
struct HandleInner {
    feed: Arc<Feed>,
    only_keeps: AtomicBool,
}

/// The parts of the registry that each feed uses.
pub(super) struct Common {
    pub(super) config: CacheConfig,
    pub(super) budget: Arc<Budget>,
    pub(super) counts: Arc<FeedCounts>,
}

impl Feed {
    pub(super) fn new(
        spec: FeedSpec,
        Common { config, budget, counts }: Common,
        renderings: Renderings,
        settled: Option<Instant>,
    ) -> (CacheWriter, Self) {
        let envelope = spec.envelope();
        let (writer, reader) = CacheWriter::within(&budget, config, spec.key.gvr.clone(), envelope, spec.namespaced);
        let freshness = Freshness::default();
        let last_used = Mutex::new(Instant::now());
        let (leases, retired, resume) = (AtomicUsize::new(0), CancellationToken::new(), Mutex::default());
        let (columns, shown) = (Columns::default(), AtomicU64::new(0));
        (
            writer,
            Self {
                spec,
                reader,
                freshness,
                renderings,
                vintage: BodyRelease::default(),
                returners: ResumeBackfills::default(),
                columns,
                counts,
                pins: budget.pins().clone(),
                leases,
                keepers: AtomicUsize::new(0),
                proxies: AtomicUsize::new(0),
                last_used,
                last_read: Mutex::default(),
                retired,
                settled,
                resume,
                shown,
                began_behind: OnceLock::new(),
            },
        )
    }

    /// Keeps a state of this feed for somebody who is being told it. `cut` ends that somebody.
    pub fn pin(&self, snapshot: &Snapshot, cut: Cut, terms: PinTerms) -> Pin {
        self.reader.pin(&self.pins, snapshot, cut, terms)
    }

    /// Completes when the feed must end because what it reads no longer fits the resource.
    pub async fn retired(&self) {
        self.retired.cancelled().await;
    }

    /// Stops deriving a representation: it is not exact, or cannot be made of one of the objects. Nobody gets it from
    /// here any more, and its watches are woken, to end.
    pub fn refuse(&self, representation: Representation, reason: RenderingRefusal, why: &dyn fmt::Display) {
        if self.renderings.refuse(representation, reason) {
            let (feed, reason) = (&self.spec.key, reason.as_str());
            tracing::warn!(%feed, %representation, reason, %why, "not derived any more; asked of upstream instead");
            self.reader.nudge();
        }
    }

    /// Whether it took the place of a retired feed a moment ago. An apiserver that ends its stream now may have filled
    /// it by the old definition.
    pub fn is_settling(&self) -> bool {
        self.settled.is_some_and(|settled| Instant::now() < settled)
    }

    /// The oldest version behind which somebody who waits for this feed wants to go on.
    pub fn oldest_resume(&self) -> Option<ResourceVersion> {
        *self.resume.lock()
    }

    /// The version that another feed of the resource had reached when this one began: nothing older may be shown.
    pub fn shown_before(&self) -> ResourceVersion {
        ResourceVersion(self.shown.load(Ordering::Relaxed))
    }

    /// Forgets that version, for it does not come: upstream may have been restored from a backup.
    pub fn forget_shown(&self) {
        self.shown.store(0, Ordering::Relaxed);
    }

    /// Notes that the feed begins, now, with a state behind which somebody wants to go on. It is shown to nobody else
    /// before it is proven that everything which happened until now has come.
    pub fn begins_behind(&self, now: Instant) {
        let _ = self.began_behind.set(now);
    }

    /// Completes when a state of the feed may be shown: at once, unless it began with one of the past.
    pub async fn caught_up(&self) {
        if let Some(began) = self.began_behind.get() {
            self.freshness.reached(*began).await;
        }
    }

    pub(super) fn note_resume(&self, rv: Option<ResourceVersion>) {
        if let (Some(rv), FeedState::Syncing) = (rv, self.reader.state()) {
            let mut oldest = self.resume.lock();
            *oldest = Some(oldest.map_or(rv, |oldest| oldest.min(rv)));
        }
    }

    /// How long nobody has read the feed; zero while somebody does.
    pub fn idle_for(&self) -> Duration {
        if self.leases.load(Ordering::Relaxed) > 0 { Duration::ZERO } else { self.last_used.lock().elapsed() }
    }

    /// How many readers the feed has at this moment.
    pub fn readers(&self) -> usize {
        self.leases.load(Ordering::Relaxed).saturating_sub(self.keepers.load(Ordering::Relaxed))
    }

    /// Notes that a watch of another proxy begins.
    pub fn proxy_begins(&self) {
        self.proxies.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that such a watch has ended.
    pub fn proxy_ends(&self) {
        self.proxies.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether another proxy follows the feed: it is told at once how far that is, or it would have to ask.
    pub fn is_followed_by_proxies(&self) -> bool {
        self.proxies.load(Ordering::Relaxed) > 0
    }

    /// Whether somebody reads the feed, or did within this time, whoever keeps it running.
    pub fn was_read_within(&self, time: Duration) -> bool {
        self.readers() > 0 || self.last_read.lock().is_some_and(|last| last.elapsed() < time)
    }
}

impl FeedHandle {
    pub(super) fn new(feed: Arc<Feed>) -> Self {
        feed.leases.fetch_add(1, Ordering::Relaxed);
        Self { inner: Arc::new(HandleInner { feed, only_keeps: AtomicBool::new(false) }) }
    }

    /// Says that whoever holds this keeps the feed running and does not read it.
    #[must_use]
    pub fn only_keeping(self) -> Self {
        if !self.inner.only_keeps.swap(true, Ordering::Relaxed) {
            self.inner.feed.keepers.fetch_add(1, Ordering::Relaxed);
        }
        self
    }
}

impl std::ops::Deref for FeedHandle {
    type Target = Feed;

    fn deref(&self) -> &Feed {
        &self.inner.feed
    }
}

impl Drop for HandleInner {
    fn drop(&mut self) {
        let now = Instant::now();
        *self.feed.last_used.lock() = now;
        if self.only_keeps.load(Ordering::Relaxed) {
            self.feed.keepers.fetch_sub(1, Ordering::Relaxed);
        } else {
            *self.feed.last_read.lock() = Some(now);
        }
        self.feed.leases.fetch_sub(1, Ordering::Relaxed);
    }
}
