use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use tokio::time::Instant;

use super::lane::{Lane, Read};
use super::lanes::LaneKey;
use super::reader::{Progress, Shared};
use super::{Event, View};
use crate::kube::ResourceVersion;
use crate::wire::{Refused, Renderer};

/// A reader's place in a feed: the next event it needs. It holds no events; a slow reader costs its position.
#[derive(Debug)]
pub struct Cursor {
    shared: Arc<Shared>,
    lane: Arc<Lane>,
    key: LaneKey,
    view: View,
    renderer: Renderer,
    slot: usize,
    next: u64,
    after: ResourceVersion,
    /// Events up to this version are not for this reader: it asked for what is later, perhaps for the future.
    skip: ResourceVersion,
}

/// What [`Cursor::pull`] found.
#[derive(Debug, PartialEq, Eq)]
pub enum Pull {
    /// Frames were put into the batch.
    Frames {
        /// Version of the last of them. Later events may have been looked at; bookmarks tell of those.
        last: ResourceVersion,
        /// When the first of them was applied.
        applied: Instant,
    },
    /// Everything that matches and is not later than `progress` has been pulled.
    CaughtUp { progress: Progress },
    /// The position left the ring: the client must list again.
    Expired { oldest: ResourceVersion },
    /// The next event cannot be written in this reader's representation. Frames before it may be in the batch.
    Refused(Refused),
}

/// Events looked at in one go: bounds the time between two looks at the client.
const BATCH_EVENTS_MAX: usize = 128;

impl Cursor {
    pub(super) fn new(
        shared: Arc<Shared>,
        lane: Arc<Lane>,
        key: LaneKey,
        view: View,
        next: u64,
        after: ResourceVersion,
        skip: ResourceVersion,
    ) -> Self {
        let slot = lane.add_reader();
        let renderer = Renderer::verbatim(&shared.envelope);
        Self { shared, lane, key, view, renderer, slot, next, after, skip }
    }

    /// The same place, read in another representation.
    #[must_use]
    pub fn rendered_by(mut self, renderer: Renderer) -> Self {
        self.renderer = renderer;
        self
    }

    /// Appends frames to `batch` until about `room` bytes are in it, and moves past them.
    ///
    /// At least one frame is pulled if there is one, however small the room. When there is none, `waker` is woken by
    /// the next event of this reader's lane, by upstream's next bookmark, and by the end of the history.
    pub fn pull(&mut self, room: usize, waker: Option<&Waker>, batch: &mut Vec<Bytes>) -> Pull {
        let before = batch.len();
        let mut bytes = 0;
        let mut events = Vec::new();
        loop {
            // Read before the lane: whatever is published after this is also in the lane after this.
            let progress = *self.shared.progress.borrow();
            events.clear();
            match self.lane.read(self.next, BATCH_EVENTS_MAX, (self.slot, waker), &mut events) {
                Read::Lost => return Pull::Expired { oldest: self.shared.inner.read().floor },
                Read::CaughtUp => return Pull::CaughtUp { progress },
                Read::Some => {}
            }
            let mut last = self.after;
            let mut applied = None;
            for event in &events {
                let taken = match self.take(event, batch) {
                    Ok(taken) => taken,
                    Err(refused) => return Pull::Refused(refused),
                };
                self.next = event.seq + 1;
                if taken > 0 {
                    last = event.rv;
                    applied.get_or_insert(event.at);
                }
                bytes += taken;
                if bytes >= room {
                    break;
                }
            }
            if let (Some(applied), true) = (applied, batch.len() > before) {
                return Pull::Frames { last, applied };
            }
        }
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

    fn take(&self, event: &Event, batch: &mut Vec<Bytes>) -> Result<usize, Refused> {
        if event.rv <= self.skip {
            return Ok(0);
        }
        let Some(event_type) = event.seen_by(&self.view) else { return Ok(0) };
        let frame = event.frame_as(event_type, &self.renderer, &self.shared.alternate_bytes)?;
        let len = frame.len();
        batch.push(frame);
        Ok(len)
    }
}

impl Drop for Cursor {
    fn drop(&mut self) {
        if self.lane.remove_reader(self.slot) && self.key != LaneKey::All {
            self.shared.inner.write().lanes.release(&self.key);
        }
    }
}
