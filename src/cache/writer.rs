mod begin_earlier;
mod renew;

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};
use tokio::time::Instant;

use super::budget::Budget;
use super::change::{Applied, Change, OutOfOrder};
use super::derived_json::DerivedJson;
use super::event::Made;
use super::lifecycle::{FeedEnd, FeedState};
use super::paging_snapshots::PagingSnapshots;
use super::progress::{Progress, Reached};
use super::shared::Shared;
use super::timeline::Timeline;
use super::transaction::Transaction;
use super::version_waiters::VersionWaiters;
use super::wakes::Wakes;
use super::{CacheConfig, CacheReader, ChunkCache, Pins, Snapshot};
use crate::wire::{BookmarkTemplate, Envelope, Renderer};
use kubeapi::{Gvr, ResourceVersion};
use tokio::sync::watch;

/// The only writer of a feed's cache. It is not `Clone`: there is one reflector per feed.
#[derive(Debug)]
pub struct CacheWriter {
    shared: Arc<Shared>,
}

impl CacheWriter {
    /// Creates an empty cache for one feed that may use all memory, and the handle that its readers clone.
    pub fn new(config: CacheConfig, gvr: Gvr, envelope: Envelope, namespaced: bool) -> (Self, CacheReader) {
        Self::within(&Budget::new(config.memory_bytes_max, Pins::default()), config, gvr, envelope, namespaced)
    }

    /// Creates an empty cache within a memory budget shared with other feeds.
    pub fn within(
        budget: &Arc<Budget>,
        config: CacheConfig,
        gvr: Gvr,
        envelope: Envelope,
        namespaced: bool,
    ) -> (Self, CacheReader) {
        let share = budget.share();
        let derived = || share.accounts.derived.clone();
        let shared = Arc::new(Shared {
            gvr,
            bookmark: RwLock::new(BookmarkTemplate::minimal(&envelope)),
            verbatim: Renderer::verbatim(&envelope),
            envelope,
            namespaced,
            timeline: RwLock::new(Timeline::new(&share.accounts, &config)),
            config: config.into(),
            made: Made { bytes: Arc::default(), account: derived() },
            kept: DerivedJson::new(budget.clone(), derived()),
            chunks: ChunkCache::new(budget.clone(), derived()),
            paging: Mutex::new(PagingSnapshots::default()),
            progress: watch::Sender::new(Progress::default()),
            reached: Reached::default(),
            state: watch::Sender::new(FeedState::Syncing),
            wholeness: VersionWaiters::default(),
            share,
        });
        let holder: Weak<Shared> = Arc::downgrade(&shared);
        budget.add(holder);
        (Self { shared: shared.clone() }, CacheReader { shared })
    }

    /// Returns the envelope that frames the feed's objects.
    pub fn envelope(&self) -> &Envelope {
        &self.shared.envelope
    }

    pub fn reader(&self) -> CacheReader {
        CacheReader { shared: self.shared.clone() }
    }

    /// Starts a new history with this state. Readers of the old one find their position expired: the changes in between
    /// are unknown, and are not invented (F6).
    pub fn replace(&mut self, list: Snapshot) {
        let rv = list.rv;
        let mut wakes = Wakes::default();
        let gone = {
            let mut timeline = self.shared.timeline.write();
            let events = timeline.ring.lanes.close(&mut wakes);
            let objects = timeline.restart(list);
            self.shared.paging.lock().clear();
            self.shared.chunks.clear();
            (events, objects)
        };
        drop(gone);
        self.shared.kept.clear();
        self.shared.share.admit();
        self.shared.publish(|progress| progress.rv = rv);
        wakes.wake();
    }

    /// Applies a change that is a complete transaction.
    pub fn apply(&mut self, change: Change) -> Result<Applied, OutOfOrder> {
        let applied = self.take(change)?;
        self.settle();
        Ok(applied)
    }

    /// Applies a change whose version may have more: it updates store, ring and lanes in one critical section, then
    /// wakes the readers. The version is published when it is settled, or when a later one arrives.
    pub fn take(&mut self, change: Change) -> Result<Applied, OutOfOrder> {
        let now = Instant::now();
        let mut wakes = Wakes::default();
        let whole = {
            let mut timeline = self.shared.timeline.write();
            if let Some(known) = timeline.admit(&change)? {
                if let Some(open) = timeline.open.as_mut().filter(|open| open.rv() == change.object.rv) {
                    open.told_again();
                }
                return Ok(known);
            }
            let event = Arc::new(timeline.event(change, &self.shared.envelope, now));
            let before = timeline.whole();
            timeline.record(&event, &self.shared.gvr);
            timeline.ring.evict(&self.shared.config.get(), now, self.shared.alternate_bytes());
            timeline.ring.lanes.push(&event, &mut wakes);
            if before < timeline.whole() && self.shared.wholeness.take_wake() {
                timeline.ring.lanes.nudge(&mut wakes);
            }
            timeline.whole()
        };
        self.shared.chunks.expire(now);
        self.shared.publish(|progress| progress.rv = whole);
        wakes.wake();
        self.enforce_budget();
        Ok(Applied::Fresh)
    }

    /// Returns how long upstream must be silent until the newest version counts as complete. `None` if it is already
    /// complete, or if only upstream can confirm it.
    pub fn settles_after(&self) -> Option<Duration> {
        self.shared.timeline.read().open.as_ref().and_then(Transaction::settles_after)
    }

    /// Returns whether the newest version must be completed as soon as possible: it has waiters, or a bookmark must be
    /// published.
    pub fn is_whole_awaited(&self) -> bool {
        let is_vouched = || self.shared.timeline.read().open.as_ref().is_some_and(Transaction::is_vouched);
        self.shared.wholeness.is_awaited() || is_vouched()
    }

    /// Completes when a waiter for the newest version has been registered.
    pub async fn whole_is_awaited(&self) {
        self.shared.wholeness.awaited().await;
    }

    /// Records that no more events of the newest version will come. If a bookmark at that version has arrived, it is
    /// published now.
    pub fn settle(&mut self) {
        let (gone, whole) = {
            let mut timeline = self.shared.timeline.write();
            let gone = timeline.open.take();
            timeline.settle_confirmed();
            (gone, timeline.whole())
        };
        if let Some(gone) = gone {
            self.announce(whole, gone.is_vouched(), true);
        }
    }

    /// Records upstream's bookmark at `rv`. If that is the newest version and it is incomplete, [`Self::settle`]
    /// completes it after a silence.
    pub fn bookmark(&mut self, rv: ResourceVersion) {
        if let Some(open) = self.shared.timeline.write().open.as_mut().filter(|open| open.rv() == rv) {
            return open.vouch();
        }
        self.advance(rv, true);
    }

    /// Records that everything up to `rv` has been applied. If `announce` is set, readers are woken, so that bookmarks
    /// cross a tier without delay (W10).
    pub fn advance(&mut self, rv: ResourceVersion, announce: bool) {
        let now = Instant::now();
        let (whole, gone) = {
            let mut timeline = self.shared.timeline.write();
            let gone = timeline.open.take_if(|open| open.rv() <= rv);
            timeline.progress = timeline.progress.max(rv);
            timeline.settle_confirmed();
            timeline.ring.evict(&self.shared.config.get(), now, self.shared.alternate_bytes());
            (timeline.whole(), gone)
        };
        self.shared.chunks.expire(now);
        self.announce(whole, announce, gone.is_some());
        drop(gone);
        self.enforce_budget();
    }

    /// Publishes the feed's progress. It wakes readers for a bookmark, and if they wait for the version that has become
    /// complete.
    fn announce(&self, whole: ResourceVersion, is_bookmark: bool, has_become_whole: bool) {
        let is_waited_for = has_become_whole && self.shared.wholeness.take_wake();
        self.shared.publish(|progress| {
            progress.rv = whole;
            if is_bookmark {
                progress.bookmarks += 1;
            }
        });
        if is_bookmark || is_waited_for {
            // The wakers are taken after publishing: a reader that parks later has seen the bookmark, and all others
            // are woken.
            let mut wakes = Wakes::default();
            self.shared.timeline.read().ring.lanes.nudge(&mut wakes);
            wakes.wake();
        }
    }

    /// Returns whether the feed has outgrown the memory limit and must end.
    pub fn is_outgrown(&self) -> bool {
        self.shared.share.outgrown.is_cancelled()
    }

    /// Enforces the memory limit. Called after every critical section, because it may free memory in other feeds.
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
    /// Ends the feed, regardless of the reason: its readers learn that no more events will come. The contents are
    /// dropped even if readers remain.
    fn drop(&mut self) {
        if !matches!(*self.shared.state.borrow(), FeedState::Ended(_)) {
            self.set_state(FeedState::Ended(FeedEnd::Shutdown));
        }
        let mut wakes = Wakes::default();
        let gone = self.shared.timeline.write().end(&mut wakes);
        wakes.wake();
        drop(gone);
        self.shared.paging.lock().clear();
        self.shared.chunks.clear();
        self.shared.kept.clear();
    }
}
