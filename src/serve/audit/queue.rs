use std::io;
use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

use super::writer::{AuditWriter, Destination, QueuedRecord};
use crate::serve::activity::metrics;

/// The audit log, which may be off. Clones share the same queue.
#[derive(Debug, Clone, Default)]
pub struct Audit {
    queue: Option<Queue>,
}

/// The queue to the [`AuditWriter`], bounded in records and in bytes. Senders never wait.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    lines: mpsc::Sender<QueuedRecord>,
    room: Arc<Semaphore>,
}

/// The error of a full queue: the writer does not keep up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the audit log queue is full")]
pub(super) struct QueueFull;

/// The maximum number of queued records: about one second of heavy read traffic.
pub(super) const RECORDS_MAX: usize = 16_384;
/// The maximum size of the queued records. A request target alone can have 64 KiB.
const BYTES_MAX: usize = 32 << 20;

impl Audit {
    /// Creates a log that records nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Opens the log. Records stay queued until the [`AuditWriter`] runs.
    ///
    /// # Errors
    /// The file cannot be opened for appending.
    pub fn open(destination: Destination) -> io::Result<(Self, AuditWriter)> {
        let (queue, lines) = Queue::new(RECORDS_MAX, BYTES_MAX);
        let writer = AuditWriter::open(destination, lines)?;
        Ok((Self { queue: Some(queue) }, writer))
    }

    #[cfg(test)]
    pub(super) fn of(queue: Queue) -> Self {
        Self { queue: Some(queue) }
    }

    /// Whether requests are recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    pub(super) fn queue(&self) -> Option<&Queue> {
        self.queue.as_ref()
    }
}

impl Queue {
    pub(super) fn new(records_max: usize, bytes_max: usize) -> (Self, mpsc::Receiver<QueuedRecord>) {
        let (lines, waiting) = mpsc::channel(records_max);
        (Self { lines, room: Arc::new(Semaphore::new(bytes_max)) }, waiting)
    }

    pub(super) fn put(&self, text: Vec<u8>) -> Result<(), QueueFull> {
        let bytes = u32::try_from(text.len()).unwrap_or(u32::MAX);
        let room = self.room.clone().try_acquire_many_owned(bytes).map_err(|_| QueueFull);
        let put = room.and_then(|room| self.lines.try_send(QueuedRecord { text, _room: room }).map_err(|_| QueueFull));
        if put.is_err() {
            metrics::records("dropped", 1);
        }
        put
    }
}
