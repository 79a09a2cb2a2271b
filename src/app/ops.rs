use std::io;
use std::net::TcpListener as StdTcpListener;
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Version};
use http_body_util::Full;
use hyper::body::Body as _;
use tokio_util::sync::CancellationToken;

use super::StartError;
use crate::admin::{
    AdminPages, AdminResponse, HealthPages, MetricsAccess, MetricsPage, UpstreamCostReader, UpstreamCostRow,
};
use crate::auth::CrossOriginCheck;
use crate::config::ServeSettings;
use crate::net::{
    self, ConnectionLimits, ConnectionPeer, ListenAddress, Listener, ListenerTls, RequestBody, bind_tcp_beside_peers,
    bind_unix,
};
use crate::upstream::{UpstreamCost, UpstreamCostTotals, UpstreamRequestCause};
use base::{BackgroundTasks, DrainTrigger, Reloadable};

/// The listeners of metrics and health. They are bound with the client listeners, and served by a separate thread and
/// runtime.
pub(super) struct OpsListeners {
    /// The admin port, which only this machine can reach. Other machines may reach the other two.
    pub(super) admin: Option<OpsPort>,
    pub(super) healthz: Option<OpsPort>,
    pub(super) metrics: Option<OpsPort>,
}

/// A bound port and its request handler.
pub(super) struct OpsPort {
    socket: OpsSocket,
    tls: Option<ListenerTls>,
    limits: ConnectionLimits,
    handler: OpsRequestHandler,
}

enum OpsSocket {
    Tcp(StdTcpListener),
    Unix(StdUnixListener, PathBuf),
}

/// A function that answers requests on an admin, health or metrics port. It may await an authorization decision.
type OpsRequestHandler =
    Arc<dyn Fn(&ConnectionPeer, &Request<RequestBody>) -> BoxFuture<'static, AdminResponse> + Send + Sync>;

/// The running server of the admin, health and metrics ports.
pub(super) struct RunningOpsServer {
    stop: CancellationToken,
    thread: JoinHandle<()>,
}

/// The maximum number of connections per port: for kubelets, load balancers and a few scrapers. Above the limit, the
/// oldest idle connection of the source that has the most is closed.
const CONNECTIONS_MAX: usize = 128;
/// The timeout for the first request of a connection, because a probe sends its request immediately.
const FIRST_REQUEST_MAX: Duration = Duration::from_secs(10);
/// The maximum size of a request head on the health and metrics ports, in bytes. Probes and scrapers send a few fields
/// and at most a bearer token, far less than this. The admin address has the limit of client listeners, because a
/// browser sends it the cookies of all ports of this machine.
const PUBLIC_HEADER_BYTES_MAX: u32 = 16 << 10;
const STREAMS_MAX: u32 = 16;

/// Returns a reader of the ledger for the admin pages, which do not depend on the upstream module.
pub(super) fn cost_reader(costs: UpstreamCostTotals) -> UpstreamCostReader {
    let row = |(cause, cost): (UpstreamRequestCause, UpstreamCost)| UpstreamCostRow {
        cause: cause.as_str(),
        requests: cost.requests,
        streams_opened: cost.streams_opened,
        streams_open: cost.streams_open,
        body_bytes: cost.body_bytes,
    };
    Arc::new(move || costs.all().map(row).collect())
}

impl OpsPort {
    fn bind(
        config: &ServeSettings,
        address: &ListenAddress,
        tls: Option<ListenerTls>,
        header_bytes_max: u32,
        handler: OpsRequestHandler,
    ) -> Result<Self, StartError> {
        let bound = match address {
            ListenAddress::Tcp(tcp) if config.reuse_port => bind_tcp_beside_peers(*tcp).map(OpsSocket::Tcp),
            ListenAddress::Tcp(tcp) => StdTcpListener::bind(tcp)
                .and_then(|listener| listener.set_nonblocking(true).map(|()| OpsSocket::Tcp(listener))),
            ListenAddress::Unix(path) => bind_unix(path).map(|listener| OpsSocket::Unix(listener, path.clone())),
        };
        let socket = bound.map_err(|source| StartError::Bind { address: address.clone(), source })?;
        let limits = ConnectionLimits {
            http2_codec: config.connections.http2_codec,
            connections_max: CONNECTIONS_MAX,
            first_request_max: FIRST_REQUEST_MAX,
            streams_max: STREAMS_MAX,
            header_bytes_max,
            ..ConnectionLimits::default()
        };
        Ok(Self { socket, tls, limits, handler })
    }

    pub(super) fn address(&self) -> String {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        match &self.socket {
            OpsSocket::Tcp(listener) => {
                listener.local_addr().map_or_else(|error| error.to_string(), |address| format!("{scheme}://{address}"))
            }
            OpsSocket::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }
}

impl OpsListeners {
    /// Binds the addresses of the admin, health and metrics ports. `tls` is for metrics.
    pub(super) fn bind(
        config: &ServeSettings,
        pages: Option<AdminPages>,
        health: HealthPages,
        (readers, tls): (MetricsAccess, Option<ListenerTls>),
        browsers: &Reloadable<CrossOriginCheck>,
    ) -> Result<Self, StartError> {
        let admin = config.admin.as_ref().zip(pages.clone()).map(|(address, pages)| {
            // The permissions of a unix socket decide which processes can connect.
            let browsers = matches!(address, ListenAddress::Tcp(_)).then(|| browsers.clone());
            let handler = move |_: &ConnectionPeer, request: &Request<RequestBody>| {
                pages.handle_private(browsers.as_ref().map(Reloadable::get).as_deref(), request)
            };
            OpsPort::bind(config, address, None, ConnectionLimits::default().header_bytes_max, Arc::new(handler))
        });
        let public = |address, tls, handler| {
            OpsPort::bind(config, &ListenAddress::Tcp(address), tls, PUBLIC_HEADER_BYTES_MAX, handler)
        };
        let healthz = config
            .healthz
            .map(|address| public(address, None, Arc::new(move |_, request| ready(health.answer(request)).boxed())));
        let metrics = config.metrics.zip(pages).map(|(address, pages)| {
            let page = MetricsPage::new(pages, readers);
            public(address, tls, Arc::new(move |peer, request| page.answer(peer, request)))
        });
        Ok(Self { admin: admin.transpose()?, healthz: healthz.transpose()?, metrics: metrics.transpose()? })
    }

    /// Starts the server, if there is anything to serve. When this returns, its runtime has opened its descriptors, so
    /// later connections cannot exhaust them.
    pub(super) fn start(self) -> io::Result<Option<RunningOpsServer>> {
        if self.admin.is_none() && self.healthz.is_none() && self.metrics.is_none() {
            return Ok(None);
        }
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_name("ops").build()?;
        let thread = std::thread::spawn(move || runtime.block_on(self.serve(stopped)));
        Ok(Some(RunningOpsServer { stop, thread }))
    }

    async fn serve(self, stop: CancellationToken) {
        let tasks = BackgroundTasks::new();
        // These listeners stop last and without a drain, because they report the drain.
        let (_never, drain) = DrainTrigger::new();
        for OpsPort { socket, tls, limits, handler } in [self.healthz, self.metrics, self.admin].into_iter().flatten() {
            let listener = match socket {
                OpsSocket::Tcp(listener) => Listener::of_bound(listener),
                OpsSocket::Unix(listener, path) => Listener::of_bound_unix(listener, &path),
            };
            match listener {
                Ok(listener) => {
                    let handle = move |peer: ConnectionPeer, request: Request<RequestBody>| {
                        let without_body = request.method() == Method::HEAD && request.version() == Version::HTTP_2;
                        let response = handler(&peer, &request);
                        async move { if without_body { of_head(response.await) } else { response.await } }
                    };
                    let serving = net::serve(listener, tls, limits, tasks.clone(), drain.clone(), handle);
                    tasks.spawn("operators' port", serving);
                }
                Err(error) => {
                    tracing::error!(%error, "an admin, health or metrics port is not served: cannot use its socket");
                }
            }
        }
        stop.cancelled().await;
    }
}

/// Returns the response to HEAD over HTTP/2, which is sent as it is: without the body, and with its length. Over
/// HTTP/1, hyper omits the body.
fn of_head(response: AdminResponse) -> AdminResponse {
    let (mut head, body) = response.into_parts();
    head.headers.insert(CONTENT_LENGTH, body.size_hint().lower().into());
    AdminResponse::from_parts(head, Full::default())
}

impl RunningOpsServer {
    pub(super) fn stop(self) {
        self.stop.cancel();
        if self.thread.join().is_err() {
            tracing::error!("admin thread panicked; admin, health and metrics ports are closed");
        }
    }
}
