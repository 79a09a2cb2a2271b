use std::future::{pending, poll_fn};
use std::io;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use http2::{ConnectionHeadBudget, RequestHeadBudget};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, sleep_until};

use super::connection::{ConnectionState, UpgradedFuture};
use super::connection_driver::{BoxError, ConnectionDriver, UpgradedConnection};
use super::connection_limiter::{ConnectionLimiter, ConnectionSlot};
use super::connection_scheduler::{ConnectionScheduler, ScheduledConnection};
use super::connections_by_owner::ConnectionSource;
use super::filtered_stream::{DetectedProtocol, detect_protocol};
use super::handshakes::TlsHandshakeQueue;
use super::http1::Http1Connection;
use super::hyper_http2::HyperHttp2Connection;
use super::listener::{AcceptedStream, move_here};
use super::metrics::ConnectionFailure;
use super::requests::{HttpHandler, RequestDispatcher};
use super::tls_stream::{TlsRecordReader, TlsStream};
use super::{ConnectionLimits, ConnectionPeer, DownstreamConnection, Http2Codec, Listener, ListenerTls, PeerAddress};
use base::{AbortSignal, BackgroundTasks, DrainWatch, Reloadable, is_out_of_descriptors, random};

/// The TLS configuration and the queue of handshakes.
type TlsHandshakeParts = (ListenerTls, Arc<TlsHandshakeQueue>);

/// The pause after an accept error that the peer did not cause.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The jitter of the connection age, as a fraction in both directions.
const AGE_JITTER: f64 = 0.1;

/// How long a connection that was accepted during a drain may take for its first request once all connections close.
const LATE_REQUEST_MAX: Duration = Duration::from_millis(500);
/// The interval at which a connection is checked for its first request.
const POLL_EVERY: Duration = Duration::from_millis(20);

/// The reason for which a connection must end at once.
#[derive(Debug, thiserror::Error)]
enum ForcedConnectionEnd {
    #[error("no request received on the connection within {0:?}")]
    Silent(Duration),
    #[error("the proxy closed the connection")]
    Aborted,
}

/// Accepts connections and serves the requests on them.
///
/// When a drain starts, the clients of open connections are notified one by one, and new connections are still
/// served. The listener ends last. Open connections then finish their running requests.
///
/// `handler` must call [`DownstreamConnection::authenticated`] once the caller is authenticated, before it waits for a
/// body. Until then, the requests of an HTTP/2 connection are passed to it one at a time, and nothing after a waiting
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
    let limiter = ConnectionLimiter::within_descriptors(limits.clone());
    let (handshakes, scheduler) =
        (Arc::new(TlsHandshakeQueue::new(limits.get().handshake_max)), ConnectionScheduler::shared());
    let (heads, watch) = (Arc::<RequestHeadBudget>::default(), drain.clone());
    let begin = |stream: AcceptedStream, address: PeerAddress, this: DownstreamConnection, slot: ConnectionSlot| {
        let (tls, limits, drain, handler) = (tls.clone(), limits.get(), watch.clone(), handler.clone());
        let (tls, scheduler, heads) = (tls.map(|tls| (tls, handshakes.clone())), scheduler.clone(), heads.connection());
        tasks.spread("connection", async move {
            let stream = match move_here(stream) {
                Ok(stream) => stream,
                Err(error) => return tracing::warn!(%error, "cannot set up an accepted connection; closing it"),
            };
            let scheduler = scheduler.schedule(&this, ConnectionSource::of(address));
            let peer = ConnectionPeer { address, certificates: None, connection: this, abort: AbortSignal::default() };
            if let Err(error) = serve_connection(stream, peer, (tls, scheduler, heads), &limits, drain, handler).await {
                tracing::debug!(%error, "client connection ended with an error");
            }
            drop(slot);
        });
    };
    let closing = drain.closing();
    let serving_requests = limiter.serve_descriptor_requests();
    tokio::pin!(closing, serving_requests);
    loop {
        let accepted = async {
            let (stream, address) = listener.accept().await?;
            let connection = DownstreamConnection::default();
            let slot = limiter.acquire(&connection, ConnectionSource::of(address)).await;
            Ok((stream, address, connection, slot))
        };
        let accepted = tokio::select! {
            biased;
            () = &mut closing => break,
            never = &mut serving_requests => match never {},
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, address, this, slot)) => begin(stream, address, this, slot),
            Err(error) if is_out_of_descriptors(&error) => {
                if limiter.make_room_or_request(&error).await {
                    // Room was made for this listener, not for the other users of descriptors, so their pending request
                    // is reset.
                    serving_requests.set(limiter.serve_descriptor_requests());
                }
            }
            Err(error) => pause_after(&error).await,
        }
    }
    listener
        .end(|(stream, address)| {
            let this = DownstreamConnection::default();
            if let Some(slot) = limiter.acquire_final(&this, ConnectionSource::of(address)) {
                begin(stream, address, this, slot);
            }
        })
        .await;
}

async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, pause = ?ACCEPT_PAUSE, "cannot accept a connection; retrying after a pause");
        sleep(ACCEPT_PAUSE).await;
    }
}

async fn serve_connection(
    stream: AcceptedStream,
    mut peer: ConnectionPeer,
    (tls, scheduler, heads): (Option<TlsHandshakeParts>, ScheduledConnection, Arc<ConnectionHeadBudget>),
    limits: &ConnectionLimits,
    drain: DrainWatch,
    handler: impl HttpHandler,
) -> Result<(), BoxError> {
    let Some((tls, handshakes)) = tls else {
        return http(stream, peer, (scheduler, heads), limits, drain, handler).await;
    };
    let (this, source) = (peer.connection.clone(), ConnectionSource::of(peer.address));
    let mut accepting = tls.acceptor().accept(TlsRecordReader::of(stream, heads.clone()));
    let handshake = handshakes.run(
        source,
        poll_fn(|cx| {
            this.handshake_advanced();
            accepting.poll_unpin(cx)
        }),
    );
    let mut closing = drain.clone();
    let stream = tokio::select! {
        biased;
        stream = Box::pin(handshake) => TlsStream::new(stream?),
        () = this.reached(ConnectionState::Aborted) => return Err(ForcedConnectionEnd::Aborted.into()),
        () = async { closing.closing().await; sleep_until(this.accepted_at() + LATE_REQUEST_MAX).await } => {
            return Err(ForcedConnectionEnd::Aborted.into());
        }
    };
    let chain = stream.certificates();
    peer.certificates = chain.map(|chain| chain.iter().map(|certificate| certificate.clone().into_owned()).collect());
    http(stream, peer, (scheduler, heads), limits, drain, handler).await
}

async fn http(
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: ConnectionPeer,
    (mut scheduler, heads): (ScheduledConnection, Arc<ConnectionHeadBudget>),
    limits: &ConnectionLimits,
    drain: DrainWatch,
    handler: impl HttpHandler,
) -> Result<(), BoxError> {
    let (this, signal) = (peer.connection.clone(), peer.abort.clone());
    let is_late = drain.has_started();
    if is_late {
        // The response asks the client to open another connection, because another process may serve by then.
        this.advance(ConnectionState::Draining);
    }
    let leaving = (!is_late).then(|| drain.clone());
    let requests = RequestDispatcher { peer, late_max: limits.streams_max, leaving, handler };
    // Boxed to keep this future small: it is polled rarely.
    let mut ending = Box::pin(ending(&this, &signal, drain, is_late, limits));
    let protocol = tokio::select! {
        biased;
        protocol = detect_protocol(io) => protocol?,
        over = ending.as_mut() => return Ok(over?),
    };
    match protocol {
        DetectedProtocol::Http1(io) => {
            let mut connection = Http1Connection::new(io, limits, heads, requests);
            let ended = drive(&mut connection, &mut scheduler, ending, (&this, &signal, limits)).await;
            drop(connection);
            let upgraded = this.take_upgraded();
            ended?;
            if let Some(upgraded) = upgraded {
                run_upgraded(upgraded, &mut scheduler, &this).await?;
            }
            Ok(())
        }
        DetectedProtocol::Http2(io) if limits.http2_codec == Http2Codec::Hyper => {
            let mut connection = HyperHttp2Connection::new(io, limits, heads, requests);
            drive(&mut connection, &mut scheduler, ending, (&this, &signal, limits)).await
        }
        DetectedProtocol::Http2(io) => {
            let mut connection = http2::Http2Connection::new(io, limits.into(), heads, requests);
            drive(&mut connection, &mut scheduler, ending, (&this, &signal, limits)).await
        }
    }
}

/// Runs a connection until it ends or must be closed.
///
/// To close it, GOAWAY or `Connection: close` is sent. Running streams then continue and end at their own time, also in
/// a drain.
async fn drive(
    connection: &mut impl ConnectionDriver,
    scheduler: &mut ScheduledConnection,
    mut ending: Pin<Box<impl Future<Output = Result<(), ForcedConnectionEnd>>>>,
    (this, signal, limits): (&DownstreamConnection, &AbortSignal, &ConnectionLimits),
) -> Result<(), BoxError> {
    match scheduler.run_until(connection, ending.as_mut()).await {
        ControlFlow::Break(ended) => return ended,
        ControlFlow::Continue(over) => over?,
    }
    drop(ending);
    this.advance(ConnectionState::Draining);
    connection.begin_goaway();
    match scheduler.run_until(connection, Box::pin(abort(this, signal, limits)).as_mut()).await {
        ControlFlow::Break(ended) => ended,
        ControlFlow::Continue(()) => Err(ForcedConnectionEnd::Aborted.into()),
    }
}

/// Runs the protocol to which a connection has switched. It counts as a running request, and the connection keeps its
/// slot and its turns.
async fn run_upgraded(
    upgraded: UpgradedFuture,
    scheduler: &mut ScheduledConnection,
    this: &DownstreamConnection,
) -> Result<(), BoxError> {
    let _running = this.running();
    let aborted = pin!(this.reached(ConnectionState::Aborted));
    match scheduler.run_until(&mut UpgradedConnection::new(upgraded), aborted).await {
        ControlFlow::Break(ended) => ended,
        ControlFlow::Continue(()) => Err(ForcedConnectionEnd::Aborted.into()),
    }
}

/// Completes when a connection must end: gracefully, or at once with an error.
async fn ending(
    this: &DownstreamConnection,
    signal: &AbortSignal,
    drain: DrainWatch,
    is_late: bool,
    limits: &ConnectionLimits,
) -> Result<(), ForcedConnectionEnd> {
    tokio::select! {
        biased;
        // The codecs have no such limits: that of HTTP/1 limits unfinished request heads only, and that of HTTP/2 clients
        // that answer no pings.
        () = this.idle_for(limits.first_request_max, limits.idle_max) => {
            if this.has_received_request() {
                return Ok(());
            }
            ConnectionFailure::Silent.count();
            Err(ForcedConnectionEnd::Silent(limits.first_request_max))
        }
        () = signal.aborted() => Err(ForcedConnectionEnd::Aborted),
        () = drain_reached(this, drain, is_late) => Ok(()),
        () = this.reached(ConnectionState::Closing) => {
            if this.is(ConnectionState::Aborted) { Err(ForcedConnectionEnd::Aborted) } else { Ok(()) }
        }
        () = age_reached(limits.connection_age_max) => Ok(()),
    }
}

/// Completes when a connection must end because of a drain.
///
/// A connection from before the drain gets its notice at a random moment: as GOAWAY, or in HTTP/1 with its next
/// response. In HTTP/1, no other way avoids losing a request.
async fn drain_reached(this: &DownstreamConnection, mut drain: DrainWatch, is_late: bool) {
    if !is_late {
        drain.notice_due().await;
        this.advance(ConnectionState::Draining);
        if this.is_multiplexed() {
            return;
        }
    }
    drain.closing().await;
    while !this.has_received_request() && this.accepted_at().elapsed() < LATE_REQUEST_MAX {
        // Requests send no notification when they start, so this polls.
        sleep(POLL_EVERY).await;
    }
}

/// Completes when a closing connection must end at once. Either it was aborted, or no request has run on it for long
/// and its client does not read the rest.
async fn abort(this: &DownstreamConnection, signal: &AbortSignal, limits: &ConnectionLimits) {
    let idle = async {
        // The time counts from the start of closing. An earlier idle period may be the reason for closing.
        sleep(limits.idle_max).await;
        this.idle_for(limits.idle_max, limits.idle_max).await;
    };
    tokio::select! {
        biased;
        () = idle => {}
        () = this.reached(ConnectionState::Aborted) => {}
        () = signal.aborted() => {}
    }
}

/// Completes at a random time around `age_max`, so that connections that were opened together do not reconnect
/// together.
async fn age_reached(age_max: Duration) {
    if age_max.is_zero() {
        pending::<()>().await;
    }
    sleep(age_max.mul_f64(1.0 - AGE_JITTER + 2.0 * AGE_JITTER * random::f64())).await;
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use futures_util::future::join_all;
    use http::header::{CONNECTION, UPGRADE};
    use http::{Request, Response, StatusCode};
    use http_body_util::Empty;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;
    use crate::net::RequestBody;
    use base::{CoreRuntimes, CoreWaker, DrainTrigger};

    /// What runs after the switch stays on the connection's core. It ends if its connection is closed to make room.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn upgraded_connection_keeps_its_core_and_its_slot() {
        let (sender, mut received) = mpsc::unbounded_channel();
        let handler = move |peer: ConnectionPeer, mut request: Request<RequestBody>| {
            let caller = request.uri().path()[1..].parse().expect("a number");
            assert!(peer.connection.authenticated(Some(caller)));
            let (sender, upgrade) = (sender.clone(), hyper::upgrade::on(&mut request));
            peer.connection.run_upgraded(async move {
                let _io = upgrade.await.expect("an upgrade");
                let _ = sender.send((caller, CoreWaker::here().is_some()));
                sender.closed().await;
            });
            let is_refused = caller == 9;
            let status = if is_refused { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::SWITCHING_PROTOCOLS };
            let response = Response::builder().status(status);
            let response =
                response.header(CONNECTION, "upgrade").header(UPGRADE, "test").body(Empty::<bytes::Bytes>::new());
            std::future::ready(response.expect("a response"))
        };
        let (address, from) = (([127, 0, 0, 1], 8001).into(), ([127, 0, 0, 1], 40_000).into());
        let (listener, connector) = Listener::in_memory(address, 1024);
        let tasks = BackgroundTasks::with_cores(CoreRuntimes::start(2).expect("threads"));
        let (_drain, watch) = DrainTrigger::new();
        let limits = ConnectionLimits { connections_max: 2, ..ConnectionLimits::default() };
        tasks.spawn("listener", serve(listener, None, limits, tasks.clone(), watch, handler));
        let mut refused = connector.connect(from).expect("it listens");
        refused
            .write_all(b"GET /9 HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: test\r\n\r\n")
            .await
            .expect("sent");
        let mut response = String::new();
        refused.read_to_string(&mut response).await.expect("the connection ends");
        assert!(response.starts_with("HTTP/1.1 503 ") && response.ends_with("\r\n\r\n"), "{response}");
        assert!(received.try_recv().is_err(), "what would follow a switch does not run after another response");
        let mut connections = Vec::new();
        for caller in [7, 7, 8] {
            let mut connection = connector.connect(from).expect("it listens");
            let head = format!("GET /{caller} HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: test\r\n\r\n");
            connection.write_all(head.as_bytes()).await.expect("sent");
            assert_eq!(received.recv().await, Some((caller, true)));
            connections.push(connection);
        }
        let mut response = String::new();
        connections[1].read_to_string(&mut response).await.expect("the youngest of the caller with the most is closed");
        assert!(response.starts_with("HTTP/1.1 101 "), "{response}");
        drop(received);
        tasks.join().await;
    }

    /// Many connections open at the same time when another replica has gone.
    #[tokio::test(start_paused = true)]
    async fn maximum_connection_age_is_jittered() {
        const CONNECTIONS: usize = 1_000;
        let (accepted_at, hour) = (Instant::now(), ConnectionLimits::default().connection_age_max);
        let ages = join_all((0..CONNECTIONS).map(|_| async {
            age_reached(hour).await;
            accepted_at.elapsed()
        }));
        let ages = ages.await;
        assert!(ages.iter().all(|age| (hour.mul_f64(0.9)..=hour.mul_f64(1.1)).contains(age)), "{ages:?}");
        let mut seconds = HashMap::<u64, usize>::new();
        ages.iter().for_each(|age| *seconds.entry(age.as_secs()).or_default() += 1);
        let most = seconds.values().max().expect("some");
        assert!(most * 100 <= CONNECTIONS * 2, "{most} of {CONNECTIONS} within a second");
    }

    #[tokio::test(start_paused = true)]
    async fn connection_age_zero_disables_the_limit() {
        let long = Duration::from_secs(86_400 * 365);
        assert!(tokio::time::timeout(long, age_reached(Duration::ZERO)).await.is_err());
    }
}
