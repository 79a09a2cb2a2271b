//! Checks of an HTTP/1 request before the codec reads it: a `#` in its target, and the size of its head while it is
//! unfinished.
//!
//! A target has no fragment (RFC 9112 §3.2), and Go's server treats one as a part of the path. The `http` crate cuts it
//! off: `DELETE …/configmaps#/a` would become `DELETE …/configmaps`, which deletes all of them. So the byte is
//! replaced, before the codec reads it, by one that the codec refuses with 400.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use http2::{ConnectionHeadBudget, WakeSet};
use tokio::io::{AsyncRead, ReadBuf};

use super::super::DownstreamConnection;
use super::super::filtered_stream::{FilteredStream, ReadFilter};

/// The byte that replaces a `#` in a request target. The codec refuses control characters in a target.
const REFUSED: u8 = 0x01;

/// Tracks which part of a request the next bytes belong to, and whether the client sends more than it may before a
/// response. Targets of pipelined requests are not checked.
#[derive(Debug, Clone)]
pub(super) struct Http1HeadCheck(Arc<Http1HeadCheckState>);

#[derive(Debug)]
struct Http1HeadCheckState {
    state: AtomicU8,
    heads: Arc<ConnectionHeadBudget>,
    /// The number of bytes of the unfinished request head.
    unfinished: AtomicUsize,
}

/// The error of a connection whose unfinished request head does not fit into its listener's budget.
#[derive(Debug, thiserror::Error)]
#[error("the incomplete request headers of all connections are too large")]
struct RequestHeadBudgetExceeded;

/// The bytes that a client may send after a request and before its response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Http1PipelinePolicy {
    /// The client may send the body, or the next request.
    Requests,
    Nothing,
    /// The client may send anything, because the connection may become a tunnel whose bytes are not requests.
    Tunnel,
}

/// The parser is before a request line. Empty lines may precede it (RFC 9112 §2.2).
const BEFORE_LINE: u8 = 0;
const IN_LINE: u8 = 1;
/// The parser is at the start of a field line. An empty line ends the head.
const AT_FIELD: u8 = 2;
const IN_FIELD: u8 = 3;
const AFTER_HEAD: u8 = 4;
/// Bytes after the request head were received.
const AFTER_HEAD_READ: u8 = 5;
/// A request is running that allows no bytes before its response.
const NO_BYTES_ALLOWED: u8 = 6;
const OFF: u8 = 7;

impl Http1HeadCheck {
    pub(super) fn new(heads: Arc<ConnectionHeadBudget>) -> Self {
        Self(Arc::new(Http1HeadCheckState {
            state: AtomicU8::new(BEFORE_LINE),
            heads,
            unfinished: AtomicUsize::new(0),
        }))
    }

    /// Records that the codec has read a request, so that the next bytes after it begin a request line. Returns whether
    /// the client has already sent bytes that the request does not allow.
    pub(super) fn request_read(&self, policy: Http1PipelinePolicy) -> bool {
        self.0.unfinished.store(0, Ordering::Relaxed);
        self.0.heads.hold_unfinished(0);
        let state = self.state();
        if state == OFF {
            return false;
        }
        let next = match policy {
            Http1PipelinePolicy::Requests => BEFORE_LINE,
            Http1PipelinePolicy::Nothing => NO_BYTES_ALLOWED,
            Http1PipelinePolicy::Tunnel => OFF,
        };
        self.0.state.store(next, Ordering::Relaxed);
        // If nothing was read since the previous head, this head arrived together with it.
        policy == Http1PipelinePolicy::Nothing && state != AFTER_HEAD
    }

    /// Whether the client has sent a part of its next request head while no request is running.
    pub(super) fn has_unfinished_head(&self) -> bool {
        self.0.unfinished.load(Ordering::Relaxed) > 0
    }

    fn state(&self) -> u8 {
        self.0.state.load(Ordering::Relaxed)
    }

    /// Whether the running request allows no bytes now.
    fn allows_no_bytes(&self) -> bool {
        self.state() == NO_BYTES_ALLOWED
    }

    /// Checks bytes that were read while no request is running. Bytes of a tunnel are not checked.
    fn check(&self, bytes: &mut [u8]) -> Result<(), RequestHeadBudgetExceeded> {
        if self.state() == OFF {
            return Ok(());
        }
        self.replace_fragments(bytes);
        let unfinished = self.0.unfinished.load(Ordering::Relaxed) + bytes.len();
        self.0.unfinished.store(unfinished, Ordering::Relaxed);
        if self.0.heads.hold_unfinished(unfinished) { Ok(()) } else { Err(RequestHeadBudgetExceeded) }
    }

    /// Replaces each `#` in a request line, and finds the end of the head.
    fn replace_fragments(&self, bytes: &mut [u8]) {
        let (mut state, mut at) = (self.state(), 0);
        while let Some(byte) = bytes.get_mut(at) {
            state = match (state, *byte) {
                (BEFORE_LINE | NO_BYTES_ALLOWED, b'\r' | b'\n') => BEFORE_LINE,
                (BEFORE_LINE | NO_BYTES_ALLOWED | IN_LINE, b'#') => {
                    *byte = REFUSED;
                    IN_LINE
                }
                (BEFORE_LINE | NO_BYTES_ALLOWED, _) => IN_LINE,
                (IN_LINE, b'\n') | (AT_FIELD, b'\r') => AT_FIELD,
                (AT_FIELD, b'\n') => AFTER_HEAD,
                (AT_FIELD | IN_FIELD, _) => match memchr::memchr(b'\n', &bytes[at..]) {
                    Some(length) => {
                        at += length;
                        AT_FIELD
                    }
                    None => {
                        state = IN_FIELD;
                        break;
                    }
                },
                (AFTER_HEAD, _) => AFTER_HEAD_READ,
                (AFTER_HEAD_READ, _) => break,
                (other, _) => other,
            };
            at += 1;
        }
        self.0.state.store(state, Ordering::Relaxed);
    }
}

/// A connection whose request heads are checked as they are read. It reads nothing more once the slice of a poll has
/// ended.
pub(super) type HeadCheckedIo<I> = FilteredStream<I, HeadCheckFilter>;

pub(super) struct HeadCheckFilter {
    pub(super) connection: DownstreamConnection,
    pub(super) wake_set: Arc<WakeSet>,
    pub(super) check: Http1HeadCheck,
}

impl<I: AsyncRead + Unpin> ReadFilter<I> for HeadCheckFilter {
    fn poll_read(&mut self, io: &mut I, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.wake_set.is_slice_over() {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        ready!(Pin::new(io).poll_read(cx, buf))?;
        let read = &mut buf.filled_mut()[before..];
        // While a request is running, the bytes are its body.
        if self.connection.idle_since().is_some() {
            self.check.check(read).map_err(io::Error::other)?;
        } else if !read.is_empty() && self.check.allows_no_bytes() {
            self.connection.close();
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use http2::RequestHeadBudget;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    fn check() -> Http1HeadCheck {
        Http1HeadCheck::new(Arc::<RequestHeadBudget>::default().connection())
    }

    #[tokio::test]
    async fn unfinished_head_beyond_budget_closes_connection() {
        let budget = Arc::<RequestHeadBudget>::default();
        let others = budget.connection();
        assert!(others.hold_unfinished((16 << 20) + (16 << 10)));
        let check = Http1HeadCheck::new(budget.connection());
        let head = vec![b'a'; 96_000];
        let (connection, wake_set) = (DownstreamConnection::default(), WakeSet::shared());
        let mut io =
            HeadCheckedIo { io: &head[..], filter: HeadCheckFilter { connection, wake_set, check: check.clone() } };
        let mut read = vec![0; 16 << 10];
        for _ in 0..2 {
            assert!(io.read_exact(&mut read).await.is_ok(), "a head that is not large");
            check.request_read(Http1PipelinePolicy::Requests);
        }
        assert!(io.read_exact(&mut read).await.is_ok() && io.read_exact(&mut read).await.is_err());
        check.request_read(Http1PipelinePolicy::Tunnel);
        assert!(io.read_exact(&mut read).await.is_ok(), "a tunnel has no heads");
    }

    #[test]
    fn fragment_mark_is_replaced_only_in_request_line() {
        for (reads, expected) in [
            (vec!["DELETE /a#/b HTTP/1.1\r\nx: #\r\n\r\n"], "DELETE /a\u{1}/b HTTP/1.1\r\nx: #\r\n\r\n"),
            (vec!["GET /a", "#b HTTP/1.1\r\n", "x: #\r\n\r\n"], "GET /a\u{1}b HTTP/1.1\r\nx: #\r\n\r\n"),
            (vec!["\r\n", "\n\r\nGET /a#b HTTP/1.1\n\n"], "\r\n\n\r\nGET /a\u{1}b HTTP/1.1\n\n"),
            (vec!["GET /a HTTP/1.1\r\nx: #\r\n\r\n"], "GET /a HTTP/1.1\r\nx: #\r\n\r\n"),
        ] {
            let check = check();
            let mut read = String::new();
            for text in reads {
                let mut bytes = text.as_bytes().to_vec();
                check.replace_fragments(&mut bytes);
                read.push_str(std::str::from_utf8(&bytes).expect("text"));
            }
            assert_eq!(read, expected);
        }
    }

    #[test]
    fn every_request_line_is_checked_but_not_tunnel_bytes() {
        let check = check();
        let looked = |text: &str| {
            let mut bytes = text.as_bytes().to_vec();
            check.replace_fragments(&mut bytes);
            bytes != text.as_bytes()
        };
        assert!(looked("GET /#a HTTP/1.1\r\n\r\n"));
        assert!(!looked("#"), "the request has not been read");
        for policy in [Http1PipelinePolicy::Requests, Http1PipelinePolicy::Nothing] {
            check.request_read(policy);
            assert!(looked("GET /#a HTTP/1.1\r\n\r\n"));
        }
        check.request_read(Http1PipelinePolicy::Tunnel);
        check.request_read(Http1PipelinePolicy::Requests);
        assert!(!looked("GET /#a HTTP/1.1\r\n\r\n"));
    }

    #[test]
    fn bytes_after_head_are_detected_for_any_chunking() {
        let head = "\r\nGET /a HTTP/1.1\r\nx: y\r\n\r\n";
        for (text, is_early) in [
            (head.to_owned(), false),
            ("GET /a HTTP/1.1\nx: y\n\n".to_owned(), false),
            (format!("{head}G"), true),
            (format!("{head}\n"), true),
            (format!("{head}{head}"), true),
        ] {
            for piece in [1, 2, 7, text.len()] {
                let check = check();
                for bytes in text.as_bytes().chunks(piece) {
                    check.replace_fragments(&mut bytes.to_vec());
                }
                assert_eq!(check.request_read(Http1PipelinePolicy::Nothing), is_early, "{text:?} in pieces of {piece}");
                assert!(check.allows_no_bytes());
            }
        }
        let check = check();
        check.replace_fragments(&mut [head, head].concat().into_bytes());
        assert!(!check.request_read(Http1PipelinePolicy::Requests), "that is allowed");
        assert!(check.request_read(Http1PipelinePolicy::Nothing), "nothing was read since");
    }
}
