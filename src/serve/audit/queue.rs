use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::listing::LimitExceeded;
use crate::serve::activity::metrics;
use crate::serve::limits::{ConcurrencyPermit, PermitPool};
use kubeapi::FlowDistinguisher;

/// The audit log, which may be off. Clones share the same queue.
#[derive(Debug, Clone, Default)]
pub struct AuditLog {
    queue: Option<AuditQueue>,
}

/// The queue to the [`AuditWriter`], bounded in records and in bytes, of which one user may have half. Senders never
/// wait.
#[derive(Debug, Clone)]
pub(super) struct AuditQueue {
    lines: mpsc::Sender<QueuedAuditRecord>,
    bytes: Arc<PermitPool>,
    /// The bytes that a shorter record is charged, so that short records do not fill the queue either.
    record_bytes_min: usize,
}

/// The error of a full audit queue: the writer does not keep up.
pub(super) const QUEUE_FULL: LimitExceeded = LimitExceeded("audit records");
/// The maximum number of queued records: about one second of heavy read traffic.
pub(super) const RECORDS_MAX: usize = 16_384;
/// The maximum size of the queued records. A request target alone can have 64 KiB.
const BYTES_MAX: usize = 32 << 20;
/// The queued bytes up to which a user may use the reserve: a few records.
const SMALL_USE: usize = 32 << 10;

impl AuditLog {
    /// Creates an audit log that records nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Opens the log. Records stay queued until the [`AuditWriter`] runs.
    ///
    /// # Errors
    /// The file cannot be opened for appending.
    pub fn open(destination: AuditDestination) -> io::Result<(Self, AuditWriter)> {
        let (queue, lines) = AuditQueue::new(RECORDS_MAX, BYTES_MAX);
        let writer = AuditWriter::open(destination, lines)?;
        Ok((Self { queue: Some(queue) }, writer))
    }

    #[cfg(test)]
    pub(super) fn with_queue(queue: AuditQueue) -> Self {
        Self { queue: Some(queue) }
    }

    /// Whether audit records are written.
    pub(crate) fn is_on(&self) -> bool {
        self.queue.is_some()
    }

    pub(super) fn queue(&self) -> Option<&AuditQueue> {
        self.queue.as_ref()
    }
}

impl AuditQueue {
    pub(super) fn new(records_max: usize, bytes_max: usize) -> (Self, mpsc::Receiver<QueuedAuditRecord>) {
        let (lines, waiting) = mpsc::channel(records_max);
        let bytes = Arc::new(PermitPool::new(QUEUE_FULL.0, SMALL_USE));
        bytes.resize(bytes_max, bytes_max.div_ceil(2));
        (Self { lines, bytes, record_bytes_min: bytes_max / records_max }, waiting)
    }

    /// Queues a record of the user `flow`; `None` if all callers share one identity.
    pub(super) fn put(&self, flow: Option<&FlowDistinguisher>, text: Vec<u8>) -> Result<(), LimitExceeded> {
        let bytes = self.bytes.acquire_many(flow, text.len().max(self.record_bytes_min));
        let put = bytes
            .and_then(|bytes| self.lines.try_send(QueuedAuditRecord { text, _bytes: bytes }).map_err(|_| QUEUE_FULL));
        if put.is_err() {
            metrics::records("dropped", 1);
        }
        put
    }
}

/// The destination of audit records: a file or standard output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AuditDestination {
    Stdout,
    /// A file opened for appending. If it no longer exists, for example after a rotation by renaming, it is created
    /// again with mode 0600.
    File(PathBuf),
}

/// The task that writes records in order. No request waits for it.
#[derive(Debug)]
pub struct AuditWriter {
    lines: mpsc::Receiver<QueuedAuditRecord>,
    output: AuditOutput,
}

/// A queued record. Dropping it releases its bytes in the queue.
#[derive(Debug)]
pub(super) struct QueuedAuditRecord {
    pub(super) text: Vec<u8>,
    pub(super) _bytes: ConcurrencyPermit,
}

#[derive(Debug)]
struct AuditOutput {
    /// The path of the file; `None` for standard output.
    path: Option<PathBuf>,
    file: File,
}

/// The maximum number of records per write.
const BATCH_MAX: usize = 1024;
/// The time between two attempts when writing fails.
const RETRY_DELAY: Duration = Duration::from_secs(1);

impl AuditWriter {
    pub(super) fn open(destination: AuditDestination, lines: mpsc::Receiver<QueuedAuditRecord>) -> io::Result<Self> {
        let (path, file) = match destination {
            AuditDestination::Stdout => (None, io::stdout().as_fd().try_clone_to_owned()?.into()),
            AuditDestination::File(path) => {
                let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
                let file = open(&path).map_err(named)?;
                (Some(path), file)
            }
        };
        Ok(Self { lines, output: AuditOutput { path, file } })
    }

    /// Writes records until all senders are dropped. While writing fails, the queue fills up.
    pub async fn run(self) {
        let Self { mut lines, mut output } = self;
        metrics::audit_failing(false);
        let file = output.path.as_ref().map_or("-".to_owned(), |path| path.display().to_string());
        let mut batch = Vec::with_capacity(BATCH_MAX);
        while lines.recv_many(&mut batch, BATCH_MAX).await > 0 {
            let (mut rest, mut is_failing) = (None, false);
            while rest.as_ref().is_none_or(|rest: &Vec<u8>| !rest.is_empty()) {
                // Writing to disks and pipes blocks.
                let writing = tokio::task::spawn_blocking(move || {
                    let rest = rest.get_or_insert_with(|| joined(&batch));
                    let written = output.write(rest);
                    (output, batch, std::mem::take(rest), written)
                });
                // The runtime is shutting down.
                let Ok((returned, records, left, written)) = writing.await else { return };
                (output, batch, rest) = (returned, records, Some(left));
                let Err(error) = written else { continue };
                if !std::mem::replace(&mut is_failing, true) {
                    tracing::error!(
                        %file, %error,
                        "cannot write the audit log; retrying; reads of Secrets fail if its queue fills up"
                    );
                    metrics::audit_failing(true);
                }
                tokio::time::sleep(RETRY_DELAY).await;
            }
            if is_failing {
                tracing::info!("audit log writes resumed");
                metrics::audit_failing(false);
            }
            metrics::records("written", batch.len());
            batch.clear();
        }
    }
}

fn joined(batch: &[QueuedAuditRecord]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(batch.iter().map(|record| record.text.len()).sum());
    batch.iter().for_each(|record| lines.extend_from_slice(&record.text));
    lines
}

impl AuditOutput {
    /// Writes `lines`, and removes the bytes that were written.
    fn write(&mut self, lines: &mut Vec<u8>) -> io::Result<()> {
        if let Some(path) = &self.path
            && !is_at(&self.file, path)?
        {
            self.file = open(path)?;
        }
        while !lines.is_empty() {
            match self.file.write(lines) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => drop(lines.drain(..written)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Whether the open file is still the one at `path`; false if it was renamed or removed.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    match std::fs::metadata(path) {
        Ok(named) => Ok(identity(named) == identity(file.metadata()?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
