use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::budget::{BudgetedFeed, FeedMemoryShare, LruEviction};
use super::derived_json::DerivedJsonCache;
use super::event::DerivedFrameAccounts;
use super::paging_snapshots::PagingSnapshots;
use super::pinned::PinnableFeed;
use super::snapshot::SnapshotCapturePoint;
use super::timeline::FeedTimeline;
use super::{CacheConfig, ChunkCache, MemoryKind};
use crate::wire::{BookmarkTemplate, FrameEnvelope, ObjectRenderer};
use base::Reloadable;
use kubeapi::{Gvr, ResourceVersion};
use tokio::sync::watch;

/// The state that one writer and many readers of a feed share.
#[derive(Debug)]
pub(super) struct SharedFeedCache {
    pub(super) config: Reloadable<CacheConfig>,
    pub(super) gvr: Gvr,
    pub(super) envelope: FrameEnvelope,
    /// The initial renderer of every reader, which sends bodies as received.
    pub(super) verbatim: ObjectRenderer,
    pub(super) namespaced: bool,
    pub(super) timeline: RwLock<FeedTimeline>,
    /// The accounts for the derived frames of events.
    pub(super) made: DerivedFrameAccounts,
    pub(super) derived_json: DerivedJsonCache,
    pub(super) chunks: ChunkCache,
    pub(super) paging: Mutex<PagingSnapshots>,
    /// The feed's progress, for readers that wait for it.
    pub(super) progress: watch::Sender<FeedProgress>,
    /// The feed's progress, for readers that poll it, as every delivery does. It avoids a lock that readers on all
    /// cores would contend for.
    pub(super) reached: AtomicFeedProgress,
    pub(super) state: watch::Sender<FeedState>,
    pub(super) bookmark: RwLock<BookmarkTemplate>,
    pub(super) share: FeedMemoryShare,
}

/// A copy of [`FeedProgress`] that is read without a lock.
#[derive(Debug, Default)]
pub(super) struct AtomicFeedProgress {
    pub(super) rv: AtomicU64,
    pub(super) bookmarks: AtomicU32,
}

/// Progress of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FeedProgress {
    /// The version up to which everything has been applied.
    pub rv: ResourceVersion,
    /// The number of bookmarks that the feed has received.
    pub bookmarks: u32,
}

/// Follows the progress of a feed.
#[derive(Debug)]
pub struct FeedProgressReceiver {
    pub(super) shared: Arc<SharedFeedCache>,
    pub(super) progress: watch::Receiver<FeedProgress>,
}

/// The state of a feed: whether requests can be served from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedState {
    /// The first list is not complete.
    Syncing,
    /// Upstream's watch is open, so the cache follows changes.
    Live,
    /// The watch was open until `since`; the cache may lag behind upstream from then on.
    Stale { since: Instant },
    /// The feed has ended; readers use another feed, or their requests are forwarded to upstream.
    Ended(FeedEndReason),
}

base::labelled_enum! {
    /// The reason that a feed has ended.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum FeedEndReason {
        /// Upstream denies the proxy's identity access to the resource.
        Forbidden = "forbidden",
        /// Upstream does not serve the resource, or no longer does.
        Gone = "gone",
        /// Upstream does not offer the resource in the feed's encoding.
        NotOffered = "not_offered",
        /// The resourceVersions are not numbers, or the objects do not decode.
        Unreadable = "unreadable",
        /// The feed does not fit into the memory budget for feeds.
        OverBudget = "over_budget",
        /// The resource's definition has changed, and another feed replaces this one.
        Outdated = "outdated",
        /// The feed had no readers for longer than the idle timeout.
        Idle = "idle",
        /// The feed ended because the proxy is shutting down.
        Shutdown = "shutdown",
    }
}

impl SharedFeedCache {
    pub(super) fn progress(&self) -> FeedProgress {
        let bookmarks = self.reached.bookmarks.load(Ordering::Acquire);
        FeedProgress { rv: ResourceVersion(self.reached.rv.load(Ordering::Acquire)), bookmarks }
    }

    pub(super) fn derived_frame_bytes(&self) -> usize {
        self.made.bytes.load(Ordering::Relaxed)
    }
}

impl BudgetedFeed for SharedFeedCache {
    fn share(&self) -> &FeedMemoryShare {
        &self.share
    }

    fn derived(&self) -> Vec<&dyn LruEviction> {
        let kept: &dyn LruEviction = &self.derived_json;
        self.chunks.least_used().into_iter().chain([kept]).collect()
    }

    fn ring_bytes(&self) -> usize {
        self.timeline.read().ring.bytes
    }

    fn reclaimable(&self, pinned: usize) -> usize {
        let first = self.paging.lock().first_taken();
        let (ring, paging) = {
            let timeline = self.timeline.read();
            (timeline.ring.bytes, first.map_or(0, |taken| timeline.store.kept_by(taken)))
        };
        // Ring, paging clients and pins may all keep the same objects that have left the store.
        let left = ring.max(paging).max(pinned);
        left + self.share.accounts.of(MemoryKind::States).bytes() + self.derived_json.bytes() + self.chunks.bytes()
    }

    fn shrink_ring(&self, bytes: usize, events_at_once: usize) {
        loop {
            let evicted = self.timeline.write().ring.shrink(bytes, events_at_once);
            if evicted.len() < events_at_once {
                return;
            }
        }
    }

    fn paging(&self) -> &dyn LruEviction {
        &self.paging
    }
}

impl PinnableFeed for SharedFeedCache {
    fn kept_by(&self, taken: SnapshotCapturePoint) -> usize {
        let state = *self.state.borrow();
        match state {
            FeedState::Ended(_) => taken.bytes,
            _ => self.timeline.read().store.kept_by(taken),
        }
    }
}

impl FeedEndReason {
    /// Returns whether an immediate retry would end the same way.
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::Forbidden | Self::Gone | Self::NotOffered | Self::Unreadable | Self::OverBudget)
    }
}

impl FeedProgressReceiver {
    /// Returns the current progress. After this, [`changed`](Self::changed) waits for a different value.
    pub fn borrow_progress(&mut self) -> FeedProgress {
        *self.progress.borrow_and_update()
    }

    /// Completes when the feed's progress differs from that of the last [`borrow_progress`](Self::borrow_progress). It
    /// may never complete.
    pub async fn changed(&mut self) {
        // The sender lives as long as `shared`.
        let _ = self.progress.changed().await;
    }

    /// Completes when readers get a state at `rv` or later. It may never complete.
    pub async fn wait_served(&mut self, rv: ResourceVersion) {
        while self.borrow_progress().rv < rv && self.shared.timeline.read().served_version() < rv {
            self.changed().await;
        }
    }
}
