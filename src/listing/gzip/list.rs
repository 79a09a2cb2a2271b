use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::deflate::{WINDOW_BYTES, deflated, piece, pieces};
use super::member::GzipMember;
use super::text::SlicedText;
use crate::listing::chunk_writer::ChunkBatchPiece;
use crate::listing::list_body::{ByteSliceJoiner, ListBody};
use crate::listing::page_chunks::ChunkBatch;
use crate::wire::TranscodeError;

/// A LIST response that is being sent compressed.
#[derive(Debug)]
pub(crate) struct GzipListBody {
    list: ListBody,
    batches: Vec<ChunkBatch>,
    member: GzipMember,
    stage: GzipListStage,
    /// The text of the current batch, read if a piece of it must be compressed now or is sent uncompressed.
    reading: ChunkBatchReader,
    joined: ByteSliceJoiner,
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
    text: SlicedText,
}

impl GzipListBody {
    pub(crate) fn new(list: ListBody) -> Self {
        let batches = list.chunks.batches();
        let (reading, joined) = (ChunkBatchReader::default(), ByteSliceJoiner::default());
        Self { list, batches, member: GzipMember::begin(), stage: GzipListStage::Head, reading, joined }
    }

    /// Returns the next chunk; `None` after the last.
    pub(crate) fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, TranscodeError>>> {
        let mut joined = std::mem::take(&mut self.joined);
        let chunk = joined.poll(|| self.poll_slice(cx));
        self.joined = joined;
        chunk
    }

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
                GzipListStage::Piece(batch, piece) => {
                    if let Err(refused) = ready!(self.poll_piece(batch, piece, cx)) {
                        return Poll::Ready(Some(Err(refused)));
                    }
                }
                GzipListStage::Tail => {
                    self.member.put_plain(self.list.tail.clone());
                    self.member.end();
                    self.stage = GzipListStage::Over;
                }
                GzipListStage::Over => return Poll::Ready(None),
            }
        }
    }

    /// Appends a compressed piece of a list to the output.
    fn poll_piece(&mut self, at: usize, index: usize, cx: &mut Context<'_>) -> Poll<Result<(), TranscodeError>> {
        let batch = &self.batches[at];
        let wanted = ChunkBatchPiece { batch, behind: at.checked_sub(1).map(|at| &self.batches[at]), index };
        let made = match self.list.writer.deflated(wanted) {
            // The piece is cached in compressed form.
            Some(made) if made.bytes.is_some() => made,
            found => {
                if let Err(refused) = ready!(self.reading.poll(&mut self.list, batch, cx)) {
                    return Poll::Ready(Err(refused));
                }
                let text = &self.reading.text;
                let make = |before: &[u8]| {
                    let range = piece(text.len(), index);
                    let own = text.range(range.start.saturating_sub(WINDOW_BYTES)..range.start).to_vec();
                    let before = if index == 0 { before } else { own.as_slice() };
                    deflated(before, &text.range(range).to_vec(), index + 1 == pieces(text.len()))
                };
                match found {
                    Some(stored) => stored,
                    None => match ready!(self.list.poll_deflated(wanted, WINDOW_BYTES, cx, make)) {
                        Ok(made) => made,
                        Err(refused) => return Poll::Ready(Err(refused)),
                    },
                }
            }
        };
        let text = &self.reading.text;
        self.member.put(&made, || text.range(piece(text.len(), index)));
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

impl ChunkBatchReader {
    /// Completes when the whole batch has been read.
    fn poll(
        &mut self,
        list: &mut ListBody,
        batch: &ChunkBatch,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), TranscodeError>> {
        while let Some(index) = batch.chunks.clone().nth(self.chunks) {
            let plain = match ready!(list.poll_plain(index, cx)) {
                Ok(plain) => plain,
                Err(refused) => return Poll::Ready(Err(refused)),
            };
            self.chunks += 1;
            let mut skipped = list.skipped(index);
            for slice in plain.iter() {
                self.text.push(slice.slice(skipped..));
                skipped = 0;
            }
        }
        Poll::Ready(Ok(()))
    }
}
