//! Events from before a feed's first list. They are read from upstream later, for clients that resume from there, and
//! are used only if they provably lead to the list.
//!
//! A list contains the state at its version, without the events that led to it. Upstream's own history contains those
//! events until it is compacted. They are put in front of the ring if they join its history without a gap and without a
//! contradiction:
//!
//! 1. The events are all events after one version, in order, up to the beginning of the history.
//! 2. Each event follows from the previous event of the same object: no object is added twice or changed after
//!    deletion.
//! 3. The last event of each object leaves it in its state at the beginning of the history.
//! 4. Each object that exists at that point with a version above the start version has an event.
//!
//! The state of an object before its first event is unknown, unless that event adds or deletes it. So a watch may start
//! before such a `Modified` event only if its view selects by key
//! ([`CollectionView::depends_only_on_key`](super::CollectionView::depends_only_on_key)).

use std::sync::Arc;

use super::FeedEvent;
use crate::wire::ObjectRevision;
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// The free space in a history ring, in events and bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventRingHeadroom {
    pub events: usize,
    pub bytes: usize,
}

/// Events that lead up to the beginning of a feed's history.
#[derive(Debug)]
pub struct BackfilledEvents {
    /// The version that the first event follows.
    pub(super) from: ResourceVersion,
    /// The version at which the history began when these events were checked.
    pub(super) until: ResourceVersion,
    /// The version after which the previous state of every event's object is known.
    pub(super) known: ResourceVersion,
    pub(super) events: Vec<Arc<FeedEvent>>,
}

/// A difference between backfilled events and the feed's history in one object, which shows that they are not from the
/// same history.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("events of {key} up to resourceVersion {rv} do not lead to the cached object")]
pub struct BackfillMismatch {
    pub key: ObjectKey,
    pub rv: ResourceVersion,
}

/// An event whose object's previous state is unknown.
#[derive(Debug, Clone)]
pub struct MissingPreviousState {
    event: Arc<FeedEvent>,
}

impl MissingPreviousState {
    /// Wraps the event if its object's previous state is unknown.
    pub(super) fn of(event: Arc<FeedEvent>) -> Option<Self> {
        (event.event_type == EventType::Modified && event.previous.is_none()).then_some(Self { event })
    }

    pub fn key(&self) -> &ObjectKey {
        &self.event.object.key
    }

    pub fn rv(&self) -> ResourceVersion {
        self.event.rv
    }

    pub(super) fn with_previous(&self, previous: Arc<ObjectRevision>) -> Arc<FeedEvent> {
        Arc::new(self.event.with_previous(previous))
    }
}

impl EventRingHeadroom {
    /// Returns whether `events` events of `bytes` bytes fit.
    pub fn takes(self, events: usize, bytes: usize) -> bool {
        events <= self.events && bytes <= self.bytes
    }

    pub(super) fn has(self, past: &BackfilledEvents) -> bool {
        self.takes(past.events.len(), past.events.iter().map(|event| event.charge()).sum())
    }
}
