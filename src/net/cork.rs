use std::cell::Cell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::wake_set::{WakePart, WakeSet};

/// A byte stream that can be corked. Then writes are gathered, whatever the writer flushes, and go out in a few large
/// writes when the cork is drawn. A codec of HTTP/2 writes and flushes frame by frame, and each write to a TLS stream
/// is a record and a system call of its own.
///
/// The codec has one clone, and whoever draws the cork another. Nobody waits for the lock: both are in one task.
#[derive(Debug)]
pub(super) struct Corked<I>(Arc<Mutex<Line<I>>>);

#[derive(Debug)]
struct Line<I> {
    io: I,
    /// The gathered bytes, which the codec has written. An idle stream keeps no buffer.
    held: Vec<u8>,
    /// How many bytes of `held` have been written out.
    sent: usize,
    is_corked: bool,
    /// A small write that comes first is not gathered.
    is_light: bool,
    wake_set: Arc<WakeSet>,
    /// Whether the codec reads, rather than what the connection becomes after it.
    codec: Waker,
    /// The waker that says that there is something to read.
    reader: Waker,
}

/// How many bytes are gathered at most: four full TLS records, which rustls takes at a time.
const HELD_BYTES_MAX: usize = 64 << 10;

/// The largest write that goes out by itself: of larger ones there are mostly several.
const LIGHT_BYTES_MAX: usize = 8 << 10;

thread_local! {
    /// The buffer in which all connections of a thread gather, one after the other. So it stays in the processor's
    /// cache.
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

impl<I> Corked<I> {
    pub(super) fn new(io: I, wake_set: Arc<WakeSet>) -> Self {
        let (codec, reader) = (wake_set.waker(WakePart::Codec), wake_set.waker(WakePart::Reader));
        Self(Arc::new(Mutex::new(Line {
            io,
            held: Vec::new(),
            sent: 0,
            is_corked: false,
            is_light: false,
            wake_set,
            codec,
            reader,
        })))
    }

    /// The set of what was woken, and the waker to poll the codec with.
    pub(super) fn wake_set(&self) -> (Arc<WakeSet>, Waker) {
        let line = self.0.lock();
        (line.wake_set.clone(), line.codec.clone())
    }

    /// Starts to gather what is written. Whoever corks must [draw](Self::poll_draw) the cork before it waits. If the
    /// cork `is_light`, small writes go out at once, without a copy, as long as nothing is gathered.
    pub(super) fn cork(&self, is_light: bool) {
        let mut line = self.0.lock();
        (line.is_corked, line.is_light) = (true, is_light);
    }
}

impl<I> Clone for Corked<I> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<I: AsyncWrite + Unpin> Corked<I> {
    /// Writes out what was gathered. If it is pending, the peer does not read, and the rest goes out with later writes
    /// or flushes.
    pub(super) fn poll_draw(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut line = self.0.lock();
        line.is_corked = false;
        let drawn = line.poll_flush(cx);
        line.give_spare();
        drawn
    }
}

impl<I: AsyncWrite + Unpin> Line<I> {
    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.held.len() >= HELD_BYTES_MAX || !self.is_corked {
            ready!(self.poll_let_out(cx))?;
        }
        if !self.is_corked {
            return Pin::new(&mut self.io).poll_write(cx, bytes);
        }
        let taken = bytes.len().min(HELD_BYTES_MAX - self.held.len());
        if self.held.is_empty() {
            self.held = SPARE.take();
        }
        if self.held.capacity() < HELD_BYTES_MAX {
            self.held.reserve_exact(HELD_BYTES_MAX - self.held.len());
        }
        self.held.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    /// Writes what is small and comes alone. If it is pending, it has to be gathered.
    fn poll_write_lightly(&mut self, cx: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let is_small = || parts.iter().map(|part| part.len()).sum::<usize>() <= LIGHT_BYTES_MAX;
        if !(self.is_corked && self.is_light && self.held.is_empty() && is_small()) {
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_write_vectored(cx, parts)
    }

    /// Writes out what is held.
    fn poll_let_out(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.held.len() {
            let written = ready!(Pin::new(&mut self.io).poll_write(cx, &self.held[self.sent..]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.sent += written;
        }
        self.held.clear();
        self.sent = 0;
        if !self.is_corked {
            self.give_spare();
        }
        Poll::Ready(Ok(()))
    }

    /// Gives the buffer back, and keeps only what the peer has not taken.
    fn give_spare(&mut self) {
        let rest = self.held[self.sent..].to_vec();
        let mut spare = std::mem::replace(&mut self.held, rest);
        self.sent = 0;
        if spare.capacity() >= HELD_BYTES_MAX {
            spare.clear();
            SPARE.set(spare);
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.is_corked {
            return Poll::Ready(Ok(()));
        }
        ready!(self.poll_let_out(cx))?;
        Pin::new(&mut self.io).poll_flush(cx)
    }
}

impl<I: AsyncRead + Unpin> Line<I> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if !cx.waker().will_wake(&self.codec) {
            return Pin::new(&mut self.io).poll_read(cx, buf);
        }
        // A codec reads whenever it is polled, and it is polled whenever something is to be written.
        if !self.wake_set.take(WakePart::Reader) {
            return Poll::Pending;
        }
        let read = Pin::new(&mut self.io).poll_read(&mut Context::from_waker(&self.reader), buf);
        if read.is_ready() {
            // There may be more to read.
            self.wake_set.put(WakePart::Reader);
        }
        read
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Corked<I> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_read(cx, buf)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Corked<I> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.0.lock().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut line = self.0.lock();
        if let Poll::Ready(taken) = line.poll_write_lightly(cx, parts) {
            return Poll::Ready(taken);
        }
        let mut written = 0;
        for part in parts.iter().filter(|part| !part.is_empty()) {
            match line.poll_write(cx, part) {
                Poll::Ready(Ok(taken)) => {
                    written += taken;
                    if taken < part.len() {
                        break;
                    }
                }
                // Some bytes were taken, so the call succeeds.
                _ if written > 0 => break,
                refused => return refused,
            }
        }
        Poll::Ready(Ok(written))
    }

    /// Says yes, so that a codec gives us its frames instead of copying them together.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut line = self.0.lock();
        ready!(line.poll_let_out(cx))?;
        Pin::new(&mut line.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// As a codec does: written and flushed piece by piece; how much was taken.
    fn write(corked: &mut Corked<tokio::io::DuplexStream>, bytes: &[u8]) -> usize {
        let mut cx = Context::from_waker(Waker::noop());
        let mut taken = 0;
        while let Poll::Ready(written) = Pin::new(&mut *corked).poll_write(&mut cx, &bytes[taken..]) {
            taken += written.expect("open");
            assert!(!corked.0.lock().is_corked || Pin::new(&mut *corked).poll_flush(&mut cx).is_ready());
            if taken == bytes.len() {
                break;
            }
        }
        taken
    }

    fn draw(corked: &Corked<tokio::io::DuplexStream>) -> bool {
        corked.poll_draw(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[tokio::test]
    async fn what_is_written_under_the_cork_goes_out_with_it_and_in_order() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let mut corked = Corked::new(near, WakeSet::shared());
        assert_eq!(write(&mut corked, b"a"), 1);
        corked.cork(false);
        assert_eq!(write(&mut corked, b"b"), 1);
        assert_eq!(write(&mut corked, b"c"), 1);
        let mut seen = [0; 8];
        assert_eq!(far.read(&mut seen).await.expect("open"), 1, "nothing but what came before the cork");
        assert!(draw(&corked));
        assert_eq!(write(&mut corked, b"d"), 1);
        assert_eq!(far.read(&mut seen).await.expect("open"), 3);
        assert_eq!(&seen[..3], b"bcd");
        assert_eq!(corked.0.lock().held.capacity(), 0, "an idle stream keeps no buffer");
    }

    #[tokio::test]
    async fn no_more_is_gathered_than_the_limit_when_nobody_reads() {
        let (near, mut far) = tokio::io::duplex(100);
        let mut corked = Corked::new(near, WakeSet::shared());
        corked.cork(false);
        let sent: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[n as usize % 2]).collect();
        let mut taken = write(&mut corked, &sent);
        assert!((HELD_BYTES_MAX..=HELD_BYTES_MAX + 100).contains(&taken), "{taken}");
        let mut seen = Vec::new();
        // Without a budget: a stream would refuse to be written to for the sake of other tasks, and there are none.
        tokio::task::coop::unconstrained(async {
            while seen.len() < sent.len() {
                let done = draw(&corked);
                let mut some = [0; 100];
                let count = far.read(&mut some).await.expect("open");
                seen.extend_from_slice(&some[..count]);
                corked.cork(false);
                if done {
                    taken += write(&mut corked, &sent[taken..]);
                }
            }
        })
        .await;
        assert_eq!(seen, sent);
    }

    #[tokio::test]
    async fn several_pieces_are_taken_at_once() {
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let mut corked = Corked::new(near, WakeSet::shared());
        corked.cork(false);
        let parts = [io::IoSlice::new(b"ab"), io::IoSlice::new(b""), io::IoSlice::new(b"cde")];
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(Pin::new(&mut corked).poll_write_vectored(&mut cx, &parts), Poll::Ready(Ok(5))));
        assert!(Pin::new(&mut corked).poll_shutdown(&mut cx).is_ready(), "a closed stream has said everything");
        let mut seen = Vec::new();
        far.read_to_end(&mut seen).await.expect("closed");
        assert_eq!(seen, b"abcde");
    }

    #[tokio::test]
    async fn under_a_light_cork_small_writes_go_out_at_once_and_in_order() {
        let (near, mut far) = tokio::io::duplex(LIGHT_BYTES_MAX);
        let mut corked = Corked::new(near, WakeSet::shared());
        corked.cork(true);
        let mut put = |bytes: &[u8]| {
            let parts = [io::IoSlice::new(bytes)];
            let mut cx = Context::from_waker(Waker::noop());
            match Pin::new(&mut corked).poll_write_vectored(&mut cx, &parts) {
                Poll::Ready(taken) => taken.expect("open"),
                Poll::Pending => 0,
            }
        };
        let sent: Vec<u8> = (0..u8::MAX).cycle().take(3 * LIGHT_BYTES_MAX).collect();
        let (small, rest) = sent.split_at(1_000);
        assert_eq!(put(small), 1_000);
        let mut seen = vec![0; sent.len()];
        assert_eq!(far.read(&mut seen).await.expect("open"), 1_000, "the cork is not drawn");
        // A large one is gathered, and so is what comes behind it.
        let (large, last) = rest.split_at(LIGHT_BYTES_MAX + 1);
        assert_eq!(put(large), large.len());
        assert_eq!(put(last), last.len());
        let mut have = 1_000;
        while have < sent.len() {
            let _ = draw(&corked);
            have += far.read(&mut seen[have..]).await.expect("open");
        }
        assert_eq!(seen, sent);
    }

    #[tokio::test]
    async fn what_cannot_go_out_at_once_is_gathered() {
        let (near, mut far) = tokio::io::duplex(1);
        let mut corked = Corked::new(near, WakeSet::shared());
        corked.cork(true);
        let mut cx = Context::from_waker(Waker::noop());
        for bytes in [b"a", b"b", b"c"] {
            let taken = Pin::new(&mut corked).poll_write_vectored(&mut cx, &[io::IoSlice::new(bytes)]);
            assert!(matches!(taken, Poll::Ready(Ok(1))), "{taken:?}");
        }
        let mut seen = [0; 3];
        for at in 0..seen.len() {
            let _ = draw(&corked);
            assert_eq!(far.read(&mut seen[at..]).await.expect("open"), 1);
        }
        assert_eq!(&seen, b"abc");
    }
}
