use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use tokio::time::Instant;

use super::View;
use crate::kube::{EventType, ResourceVersion};
use crate::wire::{Envelope, Object};

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
    /// Frames for watches whose selector the object entered or left: made at first need, at most once.
    entered: OnceLock<Bytes>,
    left: OnceLock<Bytes>,
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
        Self { seq, rv, event_type, object, previous, at, frame, entered: OnceLock::new(), left: OnceLock::new() }
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

    /// The frame of this event as a watch that sees it as `event_type` gets it: encoded at most once per type.
    pub fn frame_as(&self, event_type: EventType, envelope: &Envelope) -> Bytes {
        if event_type == self.event_type {
            return self.frame.clone();
        }
        match (event_type, &self.previous) {
            // The object left the selector: its previous content, at this change's version (semantics.md §4.2).
            (EventType::Deleted, Some(previous)) => {
                self.left.get_or_init(|| envelope.frame(event_type, &previous.restamped(self.rv))).clone()
            }
            _ => self.entered.get_or_init(|| envelope.frame(event_type, self.object.body())).clone(),
        }
    }

    /// Bytes charged to the ring for this event: its frame, what was read of its object, and its previous object, which
    /// the store has let go.
    pub(super) fn charge(&self) -> usize {
        let previous = self.previous.as_ref().map_or(0, |previous| previous.size());
        self.frame.len() + self.object.size() - self.object.body().len() + previous + size_of::<Self>()
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
