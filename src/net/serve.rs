use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::{Body, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{sleep, timeout};
use tokio_rustls::server::TlsStream;

use super::board::Board;
use super::cork::Corked;
use super::driven::{Driven, First, Streams};
use super::listener::Stream;
use super::metrics::{Failed, Open};
use super::{Connection, Listener, Peer, PeerAddress, Tls};
use crate::base::{DrainWatch, Tasks};

/// What one connection may take (reliability.md §3.8).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    pub connections_max: usize,
    pub handshake_max: Duration,
    /// Until the first request has come: apiservers close idle connections after as long.
    pub first_request_max: Duration,
    /// Until the request head is complete.
    pub header_max: Duration,
    pub header_bytes_max: u32,
    /// Streams of one HTTP/2 connection.
    pub streams_max: u32,
    /// Bytes that one HTTP/2 stream may hold back for a client that does not read.
    pub send_buffer_bytes_max: usize,
    /// A connection is ended gracefully at this age, give or take a tenth, so that its client comes back with today's
    /// certificates, and to another replica perhaps. What runs on it is not cut. Zero: never.
    pub connection_age_max: Duration,
    /// Ping an HTTP/2 client after so long without a sign; it is gone if it does not answer for as long again.
    pub ping_after: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections_max: 20_000,
            handshake_max: Duration::from_secs(10),
            first_request_max: Duration::from_secs(90),
            header_max: Duration::from_secs(10),
            header_bytes_max: 64 << 10,
            streams_max: 250,
            send_buffer_bytes_max: 64 << 10,
            connection_age_max: Duration::from_secs(3600),
            ping_after: Duration::from_secs(30),
        }
    }
}

/// After an accept error that is not the peer's fault (no descriptors left): long enough for some to be given back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Of the age at which a connection is ended, in both directions.
const AGE_JITTER: f64 = 0.1;

/// Accepts connections and serves requests on them until the drain starts; connections then finish what they do.
pub async fn serve<S, F, B>(
    listener: Listener,
    tls: Option<Tls>,
    limits: Limits,
    tasks: Tasks,
    mut drain: DrainWatch,
    handle: S,
) where
    S: Fn(Peer, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let limits = Arc::new(limits);
    let room = Arc::new(Semaphore::new(limits.connections_max));
    let watch = drain.clone();
    let started = drain.started();
    tokio::pin!(started);
    loop {
        let accepted = async { (room.clone().acquire_owned().await, listener.accept().await) };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted,
            _held = &mut started => return,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                pause_after(&error).await;
                continue;
            }
        };
        let (tls, limits, drain, handle) = (tls.clone(), limits.clone(), watch.clone(), handle.clone());
        tasks.spawn("connection", async move {
            let _open = Open::new();
            if let Err(error) = connection(stream, address, tls, &limits, drain, handle).await {
                tracing::debug!(%error, "connection ended");
            }
            drop(place);
        });
    }
}

async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, "cannot accept");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// Nothing was asked.
#[derive(Debug, thiserror::Error)]
#[error("no request came")]
struct Silent;

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn connection<S, F, B>(
    stream: Stream,
    address: PeerAddress,
    tls: Option<Tls>,
    limits: &Limits,
    drain: DrainWatch,
    handle: S,
) -> Result<(), Failure>
where
    S: Fn(Peer, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Failure>,
{
    let peer = |certificates| Peer { address, certificates, connection: Connection::default() };
    match tls {
        Some(tls) => {
            let stream = Box::pin(handshake(&tls, stream, limits)).await?;
            let shown = stream.get_ref().1.peer_certificates();
            let shown = shown.map(|chain| chain.iter().map(|certificate| certificate.clone().into_owned()).collect());
            http(Corked::new(stream, Board::shared()), peer(shown), limits, drain, handle).await
        }
        None => http(Corked::new(stream, Board::shared()), peer(None), limits, drain, handle).await,
    }
}

async fn handshake(tls: &Tls, stream: Stream, limits: &Limits) -> Result<TlsStream<Stream>, Failure> {
    let shaken = timeout(limits.handshake_max, tls.acceptor().accept(stream)).await;
    let shaken = shaken.inspect_err(|_| Failed::HandshakeTimeout.count())?;
    Ok(shaken.inspect_err(|_| Failed::Handshake.count())?)
}

async fn http<I, S, F, B>(
    io: Corked<I>,
    peer: Peer,
    limits: &Limits,
    mut drain: DrainWatch,
    handle: S,
) -> Result<(), Failure>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Fn(Peer, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Failure>,
{
    let spoken = Arc::new(Notify::new());
    let this = peer.connection.clone();
    let service = service_fn({
        let spoken = spoken.clone();
        move |request: Request<Incoming>| {
            spoken.notify_one();
            let (version, this, is_last) = (request.version(), peer.connection.clone(), is_last(request.headers()));
            // On the heap, so that it is gone once there is an answer: what a codec keeps for a stream is as large as
            // the largest that it ever held, and a watch lasts for hours.
            let answer = Box::pin(handle(peer.clone(), request));
            async move {
                let mut answer = answer.await;
                if is_last || this.is_closing() {
                    say_goodbye(version, &mut answer);
                }
                Ok::<_, Infallible>(answer)
            }
        }
    });
    let streams = Streams::default();
    let builder = builder(limits, streams.clone());
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(io.clone()), service);
    tokio::pin!(connection);
    let mut driven = Driven::new(connection, io, streams);
    // The codecs have limits of their own, but only from the moment they know which of them it is.
    let silence = async {
        if timeout(limits.first_request_max, spoken.notified()).await.is_ok() {
            pending::<()>().await;
        }
    };
    let ending = async {
        tokio::select! {
            () = silence => Err(Silent),
            _held = drain.started() => Ok(()),
            () = this.closing() => Ok(()),
            () = old_age(limits.connection_age_max) => Ok(()),
        }
    };
    // On the heap: it is looked at once.
    match driven.until(Box::pin(ending).as_mut()).await {
        First::Ended(ended) => return ended,
        First::Aside(over) => over.inspect_err(|_| Failed::Silent.count())?,
    }
    // GOAWAY, or `Connection: close`: running streams go on, and end at their own moment, in a drain as well.
    this.close();
    driven.connection().graceful_shutdown();
    driven.await
}

/// Completes at a connection's own moment, so that those that came together do not come back together.
async fn old_age(age_max: Duration) {
    if age_max.is_zero() {
        pending::<()>().await;
    }
    sleep(age_max.mul_f64(1.0 - AGE_JITTER + 2.0 * AGE_JITTER * fastrand::f64())).await;
}

/// Whether the bytes behind a request may be meant as something else than the next one: a body, by a `Content-Length`
/// that stood beside its `Transfer-Encoding` and that the codec has dropped (RFC 9112 §6.3), or a protocol that it
/// wanted to change to.
fn is_last(headers: &HeaderMap) -> bool {
    headers.contains_key(TRANSFER_ENCODING) || headers.contains_key(UPGRADE)
}

/// Tells an HTTP/1 client that this is the last answer. HTTP/2 has GOAWAY for that, and an upgraded connection is not
/// HTTP any more.
fn say_goodbye<B>(version: Version, answer: &mut Response<B>) {
    if version < Version::HTTP_2 && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

fn builder(limits: &Limits, streams: Streams) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(streams);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_max)
        .max_buf_size(limits.header_bytes_max as usize)
        // A client that shuts its side down has gone, as Go's server takes it (reliability.md D11).
        .half_close(false);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_max)
        .max_header_list_size(limits.header_bytes_max)
        .max_send_buf_size(limits.send_buffer_bytes_max)
        .initial_stream_window_size(256 << 10)
        .initial_connection_window_size(1 << 20)
        .keep_alive_interval(limits.ping_after)
        .keep_alive_timeout(limits.ping_after);
    builder
}
