use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use parking_lot::{Mutex, MutexGuard};

/// The body of a request.
#[derive(Debug)]
pub struct RequestBody(Kind);

#[derive(Debug)]
enum Kind {
    Empty,
    /// From the HTTP/1 codec.
    Http1(Incoming),
    Http2(Http2Body),
}

/// A body whose frames arrive on an HTTP/2 stream.
#[derive(Debug)]
struct Http2Body(Arc<Inbox>);

/// The received part of a body, shared by the connection that adds data and the reader of the body.
#[derive(Debug)]
pub(super) struct Inbox {
    arrived: Mutex<Arrived>,
    /// Wakes the stream's own task.
    stream: Waker,
}

#[derive(Debug, Default)]
struct Arrived {
    /// One contiguous buffer, however small the frames were.
    data: BytesMut,
    trailers: Option<HeaderMap>,
    end: Option<End>,
    /// The bytes that are still to arrive, if the client has declared a length.
    left: Option<u64>,
    /// The bytes that were taken and not yet returned to the client's window.
    taken: usize,
    /// Whether the reader was dropped.
    is_dropped: bool,
    taker: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Whole,
    Broken,
}

/// The stream or its connection ended before the body was complete.
#[derive(Debug, thiserror::Error)]
pub enum RequestBodyError {
    #[error(transparent)]
    Http1(#[from] hyper::Error),
    #[error("the request ended before its body was complete")]
    Broken,
}

/// The body does not have the declared length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WrongLength;

impl Inbox {
    /// Creates an inbox for a body of that length, if declared, and the body.
    pub(super) fn new(length: Option<u64>, stream: Waker) -> (Arc<Self>, RequestBody) {
        let arrived = Mutex::new(Arrived { left: length, ..Arrived::default() });
        let inbox = Arc::new(Self { arrived, stream });
        (inbox.clone(), RequestBody(Kind::Http2(Http2Body(inbox))))
    }

    /// Adds received data.
    ///
    /// # Errors
    /// The data exceeds the declared length.
    pub(super) fn put(&self, data: &[u8]) -> Result<(), WrongLength> {
        let mut arrived = self.arrived.lock();
        if let Some(left) = &mut arrived.left {
            *left = left.checked_sub(data.len() as u64).ok_or(WrongLength)?;
        }
        if arrived.is_dropped {
            arrived.taken += data.len();
            drop(arrived);
            self.stream.wake_by_ref();
            return Ok(());
        }
        arrived.data.extend_from_slice(data);
        wake_taker(arrived);
        Ok(())
    }

    /// Marks the body as complete.
    ///
    /// # Errors
    /// The body is shorter than declared.
    pub(super) fn end(&self, trailers: Option<HeaderMap>) -> Result<(), WrongLength> {
        let mut arrived = self.arrived.lock();
        if arrived.left.is_some_and(|left| left > 0) {
            return Err(WrongLength);
        }
        (arrived.trailers, arrived.end) = (trailers, Some(End::Whole));
        wake_taker(arrived);
        Ok(())
    }

    /// Marks the body as broken, unless it is complete.
    pub(super) fn break_off(&self) {
        let mut arrived = self.arrived.lock();
        if arrived.end.is_none() {
            arrived.end = Some(End::Broken);
        }
        wake_taker(arrived);
    }

    /// Returns the bytes that were taken since the last call, and whether the reader was dropped.
    pub(super) fn take_taken(&self) -> (usize, bool) {
        let mut arrived = self.arrived.lock();
        (take(&mut arrived.taken), arrived.is_dropped)
    }

    /// The bytes that the client has sent and whose window was not returned.
    pub(super) fn untold(&self) -> usize {
        let arrived = self.arrived.lock();
        arrived.taken + arrived.data.len()
    }
}

/// Wakes the reader after releasing the lock, because it may read or drop the body at once.
fn wake_taker(mut arrived: MutexGuard<'_, Arrived>) {
    let taker = arrived.taker.take();
    drop(arrived);
    if let Some(taker) = taker {
        taker.wake();
    }
}

impl Http2Body {
    fn poll(&self, cx: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        let mut arrived = self.0.arrived.lock();
        // A broken body returns no more data, because the reader could mistake it for the whole.
        if arrived.end == Some(End::Broken) {
            return Poll::Ready(Some(Err(RequestBodyError::Broken)));
        }
        if !arrived.data.is_empty() {
            let data = take(&mut arrived.data).freeze();
            arrived.taken += data.len();
            drop(arrived);
            self.0.stream.wake_by_ref();
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if arrived.end.is_some() {
            return Poll::Ready(arrived.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        arrived.taker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Http2Body {
    fn drop(&mut self) {
        let mut arrived = self.0.arrived.lock();
        arrived.is_dropped = true;
        let bytes = take(&mut arrived.data).len();
        arrived.taken += bytes;
        drop(arrived);
        if bytes > 0 {
            self.0.stream.wake_by_ref();
        }
    }
}

impl RequestBody {
    /// No body.
    pub fn empty() -> Self {
        Self(Kind::Empty)
    }
}

impl From<Incoming> for RequestBody {
    fn from(body: Incoming) -> Self {
        Self(Kind::Http1(body))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = RequestBodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, RequestBodyError>>> {
        match &mut self.get_mut().0 {
            Kind::Empty => Poll::Ready(None),
            Kind::Http1(body) => Pin::new(body).poll_frame(cx).map_err(Into::into),
            Kind::Http2(body) => body.poll(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Kind::Empty => true,
            Kind::Http1(body) => body.is_end_stream(),
            Kind::Http2(Http2Body(inbox)) => {
                let arrived = inbox.arrived.lock();
                arrived.end == Some(End::Whole) && arrived.data.is_empty() && arrived.trailers.is_none()
            }
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Kind::Empty => SizeHint::with_exact(0),
            Kind::Http1(body) => body.size_hint(),
            Kind::Http2(Http2Body(inbox)) => {
                let arrived = inbox.arrived.lock();
                let here = arrived.data.len() as u64;
                arrived.left.map_or_else(SizeHint::default, |left| SizeHint::with_exact(left.saturating_add(here)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    use futures_util::FutureExt as _;
    use http_body_util::BodyExt as _;

    use super::*;

    /// A waker that counts its wake-ups.
    struct Count(Arc<AtomicUsize>);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn next(body: &mut RequestBody) -> Poll<Option<Result<Bytes, ()>>> {
        body.frame().now_or_never().map_or(Poll::Pending, |frame| {
            Poll::Ready(frame.map(|frame| frame.map_err(|_| ()).map(|frame| frame.into_data().unwrap_or_default())))
        })
    }

    #[test]
    fn body_chunks_are_delivered_on_arrival_and_counted() {
        let (inbox, mut body) = Inbox::new(None, Waker::noop().clone());
        assert_eq!(next(&mut body), Poll::Pending);
        inbox.put(b"one").expect("no length was said");
        inbox.put(b"").expect("no length was said");
        assert_eq!((inbox.take_taken(), inbox.untold()), ((0, false), 3));
        assert_eq!(next(&mut body), Poll::Ready(Some(Ok(Bytes::from_static(b"one")))));
        assert_eq!((inbox.untold(), inbox.take_taken(), inbox.take_taken()), (3, (3, false), (0, false)));
        inbox.end(None).expect("no length was said");
        assert!(body.is_end_stream());
        assert_eq!(next(&mut body), Poll::Ready(None));
    }

    #[test]
    fn body_must_match_declared_content_length() {
        let (inbox, body) = Inbox::new(Some(3), Waker::noop().clone());
        inbox.put(b"ab").expect("less than was said");
        assert_eq!(body.size_hint().exact(), Some(3));
        assert_eq!(inbox.end(None), Err(WrongLength));
        assert_eq!(inbox.put(b"cd"), Err(WrongLength));
        inbox.put(b"c").expect("what was said");
        assert_eq!(inbox.end(None), Ok(()));
    }

    #[test]
    fn aborted_body_is_an_error_not_an_end() {
        let (inbox, mut body) = Inbox::new(None, Waker::noop().clone());
        inbox.put(b"one").expect("no length was said");
        inbox.break_off();
        assert_eq!(next(&mut body), Poll::Ready(Some(Err(()))));
        assert!(!body.is_end_stream());
        inbox.break_off();
        let (inbox, mut body) = Inbox::new(None, Waker::noop().clone());
        inbox.end(None).expect("no length was said");
        inbox.break_off();
        assert_eq!(next(&mut body), Poll::Ready(None), "it was whole before");
    }

    #[test]
    fn dropped_body_returns_its_window() {
        let woken = Arc::new(AtomicUsize::new(0));
        let (inbox, body) = Inbox::new(None, Waker::from(Arc::new(Count(woken.clone()))));
        inbox.put(b"one").expect("no length was said");
        drop(body);
        assert_eq!((inbox.take_taken(), woken.load(Ordering::SeqCst)), ((3, true), 1));
        inbox.put(b"two").expect("no length was said");
        assert_eq!((inbox.take_taken(), inbox.untold(), woken.load(Ordering::SeqCst)), ((3, true), 0, 2));
    }
}
