use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{CONNECTION, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http_body_util::Either;
use http2::{IdleAwareBody, ReceivedBody};
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::ConnectionPeer;
use super::connection::{ConnectionState, RunningRequestGuard};
use super::connection_driver::BoxError;
use base::{AbortSignal, DrainWatch, InFlightGuard};

/// The body of a request: from the crate `http2`, or from hyper.
pub type RequestBody = Either<ReceivedBody, Incoming>;

/// Answers requests. Functions implement it.
pub trait HttpHandler: Clone + Send + Sync + 'static {
    type Body: IdleAwareBody<Error: Into<BoxError>> + Send + Unpin + 'static;
    type Answer: Future<Output = Response<Self::Body>> + Send + 'static;

    fn answer(&self, peer: ConnectionPeer, request: Request<RequestBody>) -> Self::Answer;
}

impl<S, F, B> HttpHandler for S
where
    S: Fn(ConnectionPeer, Request<RequestBody>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: IdleAwareBody<Error: Into<BoxError>> + Send + Unpin + 'static,
{
    type Body = B;
    type Answer = F;

    fn answer(&self, peer: ConnectionPeer, request: Request<RequestBody>) -> F {
        self(peer, request)
    }
}

/// The handling of a connection's requests, for any protocol.
pub(super) struct RequestDispatcher<H> {
    pub(super) peer: ConnectionPeer,
    /// The maximum number of requests that may be received while the connection is closing.
    pub(super) late_max: u32,
    /// The drain, if the connection existed before it.
    pub(super) leaving: Option<DrainWatch>,
    pub(super) handler: H,
}

/// A future that answers a request. It is boxed, so that the memory for the request is freed once there is a response,
/// because a watch lasts for hours. That is about 2 KB, and twice as much in a block that awaits it, so the steps after
/// it are mapped.
pub(super) type ResponseFuture<B> = Pin<Box<dyn Future<Output = Response<RequestTrackingBody<B>>> + Send>>;

/// The guards that count a request as running.
type RunningRequestGuards = (RunningRequestGuard, Option<InFlightGuard>);

/// A response body that keeps its request running until the codec has received all of it.
///
/// A body of known, small size counts as received at once, because a codec takes nothing while the client has no
/// window. While the client does not read the rest, its connection is idle like any other. If the client stops reading
/// a larger response, its connection counts as idle after a while, and can be closed to make room.
#[derive(Debug)]
pub(super) struct RequestTrackingBody<B> {
    body: B,
    running: Option<RunningRequestGuards>,
}

/// The largest response that counts as complete at once. Any object fits, because etcd's limit is 1.5 MiB.
const WHOLE_BYTES_MAX: u64 = 4 << 20;

impl<H: HttpHandler> RequestDispatcher<H> {
    /// Begins to answer a request; `None` if the connection takes no more. `abort` ends the request's HTTP/2 stream or
    /// HTTP/1 connection.
    pub(super) fn answer(&self, request: Request<RequestBody>, abort: AbortSignal) -> Option<ResponseFuture<H::Body>> {
        let this = self.peer.connection.clone();
        let running = (this.request(self.late_max)?, self.leaving.as_ref().map(DrainWatch::in_flight));
        let version = request.version();
        let is_http1 = version < Version::HTTP_2;
        let is_last = is_http1 && is_last(&request);
        if !is_http1 {
            this.mark_multiplexed();
        }
        let answer = self.handler.answer(ConnectionPeer { abort, ..self.peer.clone() }, request);
        Some(Box::pin(answer.map(move |mut answer| {
            if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
                drop(this.take_upgraded());
            }
            if is_http1 && (is_last || this.is(ConnectionState::Draining)) {
                begin_goaway(&mut answer, version);
            }
            answer.map(|body| RequestTrackingBody::new(body, running))
        })))
    }
}

impl<H: HttpHandler> http2::HttpService for RequestDispatcher<H> {
    type Body = RequestTrackingBody<H::Body>;
    type Answer = ResponseFuture<H::Body>;

    fn call(&mut self, request: Request<ReceivedBody>) -> Option<(Self::Answer, AbortSignal)> {
        let abort = AbortSignal::default();
        Some((self.answer(request.map(Either::Left), abort.clone())?, abort))
    }

    fn is_caller_unknown(&self) -> bool {
        self.peer.connection.is_unauthenticated()
    }
}

impl<B: Body> RequestTrackingBody<B> {
    fn new(body: B, running: RunningRequestGuards) -> Self {
        let is_small = body.size_hint().exact().is_some_and(|bytes| bytes <= WHOLE_BYTES_MAX);
        let mut running = (!is_small).then_some(running);
        if let Some((request, _)) = &mut running {
            request.mark_stalled();
        }
        Self { body, running }
    }
}

impl<B: IdleAwareBody + Unpin> Body for RequestTrackingBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        let this = &mut *self;
        let Some((request, _)) = &mut this.running else { return polled };
        match &polled {
            Poll::Pending => request.mark_resumed(),
            Poll::Ready(Some(Ok(_))) if !this.body.is_end_stream() => {
                // The codec need not poll a parked body again.
                if this.body.is_parked() {
                    request.mark_resumed();
                } else {
                    request.mark_stalled();
                }
            }
            Poll::Ready(_) => this.running = None,
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B: IdleAwareBody + Unpin> IdleAwareBody for RequestTrackingBody<B> {
    fn is_parked(&self) -> bool {
        self.body.is_parked()
    }
}

/// Whether the connection must end after the response to a request.
///
/// The bytes after it may not be the next request. They may be a body, if a `Content-Length` accompanies a
/// `Transfer-Encoding` and the codec has dropped it (RFC 9112 §6.3), or another protocol. An HTTP/1.0 client detects
/// the end of a response without a length by the end of the connection.
fn is_last<B>(request: &Request<B>) -> bool {
    let is_ambiguous = request.headers().contains_key(TRANSFER_ENCODING) || may_become_a_tunnel(request);
    is_ambiguous || request.version() < Version::HTTP_11
}

/// Whether the bytes after an HTTP/1 request may belong to another protocol (RFC 9110 §7.8 and RFC 9110 §9.3.6).
pub(super) fn may_become_a_tunnel<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(UPGRADE) || request.method() == Method::CONNECT
}

/// Marks an HTTP/1 response as the last one of its connection.
///
/// HTTP/2 has GOAWAY for this, and an upgraded connection is no longer HTTP. The version must be the request's, because
/// the codec adds `keep-alive` for an HTTP/1.0 client to a response of another version.
fn begin_goaway<B>(answer: &mut Response<B>, version: Version) {
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        *answer.version_mut() = version;
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}
