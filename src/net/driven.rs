use std::future::poll_fn;
use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use hyper::rt::Executor;
use parking_lot::Mutex;
use slab::Slab;
use tokio::io::AsyncWrite;
use tokio::task::coop::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use super::cork::Corked;
use super::wake_set::{StreamWaker, WakePart, WakeSet};
use crate::base::Cut;

/// A connection and its streams, run as one task: an event that concerns a hundred streams wakes one task, and what
/// they write goes out in a few large writes.
///
/// `C` is the connection's own future: a codec that reads and writes the other end of `I`, and hands its streams to
/// [`Streams`].
pub(super) struct Driven<'a, C, I> {
    connection: Pin<&'a mut C>,
    io: Corked<I>,
    started: Streams,
    running: Slab<Running>,
    wake_set: Arc<WakeSet>,
    /// The waker of the codec.
    codec: Waker,
    /// An empty list, which is exchanged for that of the streams that were woken.
    spare: Vec<usize>,
    /// The next look at streams with limited time, while there are any.
    look: Option<Pin<Box<Sleep>>>,
}

/// The place where a codec puts the streams that it starts.
#[derive(Clone, Default)]
pub(super) struct Streams(Arc<Mutex<Started>>);

#[derive(Default)]
struct Started {
    streams: Vec<(Stream, Cut)>,
    /// The cut of the stream that is started next.
    next: Option<Cut>,
}

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Running {
    future: Stream,
    flag: Arc<StreamWaker>,
    /// The waker that the stream is polled with.
    waker: Waker,
    cut: Cut,
    /// The time at which it ends, and why, if it runs for so long.
    until: Option<(Instant, &'static str)>,
    /// How often it was polled, up to [`LASTING_POLLS`].
    polls: u8,
}

/// A stream that was polled so often is one that lasts. Others may be over with the next write, for which a write and a
/// record of their own would be too much.
const LASTING_POLLS: u8 = 8;

/// Which of two futures was first.
pub(super) enum First<T, O> {
    /// The connection ended.
    Ended(T),
    Aside(O),
}

/// How many turns streams and connection take before other tasks run.
const TURNS_MAX: usize = 16;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        // A budget is for a task, and this one has many streams: the last of them would get nothing of a shared budget.
        // Each polls little at a time.
        let mut started = self.0.lock();
        let cut = started.next.take().unwrap_or_default();
        started.streams.push((Box::pin(unconstrained(stream)), cut));
    }
}

impl Streams {
    /// The cut of the stream that the codec is about to start: it drops the stream, and so the codec resets it. A codec
    /// starts one stream for each request, right after it has handed the request over.
    pub(super) fn next_cut(&self) -> Cut {
        let cut = Cut::default();
        self.0.lock().next = Some(cut.clone());
        cut
    }
}

impl<'a, C, T, I> Driven<'a, C, I>
where
    C: Future<Output = T>,
    I: AsyncWrite + Unpin,
{
    pub(super) fn new(connection: Pin<&'a mut C>, io: Corked<I>, started: Streams) -> Self {
        let (wake_set, codec) = io.wake_set();
        Self { connection, io, started, running: Slab::new(), wake_set, codec, spare: Vec::new(), look: None }
    }

    pub(super) fn connection(&mut self) -> Pin<&mut C> {
        // What is done to the codec may give it something to do.
        self.wake_set.put(WakePart::Codec);
        self.connection.as_mut()
    }

    /// Runs the connection until it is over, or until `aside` is.
    pub(super) async fn until<O>(&mut self, mut aside: Pin<&mut impl Future<Output = O>>) -> First<T, O> {
        let waker = self.wake_set.waker(WakePart::Aside);
        // `aside` may not have been polled yet, so it is polled at once.
        self.wake_set.put(WakePart::Aside);
        poll_fn(|cx| {
            if let Poll::Ready(ended) = Pin::new(&mut *self).poll(cx) {
                return Poll::Ready(First::Ended(ended));
            }
            if !self.wake_set.take(WakePart::Aside) {
                return Poll::Pending;
            }
            aside.as_mut().poll(&mut Context::from_waker(&waker)).map(First::Aside)
        })
        .await
    }

    fn poll_all(&mut self) -> Poll<T> {
        for _ in 0..TURNS_MAX {
            let mut woken = take(&mut self.spare);
            self.wake_set.take_streams(&mut woken);
            woken.drain(..).for_each(|stream| self.poll_stream(stream));
            self.spare = woken;
            if self.wake_set.take(WakePart::Codec) {
                let ended = self.connection.as_mut().poll(&mut Context::from_waker(&self.codec));
                if ended.is_ready() {
                    return ended;
                }
                let started = take(&mut self.started.0.lock().streams);
                started.into_iter().for_each(|(stream, cut)| self.add(stream, cut));
            }
            if self.wake_set.is_quiet() {
                break;
            }
        }
        Poll::Pending
    }

    /// Whether all there is to do is one stream, which lasts: then its event is a write of its own.
    fn is_lasting_stream_alone(&self) -> bool {
        let only = self.wake_set.only_stream().and_then(|stream| self.running.get(stream));
        only.is_some_and(|running| running.polls == LASTING_POLLS)
    }

    fn add(&mut self, future: Stream, cut: Cut) {
        let place = self.running.vacant_entry();
        let flag = Arc::new(StreamWaker::new(self.wake_set.clone(), place.key()));
        let waker = Waker::from(flag.clone());
        waker.wake_by_ref();
        // Registered once, for the waker stays the same. A stream that is cut already is looked at in any case.
        let _ = cut.poll_cut(&Context::from_waker(&waker));
        place.insert(Running { future, flag, waker, cut, until: None, polls: 0 });
    }

    fn poll_stream(&mut self, stream: usize) {
        // The wake-up may be for a stream that is over. If another has taken its place, that one is polled for nothing.
        let Some(Running { future, flag, waker, cut, until, polls }) = self.running.get_mut(stream) else { return };
        flag.unmark();
        *polls = (*polls + 1).min(LASTING_POLLS);
        if cut.is_cut() || future.as_mut().poll(&mut Context::from_waker(waker)).is_ready() {
            self.running.remove(stream);
            return;
        }
        // Most streams end at once, and need no timer.
        if until.is_none()
            && let Some((max, why)) = cut.limit()
        {
            let at = Instant::now() + max;
            *until = Some((at, why));
            self.look.get_or_insert_with(|| Box::pin(sleep_until(at)));
        }
    }

    /// Ends the streams whose time is up. One timer serves all of them, and there is none while there are no such
    /// streams.
    fn look(&mut self, cx: &mut Context<'_>) {
        while self.look.as_mut().is_some_and(|look| look.as_mut().poll(cx).is_ready()) {
            let (now, mut next) = (Instant::now(), None::<Instant>);
            for (_, Running { cut, until, .. }) in &self.running {
                match until {
                    Some((at, why)) if *at <= now => cut.cut(why),
                    Some((at, _)) => next = Some(next.map_or(*at, |next| next.min(*at))),
                    None => {}
                }
            }
            self.look = next.map(|at| Box::pin(sleep_until(at)));
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
        this.wake_set.begin_polling(cx);
        this.io.cork(this.is_lasting_stream_alone());
        this.look(cx);
        let ended = this.poll_all();
        // A stream that was found to be slow has armed it.
        this.look(cx);
        // If the peer does not read, the rest goes out when it does. The codec meets an error when it next reads or
        // writes. After the end the stream may go on with another protocol, which then flushes it.
        let _ = this.io.poll_draw(&mut Context::from_waker(&this.codec));
        this.wake_set.end_polling();
        if ended.is_pending() && !this.wake_set.is_quiet() {
            cx.waker().wake_by_ref();
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;
    use tokio::time::Duration;

    use super::*;

    /// A connection that starts these streams when it is first polled, writes what they send, and counts its polls.
    async fn connection(
        mut io: Corked<tokio::io::DuplexStream>,
        started: Streams,
        streams: Vec<Stream>,
        mut sent: mpsc::UnboundedReceiver<u8>,
        polls: Arc<AtomicUsize>,
    ) {
        streams.into_iter().for_each(|stream| started.execute(stream));
        let mut next = Box::pin(async move {
            while let Some(byte) = sent.recv().await {
                io.write_all(&[byte]).await.expect("open");
                io.flush().await.expect("open");
            }
        });
        poll_fn(|cx| {
            polls.fetch_add(1, Ordering::Relaxed);
            next.as_mut().poll(cx)
        })
        .await;
    }

    #[tokio::test]
    async fn an_event_for_many_streams_is_one_write_of_one_turn() {
        const STREAMS: usize = 100;
        let (near, mut far) = tokio::io::duplex(1 << 16);
        let (io, started, polls) =
            (Corked::new(near, WakeSet::shared()), Streams::default(), Arc::<AtomicUsize>::default());
        let (tx, rx) = mpsc::unbounded_channel();
        let (event, seen) = tokio::sync::watch::channel(0_u8);
        let streams = (0..STREAMS).map(|_| -> Stream {
            let (tx, mut seen) = (tx.clone(), seen.clone());
            Box::pin(async move {
                while seen.changed().await.is_ok() {
                    let _ = tx.send(*seen.borrow_and_update());
                }
            })
        });
        let streams = streams.collect();
        drop((seen, tx));
        let run = tokio::spawn({
            let (started, polls) = (started.clone(), polls.clone());
            async move {
                let connection = connection(io.clone(), started.clone(), streams, rx, polls);
                tokio::pin!(connection);
                Driven::new(connection, io, started).await;
            }
        });
        let mut bytes = [0; STREAMS];
        // Whoever listens from here on has been started.
        event.send(1).expect("they listen");
        far.read_exact(&mut bytes).await.expect("open");
        let before = polls.load(Ordering::Relaxed);
        for round in 2..12 {
            event.send(round).expect("they listen");
            assert_eq!(far.read(&mut bytes).await.expect("open"), STREAMS, "all in one piece");
            assert_eq!(bytes, [round; STREAMS]);
        }
        assert!(polls.load(Ordering::Relaxed) - before <= 20, "{before} and then {polls:?}");
        drop(event);
        run.await.expect("it ends when its streams have");
        assert_eq!(far.read(&mut bytes).await.expect("closed"), 0);
    }

    /// Nobody wakes it: its client has no window.
    #[tokio::test(start_paused = true)]
    async fn a_stream_that_is_not_over_in_its_time_is_dropped() {
        let (near, _far) = tokio::io::duplex(1 << 10);
        let (io, started) = (Corked::new(near, WakeSet::shared()), Streams::default());
        let begun = Instant::now();
        let mut ends = Vec::new();
        for seconds in [Some(20), Some(10), None] {
            let cut = started.next_cut();
            let (tx, rx) = tokio::sync::oneshot::channel::<()>();
            started.execute(async move {
                let _held = tx;
                // The answer is there behind the first turn only.
                tokio::task::yield_now().await;
                seconds.iter().for_each(|seconds| cut.within(Duration::from_secs(*seconds), "too_slow"));
                std::future::pending::<()>().await;
            });
            ends.push(rx);
        }
        let last = ends.pop().expect("three");
        let connection = async {
            for (end, seconds) in ends.into_iter().rev().zip([10, 20]) {
                let end = tokio::time::timeout(Duration::from_secs(60), end).await.expect("it is dropped");
                assert!(end.is_err());
                assert_eq!(begun.elapsed().as_secs(), seconds);
            }
            assert!(tokio::time::timeout(Duration::from_secs(3_600), last).await.is_err(), "it has no limit");
        };
        tokio::pin!(connection);
        Driven::new(connection, io, started).await;
    }

    #[tokio::test]
    async fn streams_that_never_rest_leave_others_their_turn() {
        let (near, _far) = tokio::io::duplex(1 << 10);
        let (io, started) = (Corked::new(near, WakeSet::shared()), Streams::default());
        started.execute(poll_fn(|cx| -> Poll<()> {
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        let (tx, rx) = tokio::sync::oneshot::channel::<()>();
        let connection = async { rx.await.expect("sent") };
        tokio::pin!(connection);
        let other = async { tx.send(()).expect("it is waited for") };
        tokio::join!(Driven::new(connection, io, started), other);
    }

    #[tokio::test]
    async fn what_is_aside_is_polled_when_it_was_woken() {
        let (near, mut far) = tokio::io::duplex(1 << 10);
        let (io, started) = (Corked::new(near, WakeSet::shared()), Streams::default());
        let (tx, mut rx) = tokio::sync::mpsc::unbounded_channel::<()>();
        let read = {
            let mut io = io.clone();
            async move {
                let mut byte = [0];
                // As often as something comes.
                while io.read(&mut byte).await.expect("open") > 0 {}
            }
        };
        tokio::pin!(read);
        let mut polls = 0;
        let aside = poll_fn(|cx| {
            polls += 1;
            rx.poll_recv(cx)
        });
        tokio::pin!(aside);
        let mut driven = Driven::new(read, io, started);
        let busy = async {
            for _ in 0..100 {
                far.write_all(b"x").await.expect("open");
                tokio::task::yield_now().await;
            }
            tx.send(()).expect("it listens");
        };
        let (first, ()) = tokio::join!(driven.until(aside.as_mut()), busy);
        assert!(matches!(first, First::Aside(Some(()))));
        far.shutdown().await.expect("open");
        driven.await;
        assert_eq!(polls, 2);
    }
}
