//! Encoding of frame headers, and parsing of the client's frames (RFC 9113 §4, RFC 9113 §6).

use std::borrow::Cow;

use super::error::{Http2Error, Http2ErrorCode};

pub(super) const HEAD_BYTES: usize = 9;
/// The maximum payload of a client's frame: the minimum that every server must accept, which is also announced.
pub(super) const PAYLOAD_BYTES_MAX: usize = 16_384;
/// The highest stream identifier, which is also the largest window.
pub(super) const HIGHEST: u32 = (1 << 31) - 1;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACK: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Http2FrameType {
    Data,
    Headers,
    Priority,
    Reset,
    Settings,
    PushPromise,
    Ping,
    GoAway,
    WindowUpdate,
    Continuation,
    /// An extension frame, which the server ignores.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Http2FrameHeader {
    /// The size of the payload in bytes.
    pub(super) length: usize,
    pub(super) kind: Http2FrameType,
    pub(super) flags: u8,
    pub(super) stream: u32,
}

/// A frame that a client sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Http2Frame<'a> {
    Data {
        stream: u32,
        data: &'a [u8],
        /// The number of bytes that the frame takes from the windows, including padding.
        flow: usize,
        end_stream: bool,
    },
    Headers {
        stream: u32,
        block: Cow<'a, [u8]>,
        end_stream: bool,
        end_headers: bool,
    },
    Continuation {
        stream: u32,
        block: &'a [u8],
        end_headers: bool,
    },
    Reset {
        stream: u32,
    },
    Settings(&'a [u8]),
    Ping([u8; 8]),
    Pong([u8; 8]),
    GoAway,
    WindowUpdate {
        stream: u32,
        increment: u32,
    },
    /// An extension frame, a PRIORITY frame or the acknowledgement of settings, which the server ignores.
    Ignored,
}

impl Http2FrameHeader {
    pub(super) fn new(kind: Http2FrameType, flags: u8, stream: u32, length: usize) -> Self {
        Self { length, kind, flags, stream }
    }

    /// Reads the frame header at the start of `bytes`; `None` if it is incomplete.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let [l1, l2, l3, kind, flags, s1, s2, s3, s4] = *bytes.first_chunk::<HEAD_BYTES>()?;
        let length = u32::from_be_bytes([0, l1, l2, l3]) as usize;
        // The highest bit is reserved.
        let stream = u32::from_be_bytes([s1, s2, s3, s4]) & HIGHEST;
        Some(Self { length, kind: Http2FrameType::of(kind), flags, stream })
    }

    pub(super) fn bytes(self) -> [u8; HEAD_BYTES] {
        let [_, l1, l2, l3] = u32::try_from(self.length).unwrap_or(u32::MAX).to_be_bytes();
        let [s1, s2, s3, s4] = self.stream.to_be_bytes();
        [l1, l2, l3, self.kind as u8, self.flags, s1, s2, s3, s4]
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

impl Http2FrameType {
    fn of(byte: u8) -> Self {
        match byte {
            0 => Self::Data,
            1 => Self::Headers,
            2 => Self::Priority,
            3 => Self::Reset,
            4 => Self::Settings,
            5 => Self::PushPromise,
            6 => Self::Ping,
            7 => Self::GoAway,
            8 => Self::WindowUpdate,
            9 => Self::Continuation,
            _ => Self::Unknown,
        }
    }
}

impl<'a> Http2Frame<'a> {
    /// Parses a frame with a complete payload.
    ///
    /// # Errors
    /// The frame is invalid regardless of the frames before it.
    pub(super) fn read(head: Http2FrameHeader, payload: &'a [u8]) -> Result<Self, Http2Error> {
        let Http2FrameHeader { kind, stream, .. } = head;
        let of_connection = match kind {
            Http2FrameType::Settings | Http2FrameType::Ping | Http2FrameType::GoAway => stream != 0,
            Http2FrameType::WindowUpdate | Http2FrameType::Unknown => false,
            _ => stream == 0,
        };
        if of_connection {
            return Err(Http2Error::protocol("frame with an invalid stream identifier"));
        }
        Ok(match kind {
            Http2FrameType::Data => {
                let data = without_padding(head, payload)?;
                Self::Data { stream, data, flow: payload.len(), end_stream: head.has(END_STREAM) }
            }
            Http2FrameType::Headers => {
                let block = without_priority(head, without_padding(head, payload)?)?.into();
                Self::Headers { stream, block, end_stream: head.has(END_STREAM), end_headers: head.has(END_HEADERS) }
            }
            Http2FrameType::Continuation => {
                Self::Continuation { stream, block: payload, end_headers: head.has(END_HEADERS) }
            }
            Http2FrameType::Priority => match payload.first_chunk() {
                Some(dependency) if payload.len() == 5 => independent(stream, *dependency).map(|()| Self::Ignored)?,
                _ => return Err(Http2Error::Stream(stream, Http2ErrorCode::FrameSize)),
            },
            Http2FrameType::Reset => number(payload).map(|_| Self::Reset { stream })?,
            Http2FrameType::Settings if head.has(ACK) && payload.is_empty() => Self::Ignored,
            Http2FrameType::Settings if head.has(ACK) || !payload.len().is_multiple_of(6) => return Err(wrong_size()),
            Http2FrameType::Settings => Self::Settings(payload),
            Http2FrameType::Ping => {
                let Ok(opaque) = payload.try_into() else { return Err(wrong_size()) };
                if head.has(ACK) { Self::Pong(opaque) } else { Self::Ping(opaque) }
            }
            Http2FrameType::GoAway if payload.len() < 8 => return Err(wrong_size()),
            Http2FrameType::GoAway => Self::GoAway,
            Http2FrameType::WindowUpdate => match number(payload)? & HIGHEST {
                0 if stream == 0 => return Err(Http2Error::protocol("WINDOW_UPDATE with an increment of 0")),
                0 => return Err(Http2Error::Stream(stream, Http2ErrorCode::Protocol)),
                increment => Self::WindowUpdate { stream, increment },
            },
            Http2FrameType::PushPromise => return Err(Http2Error::protocol("PUSH_PROMISE from a client")),
            Http2FrameType::Unknown => Self::Ignored,
        })
    }
}

fn without_padding(head: Http2FrameHeader, payload: &[u8]) -> Result<&[u8], Http2Error> {
    if !head.has(PADDED) {
        return Ok(payload);
    }
    let Some((padding, rest)) = payload.split_first() else { return Err(wrong_size()) };
    let kept = rest.len().checked_sub(usize::from(*padding));
    kept.map(|kept| &rest[..kept]).ok_or(Http2Error::protocol("padding exceeds the frame"))
}

fn without_priority(head: Http2FrameHeader, payload: &[u8]) -> Result<&[u8], Http2Error> {
    if !head.has(PRIORITY) {
        return Ok(payload);
    }
    let Some((priority, rest)) = payload.split_first_chunk::<5>() else { return Err(wrong_size()) };
    let [d1, d2, d3, d4, _] = *priority;
    independent(head.stream, [d1, d2, d3, d4]).map(|()| rest)
}

/// Refuses a stream that depends on itself (RFC 7540 §5.3.1).
fn independent(stream: u32, dependency: [u8; 4]) -> Result<(), Http2Error> {
    if u32::from_be_bytes(dependency) & HIGHEST == stream {
        return Err(Http2Error::protocol("stream depends on itself"));
    }
    Ok(())
}

fn number(payload: &[u8]) -> Result<u32, Http2Error> {
    payload.try_into().map(u32::from_be_bytes).map_err(|_| wrong_size())
}

fn wrong_size() -> Http2Error {
    Http2Error::Connection(Http2ErrorCode::FrameSize, "invalid frame size")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result, or the stream reset (0 for the connection) and the reason.
    type Outcome = Result<(), (u32, Http2ErrorCode)>;

    fn head(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Http2FrameHeader {
        Http2FrameHeader::new(Http2FrameType::of(kind), flags, stream, payload.len())
    }

    #[test]
    fn frame_head_round_trips() {
        for (head, bytes) in [
            (Http2FrameHeader::new(Http2FrameType::Data, END_STREAM, 1, 5), [0, 0, 5, 0, 1, 0, 0, 0, 1]),
            (Http2FrameHeader::new(Http2FrameType::GoAway, 0, 0, 8), [0, 0, 8, 7, 0, 0, 0, 0, 0]),
            (
                Http2FrameHeader::new(Http2FrameType::Continuation, END_HEADERS, HIGHEST, 0xff_ffff),
                [255, 255, 255, 9, 4, 127, 255, 255, 255],
            ),
        ] {
            assert_eq!(head.bytes(), bytes);
            assert_eq!(Http2FrameHeader::read(&bytes), Some(head));
            assert_eq!(Http2FrameHeader::read(&bytes[..8]), None);
        }
        let reserved = Http2FrameHeader::read(&[0, 0, 0, 77, 0, 128, 0, 0, 3]).expect("whole");
        assert_eq!((reserved.kind, reserved.stream), (Http2FrameType::Unknown, 3));
    }

    #[test]
    fn invalid_frame_is_stream_or_connection_error() {
        use Http2ErrorCode::{FrameSize, Protocol};
        let connection = |reason| Err((0, reason));
        let rows: &[(u8, u8, u32, &[u8], Outcome)] = &[
            (0, 0, 1, b"data", Ok(())),
            (0, 0, 0, b"data", connection(Protocol)),
            (0, PADDED, 1, &[4, 1, 0, 0, 0, 0], Ok(())),
            (0, PADDED, 1, &[5, 0, 0, 0, 0], connection(Protocol)),
            (0, PADDED, 1, &[], connection(FrameSize)),
            (1, PRIORITY, 1, &[0, 0, 0, 3, 9, 0x82], Ok(())),
            (1, PRIORITY, 3, &[128, 0, 0, 3, 9, 0x82], connection(Protocol)),
            (1, PRIORITY, 3, &[0, 0, 0, 1], connection(FrameSize)),
            (1, 0, 0, &[0x82], connection(Protocol)),
            (2, 0, 3, &[0, 0, 0, 1, 9], Ok(())),
            (2, 0, 3, &[0, 0, 0, 3, 9], connection(Protocol)),
            (2, 0, 3, &[0, 0, 0, 1], Err((3, FrameSize))),
            (3, 0, 1, &[0, 0, 0, 8], Ok(())),
            (3, 0, 1, &[0, 0, 8], connection(FrameSize)),
            (3, 0, 0, &[0, 0, 0, 8], connection(Protocol)),
            (4, 0, 0, &[0, 3, 0, 0, 0, 1], Ok(())),
            (4, 0, 0, &[0, 3, 0, 0, 0], connection(FrameSize)),
            (4, 0, 1, &[], connection(Protocol)),
            (4, ACK, 0, &[], Ok(())),
            (4, ACK, 0, &[0, 3, 0, 0, 0, 1], connection(FrameSize)),
            (5, 0, 1, &[0, 0, 0, 2], connection(Protocol)),
            (6, 0, 0, &[0; 8], Ok(())),
            (6, 0, 0, &[0; 7], connection(FrameSize)),
            (6, 0, 1, &[0; 8], connection(Protocol)),
            (7, 0, 0, &[0; 8], Ok(())),
            (7, 0, 0, &[0; 7], connection(FrameSize)),
            (8, 0, 0, &[0, 0, 0, 1], Ok(())),
            (8, 0, 0, &[128, 0, 0, 0], connection(Protocol)),
            (8, 0, 5, &[0, 0, 0, 0], Err((5, Protocol))),
            (8, 0, 5, &[0, 0, 0], connection(FrameSize)),
            (9, END_HEADERS, 1, &[], Ok(())),
            (9, 0, 0, &[], connection(Protocol)),
            (10, 255, 0, b"anything", Ok(())),
        ];
        for (kind, flags, stream, payload, expected) in rows {
            let read = Http2Frame::read(head(*kind, *flags, *stream, payload), payload);
            let reported = read.map(|_| ()).map_err(|fault| match fault {
                Http2Error::Connection(reason, _) => (0, reason),
                Http2Error::Stream(stream, reason) => (stream, reason),
            });
            assert_eq!(reported, *expected, "{kind} {flags:#x} {stream} {payload:?}");
        }
    }

    #[test]
    fn padding_counts_for_flow_control_but_is_not_data() {
        let payload = [2, b'a', 0, 0];
        let read = Http2Frame::read(head(0, PADDED | END_STREAM, 1, &payload), &payload);
        assert_eq!(read.expect("right"), Http2Frame::Data { stream: 1, data: b"a", flow: 4, end_stream: true });
    }
}
