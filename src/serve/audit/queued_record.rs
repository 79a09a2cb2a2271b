use tokio::sync::OwnedSemaphorePermit;

/// A queued record. Dropping it releases its bytes in the queue.
#[derive(Debug)]
pub(super) struct QueuedRecord {
    pub(super) text: Vec<u8>,
    pub(super) _room: OwnedSemaphorePermit,
}
