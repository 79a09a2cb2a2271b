use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tokio::time::Instant;

use super::lane::{Lane, LaneRead};
use super::progress::Progress;
use super::shared::Shared;
use super::{Event, Follower, Snapshot, View};
use crate::wire::{Refused, Renderer};
use kubeapi::{EventType, ResourceVersion};

/// A reader's place in a feed: the next event it needs. It holds no events; a slow reader costs its position.
#[derive(Debug)]
pub struct Cursor {
    shared: Arc<Shared>,
    lane: Arc<Lane>,
    /// The view, which readers of the lane share if they want the same.
    view: Arc<View>,
    renderer: Renderer,
    slot: usize,
    next: u64,
    after: ResourceVersion,
    /// Events up to this version are skipped: the reader asked for what is later, perhaps for the future.
    skip: ResourceVersion,
}

/// How far a pull came.
#[derive(Debug, PartialEq, Eq)]
pub enum Pull {
    /// Frames were put into the batch.
    Frames {
        /// The version of the last frame. Later events may have been looked at; bookmarks tell of those.
        last: ResourceVersion,
        /// When the event of the first frame was applied.
        applied: Instant,
        /// How far the feed is, if these were all events. Then `waker` is woken as after [`Pull::CaughtUp`].
        caught_up: Option<Progress>,
    },
    /// Everything that matches and is not later than `progress` has been pulled.
    CaughtUp { progress: Progress },
    /// The position left the ring: the client must list again.
    Expired { oldest: ResourceVersion },
    /// The next event cannot be written in this reader's representation. Frames before it may be in the batch.
    Refused(Refused),
    /// The reader's own terms ended the pull, and no frame was put into the batch. [`Cursor::pull`] has no such terms.
    Stopped(Stop),
}

/// Why a reader stopped before the end of its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Every event before the mark has been looked at.
    AtMark,
    /// The next event is [`FilteredEvent::Undecided`].
    Undecided,
    /// There is more, and the looks are used up.
    LooksSpent,
}

/// What a reader who is not shown everything makes of an event that its view sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilteredEvent {
    /// The reader is told the event.
    Tell,
    /// The reader is not told the event.
    Skip,
    /// The reader is told that the object is gone, with the content from before the event.
    TellGone,
    /// Nobody knows yet. The reader comes back to this event later.
    Undecided,
}

/// The state of a feed and the place behind it, at one instant.
#[derive(Debug, Clone)]
pub struct Mark {
    pub snapshot: Snapshot,
    seq: u64,
}

/// How many events are looked at in one go. It bounds the time between two looks at the client.
const BATCH_EVENTS_MAX: usize = 128;

impl Cursor {
    pub(super) fn new(
        shared: Arc<Shared>,
        lane: Arc<Lane>,
        view: View,
        next: u64,
        after: ResourceVersion,
        skip: ResourceVersion,
    ) -> Self {
        let (slot, view) = lane.add_reader(view);
        let renderer = shared.verbatim.clone();
        Self { shared, lane, view, renderer, slot, next, after, skip }
    }

    /// The same place, read in another representation.
    #[must_use]
    pub fn rendered_by(mut self, renderer: Renderer) -> Self {
        self.renderer = renderer;
        self
    }

    /// The same place, of a reader that is a proxy: it is woken before those that are none.
    #[must_use]
    pub fn for_a_proxy(self) -> Self {
        self.lane.note_proxy(self.slot);
        self
    }

    /// Appends frames to `batch` until about `room` bytes are in it, and moves past them.
    ///
    /// At least one frame is pulled if there is one, however small the room. When there is none, `waker` is woken by
    /// the next event of this reader's lane, by upstream's next bookmark, and by the end of the history.
    pub fn pull(&mut self, room: usize, waker: Option<&Waker>, batch: &mut Vec<Bytes>) -> Pull {
        let mut looks = usize::MAX;
        loop {
            match self.step(None, (room, &mut looks), waker, batch, |_, _| FilteredEvent::Tell) {
                Pull::Stopped(Stop::LooksSpent) => looks = usize::MAX,
                pull => return pull,
            }
        }
    }

    /// Pulls like [`pull`](Self::pull), for a reader who may look at so much in one go. `looks` is what may be spent on
    /// events that are not told, and then what is left of it. With a [dear](View::is_dear) view, events that are told
    /// count as well.
    pub fn pull_some(
        &mut self,
        (room, looks): (usize, &mut usize),
        waker: Option<&Waker>,
        batch: &mut Vec<Bytes>,
    ) -> Pull {
        self.step(None, (room, looks), waker, batch, |_, _| FilteredEvent::Tell)
    }

    /// Pulls like [`pull_some`](Self::pull_some), up to a mark, for a reader who decides about each event that its view
    /// sees.
    pub fn pull_sifted(
        &mut self,
        until: Option<&Mark>,
        (room, looks): (usize, &mut usize),
        waker: Option<&Waker>,
        batch: &mut Vec<Bytes>,
        sift: impl FnMut(&Event, EventType) -> FilteredEvent,
    ) -> Pull {
        self.step(until.map(|mark| mark.seq), (room, looks), waker, batch, sift)
    }

    fn step(
        &mut self,
        until: Option<u64>,
        (room, looks): (usize, &mut usize),
        waker: Option<&Waker>,
        batch: &mut Vec<Bytes>,
        mut sift: impl FnMut(&Event, EventType) -> FilteredEvent,
    ) -> Pull {
        let before = batch.len();
        let mut bytes = 0;
        let mut events = Vec::new();
        let is_dear = self.view.is_dear();
        loop {
            // Progress is read before the lane: whatever is published after this is also in the lane after this.
            let progress = self.shared.progress();
            events.clear();
            let read = self.read(waker, &mut events);
            match read {
                LaneRead::Expired => return Pull::Expired { oldest: self.shared.timeline.read().ring.floor },
                LaneRead::CaughtUp if until.is_some() => return Pull::Stopped(Stop::AtMark),
                LaneRead::CaughtUp => return Pull::CaughtUp { progress },
                LaneRead::Events { .. } | LaneRead::Behind => {}
            }
            let mut last = self.after;
            let mut applied = None;
            let mut stop = None;
            for event in &events {
                if until.is_some_and(|until| event.seq >= until) {
                    stop = Some(Stop::AtMark);
                    break;
                }
                let taken = match self.take(event, batch, &mut sift) {
                    Ok(Some(taken)) => taken,
                    Ok(None) => {
                        stop = Some(Stop::Undecided);
                        break;
                    }
                    Err(refused) => return Pull::Refused(refused),
                };
                self.next = event.seq + 1;
                if taken > 0 {
                    last = event.rv;
                    applied.get_or_insert(event.at);
                }
                bytes += taken;
                if is_dear || taken == 0 {
                    *looks = looks.saturating_sub(event.cost_for(&self.view));
                }
                if bytes >= room || (is_dear && *looks == 0) {
                    break;
                }
            }
            let is_at_end = read == (LaneRead::Events { caught_up: true })
                && events.last().is_some_and(|event| event.seq < self.next);
            if let (Some(applied), true) = (applied, batch.len() > before) {
                // Progress is read after the lane: a parked reader is woken for what is published from here on.
                let caught_up = is_at_end.then(|| self.shared.progress());
                return Pull::Frames { last, applied, caught_up };
            }
            if let Some(stop) = stop {
                return Pull::Stopped(stop);
            }
            // A reader that came to the end is told so, and is woken.
            if *looks == 0 && !is_at_end {
                return Pull::Stopped(Stop::LooksSpent);
            }
        }
    }

    /// Whether the next event that this reader looks at is of version `rv`.
    pub fn is_next_at(&mut self, rv: ResourceVersion) -> bool {
        let mut events = Vec::new();
        self.read(None, &mut events);
        events.first().is_some_and(|event| event.rv == rv)
    }

    /// Reads the next events of the lane, or of the ring as long as the position is [`LaneRead::Behind`] the lane's
    /// beginning.
    fn read(&mut self, waker: Option<&Waker>, events: &mut Vec<Arc<Event>>) -> LaneRead {
        match self.lane.read(self.next, BATCH_EVENTS_MAX, (self.slot, waker), events) {
            LaneRead::Behind => {
                let timeline = self.shared.timeline.read();
                match timeline.ring.lanes.all.read_for(&self.lane, self.next, BATCH_EVENTS_MAX, events) {
                    Some(next) => self.next = next,
                    None => return LaneRead::Expired,
                }
                LaneRead::Behind
            }
            read => read,
        }
    }

    /// The state as of now, and the place behind it. In a feed that is over that place is never reached.
    pub fn mark(&self) -> Mark {
        let timeline = self.shared.timeline.read();
        Mark { snapshot: timeline.applied(), seq: timeline.ring.next_seq }
    }

    /// This reader's place as a mark behind `snapshot`, which is the state that it was opened with.
    pub fn mark_here(&self, snapshot: Snapshot) -> Mark {
        Mark { snapshot, seq: self.next }
    }

    /// The position of the next event that it looks at.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Its lane, for an onlooker.
    pub fn follower(&self) -> Follower {
        Follower::new(self.shared.clone(), self.lane.clone(), self.view.clone())
    }

    /// Whether this reader is told nothing of version `rv`, because it asked for what is later.
    pub fn skips(&self, rv: ResourceVersion) -> bool {
        rv <= self.skip
    }

    /// The version behind which this reader started.
    pub fn start(&self) -> ResourceVersion {
        self.after
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    pub fn renderer(&self) -> &Renderer {
        &self.renderer
    }

    /// Puts the frame of an event into the batch and returns its length; `None` if the reader is to look at it again
    /// later.
    fn take(
        &self,
        event: &Event,
        batch: &mut Vec<Bytes>,
        sift: &mut impl FnMut(&Event, EventType) -> FilteredEvent,
    ) -> Result<Option<usize>, Refused> {
        if event.rv <= self.skip {
            return Ok(Some(0));
        }
        let Some(event_type) = event.seen_by(&self.view) else { return Ok(Some(0)) };
        let frame = match sift(event, event_type) {
            FilteredEvent::Tell => Some(event.frame_as(event_type, &self.renderer, &self.shared.made)?),
            FilteredEvent::TellGone => event.frame_gone(&self.renderer)?,
            FilteredEvent::Skip => None,
            FilteredEvent::Undecided => return Ok(None),
        };
        let len = frame.as_ref().map_or(0, Bytes::len);
        batch.extend(frame);
        Ok(Some(len))
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if let Some(open) = self.shared.timeline.read().open.as_ref().filter(|open| open.rv() > self.skip) {
            open.note_leaving(self.next);
        }
        if self.lane.remove_reader(self.slot) && !self.lane.key().is_all() {
            self.shared.timeline.write().ring.lanes.release(self.lane.key());
        }
    }
}
