mod renew;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::Instant;

use super::budget::{Budget, WINDOW_PART};
use super::derived_json::DerivedJson;
use super::event::Made;
use super::inner::Inner;
use super::lifecycle::{FeedEnd, FeedState};
use super::paging_snapshots::PagingSnapshots;
use super::reader::{CacheReader, Progress, Reached, Shared};
use super::transaction::Transaction;
use super::{CacheConfig, ChunkCache, Pins, Snapshot};
use crate::kube::{EventType, Gvr, ObjectKey, ResourceVersion};
use crate::wire::{BookmarkTemplate, Envelope, Object, Renderer};

/// The only hand that changes a feed's cache. Not `Clone`: one reflector per feed.
#[derive(Debug)]
pub struct CacheWriter {
    shared: Arc<Shared>,
}

/// One change as upstream's stream reported it.
#[derive(Debug)]
pub struct Change {
    /// `Added`, `Modified` or `Deleted`.
    pub event_type: EventType,
    pub object: Object,
    /// The frame it came in, if it came in one; `object.body()` is a slice of it.
    pub frame: Option<Bytes>,
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is in the store and in the ring.
    Fresh,
    /// The ring had it already: two streams of one history overlap.
    Duplicate,
}

/// A change that contradicts what is known: older than the state that upstream vouched for, yet not seen before. The
/// stream that brought it cannot be trusted (reliability.md U11, U17).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("change of {key} at {rv} is out of order: everything up to {progress} was already vouched for")]
pub struct OutOfOrder {
    pub key: ObjectKey,
    pub rv: ResourceVersion,
    pub progress: ResourceVersion,
}

impl CacheWriter {
    /// An empty cache for one feed that has all of the memory, and the handle that its readers clone.
    pub fn new(config: CacheConfig, gvr: Gvr, envelope: Envelope, namespaced: bool) -> (Self, CacheReader) {
        Self::within(&Budget::new(config.memory_bytes_max, Pins::default()), config, gvr, envelope, namespaced)
    }

    /// The same within a memory that other feeds share.
    pub(super) fn within(
        budget: &Arc<Budget>,
        mut config: CacheConfig,
        gvr: Gvr,
        envelope: Envelope,
        namespaced: bool,
    ) -> (Self, CacheReader) {
        let share = budget.share();
        let derived = || share.accounts.derived.clone();
        config.window_bytes_max = config.window_bytes_max.min(config.memory_bytes_max / WINDOW_PART);
        let shared = Arc::new(Shared {
            config,
            gvr,
            bookmark: RwLock::new(BookmarkTemplate::minimal(&envelope)),
            verbatim: Renderer::verbatim(&envelope),
            envelope,
            namespaced,
            inner: RwLock::new(Inner::new(&share.accounts)),
            made: Made { bytes: Arc::default(), account: derived() },
            kept: DerivedJson::new(budget.clone(), derived()),
            encodings: ChunkCache::new(budget.clone(), derived()),
            held: Mutex::new(PagingSnapshots::default()),
            progress: watch::Sender::new(Progress::default()),
            reached: Reached::default(),
            state: watch::Sender::new(FeedState::Syncing),
            waits_for_whole: AtomicBool::new(false),
            share,
        });
        budget.add(&shared);
        (Self { shared: shared.clone() }, CacheReader { shared })
    }

    /// How the feed's objects are framed.
    pub fn envelope(&self) -> &Envelope {
        &self.shared.envelope
    }

    pub fn reader(&self) -> CacheReader {
        CacheReader { shared: self.shared.clone() }
    }

    /// Starts a new history with this state. Readers of the old one find their position expired: what happened between
    /// is not known, and is not made up (reliability.md F6).
    pub fn replace(&mut self, list: Snapshot) {
        let rv = list.rv;
        let mut wake = Vec::new();
        let gone = {
            let mut inner = self.shared.inner.write();
            let events = inner.lanes.close(&mut wake);
            let objects = inner.restart(list);
            self.shared.held.lock().clear();
            self.shared.encodings.clear();
            (events, objects)
        };
        drop(gone);
        self.shared.kept.clear();
        self.shared.share.admit();
        self.shared.publish(|progress| progress.rv = rv);
        wake_all(wake);
    }

    /// Applies one change that is a transaction of its own.
    pub fn apply(&mut self, change: Change) -> Result<Applied, OutOfOrder> {
        let applied = self.take(change)?;
        self.settle();
        Ok(applied)
    }

    /// Applies one change, of whose version more may come: store, ring and lanes in one critical section, then the
    /// readers are woken. The version is announced when it is settled, or when a later one comes.
    pub fn take(&mut self, change: Change) -> Result<Applied, OutOfOrder> {
        let now = Instant::now();
        let mut wake = Vec::new();
        let whole = {
            let mut inner = self.shared.inner.write();
            if let Some(known) = inner.admit(&change)? {
                return Ok(known);
            }
            let event = Arc::new(inner.event(change, &self.shared.envelope, now));
            let before = inner.whole();
            inner.record(&event, &self.shared.gvr);
            inner.evict(&self.shared.config, now, self.shared.alternate_bytes());
            inner.lanes.push(&event, &mut wake);
            if before < inner.whole() && self.shared.waits_for_whole.swap(false, Ordering::AcqRel) {
                inner.lanes.nudge(&mut wake);
            }
            inner.whole()
        };
        self.shared.encodings.expire(now);
        self.shared.publish(|progress| progress.rv = whole);
        wake_all(wake);
        self.enforce_budget();
        Ok(Applied::Fresh)
    }

    /// How long upstream may be silent until the newest version is taken to be whole; `None`: it is already, or only
    /// upstream can tell.
    pub fn settles_after(&self) -> Option<Duration> {
        self.shared.inner.read().open.as_ref().and_then(Transaction::settles_after)
    }

    /// No more events of the newest version will come.
    pub fn settle(&mut self) {
        let mut wake = Vec::new();
        let (gone, whole) = {
            let mut inner = self.shared.inner.write();
            let gone = inner.open.take();
            if gone.is_some() && self.shared.waits_for_whole.swap(false, Ordering::AcqRel) {
                inner.lanes.nudge(&mut wake);
            }
            (gone, inner.whole())
        };
        drop(gone);
        self.shared.publish(|progress| progress.rv = whole);
        wake_all(wake);
    }

    /// Everything up to `rv` is known to have been applied. With `announce` the readers are told, so that bookmarks
    /// cross a tier at once (reliability.md W10).
    pub fn advance(&mut self, rv: ResourceVersion, announce: bool) {
        let now = Instant::now();
        let (whole, gone) = {
            let mut inner = self.shared.inner.write();
            let gone = inner.open.take_if(|open| open.rv() <= rv);
            inner.progress = inner.progress.max(rv);
            inner.evict(&self.shared.config, now, self.shared.alternate_bytes());
            (inner.whole(), gone)
        };
        let is_waited_for = gone.is_some() && self.shared.waits_for_whole.swap(false, Ordering::AcqRel);
        drop(gone);
        self.shared.encodings.expire(now);
        self.shared.publish(|progress| {
            progress.rv = whole;
            if announce {
                progress.bookmarks += 1;
            }
        });
        self.enforce_budget();
        if announce || is_waited_for {
            // Only now: whoever parks from here on has seen the bookmark, and everybody else is woken.
            let mut wake = Vec::new();
            self.shared.inner.read().lanes.nudge(&mut wake);
            wake_all(wake);
        }
    }

    /// The feed has outgrown the memory, and is to end.
    pub fn is_outgrown(&self) -> bool {
        self.shared.share.outgrown.is_cancelled()
    }

    /// Behind every critical section: room is made in other feeds as well.
    fn enforce_budget(&self) {
        self.shared.share.budget.enforce(&self.shared);
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
    /// The feed has ended: its readers are told that no more will come, whatever made it end. What it held is let go,
    /// however long they stay.
    fn drop(&mut self) {
        if !matches!(*self.shared.state.borrow(), FeedState::Ended(_)) {
            self.set_state(FeedState::Ended(FeedEnd::Shutdown));
        }
        let mut wake = Vec::new();
        let gone = self.shared.inner.write().end(&mut wake);
        wake_all(wake);
        drop(gone);
        self.shared.held.lock().clear();
        self.shared.encodings.clear();
        self.shared.kept.clear();
    }
}

fn wake_all(wake: Vec<Waker>) {
    wake.into_iter().for_each(Waker::wake);
}
