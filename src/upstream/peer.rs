use std::io;
use std::pin::Pin;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tower::Service;

use super::ServerBuild;
use super::error::UpstreamConnectError;
use super::runtime::ConnectionRuntime;
use super::stream_limit::{AnnouncedStreamLimit, FirstSettingsFrame};

/// The server at the other end of one connection. While the connection is open, the server and its release stay the
/// same, because a process cannot change its release.
#[derive(Debug, Clone)]
pub struct UpstreamServer {
    peer: Arc<UpstreamServerInfo>,
    /// The number of streams on the connections to the server.
    pub(super) streams: Arc<AtomicU32>,
    /// The index of the server's address among upstream's servers.
    pub(super) endpoint: usize,
    /// Whether the server can receive a request while it responds to another.
    multiplexes: bool,
}

/// The facts about a server, kept with the connection. For a server behind a proxy they are kept with the response.
#[derive(Debug, Default)]
pub(super) struct UpstreamServerInfo {
    reported: Mutex<ServerBuildState>,
    /// A lock that allows one request for the build at a time.
    request_lock: Arc<tokio::sync::Mutex<()>>,
    /// A reference to a value that is dropped with the connection.
    connection: Weak<()>,
    is_behind_a_proxy: bool,
}

#[derive(Debug, Clone, Default)]
enum ServerBuildState {
    #[default]
    Pending,
    /// The server failed to respond: since when, how often, and the last time.
    Failed { since: Instant, times: u32, last: Instant },
    /// The server reports this build. `certain` is set if that was learned on this very connection, which is not passed
    /// on to another server with each request.
    Build { build: Arc<ServerBuild>, certain: bool },
    /// The server does not report its build.
    NotReported,
}

/// How long a server may fail to report its build before the build is not requested again. A server that has just
/// started denies requests until its caches are filled.
const FAILING_MAX: Duration = Duration::from_secs(20);
/// The timeout of a connection attempt with its TLS handshake. Each part has ten seconds, as in client-go.
const CONNECT_MAX: Duration = Duration::from_secs(20);
/// The minimum time between two requests, shared by all callers; doubled with each.
const RETRY_AFTER: Duration = Duration::from_millis(250);

impl ServerBuildState {
    /// Returns what a response that reports `build`, or no build, shows.
    fn reported(build: Option<ServerBuild>, certain: bool) -> Self {
        build.map_or(Self::NotReported, |build| Self::Build { build: Arc::new(build), certain })
    }
}

impl UpstreamServerInfo {
    /// Creates a server behind a proxy, which encoded the bodies in the proxy's cache.
    pub(super) fn behind_a_proxy(build: ServerBuild) -> Self {
        let reported = Mutex::new(ServerBuildState::reported(Some(build), true));
        Self { reported, is_behind_a_proxy: true, ..Self::default() }
    }
}

impl UpstreamServer {
    pub(super) fn new(
        peer: Arc<UpstreamServerInfo>,
        streams: Arc<AtomicU32>,
        endpoint: usize,
        multiplexes: bool,
    ) -> Self {
        Self { peer, streams, endpoint, multiplexes }
    }

    /// Returns the build that the server reported, if it did.
    pub fn build(&self) -> Option<Arc<ServerBuild>> {
        match &*self.peer.reported.lock() {
            ServerBuildState::Build { build, .. } => Some(build.clone()),
            _ => None,
        }
    }

    /// Whether the server is behind a proxy, which reports its build with every response.
    pub fn is_behind_a_proxy(&self) -> bool {
        self.peer.is_behind_a_proxy
    }

    /// Whether two servers are at the other end of the same connection.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.peer, &other.peer)
    }

    /// Returns a copy of the current facts about the server, which later findings do not change.
    #[must_use]
    pub fn frozen(&self) -> Self {
        let reported = Mutex::new(self.peer.reported.lock().clone());
        Self { peer: Arc::new(UpstreamServerInfo { reported, ..UpstreamServerInfo::default() }), ..self.clone() }
    }

    /// Whether no request is needed to learn more about the server.
    pub fn is_known(&self) -> bool {
        matches!(*self.peer.reported.lock(), ServerBuildState::Build { .. } | ServerBuildState::NotReported)
    }

    /// Whether the server's facts were learned on this very connection. A server with HTTP/1.1 cannot receive a request
    /// while it streams, and is often behind a load balancer. Its facts come from another server at the same address.
    pub fn is_certain(&self) -> bool {
        matches!(*self.peer.reported.lock(), ServerBuildState::Build { certain: true, .. })
    }

    /// Whether the server produces the same bytes as `other`; `None` while that is unknown.
    pub fn encodes_like(&self, other: &Self) -> Option<bool> {
        if self.is_same(other) {
            return Some(true);
        }
        // Takes one lock after the other, because a comparison in the opposite order would otherwise deadlock.
        let first = self.peer.reported.lock().clone();
        let second = other.peer.reported.lock().clone();
        match (first, second) {
            (ServerBuildState::Build { build: first, .. }, ServerBuildState::Build { build: second, .. }) => {
                Some(first == second)
            }
            (ServerBuildState::NotReported, ServerBuildState::NotReported) => Some(true),
            (ServerBuildState::Pending | ServerBuildState::Failed { .. }, _)
            | (_, ServerBuildState::Pending | ServerBuildState::Failed { .. }) => None,
            (ServerBuildState::NotReported, _) | (_, ServerBuildState::NotReported) => Some(false),
        }
    }

    /// Records that the servers at the same address now report another build.
    pub fn assume_build(&self, build: &ServerBuild) {
        *self.peer.reported.lock() = ServerBuildState::Build { build: Arc::new(build.clone()), certain: false };
    }

    /// Whether a request showed that the server does not report its build.
    pub fn reports_no_build(&self) -> bool {
        matches!(*self.peer.reported.lock(), ServerBuildState::NotReported)
    }

    /// Records that the server failed to respond to a request for its build.
    pub fn failed(&self) {
        let (mut reported, now) = (self.peer.reported.lock(), Instant::now());
        *reported = match *reported {
            ServerBuildState::Pending => ServerBuildState::Failed { since: now, times: 1, last: now },
            ServerBuildState::Failed { since, .. } if now.duration_since(since) >= FAILING_MAX => {
                ServerBuildState::NotReported
            }
            ServerBuildState::Failed { since, times, .. } => {
                ServerBuildState::Failed { since, times: times + 1, last: now }
            }
            ServerBuildState::Build { .. } | ServerBuildState::NotReported => return,
        };
    }

    /// Whether the server failed to report its build recently.
    pub(super) fn is_backing_off(&self) -> bool {
        match *self.peer.reported.lock() {
            ServerBuildState::Failed { times, last, .. } => {
                last.elapsed() < RETRY_AFTER.saturating_mul(1 << times.min(5))
            }
            _ => false,
        }
    }

    pub(super) async fn lock_requests(&self) -> tokio::sync::OwnedMutexGuard<()> {
        self.peer.request_lock.clone().lock_owned().await
    }

    /// Records the response to a request about this server, which `by` sent.
    pub(super) fn record_response(&self, by: &Self, build: Option<ServerBuild>) {
        let reported = ServerBuildState::reported(build, by.multiplexes);
        *by.peer.reported.lock() = reported.clone();
        if self.is_same(by) {
            return;
        }
        // There may be two connections for a moment, both to the same server.
        let is_connected = self.peer.connection.strong_count() > 0;
        let known = is_connected || !self.multiplexes;
        *self.peer.reported.lock() = match reported {
            ServerBuildState::Build { build, .. } if known => ServerBuildState::Build { build, certain: false },
            // The connection is closed, so the server at its other end can no longer be identified.
            _ => ServerBuildState::NotReported,
        };
    }

    /// Creates a server that reports `build`, or no build.
    #[cfg(test)]
    pub(crate) fn with_build(build: Option<ServerBuild>) -> Self {
        let reported = Mutex::new(ServerBuildState::reported(build, true));
        Self::new(Arc::new(UpstreamServerInfo { reported, ..UpstreamServerInfo::default() }), Arc::default(), 0, true)
    }

    /// Creates a server whose build is unknown.
    #[cfg(test)]
    pub(crate) fn with_unknown_build() -> Self {
        Self::new(Arc::default(), Arc::default(), 0, true)
    }
}

/// Opens connections and attaches facts about their peers.
#[derive(Debug, Clone)]
pub(super) struct PeerConnector<C> {
    pub(super) connector: C,
    pub(super) runtime: ConnectionRuntime,
    /// Gets the stream limits of the peers.
    pub(super) limit: AnnouncedStreamLimit,
    /// Whether connections without TLS use HTTP/2, as those within this process may.
    pub(super) multiplexes_memory: bool,
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A connection with the facts about its peer, which every response on it carries.
#[derive(Debug)]
pub(super) struct PeerConnection<T> {
    io: T,
    peer: Arc<UpstreamServerInfo>,
    settings: FirstSettingsFrame,
    is_h2: bool,
    _connection: Arc<()>,
}

impl<C> Service<Uri> for PeerConnector<C>
where
    C: Service<
            Uri,
            Response: Connection + Send + 'static,
            Error: Into<BoxError> + Send + 'static,
            Future: Send + 'static,
        >,
{
    type Response = PeerConnection<C::Response>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.connector.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connecting = timeout(CONNECT_MAX, self.connector.call(uri.clone()));
        let (connecting, limit) = (self.runtime.run(connecting), self.limit.clone());
        let multiplexes_memory = self.multiplexes_memory;
        Box::pin(async move {
            let connected = match connecting.await {
                Ok(connected) => connected.map_err(Into::into),
                Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut).into()),
            };
            let io = connected.map_err(|error| UpstreamConnectError::new(&uri, error))?;
            let connection = Arc::new(());
            let peer = UpstreamServerInfo { connection: Arc::downgrade(&connection), ..UpstreamServerInfo::default() };
            let is_h2 = multiplexes_memory || io.connected().is_negotiated_h2();
            let settings = FirstSettingsFrame::new(limit, is_h2);
            Ok(PeerConnection { io, peer: Arc::new(peer), settings, is_h2, _connection: connection })
        })
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upstream::UpstreamError;
    use crate::upstream::dial::DialledConnection;

    fn build(text: &str) -> ServerBuild {
        ServerBuild::parse(format!(r#"{{"major": "1", "minor": "36", "gitVersion": "{text}"}}"#).as_bytes())
            .expect("a build")
    }

    #[test]
    fn servers_are_compared_by_reported_build() {
        let [a, b] = ["v1.36.1", "v1.36.2"].map(|text| UpstreamServer::with_build(Some(build(text))));
        let (silent, unknown) = (UpstreamServer::with_build(None), UpstreamServer::with_unknown_build());
        assert_eq!(a.encodes_like(&UpstreamServer::with_build(Some(build("v1.36.1")))), Some(true));
        assert_eq!(a.encodes_like(&b), Some(false));
        assert_eq!(silent.encodes_like(&UpstreamServer::with_build(None)), Some(true));
        assert_eq!((a.encodes_like(&silent), silent.encodes_like(&a)), (Some(false), Some(false)));
        assert_eq!((a.encodes_like(&unknown), unknown.encodes_like(&silent)), (None, None));
        assert_eq!(unknown.encodes_like(&unknown.clone()), Some(true), "whatever it is");
    }

    /// Feeds on several threads compare the same two servers in both orders.
    #[test]
    fn concurrent_server_comparison_does_not_deadlock() {
        let [a, b] = ["v1.36.1", "v1.36.2"].map(|text| UpstreamServer::with_build(Some(build(text))));
        let compare = |one: &UpstreamServer, other: &UpstreamServer| {
            (0..100_000).for_each(|_| assert_eq!(one.encodes_like(other), Some(false)));
        };
        std::thread::scope(|scope| {
            scope.spawn(|| compare(&a, &b));
            scope.spawn(|| compare(&b, &a));
        });
    }

    #[test]
    fn response_on_other_connection_identifies_only_that_server() {
        let by = UpstreamServer::with_unknown_build();
        let (connection, gone) = (Arc::new(()), UpstreamServer::with_unknown_build());
        let peer = UpstreamServerInfo { connection: Arc::downgrade(&connection), ..UpstreamServerInfo::default() };
        let alive = UpstreamServer::new(Arc::new(peer), Arc::default(), 0, true);
        alive.record_response(&by, Some(build("v1.36.1")));
        assert_eq!((by.is_certain(), alive.encodes_like(&by), alive.is_certain()), (true, Some(true), false));
        gone.record_response(&by, Some(build("v1.36.1")));
        assert_eq!((gone.encodes_like(&by), gone.reports_no_build()), (Some(false), true), "its build is unknown");
        // Without multiplexing there is no better way to identify a server.
        let single = || UpstreamServer::new(Arc::default(), Arc::default(), 0, false);
        let (requests, other) = (single(), single());
        requests.record_response(&other, Some(build("v1.36.1")));
        assert_eq!((requests.encodes_like(&by), requests.is_certain()), (Some(true), false));
        assert!(!other.is_certain(), "the next stream may come by it, and from another server");
    }

    /// A server, or a proxy on the way, that accepts connections but does not respond.
    #[tokio::test(start_paused = true)]
    async fn connection_attempt_ends_if_the_tls_handshake_hangs() {
        let connector = tower::service_fn(|_: Uri| std::future::pending::<Result<DialledConnection, BoxError>>());
        let (runtime, limit) = (ConnectionRuntime::Current, AnnouncedStreamLimit::new(1));
        let mut connector = PeerConnector { connector, runtime, limit, multiplexes_memory: false };
        let (began, address) = (Instant::now(), Uri::from_static("https://a.example:6443"));
        let error = connector.call(address).await.err().expect("no response comes");
        let error = error.downcast::<UpstreamConnectError>().expect("an error of the connector");
        assert_eq!((error.server.as_str(), began.elapsed()), ("a.example:6443", CONNECT_MAX));
        assert_eq!(UpstreamError::Unreachable(error).for_callers(), "upstream cannot be reached: timed out");
    }

    #[tokio::test(start_paused = true)]
    async fn version_requests_to_silent_server_back_off_then_stop() {
        let (server, began) = (UpstreamServer::with_unknown_build(), Instant::now());
        let mut requests = 0;
        while !server.is_known() {
            if !server.is_backing_off() {
                server.failed();
                requests += 1;
            }
            tokio::time::advance(Duration::from_millis(10)).await;
        }
        assert!((FAILING_MAX..2 * FAILING_MAX).contains(&began.elapsed()), "{:?}", began.elapsed());
        assert!((4..10).contains(&requests), "{requests} requests, however many feeds need it");
        assert!(server.reports_no_build());
    }
}
