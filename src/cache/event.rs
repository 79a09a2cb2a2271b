use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::time::Instant;

use super::View;
use crate::kube::{EventType, ResourceVersion};
use crate::wire::{Object, Refused, Renderer, Representation};

/// One change of one object, as upstream reported it, with what selectors need to know of the state before.
#[derive(Debug)]
pub struct Event {
    /// Our own dense index: one more than the event before it in this feed.
    pub seq: u64,
    /// Upstream's version of the change. Several events may share one: a lease revocation deletes many at once
    /// (semantics.md §3.0).
    pub rv: ResourceVersion,
    /// What an unfiltered watch is told: `Added`, `Modified` or `Deleted`.
    pub event_type: EventType,
    /// The object after the change; for `Deleted` its last content at the deletion's version.
    pub object: Arc<Object>,
    /// The object before the change, if it existed.
    pub previous: Option<Arc<Object>>,
    pub(super) at: Instant,
    /// The frame for `event_type`. `object.body()` is a slice of the same allocation, so the bytes are held once.
    frame: Bytes,
    alternates: OnceLock<Box<Alternates>>,
}

/// Frames besides the one that came: for watches whose selector the object entered or left, and in representations
/// that are derived. Made at first need, once for everybody, and gone with the event.
#[derive(Debug)]
struct Alternates {
    /// Each with the release that it was written for.
    frames: [OnceLock<(u32, Bytes)>; Representation::PLACES * EVENT_TYPES],
    /// Bytes of all alternates of the feed: the ring makes room for them.
    held: Arc<AtomicUsize>,
}

/// Added, Modified, Deleted.
const EVENT_TYPES: usize = 3;

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

    /// What a watch with this view is told of the change, if anything.
    pub fn seen_by(&self, view: &View) -> Option<EventType> {
        if view.is_everything() {
            return Some(self.event_type);
        }
        // A deletion of an object that we did not know: its last content is the best witness of what was before.
        let before = match (&self.previous, self.event_type) {
            (Some(previous), _) => view.matches(previous),
            (None, EventType::Deleted) => view.matches(&self.object),
            (None, _) => false,
        };
        let now = self.event_type != EventType::Deleted && view.matches(&self.object);
        seen_as(before, now)
    }

    /// The frame of this event as a watch that sees it as `event_type` gets it. `held` counts what is kept for others.
    pub(super) fn frame_as(
        &self,
        event_type: EventType,
        renderer: &Renderer,
        held: &Arc<AtomicUsize>,
    ) -> Result<Bytes, Refused> {
        if event_type == self.event_type && renderer.is_verbatim() {
            return Ok(self.frame.clone());
        }
        let alternates = self.alternates.get_or_init(|| Box::new(Alternates::new(held)));
        alternates.get_or_make(renderer, event_type, || match (event_type, &self.previous) {
            // The object left the selector: its previous content, at this change's version (semantics.md §4.2).
            (EventType::Deleted, Some(previous)) if self.event_type != EventType::Deleted => {
                renderer.frame(event_type, &previous.restamped(self.rv))
            }
            _ => renderer.frame(event_type, self.object.body()),
        })
    }

    /// What a reader gets who may no longer see the object, and who knows it as it was before: nothing newer of it than
    /// the version at which it is gone.
    pub(super) fn frame_gone(&self, renderer: &Renderer) -> Result<Option<Bytes>, Refused> {
        let frame = |previous: &Arc<Object>| renderer.frame(EventType::Deleted, &previous.restamped(self.rv));
        self.previous.as_ref().map(frame).transpose()
    }

    /// Bytes of the frames that were made of this event.
    pub(super) fn alternate_bytes(&self) -> usize {
        self.alternates.get().map_or(0, |alternates| alternates.bytes())
    }

    /// Bytes charged to the ring for this event: its frame, what was read of its object, and its previous object, which
    /// the store has let go.
    pub(super) fn charge(&self) -> usize {
        let previous = self.previous.as_ref().map_or(0, |previous| previous.size());
        self.frame.len() + self.object.size() - self.object.body().len() + previous + size_of::<Self>()
    }
}

impl Alternates {
    fn new(held: &Arc<AtomicUsize>) -> Self {
        Self { frames: std::array::from_fn(|_| OnceLock::new()), held: held.clone() }
    }

    /// A lost race costs one frame made twice; nobody waits under a lock.
    fn get_or_make(
        &self,
        renderer: &Renderer,
        event_type: EventType,
        make: impl FnOnce() -> Result<Bytes, Refused>,
    ) -> Result<Bytes, Refused> {
        let place = match event_type {
            EventType::Added => 0,
            EventType::Modified => 1,
            _ => 2,
        };
        let cell = &self.frames[renderer.representation().place() * EVENT_TYPES + place];
        if let Some((_, frame)) = cell.get().filter(|(release, _)| *release == renderer.release()) {
            return Ok(frame.clone());
        }
        let made = make()?;
        let len = made.len();
        if cell.set((renderer.release(), made.clone())).is_ok() {
            self.held.fetch_add(len, Ordering::Relaxed);
        }
        Ok(made)
    }

    fn bytes(&self) -> usize {
        self.frames.iter().filter_map(OnceLock::get).map(|(_, frame)| frame.len()).sum()
    }
}

impl Drop for Alternates {
    fn drop(&mut self) {
        self.held.fetch_sub(self.bytes(), Ordering::Relaxed);
    }
}

/// Storage change and selector to event type (semantics.md §4.2).
pub fn seen_as(matched_before: bool, matches_now: bool) -> Option<EventType> {
    match (matched_before, matches_now) {
        (false, true) => Some(EventType::Added),
        (true, true) => Some(EventType::Modified),
        (true, false) => Some(EventType::Deleted),
        (false, false) => None,
    }
}
