//! The admin, health and metrics ports, and who may read their pages. `admin` has the pages.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, ready};
use http::header::CONTENT_LENGTH;
use http::{Method, Request, Version};
use http_body_util::Full;
use hyper::body::Body as _;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio_util::sync::CancellationToken;

use super::StartError;
use super::reload::ReloadableSettings;
use crate::admin::{
    AdminPages, AdminResponse, ClientActivityPages, HealthPages, MetricsAccess, MetricsPage, PageAccessCheck,
    UpstreamCostReader, UpstreamCostRow,
};
use crate::auth::{Authorizer, ClientConnectionInfo, CrossOriginCheck};
use crate::config::ServeSettings;
use crate::net::{self, ConnectionLimits, ConnectionPeer, ListenAddress, Listener, ListenerTls, RequestBody};
use crate::serve::{ActiveWatches, PageAuthorizer};
use crate::upstream::{UpstreamCost, UpstreamCostTotals, UpstreamRequestCause};
use base::{BackgroundTasks, DrainTrigger, Reloadable};

/// The listeners of metrics and health. They are bound with the client listeners, and served by a separate thread and
/// runtime.
pub(super) struct OpsListeners {
    /// The admin port, which only this machine can reach. Other machines may reach the other two.
    pub(super) admin: Option<OpsPort>,
    pub(super) healthz: Option<OpsPort>,
    pub(super) metrics: Option<OpsPort>,
    runtime: OpsRuntime,
}

/// The runtime of the ports, until the server starts. A task of another runtime can drop it, unlike tokio's own.
struct OpsRuntime(Option<Runtime>);

impl Drop for OpsRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}

/// A bound port and its request handler.
pub(super) struct OpsPort {
    listener: Listener,
    tls: Option<ListenerTls>,
    limits: ConnectionLimits,
    handler: OpsRequestHandler,
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
const OPS_HEADER_BYTES_MAX: u32 = 16 << 10;
const STREAMS_MAX: u32 = 16;

/// Returns a reader of the ledger for the admin pages, which do not depend on the upstream module.
pub(super) fn cost_reader(costs: UpstreamCostTotals) -> UpstreamCostReader {
    let row = |(cause, cost): (UpstreamRequestCause, UpstreamCost)| UpstreamCostRow {
        cause: cause.as_str(),
        requests: cost.requests,
        streams_opened: cost.streams_opened,
        streams_open: cost.streams_open,
        body_bytes: cost.body_bytes,
        answered_here: cost.answered_here,
    };
    Arc::new(move || costs.all().map(row).collect())
}

impl OpsPort {
    fn new(
        config: &ServeSettings,
        listener: Listener,
        tls: Option<ListenerTls>,
        header_bytes_max: u32,
        handler: OpsRequestHandler,
    ) -> Self {
        let limits = ConnectionLimits {
            http2_codec: config.connections.http2_codec,
            connections_max: CONNECTIONS_MAX,
            first_request_max: FIRST_REQUEST_MAX,
            streams_max: STREAMS_MAX,
            header_bytes_max,
            ..ConnectionLimits::default()
        };
        Self { listener, tls, limits, handler }
    }

    pub(super) fn address(&self) -> String {
        self.listener.url(self.tls.is_some()).unwrap_or_else(|error| error.to_string())
    }
}

impl OpsListeners {
    /// Binds the addresses of the admin, health and metrics ports. `tls` is for metrics. Their runtime opens its
    /// descriptors here, so that later connections cannot exhaust them.
    pub(super) fn bind(
        config: &ServeSettings,
        pages: Option<AdminPages>,
        health: HealthPages,
        (readers, tls): (MetricsAccess, Option<ListenerTls>),
        browsers: &Reloadable<CrossOriginCheck>,
    ) -> Result<Self, StartError> {
        let has_port = config.admin.is_some() || config.healthz.is_some() || config.metrics.is_some();
        let runtime = has_port.then(|| Builder::new_current_thread().enable_all().thread_name("ops").build());
        let runtime = OpsRuntime(runtime.transpose().map_err(StartError::Threads)?);
        let entered = runtime.0.as_ref().map(Runtime::enter);
        let admin = config.admin.as_ref().zip(pages.clone()).map(|(address, pages)| {
            // The permissions of a unix socket decide which processes can connect.
            let browsers = matches!(address, ListenAddress::Tcp(_)).then(|| browsers.clone());
            let handler = move |peer: &ConnectionPeer, request: &Request<RequestBody>| {
                pages.handle_private(browsers.as_ref().map(Reloadable::get).as_deref(), peer, request)
            };
            // With `reusePort`, an operator asks the successor's address whether the successor is ready.
            let (listener, limits) = (super::bind(address, false)?, ConnectionLimits::default());
            Ok::<_, StartError>(OpsPort::new(config, listener, None, limits.header_bytes_max, Arc::new(handler)))
        });
        let public = |address, tls, handler| {
            let listener = super::bind(&ListenAddress::Tcp(address), config.reuse_port)?;
            Ok::<_, StartError>(OpsPort::new(config, listener, tls, OPS_HEADER_BYTES_MAX, handler))
        };
        let healthz = config
            .healthz
            .map(|address| public(address, None, Arc::new(move |_, request| ready(health.answer(request)).boxed())));
        let metrics = config.metrics.zip(pages).map(|(address, pages)| {
            let page = MetricsPage::new(pages, readers);
            public(address, tls, Arc::new(move |peer, request| page.answer(peer, request)))
        });
        let (admin, healthz, metrics) = (admin.transpose()?, healthz.transpose()?, metrics.transpose()?);
        drop(entered);
        Ok(Self { admin, healthz, metrics, runtime })
    }

    /// Starts the server, if there is anything to serve.
    pub(super) fn start(mut self) -> Option<RunningOpsServer> {
        let runtime = self.runtime.0.take()?;
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || runtime.block_on(self.serve(stopped)));
        Some(RunningOpsServer { stop, thread })
    }

    async fn serve(self, stop: CancellationToken) {
        let tasks = BackgroundTasks::new();
        // These listeners stop last and without a drain, because they report the drain.
        let (_never, drain) = DrainTrigger::new();
        for port in [self.healthz, self.metrics, self.admin].into_iter().flatten() {
            let OpsPort { listener, tls, limits, handler } = port;
            let handle = move |peer: ConnectionPeer, request: Request<RequestBody>| {
                let without_body = request.method() == Method::HEAD && request.version() == Version::HTTP_2;
                let response = handler(&peer, &request);
                async move { if without_body { of_head(response.await) } else { response.await } }
            };
            let serving = net::serve(listener, tls, limits, tasks.clone(), drain.clone(), handle);
            tasks.spawn("operators' port", serving);
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

/// Returns the callers that may read metrics: those that upstream allows, or all if there is no `authorizer`.
pub(super) fn metrics_readers(authorizer: Option<Authorizer>, settings: &ReloadableSettings) -> MetricsAccess {
    authorizer.map_or_else(
        || MetricsAccess::Unauthenticated(settings.ops_browsers.clone()),
        |authorizer| MetricsAccess::Authorized(access_check(authorizer, settings)),
    )
}

/// Returns the debug pages, for senders that upstream allows to `get` their paths.
pub(super) fn private_pages(
    authorizer: Authorizer,
    settings: &ReloadableSettings,
    active_watches: ActiveWatches,
) -> ClientActivityPages {
    ClientActivityPages {
        page: Arc::new(move |name, query| active_watches.page(name, query)),
        access_check: (!authorizer.is_open()).then(|| access_check(authorizer, settings)),
    }
}

/// Decides on the current runtime, which must own the connections to upstream.
fn access_check(authorizer: Authorizer, settings: &ReloadableSettings) -> PageAccessCheck {
    let (authorizer, runtime) = (PageAuthorizer::new(authorizer, settings.browsers.clone()), Handle::current());
    Arc::new(move |peer, path, headers| {
        let mut sender = ClientConnectionInfo::from_peer(peer);
        if net::is_loopback(sender.address) {
            // All processes of this machine share the limit of one source.
            sender.address = Ipv4Addr::LOCALHOST.into();
        }
        let decision = runtime.spawn(authorizer.clone().admit(sender, path.to_owned(), headers.clone()));
        async move { decision.await.ok() }.boxed()
    })
}
