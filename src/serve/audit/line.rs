use tokio::sync::OwnedSemaphorePermit;

/// A record on its way to the writer. It gives its room back when it is written.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) text: Vec<u8>,
    pub(super) _room: OwnedSemaphorePermit,
}
