use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A byte stream that buffers its writes until [`poll_out`](Self::poll_out), even if the codec flushes: one write for
/// all streams of a connection. The codec has one clone, and the connection's task another.
pub(super) struct Gathered<I>(Arc<Mutex<Line<I>>>);

struct Line<I> {
    io: I,
    held: Vec<u8>,
    sent: usize,
}

/// Four full TLS records.
const HELD_BYTES_MAX: usize = 64 << 10;

impl<I> Gathered<I> {
    pub(super) fn new(io: I) -> Self {
        Self(Arc::new(Mutex::new(Line { io, held: Vec::new(), sent: 0 })))
    }
}

impl<I> Clone for Gathered<I> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I: AsyncWrite + Unpin> Gathered<I> {
    pub(super) fn poll_out(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut line = self.0.lock();
        ready!(line.poll_out(cx))?;
        // An idle connection keeps no buffer.
        line.held = Vec::new();
        Pin::new(&mut line.io).poll_flush(cx)
    }
}

impl<I: AsyncWrite + Unpin> Line<I> {
    fn poll_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.held.len() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.held[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        self.held.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Gathered<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0.lock().io).poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Gathered<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut line = self.0.lock();
        if line.held.len() >= HELD_BYTES_MAX {
            ready!(line.poll_out(cx))?;
        }
        line.held.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut line = self.0.lock();
        if line.held.len() >= HELD_BYTES_MAX {
            ready!(line.poll_out(cx))?;
        }
        parts.iter().for_each(|part| line.held.extend_from_slice(part));
        Poll::Ready(Ok(parts.iter().map(|part| part.len()).sum()))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut line = self.0.lock();
        ready!(line.poll_out(cx))?;
        Pin::new(&mut line.io).poll_shutdown(cx)
    }
}
