use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::record::{HistoryRecord, OperationId, RecordedEventType};

/// The size of the write buffer.
const BUFFER_BYTES: usize = 1 << 20;

/// A writer of records, one per line, up to a maximum size.
pub(super) struct HistoryRecorder {
    lines: Mutex<RecordSink>,
    bytes: AtomicU64,
    bytes_max: u64,
    /// A signal that is cancelled when nothing more can be written to the record.
    full: CancellationToken,
    failure: Mutex<Option<io::Error>>,
    next_op: AtomicU64,
    counts: Mutex<RecordCounts>,
}

/// The destination of a record's lines.
enum RecordSink {
    File(PathBuf, BufWriter<File>),
    Memory(Vec<u8>),
}

/// Counts of records so far, for display.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// The number of events that were delivered to clients, including initial ones.
    pub events: u64,
    /// The number of recorded responses to lists and GETs.
    pub answers: u64,
    pub writes: u64,
    /// The number of true changes, including objects of the initial state.
    pub changes: u64,
    /// The number of recorded faults.
    pub faults: u64,
}

impl RecordCounts {
    /// Counts one record in the statistics.
    pub(super) fn add(&mut self, record: &HistoryRecord) {
        match record {
            HistoryRecord::Event(event) if event.kind < RecordedEventType::Bookmark => self.events += 1,
            HistoryRecord::Return(answer) if answer.version.is_some() => self.answers += 1,
            HistoryRecord::Written(write) if (200..300).contains(&write.code) => self.writes += 1,
            HistoryRecord::Truth(_) => self.changes += 1,
            HistoryRecord::Fault(_) => self.faults += 1,
            _ => {}
        }
    }
}

impl HistoryRecorder {
    pub(super) fn create(path: &Path, bytes_max: u64) -> io::Result<Self> {
        let file = BufWriter::with_capacity(BUFFER_BYTES, File::create(path)?);
        Ok(Self::to(RecordSink::File(path.to_owned(), file), bytes_max))
    }

    /// Returns a recorder whose records stay in memory, for [`take`](Self::take).
    pub(super) fn in_memory(bytes_max: u64) -> Self {
        Self::to(RecordSink::Memory(Vec::new()), bytes_max)
    }

    fn to(lines: RecordSink, bytes_max: u64) -> Self {
        Self {
            lines: Mutex::new(lines),
            bytes: AtomicU64::new(0),
            bytes_max,
            full: CancellationToken::new(),
            failure: Mutex::new(None),
            next_op: AtomicU64::new(1),
            counts: Mutex::default(),
        }
    }

    /// Returns a new operation number.
    pub(super) fn op(&self) -> OperationId {
        self.next_op.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn put(&self, record: &HistoryRecord) {
        let mut line = serde_json::to_vec(record).expect("records have text for keys");
        line.push(b'\n');
        let len = line.len() as u64;
        // Records are written even beyond the maximum, because the truth must cover everything that clients have seen.
        if self.bytes.fetch_add(len, Ordering::Relaxed) + len > self.bytes_max {
            self.full.cancel();
        }
        self.counts.lock().add(record);
        let written = match &mut *self.lines.lock() {
            RecordSink::File(_, file) => file.write_all(&line),
            RecordSink::Memory(bytes) => bytes.write_all(&line),
        };
        if let Err(error) = written {
            self.failure.lock().get_or_insert(error);
            self.full.cancel();
        }
    }

    /// Completes when the record has its maximum size, or cannot be written.
    pub(super) async fn full(&self) {
        self.full.cancelled().await;
    }

    pub(super) fn counts(&self) -> RecordCounts {
        *self.counts.lock()
    }

    /// Writes the buffered lines and returns the file's path; the path is empty for a record in memory.
    pub(super) fn close(&self) -> io::Result<PathBuf> {
        let path = match &mut *self.lines.lock() {
            RecordSink::File(path, file) => file.flush().map(|()| path.clone())?,
            RecordSink::Memory(_) => PathBuf::new(),
        };
        match self.failure.lock().take() {
            Some(error) => Err(error),
            None => Ok(path),
        }
    }

    /// Returns the lines in memory. Later ones are not kept with them.
    pub(super) fn take(&self) -> Vec<u8> {
        match &mut *self.lines.lock() {
            RecordSink::File(..) => Vec::new(),
            RecordSink::Memory(bytes) => std::mem::take(bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{EventRecord, WatchEndRecord};

    #[tokio::test]
    async fn recorder_writes_every_record_and_signals_size_limit() {
        let path = std::env::temp_dir().join(format!("kube-fanout-recorder-{}.jsonl", fastrand::u64(..)));
        let recorder = HistoryRecorder::create(&path, 200).expect("a file");
        let event = |version| {
            HistoryRecord::Event(EventRecord { op: 1, version, key: "a/b".to_owned(), ..EventRecord::default() })
        };
        recorder.put(&event(5));
        assert!(!recorder.full.is_cancelled());
        let lines: Vec<_> =
            [event(5), event(6), event(7), HistoryRecord::End(WatchEndRecord::default())].into_iter().collect();
        lines[1..].iter().for_each(|line| recorder.put(line));
        recorder.full().await;
        assert_eq!(recorder.close().expect("written"), path);
        let text = std::fs::read_to_string(&path).expect("it is there");
        let read: Vec<HistoryRecord> = text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect();
        assert_eq!(read, lines, "events that arrived while it was full, too");
        assert_eq!(recorder.counts(), RecordCounts { events: 3, ..RecordCounts::default() });
        assert!(recorder.op() < recorder.op());
        std::fs::remove_file(path).expect("it is there");
    }
}
