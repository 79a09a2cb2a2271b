use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};

#[cfg(test)]
use super::FeedEvent;
use super::budget::{BudgetedFeed, SHRINK_EVENTS_MAX};
use super::lane::{LaneKey, PendingWakeups};
use super::shared::{FeedProgress, FeedProgressReceiver, FeedState, SharedFeedCache};
use super::timeline::{CacheStats, FeedStateId, FeedTimeline};
use super::{
    CacheConfig, ChunkCache, CollectionView, FeedCursor, FeedSnapshot, MemoryKind, SnapshotPin, SnapshotPins,
    SnapshotStaging,
};
use crate::wire::{FeedEncoding, FrameEnvelope, ObjectRenderer, ObjectRevision, Representation, TranscodeError};
use base::{AbortSignal, MemoryAccount};
use kubeapi::{ObjectKey, ResourceVersion};
use tokio::sync::watch;

/// The read access to one feed. Clones share it.
#[derive(Debug, Clone)]
pub struct CacheReader {
    pub(super) shared: Arc<SharedFeedCache>,
}

/// The position at which a watch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchStartPosition {
    /// The watch starts after the given version.
    After(ResourceVersion),
    /// The watch starts with the current state, which is returned as a snapshot.
    Current,
    /// The watch starts with the current state, at the version that upstream's watch has reached, even if a later one
    /// is confirmed. Downstream proxies use it, because they follow that stream.
    UpstreamProgress,
}

/// An opened watch: its initial state if one was requested, and a cursor directly after that state. Both come from one
/// critical section.
#[derive(Debug)]
pub struct OpenedWatch {
    pub snapshot: Option<FeedSnapshot>,
    pub cursor: FeedCursor,
}

/// The error of a watch whose requested version is no longer in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VersionTooOld {
    pub requested: ResourceVersion,
    /// The oldest version that a watch may start from.
    pub floor: ResourceVersion,
}

/// The maximum number of changes that are undone to rebuild a past state or to find a past object: about a millisecond
/// of work, under a shared lock.
const UNDONE_CHANGES_MAX: usize = 2_000;
/// Makes a cursor skip no version: a further event at the newest version is not part of the state.
const SKIP_NONE: ResourceVersion = ResourceVersion(0);

impl CacheReader {
    /// Applies new history limits to the feed.
    pub fn apply_config(&self, config: CacheConfig) {
        let bytes = config.window_bytes();
        self.shared.config.set(config);
        self.shared.shrink_ring(bytes, SHRINK_EVENTS_MAX);
    }

    pub fn envelope(&self) -> &FrameEnvelope {
        &self.shared.envelope
    }

    /// Returns a renderer that writes objects in upstream's encoding.
    pub fn verbatim(&self) -> &ObjectRenderer {
        &self.shared.verbatim
    }

    pub fn namespaced(&self) -> bool {
        self.shared.namespaced
    }

    pub fn progress(&self) -> FeedProgress {
        self.shared.progress()
    }

    pub fn state(&self) -> FeedState {
        *self.shared.state.borrow()
    }

    /// Subscribes to the feed's lifecycle state.
    pub fn watch_state(&self) -> watch::Receiver<FeedState> {
        self.shared.state.subscribe()
    }

    /// Returns the number of the feed's history. Facts about one history do not apply to the next.
    pub fn history(&self) -> u64 {
        self.shared.timeline.read().history
    }

    /// Returns the ID of the current state, to detect later whether it has changed.
    pub fn state_id(&self) -> FeedStateId {
        self.shared.timeline.read().state_id()
    }

    /// Returns the oldest version that a watch may start from now.
    pub fn floor(&self) -> ResourceVersion {
        self.shared.timeline.read().ring.floor
    }

    /// Returns the oldest version that a watch may start from now, if it does not select by key.
    pub fn oldest_resumable(&self) -> ResourceVersion {
        self.shared.timeline.read().ring.oldest_resumable()
    }

    /// Returns whether a watch with the view may start after `rv` now.
    pub fn reaches(&self, rv: ResourceVersion, view: &CollectionView) -> bool {
        rv >= self.shared.timeline.read().ring.floor_of(view)
    }

    /// Subscribes to the feed's progress.
    pub fn follow_progress(&self) -> FeedProgressReceiver {
        FeedProgressReceiver { shared: self.shared.clone(), progress: self.shared.progress.subscribe() }
    }

    /// Completes when everything up to `rv` has been applied. It may never complete.
    pub async fn reached(&self, rv: ResourceVersion) {
        // The sender lives as long as this reader.
        let _ = self.shared.progress.subscribe().wait_for(|progress| progress.rv >= rv).await;
    }

    /// Returns the feed's state once the first list is complete, or at the deadline.
    pub async fn synced(&self, deadline: Instant) -> FeedState {
        let mut state = self.watch_state();
        let settled = timeout_at(deadline, state.wait_for(|state| *state != FeedState::Syncing)).await;
        match settled {
            Ok(Ok(settled)) => *settled,
            _ => FeedState::Syncing,
        }
    }

    /// Completes when the feed has ended.
    pub async fn ended(&self) {
        // The sender lives as long as this reader.
        let _ = self.watch_state().wait_for(|state| matches!(state, FeedState::Ended(_))).await;
    }

    /// Returns the current state. The caller must know that the feed has not ended: an ended feed is empty.
    pub fn snapshot(&self) -> FeedSnapshot {
        self.shared.timeline.read().snapshot()
    }

    /// Returns the state to serve, at the latest version that it is known to have; `None` if the feed has ended.
    pub fn current(&self) -> Option<FeedSnapshot> {
        let timeline = self.shared.timeline.read();
        (!timeline.has_ended).then(|| timeline.served())
    }

    /// Returns the version of the state that [`current`](Self::current) returns.
    pub fn served_version(&self) -> ResourceVersion {
        self.shared.timeline.read().served_version()
    }

    /// Records that upstream had the state of `state_id` at version `at`; readers get the state at that version from now
    /// on. Returns false if the feed has changed since `state_id`.
    pub fn confirm(&self, state_id: FeedStateId, at: ResourceVersion) -> bool {
        let is_present = self.shared.timeline.write().confirm(state_id, at);
        if is_present {
            // Wakes readers that wait for that version.
            self.shared.progress.send_modify(|_| {});
        }
        is_present
    }

    /// Forgets the confirmed version, because upstream's storage may have been restored to an older state.
    pub fn unconfirm(&self) {
        self.shared.timeline.write().unconfirm();
    }

    /// Returns the state at the version that upstream's watch has reached; `None` if the feed has ended.
    pub fn applied(&self) -> Option<FeedSnapshot> {
        let timeline = self.shared.timeline.read();
        (!timeline.has_ended).then(|| timeline.snapshot())
    }

    /// Returns the current version of an object.
    pub fn version_of(&self, key: &ObjectKey) -> Option<ResourceVersion> {
        self.shared.timeline.read().store.objects.get(key).map(|object| object.rv)
    }

    /// Returns a version of an object: the current one, or one that a recent event replaced.
    pub fn recent_version(&self, key: &ObjectKey, rv: ResourceVersion) -> Option<Arc<ObjectRevision>> {
        let timeline = self.shared.timeline.read();
        let current = timeline.store.objects.get(key).filter(|object| object.rv == rv);
        current.cloned().or_else(|| timeline.ring.replaced(key, rv, UNDONE_CHANGES_MAX))
    }

    /// Starts to assemble the feed's next state.
    pub fn stage(&self) -> SnapshotStaging {
        SnapshotStaging::new(self.shared.clone())
    }

    /// Returns the memory account for objects that are read for this feed.
    pub fn account(&self) -> &Arc<MemoryAccount> {
        self.shared.share.accounts.of(MemoryKind::Objects)
    }

    /// Completes when the feed must end because it has outgrown the memory budget.
    pub async fn over_budget(&self) {
        self.shared.share.over_budget.cancelled().await;
    }

    /// Returns the bytes that the feed needed when it did not fit into the memory budget.
    pub fn required_bytes(&self) -> usize {
        self.shared.share.required_bytes()
    }

    /// Returns a snapshot of exactly `rv`: the current state if it has that version, or one kept for a paging client.
    pub fn snapshot_at(&self, rv: ResourceVersion) -> Option<FeedSnapshot> {
        let current = self.shared.timeline.read().snapshot_at(rv);
        current.or_else(|| self.paging_snapshot(rv))
    }

    /// Returns a snapshot of exactly `rv`, rebuilt from the current state by undoing later events, if those are few and
    /// still held. Its bodies are those of the server that sent them.
    pub fn past_snapshot(&self, rv: ResourceVersion) -> Option<FeedSnapshot> {
        let (state, since) = self.shared.timeline.read().changes_since(rv, UNDONE_CHANGES_MAX)?;
        Some(state.without(&since))
    }

    /// Returns the snapshot of `rv` that is kept for a paging client. The current state is not used even if it has that
    /// version, because then a continue token would never expire while nothing changes.
    pub fn paging_snapshot(&self, rv: ResourceVersion) -> Option<FeedSnapshot> {
        self.shared.paging.lock().find(rv, Instant::now(), &self.shared.config.get())
    }

    /// Keeps `snapshot` for the next pages of the client that reads it, unless the feed has ended, or has replaced the
    /// history or the bodies that it is from.
    pub fn keep_for_paging(&self, snapshot: &FeedSnapshot) {
        self.shared.paging.lock().keep(snapshot.clone(), Instant::now(), &self.shared.config.get());
    }

    /// Opens a watch. Its position, and its snapshot if it starts with one, are from one instant of the feed.
    pub fn open(&self, start: WatchStartPosition, view: CollectionView) -> Result<OpenedWatch, VersionTooOld> {
        // Computed before the lock is taken, because a selector may be long.
        let key = LaneKey::of(&view);
        let mut timeline = self.shared.timeline.write();
        let (snapshot, after, skip) = match start {
            WatchStartPosition::After(rv) => {
                let floor = timeline.ring.floor_of(&view);
                if rv < floor {
                    return Err(VersionTooOld { requested: rv, floor });
                }
                (None, rv, rv)
            }
            WatchStartPosition::Current if timeline.confirmed_at().is_some() => {
                // Later events below that version cancel each other out, so the watch skips them.
                let snapshot = timeline.served();
                let rv = snapshot.rv;
                (Some(snapshot), rv, rv)
            }
            WatchStartPosition::Current | WatchStartPosition::UpstreamProgress => {
                // A feed that has ended has no state: the watch ends before it has sent anything.
                let snapshot = (!timeline.has_ended).then(|| timeline.snapshot());
                (snapshot, timeline.progress, SKIP_NONE)
            }
        };
        let next = timeline.ring.seq_after(after);
        let lane = timeline.ring.open_lane(&key);
        if timeline.has_ended {
            lane.close(&mut PendingWakeups::default());
        }
        Ok(OpenedWatch { snapshot, cursor: FeedCursor::new(self.shared.clone(), lane, view, next, after, skip) })
    }

    /// Opens a watch at the end of the history, without a state.
    pub fn open_at_end(&self, view: CollectionView) -> OpenedWatch {
        let Ok(opened) = self.open(WatchStartPosition::UpstreamProgress, view) else {
            unreachable!("no version is requested")
        };
        OpenedWatch { snapshot: None, ..opened }
    }

    /// Returns the frame of a bookmark at `rv`.
    pub fn bookmark(
        &self,
        rv: ResourceVersion,
        initial_events_end: bool,
        renderer: &ObjectRenderer,
    ) -> Result<Bytes, TranscodeError> {
        let body = self.shared.bookmark.read().body(rv, initial_events_end);
        renderer.bookmark(&body)
    }

    /// Returns an object's body in a representation. Derived JSON is cached.
    pub fn body(&self, object: &Arc<ObjectRevision>, renderer: &ObjectRenderer) -> Result<Bytes, TranscodeError> {
        if renderer.is_verbatim() {
            return Ok(object.body().clone());
        }
        let keeps = renderer.representation() == Representation::Object(FeedEncoding::Json);
        if let Some(body) = keeps.then(|| object.cached_json()).flatten() {
            return Ok(body);
        }
        let body = renderer.body(object.body())?;
        object.set_encodable(renderer.representation());
        Ok(if keeps { self.shared.derived_json.keep(object, body, renderer) } else { body })
    }

    /// Appends an object's body in a representation without caching it. If the body cannot be converted, `out` is
    /// unchanged.
    pub fn write_body(
        &self,
        object: &ObjectRevision,
        renderer: &ObjectRenderer,
        out: &mut Vec<u8>,
    ) -> Result<(), TranscodeError> {
        let is_cached =
            renderer.representation() == Representation::Object(FeedEncoding::Json) && !renderer.is_verbatim();
        if let Some(body) = is_cached.then(|| object.cached_json()).flatten() {
            out.extend_from_slice(&body);
            return Ok(());
        }
        renderer.put_body(object.body(), out)?;
        object.set_encodable(renderer.representation());
        Ok(())
    }

    /// Pins a state of this feed that is being sent. The signal `abort` ends the sender.
    pub fn pin(&self, pins: &SnapshotPins, snapshot: &FeedSnapshot, abort: AbortSignal) -> SnapshotPin {
        pins.pin(self.shared.clone(), snapshot, abort)
    }

    /// Returns the number of pins on states of this feed.
    pub fn pinned(&self, pins: &SnapshotPins) -> usize {
        pins.of(Arc::as_ptr(&self.shared).cast())
    }

    /// Returns the cache of this feed's encoded chunks.
    pub fn chunks(&self) -> &ChunkCache {
        &self.shared.chunks
    }

    /// Drops all bytes that were derived from the feed's objects.
    pub fn forget_derived(&self) {
        self.shared.derived_json.clear();
        self.shared.chunks.forget_derived();
    }

    /// Wakes every reader of the feed, so that it checks its conditions again.
    pub fn wake_all(&self) {
        let mut wakes = PendingWakeups::default();
        self.shared.timeline.read().ring.wake_all(&mut wakes);
        wakes.wake();
    }

    /// Returns the events in the history ring.
    #[cfg(test)]
    pub(crate) fn events(&self) -> Vec<Arc<FeedEvent>> {
        self.shared.timeline.read().ring.all.with_events(|events| events.iter().cloned().collect())
    }

    pub fn stats(&self) -> CacheStats {
        let SharedFeedCache { derived_json, chunks, share, .. } = &*self.shared;
        let derived_bytes = self.shared.derived_frame_bytes() + derived_json.bytes() + chunks.bytes();
        let FeedTimeline { store, ring, progress, .. } = &*self.shared.timeline.read();
        CacheStats {
            objects: store.objects.len(),
            object_bytes: store.bytes,
            events: ring.events,
            event_bytes: ring.bytes,
            derived_bytes,
            memory_bytes: share.used(),
            floor: ring.floor,
            progress: *progress,
            lanes: ring.narrow.len(),
            span_seconds: ring.span_seconds(),
        }
    }
}
