use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tokio::time::Instant;

use super::lane::{EventLane, LaneReadResult, PendingEventCount};
use super::shared::{FeedProgress, SharedFeedCache};
use super::{CollectionView, FeedEvent, FeedSnapshot, metrics};
use crate::wire::{ObjectRenderer, TranscodeError};
use kubeapi::{EventType, ResourceVersion};

/// A reader's position in a feed: the next event that it needs. A cursor holds no events; a slow reader loses its
/// position.
#[derive(Debug)]
pub struct FeedCursor {
    shared: Arc<SharedFeedCache>,
    lane: Arc<EventLane>,
    /// The view of the reader, shared by equal readers of the lane.
    view: Arc<CollectionView>,
    renderer: ObjectRenderer,
    slot: usize,
    next: u64,
    after: ResourceVersion,
    /// The version up to which events are skipped, because the reader requested later ones. It may be in the future.
    skip: ResourceVersion,
    /// The version after which events are sent as differences to the previous objects; the highest one, except for
    /// downstream proxies.
    deltas_after: ResourceVersion,
}

/// The result of pulling events from a cursor.
#[derive(Debug, PartialEq, Eq)]
pub enum PullResult {
    /// Frames were added to the reader's batch.
    Frames {
        /// The version of the last frame. The reader may have passed later events that its view does not match;
        /// bookmarks report those.
        last: ResourceVersion,
        /// The time at which the event of the first frame was applied.
        applied: Instant,
        /// The feed's progress, if the frames include all events. The waker is then woken as after
        /// [`PullResult::CaughtUp`].
        caught_up: Option<FeedProgress>,
    },
    /// Every matching event up to `progress` has been pulled.
    CaughtUp { progress: FeedProgress },
    /// The reader's position has left the ring: the client must relist.
    Expired { oldest: ResourceVersion },
    /// The next event cannot be written in this reader's representation. The batch may contain frames before it.
    Refused(TranscodeError),
    /// The reader's own conditions ended the pull, and no frame was added to the batch. [`FeedCursor::pull`] has no
    /// such conditions.
    Stopped(CursorStopReason),
}

/// The reason that a reader stopped before the end of its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CursorStopReason {
    /// Every event before the mark has been processed.
    MarkReached,
    /// The next event needs a decision of the reader: [`EventFilterDecision::Undecided`].
    Undecided,
    /// More events follow, but the scan budget is used up.
    ScanBudgetSpent,
}

/// The decision of a filtered reader about an event that its view matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventFilterDecision {
    /// The reader sends the event.
    Send,
    /// The reader skips the event.
    Skip,
    /// A DELETED event is sent, with the object's content from before the event.
    SendDeleted,
    /// The decision is not known yet. The reader returns to this event later.
    Undecided,
}

/// The state of a feed and the position after it, at one instant.
#[derive(Debug, Clone)]
pub struct SnapshotWithPosition {
    pub snapshot: FeedSnapshot,
    seq: u64,
}

/// A read-only observer of a reader's lane. It keeps no event alive and never delays the reader.
#[derive(Debug, Clone)]
pub struct LaneObserver {
    shared: Arc<SharedFeedCache>,
    lane: Arc<EventLane>,
    view: Arc<CollectionView>,
}

/// The maximum number of events processed in one batch. It bounds the time between two checks of the client.
const BATCH_EVENTS_MAX: usize = 128;

/// A version that no event follows.
const NO_DELTAS: ResourceVersion = ResourceVersion(u64::MAX);

impl FeedCursor {
    pub(super) fn new(
        shared: Arc<SharedFeedCache>,
        lane: Arc<EventLane>,
        view: CollectionView,
        next: u64,
        after: ResourceVersion,
        skip: ResourceVersion,
    ) -> Self {
        let (slot, view) = lane.add_reader(view);
        let renderer = shared.verbatim.clone();
        Self { shared, lane, view, renderer, slot, next, after, skip, deltas_after: NO_DELTAS }
    }

    /// Returns this cursor with another renderer for its frames.
    #[must_use]
    pub fn rendered_by(mut self, renderer: ObjectRenderer) -> Self {
        self.renderer = renderer;
        self
    }

    /// Returns this cursor marked as a proxy's: proxies are woken before other readers.
    #[must_use]
    pub fn mark_as_proxy(self) -> Self {
        self.lane.note_proxy(self.slot);
        self
    }

    /// Returns this cursor for a downstream proxy that has all objects of version `after`. Later events are
    /// differences.
    #[must_use]
    pub fn with_deltas_after(mut self, after: Option<ResourceVersion>) -> Self {
        self.deltas_after = after.unwrap_or(NO_DELTAS);
        self
    }

    /// Appends frames to `batch` until it contains about `room` bytes, and advances past them.
    ///
    /// If there is a frame, at least one is pulled, however small the room. If there is none, the next event of this
    /// reader's lane, upstream's next bookmark, or the end of the history wakes `waker`.
    pub fn pull(&mut self, room: usize, waker: Option<&Waker>, batch: &mut Vec<Bytes>) -> PullResult {
        loop {
            let mut scan_budget = usize::MAX;
            match self.pull_filtered(None, (room, &mut scan_budget), waker, batch, |_, _| EventFilterDecision::Send) {
                PullResult::Stopped(CursorStopReason::ScanBudgetSpent) => {}
                pull => return pull,
            }
        }
    }

    /// Pulls like [`pull`](Self::pull), up to a mark, with a bounded scan budget. `scan_budget` is the budget for
    /// events that are not sent and for differences that are made; the call subtracts its cost. If the view is
    /// [expensive](CollectionView::is_expensive), events that are sent count as well. `filter` decides about each event
    /// that the view matches.
    pub fn pull_filtered(
        &mut self,
        until: Option<&SnapshotWithPosition>,
        (room, scan_budget): (usize, &mut usize),
        waker: Option<&Waker>,
        batch: &mut Vec<Bytes>,
        mut filter: impl FnMut(&FeedEvent, EventType) -> EventFilterDecision,
    ) -> PullResult {
        let before = batch.len();
        let mut bytes = 0;
        let mut events = Vec::new();
        let is_expensive = self.view.is_expensive();
        let is_charged = is_expensive || self.deltas_after < NO_DELTAS;
        loop {
            // Progress is read before the lane, so everything published up to `progress` is already in the lane.
            let progress = self.shared.progress();
            events.clear();
            let read = self.lane.read(self.next, BATCH_EVENTS_MAX, (self.slot, waker), &mut events);
            match read {
                LaneReadResult::Events { .. } => {}
                LaneReadResult::Behind if self.read_ring(&mut events) => {}
                LaneReadResult::Behind | LaneReadResult::Expired => {
                    return PullResult::Expired { oldest: self.shared.timeline.read().ring.floor };
                }
                LaneReadResult::CaughtUp if until.is_some() => {
                    return PullResult::Stopped(CursorStopReason::MarkReached);
                }
                // A bookmark was announced between the two reads, when this reader was not parked yet.
                LaneReadResult::CaughtUp if self.shared.progress().bookmarks != progress.bookmarks => continue,
                LaneReadResult::CaughtUp => return PullResult::CaughtUp { progress },
            }
            let mut last = self.after;
            let mut applied = None;
            let (mut stop, mut unchanged) = (None, 0);
            for event in &events {
                if until.is_some_and(|until| event.seq >= until.seq) {
                    stop = Some(CursorStopReason::MarkReached);
                    break;
                }
                let event_type = if self.skips_version(event.rv) { None } else { event.event_type_for(&self.view) };
                let frame = match event_type.map(|event_type| (filter(event, event_type), event_type)) {
                    Some((EventFilterDecision::Send, event_type)) => {
                        let (renderer, made) = (&self.renderer, &self.shared.made);
                        let frame = if event.rv > self.deltas_after {
                            event.delta_as(event_type, renderer, made, scan_budget)
                        } else {
                            event.frame_as(event_type, renderer, made)
                        };
                        unchanged += u64::from(matches!(frame, Ok(None)));
                        frame
                    }
                    Some((EventFilterDecision::SendDeleted, _)) => event.deleted_frame(&self.renderer),
                    Some((EventFilterDecision::Skip, _)) | None => Ok(None),
                    Some((EventFilterDecision::Undecided, _)) => {
                        stop = Some(CursorStopReason::Undecided);
                        break;
                    }
                };
                let frame = match frame {
                    Ok(frame) => frame,
                    Err(refused) => return PullResult::Refused(refused),
                };
                self.next = event.seq + 1;
                if is_expensive || frame.is_none() {
                    *scan_budget = scan_budget.saturating_sub(event.cost_for(&self.view));
                }
                if let Some(frame) = frame {
                    last = event.rv;
                    applied.get_or_insert(event.at);
                    bytes += frame.len();
                    batch.push(frame);
                }
                if bytes >= room || (is_charged && *scan_budget == 0) {
                    break;
                }
            }
            metrics::unchanged(unchanged);
            let is_at_end = read == (LaneReadResult::Events { caught_up: true })
                && events.last().is_some_and(|event| event.seq < self.next);
            if let (Some(applied), true) = (applied, batch.len() > before) {
                // Progress is read after the lane: a parked reader is woken by everything published from here on.
                let caught_up = is_at_end.then(|| self.shared.progress());
                return PullResult::Frames { last, applied, caught_up };
            }
            if let Some(stop) = stop {
                return PullResult::Stopped(stop);
            }
            // A reader that has reached the end reports it, because its waker is registered.
            if *scan_budget == 0 && !is_at_end {
                return PullResult::Stopped(CursorStopReason::ScanBudgetSpent);
            }
        }
    }

    /// Returns whether the next event that this reader processes has version `rv`.
    pub fn next_is_at(&mut self, rv: ResourceVersion) -> bool {
        // The writer holds this lock while it adds the events of one version to the lanes, one by one. Once the lock is
        // free, the lanes have all events of a version that this reader has processed.
        drop(self.shared.timeline.read());
        let mut events = Vec::new();
        if self.lane.read(self.next, BATCH_EVENTS_MAX, (self.slot, None), &mut events) == LaneReadResult::Behind {
            self.read_ring(&mut events);
        }
        events.first().is_some_and(|event| event.rv == rv)
    }

    /// Reads the next events of the ring, while the position is [`LaneReadResult::Behind`] the lane's beginning.
    /// Returns false if it has expired.
    fn read_ring(&mut self, events: &mut Vec<Arc<FeedEvent>>) -> bool {
        let timeline = self.shared.timeline.read();
        let next = timeline.ring.all.read_for(&self.lane, self.next, BATCH_EVENTS_MAX, events);
        self.next = next.unwrap_or(self.next);
        next.is_some()
    }

    /// Returns the current state and the position after it. If the feed has ended, the position is never reached.
    pub fn capture(&self) -> SnapshotWithPosition {
        let timeline = self.shared.timeline.read();
        SnapshotWithPosition { snapshot: timeline.snapshot(), seq: timeline.ring.next_seq }
    }

    /// Returns this reader's position as a mark after `snapshot`, which must be the state that it was opened with.
    pub fn capture_at_position(&self, snapshot: FeedSnapshot) -> SnapshotWithPosition {
        SnapshotWithPosition { snapshot, seq: self.next }
    }

    /// Returns the position of the next event to process.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns an observer of the reader's lane.
    pub fn follower(&self) -> LaneObserver {
        LaneObserver { shared: self.shared.clone(), lane: self.lane.clone(), view: self.view.clone() }
    }

    /// Returns whether this reader skips events of version `rv`, because it requested later ones.
    pub fn skips_version(&self, rv: ResourceVersion) -> bool {
        rv <= self.skip
    }

    /// Returns the version after which this reader started.
    pub fn start(&self) -> ResourceVersion {
        self.after
    }

    pub fn view(&self) -> &CollectionView {
        &self.view
    }

    pub fn renderer(&self) -> &ObjectRenderer {
        &self.renderer
    }
}

impl Drop for FeedCursor {
    fn drop(&mut self) {
        if self.lane.remove_reader(self.slot) && !self.lane.key().is_all() {
            self.shared.timeline.write().ring.narrow.release(self.lane.key());
        }
    }
}

impl LaneObserver {
    /// Returns the view of the reader that is being followed.
    pub fn view(&self) -> &CollectionView {
        &self.view
    }

    /// Returns the number of events that the lane has from position `next` on.
    pub fn waiting(&self, next: u64) -> PendingEventCount {
        self.lane.waiting(next)
    }

    /// Returns the progress of the feed.
    pub fn progress(&self) -> FeedProgress {
        self.shared.progress()
    }

    /// Returns the resource as metrics name it.
    pub fn resource(&self) -> String {
        self.shared.gvr.to_string()
    }
}
