use std::io;
use std::net::{SocketAddr, TcpListener as StdTcpListener};
use std::os::unix::net::UnixListener as StdUnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Version};
use http_body_util::Full;
use hyper::body::Body as _;
use tokio_util::sync::CancellationToken;

use crate::admin::{AdminPages, AdminResponse, CostReader, CostRow};
use crate::auth::BrowserGuard;
use crate::net::{
    self, Address, ConnectionLimits, Http2Codec, Listener, Peer, RequestBody, Tls, bind_tcp_beside_peers, bind_unix,
};
use crate::upstream::{Cause, Cost, CostLedger};
use base::{DrainTrigger, Reloadable, Tasks};

/// The listeners of metrics and health. They are bound with the client listeners, and served by a separate thread and
/// runtime.
pub(super) struct OpsListeners {
    pub(super) admin: Option<Admin>,
    pub(super) healthz: Option<PublicPort>,
    pub(super) metrics: Option<PublicPort>,
    pub(super) http2_codec: Http2Codec,
}

/// A port that other machines may reach, and its request handler.
pub(super) struct PublicPort {
    listener: StdTcpListener,
    tls: Option<Tls>,
    answers: RequestHandler,
}

/// The admin listener, which only this machine can reach.
pub(super) struct Admin {
    listener: AdminListener,
    pages: AdminPages,
    browsers: Reloadable<BrowserGuard>,
}

/// The parts needed to serve one port.
type PortParts = (Listener, Option<Tls>, ConnectionLimits, RequestHandler);

enum AdminListener {
    Tcp(StdTcpListener),
    Unix(StdUnixListener, PathBuf),
}

/// The running server of the admin, health and metrics ports.
pub(super) struct RunningOps {
    stop: CancellationToken,
    thread: JoinHandle<()>,
}

/// The maximum number of connections per port: for kubelets, load balancers and a few scrapers. Above the limit, the
/// oldest idle connection of the source that has the most is closed.
const CONNECTIONS_MAX: usize = 128;
/// The timeout for the first request of a connection, because a probe sends its request immediately.
const FIRST_REQUEST_MAX: Duration = Duration::from_secs(10);
/// The header limit of the public ports. The admin address has a larger one, because a browser sends it the cookies of
/// all ports of this machine.
const PUBLIC_HEADER_BYTES_MAX: u32 = 16 << 10;
const STREAMS_MAX: u32 = 16;

/// Returns a reader of the ledger for the admin pages, which do not depend on the upstream module.
pub(super) fn cost_reader(costs: CostLedger) -> CostReader {
    let row = |(cause, cost): (Cause, Cost)| CostRow {
        cause: cause.as_str(),
        requests: cost.requests,
        streams_opened: cost.streams_opened,
        streams_open: cost.streams_open,
        body_bytes: cost.body_bytes,
    };
    Arc::new(move || costs.all().map(row).collect())
}

impl Admin {
    pub(super) fn bind(
        address: &Address,
        reuse_port: bool,
        pages: AdminPages,
        browsers: Reloadable<BrowserGuard>,
    ) -> io::Result<Self> {
        let listener = match address {
            Address::Tcp(tcp) => AdminListener::Tcp(bind_tcp(*tcp, reuse_port)?),
            Address::Unix(path) => AdminListener::Unix(bind_unix(path)?, path.clone()),
        };
        Ok(Self { listener, pages, browsers })
    }

    pub(super) fn address(&self) -> String {
        match &self.listener {
            AdminListener::Tcp(listener) => url("http", listener),
            AdminListener::Unix(_, path) => format!("unix:{}", path.display()),
        }
    }

    fn listening(self, http2_codec: Http2Codec) -> io::Result<PortParts> {
        let Self { listener, pages, browsers } = self;
        Ok(match listener {
            AdminListener::Tcp(listener) => {
                let answers = move |_: &Peer, request: &_| pages.answer_all(Some(&browsers.get()), request);
                (Listener::of_bound(listener)?, None, limits(http2_codec), Arc::new(answers))
            }
            AdminListener::Unix(listener, path) => {
                let answers = move |_: &Peer, request: &_| pages.answer_all(None, request);
                (Listener::of_bound_unix(listener, &path)?, None, limits(http2_codec), Arc::new(answers))
            }
        })
    }
}

impl PublicPort {
    pub(super) fn bind(
        address: SocketAddr,
        reuse_port: bool,
        tls: Option<Tls>,
        answers: RequestHandler,
    ) -> io::Result<Self> {
        Ok(Self { listener: bind_tcp(address, reuse_port)?, tls, answers })
    }

    pub(super) fn address(&self) -> String {
        url(if self.tls.is_some() { "https" } else { "http" }, &self.listener)
    }

    fn listening(self, http2_codec: Http2Codec) -> io::Result<PortParts> {
        let limits = ConnectionLimits { header_bytes_max: PUBLIC_HEADER_BYTES_MAX, ..limits(http2_codec) };
        Ok((Listener::of_bound(self.listener)?, self.tls, limits, self.answers))
    }
}

fn bind_tcp(address: SocketAddr, reuse_port: bool) -> io::Result<StdTcpListener> {
    if reuse_port {
        return bind_tcp_beside_peers(address);
    }
    let listener = StdTcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

fn url(scheme: &str, listener: &StdTcpListener) -> String {
    listener.local_addr().map_or_else(|error| error.to_string(), |address| format!("{scheme}://{address}"))
}

impl OpsListeners {
    /// Starts the server, if there is anything to serve. When this returns, its runtime has opened its descriptors, so
    /// later connections cannot exhaust them.
    pub(super) fn start(self) -> io::Result<Option<RunningOps>> {
        if self.admin.is_none() && self.healthz.is_none() && self.metrics.is_none() {
            return Ok(None);
        }
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_name("ops").build()?;
        let thread = std::thread::spawn(move || runtime.block_on(self.serve(stopped)));
        Ok(Some(RunningOps { stop, thread }))
    }

    async fn serve(self, stop: CancellationToken) {
        let Self { admin, healthz, metrics, http2_codec } = self;
        let tasks = Tasks::new();
        // These listeners stop last and without a drain, because they report the drain.
        let (_never, drain) = DrainTrigger::new();
        let public = [healthz, metrics].into_iter().flatten().map(|port| port.listening(http2_codec));
        for listening in public.chain(admin.map(|admin| admin.listening(http2_codec))) {
            match listening {
                Ok((listener, tls, limits, answers)) => {
                    let handle = move |peer: Peer, request: Request<RequestBody>| {
                        let without_body = request.method() == Method::HEAD && request.version() == Version::HTTP_2;
                        let answered = answers(&peer, &request);
                        async move { if without_body { of_head(answered.await) } else { answered.await } }
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
fn of_head(answer: AdminResponse) -> AdminResponse {
    let (mut head, body) = answer.into_parts();
    head.headers.insert(CONTENT_LENGTH, body.size_hint().lower().into());
    AdminResponse::from_parts(head, Full::default())
}

fn limits(http2_codec: Http2Codec) -> ConnectionLimits {
    ConnectionLimits {
        http2_codec,
        connections_max: CONNECTIONS_MAX,
        first_request_max: FIRST_REQUEST_MAX,
        streams_max: STREAMS_MAX,
        ..ConnectionLimits::default()
    }
}

/// A function that answers requests on an admin, health or metrics port. It may await an authorization decision.
pub(super) type RequestHandler =
    Arc<dyn Fn(&Peer, &Request<RequestBody>) -> BoxFuture<'static, AdminResponse> + Send + Sync>;

impl RunningOps {
    pub(super) fn stop(self) {
        self.stop.cancel();
        if self.thread.join().is_err() {
            tracing::error!("admin thread panicked; admin, health and metrics ports are closed");
        }
    }
}
