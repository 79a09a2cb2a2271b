use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A client's end of an HTTP/2 connection that refreshes its windows as Go's client does. After 4 KiB were read, it
/// sends a `WINDOW_UPDATE` for the stream and one for the connection.
///
/// The codec above waits for half a window. Its own updates are dropped, except the first, which opens the connection's
/// window.
#[derive(Debug)]
pub(super) struct GoWindowUpdater<I> {
    io: I,
    incoming: FrameHeaderParser,
    outgoing: FrameHeaderParser,
    /// Whether the frame that is being written is dropped.
    is_dropping: bool,
    has_opened: bool,
    /// The numbers of bytes that were read and for which no update was sent yet: of the connection, and of each stream.
    connection: u32,
    streams: HashMap<u32, u32>,
    /// The window updates to send after the frame that the codec is writing.
    updates: Vec<u8>,
    /// The bytes to write, and how many of them were written.
    out: Vec<u8>,
    sent: usize,
}

/// A parser that finds frame heads in a byte sequence that arrives in pieces.
#[derive(Debug)]
struct FrameHeaderParser {
    head: [u8; HEAD_BYTES],
    has: usize,
    /// The number of bytes until the next frame head begins.
    left: usize,
}

/// A part of a piece: a complete frame head, or other bytes.
enum FrameHeadOrPayload<'a> {
    Head([u8; HEAD_BYTES]),
    Payload(&'a [u8]),
}

/// The value of Go's `inflowMinRefresh`, in bytes.
const REFRESH_BYTES: u32 = 4 << 10;
const HEAD_BYTES: usize = 9;
/// The length of `PRI * HTTP/2.0 …`, the client connection preface (RFC 9113 §3.4).
const PREFACE_BYTES: usize = 24;
const DATA: u8 = 0;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
/// The maximum number of bytes that are buffered for a server that does not read.
const OUT_BYTES_MAX: usize = 64 << 10;

impl FrameHeaderParser {
    fn behind(left: usize) -> Self {
        Self { head: [0; HEAD_BYTES], has: 0, left }
    }

    fn is_between_frames(&self) -> bool {
        self.has == 0 && self.left == 0
    }

    fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(FrameHeadOrPayload<'_>)) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let (payload, rest) = bytes.split_at(self.left.min(bytes.len()));
                self.left -= payload.len();
                each(FrameHeadOrPayload::Payload(payload));
                bytes = rest;
                continue;
            }
            let (head, rest) = bytes.split_at((HEAD_BYTES - self.has).min(bytes.len()));
            self.head[self.has..self.has + head.len()].copy_from_slice(head);
            self.has += head.len();
            bytes = rest;
            if self.has == HEAD_BYTES {
                self.has = 0;
                self.left = length(&self.head) as usize;
                each(FrameHeadOrPayload::Head(self.head));
            }
        }
    }
}

fn length(head: &[u8; HEAD_BYTES]) -> u32 {
    u32::from_be_bytes([0, head[0], head[1], head[2]])
}

fn stream(head: &[u8; HEAD_BYTES]) -> u32 {
    u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & (u32::MAX >> 1)
}

impl<I> GoWindowUpdater<I> {
    pub(super) fn new(io: I) -> Self {
        Self {
            io,
            incoming: FrameHeaderParser::behind(0),
            outgoing: FrameHeaderParser::behind(PREFACE_BYTES),
            is_dropping: false,
            has_opened: false,
            connection: 0,
            streams: HashMap::new(),
            updates: Vec::new(),
            out: Vec::new(),
            sent: 0,
        }
    }

    /// Counts bytes that were read, and queues the updates that are due.
    fn has_read(&mut self, bytes: &[u8]) {
        let Self { incoming, connection, streams, updates, .. } = self;
        incoming.feed(bytes, |part| {
            let FrameHeadOrPayload::Head(head) = part else { return };
            if head[3] != DATA {
                return;
            }
            let (id, bytes) = (stream(&head), length(&head));
            refresh(connection, bytes, 0, updates);
            if head[4] & END_STREAM == 0 {
                refresh(streams.entry(id).or_default(), bytes, id, updates);
            } else {
                streams.remove(&id);
            }
        });
    }

    /// Buffers the codec's output without its window updates.
    fn put(&mut self, bytes: &[u8]) {
        let Self { outgoing, is_dropping, has_opened, out, .. } = self;
        outgoing.feed(bytes, |part| match part {
            FrameHeadOrPayload::Head(head) => {
                let is_update = head[3] == WINDOW_UPDATE;
                *is_dropping = is_update && (*has_opened || stream(&head) != 0);
                *has_opened |= is_update && stream(&head) == 0;
                out.extend_from_slice(if *is_dropping { &[] } else { &head });
            }
            FrameHeadOrPayload::Payload(payload) => out.extend_from_slice(if *is_dropping { &[] } else { payload }),
        });
    }
}

/// Counts bytes that were read, and queues an update once they suffice for one.
fn refresh(unsent: &mut u32, bytes: u32, id: u32, updates: &mut Vec<u8>) {
    *unsent += bytes;
    if *unsent < REFRESH_BYTES {
        return;
    }
    updates.extend_from_slice(&[0, 0, 4, WINDOW_UPDATE, 0]);
    updates.extend_from_slice(&id.to_be_bytes());
    updates.extend_from_slice(&std::mem::take(unsent).to_be_bytes());
}

impl<I: AsyncWrite + Unpin> GoWindowUpdater<I> {
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.outgoing.is_between_frames() {
            let Self { out, updates, .. } = self;
            out.append(updates);
        }
        while self.sent < self.out.len() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.out[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        self.out.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for GoWindowUpdater<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.io).poll_read(cx, buf);
        self.has_read(&buf.filled()[before..]);
        // The codec has read everything, so the updates are flushed now.
        if read.is_pending() && !self.updates.is_empty() {
            let _ = self.as_mut().poll_flush(cx)?;
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for GoWindowUpdater<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.out.len() >= OUT_BYTES_MAX {
            ready!(self.poll_out(cx))?;
        }
        self.put(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_out(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_out(cx))?;
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, id: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("a short frame").to_be_bytes();
        [&length[1..], &[kind, flags], &id.to_be_bytes(), payload].concat()
    }

    fn update(id: u32, bytes: u32) -> Vec<u8> {
        frame(WINDOW_UPDATE, 0, id, &bytes.to_be_bytes())
    }

    /// Passes however the bytes are divided.
    #[test]
    fn window_updates_are_sent_from_4_kib_read() {
        let frames = [
            frame(DATA, 0, 1, &[8; 3_000]),
            frame(1, 4, 3, &[8; 5_000]),
            frame(DATA, 0, 3, &[8; 3_000]),
            frame(DATA, 0, 1, &[8; 3_000]),
            frame(DATA, END_STREAM, 3, &[8; 3_000]),
        ];
        let expected = [update(0, 6_000), update(1, 6_000), update(0, 6_000)].concat();
        for piece in [1, 7, 4_096, 20_000] {
            let mut windows = GoWindowUpdater::new(());
            frames.concat().chunks(piece).for_each(|bytes| windows.has_read(bytes));
            assert_eq!(windows.updates, expected, "{piece}");
        }
    }

    #[test]
    fn only_the_first_connection_window_update_of_h2_is_sent() {
        let preface = vec![8; PREFACE_BYTES];
        let (settings, head) = (frame(4, 0, 0, &[]), frame(1, 4, 1, &[8; 40]));
        let (first, later, of_stream) = (update(0, 9), update(0, 9), update(1, 9));
        let written = [&preface, &settings, &first, &head, &later, &of_stream, &settings].map(|of| &of[..]);
        let expected = [&preface, &settings, &first, &head, &settings].map(|of| &of[..]).concat();
        for piece in [1, 7, 1_000] {
            let mut windows = GoWindowUpdater::new(());
            written.concat().chunks(piece).for_each(|bytes| windows.put(bytes));
            assert_eq!(windows.out, expected, "{piece}");
        }
    }
}
