//! HTTP/2 by hyper, for operators who switch off the crate `http2` (`http2.codec: hyper`).
//!
//! Where hyper has the same limits, they have the same values. Its streams run in the connection's task, so they end
//! with it. docs/SECURITY.md lists the limits that it lacks.

use std::future::poll_fn;
use std::mem::take;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use h2::Reason;
use http::{Request, Response};
use http_body_util::Either;
use http2::{ConnectionHeadBudget, ConnectionWakeTarget, PREFACE, WakeSet};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2::{Builder, Connection as HyperConnection};
use hyper::service::Service;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;
use tokio::time::sleep;

use super::connection_driver::{BoxError, ConnectionDriver};
use super::filtered_stream::PrefixedStream;
use super::requests::{HttpHandler, RequestDispatcher, RequestTrackingBody};
use super::{ConnectionLimits, DownstreamConnection};
use base::AbortSignal;

/// The number of request body bytes that a client may send before they are read: on a stream, and on the connection.
const STREAM_WINDOW: u32 = 256 << 10;
const CONNECTION_WINDOW: u32 = 1 << 20;
/// The number of bytes that a header field counts besides its name and value (RFC 9113 §6.5.2).
const FIELD_BYTES: usize = 32;

/// The server's end of an HTTP/2 connection, implemented by hyper.
pub(super) struct HyperHttp2Connection<I, H: HttpHandler> {
    codec: Pin<Box<HyperHttp2Codec<I, H>>>,
    streams: FuturesUnordered<Http2StreamFuture>,
    started: Http2StreamExecutor,
    downstream: DownstreamConnection,
    gate: Arc<Semaphore>,
    wake_set: Arc<WakeSet>,
    waker: Waker,
}

/// hyper's connection.
type HyperHttp2Codec<I, H> = HyperConnection<TokioIo<PrefixedStream<I>>, HyperHttp2Service<H>, Http2StreamExecutor>;

type Http2StreamFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The service that hyper calls for each request.
struct HyperHttp2Service<H> {
    requests: Arc<RequestDispatcher<H>>,
    heads: Arc<ConnectionHeadBudget>,
    started: Http2StreamExecutor,
    /// Lets one request run at a time, until it is closed because a caller is authenticated.
    gate: Arc<Semaphore>,
}

/// The executor of a connection: it collects the streams that begin. hyper calls it for a stream right after the
/// service, which leaves the stream's [`AbortSignal`] here.
#[derive(Clone, Default)]
struct Http2StreamExecutor(Arc<Mutex<(Option<AbortSignal>, Vec<Http2StreamFuture>)>>);

impl<I: AsyncRead + AsyncWrite + Unpin + Send + 'static, H: HttpHandler> HyperHttp2Connection<I, H> {
    /// Creates a connection after the preface has been read.
    pub(super) fn new(
        io: I,
        limits: &ConnectionLimits,
        heads: Arc<ConnectionHeadBudget>,
        requests: RequestDispatcher<H>,
    ) -> Self {
        let (started, gate, downstream) =
            (Http2StreamExecutor::default(), Arc::new(Semaphore::new(1)), requests.peer.connection.clone());
        let mut builder = Builder::new(started.clone());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(limits.streams_max)
            .max_header_list_size(limits.header_bytes_max)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .keep_alive_interval(limits.ping_after)
            .keep_alive_timeout(limits.ping_after);
        let service =
            HyperHttp2Service { requests: Arc::new(requests), heads, started: started.clone(), gate: gate.clone() };
        let codec = Box::pin(builder.serve_connection(TokioIo::new(PrefixedStream::new(PREFACE, io)), service));
        let wake_set = WakeSet::shared();
        let waker = wake_set.waker(ConnectionWakeTarget::Codec);
        Self { codec, streams: FuturesUnordered::new(), started, downstream, gate, wake_set, waker }
    }
}

impl<H: HttpHandler> Service<Request<Incoming>> for HyperHttp2Service<H> {
    type Response = Response<RequestTrackingBody<H::Body>>;
    type Error = h2::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, h2::Error>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let (requests, gate, abort) = (self.requests.clone(), self.gate.clone(), AbortSignal::default());
        self.started.0.lock().0 = Some(abort.clone());
        let fields = request.headers().iter().map(|(name, value)| name.as_str().len() + value.len() + FIELD_BYTES);
        let head = self.heads.charge(request.uri().path().len() + fields.sum::<usize>());
        Box::pin(async move {
            let head = head.ok_or(Reason::REFUSED_STREAM)?;
            let gate = gate.acquire().await;
            let response = requests.answer(request.map(Either::Right), abort).ok_or(Reason::REFUSED_STREAM)?;
            let response = response.await;
            drop((gate, head));
            Ok(response)
        })
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Http2StreamExecutor {
    fn execute(&self, stream: F) {
        let mut started = self.0.lock();
        let abort = started.0.take().unwrap_or_default();
        started.1.push(Box::pin(until_aborted(stream, abort)));
    }
}

/// Runs a stream until it ends or is aborted. hyper resets a stream that is dropped.
async fn until_aborted(stream: impl Future<Output = ()>, abort: AbortSignal) {
    let (mut stream, mut timer) = (pin!(stream), None);
    poll_fn(|cx| {
        if abort.poll_aborted(cx).is_ready() || stream.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let Some((max, why)) = abort.timeout() else { return Poll::Pending };
        ready!(timer.get_or_insert_with(|| Box::pin(sleep(max))).as_mut().poll(cx));
        abort.abort(why);
        Poll::Ready(())
    })
    .await;
}

impl<I: AsyncRead + AsyncWrite + Unpin + Send + 'static, H: HttpHandler> ConnectionDriver
    for HyperHttp2Connection<I, H>
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.wake_set.poll_codec(cx, &self.waker, |cx| {
            let ended = self.codec.as_mut().poll(cx);
            self.streams.extend(take(&mut self.started.0.lock().1));
            while let Poll::Ready(Some(())) = self.streams.poll_next_unpin(cx) {}
            if !self.gate.is_closed() && !self.downstream.is_unauthenticated() {
                self.gate.close();
            }
            ended.map_err(Into::into)
        })
    }

    fn begin_goaway(&mut self) {
        self.codec.as_mut().graceful_shutdown();
        self.wake_set.mark_woken(ConnectionWakeTarget::Codec);
    }

    fn wake_set(&self) -> &Arc<WakeSet> {
        &self.wake_set
    }
}
