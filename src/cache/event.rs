use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::time::Instant;

use super::View;
use crate::wire::{Object, Refused, Renderer, Representation};
use base::{Account, mutant};
use kubeapi::{EventType, ResourceVersion};

/// One change of one object, as upstream reported it, with what selectors need to know of the state before.
#[derive(Debug)]
pub struct Event {
    /// Our own dense index: one more than the event before it in this feed.
    pub seq: u64,
    /// Upstream's version of the change. Several events may share one: a lease revocation deletes many at once
    /// (R-VERSION-2).
    pub rv: ResourceVersion,
    /// What an unfiltered watch is told: `Added`, `Modified` or `Deleted`.
    pub event_type: EventType,
    /// The object after the change; for `Deleted` its last content at the deletion's version.
    pub object: Arc<Object>,
    /// The object before the change, if it existed; `None` in a `Modified` if nobody knows, as in a feed's prehistory.
    pub previous: Option<Arc<Object>>,
    pub(super) at: Instant,
    /// The frame for `event_type`. `object.body()` is a slice of the same allocation, so the bytes are held once.
    frame: Bytes,
    alternates: Next,
}

/// A frame besides the one that came: for watches whose selector the object entered or left, or in a derived
/// representation. It is made at first need, once for everybody, and goes with the event.
///
/// Alternates are a list, for an event has one or two out of many possible ones. The list only grows, so a reader waits
/// for nobody.
#[derive(Debug)]
struct Alternate {
    representation: Representation,
    event_type: EventType,
    /// The release that it was written for.
    release: u32,
    frame: Bytes,
    /// Bytes of all alternates of the feed, for which the ring makes room.
    held: Arc<AtomicUsize>,
    next: Next,
}

type Next = OnceLock<Box<Alternate>>;

/// Accounts for the frames that were made of one feed's events and are kept with them.
#[derive(Debug)]
pub(super) struct Made {
    /// Bytes of these frames, for which the ring makes room.
    pub(super) bytes: Arc<AtomicUsize>,
    /// The account that is charged for as long as anybody sends them.
    pub(super) account: Arc<Account>,
}

impl Event {
    pub(super) fn new(
        seq: u64,
        event_type: EventType,
        object: Arc<Object>,
        previous: Option<Arc<Object>>,
        frame: Bytes,
        at: Instant,
    ) -> Self {
        let rv = object.rv;
        Self { seq, rv, event_type, object, previous, at, frame, alternates: OnceLock::new() }
    }

    /// The same event, now that it is known what was there before.
    pub(super) fn explained(&self, previous: Arc<Object>) -> Self {
        let Self { seq, event_type, object, frame, at, .. } = self;
        Self::new(*seq, *event_type, object.clone(), Some(previous), frame.clone(), *at)
    }

    /// What a watch with this view is told of the change, if anything.
    pub fn seen_by(&self, view: &View) -> Option<EventType> {
        if view.is_everything() {
            return Some(self.event_type);
        }
        let before = match (&self.previous, self.event_type) {
            (Some(previous), _) => view.matches(previous),
            (None, EventType::Added) => false,
            // What was there before is not known. Of a deletion the last content is the best witness; of a change, only
            // views that go by the key are shown it.
            (None, _) => view.matches(&self.object),
        };
        let now = self.event_type != EventType::Deleted && view.matches(&self.object);
        seen_as(before, now)
    }

    /// About what it costs to find out what a watch with this view sees of the event.
    pub(super) fn cost_for(&self, view: &View) -> usize {
        view.cost_of(&self.object) + self.previous.as_ref().map_or(0, |previous| view.cost_of(previous))
    }

    /// The frame of this event as a watch that sees it as `event_type` gets it. `made` counts what is kept for others.
    pub(super) fn frame_as(&self, event_type: EventType, renderer: &Renderer, made: &Made) -> Result<Bytes, Refused> {
        if event_type == self.event_type && renderer.is_verbatim() {
            return Ok(self.frame.clone());
        }
        let representation = renderer.representation();
        let known = self.alternates().find(|known| known.is(representation, event_type));
        if let Some(known) = known.filter(|known| known.release == renderer.release()) {
            return Ok(known.frame.clone());
        }
        // If two readers race, a frame is made twice. Nobody waits under a lock.
        let frame = match (event_type, &self.previous) {
            // The object left the selector: its previous content, at this change's version (R-EVENT-2).
            (EventType::Deleted, Some(previous)) if self.event_type != EventType::Deleted => {
                renderer.frame(event_type, &previous.restamped(self.rv))?
            }
            _ => renderer.frame(event_type, self.object.body())?,
        };
        // Frames of one release only are kept, so that they are bounded.
        if known.is_none() {
            let frame = made.account.keep(frame);
            self.keep(Alternate::new(representation, event_type, renderer.release(), frame.clone(), &made.bytes));
            return Ok(frame);
        }
        Ok(frame)
    }

    fn keep(&self, alternate: Alternate) {
        let (representation, event_type) = (alternate.representation, alternate.event_type);
        let mut alternate = Box::new(alternate);
        let mut next = &self.alternates;
        while let Err(mine) = next.set(alternate) {
            let Some(there) = next.get().filter(|there| !there.is(representation, event_type)) else { return };
            (alternate, next) = (mine, &there.next);
        }
    }

    fn alternates(&self) -> impl Iterator<Item = &Alternate> {
        std::iter::successors(self.alternates.get(), |alternate| alternate.next.get()).map(|alternate| &**alternate)
    }

    /// The frame for a reader that may no longer see the object and knows it as it was before. It shows nothing newer
    /// than the version at which the object is gone.
    pub(super) fn frame_gone(&self, renderer: &Renderer) -> Result<Option<Bytes>, Refused> {
        let frame = |previous: &Arc<Object>| renderer.frame(EventType::Deleted, &previous.restamped(self.rv));
        self.previous.as_ref().map(frame).transpose()
    }

    /// Bytes of the frames that were made of this event.
    pub(super) fn alternate_bytes(&self) -> usize {
        self.alternates().map(|alternate| alternate.frame.len()).sum()
    }

    /// Bytes of an event besides its object and its frame: itself, its count, and its places in the ring and in lanes.
    pub(crate) const OVERHEAD_BYTES: usize = size_of::<Self>() + 16 + 16 + 3 * size_of::<usize>() * 2;

    /// Bytes charged to the ring for this event: its frame, the fields that were read of its object, and its previous
    /// object, which the store has let go.
    pub(super) fn charge(&self) -> usize {
        let previous = self.previous.as_ref().map_or(0, |previous| previous.size());
        self.frame.len() + self.object.size() - self.object.body().len() + previous + size_of::<Self>()
    }
}

impl Alternate {
    fn new(
        representation: Representation,
        event_type: EventType,
        release: u32,
        frame: Bytes,
        held: &Arc<AtomicUsize>,
    ) -> Self {
        held.fetch_add(frame.len(), Ordering::Relaxed);
        Self { representation, event_type, release, frame, held: held.clone(), next: OnceLock::new() }
    }

    fn is(&self, representation: Representation, event_type: EventType) -> bool {
        self.representation == representation && self.event_type == event_type
    }
}

impl Drop for Alternate {
    fn drop(&mut self) {
        self.held.fetch_sub(self.frame.len(), Ordering::Relaxed);
    }
}

/// The event type that a watch sees, from whether its selector matched before and matches now (R-EVENT-2).
pub fn seen_as(matched_before: bool, matches_now: bool) -> Option<EventType> {
    match (matched_before, matches_now) {
        (false, true) => Some(EventType::Added),
        (true, true) => Some(EventType::Modified),
        (true, false) if mutant(17) => Some(EventType::Modified),
        (true, false) => Some(EventType::Deleted),
        (false, false) => None,
    }
}
