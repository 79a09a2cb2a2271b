//! Pools of connections upstream. There are four kinds of traffic, which never share a connection:
//!
//! - our **watches**, and our **short** requests, over HTTP/2, with at most 80 streams a connection, below the
//!   apiserver's 100;
//! - **streams** of others (followed logs, passed-through watches) over HTTP/1.1, one a connection, so that one that is
//!   not read stalls only itself;
//! - **tunnels** (exec, port-forward) likewise, on connections that are used once.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode, Version};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioTimer;
use parking_lot::Mutex;

use super::cost::CostCounter;
use super::credentials::UpstreamCredentials;
use super::dial::Dialer;
use super::outgoing::{Outgoing, UpstreamBody};
use super::peer::{PeerConnector, Server, UpstreamPeer};
use super::resend::Resendable;
use super::runtime::ConnectionRuntime;
use super::stream_limit::StreamLimit;
use super::{Build, CredentialError, Error, SERVED};

type Connections = legacy::Client<PeerConnector<HttpsConnector<Dialer>>, UpstreamBody>;

/// Which protocol a pool speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PoolProtocol {
    /// HTTP/2 where upstream offers it: many requests a connection. Of each answer so many bytes are taken before they
    /// are read.
    Multiplexed { stream_window: u32, runtime: ConnectionRuntime },
    /// HTTP/1.1: one request a connection at a time.
    Single,
    /// The same, and a connection is not used twice.
    Once,
}

impl PoolProtocol {
    /// We read what we ask for.
    pub(super) const FOR_US: Self = Self::Multiplexed { stream_window: 1 << 20, runtime: ConnectionRuntime::Home };
    /// Others may never read their answers, and what has been taken of them is in no budget: with 1 MiB each, 600 of
    /// them took 600 MiB, and the time to clear so much memory.
    pub(super) const FOR_OTHERS: Self =
        Self::Multiplexed { stream_window: UNREAD_BYTES, runtime: ConnectionRuntime::Here };

    fn runtime(self) -> ConnectionRuntime {
        match self {
            Self::Multiplexed { runtime, .. } => runtime,
            Self::Single | Self::Once => ConnectionRuntime::Here,
        }
    }
}

/// What is taken of an answer of somebody else before it is read.
const UNREAD_BYTES: u32 = 256 << 10;
/// Connections that one pool keeps for the next request.
const IDLE_CONNECTIONS_MAX: usize = 64;

/// Connections of one kind of traffic.
///
/// Long-lived streams are spread: a connection takes at most [`STREAMS_MAX`](Self::STREAMS_MAX) of them, below the
/// apiserver's own limit of 100 (R-HTTP-1), beyond which requests would queue behind watches that never end. A server
/// that says that it takes fewer gets fewer, on more connections.
#[derive(Debug)]
pub(super) struct Pool {
    credentials: UpstreamCredentials,
    protocol: PoolProtocol,
    idle_max: usize,
    shards: Mutex<Vec<Shard>>,
}

#[derive(Debug, Clone)]
struct Shard {
    connections: Connections,
    streams: Arc<AtomicU32>,
    /// What its server has said of streams.
    limit: StreamLimit,
}

impl Shard {
    fn has_room(&self) -> bool {
        self.streams.load(Ordering::Relaxed) < Pool::STREAMS_MAX.min(self.limit.get())
    }
}

/// A place on a connection, given back on drop.
#[derive(Debug)]
pub(super) struct Slot {
    /// How many others there were when it was taken.
    before: u32,
    limit: StreamLimit,
    streams: Arc<AtomicU32>,
    /// Which one of upstream's servers the connection is to.
    endpoint: usize,
}

impl Pool {
    const STREAMS_MAX: u32 = 80;
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
    /// client-go's numbers: ping after 30 s of silence, give up 15 s later (R-CLIENT-3).
    const PING_AFTER: Duration = Duration::from_secs(30);
    const PING_TIMEOUT: Duration = Duration::from_secs(15);
    /// What a stream over HTTP/1.1 may hold back for a client that does not read; a response head must fit in too.
    const BUFFER_BYTES_MAX: usize = 128 << 10;
    /// The fields of a response head over HTTP/1.1: as many as fit if each counts 32 bytes, as over HTTP/2.
    const FIELDS_MAX: usize = Self::BUFFER_BYTES_MAX / 32;

    pub(super) fn new(credentials: &UpstreamCredentials, protocol: PoolProtocol) -> Result<Self, CredentialError> {
        let idle_max = if protocol == PoolProtocol::Once { 0 } else { IDLE_CONNECTIONS_MAX };
        Self::keeping(credentials, protocol, idle_max)
    }

    /// One that keeps no more connections than that for the next request.
    pub(super) fn keeping(
        credentials: &UpstreamCredentials,
        protocol: PoolProtocol,
        idle_max: usize,
    ) -> Result<Self, CredentialError> {
        let pool = Self { credentials: credentials.clone(), protocol, idle_max, shards: Mutex::new(Vec::new()) };
        let first = pool.shard(u32::MAX)?;
        pool.shards.lock().push(first);
        Ok(pool)
    }

    /// Sends a request; its place on the connection is held until the response body has been dropped. If its server has
    /// certainly not processed it, it is sent again on another connection.
    pub(super) async fn send(&self, outgoing: Outgoing) -> Result<Response<ResponseBody>, Error> {
        let mut resendable = Resendable::new(outgoing);
        loop {
            match send_by(self.place(), resendable.attempt()).await {
                Err(error) if resendable.may_retry(&error).await => {}
                answer => return answer,
            }
        }
    }

    /// Sends a request of ours, which changes nothing and has no body. If it turns out that its connection does not
    /// take so many at once, it goes by another one.
    pub(super) async fn ask(&self, outgoing: Outgoing) -> Result<Response<ResponseBody>, Error> {
        let mut resendable = Resendable::new(outgoing);
        loop {
            let (connections, slot) = self.place();
            let (before, limit) = (slot.before, slot.limit.clone());
            tokio::select! {
                biased;
                answer = send_by((connections, slot), resendable.attempt()) => match answer {
                    Err(error) if resendable.may_retry(&error).await => {}
                    answer => return answer,
                },
                () = limit.is_exceeded_by(before) => {}
            }
        }
    }

    /// The same on the connections that a server was met on; returns the request if they are not this pool's.
    pub(super) async fn send_beside(
        &self,
        server: &Server,
        outgoing: Outgoing,
    ) -> Result<Result<Response<ResponseBody>, Error>, Outgoing> {
        match self.place_beside(server) {
            Some(place) => Ok(send_by(place, outgoing).await),
            None => Err(outgoing),
        }
    }

    /// A place that streams leave free: the apiserver takes more of them than we have at most.
    fn place_beside(&self, server: &Server) -> Option<(Connections, Slot)> {
        let shards = self.shards.lock();
        let shard = shards.iter().find(|shard| Arc::ptr_eq(&shard.streams, &server.streams))?;
        // One more than our own bound is below the server's, as a rule.
        let is_taken = shard.streams.load(Ordering::Relaxed) < shard.limit.get();
        is_taken.then(|| self.slot(shard.clone()))
    }

    fn slot(&self, Shard { connections, streams, limit }: Shard) -> (Connections, Slot) {
        let before = streams.fetch_add(1, Ordering::Relaxed);
        (connections, Slot { before, limit, streams, endpoint: self.credentials.endpoint })
    }

    fn place(&self) -> (Connections, Slot) {
        let mut shards = self.shards.lock();
        let free = shards.iter().find(|shard| shard.has_room()).cloned();
        // What one of them takes, the next one takes as well.
        let presumed = shards.iter().map(|shard| shard.limit.get()).min().unwrap_or(u32::MAX);
        let shard = free.unwrap_or_else(|| match (self.protocol, self.shard(presumed)) {
            (PoolProtocol::Multiplexed { .. }, Ok(shard)) => {
                shards.push(shard.clone());
                shard
            }
            // HTTP/1.1 opens a connection per request by itself.
            _ => shards[0].clone(),
        });
        self.slot(shard)
    }

    fn shard(&self, presumed: u32) -> Result<Shard, CredentialError> {
        let limit = StreamLimit::new(presumed);
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(Self::PING_AFTER));
        tcp.set_connect_timeout(Some(Self::CONNECT_TIMEOUT));
        let stream_window = match self.protocol {
            PoolProtocol::Multiplexed { stream_window, .. } => Some(stream_window),
            PoolProtocol::Single | PoolProtocol::Once => {
                // Streams of others, which they may not read: what the kernel takes for each is bounded as well.
                tcp.set_recv_buffer_size(Some(UNREAD_BYTES as usize));
                None
            }
        };
        let mut tls = HttpsConnectorBuilder::new().with_tls_config(self.credentials.tls.clone()).https_or_http();
        if let Some(name) = &self.credentials.server_name {
            let name =
                name.clone().try_into().map_err(|_| CredentialError::Tls(format!("bad tls-server-name {name:?}")))?;
            tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        let (dialer, idle_max) = match &self.credentials.memory {
            None => (Dialer::Tcp(tcp), self.idle_max),
            Some(memory) => {
                (Dialer::Memory(memory.speaking(stream_window.is_some())), self.idle_max.min(memory.idle_max()))
            }
        };
        let connector = match stream_window {
            Some(_) => tls.enable_all_versions().wrap_connector(dialer),
            None => tls.enable_http1().wrap_connector(dialer),
        };
        let runtime = self.protocol.runtime();
        let connections = legacy::Client::builder(runtime)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(60))
            .http1_max_buf_size(Self::BUFFER_BYTES_MAX)
            .http1_max_headers(Self::FIELDS_MAX)
            .http2_keep_alive_interval(Self::PING_AFTER)
            .http2_keep_alive_timeout(Self::PING_TIMEOUT)
            .http2_initial_stream_window_size(stream_window)
            // Room for every stream: however many are not read, the others go on.
            .http2_initial_connection_window_size(stream_window.map(|window| window * Self::STREAMS_MAX))
            .http2_max_header_list_size(1 << 20)
            // `Resendable` retries: it covers more, and has a bound.
            .retry_canceled_requests(false)
            .pool_max_idle_per_host(idle_max)
            .build(PeerConnector::new(connector, runtime, limit.clone()));
        Ok(Shard { connections, streams: Arc::new(AtomicU32::new(0)), limit })
    }
}

async fn send_by(
    (connections, slot): (Connections, Slot),
    Outgoing { request, counter }: Outgoing,
) -> Result<Response<ResponseBody>, Error> {
    counter.sent();
    let response = connections.request(request).await.map_err(|error| Error::Unreachable(error.into()))?;
    Ok(ResponseBody::of(response, slot, counter))
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A response body that holds its place on the connection.
#[derive(Debug)]
pub struct ResponseBody {
    incoming: Incoming,
    server: Server,
    is_from_memory: bool,
    counter: CostCounter,
    _slot: Slot,
}

impl ResponseBody {
    fn of(response: Response<Incoming>, slot: Slot, mut counter: CostCounter) -> Response<Self> {
        counter.answered(response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS);
        let peer = match Build::named_in(response.headers()) {
            Some(build) => Arc::new(UpstreamPeer::behind_a_proxy(build)),
            None => response.extensions().get::<Arc<UpstreamPeer>>().cloned().unwrap_or_default(),
        };
        let multiplexes = response.version() == Version::HTTP_2;
        let server = Server::new(peer, slot.streams.clone(), slot.endpoint, multiplexes);
        let is_from_memory = response.headers().contains_key(SERVED);
        response.map(|incoming| Self { incoming, server, is_from_memory, counter, _slot: slot })
    }

    /// Who answers.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Whether upstream is a proxy, and has answered this from its memory.
    pub fn is_from_memory(&self) -> bool {
        self.is_from_memory
    }

    /// Notes that the state which a stream begins with has come, so that what follows is counted as events.
    pub fn is_listed(&mut self) {
        self.counter.is_listed();
    }
}

impl hyper::body::Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = std::task::ready!(Pin::new(&mut self.incoming).poll_frame(cx));
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.counter.received(data.len());
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
