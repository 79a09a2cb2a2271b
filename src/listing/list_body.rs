use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};

use super::chunk_writer::{ChunkBatchPiece, ListChunkWriter};
use super::page_chunks::PageChunks;
use super::scan_pacer::{ScanBudget, YieldPause};
use crate::cache::{DeflatedChunk, PlainChunk};
use crate::wire::{ListFrame, TranscodeError};

/// The length in bytes above which responses are compressed. It is the apiserver's own bound.
pub(crate) const PLAIN_BYTES_MAX: usize = 128 << 10;

/// A LIST response that is being sent. It holds only the current piece, which is shared.
#[derive(Debug)]
pub(crate) struct ListBody {
    pub(super) writer: ListChunkWriter,
    pub(super) chunks: PageChunks,
    pub(super) head: Bytes,
    pub(super) tail: Bytes,
    /// Whether the list is long enough for the apiserver to compress it.
    worth: bool,
    at: ListSendPosition,
    joined: ByteSliceJoiner,
    /// A pause after each shared chunk that was derived or compressed.
    rest: YieldPause,
    /// The scan budget for chunks that belong to this client alone.
    scan_budget: ScanBudget,
}

/// The part of a list that is sent next.
#[derive(Debug)]
enum ListSendPosition {
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
        writer: ListChunkWriter,
        chunks: PageChunks,
        frame: &ListFrame,
        items_len: usize,
        scan_budget: ScanBudget,
    ) -> Self {
        let items = chunks.lengths().items;
        let (head, tail) = (frame.head(items, items_len), frame.tail());
        let worth = frame.content_length(items, items_len) > PLAIN_BYTES_MAX;
        let (at, joined, rest) = (ListSendPosition::Head, ByteSliceJoiner::default(), YieldPause::default());
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
                ListSendPosition::Head => {
                    self.at = ListSendPosition::Stretch(0);
                    return Poll::Ready(Some(Ok(self.head.clone())));
                }
                ListSendPosition::Stretch(index) if *index == self.chunks.len() => {
                    self.at = ListSendPosition::Over;
                    return Poll::Ready(Some(Ok(self.tail.clone())));
                }
                ListSendPosition::Stretch(index) => {
                    let index = *index;
                    match ready!(self.poll_plain(index, cx)) {
                        Ok(plain) => self.at = ListSendPosition::Piece(index, plain, 0),
                        Err(refused) => return Poll::Ready(Some(Err(refused))),
                    }
                }
                ListSendPosition::Piece(index, plain, piece) => match plain.get(*piece) {
                    Some(bytes) => {
                        let (index, bytes, is_first) = (*index, bytes.clone(), *piece == 0);
                        *piece += 1;
                        let skipped = if is_first { self.skipped(index) } else { 0 };
                        return Poll::Ready(Some(Ok(bytes.slice(skipped..))));
                    }
                    None => self.at = ListSendPosition::Stretch(*index + 1),
                },
                ListSendPosition::Over => return Poll::Ready(None),
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
        self.poll_paced(is_whole, cx, |writer, chunks, cx| writer.poll_plain(chunks, index, cx))
    }

    /// Returns how many bytes of a chunk this list omits, because its first item has no separator.
    pub(crate) fn skipped(&self, index: usize) -> usize {
        if index == 0 { self.writer.separator() } else { 0 }
    }

    /// Encodes when it may, and pauses after work. The first caller encodes shared bytes without waiting; bytes for a
    /// single client wait for a slice, and hold it while they are encoded.
    fn poll_paced<T>(
        &mut self,
        is_shared: bool,
        cx: &mut Context<'_>,
        encode: impl FnOnce(&ListChunkWriter, &PageChunks, &Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        ready!(self.rest.poll(cx));
        let _slice = if is_shared { None } else { ready!(self.scan_budget.poll(cx)) };
        let encoded = ready!(encode(&self.writer, &self.chunks, cx));
        match (self.writer.has_worked(), is_shared) {
            (false, _) => {}
            (true, true) => self.rest.begin(),
            (true, false) => *self.scan_budget.left() = 0,
        }
        Poll::Ready(encoded)
    }

    /// Returns whether the whole list has been returned.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.at, ListSendPosition::Over) && self.joined.is_empty()
    }

    /// Returns whether the list is long enough for the apiserver to compress it.
    pub(crate) fn is_worth_compressing(&self) -> bool {
        self.worth
    }

    /// Returns a compressed piece; the first caller compresses it. `deflate` gets the `window` bytes before the batch.
    pub(crate) fn poll_deflated(
        &mut self,
        at: ChunkBatchPiece<'_>,
        window: usize,
        cx: &mut Context<'_>,
        deflate: impl FnOnce(&[u8]) -> DeflatedChunk,
    ) -> Poll<Result<DeflatedChunk, TranscodeError>> {
        self.poll_paced(at.is_shared(), cx, |writer, chunks, cx| writer.poll_deflated(chunks, at, window, cx, deflate))
    }
}

/// Joins small slices, so that they are sent together. Large ones are not copied.
#[derive(Debug, Default)]
pub(crate) struct ByteSliceJoiner {
    /// The slice that did not fit with the previous ones.
    next: Option<Bytes>,
}

/// The maximum length of joined slices: that of a TLS record, and by default of an HTTP/2 frame.
const BYTES_MAX: usize = 16 << 10;

impl ByteSliceJoiner {
    /// Returns the next chunk, assembled from the slices that `poll_slice` returns.
    pub(crate) fn poll<E>(
        &mut self,
        mut poll_slice: impl FnMut() -> Poll<Option<Result<Bytes, E>>>,
    ) -> Poll<Option<Result<Bytes, E>>> {
        let mut joined = BytesMut::new();
        loop {
            let slice = match self.next.take() {
                Some(slice) => slice,
                None => match poll_slice() {
                    Poll::Ready(Some(Ok(slice))) => slice,
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                    _ if !joined.is_empty() => return Poll::Ready(Some(Ok(joined.freeze()))),
                    over_or_pending => return over_or_pending,
                },
            };
            if joined.len() + slice.len() <= BYTES_MAX {
                joined.extend_from_slice(&slice);
            } else if joined.is_empty() {
                return Poll::Ready(Some(Ok(slice)));
            } else {
                self.next = Some(slice);
                return Poll::Ready(Some(Ok(joined.freeze())));
            }
        }
    }

    /// Returns whether no slice is left over.
    pub(crate) fn is_empty(&self) -> bool {
        self.next.is_none()
    }
}
