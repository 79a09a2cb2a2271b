use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Instant, timeout, timeout_at};

#[cfg(test)]
use super::Event;
use super::lane_key::LaneKey;
use super::lifecycle::FeedState;
use super::progress::{Progress, Settling};
use super::progress_follower::ProgressFollower;
use super::shared::Shared;
use super::state_mark::StateMark;
use super::stats::CacheStats;
use super::timeline::Timeline;
use super::transaction::Transaction;
use super::wakes::Wakes;
use super::{CacheConfig, ChunkCache, Cursor, Pin, PinTerms, Pins, Snapshot, Staging, View};
use crate::wire::{Encoding, Envelope, Object, Refused, Renderer, Representation};
use base::{Account, Cut, mutant};
use kubeapi::{Gvr, ResourceVersion};
use tokio::sync::watch;

/// Reads one feed. Cloning shares.
#[derive(Debug, Clone)]
pub struct CacheReader {
    pub(super) shared: Arc<Shared>,
}

/// Where a watch starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// The watch starts after this version.
    After(ResourceVersion),
    /// The watch starts with the current state, which is handed out as a snapshot.
    Current,
    /// The same, at the version that upstream's stream has reached. Proxies use it, because they follow the stream.
    Told,
}

/// An opened watch: its initial state if it asked for one, and its cursor right behind that state. Both are of one
/// critical section.
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

/// How many changes are taken back for a past state: a millisecond's work, under a lock that only readers share.
const TAKEN_BACK_MAX: usize = 2_000;

impl CacheReader {
    /// Keeps as much history as that from now on.
    pub fn tune(&self, config: CacheConfig) {
        self.shared.tune(config);
    }

    pub fn gvr(&self) -> &Gvr {
        &self.shared.gvr
    }

    pub fn envelope(&self) -> &Envelope {
        &self.shared.envelope
    }

    /// A renderer that writes objects as they came.
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

    /// The number of this feed's history. What was learned of one history says nothing of the next.
    pub fn history(&self) -> u64 {
        self.shared.timeline.read().number
    }

    /// How far the feed's objects have come, to find out whether they have changed since.
    pub fn state_mark(&self) -> StateMark {
        self.shared.timeline.read().mark()
    }

    /// The oldest version that a watch may start from, at this moment.
    pub fn floor(&self) -> ResourceVersion {
        self.shared.timeline.read().ring.floor
    }

    /// The same for watches that do not go by the key.
    pub fn known(&self) -> ResourceVersion {
        self.shared.timeline.read().ring.known()
    }

    /// Whether a watch with this view may start behind `rv`, at this moment.
    pub fn reaches(&self, rv: ResourceVersion, view: &View) -> bool {
        rv >= self.shared.timeline.read().ring.floor_of(view)
    }

    /// The version of the newest event or bookmark, which may not be whole.
    pub fn newest(&self) -> ResourceVersion {
        self.shared.timeline.read().progress
    }

    /// Whether no more events of the newest version will come, as far as is known.
    pub fn is_whole(&self) -> bool {
        self.shared.timeline.read().is_whole()
    }

    /// Whether more events of `rv` may come. Whoever goes on from there would miss them.
    pub fn is_open(&self, rv: ResourceVersion) -> bool {
        self.shared.timeline.read().is_open(rv)
    }

    /// Says when `rv` will be whole, and has all readers woken then. They may be woken before as well.
    pub fn waits_for_whole(&self, rv: ResourceVersion) -> Settling {
        self.shared.wholeness.wake_lanes();
        let timeline = self.shared.timeline.read();
        match timeline.open.as_ref().filter(|open| open.rv() == rv) {
            None => Settling::Already,
            Some(open) if open.settles_after().is_some() => {
                self.shared.wholeness.tell();
                Settling::Soon
            }
            Some(_) => Settling::WhenToldSo,
        }
    }

    /// Follows the feed's progress.
    pub fn follow_progress(&self) -> ProgressFollower {
        ProgressFollower::new(&self.shared)
    }

    /// Completes when everything up to `rv` has been applied. It may never complete.
    pub async fn reached(&self, rv: ResourceVersion) {
        self.follow_progress().reach(rv).await;
    }

    /// Completes when everything that has come by now is whole. From then on nobody is shown the state before it.
    pub async fn closed(&self) {
        let newest = self.shared.timeline.read().open.as_ref().map(Transaction::rv);
        if let Some(newest) = newest {
            self.reached(newest).await;
        }
    }

    /// Waits like [`closed`](Self::closed), but never for long. It is for callers that may be given an older state as
    /// well.
    pub async fn settled(&self) {
        let _ = timeout(Transaction::SETTLING_MAX, self.closed()).await;
    }

    /// Waits like [`settled`](Self::settled), unless the newest event has only just come. Says whether everything that
    /// has come is whole.
    pub async fn settled_if_silent(&self) -> bool {
        let is_silent = |open: &Transaction| open.has_been_silent(Instant::now());
        let is_silent = self.shared.timeline.read().open.as_ref().is_some_and(is_silent);
        if is_silent {
            self.settled().await;
        }
        self.is_whole()
    }

    /// The feed's state as soon as the first list is complete, or at the deadline.
    pub async fn synced(&self, deadline: Instant) -> FeedState {
        let mut state = self.shared.state.subscribe();
        let settled = timeout_at(deadline, state.wait_for(|state| *state != FeedState::Syncing)).await;
        match settled {
            Ok(Ok(settled)) => *settled,
            _ => FeedState::Syncing,
        }
    }

    /// Completes when the feed is over, so that nobody waits for it any longer.
    pub async fn over(&self) {
        let mut state = self.shared.state.subscribe();
        if state.wait_for(|state| matches!(state, FeedState::Ended(_))).await.is_err() {
            // The sender lives as long as this reader, so nobody can be waiting.
            std::future::pending::<()>().await;
        }
    }

    /// The state as it is. The caller knows that the feed goes on: nothing is left of one that is over.
    pub fn snapshot(&self) -> Snapshot {
        self.shared.timeline.read().snapshot()
    }

    /// The state to serve, at the latest version that it is known to have; `None` if the feed has ended.
    pub fn current(&self) -> Option<Snapshot> {
        let timeline = self.shared.timeline.read();
        (!timeline.is_over).then(|| timeline.shown())
    }

    /// The state at the version that upstream's stream has reached; `None` if the feed has ended.
    pub fn told(&self) -> Option<Snapshot> {
        let timeline = self.shared.timeline.read();
        (!timeline.is_over).then(|| timeline.snapshot())
    }

    /// The version of [`current`](Self::current).
    pub fn shown_at(&self) -> ResourceVersion {
        self.shared.timeline.read().shown_at()
    }

    /// Records that upstream had the state of `mark` at version `at`; readers get the state at that version from now
    /// on. Returns false if the feed has changed since `mark`, or if more events of its newest version may follow.
    pub fn confirm(&self, mark: StateMark, at: ResourceVersion) -> bool {
        let is_present = self.shared.timeline.write().confirm(mark, at);
        if is_present {
            // Wakes readers that wait for that version.
            self.shared.publish(|_| {});
        }
        is_present
    }

    /// Forgets the confirmed version, because upstream's storage may have gone back.
    pub fn unconfirm(&self) {
        self.shared.timeline.write().unconfirm();
    }

    /// The newest objects, for responses that carry no version of the state; `None` if the feed has ended.
    pub fn newest_objects(&self) -> Option<Snapshot> {
        let timeline = self.shared.timeline.read();
        let newest = || if timeline.confirmed_at().is_some() { timeline.shown() } else { timeline.applied() };
        (!timeline.is_over).then(newest)
    }

    /// The state with everything that has come, for a caller that is told no version; `None` if the feed is over.
    pub fn applied(&self) -> Option<Snapshot> {
        let timeline = self.shared.timeline.read();
        (!timeline.is_over).then(|| timeline.applied())
    }

    /// Starts to gather the feed's next state.
    pub fn stage(&self) -> Staging {
        Staging::new(self.shared.clone())
    }

    /// The account for objects that are read for this feed.
    pub fn account(&self) -> &Arc<Account> {
        &self.shared.share.accounts.objects
    }

    /// Completes when the feed must end because it has outgrown the memory.
    pub async fn outgrown(&self) {
        self.shared.share.outgrown.cancelled().await;
    }

    /// What the feed held when it did not fit into the memory.
    pub fn weighed(&self) -> usize {
        self.shared.share.weighed()
    }

    /// A snapshot of exactly `rv`: the current state if it has that version, or one kept for a paging client.
    pub fn snapshot_at(&self, rv: ResourceVersion) -> Option<Snapshot> {
        let current = self.shared.timeline.read().snapshot_at(rv);
        current.or_else(|| self.held_at(rv))
    }

    /// A snapshot of exactly `rv`, put together of the current state and what has changed since, if that is held and
    /// not much. Its bodies are of the server that wrote them then.
    pub fn past_at(&self, rv: ResourceVersion) -> Option<Snapshot> {
        self.shared.timeline.read().past_at(rv, TAKEN_BACK_MAX)
    }

    /// The snapshot of `rv` that is kept for a paging client. The current state is not used even if it has that
    /// version: where nothing changes, a token would be good for ever.
    pub fn held_at(&self, rv: ResourceVersion) -> Option<Snapshot> {
        self.shared.paging.lock().find(rv, Instant::now(), &self.shared.config.get())
    }

    /// Keeps `snapshot` for the next pages of the client that reads it, while the feed goes on.
    pub fn hold(&self, snapshot: &Snapshot) {
        let mut paging = self.shared.paging.lock();
        // Checked under the lock: a feed that ends drops snapshots after it has set its state.
        if matches!(self.state(), FeedState::Ended(_)) {
            return;
        }
        paging.keep(snapshot.clone(), Instant::now(), &self.shared.config.get());
    }

    /// Opens a watch. Its position, and its snapshot if it starts with one, belong to one instant of the feed.
    pub fn open(&self, start: Start, view: View) -> Result<OpenedWatch, TooOld> {
        // A selector may be long, so it is read before the lock is taken.
        let key = LaneKey::of(&view);
        let mut timeline = self.shared.timeline.write();
        match start {
            Start::After(rv) => {
                let floor = timeline.ring.floor_of(&view);
                if rv < floor {
                    return Err(TooOld { requested: rv, floor });
                }
                let amid = timeline.open.as_ref().filter(|open| open.rv() == rv);
                let skip = amid.map_or(rv, Transaction::skipped_by_who_has_it);
                let skip = if mutant(8) { ResourceVersion::default() } else { skip };
                Ok(OpenedWatch { snapshot: None, cursor: self.cursor(&mut timeline, rv, skip, view, &key) })
            }
            Start::Current if timeline.confirmed_at().is_some() => {
                // Later events below that version cancel each other out, so the watch skips them.
                let snapshot = timeline.shown();
                let cursor = self.cursor(&mut timeline, snapshot.rv, snapshot.rv, view, &key);
                Ok(OpenedWatch { snapshot: Some(snapshot), cursor })
            }
            Start::Current | Start::Told => {
                // A feed that is over has no state: the watch ends before it has told anything.
                let snapshot = (!timeline.is_over).then(|| timeline.snapshot());
                Ok(OpenedWatch { snapshot, cursor: self.cursor_at_end(&mut timeline, view, &key) })
            }
        }
    }

    /// Opens a watch behind everything there is, without a state.
    pub fn open_at_end(&self, view: View) -> OpenedWatch {
        let key = LaneKey::of(&view);
        OpenedWatch { snapshot: None, cursor: self.cursor_at_end(&mut self.shared.timeline.write(), view, &key) }
    }

    /// A cursor that skips no version. The state has nothing of what is behind the end, not even a deletion at the
    /// state's own version: several events share a version, and the others may be on their way (R-VERSION-2).
    fn cursor_at_end(&self, timeline: &mut Timeline, view: View, key: &LaneKey) -> Cursor {
        let whole = timeline.whole();
        self.cursor(timeline, whole, ResourceVersion::default(), view, key)
    }

    fn cursor(
        &self,
        timeline: &mut Timeline,
        after: ResourceVersion,
        skip: ResourceVersion,
        view: View,
        key: &LaneKey,
    ) -> Cursor {
        let (next, next_seq) = (timeline.ring.seq_after(after), timeline.ring.next_seq);
        let lane = timeline.ring.lanes.open(key, next_seq);
        if timeline.is_over {
            lane.close(&mut Wakes::default());
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

    /// An object's body in a representation. Derived JSON is kept for a while.
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
        Ok(if keeps { self.shared.kept.keep(object, body, renderer) } else { body })
    }

    /// Appends an object's body in a representation without keeping it. If it is refused, `out` is unchanged.
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

    /// Keeps a state of this feed for somebody who is being told it. `cut` ends that somebody.
    pub fn pin(&self, pins: &Pins, snapshot: &Snapshot, cut: Cut, terms: PinTerms) -> Pin {
        pins.pin(self.shared.clone(), snapshot, cut, terms)
    }

    /// How many pins there are on states of this feed.
    pub fn pinned(&self, pins: &Pins) -> usize {
        pins.of(Arc::as_ptr(&self.shared).cast())
    }

    /// The bytes that chunks of this feed were written as.
    pub fn chunks(&self) -> &ChunkCache {
        &self.shared.chunks
    }

    /// Drops everything that was derived.
    pub fn forget_derived(&self) {
        self.shared.kept.clear();
        self.shared.chunks.forget_derived();
    }

    /// Wakes every reader, to look again.
    pub fn nudge(&self) {
        let mut wakes = Wakes::default();
        self.shared.timeline.read().ring.lanes.nudge(&mut wakes);
        wakes.wake();
    }

    /// Whether somebody who follows all events has not come to the last one.
    pub fn is_somebody_behind(&self) -> bool {
        self.shared.timeline.read().ring.lanes.all.is_behind()
    }

    /// The events in the ring.
    #[cfg(test)]
    pub(crate) fn events(&self) -> Vec<Arc<Event>> {
        self.shared.timeline.read().ring.lanes.all.with_events(|events| events.iter().cloned().collect())
    }

    pub fn stats(&self) -> CacheStats {
        let Shared { kept, chunks, .. } = &*self.shared;
        let derived_bytes = self.shared.alternate_bytes() + kept.bytes() + chunks.bytes();
        let memory_bytes = self.shared.share.held();
        CacheStats { derived_bytes, memory_bytes, ..self.shared.timeline.read().stats() }
    }
}
