use bytes::Bytes;

use crate::wire::Object;
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// One change as upstream's stream reported it.
#[derive(Debug)]
pub struct Change {
    /// `Added`, `Modified` or `Deleted`.
    pub event_type: EventType,
    pub object: Object,
    /// The frame it came in, if it came in one; `object.body()` is a slice of it.
    pub frame: Option<Bytes>,
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It is in the store and in the ring.
    Fresh,
    /// The ring had it already, as happens when two streams of one history overlap.
    Duplicate,
}

/// A change that contradicts what is known: it is older than the state that upstream vouched for, and was not seen
/// before. The stream that brought it cannot be trusted (R-UPSTREAM-8, R-UPSTREAM-10).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("change of {key} at {rv} is out of order: everything up to {progress} was already vouched for")]
pub struct OutOfOrder {
    pub key: ObjectKey,
    pub rv: ResourceVersion,
    pub progress: ResourceVersion,
}
