//! Retries requests that their server has certainly not processed (RFC 9113 §8.7), whatever their method.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::sleep;

use super::UpstreamError;
use super::cost::UpstreamCostCounter;
use base::random;

/// The body of a request that is sent to upstream.
pub type UpstreamBody = UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A request with its cost counter, which ensures that every request is counted.
#[derive(Debug)]
pub(super) struct CountedRequest {
    pub(super) request: Request<UpstreamBody>,
    pub(super) counter: UpstreamCostCounter,
}

/// A request that can be retried as long as the part of its body that was read is kept.
#[derive(Debug)]
pub(super) struct RetryableRequest {
    head: Request<()>,
    counter: UpstreamCostCounter,
    /// The body of the request; `None` if it has none.
    body: Option<Arc<Mutex<RetryableBody>>>,
    retries: u32,
}

/// A request body, which all attempts to send it read.
#[derive(Debug)]
struct RetryableBody {
    body: UpstreamBody,
    /// The length of the whole body, if it is known.
    length: Option<u64>,
    is_read: bool,
    /// The number of the attempt that may read the body. Earlier ones, which the HTTP library may still drive, get an
    /// error.
    attempt: u32,
    /// The bytes of the body that were read so far; `None` if they exceed the limits or cannot be repeated.
    retained: Option<RetainedBytes>,
}

#[derive(Debug, Default)]
struct RetainedBytes {
    bytes: Vec<u8>,
    /// The permits of [`RETAINED`] for the kept bytes.
    permits: Option<SemaphorePermit<'static>>,
}

/// The body of one attempt: the bytes that were read before, then the rest.
#[derive(Debug)]
struct AttemptBody {
    shared: Arc<Mutex<RetryableBody>>,
    number: u32,
    sent: usize,
}

/// The request attempt was superseded, because another attempt has begun.
#[derive(Debug, thiserror::Error)]
#[error("attempt superseded: the request is sent on another connection")]
struct SupersededAttempt;

/// The maximum number of retries. The pauses before all but the first retry add up to about 0.6 s.
const RETRIES_MAX: u32 = 8;
/// The mean pause before the second retry; doubled for each further one.
const PAUSE: Duration = Duration::from_millis(5);
/// The maximum size in bytes of a body that is kept for a retry.
const RETAINED_BYTES_MAX: usize = 256 << 10;
/// The maximum number of bytes that all kept bodies occupy together.
const ALL_RETAINED_BYTES_MAX: usize = 64 << 20;
static RETAINED: Semaphore = Semaphore::const_new(ALL_RETAINED_BYTES_MAX);

impl RetryableRequest {
    pub(super) fn new(CountedRequest { request, counter }: CountedRequest) -> Self {
        let (parts, body) = request.into_parts();
        let body = (!body.is_end_stream()).then(|| Arc::new(Mutex::new(RetryableBody::new(body))));
        Self { head: Request::from_parts(parts, ()), counter, body, retries: 0 }
    }

    /// Builds the request for one more attempt. Earlier attempts can no longer read the body.
    pub(super) fn attempt(&self) -> CountedRequest {
        let body = match &self.body {
            None => Empty::new().map_err(|never| match never {}).boxed_unsync(),
            Some(shared) => {
                let number = shared.lock().begin_attempt();
                AttemptBody { shared: shared.clone(), number, sent: 0 }.boxed_unsync()
            }
        };
        let mut request = Request::new(body);
        self.head.method().clone_into(request.method_mut());
        self.head.uri().clone_into(request.uri_mut());
        self.head.headers().clone_into(request.headers_mut());
        CountedRequest { request, counter: self.counter.for_retry() }
    }

    /// Returns whether to retry the request after this error; if so, pauses first.
    pub(super) async fn may_retry(&mut self, error: &UpstreamError) -> bool {
        let is_retained = || self.body.as_ref().is_none_or(|body| body.lock().retained.is_some());
        if self.retries == RETRIES_MAX || !error.is_unprocessed() || !is_retained() {
            return false;
        }
        // The first retry usually finds another connection at once.
        if self.retries > 0 {
            sleep(PAUSE.mul_f64(f64::from(1 << (self.retries - 1)) * (0.5 + random::f64()))).await;
        }
        self.retries += 1;
        tracing::debug!(%error, retries = self.retries, "upstream did not process a request; retrying");
        true
    }
}

impl Drop for RetryableRequest {
    /// Frees the kept bytes. The last attempt may continue to read.
    fn drop(&mut self) {
        if let Some(shared) = &self.body {
            shared.lock().retained = None;
        }
    }
}

impl RetryableBody {
    fn new(body: UpstreamBody) -> Self {
        let length = body.size_hint().exact();
        // Avoids copying a body that is too large to be kept.
        let is_retained = length.is_none_or(|length| length <= RETAINED_BYTES_MAX as u64);
        Self { body, length, is_read: false, attempt: 0, retained: is_retained.then(RetainedBytes::default) }
    }

    fn begin_attempt(&mut self) -> u32 {
        self.attempt += 1;
        self.attempt
    }

    /// Returns the kept bytes that an attempt has not sent yet.
    fn unsent(&self, sent: usize) -> &[u8] {
        self.retained.as_ref().and_then(|retained| retained.bytes.get(sent..)).unwrap_or_default()
    }

    fn retain(&mut self, data: &[u8]) {
        self.retained = self.retained.take().and_then(|retained| retained.with(data));
    }
}

impl RetainedBytes {
    /// Appends `data` to the kept bytes; returns `None` if that exceeds the limits.
    fn with(mut self, data: &[u8]) -> Option<Self> {
        if data.is_empty() {
            return Some(self);
        }
        if self.bytes.len() + data.len() > RETAINED_BYTES_MAX {
            return None;
        }
        let permits = RETAINED.try_acquire_many(u32::try_from(data.len()).ok()?).ok()?;
        match &mut self.permits {
            Some(all) => all.merge(permits),
            none => *none = Some(permits),
        }
        self.bytes.extend_from_slice(data);
        Some(self)
    }
}

impl Body for AttemptBody {
    type Data = Bytes;
    type Error = Box<dyn std::error::Error + Send + Sync>;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let attempt = self.get_mut();
        let mut shared = attempt.shared.lock();
        if shared.attempt != attempt.number {
            return Poll::Ready(Some(Err(SupersededAttempt.into())));
        }
        let before = shared.unsent(attempt.sent);
        if !before.is_empty() {
            attempt.sent += before.len();
            return Poll::Ready(Some(Ok(Frame::data(Bytes::copy_from_slice(before)))));
        }
        if shared.is_read {
            return Poll::Ready(None);
        }
        let frame = ready!(Pin::new(&mut shared.body).poll_frame(cx));
        match &frame {
            None => shared.is_read = true,
            Some(Ok(frame)) => match frame.data_ref() {
                Some(data) => {
                    attempt.sent += data.len();
                    shared.retain(data);
                }
                // Trailers are not kept, so they prevent a retry.
                None => shared.retained = None,
            },
            Some(Err(_)) => shared.retained = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let shared = self.shared.lock();
        let is_read = shared.is_read || shared.body.is_end_stream();
        is_read && shared.attempt == self.number && shared.unsent(self.sent).is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.shared.lock().length.and_then(|length| length.checked_sub(self.sent as u64));
        left.map(SizeHint::with_exact).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use futures_util::stream;
    use http_body_util::{Full, StreamBody};

    use super::*;
    use crate::upstream::{UpstreamCostTotals, UpstreamRequestCause};

    fn resendable(body: UpstreamBody) -> RetryableRequest {
        let counter = UpstreamCostTotals::default().counter(UpstreamRequestCause::PassedThrough, false);
        RetryableRequest::new(CountedRequest { request: Request::post("/").body(body).expect("a request"), counter })
    }

    /// A body that arrives in these parts, with unknown length.
    fn parts(parts: &[&'static [u8]]) -> UpstreamBody {
        let frames: Vec<Result<_, Box<dyn std::error::Error + Send + Sync>>> =
            parts.iter().map(|part| Ok(Frame::data(Bytes::from_static(part)))).collect();
        StreamBody::new(stream::iter(frames)).boxed_unsync()
    }

    fn next(body: &mut UpstreamBody) -> Option<Result<Bytes, String>> {
        let frame = body.frame().now_or_never().expect("at once")?;
        Some(frame.map(|frame| frame.into_data().expect("data")).map_err(|error| error.to_string()))
    }

    /// The error after a GOAWAY for a request that was not processed.
    async fn unprocessed() -> UpstreamError {
        UpstreamError::Unreachable(UpstreamError::unprocessed().await.into())
    }

    #[tokio::test]
    async fn retry_resends_buffered_body_and_then_the_rest() {
        let mut resendable = resendable(parts(&[b"one ", b"two ", b"three"]));
        let mut first = resendable.attempt().request.into_body();
        assert_eq!(next(&mut first), Some(Ok(Bytes::from_static(b"one "))));
        assert_eq!(next(&mut first), Some(Ok(Bytes::from_static(b"two "))));
        assert!(resendable.may_retry(&unprocessed().await).await);
        let mut second = resendable.attempt().request.into_body();
        assert_eq!(next(&mut first), Some(Err(SupersededAttempt.to_string())), "it takes nothing from the second");
        assert_eq!(next(&mut second), Some(Ok(Bytes::from_static(b"one two "))));
        assert_eq!(next(&mut second), Some(Ok(Bytes::from_static(b"three"))));
        assert!(next(&mut second).is_none() && second.is_end_stream());
        assert!(resendable.may_retry(&unprocessed().await).await);
        let third = resendable.attempt().request.into_body().collect().await.expect("whole");
        assert_eq!(third.to_bytes(), Bytes::from_static(b"one two three"));
    }

    #[tokio::test]
    async fn each_attempt_declares_whole_body_length() {
        let whole = Full::from("whole").map_err(|never| match never {}).boxed_unsync();
        let resendable = resendable(whole);
        for _ in 0..2 {
            let mut body = resendable.attempt().request.into_body();
            assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(5), false));
            assert_eq!(next(&mut body), Some(Ok(Bytes::from_static(b"whole"))));
            assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
        }
    }

    #[tokio::test]
    async fn body_above_buffer_limit_is_not_retried() {
        let large = || Bytes::from(vec![b'a'; RETAINED_BYTES_MAX + 1]);
        let known = Full::from(large()).map_err(|never| match never {}).boxed_unsync();
        assert!(!resendable(known).may_retry(&unprocessed().await).await);
        let mut unknown = resendable(parts(&[b"a", Vec::leak(large().to_vec())]));
        let mut first = unknown.attempt().request.into_body();
        assert_eq!(next(&mut first), Some(Ok(Bytes::from_static(b"a"))));
        assert!(unknown.may_retry(&unprocessed().await).await, "what was read so far is kept");
        let second = unknown.attempt().request.into_body().collect().await.expect("whole");
        assert_eq!(second.to_bytes().len(), RETAINED_BYTES_MAX + 2);
        assert!(!unknown.may_retry(&unprocessed().await).await);
    }

    #[tokio::test(start_paused = true)]
    async fn only_unprocessed_requests_are_retried_up_to_limit() {
        let mut resendable = resendable(parts(&[b"one"]));
        let broken = || async { UpstreamError::Unreachable(UpstreamError::broken_off_when_read().await.into()) };
        assert!(!resendable.may_retry(&broken().await).await);
        assert!(!resendable.may_retry(&UpstreamError::Timeout(PAUSE)).await);
        for _ in 0..RETRIES_MAX {
            assert!(resendable.may_retry(&unprocessed().await).await);
        }
        assert!(!resendable.may_retry(&unprocessed().await).await);
    }
}
