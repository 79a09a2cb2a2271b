use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::uri::PathAndQuery;
use http::{Request, Response, Uri};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use super::credentials::{CredentialNames, UpstreamCredentials};
use super::endpoints::UpstreamEndpoints;
use super::identity_headers::{CredentialId, RequestIdentity};
use super::pool::{ConnectionPool, ForwardPoolKind, PoolTraffic, UpstreamResponseBody};
use super::retryable_request::CountedRequest;
use super::{CredentialError, CredentialSource, UpstreamError};
use base::{FileLoadError, KeyedSemaphores, PerCore, WatchedFile};
use kubeapi::FlowDistinguisher;

/// Credentials, and the connections to one server that use them.
///
/// When the files of the credentials change, a new transport is made, which later requests use. Requests in progress
/// continue on the old one, whose connections close after them.
#[derive(Debug)]
pub(super) struct UpstreamTransport {
    pub(super) credentials: UpstreamCredentials,
    pub(super) watches: ConnectionPool,
    /// The pool for the proxy's own short requests.
    pub(super) short: ConnectionPool,
    /// The pools for callers' short requests. There is one pool per client thread, because a small response costs less
    /// than waking another thread for it.
    pub(super) forwards: PerCore<ConnectionPool>,
    /// The pool for callers' streams: followed logs and forwarded watches. Each has its own connection, so that a
    /// stream that is not read stalls only itself.
    pub(super) streams: ConnectionPool,
    pub(super) tunnels: ConnectionPool,
    /// The pools for requests that carry their caller's own credential.
    pub(super) caller_pools: CallerConnectionPools,
}

/// The transports to all servers of upstream, with the current credentials.
#[derive(Debug, Clone)]
pub(super) struct UpstreamTransports {
    pub(super) transports: WatchedFile<UpstreamTransportSet>,
    pub(super) endpoints: UpstreamEndpoints,
    /// Whether upstream has rejected the credentials since they were last checked.
    are_rejected: Arc<AtomicBool>,
    /// Whether a forwarded request with the credentials got a 401 since they were last checked.
    pub(super) are_doubted: Arc<AtomicBool>,
}

/// The minimum time between two reloads of an exec plugin's credential because upstream rejected it.
const REJECTED_REST: Duration = Duration::from_secs(60);

/// The transports of all upstream servers, one per server and at least one.
pub(super) type UpstreamTransportSet = Vec<Arc<UpstreamTransport>>;

impl UpstreamTransports {
    pub(super) fn load(
        source: &CredentialSource,
        endpoints: UpstreamEndpoints,
        names: CredentialNames,
    ) -> Result<Self, CredentialError> {
        if source.files().is_empty() {
            let transports =
                WatchedFile::fixed(transports(UpstreamCredentials::load(source, endpoints.servers(), names)?)?);
            return Ok(Self { transports, endpoints, are_rejected: Arc::default(), are_doubted: Arc::default() });
        }
        let (listed, read, upstream) = (source.clone(), source.clone(), OnceLock::new());
        let servers = endpoints.clone();
        // kube-client reads the files once more. If they have changed in between, the next check detects that.
        let read = move |_: &[Vec<u8>]| {
            let credentials = UpstreamCredentials::load(&read, servers.servers(), names)?;
            check_same_address(&upstream, &credentials)?;
            transports(credentials)
        };
        let loaded = WatchedFile::load_listed(names.files, move || listed.files(), read);
        let transports = loaded.map_err(|error| match error {
            FileLoadError::Content(error) => error,
            unreadable @ FileLoadError::File { .. } => CredentialError::Invalid(unreadable.to_string()),
        })?;
        Ok(Self { transports, endpoints, are_rejected: Arc::default(), are_doubted: Arc::default() })
    }

    /// Returns the transport to the server in use.
    pub(super) fn current(&self) -> Arc<UpstreamTransport> {
        self.at(self.endpoints.current())
    }

    /// Returns the transport to one of the servers.
    pub(super) fn at(&self, endpoint: usize) -> Arc<UpstreamTransport> {
        self.transports.current()[endpoint].clone()
    }

    /// Records the status of a response to a request of the proxy itself. After a 401, an exec plugin runs again: its
    /// certificate, or a token without an expirationTimestamp, may have expired.
    pub(super) fn record_status(&self, code: u16) {
        if code == 401 {
            self.are_rejected.store(true, Ordering::Relaxed);
        }
    }

    /// Reloads the credentials when their files change or upstream rejects them. `check` sends a request of the proxy
    /// itself: the 401 of a forwarded request may be that of an application behind the apiserver.
    pub(super) async fn reload_credentials(self, every: Duration, check: impl Fn() -> BoxFuture<'static, ()>) {
        let mut last = None::<Instant>;
        loop {
            sleep(every).await;
            let is_due =
                self.current().credentials.has_plugin && last.is_none_or(|last| last.elapsed() >= REJECTED_REST);
            if is_due && self.are_doubted.swap(false, Ordering::Relaxed) {
                check().await;
            }
            if is_due && self.are_rejected.swap(false, Ordering::Relaxed) {
                tracing::info!("upstream rejected the proxy's credentials; running the exec plugin again");
                self.transports.expire();
                last = Some(Instant::now());
            }
            self.check_files().await;
        }
    }

    async fn check_files(&self) {
        self.transports.check_now().await;
        self.current().credentials.token.check_now().await;
    }
}

fn transports(credentials: Vec<UpstreamCredentials>) -> Result<UpstreamTransportSet, CredentialError> {
    credentials.into_iter().map(|credentials| UpstreamTransport::new(credentials).map(Arc::new)).collect()
}

impl UpstreamTransport {
    pub(super) fn new(credentials: UpstreamCredentials) -> Result<Self, CredentialError> {
        Ok(Self {
            watches: ConnectionPool::new(&credentials, PoolTraffic::WATCHES)?,
            short: ConnectionPool::new(&credentials, PoolTraffic::SHORT)?,
            forwards: PerCore::try_new(|| ConnectionPool::new(&credentials, PoolTraffic::FORWARDS))?,
            streams: ConnectionPool::new(&credentials, PoolTraffic::STREAMS)?,
            tunnels: ConnectionPool::new(&credentials, PoolTraffic::SINGLE_USE)?,
            caller_pools: CallerConnectionPools::new(&credentials)?,
            credentials,
        })
    }

    /// Returns the URL of the server, without a final slash.
    pub(super) fn server_url(&self) -> String {
        self.credentials.base.to_string().trim_end_matches('/').to_owned()
    }

    /// Changes the URI of a request to that of the server.
    pub(super) fn set_authority<B>(&self, request: &mut Request<B>) -> Result<(), UpstreamError> {
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        // Without a prefix the path stays the same and need not be parsed again.
        *request.uri_mut() = if self.prefix().is_empty() { self.at(path)? } else { self.uri(path.as_str())? };
        Ok(())
    }

    /// Returns the URI of a path on the server.
    pub(super) fn uri(&self, path_and_query: &str) -> Result<Uri, UpstreamError> {
        let joined = format!("{}{path_and_query}", self.prefix());
        self.at(joined.parse().map_err(|error| UpstreamError::InvalidRequest(format!("{joined}: {error}")))?)
    }

    fn at(&self, path_and_query: PathAndQuery) -> Result<Uri, UpstreamError> {
        let mut parts = self.credentials.base.clone().into_parts();
        parts.path_and_query = Some(path_and_query);
        Uri::from_parts(parts).map_err(|error| UpstreamError::InvalidRequest(error.to_string()))
    }

    /// The path prefix of the server's address, without a trailing slash; usually empty.
    fn prefix(&self) -> &str {
        self.credentials.base.path().trim_end_matches('/')
    }
}

/// Refuses another address than the first. It may be another cluster, where the versions that feeds and clients have
/// mean something else.
fn check_same_address(upstream: &OnceLock<Uri>, credentials: &[UpstreamCredentials]) -> Result<(), CredentialError> {
    let [UpstreamCredentials { base: new, .. }, ..] = credentials else { return Ok(()) };
    let first = upstream.get_or_init(|| new.clone());
    if first == new {
        return Ok(());
    }
    Err(CredentialError::Elsewhere { first: first.clone(), named: new.clone() })
}

/// Connections for requests that carry their own credential, or none.
///
/// They are separate from the proxy's own connections and do not present its client certificate, which upstream would
/// take for the caller's credential. No two credentials share a connection, because upstream closes a connection when
/// it rejects a credential on it (R-HTTP-2).
#[derive(Debug)]
pub(super) struct CallerConnectionPools {
    credentials: UpstreamCredentials,
    pools: moka::sync::Cache<CredentialId, Arc<CallerPoolPair>>,
    /// Limits how many pools the credentials of one user may have.
    permits_per_user: KeyedSemaphores<FlowDistinguisher>,
    /// Opens a new connection for each request.
    unpooled: ConnectionPool,
}

#[derive(Debug)]
struct CallerPoolPair {
    short: ConnectionPool,
    /// The pool for streams. Each stream has its own connection.
    streams: ConnectionPool,
    _permit: OwnedSemaphorePermit,
}

/// The maximum number of credentials with their own connections. Above it, the cache evicts; requests in progress on
/// evicted connections continue.
const CREDENTIALS_MAX: u64 = 20_000;
const IDLE_MAX: Duration = Duration::from_secs(90);
/// The maximum number of these credentials per user. A user can obtain any number of tokens, and one token has several
/// spellings. Requests with further credentials use connections that are not kept.
const CREDENTIALS_OF_A_USER_MAX: usize = 256;

impl CallerConnectionPools {
    /// Creates empty pools. Only the address and the server verification are taken from `credentials`, which are the
    /// proxy's own.
    pub(super) fn new(credentials: &UpstreamCredentials) -> Result<Self, CredentialError> {
        let credentials = credentials.without_identity();
        let unpooled = ConnectionPool::new(&credentials, PoolTraffic::SINGLE_USE)?;
        let pools = moka::sync::Cache::builder().max_capacity(CREDENTIALS_MAX).time_to_idle(IDLE_MAX).build();
        Ok(Self { credentials, pools, permits_per_user: KeyedSemaphores::new(CREDENTIALS_OF_A_USER_MAX), unpooled })
    }

    /// Sends a request that carries its own credential, on connections that only that credential uses. Without a
    /// credential of a known user, it uses a connection that is not reused.
    pub(super) async fn send(
        &self,
        identity: &RequestIdentity,
        kind: ForwardPoolKind,
        request: CountedRequest,
    ) -> Result<Response<UpstreamResponseBody>, UpstreamError> {
        let pools = match identity {
            RequestIdentity::Bearer(credential, flow) => self.pools(*credential, flow)?,
            RequestIdentity::Anonymous | RequestIdentity::ProxyItself | RequestIdentity::User(_) => None,
        };
        match (pools, kind) {
            (Some(pools), ForwardPoolKind::Short) => pools.short.send(request).await,
            (Some(pools), ForwardPoolKind::Stream) => pools.streams.send(request).await,
            // If the upgrade to a tunnel fails, the state of the connection is uncertain, so it is not reused.
            (Some(_), ForwardPoolKind::Tunnel) | (None, _) => self.unpooled.send(request).await,
        }
    }

    /// Returns the connections of a credential; `None` if its user has reached [`CREDENTIALS_OF_A_USER_MAX`].
    fn pools(
        &self,
        credential: CredentialId,
        flow: &FlowDistinguisher,
    ) -> Result<Option<Arc<CallerPoolPair>>, UpstreamError> {
        if let Some(pools) = self.pools.get(&credential) {
            return Ok(Some(pools));
        }
        let permit = self.permit(flow).or_else(|| {
            // The cache drops idle pools only when it is used, and they may hold this user's permits.
            self.pools.run_pending_tasks();
            self.permit(flow)
        });
        let Some(permit) = permit else { return Ok(None) };
        let pools = self.pools.try_get_with(credential, || self.new_pools(permit).map(Arc::new));
        pools.map(Some).map_err(|error| UpstreamError::Credentials(error.to_string()))
    }

    fn permit(&self, flow: &FlowDistinguisher) -> Option<OwnedSemaphorePermit> {
        self.permits_per_user.get(flow).try_acquire_owned().ok()
    }

    fn new_pools(&self, permit: OwnedSemaphorePermit) -> Result<CallerPoolPair, CredentialError> {
        let short = ConnectionPool::new(&self.credentials, PoolTraffic::FORWARDS)?;
        let streams = ConnectionPool::new(&self.credentials, PoolTraffic::STREAMS_OF_CREDENTIAL)?;
        Ok(CallerPoolPair { short, streams, _permit: permit })
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use http::header::AUTHORIZATION;
    use metrics_exporter_prometheus::PrometheusBuilder;

    use super::*;
    use crate::upstream::UpstreamEndpointsConfig;
    use base::BackgroundTasks;
    use kubeapi::User;

    fn rewritten(base: &'static str, requested: &'static str) -> String {
        let source = CredentialSource::Anonymous(Uri::from_static(base));
        let mut credentials = UpstreamCredentials::load(&source, &[], CredentialNames::OWN).expect("nothing to read");
        let transport = UpstreamTransport::new(credentials.remove(0)).expect("no request is sent");
        let mut request = Request::new(());
        *request.uri_mut() = Uri::from_static(requested);
        transport.set_authority(&mut request).expect("an address");
        request.uri().to_string()
    }

    #[tokio::test]
    async fn request_uri_is_rewritten_to_upstream_server() {
        for (requested, path) in [
            ("/api/v1/pods?limit=5", "/api/v1/pods?limit=5"),
            ("/a%2Fb//c;d?x=%zz&y", "/a%2Fb//c;d?x=%zz&y"),
            ("http://elsewhere:1/api?a=b", "/api?a=b"),
            ("http://elsewhere:1", "/"),
            ("http://elsewhere:1?a=b", "/?a=b"),
            ("elsewhere:1", "/"),
        ] {
            for base in ["http://up:8080", "http://up:8080/"] {
                assert_eq!(rewritten(base, requested), format!("http://up:8080{path}"), "{requested}");
            }
        }
        for base in ["http://up:8080/k8s/c1", "http://up:8080/k8s/c1/"] {
            assert_eq!(rewritten(base, "/api/v1/pods?limit=5"), "http://up:8080/k8s/c1/api/v1/pods?limit=5");
        }
    }

    fn path(what: &str) -> PathBuf {
        std::env::temp_dir().join(format!("kube-fanout-{what}-{}", fastrand::u64(..)))
    }

    fn with_token_file(kubeconfig: &Path, token: &Path) -> CredentialSource {
        let cluster = "clusters:\n- name: c\n  cluster: {server: \"http://127.0.0.1:1\"}\n";
        let user = format!("users:\n- name: u\n  user: {{tokenFile: {}}}\n", token.display());
        let context = "contexts:\n- name: x\n  context: {cluster: c, user: u}\ncurrent-context: x\n";
        std::fs::write(kubeconfig, format!("apiVersion: v1\nkind: Config\n{cluster}{user}{context}")).expect("a file");
        CredentialSource::File(kubeconfig.to_owned())
    }

    fn load(source: &CredentialSource, names: CredentialNames) -> Result<UpstreamTransports, CredentialError> {
        UpstreamTransports::load(source, UpstreamEndpoints::new(UpstreamEndpointsConfig::default()), names)
    }

    #[test]
    fn working_impersonator_does_not_hide_failed_reload_of_own_credentials() {
        let paths = ["kubeconfig", "token", "kubeconfig", "token"].map(path);
        let [own_kubeconfig, own_token, kubeconfig, token] = &paths;
        let recorder = PrometheusBuilder::new().build_recorder();
        let check = async {
            for token in [own_token, token] {
                std::fs::write(token, "one").expect("a file");
            }
            let own = load(&with_token_file(own_kubeconfig, own_token), CredentialNames::OWN);
            let impersonator = load(&with_token_file(kubeconfig, token), CredentialNames::IMPERSONATOR);
            for broken in [own_token, own_kubeconfig] {
                std::fs::write(broken, "").expect("a file");
            }
            for transports in [own, impersonator] {
                transports.expect("its files are there").check_files().await;
            }
        };
        metrics::with_local_recorder(&recorder, || {
            tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(check);
        });
        let rendered = recorder.handle().render();
        for (what, failing) in [
            ("upstream_credentials", 1),
            ("upstream_token", 1),
            ("impersonator_credentials", 0),
            ("impersonator_token", 0),
        ] {
            let line = format!("kube_fanout_reload_failing{{what=\"{what}\"}} {failing}");
            assert!(rendered.lines().any(|found| found == line), "{line}: {rendered}");
        }
        for path in &paths {
            std::fs::remove_file(path).expect("it is there");
        }
    }

    /// The wall clock stands still here, as after it was set back.
    #[tokio::test(start_paused = true)]
    async fn token_file_is_reloaded_independently_of_wall_clock() {
        const EVERY: Duration = Duration::from_secs(10);
        let (kubeconfig, token) = (path("kubeconfig"), path("token"));
        let source = with_token_file(&kubeconfig, &token);
        let write = |text: &str| std::fs::write(&token, text).expect("a file");
        let load = || load(&source, CredentialNames::OWN);
        write("one\n");
        let transports = load().expect("it is there");
        let reloading = tokio::spawn(transports.clone().reload_credentials(EVERY, || Box::pin(async {})));
        let tasks = BackgroundTasks::new();
        let header =
            async || transports.current().credentials.headers(&tasks).await.expect("a token")[AUTHORIZATION].clone();
        write("two");
        assert_eq!(header().await, "Bearer one");
        sleep(2 * EVERY).await;
        assert_eq!(header().await, "Bearer two");
        assert!(header().await.is_sensitive());
        for broken in ["", " \n", "a\nb"] {
            write(broken);
            sleep(2 * EVERY).await;
            assert_eq!(header().await, "Bearer two", "the last good one stays: {broken:?}");
            assert!(load().is_err(), "{broken:?}");
        }
        std::fs::remove_file(&token).expect("it is there");
        sleep(2 * EVERY).await;
        assert_eq!(header().await, "Bearer two");
        assert!(load().is_err());
        reloading.abort();
        std::fs::remove_file(&kubeconfig).expect("it is there");
    }

    /// A timeout that ends a hang.
    const STUCK: Duration = Duration::from_secs(60);

    fn flow(name: &str) -> FlowDistinguisher {
        FlowDistinguisher::from_user(&User { name: name.to_owned(), ..User::default() })
    }

    fn id(number: usize) -> CredentialId {
        let mut tag = [0; 32];
        tag[..8].copy_from_slice(&number.to_be_bytes());
        CredentialId::new(tag)
    }

    #[tokio::test]
    async fn credential_pools_per_user_are_limited() {
        let source = CredentialSource::Anonymous("http://127.0.0.1:1".parse().expect("an address"));
        let credentials = UpstreamCredentials::load(&source, &[], CredentialNames::OWN).expect("nothing to read");
        let caller_pools = CallerConnectionPools::new(&credentials[0]).expect("no request is sent");
        let (ada, bob) = (flow("ada"), flow("bob"));
        let has = |number, flow| caller_pools.pools(id(number), flow).expect("made").is_some();
        let of_ada = (0..2 * CREDENTIALS_OF_A_USER_MAX).filter(|number| has(*number, &ada)).count();
        assert_eq!(of_ada, CREDENTIALS_OF_A_USER_MAX);
        assert!(has(0, &ada), "those that are there stay");
        assert!(has(usize::MAX, &bob));
        caller_pools.pools.invalidate(&id(0));
        // The cache frees dropped entries only once no thread reads it, including threads of other tests. A descheduled
        // thread may delay that.
        let began = std::time::Instant::now();
        while !has(usize::MAX - 1, &ada) {
            assert!(began.elapsed() < STUCK, "one that has gone leaves its place to the next");
            std::thread::yield_now();
        }
    }
}
