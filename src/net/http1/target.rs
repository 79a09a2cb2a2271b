//! A `#` in the target of a request over HTTP/1.
//!
//! A target has no fragment (RFC 9112 §3.2), and Go's server keeps what a client sends there as a part of the path. The
//! `http` crate cuts it off: `DELETE …/configmaps#/a` would become `DELETE …/configmaps`, which deletes all of them. So
//! the byte is replaced, before the codec reads it, by one that the codec refuses with 400.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::super::Connection;

/// What stands in the place of a `#`: no target has control characters.
const REFUSED: u8 = 0x01;

/// Where the bytes that are read next belong to. Requests that a client sends before it has the answer to the one
/// before are not checked.
#[derive(Debug, Clone, Default)]
pub(super) struct TargetCheck(Arc<AtomicU8>);

const AT_LINE: u8 = 0;
const BEHIND_LINE: u8 = 1;
/// The connection may be a tunnel, whose bytes are not requests.
const OFF: u8 = 2;

impl TargetCheck {
    /// Notes that the codec has read a request, so that the next bytes while none is under way begin a request line.
    pub(super) fn taken(&self, may_be_a_tunnel: bool) {
        if may_be_a_tunnel {
            self.0.store(OFF, Ordering::Relaxed);
        } else if self.0.load(Ordering::Relaxed) != OFF {
            self.0.store(AT_LINE, Ordering::Relaxed);
        }
    }

    /// Replaces what must not be in a request line.
    fn clean(&self, bytes: &mut [u8]) {
        if self.0.load(Ordering::Relaxed) != AT_LINE {
            return;
        }
        for byte in bytes {
            match *byte {
                b'#' => *byte = REFUSED,
                b'\n' => return self.0.store(BEHIND_LINE, Ordering::Relaxed),
                _ => {}
            }
        }
    }
}

/// A connection whose request lines are checked as they are read.
pub(super) struct CheckedIo<I> {
    io: I,
    connection: Connection,
    check: TargetCheck,
}

impl<I> CheckedIo<I> {
    pub(super) fn new(io: I, connection: Connection, check: TargetCheck) -> Self {
        Self { io, connection, check }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for CheckedIo<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        // While a request is under way, what comes is its body.
        if self.connection.idle_since().is_some() {
            self.check.clean(&mut buf.filled_mut()[before..]);
        }
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for CheckedIo<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_request_line_is_changed() {
        for (reads, expected) in [
            (vec!["DELETE /a#/b HTTP/1.1\r\nx: #\r\n\r\n"], "DELETE /a\u{1}/b HTTP/1.1\r\nx: #\r\n\r\n"),
            (vec!["GET /a", "#b HTTP/1.1\r\n", "x: #\r\n\r\n"], "GET /a\u{1}b HTTP/1.1\r\nx: #\r\n\r\n"),
            (vec!["GET /a HTTP/1.1\r\nx: #\r\n\r\n"], "GET /a HTTP/1.1\r\nx: #\r\n\r\n"),
        ] {
            let check = TargetCheck::default();
            let mut read = String::new();
            for text in reads {
                let mut bytes = text.as_bytes().to_vec();
                check.clean(&mut bytes);
                read.push_str(std::str::from_utf8(&bytes).expect("text"));
            }
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn each_request_line_is_looked_at_and_no_tunnel() {
        let check = TargetCheck::default();
        let looked = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            check.clean(&mut bytes);
            bytes != text.as_bytes()
        };
        assert!(looked("GET /#a HTTP/1.1\r\n\r\n"));
        assert!(!looked("#"), "the request has not been read");
        check.taken(false);
        assert!(looked("GET /#a HTTP/1.1\r\n\r\n"));
        check.taken(true);
        check.taken(false);
        assert!(!looked("GET /#a HTTP/1.1\r\n\r\n"));
    }
}
