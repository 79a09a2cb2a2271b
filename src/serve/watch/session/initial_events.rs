use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::frame_batch::{FrameBatch, Portion};
use crate::auth::Permit;
use crate::cache::{CacheReader, Chunk, Cursor, PlainChunk, Snapshot};
use crate::listing::ChunkWriter;
use crate::listing::PageChunks;
use crate::listing::Rest;
use crate::serve::limits::StatePin;
use crate::wire::Refused;

/// The initial state of a watch, as ADDED events.
#[derive(Debug)]
pub(super) struct InitialEvents {
    pub(super) snapshot: Snapshot,
    pub(super) pin: StatePin,
    how: How,
}

#[derive(Debug)]
enum How {
    /// Frame by frame, from the first key not yet sent.
    Frames { next: String },
    /// In chunks of frames that all watches share, from the first piece not yet sent.
    Chunks(Box<SharedFrames>),
}

#[derive(Debug)]
struct SharedFrames {
    writer: ChunkWriter,
    chunks: PageChunks,
    index: usize,
    /// The bytes of the current chunk, once it is encoded.
    plain: Option<PlainChunk>,
    piece: usize,
    rest: Rest,
}

/// How many frames were put into a batch, and whether they are the last.
type Put = (usize, Portion);

impl InitialEvents {
    pub(super) fn new(snapshot: Snapshot, pin: StatePin) -> Self {
        Self { snapshot, pin, how: How::Frames { next: String::new() } }
    }

    /// Sends the state in shared chunks, if the watch's view consists of whole chunks.
    pub(super) fn in_chunks(
        self,
        shared: Arc<[Chunk]>,
        permit: &Permit,
        cursor: &Cursor,
        reader: &CacheReader,
    ) -> Self {
        if !PageChunks::suit(cursor.view()) {
            return self;
        }
        let mut chunks = PageChunks::new(self.snapshot.clone(), shared);
        chunks.put_chunks(permit, cursor.view(), reader.namespaced(), None, usize::MAX);
        let writer = ChunkWriter::added(reader.clone(), cursor.renderer().clone());
        let how = How::Chunks(Box::new(SharedFrames {
            writer,
            chunks,
            index: 0,
            plain: None,
            piece: 0,
            rest: Rest::default(),
        }));
        Self { how, ..self }
    }

    /// Appends about `room` bytes of frames to an empty batch. It puts at least one frame or one piece of a chunk,
    /// unless the scan budget is used up first.
    pub(super) fn poll_put(&mut self, cx: &mut Context<'_>, out: &mut FrameBatch<'_>) -> Poll<Result<Put, Refused>> {
        match &mut self.how {
            How::Chunks(shared) => shared.poll_put(cx, out),
            How::Frames { next } => {
                let more = out.put(&self.snapshot, out.cursor.view(), next, FrameBatch::added)?;
                let portion = more.map_or(Portion::Last(()), |key| {
                    *next = key;
                    Portion::More
                });
                Poll::Ready(Ok((out.batch.len(), portion)))
            }
        }
    }
}

impl SharedFrames {
    fn poll_put(&mut self, cx: &mut Context<'_>, out: &mut FrameBatch<'_>) -> Poll<Result<Put, Refused>> {
        let FrameBatch { room, batch, .. } = out;
        let (mut frames, mut bytes) = (0, 0);
        ready!(self.rest.poll(cx));
        while self.index < self.chunks.len() {
            let plain = match &self.plain {
                Some(plain) => plain,
                None => match self.writer.poll_plain(&self.chunks, self.index, cx) {
                    Poll::Pending if !batch.is_empty() => return Poll::Ready(Ok((frames, Portion::More))),
                    polled => {
                        if self.writer.has_worked() {
                            self.rest.begin();
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
            if !batch.is_empty() && bytes + piece.len() > *room {
                return Poll::Ready(Ok((frames, Portion::More)));
            }
            if self.piece == 0 {
                frames += self.chunks.chunk(self.index).lengths().items;
            }
            bytes += piece.len();
            batch.push(piece.clone());
            self.piece += 1;
        }
        // A bookmark follows the last frame. It gets its own batch if this one must not be copied.
        Poll::Ready(Ok((frames, if bytes > *room { Portion::More } else { Portion::Last(()) })))
    }
}
