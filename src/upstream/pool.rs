//! Pools of connections to upstream. There are four kinds of traffic, which never share a connection:
//!
//! - the proxy's **watches** and its **short** requests, over HTTP/2, with at most 80 streams per connection, below the
//!   apiserver's limit of 100;
//! - callers' **streams** (followed logs, passed-through watches) over HTTP/1.1, one per connection, so that one that
//!   is not read stalls only itself;
//! - **tunnels** (exec, port-forward), also over HTTP/1.1, on connections that are used once.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{Response, StatusCode, Version};
use http_body_util::BodyExt as _;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioTimer;
use parking_lot::Mutex;

use super::connector::{AnnouncedStreamLimit, ConnectionRuntime, UpstreamConnector, connector, dialer};
use super::cost::UpstreamCostCounter;
use super::credentials::UpstreamCredentials;
use super::inflate::GzipBody;
use super::peer::{UpstreamServer, UpstreamServerInfo};
use super::retryable_request::{CountedRequest, RetryableRequest, UpstreamBody};
use super::{CredentialError, DELTAS, SERVED, ServerBuild, UpstreamError};

type PooledHttpClient = legacy::Client<UpstreamConnector, UpstreamBody>;

/// The kind of connections that a forwarded request uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForwardPoolKind {
    /// The request takes seconds at most: many requests share a connection.
    Short,
    /// The response lasts as long as the client reads: one connection each.
    Stream,
    /// The connection becomes a byte tunnel: one connection each, used once.
    Tunnel,
}

/// The traffic of a pool, and the connections for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct PoolTraffic {
    /// The number of response bytes that are received before they are read; `None` for HTTP/1.1. The proxy always reads
    /// the responses to its own requests. Callers may never read theirs, and received bytes are in no budget: with a
    /// window of 1 MiB, 600 such callers would occupy 600 MiB.
    stream_window: Option<u32>,
    /// The maximum number of idle connections that are kept.
    idle_max: usize,
    runtime: ConnectionRuntime,
    /// Whether a request changes nothing and has no body, so that it can be sent again on another connection.
    is_repeatable: bool,
}

impl PoolTraffic {
    /// The proxy's watches, over HTTP/2 if upstream offers it.
    pub(super) const WATCHES: Self =
        Self { stream_window: Some(1 << 20), idle_max: 64, runtime: ConnectionRuntime::Shared, is_repeatable: true };
    /// The proxy's short requests, over HTTP/2 if upstream offers it.
    pub(super) const SHORT: Self = Self { is_repeatable: false, ..Self::WATCHES };
    /// Callers' short requests, over HTTP/2 if upstream offers it.
    pub(super) const FORWARDS: Self =
        Self { stream_window: Some(UNREAD_BYTES), runtime: ConnectionRuntime::Current, ..Self::SHORT };
    /// Callers' streams over HTTP/1.1: one per connection at a time.
    pub(super) const STREAMS: Self = Self { stream_window: None, ..Self::FORWARDS };
    /// The same for one credential, which keeps few connections for its next streams.
    pub(super) const STREAMS_OF_CREDENTIAL: Self = Self { idle_max: 4, ..Self::STREAMS };
    /// HTTP/1.1, without reuse of connections.
    pub(super) const SINGLE_USE: Self = Self { idle_max: 0, ..Self::STREAMS };
}

/// The number of bytes of a caller's response that are received before they are read.
const UNREAD_BYTES: u32 = 256 << 10;

/// The connections for one kind of traffic.
///
/// Long-lived streams are spread: a connection carries at most [`STREAMS_MAX`](Self::STREAMS_MAX) of them. This is
/// below the apiserver's own limit of 100 (R-HTTP-1), beyond which requests would queue behind watches that never end.
/// If a server announces a lower limit, more connections with fewer streams are used.
#[derive(Debug)]
pub(super) struct ConnectionPool {
    credentials: UpstreamCredentials,
    traffic: PoolTraffic,
    shards: Mutex<Vec<PoolShard>>,
}

#[derive(Debug, Clone)]
struct PoolShard {
    connections: PooledHttpClient,
    streams: Arc<AtomicU32>,
    /// The stream limit that the server of the connection has announced.
    limit: AnnouncedStreamLimit,
}

/// A stream that is acquired, and the connections that carry it.
type ReservedStream = (PooledHttpClient, StreamSlot);

impl PoolShard {
    fn has_room(&self) -> bool {
        self.streams.load(Ordering::Relaxed) < ConnectionPool::STREAMS_MAX.min(self.limit.get())
    }

    fn slot(&self, credentials: &UpstreamCredentials) -> ReservedStream {
        let Self { connections, streams, limit } = self.clone();
        let before = streams.fetch_add(1, Ordering::Relaxed);
        (connections, StreamSlot { before, limit, streams, endpoint: credentials.endpoint })
    }
}

/// A stream on a connection, released on drop.
#[derive(Debug)]
pub(super) struct StreamSlot {
    /// The number of other streams when this one was acquired.
    before: u32,
    limit: AnnouncedStreamLimit,
    streams: Arc<AtomicU32>,
    /// The index of the connection's server among upstream's servers.
    endpoint: usize,
}

impl ConnectionPool {
    const STREAMS_MAX: u32 = 80;
    const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
    /// The idle time before a connection is pinged. As in client-go, the ping is sent after 30 s, and the connection
    /// fails 15 s later (R-CLIENT-3).
    const PING_AFTER: Duration = Duration::from_secs(30);
    const PING_TIMEOUT: Duration = Duration::from_secs(15);
    /// The read buffer of a stream over HTTP/1.1, in bytes; a response head must fit in too.
    const BUFFER_BYTES_MAX: usize = 128 << 10;
    /// The maximum number of fields in a response head over HTTP/1.1: as many as fit if each counts 32 bytes, as over
    /// HTTP/2.
    const FIELDS_MAX: usize = Self::BUFFER_BYTES_MAX / 32;

    pub(super) fn new(credentials: &UpstreamCredentials, traffic: PoolTraffic) -> Result<Self, CredentialError> {
        let pool = Self { credentials: credentials.clone(), traffic, shards: Mutex::new(Vec::new()) };
        let first = pool.shard(u32::MAX)?;
        pool.shards.lock().push(first);
        Ok(pool)
    }

    /// Sends a request; its stream counts until the response body is dropped. If its server has certainly not processed
    /// it, it is retried on another connection. So is a watch whose connection turns out to allow fewer streams.
    pub(super) async fn send(&self, outgoing: CountedRequest) -> Result<Response<UpstreamResponseBody>, UpstreamError> {
        // Bodies of callers' streams have no deadline.
        let has_deadline = self.traffic.stream_window.is_some();
        let mut retryable = RetryableRequest::new(outgoing, has_deadline).await?;
        loop {
            let (connections, slot) = self.acquire();
            let (before, limit) = (slot.before, slot.limit.clone());
            tokio::select! {
                biased;
                response = send_on((connections, slot), retryable.attempt()) => match response {
                    Err(error) if retryable.may_retry(&error).await => {}
                    response => return response,
                },
                () = limit.is_exceeded_by(before), if self.traffic.is_repeatable => {}
            }
        }
    }

    /// Acquires a stream on the connections where `server` was met, if they belong to this pool. It may be above the
    /// limit for long-lived streams, which is below the apiserver's.
    pub(super) fn acquire_on(&self, server: &UpstreamServer) -> Option<ReservedStream> {
        let shards = self.shards.lock();
        let shard = shards.iter().find(|shard| Arc::ptr_eq(&shard.streams, &server.streams))?;
        // Usually one stream above `STREAMS_MAX` is still below the server's limit.
        let has_room = shard.streams.load(Ordering::Relaxed) < shard.limit.get();
        has_room.then(|| shard.slot(&self.credentials))
    }

    fn acquire(&self) -> ReservedStream {
        let mut shards = self.shards.lock();
        if let Some(free) = shards.iter().find(|shard| shard.has_room()) {
            return free.slot(&self.credentials);
        }
        // A new connection is presumed to have the lowest limit of the existing ones.
        let assumed = shards.iter().map(|shard| shard.limit.get()).min().unwrap_or(u32::MAX);
        // With HTTP/1.1 the client opens a connection per request, so one shard suffices.
        let new = self.traffic.stream_window.and_then(|_| self.shard(assumed).ok());
        let slot = new.as_ref().unwrap_or(&shards[0]).slot(&self.credentials);
        shards.extend(new);
        slot
    }

    fn shard(&self, assumed: u32) -> Result<PoolShard, CredentialError> {
        let limit = AnnouncedStreamLimit::new(assumed);
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_keepalive(Some(Self::PING_AFTER));
        tcp.set_connect_timeout(Some(Self::CONNECT_TIMEOUT));
        let PoolTraffic { stream_window, idle_max, runtime, is_repeatable: _ } = self.traffic;
        if stream_window.is_none() {
            // Callers may not read their streams, so the kernel's receive buffer for each is bounded as well.
            tcp.set_recv_buffer_size(Some(UNREAD_BYTES as usize));
        }
        let mut tls = HttpsConnectorBuilder::new().with_tls_config(self.credentials.tls.clone()).https_or_http();
        if let Some(name) = &self.credentials.server_name {
            let name = name
                .clone()
                .try_into()
                .map_err(|_| CredentialError::Tls(format!("invalid tls-server-name {name:?}")))?;
            tls = tls.with_server_name_resolver(FixedServerNameResolver::new(name));
        }
        let memory = self.credentials.memory.as_ref();
        let idle_max = idle_max.min(memory.map_or(usize::MAX, |memory| memory.idle_max));
        let multiplexes_memory = stream_window.is_some() && memory.is_some_and(|memory| memory.multiplexes);
        let dialer = dialer(tcp, memory);
        let tls = match stream_window {
            Some(_) => tls.enable_all_versions().wrap_connector(dialer),
            None => tls.enable_http1().wrap_connector(dialer),
        };
        let connections = legacy::Client::builder(runtime)
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(60))
            .http1_max_buf_size(Self::BUFFER_BYTES_MAX)
            .http1_max_headers(Self::FIELDS_MAX)
            .http2_keep_alive_interval(Self::PING_AFTER)
            .http2_keep_alive_timeout(Self::PING_TIMEOUT)
            .http2_initial_stream_window_size(stream_window)
            // The window has room for every stream, so unread streams do not stall the others.
            .http2_initial_connection_window_size(stream_window.map(|window| window * Self::STREAMS_MAX))
            .http2_max_header_list_size(1 << 20)
            // `RetryableRequest` retries instead: it covers more cases and has a bound.
            .retry_canceled_requests(false)
            .pool_max_idle_per_host(idle_max)
            .build(connector(tls, runtime, limit.clone(), multiplexes_memory));
        Ok(PoolShard { connections, streams: Arc::new(AtomicU32::new(0)), limit })
    }
}

/// Sends a request on an acquired stream.
pub(super) async fn send_on(
    (connections, slot): ReservedStream,
    CountedRequest { request, counter, .. }: CountedRequest,
) -> Result<Response<UpstreamResponseBody>, UpstreamError> {
    counter.sent();
    let response = connections.request(request).await.map_err(|error| UpstreamError::Unreachable(error.into()))?;
    Ok(UpstreamResponseBody::new(response, slot, counter))
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A response body that holds its stream on the connection.
#[derive(Debug)]
pub struct UpstreamResponseBody {
    incoming: Incoming,
    server: UpstreamServer,
    is_from_memory: bool,
    counter: UpstreamCostCounter,
    /// The state of a compressed body that [`data`](Self::data) inflates.
    gzip: Option<Box<GzipBody>>,
    _slot: StreamSlot,
}

impl UpstreamResponseBody {
    fn new(response: Response<Incoming>, slot: StreamSlot, mut counter: UpstreamCostCounter) -> Response<Self> {
        counter
            .response_started(response.status().is_success() || response.status() == StatusCode::SWITCHING_PROTOCOLS);
        let peer = match ServerBuild::named_in(response.headers()) {
            Some(build) => Arc::new(UpstreamServerInfo::behind_a_proxy(build)),
            None => response.extensions().get::<Arc<UpstreamServerInfo>>().cloned().unwrap_or_default(),
        };
        let multiplexes = response.version() == Version::HTTP_2;
        let (streams, endpoint) = (slot.streams.clone(), slot.endpoint);
        let server = UpstreamServer { peer, streams, endpoint, multiplexes };
        let is_from_memory = response.headers().contains_key(SERVED);
        response.map(|incoming| Self { incoming, server, is_from_memory, counter, gzip: None, _slot: slot })
    }

    /// Returns a response to a feed's request, whose compressed body is inflated by [`data`](Self::data).
    pub(super) fn inflated(mut response: Response<Self>) -> Response<Self> {
        let is_gzip = |name| response.headers().get(name).is_some_and(|value| value == "gzip");
        let is_prefix = is_gzip(DELTAS);
        response.body_mut().gzip = (is_prefix || is_gzip(CONTENT_ENCODING)).then(|| Box::new(GzipBody::new(is_prefix)));
        response
    }

    /// Returns the next bytes of the body; `None` at its end. Cancel-safe.
    pub async fn data(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        loop {
            if let Some(gzip) = &mut self.gzip {
                // A few bytes may inflate to many pieces.
                tokio::task::coop::consume_budget().await;
                if let Some(piece) = gzip.next()? {
                    return Ok(Some(piece));
                }
                if let Some(rest) = gzip.plain_rest() {
                    self.gzip = None;
                    return Ok(Some(rest));
                }
            }
            let frame = self.frame().await.transpose().map_err(UpstreamError::ConnectionLost)?;
            match (frame.map(Frame::into_data), &mut self.gzip) {
                (Some(Ok(data)), Some(gzip)) => gzip.push(data),
                (Some(Ok(data)), None) => return Ok(Some(data)),
                (Some(Err(_trailers)), _) => {}
                (None, Some(gzip)) => return Ok(gzip.finish().map(|()| None)?),
                (None, None) => return Ok(None),
            }
        }
    }

    /// Whether this is the compressed part at the start of a plain body.
    pub fn is_in_compressed_part(&self) -> bool {
        self.gzip.as_ref().is_some_and(|gzip| gzip.is_prefix)
    }

    /// Returns the server that responds.
    pub fn server(&self) -> &UpstreamServer {
        &self.server
    }

    /// Whether upstream is a proxy that served the response from its cache.
    pub fn is_from_memory(&self) -> bool {
        self.is_from_memory
    }

    /// Records that the initial state of a stream is complete, so that later bytes are counted as events.
    pub fn mark_listed(&mut self) {
        self.counter.mark_listed();
    }
}

impl hyper::body::Body for UpstreamResponseBody {
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
