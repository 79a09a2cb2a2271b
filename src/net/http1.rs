mod target;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::header::UPGRADE;
use http::{Method, Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1::{self, UpgradeableConnection};
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use self::target::{CheckedIo, Looks};
use super::conversation::{Conversation, Failure};
use super::request_body::RequestBody;
use super::requests::Requests;
use super::running_body::RunningBody;
use super::wake_set::{WakePart, WakeSet};
use super::{ConnectionLimits, Peer};

/// The server's end of a connection of HTTP/1, which is hyper's.
pub(super) struct Http1<I, S, F, B>
where
    S: Fn(Peer, Request<RequestBody>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    connection: Pin<Box<UpgradeableConnection<TokioIo<CheckedIo<I>>, Asked<S>>>>,
    wake_set: Arc<WakeSet>,
    codec: Waker,
}

/// Requests, as hyper asks for them.
struct Asked<S> {
    requests: Requests<S>,
    looks: Looks,
}

/// The connection ends after what runs on it, and no further request is taken.
#[derive(Debug, thiserror::Error)]
#[error("no more requests are taken")]
struct NotTaken;

impl<I, S, F, B> Http1<I, S, F, B>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Fn(Peer, Request<RequestBody>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Failure>,
{
    pub(super) fn new(io: I, limits: &ConnectionLimits, requests: Requests<S>) -> Self {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_max)
            .max_buf_size(limits.header_bytes_max as usize)
            // A client that shuts its side down has gone, as Go's server takes it (R-DOWNSTREAM-9).
            .half_close(false);
        let looks = Looks::default();
        let io = CheckedIo::new(io, requests.peer.connection.clone(), looks.clone());
        let asked = Asked { requests, looks };
        let connection = Box::pin(builder.serve_connection(TokioIo::new(io), asked).with_upgrades());
        let wake_set = WakeSet::shared();
        Self { connection, codec: wake_set.waker(WakePart::Codec), wake_set }
    }
}

impl<S, F, B> Service<Request<Incoming>> for Asked<S>
where
    S: Fn(Peer, Request<RequestBody>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
{
    type Response = Response<RunningBody<B>>;
    type Error = NotTaken;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, NotTaken>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        self.looks.taken(request.headers().contains_key(UPGRADE) || request.method() == Method::CONNECT);
        let answering = self.requests.http1(request.map(RequestBody::from));
        Box::pin(async move { Ok(answering.ok_or(NotTaken)?.await) })
    }
}

impl<I, S, F, B> Conversation for Http1<I, S, F, B>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Fn(Peer, Request<RequestBody>) -> F,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Failure>,
{
    fn go_on(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Failure>> {
        if !self.wake_set.take(WakePart::Codec) {
            return Poll::Pending;
        }
        self.connection.as_mut().poll(&mut Context::from_waker(&self.codec)).map_err(Into::into)
    }

    fn say_goodbye(&mut self) {
        self.connection.as_mut().graceful_shutdown();
        self.wake_set.put(WakePart::Codec);
    }

    fn wake_set(&self) -> &Arc<WakeSet> {
        &self.wake_set
    }
}
