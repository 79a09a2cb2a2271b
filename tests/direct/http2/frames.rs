//! Bytes of frames (RFC 9113 §4, RFC 9113 §6).

use super::hpack::block;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
pub const PRIORITIZED: u8 = 0x20;

pub const NO_ERROR: u32 = 0;
pub const PROTOCOL_ERROR: u32 = 1;
pub const FLOW_CONTROL_ERROR: u32 = 3;
pub const STREAM_CLOSED: u32 = 5;
pub const FRAME_SIZE_ERROR: u32 = 6;
pub const REFUSED_STREAM: u32 = 7;
pub const CANCEL: u32 = 8;
pub const COMPRESSION_ERROR: u32 = 9;
pub const ENHANCE_YOUR_CALM: u32 = 11;

pub const HEADER_TABLE_SIZE: u16 = 1;
pub const ENABLE_PUSH: u16 = 2;
pub const MAX_CONCURRENT_STREAMS: u16 = 3;
pub const INITIAL_WINDOW_SIZE: u16 = 4;
pub const MAX_FRAME_SIZE: u16 = 5;

/// Initial window of a stream and of a connection (RFC 9113 §6.9.2).
pub const WINDOW: u32 = 65_535;
/// The largest window (RFC 9113 §6.9.1).
pub const WINDOW_MAX: u32 = i32::MAX as u32;
/// Initial maximum payload of a frame (RFC 9113 §4.2).
pub const FRAME_BYTES: usize = 1 << 14;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

pub fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let one = |(id, value): &(u16, u32)| [id.to_be_bytes().as_slice(), &value.to_be_bytes()].concat();
    frame(SETTINGS, 0, 0, &settings.iter().flat_map(one).collect::<Vec<_>>())
}

/// The preface with its SETTINGS frame.
pub fn hello_with(ours: &[(u16, u32)]) -> Vec<u8> {
    [PREFACE, &settings(ours)].concat()
}

pub fn hello() -> Vec<u8> {
    hello_with(&[])
}

pub fn ping(payload: u64) -> Vec<u8> {
    frame(PING, 0, 0, &payload.to_be_bytes())
}

pub fn window(stream: u32, more: u32) -> Vec<u8> {
    frame(WINDOW_UPDATE, 0, stream, &more.to_be_bytes())
}

pub fn reset(stream: u32, code: u32) -> Vec<u8> {
    frame(RST_STREAM, 0, stream, &code.to_be_bytes())
}

pub fn data(stream: u32, payload: &[u8]) -> Vec<u8> {
    frame(DATA, 0, stream, payload)
}

pub fn last_data(stream: u32, payload: &[u8]) -> Vec<u8> {
    frame(DATA, END_STREAM, stream, payload)
}

pub fn priority(stream: u32, on: u32) -> Vec<u8> {
    frame(PRIORITY, 0, stream, &[on.to_be_bytes().as_slice(), &[15]].concat())
}

/// A complete head; no body follows.
pub fn head(stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, block)
}

/// A complete head; a body follows.
pub fn open_head(stream: u32, block: &[u8]) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, block)
}

/// A head in as many frames as necessary, with at most this many bytes each.
pub fn head_in_parts(stream: u32, block: &[u8], bytes: usize) -> Vec<u8> {
    let last = block.len().div_ceil(bytes) - 1;
    let parts = block.chunks(bytes).enumerate().map(|(at, part)| {
        let kind = if at == 0 { HEADERS } else { CONTINUATION };
        let ends_stream = if at == 0 { END_STREAM } else { 0 };
        let ends_head = if at == last { END_HEADERS } else { 0 };
        frame(kind, ends_stream | ends_head, stream, part)
    });
    parts.collect::<Vec<_>>().concat()
}

/// The fields of a request, followed by more of them.
pub fn fields<'a>(method: &'a str, path: &'a str, more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    let ours = [(":method", method), (":scheme", "http"), (":authority", "localhost"), (":path", path)];
    [ours.as_slice(), more].concat()
}

pub fn request(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    block(&fields(method, path, more))
}

pub fn get(stream: u32, path: &str) -> Vec<u8> {
    head(stream, &request("GET", path, &[]))
}

/// The head of a request with a body.
pub fn post(stream: u32, path: &str) -> Vec<u8> {
    open_head(stream, &request("POST", path, &[]))
}
