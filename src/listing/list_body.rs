use std::fmt;
use std::future::poll_fn;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};

use super::chunk_writer::ListChunkWriter;
use super::page::{CollectionPage, PageChunks};
use super::scan_pacer::{ScanBudget, ScanPacer, YieldPause};
use crate::cache::PlainChunk;
use crate::wire::{FeedEncoding, ObjectRenderer, TranscodeError};

/// The length in bytes above which responses are compressed. It is the apiserver's own bound.
pub(crate) const PLAIN_BYTES_MAX: usize = 128 << 10;
/// The maximum length of joined slices: that of a TLS record, and by default of an HTTP/2 frame.
const JOINED_BYTES_MAX: usize = 16 << 10;

/// A LIST response that is being sent. Small slices are joined, so that they are sent together. Large ones are not
/// copied.
#[derive(Debug)]
pub(crate) struct ListBody {
    slices: Box<dyn ListSlices>,
    /// The slice that did not fit with the previous ones.
    next: Option<Bytes>,
}

/// The bytes of a LIST response, in slices of any length.
pub(crate) trait ListSlices: fmt::Debug + Send {
    /// Returns the next slice; `None` after the last.
    fn poll_slice(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TranscodeError>>>;

    /// Returns whether it is known that no slice is left.
    fn is_over(&self) -> bool;
}

impl ListBody {
    pub(crate) fn new(slices: impl ListSlices + 'static) -> Self {
        Self { slices: Box::new(slices), next: None }
    }

    /// Returns the next bytes; `None` after the last.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TranscodeError>>> {
        let mut joined = BytesMut::new();
        loop {
            let slice = match self.next.take() {
                Some(slice) => slice,
                None => match self.slices.poll_slice(cx) {
                    Poll::Ready(Some(Ok(slice))) => slice,
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(Some(Err(error))),
                    _ if !joined.is_empty() => return Poll::Ready(Some(Ok(joined.freeze()))),
                    over_or_pending => return over_or_pending,
                },
            };
            if joined.len() + slice.len() <= JOINED_BYTES_MAX {
                joined.extend_from_slice(&slice);
            } else if joined.is_empty() {
                return Poll::Ready(Some(Ok(slice)));
            } else {
                self.next = Some(slice);
                return Poll::Ready(Some(Ok(joined.freeze())));
            }
        }
    }

    /// Returns whether it is known that all bytes have been returned.
    pub(crate) fn is_over(&self) -> bool {
        self.next.is_none() && self.slices.is_over()
    }
}

/// A LIST response without compression. It holds only the current piece, which is shared.
#[derive(Debug)]
pub(crate) struct PlainList {
    pub(super) writer: ListChunkWriter,
    pub(super) chunks: PageChunks,
    pub(super) head: Bytes,
    pub(super) tail: Bytes,
    /// Whether the list is long enough for the apiserver to compress it.
    is_long: bool,
    at: ListSendPosition,
    /// A pause after each shared chunk that was derived or compressed.
    yield_pause: YieldPause,
    /// The scan budget for chunks that belong to this client alone.
    scan_budget: ScanBudget,
}

/// The part of a list that is sent next.
#[derive(Debug)]
enum ListSendPosition {
    Head,
    /// The next chunk of the list, by its index.
    Chunk(usize),
    /// A piece of a chunk: the chunk's index, the chunk and the piece's index.
    Piece(usize, PlainChunk, usize),
    Done,
}

impl PlainList {
    /// Prepares the response with a page in a representation. Every object is checked to be encodable before the first
    /// byte is sent.
    pub(crate) async fn prepare(
        page: CollectionPage,
        renderer: &ObjectRenderer,
        pace: &mut ScanPacer,
    ) -> Result<Self, TranscodeError> {
        let CollectionPage { reader, meta, chunks } = page;
        let items = chunks.lengths().items;
        let frame = renderer.list(&meta, items);
        let writer = ListChunkWriter::items(reader, renderer.clone(), frame.clone());
        let mut items_len = frame.items_len(chunks.lengths());
        if !renderer.is_verbatim() {
            // A JSON head contains no lengths, so it only matters whether the list is long enough to be compressed.
            let measures = renderer.representation().encoding() == FeedEncoding::Protobuf;
            items_len = 0;
            for index in 0..chunks.len() {
                if measures || items_len <= PLAIN_BYTES_MAX || !writer.was_written(&chunks, index) {
                    let plain = poll_fn(|cx| writer.poll_plain(&chunks, index, cx)).await?;
                    items_len += plain.iter().map(Bytes::len).sum::<usize>();
                    pace.yield_now().await;
                }
            }
        }
        Ok(Self {
            writer,
            chunks,
            head: frame.head(items, items_len),
            tail: frame.tail(),
            is_long: frame.content_length(items, items_len) > PLAIN_BYTES_MAX,
            at: ListSendPosition::Head,
            yield_pause: YieldPause::default(),
            scan_budget: pace.scan_budget(),
        })
    }

    /// Returns whether the list is long enough for the apiserver to compress it.
    pub(crate) fn is_worth_compressing(&self) -> bool {
        self.is_long
    }

    /// Returns how many bytes of a chunk this list omits, because its first item has no separator.
    pub(super) fn skipped(&self, index: usize) -> usize {
        if index == 0 { self.writer.separator() } else { 0 }
    }

    /// Encodes a chunk without compression, or returns its shared bytes.
    pub(super) fn poll_plain(
        &mut self,
        index: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<PlainChunk, TranscodeError>> {
        self.poll_paced(self.chunks.is_shared(index), cx, |writer, chunks, cx| writer.poll_plain(chunks, index, cx))
    }

    /// Encodes when it may, and pauses after work. The first caller encodes shared bytes without waiting; bytes for a
    /// single client wait for a slice, and hold it while they are encoded.
    pub(super) fn poll_paced<T>(
        &mut self,
        is_shared: bool,
        cx: &mut Context<'_>,
        encode: impl FnOnce(&ListChunkWriter, &PageChunks, &Context<'_>) -> Poll<T>,
    ) -> Poll<T> {
        ready!(self.yield_pause.poll(cx));
        let _slice = if is_shared { None } else { ready!(self.scan_budget.poll(cx)) };
        let encoded = ready!(encode(&self.writer, &self.chunks, cx));
        match (self.writer.has_worked(), is_shared) {
            (false, _) => {}
            (true, true) => self.yield_pause.begin(),
            (true, false) => *self.scan_budget.left() = 0,
        }
        Poll::Ready(encoded)
    }
}

impl ListSlices for PlainList {
    fn poll_slice(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TranscodeError>>> {
        loop {
            match &mut self.at {
                ListSendPosition::Head => {
                    self.at = ListSendPosition::Chunk(0);
                    return Poll::Ready(Some(Ok(self.head.clone())));
                }
                ListSendPosition::Chunk(index) if *index == self.chunks.len() => {
                    self.at = ListSendPosition::Done;
                    return Poll::Ready(Some(Ok(self.tail.clone())));
                }
                ListSendPosition::Chunk(index) => {
                    let index = *index;
                    let plain = ready!(self.poll_plain(index, cx))?;
                    self.at = ListSendPosition::Piece(index, plain, 0);
                }
                ListSendPosition::Piece(index, plain, piece) => match plain.get(*piece) {
                    Some(bytes) => {
                        let (index, bytes, is_first) = (*index, bytes.clone(), *piece == 0);
                        *piece += 1;
                        let skipped = if is_first { self.skipped(index) } else { 0 };
                        return Poll::Ready(Some(Ok(bytes.slice(skipped..))));
                    }
                    None => self.at = ListSendPosition::Chunk(*index + 1),
                },
                ListSendPosition::Done => return Poll::Ready(None),
            }
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.at, ListSendPosition::Done)
    }
}
