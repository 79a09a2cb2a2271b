use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::budget::{LeastUsed, Share};
use super::derived_json::DerivedJson;
use super::event::Made;
use super::inner::Inner;
use super::lane_key::LaneKey;
use super::lifecycle::FeedState;
use super::paging_snapshots::PagingSnapshots;
use super::snapshot::Taken;
use super::transaction::Transaction;
use super::{CacheConfig, ChunkCache, Cursor, Snapshot, Staging, View};
use crate::base::Account;
use crate::kube::{Gvr, ResourceVersion};
use crate::wire::{BookmarkTemplate, Encoding, Envelope, Object, Refused, Renderer, Representation};

/// What one writer and many readers share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: CacheConfig,
    pub(super) gvr: Gvr,
    pub(super) envelope: Envelope,
    /// What every reader begins with.
    pub(super) verbatim: Renderer,
    pub(super) namespaced: bool,
    pub(super) inner: RwLock<Inner>,
    /// The events' alternate frames.
    pub(super) made: Made,
    pub(super) kept: DerivedJson,
    pub(super) encodings: ChunkCache,
    pub(super) held: Mutex<PagingSnapshots>,
    /// For who waits for progress.
    pub(super) progress: watch::Sender<Progress>,
    /// For who looks, as every delivery does: without a lock that the readers of all cores would take.
    pub(super) reached: Reached,
    pub(super) state: watch::Sender<FeedState>,
    /// Somebody is to be woken when the newest version is whole.
    pub(super) waits_for_whole: AtomicBool,
    pub(super) bookmark: RwLock<BookmarkTemplate>,
    pub(super) share: Share,
}

impl Shared {
    /// Only the writer does.
    pub(super) fn publish(&self, change: impl FnOnce(&mut Progress)) {
        self.progress.send_modify(|progress| {
            change(progress);
            // Whoever sees a bookmark sees its version, or a later one.
            self.reached.rv.store(progress.rv.0, Ordering::Release);
            self.reached.bookmarks.store(progress.bookmarks, Ordering::Release);
        });
    }

    pub(super) fn progress(&self) -> Progress {
        let bookmarks = self.reached.bookmarks.load(Ordering::Acquire);
        Progress { rv: ResourceVersion(self.reached.rv.load(Ordering::Acquire)), bookmarks }
    }

    pub(super) fn alternate_bytes(&self) -> usize {
        self.made.bytes.load(Ordering::Relaxed)
    }

    /// Everything that is kept of what was derived, but with events.
    pub(super) fn derived(&self) -> impl Iterator<Item = &dyn LeastUsed> {
        let kept: &dyn LeastUsed = &self.kept;
        self.encodings.least_used().into_iter().chain([kept])
    }

    pub(super) fn ring_bytes(&self) -> usize {
        self.inner.read().event_bytes()
    }

    /// About what is free when nothing but the present state is kept; `pinned` is what those keep alive who are being
    /// told older ones.
    pub(super) fn may_go(&self, pinned: usize) -> usize {
        let first = self.held.lock().first_taken();
        let (ring, paging) = {
            let inner = self.inner.read();
            (inner.event_bytes(), first.map_or(0, |taken| inner.kept_by(taken)))
        };
        // What has left the store may be kept by all of them.
        let left = ring.max(paging).max(pinned);
        left + self.share.accounts.states.bytes() + self.kept.bytes() + self.encodings.bytes()
    }

    /// Shortens the history to so many bytes. Others have their turn between some events and the next.
    pub(super) fn shrink_ring(&self, bytes: usize, events_at_once: usize) {
        loop {
            let gone = self.inner.write().shrink(bytes, events_at_once);
            if gone.len() < events_at_once {
                return;
            }
        }
    }
}

/// [`Progress`], to be looked at.
#[derive(Debug, Default)]
pub(super) struct Reached {
    rv: AtomicU64,
    bookmarks: AtomicU64,
}

/// How far a feed is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Everything up to here has been applied, and no more of it will come.
    pub rv: ResourceVersion,
    /// Bookmarks seen so far.
    pub bookmarks: u64,
}

/// When no more events of a version will come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settling {
    Already,
    /// Upstream has only to be silent.
    Soon,
    /// Upstream has to be asked, if it says nothing by itself.
    WhenToldSo,
}

/// Reads one feed. Cloning shares.
#[derive(Debug, Clone)]
pub struct CacheReader {
    pub(super) shared: Arc<Shared>,
}

/// Where a watch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// After this version.
    After(ResourceVersion),
    /// With the current state, which is handed out as a snapshot.
    Current,
}

/// An opened watch: its initial state if it asked for one, and its cursor right behind it, of one critical section.
#[derive(Debug)]
pub struct OpenedWatch {
    pub snapshot: Option<Snapshot>,
    pub cursor: Cursor,
}

/// The version asked for is no longer in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too old resource version: {requested} ({floor})")]
pub struct TooOld {
    pub requested: ResourceVersion,
    /// The oldest version that a watch may start from.
    pub floor: ResourceVersion,
}

/// Sizes of one feed, for metrics and admin pages.
#[derive(Debug, Clone, Copy, Default)]
pub struct CacheStats {
    pub objects: usize,
    /// Bytes of the objects' bodies.
    pub object_bytes: usize,
    pub events: usize,
    pub event_bytes: usize,
    /// Bytes that were derived of objects and events, and are kept.
    pub derived_bytes: usize,
    /// Everything that is alive of the feed, whoever holds it.
    pub memory_bytes: usize,
    /// The oldest version that a watch may start from.
    pub floor: ResourceVersion,
    pub progress: ResourceVersion,
    /// Lanes besides the one of all events.
    pub lanes: usize,
    /// Seconds between the oldest and the newest event.
    pub span_seconds: f64,
}

impl CacheReader {
    pub fn gvr(&self) -> &Gvr {
        &self.shared.gvr
    }

    pub fn envelope(&self) -> &Envelope {
        &self.shared.envelope
    }

    /// Writes objects as they came.
    pub fn verbatim(&self) -> &Renderer {
        &self.shared.verbatim
    }

    pub fn namespaced(&self) -> bool {
        self.shared.namespaced
    }

    pub fn progress(&self) -> Progress {
        self.shared.progress()
    }

    pub fn state(&self) -> FeedState {
        *self.shared.state.borrow()
    }

    /// Follows the feed's state.
    pub fn watch_state(&self) -> watch::Receiver<FeedState> {
        self.shared.state.subscribe()
    }

    /// Counts the histories of this feed: what was learned of one says nothing of the next.
    pub fn history(&self) -> u64 {
        self.shared.inner.read().history
    }

    /// The oldest version that a watch may start from, at this moment.
    pub fn floor(&self) -> ResourceVersion {
        self.shared.inner.read().floor
    }

    /// Whether no more events of the newest version will come, as far as is known.
    pub fn is_whole(&self) -> bool {
        self.shared.inner.read().is_whole()
    }

    /// Whether more events of `rv` may come: whoever goes on from there would miss them.
    pub fn is_open(&self, rv: ResourceVersion) -> bool {
        self.shared.inner.read().is_open(rv)
    }

    /// The same for a reader who is to be woken when `rv` is whole: all readers are. They may be woken before as well.
    pub fn waits_for_whole(&self, rv: ResourceVersion) -> Settling {
        // First: whoever closes it under the lock looks at this behind.
        self.shared.waits_for_whole.store(true, Ordering::Release);
        let inner = self.shared.inner.read();
        match inner.open.as_ref().filter(|open| open.rv() == rv) {
            None => Settling::Already,
            Some(open) if open.settles_after().is_some() => Settling::Soon,
            Some(_) => Settling::WhenToldSo,
        }
    }

    /// Follows the feed's progress.
    pub fn watch_progress(&self) -> watch::Receiver<Progress> {
        self.shared.progress.subscribe()
    }

    /// Completes when everything up to `rv` has been applied; never, if that never happens.
    pub async fn reached(&self, rv: ResourceVersion) {
        let mut progress = self.shared.progress.subscribe();
        if progress.wait_for(|progress| progress.rv >= rv).await.is_err() {
            // The writer is gone and so is every hope; the caller's deadline decides.
            std::future::pending::<()>().await;
        }
    }

    /// Completes when everything that has come by now is whole, if it is not already: the state before it is shown to
    /// nobody from then on.
    pub async fn closed(&self) {
        let newest = self.shared.inner.read().open.as_ref().map(Transaction::rv);
        if let Some(newest) = newest {
            self.reached(newest).await;
        }
    }

    /// The same, and soon in any case: for who may be given an older state as well.
    pub async fn settled(&self) {
        let _ = timeout(Transaction::SETTLING_MAX, self.closed()).await;
    }

    /// The feed's state as soon as it is not being filled any more, or at the deadline.
    pub async fn synced(&self, deadline: Instant) -> FeedState {
        let mut state = self.shared.state.subscribe();
        let settled = timeout_at(deadline, state.wait_for(|state| *state != FeedState::Syncing)).await;
        match settled {
            Ok(Ok(settled)) => *settled,
            _ => FeedState::Syncing,
        }
    }

    /// Completes when the feed is over: whoever waits for something of it waits no longer.
    pub async fn over(&self) {
        let mut state = self.shared.state.subscribe();
        if state.wait_for(|state| matches!(state, FeedState::Ended(_))).await.is_err() {
            // Nobody is left who could wait: the sender is as old as this reader.
            std::future::pending::<()>().await;
        }
    }

    /// The state as it is. For who knows that the feed goes on: of one that is over nothing is left.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.inner.read().snapshot()
    }

    /// The state as it is, to answer with; `None` if the feed is over.
    pub fn current(&self) -> Option<Snapshot> {
        let inner = self.shared.inner.read();
        (!inner.is_over).then(|| inner.snapshot())
    }

    /// The state with all that has come, for who is told of no version; `None` if the feed is over.
    pub fn applied(&self) -> Option<Snapshot> {
        let inner = self.shared.inner.read();
        (!inner.is_over).then(|| inner.applied())
    }

    /// A state that is going to be this feed's.
    pub fn stage(&self) -> Staging {
        Staging::new(self.shared.clone())
    }

    /// Where objects are charged that are read for this feed.
    pub fn account(&self) -> &Arc<Account> {
        &self.shared.share.accounts.objects
    }

    /// Completes when the feed is to end because it has outgrown the memory.
    pub async fn outgrown(&self) {
        self.shared.share.outgrown.cancelled().await;
    }

    /// What the feed held when it did not fit into the memory.
    pub fn weighed(&self) -> usize {
        self.shared.share.weighed()
    }

    /// A snapshot of exactly `rv`: the current state if that is what it is, or one held for a paging client.
    pub fn snapshot_at(&self, rv: ResourceVersion) -> Option<Snapshot> {
        let current = self.shared.inner.read().snapshot_at(rv);
        current.or_else(|| self.held_at(rv))
    }

    /// The snapshot of `rv` if one is held for a client that pages through it. That it may still be the current state
    /// is not looked at: a token would be good for ever where nothing changes.
    pub fn held_at(&self, rv: ResourceVersion) -> Option<Snapshot> {
        self.shared.held.lock().find(rv, Instant::now(), &self.shared.config)
    }

    /// Keeps `snapshot` for the next pages of the client that reads it, while the feed goes on.
    pub fn hold(&self, snapshot: &Snapshot) {
        let mut held = self.shared.held.lock();
        // Under the lock: a feed that ends lets go of them behind its state.
        if matches!(self.state(), FeedState::Ended(_)) {
            return;
        }
        held.keep(snapshot.clone(), Instant::now(), &self.shared.config);
    }

    /// Opens a watch: its position, and the snapshot if it starts with one, belong to one instant of the feed.
    pub fn open(&self, start: Start, view: View) -> Result<OpenedWatch, TooOld> {
        // A long selector is read before the lock.
        let key = LaneKey::of(&view);
        let mut inner = self.shared.inner.write();
        match start {
            Start::After(rv) if rv < inner.floor => Err(TooOld { requested: rv, floor: inner.floor }),
            Start::After(rv) => {
                // Of a version that is not whole nobody has been told more than came here: the rest is to be told.
                let skip = if inner.is_open(rv) { inner.whole() } else { rv };
                Ok(OpenedWatch { snapshot: None, cursor: self.cursor(&mut inner, rv, skip, view, &key) })
            }
            Start::Current => {
                // A watch of a feed that is over ends before it has told anything.
                let snapshot = (!inner.is_over).then(|| inner.snapshot());
                Ok(OpenedWatch { snapshot, cursor: self.cursor_at_end(&mut inner, view, &key) })
            }
        }
    }

    /// Opens a watch behind everything there is, without a state.
    pub fn open_at_end(&self, view: View) -> OpenedWatch {
        let key = LaneKey::of(&view);
        OpenedWatch { snapshot: None, cursor: self.cursor_at_end(&mut self.shared.inner.write(), view, &key) }
    }

    /// Nothing behind the end is in the state so far, not even a deletion at the state's own version: several share
    /// one, and the others may be on their way (semantics.md §3.0). So nothing is skipped by version.
    fn cursor_at_end(&self, inner: &mut Inner, view: View, key: &LaneKey) -> Cursor {
        let whole = inner.whole();
        self.cursor(inner, whole, ResourceVersion::default(), view, key)
    }

    fn cursor(
        &self,
        inner: &mut Inner,
        after: ResourceVersion,
        skip: ResourceVersion,
        view: View,
        key: &LaneKey,
    ) -> Cursor {
        let (next, next_seq) = (inner.seq_after(after), inner.next_seq);
        let lane = inner.lanes.open(key, next_seq);
        if inner.is_over {
            lane.close(&mut Vec::new());
        }
        Cursor::new(self.shared.clone(), lane, view, next, after, skip)
    }

    /// The bookmark frame at `rv`.
    pub fn bookmark(
        &self,
        rv: ResourceVersion,
        initial_events_end: bool,
        renderer: &Renderer,
    ) -> Result<Bytes, Refused> {
        let body = self.shared.bookmark.read().body(rv, initial_events_end);
        renderer.bookmark(&body)
    }

    /// An object's body in a representation; JSON that had to be derived is kept for a while.
    pub fn body(&self, object: &Arc<Object>, renderer: &Renderer) -> Result<Bytes, Refused> {
        if renderer.is_verbatim() {
            return Ok(object.body().clone());
        }
        let keeps = renderer.representation() == Representation::Object(Encoding::Json);
        if let Some(body) = keeps.then(|| object.kept_json()).flatten() {
            return Ok(body);
        }
        let body = renderer.body(object.body())?;
        object.note_written(renderer.representation());
        if keeps {
            self.shared.kept.keep(object, body.clone(), renderer);
        }
        Ok(body)
    }

    /// Appends an object's body in a representation, and keeps nothing of it; when it is refused, `out` is as it was.
    pub fn put_body(&self, object: &Object, renderer: &Renderer, out: &mut Vec<u8>) -> Result<(), Refused> {
        let kept = renderer.representation() == Representation::Object(Encoding::Json) && !renderer.is_verbatim();
        if let Some(body) = kept.then(|| object.kept_json()).flatten() {
            out.extend_from_slice(&body);
            return Ok(());
        }
        renderer.put_body(object.body(), out)?;
        object.note_written(renderer.representation());
        Ok(())
    }

    /// At most so many bytes are kept alive by a state that was taken then, and by nothing else: all of them once the
    /// feed is over.
    pub(super) fn kept_by(&self, taken: Taken) -> usize {
        match self.state() {
            FeedState::Ended(_) => taken.bytes,
            _ => self.shared.inner.read().kept_by(taken),
        }
    }

    /// What runs of this feed's objects were written as.
    pub fn encodings(&self) -> &ChunkCache {
        &self.shared.encodings
    }

    /// Forgets everything that was derived.
    pub fn forget_derived(&self) {
        self.shared.kept.clear();
        self.shared.encodings.forget_derived();
    }

    /// Wakes every reader to look again.
    pub fn nudge(&self) {
        let mut wake = Vec::new();
        self.shared.inner.read().lanes.nudge(&mut wake);
        wake.into_iter().for_each(std::task::Waker::wake);
    }

    pub fn stats(&self) -> CacheStats {
        let Shared { kept, encodings, .. } = &*self.shared;
        let derived_bytes = self.shared.alternate_bytes() + kept.bytes() + encodings.bytes();
        let memory_bytes = self.shared.share.held();
        CacheStats { derived_bytes, memory_bytes, ..self.shared.inner.read().stats() }
    }
}
