//! Wires the other modules together. It is the only module that may import all of them.
//!
//! `config::ServeSettings` → [`BoundApp::bind`] → [`BoundApp`] (addresses known, nothing accepted) → [`BoundApp::run`]
//! until shutdown.
//!
//! Long-running functions return boxed futures, so that they are compiled once, with this crate. An `async fn`, and the
//! whole proxy with it, would be compiled again in each binary that calls it.

pub mod check;
mod discovery;
pub mod health;
mod identity;
mod metrics;
mod ops;
mod policy;
mod preload;
mod process_limits;
mod refused_read_retrier;
mod reload;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use self::identity::ListenerCertificates;
pub use self::metrics::log_panics;
pub use self::process_limits::{disable_core_dumps, raise_open_files, run_plugin};
use self::refused_read_retrier::RefusedReadRetrier;
use self::reload::ReloadableSettings;
pub use self::reload::{ConfigReloadSources, SetLogLevelFn};
use crate::admin::{self, AdminPages, HealthPages};
use crate::auth::{self, AuthMode, Authorizer};
use crate::cache;
use crate::config::ServeSettings;
use crate::feeds::FeedRegistry;
pub use crate::net::InheritedSockets;
use crate::net::{self, ListenAddress, Listener, ListenerTls, TlsError};
use crate::reflect::{self, ReflectorSupervisor};
use crate::serve::{self, ActiveWatches, AuditLog, ConcurrencyLimits, HttpFrontend, ServeComponents, SlowReaderReaper};
use crate::upstream::{
    self, CredentialError, DocumentRefusalBackoff, ResourceCatalog, UpstreamClient, UpstreamCostTotals,
    UpstreamEndpoints,
};
use crate::wire;
use base::{
    self, BackgroundTasks, CoreRuntimes, DrainTrigger, DrainWatch, ReadinessTracker, Reloadable, RuntimeHeartbeat,
};

/// The application, listening but not yet accepting connections.
pub struct BoundApp {
    listeners: TlsListeners,
    ops: ops::OpsListeners,
    frontend: Arc<HttpFrontend>,
    authorizer: Authorizer,
    retrier: RefusedReadRetrier,
    tasks: BackgroundTasks,
    drain: (DrainTrigger, DrainWatch),
    ready: ReadinessTracker,
    /// The tasks that write audit records. They stop after all other tasks.
    audit_tasks: BackgroundTasks,
    settings: ReloadableSettings,
    reload_sources: Option<ConfigReloadSources>,
    heartbeat: RuntimeHeartbeat,
}

/// The reason that the proxy cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Credentials(#[from] CredentialError),
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] TlsError),
    #[error("cannot listen on {address}: {source}")]
    Bind { address: ListenAddress, source: io::Error },
    #[error("socket activation passed {0}, which is not in `listen`; add it there or remove it from the socket unit")]
    Passed(ListenAddress),
    #[error("cannot write {path}: {source}")]
    Write { path: std::path::PathBuf, source: io::Error },
    #[error("cannot open the audit log: {0}")]
    Audit(io::Error),
    #[error("cannot start a thread or its runtime: {0}")]
    Threads(io::Error),
    #[error("cannot use the certificate authorities: {0}")]
    Authorities(String),
    #[error("cannot start the metrics recorder: {0}")]
    Metrics(String),
    #[error("{0}")]
    Configuration(String),
}

/// A required task that panicked. The proxy then ends without a shutdown request.
#[derive(Debug, thiserror::Error)]
#[error("the required task {0:?} panicked")]
pub struct TaskPanicError(&'static str);

impl BoundApp {
    /// Reads the credentials, binds every address and wires the parts. No connection is accepted or opened yet.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn bind(config: ServeSettings) -> BoxFuture<'static, Result<Self, StartError>> {
        Self::bind_with(config, InheritedSockets::default())
    }

    /// Like [`bind`](Self::bind), but uses the inherited sockets for their addresses instead of binding new ones.
    ///
    /// # Errors
    /// See [`StartError`].
    #[inline(never)]
    pub fn bind_with(
        config: ServeSettings,
        inherited: InheritedSockets,
    ) -> BoxFuture<'static, Result<Self, StartError>> {
        // Sockets are registered with the current runtime, so they are bound when the future is polled, not before.
        Box::pin(async move { Self::bind_all(&config, inherited) })
    }

    fn bind_all(config: &ServeSettings, inherited: InheritedSockets) -> Result<Self, StartError> {
        log_memory_budget(config);
        // The recorder is installed first, because parts look up their counters when they are created. Without an
        // address that serves metrics, there is no recorder.
        let exporter =
            (config.admin.is_some() || config.metrics.is_some()).then(|| admin::exporter(describe)).transpose();
        let exporter = exporter.map_err(StartError::Metrics)?;
        let costs = UpstreamCostTotals::default();
        let endpoints = UpstreamEndpoints::new(config.endpoints.clone());
        let tasks = BackgroundTasks::with_cores(CoreRuntimes::matching_runtime().map_err(StartError::Threads)?);
        let client = UpstreamClient::connect_to(&config.upstream, endpoints, costs.clone(), tasks.clone())?;
        let certificates = ListenerCertificates::of(config)?;
        let listeners = listeners(config, inherited, certificates.listeners.as_ref())?;
        let ready = ReadinessTracker::new();
        let (feeds, demands) = FeedRegistry::new(config.cache.clone());
        let (settings, active_watches, heartbeat) =
            (ReloadableSettings::new(config), ActiveWatches::default(), RuntimeHeartbeat::default());
        let (authorizer, scrapes) = identity::authorizers(config, &client, &tasks)?;
        let pages = exporter.map(|exporter| AdminPages {
            ready: ready.clone(),
            heartbeat: heartbeat.clone(),
            feeds: feeds.clone(),
            costs: ops::cost_reader(costs),
            config: settings.reader(),
            private: ops::private_pages(authorizer.clone(), &settings, active_watches.clone()),
            exporter,
        });
        let health = HealthPages { ready: ready.clone(), heartbeat: heartbeat.clone() };
        let metrics = (ops::metrics_readers(scrapes, &settings), certificates.of_metrics(config));
        let ops = ops::OpsListeners::bind(config, pages, health, metrics, &settings.ops_browsers)?;
        certificates.watch(config.file_check_interval, &tasks);
        spawn_upstream_tasks(config, &client, &tasks);
        let (drain, retrier) = (DrainTrigger::new(), retrier(config, &client, &feeds));
        tasks.spawn_critical("permissions", retrier.clone().run());
        let supervisor =
            ReflectorSupervisor::new(client.clone(), feeds.clone(), settings.reflect.clone(), tasks.clone());
        tasks.spawn_critical("supervisor", supervisor.run(demands));
        let forwarder = identity::forwarder(config, &client, &tasks)?;
        let (audit, audit_tasks) = audit(config)?;
        let frontend = HttpFrontend::new(ServeComponents {
            client,
            forwarder,
            catalog: retrier.catalog.clone(),
            feeds,
            authorizer: authorizer.clone(),
            browsers: settings.browsers.clone(),
            concurrency: ConcurrencyLimits::new(&config.serve.limits),
            slow_readers: SlowReaderReaper::new(config.serve.unread, config.serve.body_max),
            config: Reloadable::new(config.serve.clone()),
            audit,
            active_watches,
            tasks: tasks.clone(),
            drain: drain.1.clone(),
            ready: ready.clone(),
        });
        Ok(Self {
            listeners,
            ops,
            frontend: Arc::new(frontend),
            authorizer,
            retrier,
            tasks,
            drain,
            ready,
            audit_tasks,
            settings,
            reload_sources: None,
            heartbeat,
        })
    }

    /// Reloads the configuration file whenever it changes, once the application runs.
    ///
    /// # Errors
    /// The file has changed since it was read, and its new content is invalid.
    pub fn reload(&mut self, reload_sources: ConfigReloadSources) -> Result<(), StartError> {
        self.settings.load(&reload_sources.arguments, &self.tasks)?;
        self.reload_sources = Some(reload_sources);
        Ok(())
    }

    /// Returns every address that clients can use, as a URL or `unix:PATH`.
    pub fn addresses(&self) -> Vec<String> {
        self.listeners.iter().filter_map(|(_, listener, tls)| listener.url(tls.is_some()).ok()).collect()
    }

    pub fn admin_address(&self) -> Option<String> {
        self.ops.admin.as_ref().map(ops::OpsPort::address)
    }

    pub fn healthz_address(&self) -> Option<String> {
        self.ops.healthz.as_ref().map(ops::OpsPort::address)
    }

    pub fn metrics_address(&self) -> Option<String> {
        self.ops.metrics.as_ref().map(ops::OpsPort::address)
    }

    pub fn feeds(&self) -> &FeedRegistry {
        &self.retrier.feeds
    }

    /// Serves until `shutdown` completes, then drains. In a drain, readiness fails first, and the open watches end
    /// spread over the drain time. Then no more connections are accepted, and the remaining ones are aborted. If
    /// `abort` completes during the drain, all connections are aborted immediately.
    ///
    /// # Errors
    /// A task panicked without which the proxy would serve stale data. The proxy has drained.
    pub fn run<'a>(
        self,
        shutdown: impl Future<Output = ()> + Send + 'a,
        abort: impl Future<Output = ()> + Send + 'a,
    ) -> BoxFuture<'a, Result<(), TaskPanicError>> {
        self.run_boxed(Box::pin(shutdown), Box::pin(abort))
    }

    #[inline(never)]
    fn run_boxed<'a>(
        self,
        shutdown: BoxFuture<'a, ()>,
        abort: BoxFuture<'a, ()>,
    ) -> BoxFuture<'a, Result<(), TaskPanicError>> {
        Box::pin(self.run_until(shutdown, abort))
    }

    async fn run_until(self, mut shutdown: BoxFuture<'_, ()>, abort: BoxFuture<'_, ()>) -> Result<(), TaskPanicError> {
        let (settings, tasks, ready, retrier) = (self.settings, self.tasks, self.ready, self.retrier);
        let starting = ready.register("discovery");
        // The process stays unready while its identity may not create the reviews that every request needs.
        let authorizer = self.authorizer;
        if let Some(watching) = authorizer.track_readiness(&ready) {
            tasks.spawn_critical("review permissions", watching);
        }
        let config = settings.running.get();
        let (retry_after, linger) = (config.cache.refused.first, config.reflect.idle_max.min(policy::LINGER_MAX));
        let (running, catalog, feeds) = (settings.running.clone(), retrier.catalog.clone(), retrier.feeds.clone());
        let preload =
            preload::FeedPreload { running, ready: ready.clone(), catalog, feeds: feeds.clone(), tasks: tasks.clone() };
        let discovery = discovery::DiscoveryLoop { retrier, tasks: tasks.clone(), retry_after, mode: mode(&config) };
        if let Some(reload_sources) = self.reload_sources {
            let reloading = settings.clone().run(reload_sources, Arc::downgrade(&self.frontend), feeds);
            tasks.spawn_critical("configuration", reloading);
        }
        tasks.spawn_critical("discovery", async move {
            discovery.wait_for_discovery(&starting).await;
            preload.start();
            if let Some(leases) = authorizer.leases() {
                policy::start_listeners(&discovery.retrier, &authorizer, leases, &discovery.tasks, retry_after, linger);
            }
            discovery.run(starting).await;
        });
        // Metrics and health start before clients can connect: their connections may take all remaining descriptors.
        let mut ops = self.ops.start();
        let (trigger, watch) = self.drain;
        for (address, listener, tls) in self.listeners {
            let frontend = self.frontend.clone();
            let handle = move |peer, request| frontend.clone().handle(peer, &address, request);
            let listener_task =
                net::serve(listener, tls, settings.connections.clone(), tasks.clone(), watch.clone(), handle);
            tasks.spawn_critical("listener", listener_task);
        }
        drop(watch);
        drop(self.frontend);
        tasks.spawn_on_each("pulse", || self.heartbeat.beat().map(|never| match never {}));
        let ended = until_stopped(&mut shutdown, &tasks, &self.audit_tasks).await;
        let config = settings.running.get();
        let stopping = ready.register("shutting down");
        tracing::info!(grace = ?config.drain, "draining open connections");
        if config.reuse_port {
            // The successor listens on the same port. From now on, it must receive all probes and scrapes.
            if let Some(ops) = ops.take() {
                ops.stop();
            }
        }
        let aborted = async {
            // The drain after a panic began without the request.
            if ended.is_err() {
                shutdown.await;
            }
            abort.await;
        };
        let in_time = tokio::select! {
            biased;
            in_time = trigger.drain(config.drain) => in_time,
            () = aborted => false,
        };
        tracing::info!(in_time, "drain finished");
        tasks.join().await;
        self.audit_tasks.finish(AUDIT_WRITE_MAX).await;
        drop(stopping);
        if let Some(ops) = ops {
            ops.stop();
        }
        ended
    }
}

/// Returns when the application must end: on a shutdown request, or when a required task was lost.
async fn until_stopped(
    shutdown: &mut BoxFuture<'_, ()>,
    tasks: &BackgroundTasks,
    audit_tasks: &BackgroundTasks,
) -> Result<(), TaskPanicError> {
    let lost = tokio::select! {
        () = shutdown => return Ok(()),
        name = tasks.critical_panic() => TaskPanicError(name),
        name = audit_tasks.critical_panic() => TaskPanicError(name),
    };
    tracing::error!(error = %lost, "required task panicked; exiting so that the process is restarted");
    Err(lost)
}

/// Starts the tasks that reload the upstream credentials, and that check for a better upstream server.
fn spawn_upstream_tasks(config: &ServeSettings, client: &UpstreamClient, tasks: &BackgroundTasks) {
    tracing::info!(version = VERSION, mode = mode(config), upstream = client.server_url(), "proxy starting");
    tasks.spawn_critical("upstream credentials", client.clone().reload_credentials(config.file_check_interval));
    if client.endpoints().has_several() {
        tasks.spawn_critical("upstream servers", client.clone().select_servers());
    }
}

type TlsListeners = Vec<(Arc<ListenAddress>, Listener, Option<ListenerTls>)>;

fn listeners(
    config: &ServeSettings,
    mut inherited: InheritedSockets,
    tls: Option<&ListenerTls>,
) -> Result<TlsListeners, StartError> {
    let mut listeners = Vec::new();
    for address in &config.listen {
        let passed = inherited.take(address).map_err(|source| StartError::Bind { address: address.clone(), source })?;
        let listener = passed.map_or_else(|| bind(address, config.reuse_port), Ok)?;
        // A unix socket needs no TLS, because its file permissions decide which processes can connect.
        let tls = tls.filter(|_| matches!(address, ListenAddress::Tcp(_))).cloned();
        listeners.push((Arc::new(address.clone()), listener, tls));
    }
    match inherited.left() {
        Some(address) => Err(StartError::Passed(address.clone())),
        None => Ok(listeners),
    }
}

/// Binds an address on the runtime of the caller. A successor can bind it too if it is shared.
fn bind(address: &ListenAddress, is_shared: bool) -> Result<Listener, StartError> {
    let bound = if is_shared { Listener::bind_shared(address) } else { Listener::bind(address) };
    bound.map_err(|source| StartError::Bind { address: address.clone(), source })
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Returns the authentication mode and the served node, for the log.
fn mode(config: &ServeSettings) -> String {
    let auth = match config.auth {
        AuthMode::None => "auth none",
        AuthMode::Delegated => "auth delegated",
    };
    config.serve.coverage.node.as_ref().map_or_else(|| auth.to_owned(), |node| format!("{auth}, node {node}"))
}

/// The timeout for writing the last audit records.
const AUDIT_WRITE_MAX: Duration = Duration::from_secs(5);

/// Returns the retrier of everything that upstream may have refused because of the proxy's own permissions.
fn retrier(config: &ServeSettings, client: &UpstreamClient, feeds: &FeedRegistry) -> RefusedReadRetrier {
    let catalog = ResourceCatalog::new(client.clone(), refusal_backoff(config));
    RefusedReadRetrier {
        client: client.clone(),
        catalog,
        feeds: feeds.clone(),
        on_node: config.serve.coverage.node.is_some(),
    }
}

/// Returns the delays before requests that upstream refused are retried.
fn refusal_backoff(config: &ServeSettings) -> DocumentRefusalBackoff {
    let waits = config.cache.refused;
    if config.serve.coverage.node.is_some() {
        DocumentRefusalBackoff::on_node(waits)
    } else {
        DocumentRefusalBackoff::central(waits)
    }
}

/// Opens the audit log. Returns it with the owner of its writer task, which ends when all senders are dropped.
fn audit(config: &ServeSettings) -> Result<(AuditLog, BackgroundTasks), StartError> {
    let audit_tasks = BackgroundTasks::new();
    let Some(destination) = config.audit.clone() else { return Ok((AuditLog::off(), audit_tasks)) };
    let (audit, writer) = AuditLog::open(destination).map_err(StartError::Audit)?;
    audit_tasks.spawn_critical("audit", writer.run());
    Ok((audit, audit_tasks))
}

/// Logs the memory budget for feeds and its source. It is logged at the start, because a container that is killed for
/// its memory cannot log it later.
fn log_memory_budget(config: &ServeSettings) {
    let Some(memory) = &config.memory else { return };
    tracing::info!(
        mebibytes = memory.budget_bytes() >> 20, source = %memory,
        "memory budget set for objects and events"
    );
    if let Some(warning) = memory.warning() {
        tracing::warn!(reason = warning, "memory budget too large; the process may be OOM-killed");
    }
}

/// Registers the descriptions of the metrics of all modules.
fn describe() {
    serve::describe();
    auth::describe();
    reflect::describe();
    net::describe();
    wire::describe();
    cache::describe();
    upstream::describe();
    base::describe();
    metrics::describe();
}
