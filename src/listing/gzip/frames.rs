use std::collections::VecDeque;
use std::task::{Context, Poll, ready};

use bytes::Bytes;

use super::deflate::{deflated, piece, pieces};
use super::member::GzipMember;
use super::text::SegmentedBytes;
use crate::cache::{CacheReader, FrameName};
use crate::listing::cost;
use crate::listing::scan_pacer::{ScanBudget, YieldPause};

/// The frames of one watch as one gzip member, which is flushed after each frame.
///
/// Frames that watches share are compressed once for all watches that were sent the same frame before. A frame of this
/// watch alone is compressed for it, or stored if it is short. An idle watch holds no buffer and no window.
#[derive(Debug)]
pub(crate) struct GzipFrames {
    reader: CacheReader,
    member: GzipMember,
    /// The pieces that are not compressed yet.
    pending: VecDeque<FramePiece>,
    last: LastPiece,
    is_begun: bool,
    pause: YieldPause,
    /// The budget for frames that are compressed for this watch alone.
    budget: ScanBudget,
}

#[derive(Debug)]
enum FramePiece {
    /// A part of a frame that other watches have too.
    Shared(Bytes),
    /// A part of frames that only this watch has.
    Own(Bytes),
}

/// The last piece that was sent, to which the next one may refer.
#[derive(Debug)]
enum LastPiece {
    None,
    Shared(FrameName),
    /// Kept only while more pieces follow at once.
    Own(Bytes),
}

/// The length below which frames of one watch are stored.
const OWN_BYTES_MIN: usize = 512;
/// The number of bytes that a watch compresses before it yields to other tasks.
const COMPRESSED_BYTES_MAX: usize = 32 << 10;

impl GzipFrames {
    pub(crate) fn new(reader: CacheReader, budget: ScanBudget) -> Self {
        let (member, pending, pause) = (GzipMember::default(), VecDeque::new(), YieldPause::default());
        Self { reader, member, pending, last: LastPiece::None, is_begun: false, pause, budget }
    }

    /// Whether nothing is left to compress or to send.
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty() && self.member.is_drained()
    }

    /// Takes the next frames, after the previous ones were sent.
    pub(crate) fn push(&mut self, frames: &mut Vec<Bytes>) {
        let mut own = Vec::new();
        for frame in frames.drain(..) {
            // Every frame that is kept for others has a second handle.
            if frame.is_unique() {
                own.push(frame);
            } else {
                self.push_own(&mut own);
                self.pending.extend(split(&frame).map(FramePiece::Shared));
            }
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
        let mut compressed = 0;
        while compressed < COMPRESSED_BYTES_MAX
            && let Some(piece) = self.pending.front()
        {
            match piece {
                FramePiece::Shared(frame) => {
                    let previous = if let LastPiece::Shared(name) = self.last { Some(name) } else { None };
                    let make = |before: &[u8]| {
                        compressed += frame.len();
                        deflated(before, frame, true)
                    };
                    let Poll::Ready((name, made)) = self.reader.chunks().poll_deflated_frame(frame, previous, cx, make)
                    else {
                        break;
                    };
                    begin(&mut self.member, &mut self.is_begun);
                    self.member.put(&made, || SegmentedBytes::from_iter([frame.clone()]));
                    self.last = LastPiece::Shared(name);
                }
                FramePiece::Own(text) => {
                    let before = if let LastPiece::Own(before) = &self.last { before.as_ref() } else { &[] };
                    if before.is_empty() && text.len() < OWN_BYTES_MIN {
                        begin(&mut self.member, &mut self.is_begun);
                        self.member.put_plain(text.clone());
                    } else {
                        let Poll::Ready(_slice) = self.budget.poll(cx) else { break };
                        let left = self.budget.left();
                        *left = left.saturating_sub(text.len() * cost::COMPRESSED_BYTE);
                        begin(&mut self.member, &mut self.is_begun);
                        compressed += text.len();
                        let made = deflated(before, text, true);
                        self.member.put(&made, || SegmentedBytes::from_iter([text.clone()]));
                    }
                    self.last = LastPiece::Own(text.clone());
                }
            }
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
    pub(crate) fn rest(&mut self) {
        if self.is_empty()
            && let LastPiece::Own(_) = self.last
        {
            self.last = LastPiece::None;
            self.budget.renew();
        }
    }

    #[cfg(test)]
    pub(super) fn holds_nothing(&self) -> bool {
        self.is_empty() && self.pending.capacity() == 0 && !matches!(self.last, LastPiece::Own(_))
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

fn begin(member: &mut GzipMember, is_begun: &mut bool) {
    if !std::mem::replace(is_begun, true) {
        *member = GzipMember::begin();
    }
}

fn split(text: &Bytes) -> impl Iterator<Item = Bytes> {
    (0..pieces(text.len())).map(|index| text.slice(piece(text.len(), index)))
}
