//! Retries requests that their server has certainly not processed (RFC 9113 §8.7), whatever their method.

use std::sync::LazyLock;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::Request;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Body as _;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::sleep;

use super::UpstreamError;
use super::cost::UpstreamCostCounter;
use base::{KeyedSemaphores, random};
use kubeapi::FlowDistinguisher;

/// The body of a request that is sent to upstream.
pub type UpstreamBody = UnsyncBoxBody<Bytes, BodyError>;

type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// A request with its cost counter, which ensures that every request is counted.
#[derive(Debug)]
pub(super) struct CountedRequest {
    pub(super) request: Request<UpstreamBody>,
    pub(super) counter: UpstreamCostCounter,
    /// The user whose share of the retained bodies the request uses; `None` if it has no body, or is the proxy's own.
    pub(super) flow: Option<FlowDistinguisher>,
}

/// A request that can be retried if its body is retained.
#[derive(Debug)]
pub(super) struct RetryableRequest {
    head: Request<()>,
    counter: UpstreamCostCounter,
    body: RetryableBody,
    retries: u32,
}

#[derive(Debug)]
enum RetryableBody {
    /// The whole body, and the permits for its bytes.
    Retained { whole: Bytes, _permits: RetainedBytes },
    /// A body that is sent as it arrives, once; `None` after that.
    Streamed(Option<UpstreamBody>),
}

/// The maximum number of retries. The pauses before all but the first retry add up to about 0.6 s.
const RETRIES_MAX: u32 = 8;
/// The mean pause before the second retry. It doubles with each further retry.
const PAUSE: Duration = Duration::from_millis(5);
/// The maximum size in bytes of a body that is retained for a retry.
const RETAINED_BYTES_MAX: u32 = 256 << 10;
/// The maximum number of bytes that all retained bodies occupy together, and those of one user. A body counts before
/// it arrives.
const ALL_RETAINED_BYTES_MAX: usize = 64 << 20;
const RETAINED_BYTES_PER_USER_MAX: usize = ALL_RETAINED_BYTES_MAX / 8;
static RETAINED: Semaphore = Semaphore::const_new(ALL_RETAINED_BYTES_MAX);
static RETAINED_BY_USER: LazyLock<KeyedSemaphores<FlowDistinguisher>> =
    LazyLock::new(|| KeyedSemaphores::new(RETAINED_BYTES_PER_USER_MAX));

/// The permits for the bytes of a retained body: those of its user, and those of [`RETAINED`].
type RetainedBytes = (Option<OwnedSemaphorePermit>, SemaphorePermit<'static>);

impl RetryableRequest {
    /// Reads and retains a body whose length is known and small, before anything is sent. Bodies that may arrive
    /// without a deadline (`has_deadline`), or whose length is unknown, are streamed, and their requests not retried.
    ///
    /// # Errors
    /// The body broke off, so nothing is sent.
    pub(super) async fn new(
        CountedRequest { request, counter, flow }: CountedRequest,
        has_deadline: bool,
    ) -> Result<Self, UpstreamError> {
        let (parts, body) = request.into_parts();
        let body = RetryableBody::new(body, flow.as_ref(), has_deadline).await;
        let body = body.map_err(|error| UpstreamError::InvalidRequest(error.to_string()))?;
        Ok(Self { head: Request::from_parts(parts, ()), counter, body, retries: 0 })
    }

    /// Builds the request for one more attempt.
    pub(super) fn attempt(&mut self) -> CountedRequest {
        let body = match &mut self.body {
            RetryableBody::Retained { whole, .. } => whole_body(whole.clone()),
            RetryableBody::Streamed(body) => body.take().expect("only requests with retained bodies are retried"),
        };
        let mut request = Request::new(body);
        self.head.method().clone_into(request.method_mut());
        self.head.uri().clone_into(request.uri_mut());
        self.head.headers().clone_into(request.headers_mut());
        CountedRequest { request, counter: self.counter.for_retry(), flow: None }
    }

    /// Returns whether to retry the request after this error; if so, pauses first.
    pub(super) async fn may_retry(&mut self, error: &UpstreamError) -> bool {
        let is_retained = matches!(self.body, RetryableBody::Retained { .. });
        if self.retries == RETRIES_MAX || !error.is_unprocessed() || !is_retained {
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

impl RetryableBody {
    async fn new(
        mut body: UpstreamBody,
        flow: Option<&FlowDistinguisher>,
        has_deadline: bool,
    ) -> Result<Self, BodyError> {
        let length = if body.is_end_stream() { Some(0) } else { body.size_hint().exact().filter(|_| has_deadline) };
        let length =
            length.and_then(|length| u32::try_from(length).ok()).filter(|length| *length <= RETAINED_BYTES_MAX);
        let permits = length.and_then(|length| acquire(flow, length));
        let (Some(length), Some(permits)) = (length, permits) else { return Ok(Self::Streamed(Some(body))) };
        // One buffer, because a caller may send frames of one byte.
        let mut whole = BytesMut::new();
        while let Some(frame) = body.frame().await {
            match frame?.into_data() {
                Ok(data) if whole.len() + data.len() > length as usize => return Err("longer than declared".into()),
                Ok(data) => whole.extend_from_slice(&data),
                // The last frame. A body with trailers is rare and not retained.
                Err(frame) => {
                    let trailers = async { frame.into_trailers().ok().map(Ok) };
                    let body = whole_body(whole.freeze()).with_trailers(trailers);
                    return Ok(Self::Streamed(Some(body.boxed_unsync())));
                }
            }
        }
        Ok(Self::Retained { whole: whole.freeze(), _permits: permits })
    }
}

fn acquire(flow: Option<&FlowDistinguisher>, bytes: u32) -> Option<RetainedBytes> {
    let own = flow.map(|flow| RETAINED_BY_USER.get(flow).try_acquire_many_owned(bytes)).transpose().ok()?;
    Some((own, RETAINED.try_acquire_many(bytes).ok()?))
}

fn whole_body(bytes: Bytes) -> UpstreamBody {
    Full::new(bytes).map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures_util::FutureExt as _;
    use futures_util::stream;
    use http::HeaderMap;
    use http_body_util::StreamBody;
    use hyper::body::{Body, Frame, SizeHint};

    use super::*;
    use crate::upstream::{UpstreamCostTotals, UpstreamRequestCause};
    use kubeapi::User;

    async fn read(body: UpstreamBody, has_deadline: bool) -> Result<RetryableRequest, UpstreamError> {
        read_for(None, body, has_deadline).await
    }

    async fn read_for(
        flow: Option<FlowDistinguisher>,
        body: UpstreamBody,
        has_deadline: bool,
    ) -> Result<RetryableRequest, UpstreamError> {
        let counter = UpstreamCostTotals::default().counter(UpstreamRequestCause::Forwarded, false);
        let request = Request::post("/").body(body).expect("a request");
        RetryableRequest::new(CountedRequest { request, counter, flow }, has_deadline).await
    }

    async fn request(body: UpstreamBody) -> RetryableRequest {
        read(body, true).await.expect("a whole body")
    }

    /// A body with a declared length.
    struct Declared(u64, VecDeque<Result<Frame<Bytes>, BodyError>>);

    impl Body for Declared {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
            Poll::Ready(self.1.pop_front())
        }

        fn size_hint(&self) -> SizeHint {
            SizeHint::with_exact(self.0)
        }
    }

    fn data(parts: &[&'static [u8]]) -> VecDeque<Result<Frame<Bytes>, BodyError>> {
        parts.iter().map(|part| Ok(Frame::data(Bytes::from_static(part)))).collect()
    }

    /// A body that arrives in these parts, with unknown length.
    fn undeclared(parts: &[&'static [u8]]) -> UpstreamBody {
        StreamBody::new(stream::iter(data(parts))).boxed_unsync()
    }

    fn declared(length: u64, frames: VecDeque<Result<Frame<Bytes>, BodyError>>) -> UpstreamBody {
        Declared(length, frames).boxed_unsync()
    }

    fn next(body: &mut UpstreamBody) -> Option<Bytes> {
        let frame = body.frame().now_or_never().expect("at once")?;
        Some(frame.expect("no error").into_data().expect("data"))
    }

    async fn sent(request: &mut RetryableRequest) -> Bytes {
        request.attempt().request.into_body().collect().await.expect("whole").to_bytes()
    }

    /// The error after a GOAWAY for a request that was not processed.
    async fn unprocessed() -> UpstreamError {
        UpstreamError::Unreachable(UpstreamError::unprocessed().await.into())
    }

    #[tokio::test]
    async fn each_attempt_has_the_whole_body_and_its_length() {
        let mut retried = request(declared(13, data(&[b"one ", b"two ", b"three"]))).await;
        let mut first = retried.attempt().request.into_body();
        assert_eq!((first.size_hint().exact(), first.is_end_stream()), (Some(13), false));
        for _ in 0..2 {
            assert!(retried.may_retry(&unprocessed().await).await);
            let mut body = retried.attempt().request.into_body();
            assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(13), false));
            assert_eq!(next(&mut body), Some(Bytes::from_static(b"one two three")));
            assert_eq!((body.size_hint().exact(), body.is_end_stream()), (Some(0), true));
        }
        assert_eq!(next(&mut first), Some(Bytes::from_static(b"one two three")), "the attempts share nothing");
    }

    #[tokio::test]
    async fn body_that_breaks_off_or_exceeds_its_length_is_not_sent() {
        let mut broken = data(&[b"one"]);
        broken.push_back(Err("the caller is gone".into()));
        for (frames, reason) in [(broken, "the caller is gone"), (data(&[b"one ", b"two"]), "longer than declared")] {
            let error = read(declared(6, frames), true).await.expect_err("no request");
            assert!(matches!(&error, UpstreamError::InvalidRequest(text) if text == reason), "{error:?}");
            assert!(!error.may_be_processed() && !error.is_outage());
        }
    }

    #[tokio::test]
    async fn large_unbounded_or_slow_body_is_streamed_and_not_retried() {
        let large = || Bytes::from(vec![b'a'; RETAINED_BYTES_MAX as usize + 1]);
        let small = || declared(3, data(&[b"one"]));
        for (body, has_deadline, whole) in [
            (whole_body(large()), true, large()),
            (undeclared(&[b"one"]), true, Bytes::from_static(b"one")),
            (small(), false, Bytes::from_static(b"one")),
        ] {
            let mut streamed = read(body, has_deadline).await.expect("a request");
            assert_eq!(sent(&mut streamed).await, whole);
            assert!(!streamed.may_retry(&unprocessed().await).await);
        }
        let never = StreamBody::new(stream::pending()).boxed_unsync();
        assert!(read(never, true).now_or_never().is_some(), "it is not waited for");
        let mut empty = read(whole_body(Bytes::new()), false).await.expect("a request");
        assert!(empty.attempt().request.body().is_end_stream() && empty.may_retry(&unprocessed().await).await);
    }

    #[tokio::test]
    async fn retained_bodies_of_one_user_leave_room_for_others() {
        let user = |name: &str| FlowDistinguisher::from_user(&User { name: name.to_owned(), ..User::default() });
        let small = |name| read_for(Some(user(name)), whole_body(Bytes::from_static(b"one")), true);
        let large = Bytes::from(vec![b'a'; RETAINED_BYTES_MAX as usize]);
        let mut retained = Vec::new();
        for _ in 0..=ALL_RETAINED_BYTES_MAX / large.len() {
            retained.push(read_for(Some(user("ada")), whole_body(large.clone()), true).await.expect("a request"));
        }
        let is_retained = |request: &RetryableRequest| matches!(request.body, RetryableBody::Retained { .. });
        let count = retained.iter().filter(|request| is_retained(request)).count();
        assert_eq!(count, RETAINED_BYTES_PER_USER_MAX / large.len());
        assert!(is_retained(&small("bob").await.expect("a request")));
        drop(retained);
        assert!(is_retained(&small("ada").await.expect("a request")));
    }

    #[tokio::test]
    async fn trailers_are_sent_and_prevent_a_retry() {
        let trailers = HeaderMap::from_iter([(http::header::ETAG, http::HeaderValue::from_static("a"))]);
        let mut frames = data(&[b"one"]);
        frames.push_back(Ok(Frame::trailers(trailers.clone())));
        let mut request = request(declared(3, frames)).await;
        let collected = request.attempt().request.into_body().collect().await.expect("whole");
        assert_eq!(collected.trailers(), Some(&trailers));
        assert_eq!(collected.to_bytes(), Bytes::from_static(b"one"));
        assert!(!request.may_retry(&unprocessed().await).await);
    }

    #[tokio::test(start_paused = true)]
    async fn only_unprocessed_requests_are_retried_up_to_limit() {
        let mut request = request(whole_body(Bytes::from_static(b"one"))).await;
        let broken = || async { UpstreamError::Unreachable(UpstreamError::broken_off_when_read().await.into()) };
        assert!(!request.may_retry(&broken().await).await);
        assert!(!request.may_retry(&UpstreamError::Timeout(PAUSE)).await);
        for _ in 0..RETRIES_MAX {
            assert!(request.may_retry(&unprocessed().await).await);
        }
        assert!(!request.may_retry(&unprocessed().await).await);
    }
}
