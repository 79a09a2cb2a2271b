use std::pin::Pin;

use futures_util::FutureExt as _;
use http::header::{CONNECTION, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};
use http2::ParkableBody;

use super::Peer;
use super::connection::{ConnectionState, RunningRequest};
use super::request_body::RequestBody;
use super::running_body::RunningBody;
use base::{AbortSignal, DrainWatch, InFlightGuard};

/// The handling of a connection's requests, for any protocol.
pub(super) struct RequestDispatcher<S> {
    pub(super) peer: Peer,
    /// The maximum number of requests that may be received while the connection is closing.
    pub(super) late_max: u32,
    /// The drain, if the connection existed before it.
    pub(super) leaving: Option<DrainWatch>,
    pub(super) handle: S,
}

/// A future that answers a request. It is boxed, so that the memory for the request is freed once there is a response,
/// because a watch lasts for hours. That is about 2 KB, and twice as much in a block that awaits it, so the steps after
/// it are mapped.
pub(super) type ResponseFuture<B> = Pin<Box<dyn Future<Output = Response<RunningBody<B>>> + Send>>;

/// The guards that count a request as running.
type RunningGuards = (RunningRequest, Option<InFlightGuard>);

impl<S, F, B> RequestDispatcher<S>
where
    S: Fn(Peer, Request<RequestBody>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: ParkableBody,
{
    /// Handles an HTTP/1 request; `None` if the connection ends instead.
    pub(super) fn http1(&self, request: Request<RequestBody>) -> Option<ResponseFuture<B>> {
        let (this, is_last, version) = (self.peer.connection.clone(), is_last(&request), request.version());
        let running = self.running()?;
        let answer = (self.handle)(self.peer.clone(), request);
        Some(Box::pin(answer.map(move |mut answer| {
            if is_last || this.is(ConnectionState::Leaving) {
                begin_goaway(&mut answer, version);
            }
            answer.map(|body| RunningBody::new(body, running))
        })))
    }

    /// Handles an HTTP/2 request, whose stream `cut` ends; `None` if the request is refused.
    pub(super) fn http2(&self, request: Request<RequestBody>, cut: AbortSignal) -> Option<ResponseFuture<B>> {
        let running = self.running()?;
        self.peer.connection.found_multiplexed();
        let answer = (self.handle)(Peer { cut, ..self.peer.clone() }, request);
        Some(Box::pin(answer.map(|answer| answer.map(|body| RunningBody::new(body, running)))))
    }

    fn running(&self) -> Option<RunningGuards> {
        let running = self.peer.connection.request(self.late_max)?;
        Some((running, self.leaving.as_ref().map(DrainWatch::under_way)))
    }
}

impl<S, F, B> http2::Service for RequestDispatcher<S>
where
    S: Fn(Peer, Request<RequestBody>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: ParkableBody + Unpin,
{
    type Body = RunningBody<B>;
    type Answer = ResponseFuture<B>;

    fn call(&mut self, request: Request<http2::ReceivedBody>) -> Option<(ResponseFuture<B>, AbortSignal)> {
        let cut = AbortSignal::default();
        Some((self.http2(request.map(RequestBody::from), cut.clone())?, cut))
    }

    fn is_caller_unknown(&self) -> bool {
        self.peer.connection.is_of_stranger()
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
