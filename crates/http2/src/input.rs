use std::mem::take;

use tokio::time::Instant;

use super::error::{ErrorCode, Http2Error};
use super::frame::{Frame, FrameHead, FrameKind, HEAD_BYTES, PAYLOAD_BYTES_MAX};

/// The client's bytes that do not form a complete frame or header block yet.
#[derive(Debug, Default)]
pub(super) struct Input {
    partial: Vec<u8>,
    block: Option<Block>,
    block_bytes_max: usize,
    /// Whether `partial` begins with a request, or with trailers, that may not begin yet.
    waits: bool,
    /// The time since which a header block has been unfinished.
    unfinished_since: Option<Instant>,
}

/// The receiver of a client's frames.
pub(super) trait FrameReceiver {
    /// Whether the request or the trailers of a stream may begin now. If not, they wait undecoded, with all frames
    /// after them.
    fn may_begin(&self, stream: u32) -> bool;

    /// Receives the next frame. The receiver handles stream errors itself, and later frames still arrive.
    fn receive(&mut self, heard: Result<ReceivedFrame<'_>, Http2Error>) -> Result<(), Http2Error>;
}

/// A frame, or a complete header block.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ReceivedFrame<'a> {
    /// The header block of a request or of its trailers.
    Fields {
        stream: u32,
        block: &'a [u8],
        ends: bool,
    },
    Other(Frame<'a>),
}

/// A header block that is not complete.
#[derive(Debug)]
struct Block {
    stream: u32,
    bytes: Vec<u8>,
    ends: bool,
    frames: usize,
}

/// The maximum number of frames of a header block.
const BLOCK_FRAMES_MAX: usize = 64;

impl Input {
    pub(super) fn new(block_bytes_max: usize) -> Self {
        Self { block_bytes_max, ..Self::default() }
    }

    /// Whether a request, or trailers, wait until they may begin. Nothing more may be read until then.
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// The time since which the client has owed the rest of a header block.
    pub(super) fn unfinished_since(&self) -> Option<Instant> {
        self.unfinished_since
    }

    /// The bytes of the unfinished header block, without an incomplete last frame.
    pub(super) fn unfinished_bytes(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.bytes.len())
    }

    /// Takes received bytes, and passes complete frames and header blocks to the receiver.
    pub(super) fn hear(&mut self, bytes: &[u8], receiver: &mut impl FrameReceiver) -> Result<(), Http2Error> {
        self.waits = false;
        let mut joined = take(&mut self.partial);
        let all = if joined.is_empty() {
            bytes
        } else {
            joined.extend_from_slice(bytes);
            &joined
        };
        let mut rest = all;
        while let Some(head) = FrameHead::read(rest) {
            if head.length > PAYLOAD_BYTES_MAX {
                return Err(Http2Error::Connection(ErrorCode::FrameSize, "frame too large"));
            }
            let Some((frame, more)) = rest.split_at_checked(HEAD_BYTES + head.length) else { break };
            if head.kind == FrameKind::Headers && self.block.is_none() && !receiver.may_begin(head.stream) {
                self.waits = true;
                break;
            }
            rest = more;
            self.hear_frame(Frame::read(head, &frame[HEAD_BYTES..]), receiver)?;
        }
        self.note_unfinished(rest);
        if joined.is_empty() {
            self.partial = rest.to_vec();
        } else {
            let used = all.len() - rest.len();
            joined.drain(..used);
            // An idle connection keeps no buffer.
            self.partial = if joined.is_empty() { Vec::new() } else { joined };
        }
        Ok(())
    }

    /// Records whether the client has begun a header block and not finished it. `rest` is an incomplete frame, or one
    /// that waits.
    fn note_unfinished(&mut self, rest: &[u8]) {
        let begins = FrameHead::read(rest)
            .is_some_and(|head| matches!(head.kind, FrameKind::Headers | FrameKind::Continuation) && !self.waits);
        if self.block.is_none() && !begins {
            self.unfinished_since = None;
        } else if self.unfinished_since.is_none() {
            self.unfinished_since = Some(Instant::now());
        }
    }

    fn hear_frame(
        &mut self,
        frame: Result<Frame<'_>, Http2Error>,
        receiver: &mut impl FrameReceiver,
    ) -> Result<(), Http2Error> {
        match (self.block.take(), frame) {
            (Some(mut block), Ok(Frame::Continuation { stream, block: more, is_whole })) if stream == block.stream => {
                block.bytes.extend_from_slice(more);
                block.frames += 1;
                if is_whole {
                    self.unfinished_since = None;
                    return receiver.receive(Ok(ReceivedFrame::Fields {
                        stream,
                        block: &block.bytes,
                        ends: block.ends,
                    }));
                }
                self.keep(block)
            }
            (Some(_), _) => Err(Http2Error::protocol("frame inside a header block")),
            (None, Ok(Frame::Continuation { .. })) => Err(Http2Error::protocol("CONTINUATION without a header block")),
            (None, Ok(Frame::Headers { stream, block, ends, is_whole: true })) => {
                self.unfinished_since = None;
                receiver.receive(Ok(ReceivedFrame::Fields { stream, block, ends }))
            }
            (None, Ok(Frame::Headers { stream, block, ends, is_whole: false })) => {
                self.keep(Block { stream, bytes: block.to_vec(), ends, frames: 1 })
            }
            (None, frame) => receiver.receive(frame.map(ReceivedFrame::Other)),
        }
    }

    /// Keeps an incomplete header block.
    ///
    /// # Errors
    /// The block is larger than its fields may be, or has too many frames.
    fn keep(&mut self, block: Block) -> Result<(), Http2Error> {
        if block.bytes.len() > self.block_bytes_max || block.frames > BLOCK_FRAMES_MAX {
            return Err(Http2Error::Connection(ErrorCode::EnhanceYourCalm, "header block too large"));
        }
        self.block = Some(block);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{END_HEADERS, END_STREAM, FrameKind};
    use super::*;

    fn frame(kind: FrameKind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        [&FrameHead::new(kind, flags, stream, payload.len()).bytes(), payload].concat()
    }

    /// Notes what it receives, and lets a number of requests begin.
    struct Notes(Vec<String>, usize);

    impl FrameReceiver for Notes {
        fn may_begin(&self, _: u32) -> bool {
            self.1 > 0
        }

        fn receive(&mut self, heard: Result<ReceivedFrame<'_>, Http2Error>) -> Result<(), Http2Error> {
            self.1 -= usize::from(matches!(heard, Ok(ReceivedFrame::Fields { .. })));
            self.0.push(format!("{:?}", heard?));
            Ok(())
        }
    }

    /// The frames received when the bytes arrive in pieces of that size.
    fn heard(bytes: &[u8], piece: usize) -> Result<Vec<String>, Http2Error> {
        let (mut input, mut notes) = (Input::new(100), Notes(Vec::new(), usize::MAX));
        for piece in bytes.chunks(piece) {
            input.hear(piece, &mut notes)?;
        }
        assert_eq!((input.partial.capacity(), input.block.is_none()), (0, true), "nothing is kept");
        Ok(notes.0)
    }

    #[test]
    fn blocked_request_holds_back_all_later_frames() {
        let [first, second] = [1, 3].map(|stream| frame(FrameKind::Headers, END_STREAM, stream, b"ab"));
        let rest = frame(FrameKind::Continuation, END_HEADERS, 1, b"cd");
        let [ping, last] = [(FrameKind::Ping, 0), (FrameKind::Continuation, 3)]
            .map(|(kind, stream)| frame(kind, END_HEADERS, stream, &[0; 8]));
        let bytes = [first, rest, second, last, ping].concat();
        for piece in 1..=bytes.len() {
            let (mut input, mut notes) = (Input::new(100), Notes(Vec::new(), 1));
            let mut pieces = bytes.chunks(piece);
            while !input.waits() {
                input.hear(pieces.next().expect("it waits before the end"), &mut notes).expect("valid frames");
            }
            assert_eq!((notes.0.len(), input.unfinished_since()), (1, None), "{piece}");
            notes.1 = 1;
            input.hear(&[], &mut notes).expect("valid frames");
            pieces.for_each(|piece| input.hear(piece, &mut notes).expect("valid frames"));
            assert_eq!((notes.0.len(), input.partial.capacity(), input.waits()), (3, 0, false), "{piece}");
        }
    }

    #[test]
    fn frames_are_parsed_for_any_chunking() {
        let bytes = [
            frame(FrameKind::Settings, 0, 0, &[]),
            frame(FrameKind::Headers, END_STREAM, 1, b"ab"),
            frame(FrameKind::Continuation, 0, 1, b""),
            frame(FrameKind::Continuation, END_HEADERS, 1, b"cd"),
            frame(FrameKind::Headers, END_HEADERS, 3, b"ef"),
            frame(FrameKind::Data, END_STREAM, 3, b"data"),
        ]
        .concat();
        let whole = heard(&bytes, bytes.len()).expect("right");
        assert_eq!(whole.len(), 4);
        assert_eq!(whole[1], format!("{:?}", ReceivedFrame::Fields { stream: 1, block: b"abcd", ends: true }));
        assert_eq!(whole[2], format!("{:?}", ReceivedFrame::Fields { stream: 3, block: b"ef", ends: false }));
        for piece in 1..bytes.len() {
            assert_eq!(heard(&bytes, piece).as_ref(), Ok(&whole), "{piece}");
        }
    }

    #[test]
    fn interleaved_or_endless_header_block_is_connection_error() {
        let begun = frame(FrameKind::Headers, 0, 1, b"ab");
        let wrong = [
            frame(FrameKind::Ping, 0, 0, &[0; 8]),
            frame(FrameKind::Unknown, 0, 0, b""),
            frame(FrameKind::Continuation, END_HEADERS, 3, b"cd"),
            frame(FrameKind::Headers, END_HEADERS, 1, b"cd"),
        ];
        for frame in wrong {
            assert!(matches!(
                heard(&[&begun[..], &frame].concat(), 1_000),
                Err(Http2Error::Connection(ErrorCode::Protocol, _))
            ));
            assert!(matches!(
                heard(&[&begun[..], &frame].concat(), 1),
                Err(Http2Error::Connection(ErrorCode::Protocol, _))
            ));
        }
        let alone = frame(FrameKind::Continuation, END_HEADERS, 1, b"cd");
        assert!(matches!(heard(&alone, 100), Err(Http2Error::Connection(ErrorCode::Protocol, _))));
        let crumbs = frame(FrameKind::Continuation, 0, 1, b"").repeat(BLOCK_FRAMES_MAX);
        let large = frame(FrameKind::Continuation, 0, 1, &[0; 99]);
        for more in [crumbs, large] {
            let told = heard(&[&begun[..], &more].concat(), 1_000);
            assert!(matches!(told, Err(Http2Error::Connection(ErrorCode::EnhanceYourCalm, _))));
        }
    }

    #[test]
    fn oversized_frame_is_refused_from_its_head() {
        let head = FrameHead::new(FrameKind::Data, 0, 1, PAYLOAD_BYTES_MAX + 1).bytes();
        assert!(matches!(heard(&head, 9), Err(Http2Error::Connection(ErrorCode::FrameSize, _))));
    }
}
