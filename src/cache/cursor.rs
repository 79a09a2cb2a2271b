use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tokio::time::Instant;

use super::lane::{EventLane, LaneReadResult};
use super::shared::{FeedProgress, SharedFeedCache};
use super::{CollectionView, FeedEvent, FeedSnapshot, LaneFollower};
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

/// The maximum number of events processed in one batch. It bounds the time between two checks of the client.
const BATCH_EVENTS_MAX: usize = 128;

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
        Self { shared, lane, view, renderer, slot, next, after, skip }
    }

    /// Returns this cursor with another renderer for its frames.
    #[must_use]
    pub fn rendered_by(mut self, renderer: ObjectRenderer) -> Self {
        self.renderer = renderer;
        self
    }

    /// Returns this cursor marked as a proxy's: proxies are woken before other readers.
    #[must_use]
    pub fn for_a_proxy(self) -> Self {
        self.lane.note_proxy(self.slot);
        self
    }

    /// Appends frames to `batch` until it contains about `room` bytes, and advances past them.
    ///
    /// If there is a frame, at least one is pulled, however small the room. If there is none, the next event of this
    /// reader's lane, upstream's next bookmark, or the end of the history wakes `waker`.
    pub fn pull(&mut self, room: usize, waker: Option<&Waker>, batch: &mut Vec<Bytes>) -> PullResult {
        let mut looks = usize::MAX;
        loop {
            match self.pull_sifted(None, (room, &mut looks), waker, batch, |_, _| EventFilterDecision::Send) {
                PullResult::Stopped(CursorStopReason::ScanBudgetSpent) => looks = usize::MAX,
                pull => return pull,
            }
        }
    }

    /// Pulls like [`pull`](Self::pull), up to a mark, with a bounded scan budget. `looks` is the budget for events that
    /// are not sent; the call subtracts its cost. If the view is [expensive](CollectionView::is_expensive), events that
    /// are sent count as well. `sift` decides about each event that the view sees.
    pub fn pull_sifted(
        &mut self,
        until: Option<&SnapshotWithPosition>,
        (room, looks): (usize, &mut usize),
        waker: Option<&Waker>,
        batch: &mut Vec<Bytes>,
        mut sift: impl FnMut(&FeedEvent, EventType) -> EventFilterDecision,
    ) -> PullResult {
        let before = batch.len();
        let mut bytes = 0;
        let mut events = Vec::new();
        let is_expensive = self.view.is_expensive();
        loop {
            // Progress is read before the lane, so everything published up to `progress` is already in the lane.
            let progress = self.shared.progress();
            events.clear();
            let read = self.read(waker, &mut events);
            match read {
                LaneReadResult::Expired => {
                    return PullResult::Expired { oldest: self.shared.timeline.read().ring.floor };
                }
                LaneReadResult::CaughtUp if until.is_some() => {
                    return PullResult::Stopped(CursorStopReason::MarkReached);
                }
                LaneReadResult::CaughtUp => return PullResult::CaughtUp { progress },
                LaneReadResult::Events { .. } | LaneReadResult::Behind => {}
            }
            let mut last = self.after;
            let mut applied = None;
            let mut stop = None;
            for event in &events {
                if until.is_some_and(|until| event.seq >= until.seq) {
                    stop = Some(CursorStopReason::MarkReached);
                    break;
                }
                let taken = match self.take(event, batch, &mut sift) {
                    Ok(Some(taken)) => taken,
                    Ok(None) => {
                        stop = Some(CursorStopReason::Undecided);
                        break;
                    }
                    Err(refused) => return PullResult::Refused(refused),
                };
                self.next = event.seq + 1;
                if taken > 0 {
                    last = event.rv;
                    applied.get_or_insert(event.at);
                }
                bytes += taken;
                if is_expensive || taken == 0 {
                    *looks = looks.saturating_sub(event.cost_for(&self.view));
                }
                if bytes >= room || (is_expensive && *looks == 0) {
                    break;
                }
            }
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
            if *looks == 0 && !is_at_end {
                return PullResult::Stopped(CursorStopReason::ScanBudgetSpent);
            }
        }
    }

    /// Returns whether the next event that this reader processes has version `rv`.
    pub fn is_next_at(&mut self, rv: ResourceVersion) -> bool {
        // The writer holds this lock while it adds the events of one version to the lanes, one by one. Once the lock is
        // free, all events of a version that this reader has seen are there.
        drop(self.shared.timeline.read());
        let mut events = Vec::new();
        self.read(None, &mut events);
        events.first().is_some_and(|event| event.rv == rv)
    }

    /// Reads the next events of the lane, or of the ring while the position is [`LaneReadResult::Behind`] the lane's
    /// beginning.
    fn read(&mut self, waker: Option<&Waker>, events: &mut Vec<Arc<FeedEvent>>) -> LaneReadResult {
        match self.lane.read(self.next, BATCH_EVENTS_MAX, (self.slot, waker), events) {
            LaneReadResult::Behind => {
                let timeline = self.shared.timeline.read();
                match timeline.ring.lanes.all.read_for(&self.lane, self.next, BATCH_EVENTS_MAX, events) {
                    Some(next) => self.next = next,
                    None => return LaneReadResult::Expired,
                }
                LaneReadResult::Behind
            }
            read => read,
        }
    }

    /// Returns the current state and the position after it. If the feed has ended, the position is never reached.
    pub fn mark(&self) -> SnapshotWithPosition {
        let timeline = self.shared.timeline.read();
        SnapshotWithPosition { snapshot: timeline.snapshot(), seq: timeline.ring.next_seq }
    }

    /// Returns this reader's position as a mark after `snapshot`, which must be the state that it was opened with.
    pub fn mark_here(&self, snapshot: FeedSnapshot) -> SnapshotWithPosition {
        SnapshotWithPosition { snapshot, seq: self.next }
    }

    /// Returns the position of the next event to process.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns an observer of the reader's lane.
    pub fn follower(&self) -> LaneFollower {
        LaneFollower::new(self.shared.clone(), self.lane.clone(), self.view.clone())
    }

    /// Returns whether this reader skips events of version `rv`, because it requested later ones.
    pub fn skips(&self, rv: ResourceVersion) -> bool {
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

    /// Adds an event's frame to the batch and returns its length; `None` if the reader must read the event again later.
    fn take(
        &self,
        event: &FeedEvent,
        batch: &mut Vec<Bytes>,
        sift: &mut impl FnMut(&FeedEvent, EventType) -> EventFilterDecision,
    ) -> Result<Option<usize>, TranscodeError> {
        if event.rv <= self.skip {
            return Ok(Some(0));
        }
        let Some(event_type) = event.seen_by(&self.view) else { return Ok(Some(0)) };
        let frame = match sift(event, event_type) {
            EventFilterDecision::Send => Some(event.frame_as(event_type, &self.renderer, &self.shared.made)?),
            EventFilterDecision::SendDeleted => event.frame_gone(&self.renderer)?,
            EventFilterDecision::Skip => None,
            EventFilterDecision::Undecided => return Ok(None),
        };
        let len = frame.as_ref().map_or(0, Bytes::len);
        batch.extend(frame);
        Ok(Some(len))
    }
}

impl Drop for FeedCursor {
    fn drop(&mut self) {
        if self.lane.remove_reader(self.slot) && !self.lane.key().is_all() {
            self.shared.timeline.write().ring.lanes.release(self.lane.key());
        }
    }
}
