use std::collections::VecDeque;
use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use crate::serve::limits::BodyError;
use crate::serve::limits::concurrency::ConcurrencyPermit;
use crate::serve::limits::slow_readers::{SlowReaderReaper, TOO_SLOW};
use base::{AbortSignal, Timer, TimerQueue, TimerTarget};

/// A body that ends at its deadline, even if the client does not read it.
///
/// A slow reader keeps resources in use: a snapshot, a permit, a connection to upstream. It may do so for as long as
/// the apiserver lets a request last. At the deadline, the body releases all of them, even if the client does not read
/// and the body is never polled. A later poll returns an error, so an aborted body never looks complete.
#[derive(Debug)]
pub(crate) struct DeadlineBody<B>(Arc<DeadlineBodyState<B>>);

#[derive(Debug)]
struct DeadlineBodyState<B> {
    timer: Timer,
    /// The deadline in microseconds, as the times of [`TimerQueue`].
    deadline: u64,
    body: Mutex<DeadlineBodyInner<B>>,
    /// Aborts the stream of the response.
    abort: AbortSignal,
}

#[derive(Debug)]
struct DeadlineBodyInner<B> {
    /// The body; `None` once it was aborted.
    body: Option<B>,
    /// The waker of the task that waits for more data.
    waker: Option<Waker>,
}

impl<B: Body + Send + 'static> DeadlineBody<B> {
    /// Wraps a body and starts its deadline.
    ///
    /// At the deadline, `abort` resets the stream of the response, because a codec never polls the body while the
    /// flow-control window is closed. For the body of a request, `abort` does nothing.
    pub(crate) fn new(body: B, slow_readers: &SlowReaderReaper, abort: AbortSignal) -> Self {
        let timers = slow_readers.timers();
        let deadline = timers.after(slow_readers.body_max());
        // Most bodies are complete or empty, and need no timer.
        let is_complete = body.is_end_stream();
        let body = Mutex::new(DeadlineBodyInner { body: Some(body), waker: None });
        let state = Arc::new(DeadlineBodyState { timer: timers.timer(), deadline, body, abort });
        if !is_complete {
            Timer::schedule(&state);
        }
        Self(state)
    }
}

impl<B: Send> TimerTarget for DeadlineBodyState<B> {
    fn timer(&self) -> &Timer {
        &self.timer
    }

    fn next(&self, now: u64) -> u64 {
        if self.deadline > now { self.deadline } else { TimerQueue::NEVER }
    }

    fn fire(&self, _at: u64, now: u64) {
        if now < self.deadline {
            return;
        }
        let (body, waker) = {
            let mut inner = self.body.lock();
            (inner.body.take(), inner.waker.take())
        };
        if body.is_some() {
            tracing::debug!("request or response body aborted: not sent or read before its deadline");
        }
        drop(body);
        if let Some(waker) = waker {
            waker.wake();
        }
        self.abort.abort(TOO_SLOW);
    }
}

impl<B: Body<Data = Bytes, Error: Into<BodyError>> + Unpin> Body for DeadlineBody<B> {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let mut inner = self.0.body.lock();
        let Some(body) = &mut inner.body else {
            return Poll::Ready(Some(Err("the body was not sent or read before its deadline".into())));
        };
        let polled = Pin::new(body).poll_frame(cx).map(|frame| frame.map(|frame| frame.map_err(Into::into)));
        if polled.is_pending() && !inner.waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            inner.waker = Some(cx.waker().clone());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.0.body.lock().body.as_ref().is_some_and(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.0.body.lock().body.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

/// A complete body that is sent in pieces. The connection holds the pieces that were taken. The permits are released
/// with the last piece.
#[derive(Debug)]
pub(crate) struct BufferedResponseBody {
    /// The remaining parts, in this order. They are never joined, so that the codec cannot take a final part of a few
    /// bytes before the large part has found room.
    left: VecDeque<Bytes>,
    _permits: Vec<Arc<ConcurrencyPermit>>,
}

impl BufferedResponseBody {
    pub(crate) fn new(left: impl Into<VecDeque<Bytes>>, permits: Vec<Arc<ConcurrencyPermit>>) -> Self {
        Self { left: left.into(), _permits: permits }
    }

    /// Creates a response body from one buffer.
    pub(crate) fn from_bytes(mut bytes: Bytes, permits: Vec<Arc<ConcurrencyPermit>>) -> Self {
        // Copies the last byte. Otherwise a codec that has taken it but cannot send it would keep the whole buffer
        // alive without a permit.
        let end = Bytes::copy_from_slice(&bytes.split_off(bytes.len().saturating_sub(1)));
        Self::new([Bytes::new(), bytes, end], permits)
    }
}

/// The size of a TLS record, and the default size of an HTTP/2 frame.
pub(crate) const PIECE_BYTES_MAX: usize = 16 << 10;

impl Body for BufferedResponseBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let parts = &mut self.get_mut().left;
        while parts.front().is_some_and(Bytes::is_empty) {
            parts.pop_front();
        }
        Poll::Ready(parts.front_mut().map(|left| {
            let len = left.len();
            // Takes a whole part out, so that no empty slice keeps the buffer alive.
            let piece = if len > PIECE_BYTES_MAX { left.split_to(PIECE_BYTES_MAX) } else { take(left) };
            Ok(Frame::data(piece))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.left.iter().all(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left.iter().map(|left| left.len() as u64).sum())
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use futures_util::FutureExt;
    use http_body_util::BodyExt;
    use tokio::time::sleep;

    use super::*;
    use crate::serve::limits::SlowReaderLimits;
    use crate::serve::limits::concurrency::{ConcurrencyConfig, ConcurrencyLimits};

    /// A body that never yields and holds a permit.
    struct Silent(#[expect(dead_code, reason = "it is kept until the drop")] ConcurrencyPermit);

    impl Body for Silent {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            Poll::Pending
        }
    }

    const MAX: Duration = Duration::from_secs(60);

    fn one_permit() -> (SlowReaderReaper, ConcurrencyLimits) {
        let concurrency =
            ConcurrencyLimits::new(&ConcurrencyConfig { forwards_max: 1, ..ConcurrencyConfig::default() });
        let slow_readers = SlowReaderReaper::new(SlowReaderLimits::default(), MAX);
        tokio::spawn(slow_readers.timers().clone().run());
        (slow_readers, concurrency)
    }

    #[tokio::test(start_paused = true)]
    async fn unpolled_body_releases_its_permit_after_timeout() {
        let (slow_readers, concurrency) = one_permit();
        let body = DeadlineBody::new(
            Silent(concurrency.forwards.acquire(None).expect("a permit")),
            &slow_readers,
            AbortSignal::default(),
        );
        sleep(Duration::from_secs(59)).await;
        assert!(concurrency.forwards.acquire(None).is_err());
        sleep(Duration::from_secs(2)).await;
        assert!(concurrency.forwards.acquire(None).is_ok(), "although the body is still there");
        let mut body = body;
        assert!(body.frame().await.expect("an error, not the end").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn reader_of_timed_out_body_gets_error() {
        let (slow_readers, concurrency) = one_permit();
        let mut body = DeadlineBody::new(
            Silent(concurrency.forwards.acquire(None).expect("a permit")),
            &slow_readers,
            AbortSignal::default(),
        );
        assert!(body.frame().await.expect("an error, not the end").is_err());
        assert!(!body.is_end_stream());
    }

    #[tokio::test(start_paused = true)]
    async fn complete_response_holds_permit_until_sent() {
        let (slow_readers, concurrency) = one_permit();
        let permit = Arc::new(concurrency.forwards.acquire(None).expect("a permit"));
        let text = Bytes::from(vec![b'a'; 3 * PIECE_BYTES_MAX + 1]);
        let mut body = DeadlineBody::new(
            BufferedResponseBody::from_bytes(text.clone(), vec![permit]),
            &slow_readers,
            AbortSignal::default(),
        );
        assert_eq!(body.size_hint().exact(), Some(text.len() as u64));
        let first = body.frame().now_or_never().expect("at once").expect("some").expect("sound");
        assert_eq!(first.into_data().expect("data").len(), PIECE_BYTES_MAX);
        assert!(concurrency.forwards.acquire(None).is_err());
        let rest = body.collect().await.expect("whole").to_bytes();
        assert_eq!(rest.len(), text.len() - PIECE_BYTES_MAX);
        assert!(concurrency.forwards.acquire(None).is_ok());
    }

    #[tokio::test]
    async fn large_body_is_sent_without_copy_and_last_byte_separately() {
        let (head, tail) = (Bytes::from_static(b"{"), Bytes::from_static(b"\n"));
        let body = Bytes::from(vec![b'a'; PIECE_BYTES_MAX + 1]);
        let mut whole = BufferedResponseBody::new([head, body.clone(), tail], Vec::new());
        assert_eq!(whole.size_hint().exact(), Some(body.len() as u64 + 2));
        let mut pieces = Vec::new();
        while let Some(piece) = whole.frame().await {
            pieces.push(piece.expect("sound").into_data().expect("data"));
        }
        assert_eq!(pieces.iter().map(Bytes::len).collect::<Vec<_>>(), [1, PIECE_BYTES_MAX, 1, 1]);
        assert_eq!(pieces[1].as_ptr(), body.as_ptr(), "it is not copied");
        assert!(whole.is_end_stream());
        // A last piece that the codec has taken but cannot send keeps nothing else alive.
        let mut read_whole = BufferedResponseBody::from_bytes(body.clone(), Vec::new());
        let all = read_whole.frame().await.expect("some").expect("sound").into_data().expect("data");
        let end = read_whole.frame().await.expect("some").expect("sound").into_data().expect("data");
        assert!(all.len() == PIECE_BYTES_MAX && end.len() == 1 && read_whole.is_end_stream());
        assert!(!body.as_ptr_range().contains(&end.as_ptr()));
    }

    #[tokio::test(start_paused = true)]
    async fn body_that_ends_at_once_has_no_timer() {
        let (slow_readers, concurrency) = one_permit();
        let permit = Arc::new(concurrency.forwards.acquire(None).expect("a permit"));
        let mut body = DeadlineBody::new(
            BufferedResponseBody::from_bytes(Bytes::new(), vec![permit]),
            &slow_readers,
            AbortSignal::default(),
        );
        assert!(poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await.is_none());
        assert_eq!(Arc::weak_count(&body.0), 0);
    }
}
