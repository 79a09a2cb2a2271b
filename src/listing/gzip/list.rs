use std::ops::Range;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::deflate::{WINDOW_BYTES, deflated, piece, pieces};
use super::member::GzipMember;
use crate::listing::chunk_writer::{ChunkBatchPiece, ListChunkWriter};
use crate::listing::list_body::{ListSlices, PlainList};
use crate::listing::page::ChunkBatch;
use crate::wire::TranscodeError;

/// A LIST response that is being sent compressed.
#[derive(Debug)]
pub(crate) struct GzipList {
    list: PlainList,
    batches: Vec<ChunkBatch>,
    member: GzipMember,
    stage: GzipListStage,
    /// The text of the current batch, read if a piece of it must be compressed now or is sent uncompressed.
    reading: ChunkBatchReader,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GzipListStage {
    Head,
    /// A piece of a batch, by the indexes of the batch and of the piece.
    Piece(usize, usize),
    Tail,
    Over,
}

/// A reader of a batch, chunk by chunk.
#[derive(Debug, Default)]
struct ChunkBatchReader {
    /// The number of chunks that were read.
    chunks: usize,
    slices: Vec<Bytes>,
    /// The length of the text that the slices form.
    len: usize,
}

impl GzipList {
    pub(crate) fn new(list: PlainList) -> Self {
        let batches = list.chunks.batches();
        let (member, reading) = (GzipMember::begin(), ChunkBatchReader::default());
        Self { list, batches, member, stage: GzipListStage::Head, reading }
    }

    /// Appends a compressed piece of a list to the output.
    fn poll_piece(&mut self, at: usize, index: usize, cx: &mut Context<'_>) -> Poll<Result<(), TranscodeError>> {
        let batch = &self.batches[at];
        let key = ChunkBatchPiece { batch, previous: at.checked_sub(1).map(|at| &self.batches[at]), index };
        let made = match self.list.writer.deflated(key) {
            // The piece is cached in compressed form.
            Some(made) if made.bytes.is_some() => made,
            found => {
                ready!(self.reading.poll(&mut self.list, batch, cx))?;
                let text = &self.reading;
                let make = |before: &[u8]| {
                    let range = piece(text.len, index);
                    let own = text.bytes(range.start.saturating_sub(WINDOW_BYTES)..range.start);
                    let before = if index == 0 { before } else { own.as_slice() };
                    deflated(before, &text.bytes(range), index + 1 == pieces(text.len))
                };
                match found {
                    Some(stored) => stored,
                    None => {
                        let deflate = |writer: &ListChunkWriter, chunks: &_, cx: &Context<'_>| {
                            writer.poll_deflated(chunks, key, WINDOW_BYTES, cx, make)
                        };
                        ready!(self.list.poll_paced(key.is_shared(), cx, deflate))?
                    }
                }
            }
        };
        let text = &self.reading;
        self.member.put(&made, || text.range(piece(text.len, index)));
        if made.is_last {
            self.reading = ChunkBatchReader::default();
            self.stage =
                if at + 1 < self.batches.len() { GzipListStage::Piece(at + 1, 0) } else { GzipListStage::Tail };
        } else {
            self.stage = GzipListStage::Piece(at, index + 1);
        }
        Poll::Ready(Ok(()))
    }
}

impl ListSlices for GzipList {
    fn poll_slice(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TranscodeError>>> {
        loop {
            if let Some(slice) = self.member.next() {
                return Poll::Ready(Some(Ok(slice)));
            }
            match self.stage {
                GzipListStage::Head => {
                    self.member.put_plain(self.list.head.clone());
                    self.stage = if self.batches.is_empty() { GzipListStage::Tail } else { GzipListStage::Piece(0, 0) };
                }
                GzipListStage::Piece(batch, piece) => ready!(self.poll_piece(batch, piece, cx))?,
                GzipListStage::Tail => {
                    self.member.put_plain(self.list.tail.clone());
                    self.member.end();
                    self.stage = GzipListStage::Over;
                }
                GzipListStage::Over => return Poll::Ready(None),
            }
        }
    }

    fn is_over(&self) -> bool {
        // The end of the stream is sent in a frame of its own.
        false
    }
}

impl ChunkBatchReader {
    /// Completes when the whole batch has been read.
    fn poll(
        &mut self,
        list: &mut PlainList,
        batch: &ChunkBatch,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TranscodeError>> {
        while let Some(index) = batch.chunks.clone().nth(self.chunks) {
            let plain = ready!(list.poll_plain(index, cx))?;
            self.chunks += 1;
            let mut skipped = list.skipped(index);
            for slice in plain.iter() {
                self.len += slice.len() - skipped;
                self.slices.push(slice.slice(skipped..));
                skipped = 0;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the part of the text in `range`, without copying it.
    fn range(&self, range: Range<usize>) -> impl Iterator<Item = Bytes> {
        let mut end = 0;
        self.slices.iter().filter_map(move |slice| {
            let at = end;
            end += slice.len();
            let (from, to) = (range.start.clamp(at, end), range.end.clamp(at, end));
            (from < to).then(|| slice.slice(from - at..to - at))
        })
    }

    fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        self.range(range).collect::<Vec<_>>().concat()
    }
}
