//! A socket that can be frozen: it stays open, but is neither read nor written.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The switch that all sockets of one upstream share.
#[derive(Clone, Debug, Default)]
pub(crate) struct SocketFreezeSwitch(Arc<SocketFreezeState>);

#[derive(Debug, Default)]
struct SocketFreezeState {
    frozen: AtomicBool,
    sleepers: Mutex<Vec<Waker>>,
}

impl SocketFreezeSwitch {
    pub(crate) fn set(&self, frozen: bool) {
        self.0.frozen.store(frozen, Ordering::SeqCst);
        if !frozen {
            std::mem::take(&mut *self.0.sleepers.lock()).into_iter().for_each(Waker::wake);
        }
    }

    /// Returns `Pending` while the sockets are frozen, and wakes the task when the freeze ends.
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.0.frozen.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        let mut sleepers = self.0.sleepers.lock();
        // This is checked again under the lock. If the freeze has ended in between, nothing would wake this task.
        if !self.0.frozen.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        if !sleepers.iter().any(|waker| waker.will_wake(cx.waker())) {
            sleepers.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

#[derive(Debug)]
pub(crate) struct FreezableSocket {
    inner: TcpStream,
    freeze: SocketFreezeSwitch,
    /// Whether the connection must end with a reset (RST) instead of a FIN.
    reset: Arc<AtomicBool>,
}

impl FreezableSocket {
    pub(crate) fn new(inner: TcpStream, freeze: SocketFreezeSwitch, reset: Arc<AtomicBool>) -> Self {
        Self { inner, freeze, reset }
    }
}

impl Drop for FreezableSocket {
    fn drop(&mut self) {
        if self.reset.load(Ordering::SeqCst) {
            // If the option cannot be set, the connection ends with a FIN. Its streams still end without notice.
            let _ = self.inner.set_zero_linger();
        }
    }
}

impl AsyncRead for FreezableSocket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        std::task::ready!(self.freeze.poll(cx));
        Pin::new(&mut self.inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for FreezableSocket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        std::task::ready!(self.freeze.poll(cx));
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        std::task::ready!(self.freeze.poll(cx));
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
