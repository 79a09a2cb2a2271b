use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;

use super::page::{ChunkBatch, PageChunks};
use crate::cache::{CacheReader, ChunkObjectEncoding, DeflatedChunk, EncodedChunkKey, PlainChunk};
use crate::wire::{FeedEncoding, ListFrame, ListItemLengths, ObjectRenderer, ObjectRevision, TranscodeError};
use base::MemoryAccount;
use kubeapi::EventType;

/// Encodes the chunks of a page. Chunks that all lists share are encoded once for all clients.
#[derive(Debug)]
pub(crate) struct ListChunkWriter {
    reader: CacheReader,
    renderer: ObjectRenderer,
    format: ListItemFormat,
    /// Whether a chunk was derived or compressed, which takes about a millisecond.
    worked: AtomicBool,
}

/// The output format of a list's objects.
#[derive(Debug)]
enum ListItemFormat {
    /// The objects are items of a list, each with the separator that precedes it.
    Items(ListFrame),
    /// The objects are frames of ADDED events.
    Added,
}

/// The part of a batch that is sent in one piece.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChunkBatchPiece<'a> {
    pub(crate) batch: &'a ChunkBatch,
    /// The batch that precedes this one; `None` for the first.
    pub(crate) previous: Option<&'a ChunkBatch>,
    pub(crate) index: usize,
}

impl ChunkBatchPiece<'_> {
    /// Returns whether the piece is shared by all lists. Lists that begin with its batch do not refer to the preceding
    /// one.
    pub(crate) fn is_shared(self) -> bool {
        self.batch.is_shared && self.previous.is_none_or(|previous| previous.is_shared)
    }
}

/// The bytes of a chunk while it is being encoded.
struct EncodedChunkPieces {
    /// The memory account that is charged for copied bytes until their last holder releases them.
    account: Arc<MemoryAccount>,
    done: Vec<Bytes>,
    open: Vec<u8>,
    copied: usize,
}

/// The length from which a body is sent as a slice of its own, because that costs less than a copy.
const SHARED_BYTES: usize = 32 << 10;

impl ListChunkWriter {
    pub(crate) fn items(reader: CacheReader, renderer: ObjectRenderer, frame: ListFrame) -> Self {
        Self { reader, renderer, format: ListItemFormat::Items(frame), worked: AtomicBool::new(false) }
    }

    pub(crate) fn added(reader: CacheReader, renderer: ObjectRenderer) -> Self {
        Self { reader, renderer, format: ListItemFormat::Added, worked: AtomicBool::new(false) }
    }

    /// Returns the bytes of a chunk. The first caller encodes them; others wait.
    pub(crate) fn poll_plain(
        &self,
        chunks: &PageChunks,
        index: usize,
        cx: &Context<'_>,
    ) -> Poll<Result<PlainChunk, TranscodeError>> {
        let (chunk, is_verbatim, is_shared) =
            (chunks.chunk(index), self.renderer.is_verbatim(), chunks.is_shared(index));
        let write = || {
            if !is_verbatim {
                self.worked.store(true, Ordering::Relaxed);
            }
            let written = self.write(chunks.objects(index), is_shared, self.estimate(chunk.lengths))?;
            chunk.set_encodable(self.renderer.representation());
            Ok(written)
        };
        if !is_shared {
            return Poll::Ready(write().map(|(plain, _)| plain));
        }
        let part = match self.format {
            ListItemFormat::Items(_) => ChunkObjectEncoding::Items,
            ListItemFormat::Added => ChunkObjectEncoding::Added,
        };
        self.reader.chunks().poll_plain(self.key(chunk.name, part), is_verbatim, cx, write)
    }

    /// Returns a compressed piece of a list, if it is cached.
    pub(crate) fn deflated(&self, at: ChunkBatchPiece<'_>) -> Option<DeflatedChunk> {
        if self.renderer.is_of_one_request() {
            return None;
        }
        self.reader.chunks().deflated(self.key_of_piece(at))
    }

    /// Returns a compressed piece; the first caller compresses it. It may refer to the `window` bytes before its batch.
    pub(crate) fn poll_deflated(
        &self,
        chunks: &PageChunks,
        at: ChunkBatchPiece<'_>,
        window: usize,
        cx: &Context<'_>,
        deflate: impl FnOnce(&[u8]) -> DeflatedChunk,
    ) -> Poll<Result<DeflatedChunk, TranscodeError>> {
        let make = || {
            self.worked.store(true, Ordering::Relaxed);
            let before = at.previous.filter(|_| at.index == 0).map(|previous| self.tail(chunks, previous, window));
            Ok(deflate(&before.transpose()?.unwrap_or_default()))
        };
        if self.renderer.is_of_one_request() {
            return Poll::Ready(make());
        }
        self.reader.chunks().poll_deflated(self.key_of_piece(at), cx, make)
    }

    /// Returns the last `bytes` bytes of a batch, or the whole batch if it is shorter.
    fn tail(&self, chunks: &PageChunks, batch: &ChunkBatch, bytes: usize) -> Result<Vec<u8>, TranscodeError> {
        let objects = batch.chunks.clone().rev().flat_map(|index| chunks.objects(index).into_iter().rev());
        let (mut written, mut len) = (Vec::new(), 0);
        for object in objects {
            let object = self.write([object], true, 0)?.0.concat();
            len += object.len();
            written.push(object);
            if len >= bytes + self.separator() {
                break;
            }
        }
        written.reverse();
        let written = written.concat();
        // The first item of a list has no separator, so a match must not refer to it.
        Ok(written[self.separator().max(len.saturating_sub(bytes)).min(len)..].to_vec())
    }

    /// Returns whether a chunk was derived or compressed since the last call.
    pub(crate) fn has_worked(&self) -> bool {
        self.worked.swap(false, Ordering::Relaxed)
    }

    /// Returns the length of the separator that a chunk begins with and a list does not.
    pub(crate) fn separator(&self) -> usize {
        match &self.format {
            ListItemFormat::Items(_) if self.renderer.representation().encoding() == FeedEncoding::Json => 1,
            ListItemFormat::Items(_) | ListItemFormat::Added => 0,
        }
    }

    /// Returns whether every object of a chunk was written in this representation before, so that writing it cannot
    /// fail.
    pub(crate) fn was_written(&self, chunks: &PageChunks, index: usize) -> bool {
        let (chunk, representation) = (chunks.chunk(index), self.renderer.representation());
        if self.renderer.is_verbatim() || chunk.is_encodable(representation) {
            return true;
        }
        let written = chunks.objects(index).iter().all(|object| object.is_encodable(representation));
        if written {
            chunk.set_encodable(representation);
        }
        written
    }

    /// Returns the key under which all watches share the compressed form of a piece of a chunk's ADDED events.
    pub(crate) fn key_of_added(&self, chunks: &PageChunks, index: usize, piece: usize) -> Option<EncodedChunkKey> {
        let part = ChunkObjectEncoding::DeflatedAdded { piece, part: 0, behind: None };
        chunks.is_shared(index).then(|| self.key(chunks.chunk(index).name, part))
    }

    fn key(&self, chunk: u128, part: ChunkObjectEncoding) -> EncodedChunkKey {
        EncodedChunkKey {
            chunk,
            representation: self.renderer.representation(),
            release: self.renderer.release(),
            part,
        }
    }

    fn key_of_piece(&self, at: ChunkBatchPiece<'_>) -> EncodedChunkKey {
        let behind = at.previous.map(|previous| previous.name);
        self.key(at.batch.name, ChunkObjectEncoding::Deflated { behind, piece: at.index })
    }

    /// Returns the pieces of a chunk, and how many of their bytes are not the store's own. If the bytes of an object
    /// are not cached with the chunk and cost more than a copy, they are cached with the object.
    fn write<'a>(
        &self,
        objects: impl IntoIterator<Item = &'a Arc<ObjectRevision>>,
        is_cached: bool,
        capacity: usize,
    ) -> Result<(PlainChunk, usize), TranscodeError> {
        let (is_verbatim, representation) = (self.renderer.is_verbatim(), self.renderer.representation());
        let mut pieces = EncodedChunkPieces::new(self.reader.chunks().account().clone());
        pieces.open.reserve(capacity);
        for object in objects {
            if is_cached && representation.encoding() == FeedEncoding::Json && !is_verbatim {
                // The length is not known yet, and JSON does not need it.
                self.put_head(0, &mut pieces.open);
                self.reader.write_body(object, &self.renderer, &mut pieces.open)?;
            } else {
                let body = self.reader.body(object, &self.renderer)?;
                self.put_head(body.len(), &mut pieces.open);
                pieces.put(body, is_verbatim);
            }
            if matches!(self.format, ListItemFormat::Added) {
                self.renderer.envelope().put_frame_tail(&mut pieces.open);
            }
        }
        Ok(pieces.end())
    }

    fn put_head(&self, body_len: usize, out: &mut Vec<u8>) {
        match &self.format {
            ListItemFormat::Items(frame) => frame.put_item_head(false, body_len, out),
            ListItemFormat::Added => self.renderer.envelope().put_frame_head(EventType::Added, body_len, out),
        }
    }

    /// Estimates the number of bytes of an encoded chunk.
    fn estimate(&self, ListItemLengths { items, bytes, .. }: ListItemLengths) -> usize {
        let around = match &self.format {
            ListItemFormat::Items(frame) => frame.item_len(0) + 4,
            ListItemFormat::Added => self.renderer.envelope().frame_len(EventType::Added, 0) + 16,
        };
        let bodies = if self.renderer.is_verbatim() { bytes } else { bytes + bytes / 2 };
        items * around + bodies
    }
}

impl EncodedChunkPieces {
    fn new(account: Arc<MemoryAccount>) -> Self {
        Self { account, done: Vec::new(), open: Vec::new(), copied: 0 }
    }

    fn put(&mut self, body: Bytes, shares: bool) {
        if shares && body.len() >= SHARED_BYTES {
            self.close();
            self.done.push(body);
        } else {
            self.open.extend_from_slice(&body);
        }
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.copied += self.open.len();
            self.done.push(self.account.charge_bytes(std::mem::take(&mut self.open).into_boxed_slice().into()));
        }
    }

    fn end(mut self) -> (PlainChunk, usize) {
        self.close();
        (self.done.into(), self.copied)
    }
}
