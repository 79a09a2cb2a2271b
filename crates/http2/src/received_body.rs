use std::mem::take;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use parking_lot::{Mutex, MutexGuard};

/// The body of a request: none, or one whose frames are received on its stream.
#[derive(Debug)]
pub struct ReceivedBody(Option<Arc<ReceivedBodyBuffer>>);

/// The received part of a body, shared by the connection that adds data and the reader of the body.
#[derive(Debug)]
pub(super) struct ReceivedBodyBuffer {
    state: Mutex<ReceivedBodyState>,
    /// The waker of the stream's own task.
    stream: Waker,
}

#[derive(Debug, Default)]
struct ReceivedBodyState {
    /// The unread data, in one contiguous buffer, however small the frames were.
    data: BytesMut,
    trailers: Option<HeaderMap>,
    end: Option<BodyEnd>,
    /// The number of bytes that are still to be received, if the client has declared a length.
    left: Option<u64>,
    /// The number of bytes that were read and not yet returned to the client's window.
    read: usize,
    /// Whether the reader of the body was dropped.
    is_dropped: bool,
    reader: Option<Waker>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyEnd {
    Whole,
    Broken,
}

/// The stream or its connection ended before the body was complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the request ended before its body was complete")]
pub struct IncompleteBodyError;

impl ReceivedBodyBuffer {
    /// Creates a buffer for a body of the length `length`, if declared, and the body.
    pub(super) fn new(length: Option<u64>, stream: Waker) -> (Arc<Self>, ReceivedBody) {
        let state = Mutex::new(ReceivedBodyState { left: length, ..ReceivedBodyState::default() });
        let inbox = Arc::new(Self { state, stream });
        (inbox.clone(), ReceivedBody(Some(inbox)))
    }

    /// Adds received data to the body; `None` if it exceeds the declared length.
    pub(super) fn put(&self, data: &[u8]) -> Option<()> {
        let mut state = self.state.lock();
        if let Some(left) = &mut state.left {
            *left = left.checked_sub(data.len() as u64)?;
        }
        if state.is_dropped {
            state.read += data.len();
            drop(state);
            self.stream.wake_by_ref();
            return Some(());
        }
        state.data.extend_from_slice(data);
        wake_reader(state);
        Some(())
    }

    /// Marks the body as complete; `None` if it is shorter than declared.
    pub(super) fn end(&self, trailers: Option<HeaderMap>) -> Option<()> {
        let mut state = self.state.lock();
        if state.left.is_some_and(|left| left > 0) {
            return None;
        }
        (state.trailers, state.end) = (trailers, Some(BodyEnd::Whole));
        wake_reader(state);
        Some(())
    }

    /// Marks the body as broken, unless it is complete.
    pub(super) fn abort(&self) {
        let mut state = self.state.lock();
        if state.end.is_none() {
            state.end = Some(BodyEnd::Broken);
        }
        wake_reader(state);
    }

    /// Returns the number of bytes that were read since the last call, and whether the reader was dropped.
    pub(super) fn take_read(&self) -> (usize, bool) {
        let mut state = self.state.lock();
        (take(&mut state.read), state.is_dropped)
    }

    /// Returns the number of bytes that the client has sent and whose window was not returned.
    pub(super) fn unacked(&self) -> usize {
        let state = self.state.lock();
        state.read + state.data.len()
    }
}

/// Wakes the reader after releasing the lock, because it may read or drop the body at once.
fn wake_reader(mut state: MutexGuard<'_, ReceivedBodyState>) {
    let reader = state.reader.take();
    drop(state);
    if let Some(reader) = reader {
        reader.wake();
    }
}

impl Drop for ReceivedBody {
    fn drop(&mut self) {
        let Some(inbox) = &self.0 else { return };
        let mut state = inbox.state.lock();
        state.is_dropped = true;
        let bytes = take(&mut state.data).len();
        state.read += bytes;
        drop(state);
        if bytes > 0 {
            inbox.stream.wake_by_ref();
        }
    }
}

impl ReceivedBody {
    /// Creates an empty body.
    pub fn empty() -> Self {
        Self(None)
    }
}

impl Body for ReceivedBody {
    type Data = Bytes;
    type Error = IncompleteBodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBodyError>>> {
        let Some(inbox) = &self.0 else { return Poll::Ready(None) };
        let mut state = inbox.state.lock();
        // A broken body returns no more data, because the reader could mistake it for the whole.
        if state.end == Some(BodyEnd::Broken) {
            return Poll::Ready(Some(Err(IncompleteBodyError)));
        }
        if !state.data.is_empty() {
            let data = take(&mut state.data).freeze();
            state.read += data.len();
            drop(state);
            inbox.stream.wake_by_ref();
            return Poll::Ready(Some(Ok(Frame::data(data))));
        }
        if state.end.is_some() {
            return Poll::Ready(state.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
        }
        state.reader = Some(cx.waker().clone());
        Poll::Pending
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(|inbox| {
            let state = inbox.state.lock();
            state.end == Some(BodyEnd::Whole) && state.data.is_empty() && state.trailers.is_none()
        })
    }

    fn size_hint(&self) -> SizeHint {
        let Some(inbox) = &self.0 else { return SizeHint::with_exact(0) };
        let state = inbox.state.lock();
        let buffered = state.data.len() as u64;
        state.left.map_or_else(SizeHint::default, |left| SizeHint::with_exact(left.saturating_add(buffered)))
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

    fn next(body: &mut ReceivedBody) -> Poll<Option<Result<Bytes, ()>>> {
        body.frame().now_or_never().map_or(Poll::Pending, |frame| {
            Poll::Ready(frame.map(|frame| frame.map_err(|_| ()).map(|frame| frame.into_data().unwrap_or_default())))
        })
    }

    #[test]
    fn a_body_is_taken_as_it_arrives_and_says_so() {
        let (inbox, mut body) = ReceivedBodyBuffer::new(None, Waker::noop().clone());
        assert_eq!(next(&mut body), Poll::Pending);
        inbox.put(b"one").expect("no length is declared");
        inbox.put(b"").expect("no length is declared");
        assert_eq!((inbox.take_read(), inbox.unacked()), ((0, false), 3));
        assert_eq!(next(&mut body), Poll::Ready(Some(Ok(Bytes::from_static(b"one")))));
        assert_eq!((inbox.unacked(), inbox.take_read(), inbox.take_read()), (3, (3, false), (0, false)));
        inbox.end(None).expect("no length is declared");
        assert!(body.is_end_stream());
        assert_eq!(next(&mut body), Poll::Ready(None));
    }

    #[test]
    fn a_length_is_kept() {
        let (inbox, body) = ReceivedBodyBuffer::new(Some(3), Waker::noop().clone());
        inbox.put(b"ab").expect("less than declared");
        assert_eq!(body.size_hint().exact(), Some(3));
        assert_eq!(inbox.end(None), None);
        assert_eq!(inbox.put(b"cd"), None);
        inbox.put(b"c").expect("as declared");
        assert_eq!(inbox.end(None), Some(()));
    }

    #[test]
    fn what_is_broken_off_is_never_taken_for_whole() {
        let (inbox, mut body) = ReceivedBodyBuffer::new(None, Waker::noop().clone());
        inbox.put(b"one").expect("no length is declared");
        inbox.abort();
        assert_eq!(next(&mut body), Poll::Ready(Some(Err(()))));
        assert!(!body.is_end_stream());
        inbox.abort();
        let (inbox, mut body) = ReceivedBodyBuffer::new(None, Waker::noop().clone());
        inbox.end(None).expect("no length is declared");
        inbox.abort();
        assert_eq!(next(&mut body), Poll::Ready(None), "it was whole before");
    }

    #[test]
    fn what_nobody_takes_is_given_back() {
        let woken = Arc::new(AtomicUsize::new(0));
        let (inbox, body) = ReceivedBodyBuffer::new(None, Waker::from(Arc::new(Count(woken.clone()))));
        inbox.put(b"one").expect("no length is declared");
        drop(body);
        assert_eq!((inbox.take_read(), woken.load(Ordering::SeqCst)), ((3, true), 1));
        inbox.put(b"two").expect("no length is declared");
        assert_eq!((inbox.take_read(), inbox.unacked(), woken.load(Ordering::SeqCst)), ((3, true), 0, 2));
    }
}
