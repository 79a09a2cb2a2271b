use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the audit log queue is full, so the request cannot be recorded")]
pub(super) struct AuditQueueFull;

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
        let bytes = Arc::new(PermitPool::new("audit records", SMALL_USE));
        bytes.resize(bytes_max, bytes_max.div_ceil(2));
        (Self { lines, bytes, record_bytes_min: bytes_max / records_max }, waiting)
    }

    /// Queues a record of the user `flow`; `None` if all callers share one identity.
    pub(super) fn put(&self, flow: Option<&FlowDistinguisher>, text: Vec<u8>) -> Result<(), AuditQueueFull> {
        let bytes = self.bytes.acquire_many(flow, text.len().max(self.record_bytes_min)).map_err(|_| AuditQueueFull);
        let put = bytes.and_then(|bytes| {
            self.lines.try_send(QueuedAuditRecord { text, _bytes: bytes }).map_err(|_| AuditQueueFull)
        });
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
enum AuditOutput {
    Stdout(io::Stdout),
    File { path: PathBuf, file: File },
}

/// The maximum number of records per write.
const BATCH_MAX: usize = 1024;
/// The time between two attempts when writing fails.
const RETRY_DELAY: Duration = Duration::from_secs(1);

impl AuditWriter {
    pub(super) fn open(destination: AuditDestination, lines: mpsc::Receiver<QueuedAuditRecord>) -> io::Result<Self> {
        let output = match destination {
            AuditDestination::Stdout => AuditOutput::Stdout(io::stdout()),
            AuditDestination::File(path) => {
                let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
                AuditOutput::File { file: open(&path).map_err(named)?, path }
            }
        };
        Ok(Self { lines, output })
    }

    /// Writes records until all senders are dropped. While writing fails, the queue fills up.
    pub async fn run(self) {
        let Self { mut lines, mut output } = self;
        metrics::audit_failing(false);
        let file = output.name();
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
    /// Returns the name of the output for the log.
    fn name(&self) -> String {
        match self {
            Self::Stdout(_) => "-".to_owned(),
            Self::File { path, .. } => path.display().to_string(),
        }
    }

    /// Writes `lines`, and removes the bytes that were written.
    fn write(&mut self, lines: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Stdout(stdout) => {
                write(stdout, lines)?;
                stdout.flush()
            }
            Self::File { path, file } => {
                if !is_at(file, path)? {
                    *file = open(path)?;
                }
                write(file, lines)
            }
        }
    }
}

fn write(to: &mut impl Write, lines: &mut Vec<u8>) -> io::Result<()> {
    while !lines.is_empty() {
        match to.write(lines) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => drop(lines.drain(..written)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
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
