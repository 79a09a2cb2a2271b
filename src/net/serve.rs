use std::future::pending;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::header::{CONNECTION, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{sleep, sleep_until};

use super::connection::{ConnectionState, RequestUnderWay};
use super::cork::Corked;
use super::crowd::ConnectionSource;
use super::driven::{Driven, First, Streams};
use super::handshakes::Handshakes;
use super::listener::Stream;
use super::metrics::{ConnectionFailure, OpenConnection};
use super::places::{ConnectionPlace, Places};
use super::wake_set::WakeSet;
use super::{Connection, ConnectionLimits, Listener, Peer, PeerAddress, Tls};
use crate::base::{Cut, DrainWatch, Tasks, Tunable, UnderWay, mutant};

/// The pause after an accept error that is not the peer's fault (no descriptors left): long enough for some to be given
/// back.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The jitter of the age at which a connection is ended, in both directions.
const AGE_JITTER: f64 = 0.1;

/// How long a connection that came in a drain may take for its first request once everything closes.
const NEWCOMER_MAX: Duration = Duration::from_millis(500);
/// The time between two looks whether the request has come.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Accepts connections and serves requests on them. When a drain starts, open connections are told one by one, and new
/// ones are served as well. The listener ends last, and connections then finish what they do.
pub async fn serve<S, F, B>(
    listener: Listener,
    tls: Option<Tls>,
    limits: impl Into<Tunable<ConnectionLimits>>,
    tasks: Tasks,
    mut drain: DrainWatch,
    handle: S,
) where
    S: Fn(Peer, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let limits = limits.into();
    let places = Places::within_descriptors(limits.clone());
    let handshakes = Arc::new(Handshakes::new(limits.get().handshake_max));
    let watch = drain.clone();
    let begin = |stream: Stream, address: PeerAddress, this: Connection, place: ConnectionPlace| {
        let (tls, limits, drain, handle) = (tls.clone(), limits.get(), watch.clone(), handle.clone());
        let tls = tls.map(|tls| (tls, handshakes.clone()));
        tasks.spawn("connection", async move {
            let _open = OpenConnection::new();
            let peer = Peer { address, certificates: None, connection: this, cut: Cut::default() };
            if let Err(error) = connection(stream, peer, tls, &limits, drain, handle).await {
                tracing::debug!(%error, "connection ended");
            }
            drop(place);
        });
    };
    let closing = drain.closing();
    tokio::pin!(closing);
    loop {
        let entered = async {
            let (stream, address) = listener.accept().await?;
            let connection = Connection::default();
            let place = places.enter(&connection, ConnectionSource::of(address)).await;
            Ok((stream, address, connection, place))
        };
        let entered = tokio::select! {
            biased;
            () = &mut closing => break,
            entered = entered => entered,
        };
        match entered {
            Ok((stream, address, this, place)) => begin(stream, address, this, place),
            Err(error) => {
                if !(has_no_descriptor(&error) && places.make_room().await) {
                    pause_after(&error).await;
                }
            }
        }
    }
    listener
        .end(|(stream, address)| {
            let this = Connection::default();
            // No connection is waited for any more.
            if let Some(place) = places.enter(&this, ConnectionSource::of(address)).now_or_never() {
                begin(stream, address, this, place);
            }
        })
        .await;
}

/// Whether the process, or the whole machine, has no descriptors left.
fn has_no_descriptor(error: &io::Error) -> bool {
    use rustix::io::Errno;
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE))
}

async fn pause_after(error: &io::Error) {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::warn!(%error, "cannot accept");
        tokio::time::sleep(ACCEPT_PAUSE).await;
    }
}

/// The reason for which a connection must not go on.
#[derive(Debug, thiserror::Error)]
enum Over {
    #[error("no request came")]
    Silent,
    #[error("it was cut")]
    Cut,
}

/// Any object fits in: etcd takes 1.5 MiB.
const WHOLE_BYTES_MAX: u64 = 4 << 20;

/// The body of an answer. Its request is under way until the codec has all of it, or could have it at once because its
/// size is known and small: a codec takes nothing where the client has no window. While the client does not read the
/// rest, its connection is idle like any other, and makes room for others.
#[derive(Debug)]
struct Answered<B> {
    body: B,
    running: Option<(RequestUnderWay, Option<UnderWay>)>,
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn connection<S, F, B>(
    stream: Stream,
    mut peer: Peer,
    tls: Option<(Tls, Arc<Handshakes>)>,
    limits: &ConnectionLimits,
    drain: DrainWatch,
    handle: S,
) -> Result<(), Failure>
where
    S: Fn(Peer, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Failure>,
{
    let Some((tls, handshakes)) = tls else {
        return http(Corked::new(stream, WakeSet::shared()), peer, limits, drain, handle).await;
    };
    let (this, source) = (peer.connection.clone(), ConnectionSource::of(peer.address));
    let shaking = handshakes.shake(source, tls.acceptor().accept(stream));
    let mut closing = drain.clone();
    let stream = tokio::select! {
        biased;
        stream = Box::pin(shaking) => stream?,
        () = this.reached(ConnectionState::Cut) => return Err(Over::Cut.into()),
        () = async { closing.closing().await; sleep_until(this.born() + NEWCOMER_MAX).await } => {
            return Err(Over::Cut.into());
        }
    };
    let shown = stream.get_ref().1.peer_certificates();
    peer.certificates = shown.map(|chain| chain.iter().map(|certificate| certificate.clone().into_owned()).collect());
    http(Corked::new(stream, WakeSet::shared()), peer, limits, drain, handle).await
}

async fn http<I, S, F, B>(
    io: Corked<I>,
    peer: Peer,
    limits: &ConnectionLimits,
    drain: DrainWatch,
    handle: S,
) -> Result<(), Failure>
where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    S: Fn(Peer, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<B>> + Send + 'static,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Failure>,
{
    let this = peer.connection.clone();
    let late_max = limits.streams_max;
    let (streams, cut) = (Streams::default(), peer.cut.clone());
    let started = streams.clone();
    let is_late = drain.has_started();
    if is_late {
        // It is served, and asked to use another connection each time: there may be another process by then.
        this.advance(ConnectionState::Leaving);
    }
    let leaving = (!is_late).then(|| drain.clone());
    let service = service_fn(move |request: Request<Incoming>| {
        let (version, this, is_last) = (request.version(), peer.connection.clone(), is_last(request.headers()));
        let answer = this.request(late_max).map(|running| {
            let mut peer = peer.clone();
            if version >= Version::HTTP_2 {
                peer.cut = started.next_cut();
                peer.connection.found_multiplexed();
            }
            let running = (running, leaving.as_ref().map(DrainWatch::under_way));
            // Boxed, so that it is gone once there is an answer: what a codec keeps for a stream is as large as the
            // largest future that it ever held, and a watch lasts for hours.
            (Box::pin(handle(peer, request)), running)
        });
        async move {
            // The client may send it again elsewhere: nobody has looked at it (RFC 9113 §8.7). HTTP/1 just ends.
            let (answer, running) = answer.ok_or_else(|| h2::Error::from(h2::Reason::REFUSED_STREAM))?;
            let mut answer = answer.await;
            if is_last || this.is(ConnectionState::Leaving) {
                say_goodbye(version, &mut answer);
            }
            Ok::<_, h2::Error>(answer.map(|body| Answered::new(body, running)))
        }
    });
    let builder = builder(limits, streams.clone());
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(io.clone()), service);
    tokio::pin!(connection);
    let mut driven = Driven::new(connection, io, streams);
    // Boxed, for it is looked at once.
    match driven.until(Box::pin(ending(&this, &cut, drain, is_late, limits)).as_mut()).await {
        First::Ended(ended) => return ended,
        First::Aside(over) => over?,
    }
    // GOAWAY, or `Connection: close`: running streams go on, and end at their own moment, in a drain as well.
    this.advance(ConnectionState::Leaving);
    driven.connection().graceful_shutdown();
    match driven.until(Box::pin(is_cut(&this, &cut, limits)).as_mut()).await {
        First::Ended(ended) => ended,
        First::Aside(()) => Err(Over::Cut.into()),
    }
}

/// Completes when a connection must end after what runs on it, or at once.
async fn ending(
    this: &Connection,
    cut: &Cut,
    drain: DrainWatch,
    is_late: bool,
    limits: &ConnectionLimits,
) -> Result<(), Over> {
    tokio::select! {
        biased;
        over = silence(this, limits) => over,
        () = cut.over() => Err(Over::Cut),
        () = leave(this, drain, is_late) => Ok(()),
        () = this.reached(ConnectionState::Closing) => {
            if this.is(ConnectionState::Cut) { Err(Over::Cut) } else { Ok(()) }
        }
        () = old_age(limits.connection_age_max) => Ok(()),
    }
}

/// Completes when a connection is to go in a drain. A connection that was there before is told at a moment of its own:
/// by GOAWAY, or in HTTP/1 with its next answer, for HTTP/1 has no other way that loses nothing.
async fn leave(this: &Connection, mut drain: DrainWatch, is_late: bool) {
    if !is_late {
        drain.my_notice().await;
        this.advance(ConnectionState::Leaving);
        if this.is_multiplexed() {
            return;
        }
    }
    drain.closing().await;
    while !this.has_asked() && this.born().elapsed() < NEWCOMER_MAX {
        // Nothing notifies when a request comes, so this looks again.
        sleep(LOOK_EVERY).await;
    }
}

/// Completes when a connection that is ending must end at once: it was told so, or nothing has run on it for long and
/// its client does not take what is left.
async fn is_cut(this: &Connection, cut: &Cut, limits: &ConnectionLimits) {
    let silence = async {
        // The time counts from the goodbye: what came before it may be the reason for it.
        sleep(limits.idle_max).await;
        this.silent_for(limits.idle_max, limits.idle_max).await;
    };
    tokio::select! {
        biased;
        () = silence => {}
        () = this.reached(ConnectionState::Cut) => {}
        () = cut.over() => {}
    }
}

/// Completes when a connection has been silent for too long. The codecs have limits of their own, but only once they
/// know which protocol it is, and HTTP/2's has none while its client answers pings.
async fn silence(this: &Connection, limits: &ConnectionLimits) -> Result<(), Over> {
    this.silent_for(limits.first_request_max, limits.idle_max).await;
    if this.has_asked() {
        return Ok(());
    }
    ConnectionFailure::Silent.count();
    Err(Over::Silent)
}

/// Completes at a connection's own moment, so that those that came together do not come back together.
async fn old_age(age_max: Duration) {
    if age_max.is_zero() {
        pending::<()>().await;
    }
    sleep(age_max.mul_f64(1.0 - AGE_JITTER + 2.0 * AGE_JITTER * fastrand::f64())).await;
}

/// Whether the bytes after a request may be meant as something else than the next one: as a body, by a `Content-Length`
/// beside a `Transfer-Encoding` that the codec has dropped (RFC 9112 §6.3), or as a protocol that it wanted to change
/// to.
fn is_last(headers: &HeaderMap) -> bool {
    (headers.contains_key(TRANSFER_ENCODING) || headers.contains_key(UPGRADE)) && !mutant(24)
}

/// Tells an HTTP/1 client that this is the last answer. HTTP/2 has GOAWAY for that, and an upgraded connection is not
/// HTTP any more.
fn say_goodbye<B>(version: Version, answer: &mut Response<B>) {
    if version < Version::HTTP_2 && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

fn builder(limits: &ConnectionLimits, streams: Streams) -> auto::Builder<Streams> {
    let mut builder = auto::Builder::new(streams);
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_max)
        .max_buf_size(limits.header_bytes_max as usize)
        // A client that shuts its side down has gone, as Go's server takes it (R-DOWNSTREAM-9).
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

impl<B: Body> Answered<B> {
    fn new(body: B, running: (RequestUnderWay, Option<UnderWay>)) -> Self {
        let is_small = body.size_hint().exact().is_some_and(|bytes| bytes <= WHOLE_BYTES_MAX);
        Self { body, running: (!is_small).then_some(running) }
    }
}

impl<B: Body + Unpin> Body for Answered<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) || self.body.is_end_stream() {
            self.running = None;
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

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use futures_util::future::join_all;
    use tokio::time::Instant;

    use super::*;

    /// As they do when another replica has gone.
    #[tokio::test(start_paused = true)]
    async fn connections_that_came_together_are_told_to_go_over_a_fifth_of_their_age() {
        const CONNECTIONS: usize = 1_000;
        let (born, hour) = (Instant::now(), ConnectionLimits::default().connection_age_max);
        let ages = join_all((0..CONNECTIONS).map(|_| async {
            old_age(hour).await;
            born.elapsed()
        }));
        let ages = ages.await;
        assert!(ages.iter().all(|age| (hour.mul_f64(0.9)..=hour.mul_f64(1.1)).contains(age)), "{ages:?}");
        let mut seconds = HashMap::<u64, usize>::new();
        ages.iter().for_each(|age| *seconds.entry(age.as_secs()).or_default() += 1);
        let most = seconds.values().max().expect("some");
        assert!(most * 100 <= CONNECTIONS * 2, "{most} of {CONNECTIONS} within a second");
    }

    #[tokio::test(start_paused = true)]
    async fn without_an_age_a_connection_lasts() {
        let long = Duration::from_secs(86_400 * 365);
        assert!(tokio::time::timeout(long, old_age(Duration::ZERO)).await.is_err());
    }
}
