use std::borrow::Cow;
use std::mem::take;

use tokio::time::Instant;

use super::error::{Http2Error, Http2ErrorCode};
use super::frame::{HEAD_BYTES, Http2Frame, Http2FrameHeader, Http2FrameType, PAYLOAD_BYTES_MAX};

/// The client's bytes that do not form a complete frame or header block yet.
#[derive(Debug, Default)]
pub(super) struct FrameInputBuffer {
    partial: Vec<u8>,
    block: Option<PartialHeaderBlock>,
    block_bytes_max: usize,
    /// Whether a request, trailers or data wait. Nothing more may be read until then.
    pub(super) is_paused: bool,
    /// The time since which the client has owed the rest of a header block.
    pub(super) unfinished_since: Option<Instant>,
}

/// A header block that is not complete.
#[derive(Debug)]
struct PartialHeaderBlock {
    stream: u32,
    bytes: Vec<u8>,
    end_stream: bool,
    frames: usize,
}

/// The maximum number of frames of a header block.
const BLOCK_FRAMES_MAX: usize = 64;

impl FrameInputBuffer {
    pub(super) fn new(block_bytes_max: usize) -> Self {
        Self { block_bytes_max, ..Self::default() }
    }

    /// The bytes of the unfinished header block, without an incomplete last frame.
    pub(super) fn unfinished_bytes(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.bytes.len())
    }

    /// Joins received bytes with the incomplete frame before them. The result is to be read by [`next`](Self::next),
    /// and its rest kept by [`keep`](Self::keep).
    pub(super) fn join<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let mut joined = take(&mut self.partial);
        if joined.is_empty() {
            return Cow::Borrowed(bytes);
        }
        joined.extend_from_slice(bytes);
        Cow::Owned(joined)
    }

    /// Takes the next frame; `None` if the rest is an incomplete one. A header block is complete: its frames are joined.
    ///
    /// It is `None` too if `accepts` refuses the header of a frame that begins a request or trailers, or has data. Then
    /// the frame waits undecoded, with everything after it.
    pub(super) fn next<'a>(
        &mut self,
        rest: &mut &'a [u8],
        accepts: impl Fn(&Http2FrameHeader) -> bool,
    ) -> Option<Result<Http2Frame<'a>, Http2Error>> {
        self.is_paused = false;
        loop {
            let head = Http2FrameHeader::read(rest)?;
            if head.length > PAYLOAD_BYTES_MAX {
                return Some(Err(Http2Error::Connection(Http2ErrorCode::FrameSize, "frame too large")));
            }
            let (frame, more) = rest.split_at_checked(HEAD_BYTES + head.length)?;
            let may_wait = matches!(head.kind, Http2FrameType::Headers | Http2FrameType::Data) && self.block.is_none();
            if may_wait && !accepts(&head) {
                self.is_paused = true;
                return None;
            }
            *rest = more;
            let (block, end_headers) = match (self.block.take(), Http2Frame::read(head, &frame[HEAD_BYTES..])) {
                (Some(mut block), Ok(Http2Frame::Continuation { stream, block: more, end_headers }))
                    if stream == block.stream =>
                {
                    block.bytes.extend_from_slice(more);
                    block.frames += 1;
                    (block, end_headers)
                }
                (Some(_), _) => return Some(Err(Http2Error::protocol("frame inside a header block"))),
                (None, Ok(Http2Frame::Continuation { .. })) => {
                    return Some(Err(Http2Error::protocol("CONTINUATION without a header block")));
                }
                (None, Ok(Http2Frame::Headers { stream, block, end_stream, end_headers: false })) => {
                    (PartialHeaderBlock { stream, bytes: block.into_owned(), end_stream, frames: 1 }, false)
                }
                (None, frame) => {
                    if matches!(frame, Ok(Http2Frame::Headers { .. })) {
                        self.unfinished_since = None;
                    }
                    return Some(frame);
                }
            };
            if end_headers {
                self.unfinished_since = None;
                let PartialHeaderBlock { stream, bytes, end_stream, .. } = block;
                return Some(Ok(Http2Frame::Headers { stream, block: bytes.into(), end_stream, end_headers }));
            }
            if block.bytes.len() > self.block_bytes_max || block.frames > BLOCK_FRAMES_MAX {
                return Some(Err(Http2Error::Connection(Http2ErrorCode::EnhanceYourCalm, "header block too large")));
            }
            self.block = Some(block);
        }
    }

    /// Keeps the last `left` bytes: an incomplete frame, or what waits. Records whether the client has begun a header
    /// block and not finished it.
    pub(super) fn keep(&mut self, bytes: Cow<'_, [u8]>, left: usize) {
        let used = bytes.len() - left;
        let begins = Http2FrameHeader::read(&bytes[used..]).is_some_and(|head| {
            matches!(head.kind, Http2FrameType::Headers | Http2FrameType::Continuation) && !self.is_paused
        });
        if self.block.is_none() && !begins {
            self.unfinished_since = None;
        } else if self.unfinished_since.is_none() {
            self.unfinished_since = Some(Instant::now());
        }
        self.partial = match bytes {
            Cow::Borrowed(bytes) => bytes[used..].to_vec(),
            // An idle connection keeps no buffer.
            Cow::Owned(_) if left == 0 => Vec::new(),
            Cow::Owned(mut joined) => {
                joined.drain(..used);
                joined
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{END_HEADERS, END_STREAM, Http2FrameType};
    use super::*;

    fn frame(kind: Http2FrameType, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        [&Http2FrameHeader::new(kind, flags, stream, payload.len()).bytes(), payload].concat()
    }

    /// Notes the frames in these bytes, and lets a number of requests begin.
    fn hear(
        input: &mut FrameInputBuffer,
        bytes: &[u8],
        (notes, begin): &mut (Vec<String>, usize),
    ) -> Result<(), Http2Error> {
        let bytes = input.join(bytes);
        let mut rest = &*bytes;
        while let Some(frame) = input.next(&mut rest, |head| head.kind == Http2FrameType::Data || *begin > 0) {
            let frame = frame?;
            *begin -= usize::from(matches!(frame, Http2Frame::Headers { .. }));
            notes.push(format!("{frame:?}"));
        }
        let left = rest.len();
        input.keep(bytes, left);
        Ok(())
    }

    /// The frames received when the bytes arrive in pieces of that size.
    fn received(bytes: &[u8], piece: usize) -> Result<Vec<String>, Http2Error> {
        let (mut input, mut notes) = (FrameInputBuffer::new(100), (Vec::new(), usize::MAX));
        for piece in bytes.chunks(piece) {
            hear(&mut input, piece, &mut notes)?;
        }
        assert_eq!((input.partial.capacity(), input.block.is_none()), (0, true), "nothing is kept");
        Ok(notes.0)
    }

    #[test]
    fn blocked_request_holds_back_all_later_frames() {
        let [first, second] = [1, 3].map(|stream| frame(Http2FrameType::Headers, END_STREAM, stream, b"ab"));
        let rest = frame(Http2FrameType::Continuation, END_HEADERS, 1, b"cd");
        let [ping, last] = [(Http2FrameType::Ping, 0), (Http2FrameType::Continuation, 3)]
            .map(|(kind, stream)| frame(kind, END_HEADERS, stream, &[0; 8]));
        let bytes = [first, rest, second, last, ping].concat();
        for piece in 1..=bytes.len() {
            let (mut input, mut notes) = (FrameInputBuffer::new(100), (Vec::new(), 1));
            let mut pieces = bytes.chunks(piece);
            while !input.is_paused {
                hear(&mut input, pieces.next().expect("it waits before the end"), &mut notes).expect("valid frames");
            }
            assert_eq!((notes.0.len(), input.unfinished_since), (1, None), "{piece}");
            notes.1 = 1;
            hear(&mut input, &[], &mut notes).expect("valid frames");
            pieces.for_each(|piece| hear(&mut input, piece, &mut notes).expect("valid frames"));
            assert_eq!((notes.0.len(), input.partial.capacity(), input.is_paused), (3, 0, false), "{piece}");
        }
    }

    #[test]
    fn frames_are_parsed_for_any_chunking() {
        let bytes = [
            frame(Http2FrameType::Settings, 0, 0, &[]),
            frame(Http2FrameType::Headers, END_STREAM, 1, b"ab"),
            frame(Http2FrameType::Continuation, 0, 1, b""),
            frame(Http2FrameType::Continuation, END_HEADERS, 1, b"cd"),
            frame(Http2FrameType::Headers, END_HEADERS, 3, b"ef"),
            frame(Http2FrameType::Data, END_STREAM, 3, b"data"),
        ]
        .concat();
        let whole = received(&bytes, bytes.len()).expect("right");
        assert_eq!(whole.len(), 4);
        assert_eq!(
            whole[1],
            format!(
                "{:?}",
                Http2Frame::Headers { stream: 1, block: Cow::Borrowed(b"abcd"), end_stream: true, end_headers: true }
            )
        );
        assert_eq!(
            whole[2],
            format!(
                "{:?}",
                Http2Frame::Headers { stream: 3, block: Cow::Borrowed(b"ef"), end_stream: false, end_headers: true }
            )
        );
        for piece in 1..bytes.len() {
            assert_eq!(received(&bytes, piece).as_ref(), Ok(&whole), "{piece}");
        }
    }

    #[test]
    fn interleaved_or_endless_header_block_is_connection_error() {
        let begun = frame(Http2FrameType::Headers, 0, 1, b"ab");
        let wrong = [
            frame(Http2FrameType::Ping, 0, 0, &[0; 8]),
            frame(Http2FrameType::Unknown, 0, 0, b""),
            frame(Http2FrameType::Continuation, END_HEADERS, 3, b"cd"),
            frame(Http2FrameType::Headers, END_HEADERS, 1, b"cd"),
        ];
        for frame in wrong {
            assert!(matches!(
                received(&[&begun[..], &frame].concat(), 1_000),
                Err(Http2Error::Connection(Http2ErrorCode::Protocol, _))
            ));
            assert!(matches!(
                received(&[&begun[..], &frame].concat(), 1),
                Err(Http2Error::Connection(Http2ErrorCode::Protocol, _))
            ));
        }
        let alone = frame(Http2FrameType::Continuation, END_HEADERS, 1, b"cd");
        assert!(matches!(received(&alone, 100), Err(Http2Error::Connection(Http2ErrorCode::Protocol, _))));
        let crumbs = frame(Http2FrameType::Continuation, 0, 1, b"").repeat(BLOCK_FRAMES_MAX);
        let large = frame(Http2FrameType::Continuation, 0, 1, &[0; 99]);
        for more in [crumbs, large] {
            let reported = received(&[&begun[..], &more].concat(), 1_000);
            assert!(matches!(reported, Err(Http2Error::Connection(Http2ErrorCode::EnhanceYourCalm, _))));
        }
    }

    #[test]
    fn oversized_frame_is_refused_from_its_head() {
        let head = Http2FrameHeader::new(Http2FrameType::Data, 0, 1, PAYLOAD_BYTES_MAX + 1).bytes();
        assert!(matches!(received(&head, 9), Err(Http2Error::Connection(Http2ErrorCode::FrameSize, _))));
    }
}
