//! The application under test. It is the real one, on a thread and a runtime of its own, and it is always shut down.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Once};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use base::BackoffBounds;
use demo::RunningDemoApiserver;
use kube_fanout::app::{BoundApp, StartError};
use kube_fanout::auth::AuthMode;
use kube_fanout::config::{ServeSettings, TlsCertificateSource};
use kube_fanout::net::ListenAddress;
use kube_fanout::serve::ReadConsistency;
use kube_fanout::upstream::CredentialSource;
use serde_json::Value;
use tokio::sync::oneshot;
use tracing_subscriber::EnvFilter;

use super::client::{Answer, Client};
use super::io::{Dir, Place, Trust, pair};
use super::{FRESH_MAX, PATIENCE, eventually};

/// Configuration of an application that is not running yet.
pub struct Plan {
    config: ServeSettings,
    dir: Arc<Dir>,
    /// The certificate file that clients trust, if the listener uses TLS.
    trusted: PathBuf,
}

/// A running application. It is also a client of its first listener: `app.get(..)`, `app.watch(..)`.
pub struct App {
    client: Client,
    clients: Vec<Client>,
    admin: Option<Client>,
    healthz: Option<Client>,
    metrics: Option<Client>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    _dir: Arc<Dir>,
}

/// Measurements of [`App::stop`].
pub struct Stopped {
    pub took: Duration,
}

/// Plans an application in front of a demo upstream.
pub fn app(up: &RunningDemoApiserver) -> Plan {
    in_front_of(&up.url())
}

/// Plans an application in front of any URL.
pub fn in_front_of(url: &str) -> Plan {
    by(CredentialSource::Anonymous(url.parse().expect("a URL")))
}

/// How long reads wait for a freshness proof in tests. With the product's limit, they would be forwarded on a machine
/// that stalls.
const FRESH_WAIT: Duration = Duration::from_secs(60);

/// Plans an application that uses these upstream credentials. For fast tests, it retries within milliseconds, and its
/// shutdown hardly waits. Its other limits are long, so that a stalled machine does not look like a slow peer. A test
/// of such a limit sets it.
pub fn by(credentials: CredentialSource) -> Plan {
    let mut config = ServeSettings::for_upstream(credentials);
    config.drain = Duration::from_millis(50);
    config.reflect.retry = BackoffBounds { first: Duration::from_millis(2), longest: Duration::from_millis(20) };
    config.file_check_interval = Duration::from_millis(5);
    // Self-checks run at random times, so a test that counts upstream requests would fail once in many runs.
    config.reflect.self_check = None;
    (config.serve.fresh_wait_max, config.serve.sync_wait_max) = (FRESH_WAIT, PATIENCE);
    let limits = &mut config.connections;
    (limits.handshake_max, limits.first_request_max, limits.header_max) = (PATIENCE, PATIENCE, PATIENCE);
    limits.ping_after = PATIENCE;
    let dir = Arc::new(Dir::new());
    Plan { config, trusted: dir.join("ca.pem"), dir }
}

impl Plan {
    pub fn with(mut self, change: impl FnOnce(&mut ServeSettings)) -> Self {
        change(&mut self.config);
        self
    }

    /// Sets the number of events that the ring holds.
    pub fn window_events(self, events: usize) -> Self {
        self.with(|config| config.cache.window_events_max = events)
    }

    /// Sets how long requests wait for a feed's initial list.
    pub fn sync_wait(self, wait: Duration) -> Self {
        self.with(|config| config.serve.sync_wait_max = wait)
    }

    /// Restores the product's limit on waiting for a freshness proof or for a named version.
    pub fn fresh_wait_of_product(self) -> Self {
        self.with(|config| config.serve.fresh_wait_max = FRESH_MAX)
    }

    /// Sets how many requests for feeds that are not ready may be forwarded at a time.
    pub fn unready_forwards(self, forwards: usize) -> Self {
        self.with(|config| config.serve.limits.unready_forwards_max = forwards)
    }

    pub fn idle(self, idle: Duration) -> Self {
        self.with(|config| config.reflect.idle_max = idle)
    }

    pub fn drain(self, grace: Duration) -> Self {
        self.with(|config| config.drain = grace)
    }

    pub fn bounded(self) -> Self {
        self.with(|config| config.serve.consistency = ReadConsistency::Bounded)
    }

    pub fn preload(self, resource: &str) -> Self {
        self.with(|config| config.preload.push(resource.to_owned()))
    }

    pub fn tls(self) -> Self {
        let out = Some(self.trusted.clone());
        self.with(|config| config.tls = Some(TlsCertificateSource::SelfSigned { out }))
    }

    /// Makes clients trust this certificate.
    pub fn trusting(self, certificate: PathBuf) -> Self {
        Self { trusted: certificate, ..self }
    }

    /// Serves with this self-signed certificate and its key, and makes clients trust it.
    pub fn tls_from(self, certificate: PathBuf, key: PathBuf) -> Self {
        let plan = self.trusting(certificate.clone());
        plan.with(|config| config.tls = Some(TlsCertificateSource::Files { certificate, key }))
    }

    /// Serves with a new certificate, `own.pem` in `dir`, and with `auth: delegated`. Client certificates from these
    /// CAs are accepted; their bundle is written to `clients.pem`.
    pub fn for_certificates_of(self, clients: &str, dir: &Dir) -> Self {
        let own = pair();
        let certificate = dir.file("own.pem", &own.cert.pem());
        let key = dir.file("own.key", &own.signing_key.serialize_pem());
        let client_ca = dir.file("clients.pem", clients);
        self.tls_from(certificate, key).with(|config| {
            config.auth = AuthMode::Delegated;
            config.delegated.client_ca = Some(client_ca);
        })
    }

    /// Adds a unix socket listener.
    pub fn unix(self) -> Self {
        let path = self.dir.join("api.sock");
        self.with(|config| config.listen.push(ListenAddress::Unix(path)))
    }

    /// Serves the admin pages on a unix socket, where the process's own user can also see client activity.
    pub fn admin_on_socket(self) -> Self {
        let path = self.admin_socket();
        self.with(|config| config.admin = Some(ListenAddress::Unix(path)))
    }

    /// The address of the admin pages after [`admin_on_socket`](Self::admin_on_socket), as a flag has it.
    pub fn admin_flag(&self) -> String {
        format!("unix:{}", self.admin_socket().display())
    }

    fn admin_socket(&self) -> PathBuf {
        self.dir.join("admin.sock")
    }

    pub async fn run(self) -> App {
        match self.try_run().await {
            Ok(app) => app,
            Err(error) => panic!("the application does not start: {error}"),
        }
    }

    pub async fn try_run(self) -> Result<App, StartError> {
        let Self { config, dir, trusted } = self;
        let tls = config.tls.is_some() || config.metrics_tls.is_some();
        let (started, start) = oneshot::channel();
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || serve(config, started, stopped));
        let (addresses, pages) = start.await.expect("the application's thread lives")?;
        let trust = tls.then(|| Trust::in_file(&trusted));
        let reach = |url: &String| {
            let client = Client::to(Place::parse(url));
            if url.starts_with("https:") { client.trusting(trust.clone()) } else { client }
        };
        let clients: Vec<_> = addresses.iter().map(reach).collect();
        let client = clients.first().cloned().expect("at least one listener");
        let [admin, healthz, metrics] = pages.map(|page| page.as_ref().map(reach));
        Ok(App { client, clients, admin, healthz, metrics, stop: Some(stop), thread: Some(thread), _dir: dir })
    }
}

/// Addresses of the client listeners; addresses of the admin, health and metrics listeners.
type Started = (Vec<String>, [Option<String>; 3]);

/// With `RUST_LOG` set, all proxies of the test program log to stderr.
fn log_on_request() {
    static INSTALLED: Once = Once::new();
    if std::env::var_os("RUST_LOG").is_some() {
        INSTALLED.call_once(|| {
            let log = tracing_subscriber::fmt().with_env_filter(EnvFilter::from_default_env());
            log.with_writer(std::io::stderr).init();
        });
    }
}

fn serve(config: ServeSettings, started: oneshot::Sender<Result<Started, StartError>>, stopped: oneshot::Receiver<()>) {
    log_on_request();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        match BoundApp::bind(config).await {
            Ok(bound) => {
                let pages = [bound.admin_address(), bound.healthz_address(), bound.metrics_address()];
                let _ = started.send(Ok((bound.addresses(), pages)));
                let ended = bound.run(async { drop(stopped.await) }, std::future::pending()).await;
                ended.expect("no needed task panics");
            }
            Err(error) => drop(started.send(Err(error))),
        }
    });
}

impl App {
    /// A client of the listener with this number, counted from 0 in configuration order.
    pub fn listener(&self, number: usize) -> Client {
        self.clients[number].clone()
    }

    pub async fn admin(&self, path: &str) -> Answer {
        self.admin_client().get(path).await
    }

    pub fn admin_client(&self) -> &Client {
        self.admin.as_ref().expect("an admin listener")
    }

    pub fn healthz_client(&self) -> &Client {
        self.healthz.as_ref().expect("a port for probes")
    }

    pub fn metrics_client(&self) -> &Client {
        self.metrics.as_ref().expect("a port for scrapes")
    }

    /// The number of upstream requests that the proxy has sent to prove that its feeds are current.
    pub async fn proofs(&self) -> u64 {
        let costs = self.admin("/debug/cost").await.json();
        let mut all = costs.as_array().expect("a list").iter();
        all.find(|cost| cost["cause"] == "proof").and_then(|cost| cost["requests"].as_u64()).expect("a number")
    }

    /// Returns when discovery is complete. From then on the proxy sends no upstream requests of its own.
    pub async fn discovered(&self) {
        let is_over = || async { !self.admin("/readyz").await.text().contains("[-]discovery") };
        eventually("discovery is over", is_over).await;
    }

    /// The feed of a resource as the admin pages show it.
    pub async fn feed(&self, resource: &str) -> Option<Value> {
        let feeds = self.admin("/debug/feeds").await.json();
        let feeds = feeds.as_array().expect("a list of feeds").clone();
        feeds.into_iter().find(|feed| feed["resource"].as_str().is_some_and(|name| name.starts_with(resource)))
    }

    /// How many requests of this purpose the feed of a resource, such as `pods.v1`, has sent upstream.
    pub async fn feed_requests(&self, resource: &str, purpose: &str) -> u64 {
        let metrics = self.admin("/metrics").await.text();
        let labels = [format!("resource=\"{resource}\""), format!("purpose=\"{purpose}\"")];
        let is_counter = |line: &&str| {
            line.starts_with("kube_fanout_feed_requests_total{") && labels.iter().all(|label| line.contains(label))
        };
        let value = |line: &str| line.rsplit(' ').next().and_then(|value| value.parse::<u64>().ok());
        metrics.lines().filter(is_counter).filter_map(value).sum()
    }

    /// Returns when `is_expected` is true for the feed of a resource.
    pub async fn until_feed(&self, resource: &str, what: &str, is_expected: impl Fn(&Value) -> bool) {
        let is_expected = &is_expected;
        let look = || async move { self.feed(resource).await.is_some_and(|feed| is_expected(&feed)) };
        eventually(&format!("{resource}: {what}"), look).await;
    }

    /// Returns when a gap in the history of pods has been closed, by any means, and their feed is live. The feed's
    /// state alone would not show this: it is also live between the opening of the new stream and the 410 that starts
    /// the recovery.
    pub async fn until_pods_are_listed_again(&self) {
        let of_pods =
            |line: &&str| line.starts_with("kube_fanout_history_gaps_total{") && line.contains("resource=\"pods.v1\"");
        let closed = || async { self.admin("/metrics").await.text().lines().any(|line| of_pods(&line)) };
        eventually("the gap is closed", closed).await;
        self.until_feed("pods", "live", |feed| feed["state"] == "live").await;
    }

    /// Returns when the proxy has applied all events up to this version of a resource.
    pub async fn reached(&self, resource: &str, rv: u64) {
        let at = |feed: &Value| feed["resourceVersion"].as_str().and_then(|text| text.parse::<u64>().ok());
        self.until_feed(resource, &format!("at {rv}"), |feed| at(feed) >= Some(rv)).await;
    }

    /// Starts the shutdown and does not wait for its end.
    pub fn begin_stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
    }

    /// Shuts down and waits for the end.
    pub async fn stop(mut self) -> Stopped {
        let began = Instant::now();
        self.begin_stop();
        let thread = self.thread.take().expect("stopped once");
        let joined = tokio::task::spawn_blocking(move || thread.join()).await.expect("the joining task lives");
        joined.expect("the application does not panic");
        Stopped { took: began.elapsed() }
    }
}

impl Deref for App {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for App {
    fn drop(&mut self) {
        self.begin_stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "the application panicked");
        }
    }
}
