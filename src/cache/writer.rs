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
use base::mutant;
use kubeapi::{Gvr, ResourceVersion};
use tokio::sync::watch;

/// The only writer of a feed's cache. It is not `Clone`: there is one reflector per feed.
#[derive(Debug)]
pub struct CacheWriter {
    shared: Arc<Shared>,
}

impl CacheWriter {
    /// Makes an empty cache for one feed that has all of the memory, and the handle that its readers clone.
    pub fn new(config: CacheConfig, gvr: Gvr, envelope: Envelope, namespaced: bool) -> (Self, CacheReader) {
        Self::within(&Budget::new(config.memory_bytes_max, Pins::default()), config, gvr, envelope, namespaced)
    }

    /// Makes an empty cache within a memory that other feeds share.
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

    /// The envelope that the feed's objects are framed with.
    pub fn envelope(&self) -> &Envelope {
        &self.shared.envelope
    }

    pub fn reader(&self) -> CacheReader {
        CacheReader { shared: self.shared.clone() }
    }

    /// Starts a new history with this state. Readers of the old one find their position expired: what happened between
    /// is not known, and is not made up (F6).
    pub fn replace(&mut self, list: Snapshot) {
        let rv = list.rv;
        let mut wakes = Wakes::default();
        let gone = {
            let mut timeline = self.shared.timeline.write();
            let events = if mutant(2) { Vec::new() } else { timeline.ring.lanes.close(&mut wakes) };
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

    /// Applies a change that is a transaction of its own.
    pub fn apply(&mut self, change: Change) -> Result<Applied, OutOfOrder> {
        let applied = self.take(change)?;
        self.settle();
        Ok(applied)
    }

    /// Applies a change whose version may have more: store, ring and lanes in one critical section, then the readers
    /// are woken. The version is announced when it is settled, or when a later one comes.
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

    /// How long upstream has to be silent until the newest version is taken to be whole. `None`: it is whole already,
    /// or only upstream can tell.
    pub fn settles_after(&self) -> Option<Duration> {
        self.shared.timeline.read().open.as_ref().and_then(Transaction::settles_after)
    }

    /// Whether the newest version is to be taken to be whole as soon as it may be: somebody waits for it, or there is a
    /// bookmark to be announced.
    pub fn is_whole_awaited(&self) -> bool {
        let is_vouched = || self.shared.timeline.read().open.as_ref().is_some_and(Transaction::is_vouched);
        self.shared.wholeness.is_awaited() || is_vouched()
    }

    /// Completes when somebody has begun to wait for the newest version to be whole.
    pub async fn whole_is_awaited(&self) {
        self.shared.wholeness.awaited().await;
    }

    /// Notes that no more events of the newest version will come. A bookmark at it is announced now.
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

    /// Notes upstream's bookmark at `rv`. If it is at the newest version, that is settled by [`Self::settle`] after a
    /// silence, unless it is whole already.
    pub fn bookmark(&mut self, rv: ResourceVersion) {
        if let Some(open) = self.shared.timeline.write().open.as_mut().filter(|open| open.rv() == rv) {
            return open.vouch();
        }
        self.advance(rv, true);
    }

    /// Notes that everything up to `rv` has been applied. With `announce` the readers are told, so that bookmarks cross
    /// a tier at once (W10).
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

    /// Publishes how far the feed is. Readers are woken by a bookmark, and if they wait for the version that has become
    /// whole.
    fn announce(&self, whole: ResourceVersion, is_bookmark: bool, has_become_whole: bool) {
        let is_waited_for = has_become_whole && self.shared.wholeness.take_wake();
        self.shared.publish(|progress| {
            progress.rv = whole;
            if is_bookmark {
                progress.bookmarks += 1;
            }
        });
        if is_bookmark || is_waited_for {
            // The wakers are taken only now: whoever parks from here on has seen the bookmark, and everybody else is
            // woken.
            let mut wakes = Wakes::default();
            self.shared.timeline.read().ring.lanes.nudge(&mut wakes);
            wakes.wake();
        }
    }

    /// Whether the feed has outgrown the memory and must end.
    pub fn is_outgrown(&self) -> bool {
        self.shared.share.outgrown.is_cancelled()
    }

    /// Called after every critical section: room may be made in other feeds as well.
    fn enforce_budget(&self) {
        self.shared.share.budget.enforce(&self.shared.share);
    }

    /// Remembers how upstream lays out a bookmark of this resource.
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
    /// Ends the feed, whatever the reason: its readers are told that no more will come. What it held is dropped,
    /// however long they stay.
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
