use bytes::Bytes;

use crate::wire::ObjectRevision;
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// One change, as received from upstream's watch.
#[derive(Debug)]
pub struct ObjectChange {
    /// The event type: `Added`, `Modified` or `Deleted`.
    pub event_type: EventType,
    pub object: ObjectRevision,
    /// The frame in which the change was received, if any; `object.body()` is a slice of it.
    pub frame: Option<Bytes>,
}

/// A change that contradicts the known state: it is older than a version that upstream has confirmed, and is not a
/// duplicate. The stream that delivered it cannot be trusted (R-UPSTREAM-8, R-UPSTREAM-10).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("event out of order: {key} at resourceVersion {rv}, but everything up to {progress} was already received")]
pub struct OutOfOrderChange {
    pub key: ObjectKey,
    pub rv: ResourceVersion,
    pub progress: ResourceVersion,
}
