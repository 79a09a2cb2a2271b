use std::future::poll_fn;
use std::io;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http2::{ConnectionHeadBudget, RequestHeadBudget};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::sleep_until;

use super::connection::ConnectionState;
use super::connection_driver::{BoxError, ConnectionDriver};
use super::connection_limiter::{ConnectionLimiter, ConnectionSlot};
use super::connection_scheduler::{ConnectionScheduler, ScheduledConnection};
use super::handshakes::TlsHandshakeQueue;
use super::http1::Http1Connection;
use super::hyper_http2::HyperHttp2Connection;
use super::idle_connections::ConnectionSource;
use super::lifetime::{ForcedConnectionEnd, NEWCOMER_MAX, ending, is_cut};
use super::listener::{AcceptedStream, settle};
use super::preface::{DetectedProtocol, spoken};
use super::requests::{HttpHandler, RequestDispatcher};
use super::tls_stream::{TlsRecordReader, TlsStream};
use super::{ConnectionLimits, ConnectionPeer, DownstreamConnection, Http2Codec, Listener, ListenerTls, PeerAddress};
use base::{AbortSignal, BackgroundTasks, DrainWatch, Reloadable, lacks_descriptor};

/// The TLS configuration and the queue of handshakes.
type TlsHandshakeParts = (ListenerTls, Arc<TlsHandshakeQueue>);

/// The pause after an accept error that the peer did not cause.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections and serves the requests on them.
///
/// When a drain starts, the clients of open connections are asked one by one to leave, and new connections are still
/// served. The listener ends last. Open connections then finish their running requests.
///
/// `handler` must call [`DownstreamConnection::found_known`] once it has authenticated the caller, before it waits for
/// a body. Until then, the requests of an HTTP/2 connection are passed to it one at a time, and nothing after a waiting
/// request is processed.
pub async fn serve<H: HttpHandler>(
    listener: Listener,
    tls: Option<ListenerTls>,
    limits: impl Into<Reloadable<ConnectionLimits>>,
    tasks: BackgroundTasks,
    mut drain: DrainWatch,
    handler: H,
) {
    let limits = limits.into();
    let places = ConnectionLimiter::within_descriptors(limits.clone());
    let (handshakes, turns) =
        (Arc::new(TlsHandshakeQueue::new(limits.get().handshake_max)), ConnectionScheduler::shared());
    let (heads, watch) = (Arc::<RequestHeadBudget>::default(), drain.clone());
    let begin = |stream: AcceptedStream, address: PeerAddress, this: DownstreamConnection, place: ConnectionSlot| {
        let (tls, limits, drain, handler) = (tls.clone(), limits.get(), watch.clone(), handler.clone());
        let (tls, turns, heads) = (tls.map(|tls| (tls, handshakes.clone())), turns.clone(), heads.connection());
        tasks.spread("connection", async move {
            let stream = match settle(stream) {
                Ok(stream) => stream,
                Err(error) => return tracing::warn!(%error, "cannot set up an accepted connection; closing it"),
            };
            let turns = turns.of(&this, ConnectionSource::of(address));
            let peer = ConnectionPeer { address, certificates: None, connection: this, cut: AbortSignal::default() };
            if let Err(error) = connection(stream, peer, (tls, turns, heads), &limits, drain, handler).await {
                tracing::debug!(%error, "client connection ended with an error");
            }
            drop(place);
        });
    };
    let closing = drain.closing();
    let making_room = places.make_room_for_others();
    tokio::pin!(closing, making_room);
    loop {
        let entered = async {
            let (stream, address) = listener.accept().await?;
            let connection = DownstreamConnection::default();
            let place = places.enter(&connection, ConnectionSource::of(address)).await;
            Ok((stream, address, connection, place))
        };
        let entered = tokio::select! {
            biased;
            () = &mut closing => break,
            never = &mut making_room => match never {},
            entered = entered => entered,
        };
        match entered {
            Ok((stream, address, this, place)) => begin(stream, address, this, place),
            Err(error) if lacks_descriptor(&error) => {
                if places.make_room_or_ask(&error).await {
                    // Room was made for this listener, not for the other users of descriptors, so their pending request
                    // is reset.
                    making_room.set(places.make_room_for_others());
                }
            }
            Err(error) => pause_after(&error).await,
        }
    }
    listener
        .end(|(stream, address)| {
            let this = DownstreamConnection::default();
            if let Some(place) = places.enter_last(&this, ConnectionSource::of(address)) {
                begin(stream, address, this, place);
            }
        })
        .await;
}

async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, pause = ?ACCEPT_PAUSE, "cannot accept a connection; retrying after a pause");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

async fn connection(
    stream: AcceptedStream,
    mut peer: ConnectionPeer,
    (tls, turns, heads): (Option<TlsHandshakeParts>, ScheduledConnection, Arc<ConnectionHeadBudget>),
    limits: &ConnectionLimits,
    drain: DrainWatch,
    handler: impl HttpHandler,
) -> Result<(), BoxError> {
    let Some((tls, handshakes)) = tls else {
        return http(stream, peer, (turns, heads), limits, drain, handler).await;
    };
    let (this, source) = (peer.connection.clone(), ConnectionSource::of(peer.address));
    let mut accepting = tls.acceptor().accept(TlsRecordReader::of(stream));
    let shaking = handshakes.shake(
        source,
        poll_fn(|cx| {
            this.has_stepped();
            accepting.poll_unpin(cx)
        }),
    );
    let mut closing = drain.clone();
    let stream = tokio::select! {
        biased;
        stream = Box::pin(shaking) => TlsStream::new(stream?),
        () = this.reached(ConnectionState::Cut) => return Err(ForcedConnectionEnd::Cut.into()),
        () = async { closing.closing().await; sleep_until(this.born() + NEWCOMER_MAX).await } => {
            return Err(ForcedConnectionEnd::Cut.into());
        }
    };
    let shown = stream.certificates();
    peer.certificates = shown.map(|chain| chain.iter().map(|certificate| certificate.clone().into_owned()).collect());
    http(stream, peer, (turns, heads), limits, drain, handler).await
}

async fn http(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: ConnectionPeer,
    (turns, heads): (ScheduledConnection, Arc<ConnectionHeadBudget>),
    limits: &ConnectionLimits,
    drain: DrainWatch,
    handler: impl HttpHandler,
) -> Result<(), BoxError> {
    let (this, cut) = (peer.connection.clone(), peer.cut.clone());
    let is_late = drain.has_started();
    if is_late {
        // The response asks the client to open another connection, because another process may serve by then.
        this.advance(ConnectionState::Leaving);
    }
    let leaving = (!is_late).then(|| drain.clone());
    let requests = RequestDispatcher { peer, late_max: limits.streams_max, leaving, handler };
    // Boxed to keep this future small: it is polled rarely.
    let mut ending = Box::pin(ending(&this, &cut, drain, is_late, limits));
    let spoken = tokio::select! {
        biased;
        spoken = spoken(io) => spoken?,
        over = ending.as_mut() => return Ok(over?),
    };
    match spoken {
        DetectedProtocol::Http1(io) => {
            lead(&mut Http1Connection::new(io, limits, heads, requests), turns, ending, (&this, &cut, limits)).await
        }
        DetectedProtocol::Http2(io) if limits.http2_codec == Http2Codec::Hyper => {
            lead(&mut HyperHttp2Connection::new(io, limits, heads, requests), turns, ending, (&this, &cut, limits))
                .await
        }
        DetectedProtocol::Http2(io) => {
            let mut driver = http2::Http2Connection::new(io, limits.into(), heads, requests);
            lead(&mut driver, turns, ending, (&this, &cut, limits)).await
        }
    }
}

/// Runs a connection until it ends or must be closed.
///
/// To close it, GOAWAY or `Connection: close` is sent. Running streams then continue and end at their own time, also in
/// a drain.
async fn lead(
    driver: &mut impl ConnectionDriver,
    mut turns: ScheduledConnection,
    mut ending: Pin<Box<impl Future<Output = Result<(), ForcedConnectionEnd>>>>,
    (this, cut, limits): (&DownstreamConnection, &AbortSignal, &ConnectionLimits),
) -> Result<(), BoxError> {
    match turns.run_until(driver, ending.as_mut()).await {
        ControlFlow::Break(ended) => return ended,
        ControlFlow::Continue(over) => over?,
    }
    drop(ending);
    this.advance(ConnectionState::Leaving);
    driver.begin_goaway();
    match turns.run_until(driver, Box::pin(is_cut(this, cut, limits)).as_mut()).await {
        ControlFlow::Break(ended) => ended,
        ControlFlow::Continue(()) => Err(ForcedConnectionEnd::Cut.into()),
    }
}
