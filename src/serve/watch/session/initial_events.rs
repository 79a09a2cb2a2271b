use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use crate::auth::ReadPermission;
use crate::cache::{CacheReader, CollectionView, EncodedChunkKey, FeedCursor, FeedSnapshot, ObjectChunk, PlainChunk};
use crate::listing::{ListChunkWriter, PageChunks, YieldPause, cost};
use crate::serve::limits::TimedSnapshotPin;
use crate::wire::{ObjectRevision, TranscodeError};
use kubeapi::{EventType, ObjectKey};

/// The initial state of a watch, as ADDED events.
#[derive(Debug)]
pub(super) struct InitialEvents {
    pub(super) snapshot: FeedSnapshot,
    pub(super) pin: TimedSnapshotPin,
    encoding: InitialEventsEncoding,
}

#[derive(Debug)]
enum InitialEventsEncoding {
    /// The events are sent frame by frame, from the first key not yet sent.
    Frames { next: String },
    /// The remaining frames are in chunks that all watches share, from the first piece not yet sent.
    Chunks(Box<SharedInitialFrames>),
}

#[derive(Debug)]
struct SharedInitialFrames {
    writer: ListChunkWriter,
    chunks: PageChunks,
    index: usize,
    /// The bytes of the current chunk, once it is encoded.
    plain: Option<PlainChunk>,
    piece: usize,
    pause: YieldPause,
}

/// The number of frames that were put into a batch, and whether they are the last.
type FrameProgress = (usize, bool);

impl InitialEvents {
    pub(super) fn new(snapshot: FeedSnapshot, pin: TimedSnapshotPin) -> Self {
        Self { snapshot, pin, encoding: InitialEventsEncoding::Frames { next: String::new() } }
    }

    /// Whether only a part of a shared chunk was put. The last event may then be incomplete, because a large body is a
    /// piece of its own.
    pub(super) fn is_within_chunk(&self) -> bool {
        matches!(&self.encoding, InitialEventsEncoding::Chunks(shared) if shared.piece > 0)
    }

    /// Sends the state in shared chunks, if the watch's view consists of whole chunks.
    pub(super) fn in_chunks(
        self,
        shared: Arc<[ObjectChunk]>,
        permission: &ReadPermission,
        cursor: &FeedCursor,
        reader: &CacheReader,
    ) -> Self {
        if !PageChunks::can_share(cursor.view()) {
            return self;
        }
        let mut chunks = PageChunks::new(self.snapshot.clone(), shared);
        chunks.put_chunks(permission, cursor.view(), reader.namespaced(), None, usize::MAX);
        let writer = ListChunkWriter::added(reader.clone(), cursor.renderer().clone());
        let encoding = InitialEventsEncoding::Chunks(Box::new(SharedInitialFrames {
            writer,
            chunks,
            index: 0,
            plain: None,
            piece: 0,
            pause: YieldPause::default(),
        }));
        Self { encoding, ..self }
    }

    /// Appends frames to an empty batch until it is full. It puts at least one frame or one piece of a chunk, unless
    /// the scan budget is used up first. The batch receives the key of each piece of a chunk.
    pub(super) fn poll_put(
        &mut self,
        cx: &mut Context<'_>,
        out: &mut FrameBatch<'_>,
    ) -> Poll<Result<FrameProgress, TranscodeError>> {
        match &mut self.encoding {
            InitialEventsEncoding::Chunks(shared) => shared.poll_put(cx, out.batch),
            InitialEventsEncoding::Frames { next } => {
                let more = out.put(&self.snapshot, out.cursor.view(), next, FrameBatch::added)?;
                let is_last = more.is_none();
                *next = more.unwrap_or_default();
                Poll::Ready(Ok((out.batch.frames.len(), is_last)))
            }
        }
    }
}

impl SharedInitialFrames {
    fn poll_put(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut WatchBatch,
    ) -> Poll<Result<FrameProgress, TranscodeError>> {
        let (mut frames, mut bytes) = (0, 0);
        ready!(self.pause.poll(cx));
        while self.index < self.chunks.len() {
            let plain = match &self.plain {
                Some(plain) => plain,
                None => match self.writer.poll_plain(&self.chunks, self.index, cx) {
                    Poll::Pending if !batch.frames.is_empty() => {
                        return Poll::Ready(Ok((frames, false)));
                    }
                    polled => {
                        if self.writer.has_worked() {
                            self.pause.begin();
                        }
                        self.plain.insert(ready!(polled)?)
                    }
                },
            };
            let Some(piece) = plain.get(self.piece) else {
                (self.index, self.piece, self.plain) = (self.index + 1, 0, None);
                continue;
            };
            // A piece that is alone in a batch is not copied.
            if !batch.frames.is_empty() && bytes + piece.len() > batch.bytes_max {
                return Poll::Ready(Ok((frames, false)));
            }
            if self.piece == 0 {
                frames += self.chunks.chunk(self.index).lengths.items;
            }
            bytes += piece.len();
            batch.frames.push(piece.clone());
            batch.keys.push(self.writer.key_of_added(&self.chunks, self.index, self.piece));
            self.piece += 1;
        }
        // A bookmark follows the last frame. It gets its own batch if this one must not be copied.
        Poll::Ready(Ok((frames, bytes <= batch.bytes_max)))
    }
}

/// The frames that a poll of a watch puts.
#[derive(Debug)]
pub(crate) struct WatchBatch {
    pub(crate) frames: Vec<Bytes>,
    /// The keys of the frames at the beginning that all watches share.
    pub(crate) keys: Vec<Option<EncodedChunkKey>>,
    /// The approximate number of bytes to put at a time. It limits the memory that one client can occupy.
    pub(crate) bytes_max: usize,
}

/// The batch that receives the frames of a state, and its limits.
pub(super) struct FrameBatch<'a> {
    pub(super) cursor: &'a FeedCursor,
    pub(super) reader: &'a CacheReader,
    /// The bytes of the frames in the batch.
    bytes: usize,
    /// The remaining budget for scanning objects.
    scan_budget: &'a mut usize,
    pub(super) batch: &'a mut WatchBatch,
}

impl WatchBatch {
    pub(crate) const BYTES_MAX: usize = 32 << 10;

    pub(crate) const fn new() -> Self {
        Self { frames: Vec::new(), keys: Vec::new(), bytes_max: Self::BYTES_MAX }
    }
}

impl Default for WatchBatch {
    fn default() -> Self {
        Self::new()
    }
}

impl<'a> FrameBatch<'a> {
    pub(super) fn new(
        cursor: &'a FeedCursor,
        reader: &'a CacheReader,
        scan_budget: &'a mut usize,
        batch: &'a mut WatchBatch,
    ) -> Self {
        let bytes = batch.frames.iter().map(Bytes::len).sum();
        Self { cursor, reader, bytes, scan_budget, batch }
    }

    /// Puts the matching objects of a view as frames, from the key `start` on. If the batch is full or the scan budget
    /// is used up, it returns the key to resume from. If the batch is empty, at least one frame is put, unless the scan
    /// budget is used up first.
    pub(super) fn put(
        &mut self,
        snapshot: &FeedSnapshot,
        view: &CollectionView,
        start: &str,
        frame: impl Fn(&Self, &Arc<ObjectRevision>) -> Result<Option<Bytes>, TranscodeError>,
    ) -> Result<Option<String>, TranscodeError> {
        let is_expensive = view.is_expensive();
        let start = Some(start).filter(|start| !start.is_empty());
        for object in snapshot.scan_candidates(view, self.reader.namespaced(), start) {
            if !self.has_room() {
                return Ok(Some(object.key.as_str().to_owned()));
            }
            let matches = view.matches(object);
            if is_expensive || !matches {
                *self.scan_budget = self.scan_budget.saturating_sub(view.cost_of(object));
            }
            if matches {
                let frame = frame(self, object)?;
                self.push(frame);
            }
        }
        Ok(None)
    }

    /// Puts the object with a key as a frame, if it is in the watch's view. Returns false if the batch is full or the
    /// scan budget, to which the object is charged in any case, is used up.
    pub(super) fn put_one(
        &mut self,
        snapshot: &FeedSnapshot,
        key: &ObjectKey,
        frame: impl Fn(&Self, &Arc<ObjectRevision>) -> Result<Option<Bytes>, TranscodeError>,
    ) -> Result<bool, TranscodeError> {
        if !self.has_room() {
            return Ok(false);
        }
        let view = self.cursor.view();
        *self.scan_budget = self.scan_budget.saturating_sub(view.cost_estimate());
        if let Some(object) = snapshot.get(key).filter(|object| view.matches(object)) {
            let frame = frame(self, object)?;
            self.push(frame);
        }
        Ok(true)
    }

    fn has_room(&self) -> bool {
        *self.scan_budget > 0 && (self.batch.frames.is_empty() || self.bytes < self.batch.bytes_max)
    }

    fn push(&mut self, frame: Option<Bytes>) {
        let Some(frame) = frame else { return };
        if !self.cursor.renderer().is_verbatim() {
            *self.scan_budget = self.scan_budget.saturating_sub(cost::DERIVED);
        }
        self.bytes += frame.len();
        self.batch.frames.push(frame);
    }

    /// Returns an object as an ADDED event.
    pub(super) fn added(&self, object: &Arc<ObjectRevision>) -> Result<Option<Bytes>, TranscodeError> {
        let renderer = self.cursor.renderer();
        Ok(Some(renderer.envelope().frame(EventType::Added, &self.reader.body(object, renderer)?)))
    }
}
