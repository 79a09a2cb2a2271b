//! Events from before a feed's first list are read later, for clients that resume from there. They are used only if it
//! is proven that they lead to the list.
//!
//! A list tells the state at its version and nothing of how it came about. What led there can be read of upstream's own
//! history as long as upstream has it. It is put in front of the ring if it joins what is held without a gap and
//! without a contradiction:
//!
//! 1. The events are those behind one version, in order, up to where the history begins.
//! 2. Each follows from the one before it of the same object: nothing is added twice, and nothing changes that is gone.
//! 3. The last event of each object leaves it as it was where the history begins.
//! 4. Whatever was there at that point, and is of a later version than the first event may have, was told.
//!
//! What an object was before its first event is not told, unless that event adds or deletes it. So a watch may start in
//! front of a `Modified` of that kind only if it goes by keys ([`View::goes_by_key`](super::View::goes_by_key)).

use std::sync::Arc;

use super::Event;
use crate::wire::Object;
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// The room that is left in a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RingRoom {
    pub events: usize,
    pub bytes: usize,
}

/// Events that lead to the beginning of a history.
#[derive(Debug)]
pub struct BackfilledEvents {
    /// The version that the first of them follows.
    pub(super) from: ResourceVersion,
    /// The version that the history has begun at so far.
    pub(super) until: ResourceVersion,
    /// The version from which on it is known of every event what its object was before.
    pub(super) known: ResourceVersion,
    pub(super) events: Vec<Arc<Event>>,
}

/// Earlier events and the history disagree about this object, so they are not of one history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("what was read of {key} at {rv} does not lead to what is held")]
pub struct BackfillMismatch {
    pub key: ObjectKey,
    pub rv: ResourceVersion,
}

/// An event of which it is unknown what its object was before.
#[derive(Debug, Clone)]
pub struct MissingPrevious {
    event: Arc<Event>,
}

impl MissingPrevious {
    /// Wraps the event if it is unknown what its object was before.
    pub(super) fn of(event: Arc<Event>) -> Option<Self> {
        (event.event_type == EventType::Modified && event.previous.is_none()).then_some(Self { event })
    }

    pub fn key(&self) -> &ObjectKey {
        &self.event.object.key
    }

    pub fn rv(&self) -> ResourceVersion {
        self.event.rv
    }

    pub(super) fn by(&self, previous: Arc<Object>) -> Arc<Event> {
        Arc::new(self.event.explained(previous))
    }
}

impl RingRoom {
    /// Whether so many events and bytes fit in.
    pub fn takes(self, events: usize, bytes: usize) -> bool {
        events <= self.events && bytes <= self.bytes
    }

    pub(super) fn has(self, past: &BackfilledEvents) -> bool {
        self.takes(past.events.len(), past.events.iter().map(|event| event.charge()).sum())
    }
}
