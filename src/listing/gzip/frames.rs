use std::collections::VecDeque;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::deflate::{deflated, piece, pieces};
use super::member::GzipMember;
use crate::cache::{CacheReader, EncodedChunkKey, FrameName};
use crate::listing::cost;
use crate::listing::scan_pacer::{ScanBudget, YieldPause};

/// The frames of one watch as one gzip member, which is flushed after each frame.
///
/// The chunks of an initial state are compressed once for all watches, as long as the feed caches them. Other frames
/// that watches share are compressed once for all watches that were sent the same frame before. A frame of this watch
/// alone is compressed for it, or stored if it is short. An idle watch holds no buffer and no window.
#[derive(Debug)]
pub(crate) struct GzipFrames {
    reader: CacheReader,
    member: GzipMember,
    /// The pieces that are not compressed yet.
    pending: VecDeque<FramePiece>,
    last: LastPiece,
    is_begun: bool,
    /// Whether no event after the initial state refers to an earlier one.
    is_secret: bool,
    pause: YieldPause,
    /// The budget for everything that this watch compresses, for itself or as the first.
    budget: ScanBudget,
}

#[derive(Debug)]
enum FramePiece {
    /// A part of a piece of the initial state, with the key of the piece and the index of the part.
    Chunk(EncodedChunkKey, usize, Bytes),
    /// A part of a frame that other watches have too.
    Shared(Bytes),
    /// A part of frames that only this watch has.
    Own(Bytes),
}

/// The last piece that was sent, to which the next one may refer.
#[derive(Debug)]
enum LastPiece {
    None,
    /// The name of the chunk, and the part of it with its CRC-32. Kept until the watch is idle.
    Chunk(u128, u32, Bytes),
    Shared(FrameName),
    /// Kept until the watch is idle.
    Own(Bytes),
}

/// The watch must wait until its caller may use the CPU again.
struct BudgetSpent;

/// The length below which frames of one watch are stored.
const OWN_BYTES_MIN: usize = 512;
/// The fixed cost of a compression, as a number of bytes.
const CALL_BYTES: usize = 4 << 10;
/// The number of bytes that a watch compresses before it yields to other tasks.
const COMPRESSED_BYTES_MAX: usize = 32 << 10;

impl GzipFrames {
    pub(crate) fn new(reader: CacheReader, budget: ScanBudget, is_secret: bool) -> Self {
        let (member, pending, pause) = (GzipMember::default(), VecDeque::new(), YieldPause::default());
        Self { reader, member, pending, last: LastPiece::None, is_begun: false, is_secret, pause, budget }
    }

    /// Whether nothing is left to compress or to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.member.is_drained()
    }

    /// Queues the next frames, after the previous ones were sent. `keys` are those of the first frames that are pieces
    /// of shared chunks.
    pub(crate) fn push(&mut self, frames: &mut Vec<Bytes>, keys: &[Option<EncodedChunkKey>]) {
        if self.is_secret && keys.is_empty() {
            self.last = LastPiece::None;
        }
        let mut own = Vec::new();
        for (at, frame) in frames.drain(..).enumerate() {
            let key = keys.get(at).copied().flatten();
            // Every frame that is kept for others has a second handle.
            if key.is_none() && frame.is_unique() {
                own.push(frame);
                continue;
            }
            self.push_own(&mut own);
            self.pending.extend(split(&frame).enumerate().map(|(part, text)| match key {
                Some(key) => FramePiece::Chunk(key, part, text),
                None => FramePiece::Shared(text),
            }));
        }
        self.push_own(&mut own);
    }

    fn push_own(&mut self, own: &mut Vec<Bytes>) {
        let text = match own.as_mut_slice() {
            [] => return,
            [text] => std::mem::take(text),
            texts => texts.concat().into(),
        };
        own.clear();
        self.pending.extend(split(&text).map(FramePiece::Own));
    }

    /// Returns the next compressed bytes; `None` if all frames were returned.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Some(bytes) = self.member.next_joined() {
            return Poll::Ready(Some(bytes));
        }
        ready!(self.pause.poll(cx));
        let (chunks, cx) = (self.reader.chunks(), cx.waker());
        let mut compressed = 0;
        while compressed < COMPRESSED_BYTES_MAX
            && let Some(piece) = self.pending.front()
        {
            let (FramePiece::Chunk(_, _, text) | FramePiece::Shared(text) | FramePiece::Own(text)) = piece;
            let budget = &mut self.budget;
            let mut deflate = |before: &[u8]| {
                let Poll::Ready(_slice) = budget.poll(&mut Context::from_waker(cx)) else { return Err(BudgetSpent) };
                let cost = text.len() + CALL_BYTES;
                *budget.left() = budget.left().saturating_sub(cost * cost::COMPRESSED_BYTE);
                compressed += cost;
                Ok(deflated(before, text, true))
            };
            let context = Context::from_waker(cx);
            let polled = match (piece, &self.last) {
                (FramePiece::Chunk(key, part, _), last) => {
                    let (behind, before) = match last {
                        LastPiece::Chunk(chunk, crc, before) => (Some((*chunk, *crc)), before.as_ref()),
                        _ => (None, [].as_slice()),
                    };
                    let polled = chunks.poll_deflated(key.of_part(*part, behind), &context, || deflate(before));
                    polled.map_ok(|made| (LastPiece::Chunk(key.chunk, made.crc, text.clone()), Some(made)))
                }
                (FramePiece::Shared(_), last) => {
                    let previous = if let LastPiece::Shared(name) = last { Some(name) } else { None };
                    let previous = previous.filter(|_| !self.is_secret);
                    let polled = chunks.poll_deflated_frame(text, previous, &context, deflate);
                    polled.map_ok(|(name, made)| (LastPiece::Shared(name), Some(made)))
                }
                (FramePiece::Own(_), last) => {
                    let before = if let LastPiece::Own(before) = last { before.as_ref() } else { &[] };
                    let is_short = before.is_empty() && text.len() < OWN_BYTES_MIN;
                    let made = if is_short { Ok(None) } else { deflate(before).map(Some) };
                    Poll::Ready(made.map(|made| (LastPiece::Own(text.clone()), made)))
                }
            };
            let Poll::Ready(Ok((last, made))) = polled else { break };
            if !std::mem::replace(&mut self.is_begun, true) {
                self.member = GzipMember::begin();
            }
            match made {
                Some(made) => self.member.put(&made, || [text.clone()]),
                None => self.member.put_plain(text.clone()),
            }
            self.last = last;
            self.pending.pop_front();
        }
        if self.pending.is_empty() {
            self.pending = VecDeque::new();
        } else if compressed >= COMPRESSED_BYTES_MAX {
            self.pause.begin();
        }
        self.member.sync();
        match self.member.next_joined() {
            None if !self.pending.is_empty() => Poll::Pending,
            bytes => Poll::Ready(bytes),
        }
    }

    /// Releases what an idle watch does not need, if everything was sent.
    pub(crate) fn release_idle(&mut self) {
        if self.is_empty() {
            if let LastPiece::Own(_) | LastPiece::Chunk(..) = self.last {
                self.last = LastPiece::None;
            }
            self.budget.renew();
        }
    }

    #[cfg(test)]
    pub(super) fn holds_nothing(&self) -> bool {
        self.is_empty()
            && self.pending.capacity() == 0
            && !matches!(self.last, LastPiece::Own(_) | LastPiece::Chunk(..))
    }

    /// Returns the end of the member once, after all frames were returned. Without any frame, the stream is empty, as
    /// with the apiserver.
    pub(crate) fn end(&mut self) -> Option<Bytes> {
        if !std::mem::take(&mut self.is_begun) {
            return None;
        }
        self.member.end();
        self.member.next_joined()
    }
}

fn split(text: &Bytes) -> impl Iterator<Item = Bytes> {
    (0..pieces(text.len())).map(|index| text.slice(piece(text.len(), index)))
}
