use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use futures_util::task::AtomicWaker;
use hyper::rt::Executor;
use parking_lot::Mutex;
use tokio::io::AsyncWrite;
use tokio::task::coop::unconstrained;

use super::cork::Corked;

/// A connection and the streams on it, run as one task: an event that concerns a hundred streams wakes one task, and
/// what they have to say of it goes out in a few large writes.
///
/// `C` is the connection's own future: a codec that reads and writes the other end of `I`, and hands its streams to
/// [`Streams`].
pub(super) struct Driven<'a, C, I> {
    connection: Pin<&'a mut C>,
    io: Corked<I>,
    started: Streams,
    running: FuturesUnordered<Stream>,
    bell: Arc<Bell>,
    /// The bell as the connection holds it.
    ring: Waker,
}

/// Where a codec puts the streams that it starts.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<Vec<Stream>>>);

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Wakes the task for its connection. While streams run it is quiet: the connection is looked at next in any case.
#[derive(Default)]
struct Bell {
    task: AtomicWaker,
    is_quiet: AtomicBool,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        // A budget is for a task, and this one has many streams: with a share of one budget the last of them would be
        // polled for nothing. Each polls little at a time.
        self.0.lock().push(Box::pin(unconstrained(stream)));
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_quiet.load(Ordering::Acquire) {
            self.task.wake();
        }
    }
}

impl<'a, C, T, I> Driven<'a, C, I>
where
    C: Future<Output = T>,
    I: AsyncWrite + Unpin,
{
    pub(super) fn new(connection: Pin<&'a mut C>, io: Corked<I>, started: Streams) -> Self {
        let bell = Arc::<Bell>::default();
        let ring = Waker::from(bell.clone());
        Self { connection, io, started, running: FuturesUnordered::new(), bell, ring }
    }

    pub(super) fn connection(&mut self) -> Pin<&mut C> {
        self.connection.as_mut()
    }

    fn poll_corked(&mut self, cx: &mut Context<'_>) -> Poll<T> {
        self.bell.task.register(cx.waker());
        loop {
            self.bell.is_quiet.store(true, Ordering::Release);
            while let Poll::Ready(Some(())) = self.running.poll_next_unpin(cx) {}
            self.bell.is_quiet.store(false, Ordering::Release);
            let ended = self.connection.as_mut().poll(&mut Context::from_waker(&self.ring));
            let started = take(&mut *self.started.0.lock());
            if ended.is_ready() || started.is_empty() {
                return ended;
            }
            self.running.extend(started);
        }
    }
}

impl<C, T, I> Future for Driven<'_, C, I>
where
    C: Future<Output = T>,
    I: AsyncWrite + Unpin,
{
    type Output = T;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        this.io.cork();
        let ended = this.poll_corked(cx);
        // Where the peer does not read, the rest goes out when it does: the wake-up is for this task. An error is for
        // the codec, which meets it when it next reads or writes. Of a connection that has ended the stream may go on
        // as another protocol's, which then flushes it.
        let _ = this.io.poll_draw(cx);
        ended
    }
}
