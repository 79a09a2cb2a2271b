use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

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
