//! Opens connections to upstream, over TCP or within this process, and attaches facts about their peers.
//!
//! Among these is the number of streams that a server allows on one HTTP/2 connection. The HTTP library does not expose it
//! and queues requests beyond it, which would wait forever behind watches. Therefore it is parsed from the received bytes.

use std::fmt;
use std::future::pending;
use std::io;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Executor, Read, ReadBuf, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use tokio::io::DuplexStream;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::task::AbortOnDropHandle;
use tower::util::BoxCloneSyncService;
use tower::{Service as _, service_fn};

use super::error::UpstreamConnectError;
use super::peer::UpstreamServerInfo;
use base::{DESCRIPTOR_TRIES, is_out_of_descriptors, main_runtime, request_descriptor};

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Opens the connections of one pool to upstream, before TLS.
pub(super) type UpstreamDialer = BoxCloneSyncService<Uri, DialledConnection, BoxError>;

/// Opens the connections of one pool, with TLS and the facts about their peers.
pub(super) type UpstreamConnector =
    BoxCloneSyncService<Uri, PeerConnection<MaybeHttpsStream<DialledConnection>>, BoxError>;

/// The timeout of a connection attempt with its TLS handshake. Each part has ten seconds, as in client-go.
const CONNECT_MAX: Duration = Duration::from_secs(20);

/// Returns a connector on `runtime`. `limit` gets the stream limits of the peers. Connections without TLS use HTTP/2 if
/// `multiplexes_memory` is set, as those within this process may.
pub(super) fn connector(
    mut tls: HttpsConnector<UpstreamDialer>,
    runtime: ConnectionRuntime,
    limit: AnnouncedStreamLimit,
    multiplexes_memory: bool,
) -> UpstreamConnector {
    BoxCloneSyncService::new(service_fn(move |uri: Uri| {
        // A connector is always ready.
        let connecting = timeout(CONNECT_MAX, tls.call(uri.clone()));
        let limit = limit.clone();
        async move {
            let connected = runtime.run(connecting).await;
            let connected = connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()));
            let io = connected.map_err(|error| UpstreamConnectError::new(&uri, error))?;
            let connection = Arc::new(());
            let is_h2 = multiplexes_memory || io.connected().is_negotiated_h2();
            let (peer, settings) = (UpstreamServerInfo::on(&connection), FirstSettingsFrame::new(limit, is_h2));
            Ok(PeerConnection { io, peer: Arc::new(peer), settings, is_h2, _connection: connection })
        }
    }))
}

/// Returns a dialer over TCP, or to an upstream within this process.
pub(super) fn dialer(tcp: HttpConnector, memory: Option<&InMemoryUpstream>) -> UpstreamDialer {
    let Some(InMemoryUpstream { connect, .. }) = memory.cloned() else {
        return BoxCloneSyncService::new(service_fn(move |uri| dial(tcp.clone(), uri)));
    };
    BoxCloneSyncService::new(service_fn(move |_| {
        let io = connect().ok_or(io::Error::from(io::ErrorKind::ConnectionRefused));
        async { Ok(Box::new(TokioIo::new(io?)) as DialledConnection) }
    }))
}

/// Opens a TCP connection. If the process is out of file descriptors, idle client connections are closed first.
async fn dial(mut tcp: HttpConnector, uri: Uri) -> Result<DialledConnection, BoxError> {
    for _ in 0..DESCRIPTOR_TRIES {
        match tcp.call(uri.clone()).await {
            Err(error) if is_out_of_descriptors(&error) => request_descriptor().await,
            dialled => return Ok(Box::new(dialled?)),
        }
    }
    Ok(Box::new(tcp.call(uri).await?))
}

/// A connection to upstream, before TLS.
pub(super) type DialledConnection = Box<dyn RawConnection>;

pub(super) trait RawConnection: Read + Write + Unpin + Send {}

impl<T: Read + Write + Unpin + Send> RawConnection for T {}

impl Connection for DialledConnection {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

/// A connection with the facts about its peer, which every response on it carries.
#[derive(Debug)]
pub(super) struct PeerConnection<T> {
    io: T,
    peer: Arc<UpstreamServerInfo>,
    settings: FirstSettingsFrame,
    is_h2: bool,
    _connection: Arc<()>,
}

impl<T: Connection> Connection for PeerConnection<T> {
    fn connected(&self) -> Connected {
        let connected = self.io.connected().extra(self.peer.clone());
        if self.is_h2 { connected.negotiated_h2() } else { connected }
    }
}

impl<T: Read + Unpin> Read for PeerConnection<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        let Self { io, settings, .. } = &mut *self;
        settings.poll_read(Pin::new(io), cx, buffer)
    }
}

impl<T: Write + Unpin> Write for PeerConnection<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, slices)
    }
}

/// An upstream within this process, without a socket, for tests and simulations with a virtual clock, which a kernel
/// does not follow.
#[derive(Clone)]
pub struct InMemoryUpstream {
    connect: Arc<dyn Fn() -> Option<DuplexStream> + Send + Sync>,
    /// Whether connections use HTTP/2, as with an apiserver.
    pub(super) multiplexes: bool,
    /// The maximum number of idle connections of a pool.
    pub(super) idle_max: usize,
}

impl InMemoryUpstream {
    /// Creates an upstream to which `connect` opens connections; if it returns `None`, the upstream is unreachable.
    pub fn new(connect: impl Fn() -> Option<DuplexStream> + Send + Sync + 'static, multiplexes: bool) -> Self {
        Self { connect: Arc::new(connect), multiplexes, idle_max: usize::MAX }
    }

    /// Returns the same upstream with a new connection for each request, so that no idle connection can be closed.
    #[cfg(test)]
    pub(super) fn without_idle(self) -> Self {
        Self { idle_max: 0, ..self }
    }
}

impl fmt::Debug for InMemoryUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemoryUpstream").field("multiplexes", &self.multiplexes).finish_non_exhaustive()
    }
}

impl PartialEq for InMemoryUpstream {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.connect, &other.connect)
    }
}

impl Eq for InMemoryUpstream {}

/// The runtime on which an upstream connection is opened and driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConnectionRuntime {
    /// The shared runtime. Traffic of many callers on one connection, such as reviews and watches, must not depend on
    /// the load of the core that needed it first.
    Shared,
    /// The runtime of the request that needs the connection.
    Current,
}

impl ConnectionRuntime {
    /// Runs `making` on the selected runtime.
    pub(super) async fn run<F>(self, making: F) -> F::Output
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        match self {
            Self::Current => making.await,
            Self::Shared => match AbortOnDropHandle::new(main_runtime().spawn(making)).await {
                Ok(made) => made,
                Err(error) => match error.try_into_panic() {
                    Ok(panic) => resume_unwind(panic),
                    // The runtime is shutting down, and so is the caller.
                    Err(_) => pending().await,
                },
            },
        }
    }
}

impl<F> Executor<F> for ConnectionRuntime
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn execute(&self, driving: F) {
        let runtime = match self {
            Self::Current => Handle::current(),
            Self::Shared => main_runtime(),
        };
        // The task drives the connection and ends with it.
        runtime.spawn(driving);
    }
}

/// The last limit that the servers of one shard of a pool announced. Clones share the value.
#[derive(Debug, Clone)]
pub(super) struct AnnouncedStreamLimit(watch::Sender<u32>);

impl AnnouncedStreamLimit {
    pub(super) fn new(presumed: u32) -> Self {
        Self(watch::Sender::new(presumed))
    }

    pub(super) fn get(&self) -> u32 {
        *self.0.borrow()
    }

    /// Records an announced limit. One stream is always tried: a server that allows none at the moment may allow one
    /// later.
    fn set(&self, limit: u32) {
        self.0.send_replace(limit.max(1));
    }

    /// Completes when the limit turns out to be exceeded by a request with `before` streams before it.
    pub(super) async fn is_exceeded_by(&self, before: u32) {
        // The caller holds the sender, so waiting cannot fail.
        let _ = self.0.subscribe().wait_for(|limit| *limit <= before).await;
    }
}

/// Parses the first frame of a server, which contains its settings (RFC 9113 §3.4).
#[derive(Debug)]
pub(super) struct FirstSettingsFrame {
    /// The received part of the server's first frame; `None` once it is complete, or is another frame.
    read: Option<Vec<u8>>,
    limit: AnnouncedStreamLimit,
}

const FRAME_HEAD: usize = 9;
const SETTINGS: u8 = 4;
const MAX_CONCURRENT_STREAMS: u16 = 3;
/// The default maximum frame size (RFC 9113 §4.2), in bytes.
const PAYLOAD_MAX: usize = 1 << 14;
/// The read size until the frame is complete, in bytes.
const PART: usize = 256;

impl FirstSettingsFrame {
    /// Creates a parser. If `is_h2` is false, nothing is parsed.
    pub(super) fn new(limit: AnnouncedStreamLimit, is_h2: bool) -> Self {
        Self { read: is_h2.then(Vec::new), limit }
    }

    /// Reads from `io`, and parses the bytes until the frame is complete.
    pub(super) fn poll_read<T: Read + Unpin>(
        &mut self,
        io: Pin<&mut T>,
        cx: &mut Context<'_>,
        mut to: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let Some(read) = &mut self.read else { return io.poll_read(cx, to) };
        let mut part = [0; PART];
        let room = to.remaining().min(PART);
        let mut buffer = ReadBuf::new(&mut part[..room]);
        ready!(io.poll_read(cx, buffer.unfilled()))?;
        to.put_slice(buffer.filled());
        read.extend_from_slice(buffer.filled());
        if let Some(limit) = limit_in(read) {
            // A server that announces no limit allows any number.
            self.limit.set(limit.unwrap_or(u32::MAX));
            self.read = None;
        } else if read.len() > FRAME_HEAD + PAYLOAD_MAX {
            self.read = None;
        }
        Poll::Ready(Ok(()))
    }
}

/// Returns the stream limit in a server's first frame; the outer `None` means that the frame is incomplete.
#[expect(clippy::option_option, reason = "not yet, and not at all")]
fn limit_in(bytes: &[u8]) -> Option<Option<u32>> {
    let (head, payload) = bytes.split_at_checked(FRAME_HEAD)?;
    if head[3] != SETTINGS {
        return Some(None);
    }
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let settings = payload.get(..length)?.chunks_exact(6);
    let mut values = settings.filter(|one| u16::from_be_bytes([one[0], one[1]]) == MAX_CONCURRENT_STREAMS);
    // If the setting is repeated, the last value applies.
    Some(values.next_back().map(|one| u32::from_be_bytes([one[2], one[3], one[4], one[5]])))
}

#[cfg(test)]
mod tests {
    use std::thread;

    use hyper_rustls::HttpsConnectorBuilder;
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;
    use crate::upstream::UpstreamError;
    use base::{BackgroundTasks, CoreRuntimes};

    /// A server, or a proxy on the way, that accepts connections but does not respond.
    #[tokio::test(start_paused = true)]
    async fn connection_attempt_ends_if_the_tls_handshake_hangs() {
        let dialer = BoxCloneSyncService::new(service_fn(|_: Uri| pending::<Result<DialledConnection, BoxError>>()));
        let tls = rustls::ClientConfig::builder().with_root_certificates(rustls::RootCertStore::empty());
        let tls = HttpsConnectorBuilder::new().with_tls_config(tls.with_no_client_auth()).https_or_http();
        let (runtime, limit) = (ConnectionRuntime::Current, AnnouncedStreamLimit::new(1));
        let mut connector = connector(tls.enable_http1().wrap_connector(dialer), runtime, limit, false);
        let (began, address) = (Instant::now(), Uri::from_static("https://a.example:6443"));
        let error = connector.call(address).await.err().expect("no response comes");
        let error = error.downcast::<UpstreamConnectError>().expect("an error of the connector");
        assert_eq!((error.server.as_str(), began.elapsed()), ("a.example:6443", CONNECT_MAX));
        assert_eq!(UpstreamError::Unreachable(error).for_callers(), "upstream cannot be reached: timed out");
    }

    #[tokio::test]
    async fn shared_connections_run_on_home_runtime_and_others_locally() {
        let (tasks, home) =
            (BackgroundTasks::with_cores(CoreRuntimes::start(1).expect("threads")), thread::current().id());
        let (sender, receiver) = oneshot::channel();
        tasks.spread("a request", async move {
            let here = thread::current().id();
            let mut seen = Vec::new();
            for runtime in [ConnectionRuntime::Shared, ConnectionRuntime::Current] {
                seen.push(runtime.run(async { thread::current().id() }).await);
                let (thread_sender, reported) = oneshot::channel();
                runtime.execute(async { thread_sender.send(thread::current().id()).expect("the receiver is open") });
                seen.push(reported.await.expect("it runs"));
            }
            sender.send((here, seen)).expect("the receiver is open");
        });
        let (here, seen) = receiver.await.expect("it ends");
        assert_ne!(here, home);
        assert_eq!(seen, [home, home, here, here]);
        tasks.join().await;
    }

    fn settings(announced: &[(u16, u32)]) -> Vec<u8> {
        let payload: Vec<u8> =
            announced.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        [&length[1..], &[SETTINGS, 0, 0, 0, 0, 0], &payload].concat()
    }

    #[test]
    fn stream_limit_is_last_value_in_first_settings_frame() {
        for (announced, limit) in [
            (vec![], None),
            (vec![(4, 7)], None),
            (vec![(3, 100)], Some(100)),
            (vec![(1, 4_096), (3, 0), (4, 7)], Some(0)),
            (vec![(3, 5), (3, 6)], Some(6)),
        ] {
            let frame = settings(&announced);
            assert_eq!(limit_in(&frame), Some(limit), "{announced:?}");
            let cut = (0..frame.len()).find(|length| limit_in(&frame[..*length]).is_some());
            assert_eq!(cut, None, "{announced:?}: not before it is whole");
            assert_eq!(limit_in(&[frame, vec![0; 40]].concat()), Some(limit), "{announced:?}: whatever follows");
        }
        assert_eq!(limit_in(b"HTTP/1.1 400 Bad Request"), Some(None), "no frame of that kind");
    }

    #[tokio::test]
    async fn only_streams_above_limit_are_notified() {
        let limit = AnnouncedStreamLimit::new(u32::MAX);
        let waiting = |before| {
            let limit = limit.clone();
            tokio::spawn(async move { limit.is_exceeded_by(before).await })
        };
        let [first, second, third] = [0, 1, 2].map(waiting);
        tokio::task::yield_now().await;
        limit.set(2);
        third.await.expect("no panic");
        assert!(!first.is_finished() && !second.is_finished());
        limit.set(0);
        second.await.expect("no panic");
        assert!(!first.is_finished(), "one is always tried");
        first.abort();
    }
}
