use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    DerivedRepresentationRefusal, DerivedRepresentations, FeedFreshness, FeedSpec, FeedTrafficCounts, ResumeBackfills,
    ServerReleaseMatch,
};
use crate::cache::{
    CacheConfig, CacheReader, CacheWriter, FeedSnapshot, FeedState, MemoryBudget, SnapshotPin, SnapshotPins,
};
use crate::wire::{Representation, TableColumns};
use base::AbortSignal;
use kubeapi::ResourceVersion;

/// One list-watch of upstream with its cache, shared by all readers of the resource.
#[derive(Debug)]
pub struct Feed {
    pub spec: FeedSpec,
    pub reader: CacheReader,
    pub freshness: FeedFreshness,
    pub renderings: Arc<DerivedRepresentations>,
    pub body_release: ServerReleaseMatch,
    pub resume_backfills: ResumeBackfills,
    /// The columns, for a feed of Tables.
    pub columns: TableColumns,
    /// The counters of the feed's upstream traffic.
    pub counts: Arc<FeedTrafficCounts>,
    pins: SnapshotPins,
    leases: AtomicUsize,
    /// The number of leases that only keep the feed running.
    keep_alive_leases: AtomicUsize,
    /// The number of watches by downstream proxies.
    proxies: AtomicUsize,
    last_used: Mutex<Instant>,
    last_read: Mutex<Option<Instant>>,
    /// The last time at which an object could not be printed as a row of a Table.
    unprintable_at: Mutex<Option<Instant>>,
    pub(super) retired: CancellationToken,
    /// The time until which upstream may still use the definition for which the previous feed was retired.
    settled: Option<Instant>,
    /// The oldest version that a client waiting for the feed requests to resume from.
    resume: Mutex<Option<ResourceVersion>>,
    /// The version that another feed of the resource had reached when this feed began. Its clients must not receive an
    /// older one.
    pub(super) served_before: AtomicU64,
    /// The start time of the feed, if its first state may already have been outdated.
    began_behind: OnceLock<Instant>,
}

/// A lease that keeps a feed from becoming idle.
#[derive(Debug, Clone)]
pub struct FeedHandle {
    inner: Arc<FeedHandleInner>,
}

#[derive(Debug)]
struct FeedHandleInner {
    feed: Arc<Feed>,
    is_keep_alive: AtomicBool,
}

/// How long Tables are not printed after an object could not be, because each attempt may cost a page.
const UNPRINTABLE_FOR: Duration = Duration::from_secs(60);

impl Feed {
    pub(super) fn new(
        spec: FeedSpec,
        config: CacheConfig,
        budget: &Arc<MemoryBudget>,
        counts: Arc<FeedTrafficCounts>,
        renderings: Arc<DerivedRepresentations>,
        settled: Option<Instant>,
    ) -> (CacheWriter, Self) {
        let (gvr, envelope) = (spec.key.gvr.clone(), spec.envelope());
        let (writer, reader) = CacheWriter::within(budget, config, gvr, envelope, spec.namespaced);
        let feed = Self {
            spec,
            reader,
            freshness: FeedFreshness::default(),
            renderings,
            body_release: ServerReleaseMatch::default(),
            resume_backfills: ResumeBackfills::default(),
            columns: TableColumns::default(),
            counts,
            pins: budget.pins().clone(),
            leases: AtomicUsize::new(0),
            keep_alive_leases: AtomicUsize::new(0),
            proxies: AtomicUsize::new(0),
            last_used: Mutex::new(Instant::now()),
            last_read: Mutex::default(),
            unprintable_at: Mutex::default(),
            retired: CancellationToken::new(),
            settled,
            resume: Mutex::default(),
            served_before: AtomicU64::new(0),
            began_behind: OnceLock::new(),
        };
        (writer, feed)
    }

    /// Pins a state of this feed that is being sent. The signal `cut` ends its sender.
    pub fn pin(&self, snapshot: &FeedSnapshot, cut: AbortSignal) -> SnapshotPin {
        self.reader.pin(&self.pins, snapshot, cut)
    }

    /// Completes when the feed must end because its objects no longer match the resource's definition.
    pub async fn retired(&self) {
        self.retired.cancelled().await;
    }

    /// Stops deriving a representation that is not exact, or that cannot express an object. Readers no longer get it
    /// from this feed, and its watches are woken so that they end.
    pub fn refuse(&self, representation: Representation, reason: DerivedRepresentationRefusal, why: &dyn fmt::Display) {
        if self.renderings.refuse(representation, reason) {
            let (feed, reason) = (&self.spec.key, reason.as_str());
            tracing::warn!(
                %feed, %representation, reason, %why,
                "stopped converting cached objects; requesting this representation from upstream"
            );
            self.reader.wake_all();
        }
    }

    /// Records that an object cannot be printed as a row of a Table. It may change, so this is not permanent.
    pub fn mark_unprintable(&self) {
        *self.unprintable_at.lock() = Some(Instant::now());
    }

    /// Whether an object could not be printed in the last minute.
    pub fn is_unprintable(&self) -> bool {
        self.unprintable_at.lock().is_some_and(|at| at.elapsed() < UNPRINTABLE_FOR)
    }

    /// Returns whether the feed replaced a retired one moments ago. If an apiserver ends the watch now, it may have
    /// used the old definition.
    pub fn is_replacement_recent(&self) -> bool {
        self.settled.is_some_and(|settled| Instant::now() < settled)
    }

    /// Returns the oldest version that a client waiting for this feed wants to resume from.
    pub fn oldest_resume(&self) -> Option<ResourceVersion> {
        *self.resume.lock()
    }

    /// Returns the version that another feed of the resource had reached when this feed began. No older version may be
    /// served.
    pub fn served_before(&self) -> ResourceVersion {
        ResourceVersion(self.served_before.load(Ordering::Relaxed))
    }

    /// Discards the version that another feed had reached, if upstream does not reach it. Upstream may have been
    /// restored from a backup.
    pub fn forget_served_before(&self) {
        self.served_before.store(0, Ordering::Relaxed);
    }

    /// Records that the feed begins now, with an old state that a client resumes from. Other clients do not receive
    /// that state before the feed has provably caught up to this time.
    pub fn start_from_old_state(&self, now: Instant) {
        let _ = self.began_behind.set(now);
    }

    /// Completes when a state of the feed may be served: immediately, unless it began with an old state.
    pub async fn caught_up(&self) {
        if let Some(began) = self.began_behind.get() {
            self.freshness.wait_proven(*began).await;
        }
    }

    pub(super) fn note_resume(&self, rv: Option<ResourceVersion>) {
        if let (Some(rv), FeedState::Syncing) = (rv, self.reader.state()) {
            let mut oldest = self.resume.lock();
            *oldest = Some(oldest.map_or(rv, |oldest| oldest.min(rv)));
        }
    }

    /// Returns how long the feed has had no leases; zero while it has any.
    pub fn idle_for(&self) -> Duration {
        if self.leases.load(Ordering::Relaxed) > 0 { Duration::ZERO } else { self.last_used.lock().elapsed() }
    }

    /// Returns the number of current readers.
    pub fn readers(&self) -> usize {
        self.leases.load(Ordering::Relaxed).saturating_sub(self.keep_alive_leases.load(Ordering::Relaxed))
    }

    /// Records the start of a watch by another proxy.
    pub fn proxy_watch_opened(&self) {
        self.proxies.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the end of a downstream proxy's watch.
    pub fn proxy_watch_closed(&self) {
        self.proxies.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns whether another proxy follows the feed. If so, its progress is published without delay, so that the
    /// proxy need not request it.
    pub fn is_followed_by_proxies(&self) -> bool {
        self.proxies.load(Ordering::Relaxed) > 0
    }

    /// Returns whether the feed has readers, or had some within `time`. Leases that only keep the feed running do not
    /// count.
    pub fn was_read_since(&self, time: Duration) -> bool {
        self.readers() > 0 || self.last_read.lock().is_some_and(|last| last.elapsed() < time)
    }
}

impl FeedHandle {
    pub(super) fn new(feed: Arc<Feed>) -> Self {
        feed.leases.fetch_add(1, Ordering::Relaxed);
        Self { inner: Arc::new(FeedHandleInner { feed, is_keep_alive: AtomicBool::new(false) }) }
    }

    /// Marks the lease as one that only keeps the feed running.
    #[must_use]
    pub fn as_keep_alive(self) -> Self {
        if !self.inner.is_keep_alive.swap(true, Ordering::Relaxed) {
            self.inner.feed.keep_alive_leases.fetch_add(1, Ordering::Relaxed);
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

impl Drop for FeedHandleInner {
    fn drop(&mut self) {
        let now = Instant::now();
        *self.feed.last_used.lock() = now;
        if self.is_keep_alive.load(Ordering::Relaxed) {
            self.feed.keep_alive_leases.fetch_sub(1, Ordering::Relaxed);
        } else {
            *self.feed.last_read.lock() = Some(now);
        }
        self.feed.leases.fetch_sub(1, Ordering::Relaxed);
    }
}
