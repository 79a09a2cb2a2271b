use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::budget::MemoryBudget;
use super::derived_json::DerivedJsonCache;
use super::event::DerivedFrameAccounts;
use super::lane::PendingWakeups;
use super::paging_snapshots::PagingSnapshots;
use super::shared::{AtomicFeedProgress, FeedEndReason, FeedProgress, FeedState, SharedFeedCache};
use super::timeline::{FeedTimeline, ObjectChange, OutOfOrderChange};
use super::{BackfilledEvents, CacheConfig, CacheReader, ChunkCache, FeedEvent, FeedSnapshot, MemoryKind};
use crate::wire::{BookmarkTemplate, FrameEnvelope, ObjectRenderer, ObjectRevision};
use kubeapi::{Gvr, ResourceVersion};
use tokio::sync::watch;

/// The only writer of a feed's cache. It is not `Clone`: there is one reflector per feed.
#[derive(Debug)]
pub struct CacheWriter {
    shared: Arc<SharedFeedCache>,
}

/// The number of objects that are replaced between two yields to readers.
const RENEWED_AT_A_TIME: usize = 256;

impl CacheWriter {
    /// Creates an empty cache for one feed that may use all memory, and the handle that its readers clone.
    #[cfg(test)]
    pub fn new(config: CacheConfig, gvr: Gvr, envelope: FrameEnvelope, namespaced: bool) -> (Self, CacheReader) {
        let budget = MemoryBudget::new(config.memory_bytes_max, super::SnapshotPins::default());
        Self::within(&budget, config, gvr, envelope, namespaced)
    }

    /// Creates an empty cache within a memory budget shared with other feeds.
    pub fn within(
        budget: &Arc<MemoryBudget>,
        config: CacheConfig,
        gvr: Gvr,
        envelope: FrameEnvelope,
        namespaced: bool,
    ) -> (Self, CacheReader) {
        let share = budget.share();
        let derived = || share.accounts.of(MemoryKind::Derived).clone();
        let shared = Arc::new(SharedFeedCache {
            gvr,
            bookmark: RwLock::new(BookmarkTemplate::minimal(&envelope)),
            verbatim: ObjectRenderer::verbatim(&envelope),
            envelope,
            namespaced,
            timeline: RwLock::new(FeedTimeline::new(&share.accounts, &config)),
            config: config.into(),
            made: DerivedFrameAccounts { bytes: Arc::default(), account: derived() },
            derived_json: DerivedJsonCache::new(budget.clone(), derived()),
            chunks: ChunkCache::new(budget.clone(), derived()),
            paging: Mutex::new(PagingSnapshots::default()),
            progress: watch::Sender::new(FeedProgress::default()),
            reached: AtomicFeedProgress::default(),
            state: watch::Sender::new(FeedState::Syncing),
            share,
        });
        let weak: Weak<SharedFeedCache> = Arc::downgrade(&shared);
        budget.add(weak);
        (Self { shared: shared.clone() }, CacheReader { shared })
    }

    /// Returns the envelope that frames the feed's objects.
    pub fn envelope(&self) -> &FrameEnvelope {
        &self.shared.envelope
    }

    /// Starts a new history with a listed state. Readers of the old history find their position expired: the changes in
    /// between are unknown, and are not invented (F6).
    pub fn replace(&mut self, list: FeedSnapshot) {
        let rv = list.rv;
        let mut wakes = PendingWakeups::default();
        let dropped = {
            let mut timeline = self.shared.timeline.write();
            let events = timeline.ring.close_lanes(&mut wakes);
            let objects = timeline.restart(list);
            self.shared.paging.lock().clear_before(timeline.store.content);
            self.shared.chunks.clear();
            (events, objects)
        };
        drop(dropped);
        self.shared.derived_json.clear();
        self.shared.share.admit();
        self.publish(|progress| progress.rv = rv);
        wakes.wake();
    }

    /// Applies changes in order: it updates store, ring and lanes in one critical section, then wakes the readers.
    /// Changes of one version share the critical section, so that no reader sees only a part of them. Returns the
    /// number of changes that are new; the ring already has the others, because two streams of one history overlap.
    ///
    /// # Errors
    /// A change contradicts the history. Those before it have been applied.
    pub fn apply(&mut self, changes: impl IntoIterator<Item = ObjectChange>) -> Result<usize, OutOfOrderChange> {
        let (mut all_fresh, mut changes) = (0, changes.into_iter().peekable());
        while let Some(rv) = changes.peek().map(|change| change.object.rv) {
            let now = Instant::now();
            let (mut fresh, mut wakes) = (0, PendingWakeups::default());
            let (applied, progress) = {
                let mut timeline = self.shared.timeline.write();
                let mut of_version = std::iter::from_fn(|| changes.next_if(|change| change.object.rv == rv));
                let applied = of_version.try_for_each(|change| {
                    if let Some(event) = timeline.apply(change, &self.shared.envelope, now)? {
                        let (config, derived_bytes) = (self.shared.config.get(), self.shared.derived_frame_bytes());
                        timeline.ring.push(&event, &config, now, derived_bytes, &mut wakes);
                        fresh += 1;
                    }
                    Ok(())
                });
                (applied, timeline.progress)
            };
            if fresh > 0 {
                self.shared.chunks.expire(now);
                self.publish(|published| published.rv = progress);
                wakes.wake();
                self.enforce_budget();
            }
            applied?;
            all_fresh += fresh;
        }
        Ok(all_fresh)
    }

    /// Records that everything up to `rv` has been applied. If `announce` is set, readers are woken, so that bookmarks
    /// cross a tier without delay (W10).
    pub fn advance(&mut self, rv: ResourceVersion, announce: bool) {
        let now = Instant::now();
        let rv = {
            let mut timeline = self.shared.timeline.write();
            timeline.advance(rv);
            timeline.ring.evict(&self.shared.config.get(), now, self.shared.derived_frame_bytes());
            timeline.progress
        };
        self.shared.chunks.expire(now);
        self.publish(|progress| {
            progress.rv = rv;
            if announce {
                progress.bookmarks = progress.bookmarks.wrapping_add(1);
            }
        });
        if announce {
            // The wakers are taken after publishing: a reader that parks later sees the bookmark when it looks again
            // (`FeedCursor::pull_filtered`), and all others are woken.
            let mut wakes = PendingWakeups::default();
            self.shared.timeline.read().ring.wake_all(&mut wakes);
            wakes.wake();
        }
        self.enforce_budget();
    }

    /// Extends the history backwards. Open watches are not affected. If the events no longer join the history or do not
    /// fit, it changes nothing and returns false.
    pub fn prepend(&mut self, past: BackfilledEvents) -> bool {
        let refused = {
            let mut timeline = self.shared.timeline.write();
            let headroom = timeline.ring.headroom(&self.shared.config.get(), self.shared.derived_frame_bytes());
            timeline.prepend(past, headroom).err()
        };
        self.enforce_budget();
        refused.is_none()
    }

    /// Adds the previous states of events for which they were unknown. `before` must contain all such events after
    /// `known`.
    pub fn set_previous_states(&mut self, known: ResourceVersion, before: Vec<(Arc<FeedEvent>, Arc<ObjectRevision>)>) {
        let events = before.into_iter().map(|(event, before)| Arc::new(event.with_previous(before))).collect();
        let dropped = {
            let mut timeline = self.shared.timeline.write();
            if timeline.can_backfill() { timeline.ring.set_previous_states(events, known) } else { Vec::new() }
        };
        drop(dropped);
        self.enforce_budget();
    }

    /// Replaces objects that are stored under the same key at the same version, and returns how many had different
    /// bytes. A server of another release writes other bytes; that is no event and no new version.
    ///
    /// Snapshots of paging clients are dropped, because their continue tokens would lead to bodies of the old server;
    /// upstream still accepts those tokens. Readers can no longer get bytes derived from the old bodies.
    pub async fn renew(&mut self, objects: Vec<Arc<ObjectRevision>>) -> usize {
        let mut renewed = 0;
        let mut objects = objects.into_iter().peekable();
        while objects.peek().is_some() {
            let batch: Vec<_> = objects.by_ref().take(RENEWED_AT_A_TIME).collect();
            let dropped = {
                let mut timeline = self.shared.timeline.write();
                timeline.discard_cached();
                timeline.store.renew(batch)
            };
            renewed += dropped.len();
            drop(dropped);
            tokio::task::yield_now().await;
        }
        if renewed > 0 {
            let content = self.shared.timeline.read().store.content;
            self.shared.paging.lock().clear_before(content);
            self.shared.chunks.clear();
            self.enforce_budget();
        }
        renewed
    }

    /// Changes the progress and wakes its followers.
    fn publish(&self, change: impl FnOnce(&mut FeedProgress)) {
        let SharedFeedCache { progress, reached, .. } = &*self.shared;
        progress.send_modify(|progress| {
            change(progress);
            // The version is stored first: a reader that sees a bookmark sees its version or a later one.
            reached.rv.store(progress.rv.0, Ordering::Release);
            reached.bookmarks.store(progress.bookmarks, Ordering::Release);
        });
    }

    /// Returns whether the feed has outgrown the memory limit and must end.
    pub fn is_over_budget(&self) -> bool {
        self.shared.share.over_budget.is_cancelled()
    }

    /// Enforces the memory budget. It is called after every critical section, because it may free memory in other
    /// feeds.
    fn enforce_budget(&self) {
        self.shared.share.budget.enforce(&self.shared.share);
    }

    /// Stores upstream's layout of a bookmark of this resource.
    pub fn set_bookmark(&mut self, template: BookmarkTemplate) {
        *self.shared.bookmark.write() = template;
    }

    pub fn set_state(&mut self, state: FeedState) {
        self.shared.state.send_if_modified(|current| {
            // Staleness counts from the first moment.
            let keep =
                matches!((*current, state), (FeedState::Stale { .. }, FeedState::Stale { .. })) || *current == state;
            if !keep {
                *current = state;
            }
            !keep
        });
    }
}

impl Drop for CacheWriter {
    /// Ends the feed, regardless of the reason. Its readers are notified that no more events follow. The contents are
    /// dropped even if readers remain.
    fn drop(&mut self) {
        if !matches!(*self.shared.state.borrow(), FeedState::Ended(_)) {
            self.set_state(FeedState::Ended(FeedEndReason::Shutdown));
        }
        let mut wakes = PendingWakeups::default();
        let dropped = self.shared.timeline.write().end(&mut wakes);
        wakes.wake();
        drop(dropped);
        self.shared.paging.lock().clear_before(u64::MAX);
        self.shared.chunks.close();
        self.shared.derived_json.clear();
    }
}
