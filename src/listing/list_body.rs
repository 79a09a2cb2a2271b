use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::chunk_writer::{ChunkWriter, Piece};
use super::cpu_slices::Slice;
use super::page_chunks::{Batch, PageChunks};
use super::scan_pace::{ScanBudget, YieldPause};
use super::slice_joiner::SliceJoiner;
use crate::cache::{DeflatedChunk, PlainChunk};
use crate::wire::{ListFrame, TranscodeError};

/// The length in bytes above which responses are compressed. It is the apiserver's own bound.
pub(crate) const PLAIN_BYTES_MAX: usize = 128 << 10;

/// A LIST response that is being sent. It holds only the current piece, which is shared.
#[derive(Debug)]
pub(crate) struct ListBody {
    writer: ChunkWriter,
    chunks: PageChunks,
    head: Bytes,
    tail: Bytes,
    /// Whether the list is long enough for the apiserver to compress it.
    worth: bool,
    at: SendPosition,
    joined: SliceJoiner,
    /// A pause after each shared chunk that was derived or compressed.
    rest: YieldPause,
    /// The scan budget for chunks that belong to this client alone.
    scan_budget: ScanBudget,
}

/// The part of a list that is sent next.
#[derive(Debug)]
enum SendPosition {
    Head,
    /// The next chunk of the list, by its index.
    Stretch(usize),
    /// A piece of a chunk: the chunk's index, the chunk and the piece's index.
    Piece(usize, PlainChunk, usize),
    Over,
}

impl ListBody {
    /// Creates a list response. `items_len` is the length of all items. If the head does not contain it, any value
    /// above [`PLAIN_BYTES_MAX`] states that they are longer than that.
    pub(crate) fn new(
        writer: ChunkWriter,
        chunks: PageChunks,
        frame: &ListFrame,
        items_len: usize,
        scan_budget: ScanBudget,
    ) -> Self {
        let items = chunks.lengths().items;
        let (head, tail) = (frame.head(items, items_len), frame.tail());
        let worth = frame.content_length(items, items_len) > PLAIN_BYTES_MAX;
        let (at, joined, rest) = (SendPosition::Head, SliceJoiner::default(), YieldPause::default());
        Self { writer, chunks, head, tail, worth, at, joined, rest, scan_budget }
    }

    /// Returns the next bytes; `None` after the last.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TranscodeError>>> {
        let mut joined = std::mem::take(&mut self.joined);
        let chunk = joined.poll(|| self.poll_piece(cx));
        self.joined = joined;
        chunk
    }

    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TranscodeError>>> {
        loop {
            match &mut self.at {
                SendPosition::Head => {
                    self.at = SendPosition::Stretch(0);
                    return Poll::Ready(Some(Ok(self.head.clone())));
                }
                SendPosition::Stretch(index) if *index == self.chunks.len() => {
                    self.at = SendPosition::Over;
                    return Poll::Ready(Some(Ok(self.tail.clone())));
                }
                SendPosition::Stretch(index) => {
                    let index = *index;
                    match ready!(self.poll_plain(index, cx)) {
                        Ok(plain) => self.at = SendPosition::Piece(index, plain, 0),
                        Err(refused) => return Poll::Ready(Some(Err(refused))),
                    }
                }
                SendPosition::Piece(index, plain, piece) => match plain.get(*piece) {
                    Some(bytes) => {
                        let (index, bytes, is_first) = (*index, bytes.clone(), *piece == 0);
                        *piece += 1;
                        let skipped = if is_first { self.skipped(index) } else { 0 };
                        return Poll::Ready(Some(Ok(bytes.slice(skipped..))));
                    }
                    None => self.at = SendPosition::Stretch(*index + 1),
                },
                SendPosition::Over => return Poll::Ready(None),
            }
        }
    }

    /// Returns the bytes of a chunk, each item with the separator that precedes it.
    pub(crate) fn poll_plain(
        &mut self,
        index: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<PlainChunk, TranscodeError>> {
        let is_whole = self.chunks.is_whole(index);
        let _slice = ready!(self.poll_begin(is_whole, cx));
        let plain = ready!(self.writer.poll_plain(&self.chunks, index, cx));
        self.pause_behind(is_whole);
        Poll::Ready(plain)
    }

    /// Returns how many bytes of a chunk this list omits, because its first item has no separator.
    pub(crate) fn skipped(&self, index: usize) -> usize {
        if index == 0 { self.writer.separator() } else { 0 }
    }

    /// Completes when encoding may begin. The caller holds the returned slice while it works.
    fn poll_begin(&mut self, is_shared: bool, cx: &mut Context<'_>) -> Poll<Option<Slice>> {
        ready!(self.rest.poll(cx));
        if is_shared { Poll::Ready(None) } else { self.scan_budget.poll(cx) }
    }

    /// Pauses after work. The first caller encodes shared bytes without waiting; bytes for a single client wait for a
    /// slice.
    fn pause_behind(&mut self, is_shared: bool) {
        match (self.writer.has_worked(), is_shared) {
            (false, _) => {}
            (true, true) => self.rest.begin(),
            (true, false) => *self.scan_budget.left() = 0,
        }
    }

    /// Returns whether the whole list has been returned.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.at, SendPosition::Over) && self.joined.is_empty()
    }

    /// Returns whether the list is long enough for the apiserver to compress it.
    pub(crate) fn is_worth_compressing(&self) -> bool {
        self.worth
    }

    pub(crate) fn head(&self) -> &Bytes {
        &self.head
    }

    pub(crate) fn tail(&self) -> &Bytes {
        &self.tail
    }

    /// Returns the batches of chunks that are compressed together.
    pub(crate) fn batches(&self) -> Vec<Batch> {
        self.chunks.batches()
    }

    /// Returns a piece of a batch that is sent after another one, if it is cached in compressed form.
    pub(crate) fn deflated(&self, at: Piece<'_>) -> Option<DeflatedChunk> {
        self.writer.deflated(at)
    }

    /// Returns a compressed piece; the first caller compresses it. `deflate` gets the `window` bytes before the batch.
    pub(crate) fn poll_deflated(
        &mut self,
        at: Piece<'_>,
        window: usize,
        cx: &mut Context<'_>,
        deflate: impl FnOnce(&[u8]) -> DeflatedChunk,
    ) -> Poll<Result<DeflatedChunk, TranscodeError>> {
        let _slice = ready!(self.poll_begin(at.is_shared(), cx));
        let deflated = ready!(self.writer.poll_deflated(&self.chunks, at, window, cx, deflate));
        self.pause_behind(at.is_shared());
        Poll::Ready(deflated)
    }
}
