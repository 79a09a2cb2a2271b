use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// The byte stream of a watch over WebSocket, with a budget for what the client sends. A watch ignores all of it, and
/// each frame costs the server as much as the client. The budget counts bytes, because a fragment or an empty frame is
/// not a message that could be counted.
#[derive(Debug)]
pub(super) struct InboundBudget<I> {
    io: I,
    left: usize,
    /// The time at which `left` was last increased.
    since: Instant,
}

/// The error of a client that exceeded its inbound budget.
#[derive(Debug, thiserror::Error)]
#[error("the client sent too much data on a WebSocket watch, which only sends events")]
pub(super) struct InboundBudgetExceeded;

/// The burst in bytes that a client may send: about 10,000 empty frames.
const AT_ONCE_BYTES_MAX: usize = 64 << 10;
/// The budget for inbound bytes that is added per second.
const BYTES_PER_SECOND: usize = 8 << 10;
/// The additional inbound budget per sent event, for clients that acknowledge events.
const BYTES_PER_EVENT: usize = 1 << 10;

impl<I> InboundBudget<I> {
    pub(super) fn new(io: I) -> Self {
        Self { io, left: AT_ONCE_BYTES_MAX, since: Instant::now() }
    }

    /// Returns the underlying stream, without the budget.
    pub(super) fn io(&mut self) -> &mut I {
        &mut self.io
    }

    /// Adds inbound budget for sent events.
    pub(super) fn note_sent(&mut self, events: usize) {
        self.add(events.saturating_mul(BYTES_PER_EVENT));
    }

    fn add(&mut self, bytes: usize) {
        self.left = self.left.saturating_add(bytes).min(AT_ONCE_BYTES_MAX);
    }

    fn spend(&mut self, bytes: usize) -> Result<(), InboundBudgetExceeded> {
        let now = Instant::now();
        let passed = usize::try_from(now.duration_since(self.since).as_millis()).unwrap_or(usize::MAX);
        let earned = passed.saturating_mul(BYTES_PER_SECOND) / 1_000;
        if earned > 0 {
            self.add(earned);
            self.since = now;
        }
        self.left = self.left.checked_sub(bytes).ok_or(InboundBudgetExceeded)?;
        Ok(())
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for InboundBudget<I> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        ready!(Pin::new(&mut self.io).poll_read(cx, buf))?;
        let read = buf.filled().len() - before;
        Poll::Ready(if read == 0 { Ok(()) } else { self.spend(read).map_err(io::Error::other) })
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for InboundBudget<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::advance;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn inbound_budget_refills_with_time_and_sent_events() {
        let mut budget = InboundBudget::new(());
        let spends = |budget: &mut InboundBudget<()>, bytes| budget.spend(bytes).is_ok();
        assert!(spends(&mut budget, AT_ONCE_BYTES_MAX) && !spends(&mut budget, 1));
        advance(Duration::from_secs(1)).await;
        assert!(spends(&mut budget, BYTES_PER_SECOND) && !spends(&mut budget, 1));
        budget.note_sent(3);
        assert!(spends(&mut budget, 3 * BYTES_PER_EVENT) && !spends(&mut budget, 1));
        advance(Duration::from_secs(3_600)).await;
        budget.note_sent(1_000);
        assert!(!spends(&mut budget, AT_ONCE_BYTES_MAX + 1) && spends(&mut budget, AT_ONCE_BYTES_MAX));
    }
}
