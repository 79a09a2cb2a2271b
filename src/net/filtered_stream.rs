use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use http2::PREFACE;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

/// A byte stream whose reads pass a filter. Writes go to the stream itself.
#[derive(Debug)]
pub struct FilteredStream<I, F> {
    /// The stream without the filter.
    pub io: I,
    pub filter: F,
}

/// The way in which a stream is read.
pub trait ReadFilter<I> {
    /// Reads from `io`, as [`AsyncRead::poll_read`] does.
    ///
    /// # Errors
    /// Those of `io`, and those of the filter.
    fn poll_read(&mut self, io: &mut I, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>>;
}

impl<I: Unpin, F: ReadFilter<I> + Unpin> AsyncRead for FilteredStream<I, F> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { io, filter } = self.get_mut();
        filter.poll_read(io, cx, buf)
    }
}

impl<I: AsyncWrite + Unpin, F: Unpin> AsyncWrite for FilteredStream<I, F> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match parts {
            // Most writes are one TLS record, and the kernel takes one buffer faster than a vector of one.
            [only] => Pin::new(&mut self.io).poll_write(cx, only),
            _ => Pin::new(&mut self.io).poll_write_vectored(cx, parts),
        }
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

/// A byte stream whose beginning was read to detect the protocol, and is read again.
pub(super) type PrefixedStream<I> = FilteredStream<I, ReplayBytes>;

/// The bytes to read again.
#[derive(Debug)]
pub(super) struct ReplayBytes(Vec<u8>);

/// The protocol of a connection, as detected from its first bytes.
#[derive(Debug)]
pub(super) enum DetectedProtocol<I> {
    Http1(PrefixedStream<I>),
    /// The client uses HTTP/2; its preface has been read.
    Http2(I),
}

impl<I> PrefixedStream<I> {
    pub(super) fn new(read: impl Into<Vec<u8>>, io: I) -> Self {
        Self { io, filter: ReplayBytes(read.into()) }
    }
}

/// Detects the protocol by the first bytes. A client may use HTTP/2 whatever ALPN has selected, if it has prior
/// knowledge (RFC 9113 §3.3).
pub(super) async fn detect_protocol<I: AsyncRead + Unpin>(mut io: I) -> io::Result<DetectedProtocol<I>> {
    let mut read = Vec::new();
    while PREFACE.starts_with(&read) {
        if read.len() == PREFACE.len() {
            return Ok(DetectedProtocol::Http2(io));
        }
        let left = PREFACE.len() - read.len();
        if (&mut io).take(left as u64).read_buf(&mut read).await? == 0 {
            break;
        }
    }
    Ok(DetectedProtocol::Http1(PrefixedStream::new(read, io)))
}

impl<I: AsyncRead + Unpin> ReadFilter<I> for ReplayBytes {
    fn poll_read(&mut self, io: &mut I, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self(rest) = self;
        if rest.is_empty() {
            return Pin::new(io).poll_read(cx, buf);
        }
        let length = rest.len().min(buf.remaining());
        buf.put_slice(&rest[..length]);
        rest.drain(..length);
        if rest.is_empty() {
            *rest = Vec::new();
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn found(pieces: &[&[u8]]) -> Option<Vec<u8>> {
        let (near, mut far) = tokio::io::duplex(100);
        let finding = tokio::spawn(async move { detect_protocol(near).await.expect("open") });
        for piece in pieces {
            far.write_all(piece).await.expect("open");
            tokio::task::yield_now().await;
        }
        far.shutdown().await.expect("open");
        let mut rest = Vec::new();
        match finding.await.expect("it is found") {
            DetectedProtocol::Http1(mut io) => {
                io.read_to_end(&mut rest).await.expect("open");
                Some(rest)
            }
            DetectedProtocol::Http2(mut io) => {
                io.read_to_end(&mut rest).await.expect("open");
                assert_eq!(rest, b"rest");
                None
            }
        }
    }

    #[tokio::test]
    async fn http2_preface_is_detected_and_other_bytes_are_kept() {
        let whole = [PREFACE, b"rest"].concat();
        assert_eq!(found(&[&whole]).await, None);
        for at in 1..whole.len() {
            assert_eq!(found(&[&whole[..at], &whole[at..]]).await, None, "{at}");
        }
        for other in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"P", b"PRI * HTTP/1.1\r\n", &PREFACE[..23], b""] {
            assert_eq!(found(&[other]).await.as_deref(), Some(other));
            assert_eq!(found(&[&other[..other.len() / 2], &other[other.len() / 2..]]).await.as_deref(), Some(other));
        }
    }
}
