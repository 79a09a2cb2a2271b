use std::pin::Pin;

use futures_util::FutureExt as _;
use http::header::{CONNECTION, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderValue, Method, Request, Response, StatusCode, Version};

use super::Peer;
use super::connection::{ConnectionState, RequestUnderWay};
use super::parkable_body::ParkableBody;
use super::request_body::RequestBody;
use super::running_body::RunningBody;
use base::{Cut, DrainWatch, UnderWay, mutant};

/// How the requests of a connection are answered, whatever it speaks.
pub(super) struct Requests<S> {
    pub(super) peer: Peer,
    /// How many may come when no more are taken.
    pub(super) late_max: u32,
    /// The drain, where the connection was there before it.
    pub(super) leaving: Option<DrainWatch>,
    pub(super) handle: S,
}

/// A request that is being answered. It is boxed, so that what is kept for it is gone once there is an answer: a watch
/// lasts for hours. That is some 10 KB, and twice as much in a block that awaits it, so what comes after it is mapped.
pub(super) type Answering<B> = Pin<Box<dyn Future<Output = Response<RunningBody<B>>> + Send>>;

/// What counts a request as under way.
type Running = (RequestUnderWay, Option<UnderWay>);

impl<S, F, B> Requests<S>
where
    S: Fn(Peer, Request<RequestBody>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: ParkableBody,
{
    /// Takes a request of HTTP/1; `None` if the connection ends instead.
    pub(super) fn http1(&self, request: Request<RequestBody>) -> Option<Answering<B>> {
        let (this, is_last, version) = (self.peer.connection.clone(), is_last(&request), request.version());
        let running = self.running()?;
        let answer = (self.handle)(self.peer.clone(), request);
        Some(Box::pin(answer.map(move |mut answer| {
            if is_last || this.is(ConnectionState::Leaving) {
                say_goodbye(&mut answer, version);
            }
            answer.map(|body| RunningBody::new(body, running))
        })))
    }

    /// Takes a request of HTTP/2, and what cuts its stream; `None` if it is refused.
    pub(super) fn http2(&self, request: Request<RequestBody>) -> Option<(Answering<B>, Cut)> {
        let running = self.running()?;
        self.peer.connection.found_multiplexed();
        let cut = Cut::default();
        let answer = (self.handle)(Peer { cut: cut.clone(), ..self.peer.clone() }, request);
        Some((Box::pin(answer.map(|answer| answer.map(|body| RunningBody::new(body, running)))), cut))
    }

    fn running(&self) -> Option<Running> {
        let running = self.peer.connection.request(self.late_max)?;
        Some((running, self.leaving.as_ref().map(DrainWatch::under_way)))
    }
}

/// Whether the connection ends with the response to a request. The bytes after it may be meant as something else than
/// the next request: as a body, by a `Content-Length` beside a `Transfer-Encoding` that the codec has dropped (RFC 9112
/// §6.3), or as another protocol. A client of HTTP/1.0 finds the end of a response without a length by the end of the
/// connection.
fn is_last<B>(request: &Request<B>) -> bool {
    let is_ambiguous = request.headers().contains_key(TRANSFER_ENCODING) || may_become_a_tunnel(request);
    (is_ambiguous && !mutant(24)) || request.version() < Version::HTTP_11
}

/// Whether the bytes after a request of HTTP/1 may be of another protocol (RFC 9110 §7.8 and RFC 9110 §9.3.6).
pub(super) fn may_become_a_tunnel<B>(request: &Request<B>) -> bool {
    request.headers().contains_key(UPGRADE) || request.method() == Method::CONNECT
}

/// Tells an HTTP/1 client that this is the last answer. HTTP/2 has GOAWAY for that, and an upgraded connection is not
/// HTTP any more. The codec adds `keep-alive` for a client of HTTP/1.0 to an answer of another version.
fn say_goodbye<B>(answer: &mut Response<B>, version: Version) {
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        *answer.version_mut() = version;
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}
