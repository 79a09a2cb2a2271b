use std::future::ready;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Request, Response, Uri};
use kube_client::client::ConfigExt;
use kube_client::config::{AuthInfo, Cluster, ExecConfig, Kubeconfig};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};

use super::endpoints::is_private;
use super::secrecy::describe;
use super::{InMemoryUpstream, ServerUrl, UpstreamError};
use crate::net::CertificateValidity;
use base::{BackgroundTasks, LogRateLimit, WatchedFile};

/// The source of the proxy's own credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialSource {
    /// A kubeconfig file: certificates, tokens, token files, exec plugins.
    File(PathBuf),
    /// The service account of the proxy's pod. Rotated tokens are followed.
    InCluster,
    /// An upstream without credentials, such as the demo upstream.
    Anonymous(Uri),
    /// An upstream in this process, without credentials.
    Memory(InMemoryUpstream),
}

/// The names of a client's credentials in logs and metrics. Two clients with the same names would overwrite each
/// other's state.
#[derive(Debug, Clone, Copy)]
pub(super) struct CredentialNames {
    pub(super) files: &'static str,
    pub(super) token: &'static str,
    certificate: &'static str,
}

impl CredentialNames {
    pub(super) const OWN: Self =
        Self { files: "upstream_credentials", token: "upstream_token", certificate: "upstream_certificate" };
    pub(super) const IMPERSONATOR: Self = Self {
        files: "impersonator_credentials",
        token: "impersonator_token",
        certificate: "impersonator_certificate",
    };
}

/// The address of an in-process upstream in requests; it is never resolved.
const IN_MEMORY_ADDRESS: &str = "http://127.0.0.1:1";

impl CredentialSource {
    /// The files that connections depend on: a kubeconfig and the certificates and keys that it names.
    ///
    /// Token files are not included, because a token is reloaded without new connections. In a pod there are
    /// none, because kube-client rereads the CA every minute.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let Self::File(path) = self else { return Vec::new() };
        let mut files = vec![path.clone()];
        if let Ok(kubeconfig) = Kubeconfig::read_from(path) {
            files.extend(named_by(&kubeconfig).unwrap_or_default());
        }
        files
    }
}

/// Returns the cluster and the user of the kubeconfig's current context, if there is one.
fn current(kubeconfig: &Kubeconfig) -> Option<(Option<&Cluster>, Option<&AuthInfo>)> {
    let current = kubeconfig.current_context.as_ref()?;
    let context = kubeconfig.contexts.iter().find(|named| named.name == *current)?.context.as_ref()?;
    let cluster = kubeconfig.clusters.iter().find(|named| named.name == context.cluster);
    let user = kubeconfig.auth_infos.iter().find(|named| Some(&named.name) == context.user.as_ref());
    Some((cluster.and_then(|named| named.cluster.as_ref()), user.and_then(|named| named.auth_info.as_ref())))
}

/// Returns the files that the kubeconfig's current context refers to, if there is one. Inline data has precedence over
/// a file.
fn named_by(kubeconfig: &Kubeconfig) -> Option<Vec<PathBuf>> {
    let (cluster, user) = current(kubeconfig)?;
    let mut files = Vec::new();
    if let Some(cluster) = cluster.filter(|cluster| cluster.certificate_authority_data.is_none()) {
        files.extend(cluster.certificate_authority.as_ref());
    }
    if let Some(user) = user.filter(|user| user.client_certificate_data.is_none()) {
        files.extend(user.client_certificate.as_ref());
    }
    if let Some(user) = user.filter(|user| user.client_key_data.is_none()) {
        files.extend(user.client_key.as_ref());
    }
    Some(files.into_iter().map(PathBuf::from).collect())
}

/// The reason that the proxy's credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialError {
    #[error("cannot use kubeconfig {path}: {reason}")]
    Kubeconfig { path: PathBuf, reason: String },
    #[error("cannot use the in-cluster configuration: {0} (outside of a cluster, set --kubeconfig)")]
    InCluster(String),
    #[error("insecure-skip-tls-verify is not supported: set the cluster's CA (certificate-authority) instead")]
    Insecure,
    #[error("the certificate authority of upstream has no certificate (expected a PEM block \"CERTIFICATE\")")]
    NoAuthority,
    #[error(
        "upstream {0} does not use TLS: credentials and objects would be sent in clear text; use an https:// URL \
         (http:// is allowed for loopback addresses only)"
    )]
    Plaintext(Uri),
    #[error("the kubeconfig names another upstream ({named}, was {first}): restart the proxy to switch")]
    Elsewhere { first: Uri, named: Uri },
    #[error("cannot set up TLS for upstream: {0}")]
    Tls(String),
    #[error("cannot use the upstream credentials: {0}")]
    Invalid(String),
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type CredentialHeaderService = BoxCloneSyncService<Request<String>, Response<String>, BoxError>;
type CredentialRefresh = Shared<BoxFuture<'static, Result<HeaderMap, String>>>;

/// The time that a request waits for new credentials. A refresh that takes longer continues for later requests.
const REFRESH_WAIT_MAX: Duration = Duration::from_secs(10);

/// The settings and credentials that a request to upstream needs in addition to its own contents.
#[derive(Clone)]
pub(super) struct UpstreamCredentials {
    pub(super) base: Uri,
    /// The index of the server among upstream's servers.
    pub(super) endpoint: usize,
    pub(super) tls: rustls::ClientConfig,
    /// The TLS settings without a client certificate.
    anonymous_tls: rustls::ClientConfig,
    pub(super) server_name: Option<String>,
    /// The in-process upstream to which connections are made, instead of the address.
    pub(super) memory: Option<InMemoryUpstream>,
    /// The validity of the proxy's client certificate.
    pub(super) client_certificate: Option<CertificateValidity>,
    headers: CredentialHeaderService,
    /// The refresh in progress, if there is one. All requests share it, and it outlives them: otherwise an exec plugin
    /// that hangs would be started again for each request that gives up.
    refresh: Arc<Mutex<Option<CredentialRefresh>>>,
    /// The `Authorization` header from a token file, if there is one; the same for all servers. kube-client would
    /// reread the file by the wall clock: after that is set back by an hour, it would continue with an expired token.
    pub(super) token: WatchedFile<Option<HeaderValue>>,
    /// Whether an exec plugin provides the credentials.
    pub(super) has_plugin: bool,
    /// Limits the rate at which missing credentials are logged; otherwise every request would log a line.
    failures: Arc<LogRateLimit>,
}

impl UpstreamCredentials {
    /// Reads the credentials for each of `servers` of one cluster, or else for the server that they name.
    pub(super) fn load(
        source: &CredentialSource,
        servers: &[ServerUrl],
        names: CredentialNames,
    ) -> Result<Vec<Self>, CredentialError> {
        let credentials = Self::read(source, names)?;
        if !servers.is_empty() {
            let at = |(endpoint, server): (usize, &ServerUrl)| Self {
                base: server.uri().clone(),
                endpoint,
                ..credentials.clone()
            };
            return Ok(servers.iter().enumerate().map(at).collect());
        }
        // Anonymous sends no credentials that could leak, and no configuration can select it.
        if !matches!(source, CredentialSource::Anonymous(_)) && !is_private(&credentials.base) {
            return Err(CredentialError::Plaintext(credentials.base));
        }
        Ok(vec![credentials])
    }

    fn read(source: &CredentialSource, names: CredentialNames) -> Result<Self, CredentialError> {
        let config = match source {
            CredentialSource::File(path) => {
                let fail = |reason: String| CredentialError::Kubeconfig { path: path.clone(), reason };
                let mut file = Kubeconfig::read_from(path).map_err(|error| fail(describe(&error)))?;
                if current(&file).is_some_and(|(cluster, _)| cluster.is_some_and(|it| it.proxy_url.is_some())) {
                    return Err(fail("proxy-url is not supported: remove it".to_owned()));
                }
                set_runner(&mut file);
                kube_client::Config::try_from(file).map_err(|error| fail(describe(&error)))?
            }
            CredentialSource::InCluster => {
                kube_client::Config::incluster().map_err(|error| CredentialError::InCluster(error.to_string()))?
            }
            CredentialSource::Anonymous(uri) => without_identity(uri.clone()),
            CredentialSource::Memory(_) => without_identity(Uri::from_static(IN_MEMORY_ADDRESS)),
        };
        if config.accept_invalid_certs {
            return Err(CredentialError::Insecure);
        }
        let is_configured = matches!(source, CredentialSource::File(_) | CredentialSource::InCluster);
        if is_configured && config.root_cert.as_ref().is_some_and(Vec::is_empty) {
            return Err(CredentialError::NoAuthority);
        }
        let credentials = Self::from_config(&config, names)?;
        if matches!(source, CredentialSource::File(_)) {
            CertificateValidity::report(credentials.client_certificate, names.certificate);
        }
        let memory = if let CredentialSource::Memory(memory) = source { Some(memory.clone()) } else { None };
        Ok(Self { memory, ..credentials })
    }

    fn from_config(config: &kube_client::Config, names: CredentialNames) -> Result<Self, CredentialError> {
        let tls_of = |config: &kube_client::Config| {
            config.rustls_client_config().map_err(|error| CredentialError::Tls(error.to_string()))
        };
        let tls = tls_of(config)?;
        let mut anonymous = config.clone();
        anonymous.auth_info = AuthInfo::default();
        let anonymous_tls = tls_of(&anonymous)?;
        let invalid = |error: kube_client::Error| CredentialError::Invalid(describe(&error));
        // The innermost service only returns the headers of its request. kube-client's layers (static tokens, exec
        // plugins) wrap it and add theirs.
        let extra = config.extra_headers_layer().map_err(invalid)?;
        let token = token_file(&config.auth_info, names)?;
        let has_plugin = config.auth_info.exec.is_some();
        if has_plugin {
            // A plugin that hangs ends nothing, so the log must show what is waited for.
            tracing::info!(server = %config.cluster_url, "running the exec plugin of the kubeconfig");
        }
        let auth = if token.current().is_some() { None } else { config.auth_layer().map_err(invalid)? };
        let headers = match auth {
            Some(auth) => BoxCloneSyncService::new(extra.layer(auth.layer(echo()))),
            None => BoxCloneSyncService::new(extra.layer(echo())),
        };
        let server_name = config.tls_server_name.clone();
        let base = config.cluster_url.clone();
        let (endpoint, memory, failures) = (0, None, Arc::default());
        let client_certificate = client_certificate(&config.auth_info);
        Ok(Self {
            base,
            endpoint,
            tls,
            anonymous_tls,
            server_name,
            memory,
            client_certificate,
            headers,
            refresh: Arc::default(),
            token,
            has_plugin,
            failures,
        })
    }

    /// Returns the headers that identify the proxy: the current token, refreshed when due, and configured extras.
    /// `tasks` own a refresh that takes time.
    pub(super) async fn headers(&self, tasks: &BackgroundTasks) -> Result<HeaderMap, UpstreamError> {
        let refreshed = timeout(REFRESH_WAIT_MAX, self.refreshed(tasks)).await;
        let late = |_| Err(format!("the exec plugin has not finished within {REFRESH_WAIT_MAX:?}"));
        let mut headers = refreshed.unwrap_or_else(late).map_err(|why| self.log_unavailable(why))?;
        if let Some(token) = &*self.token.current() {
            headers.insert(AUTHORIZATION, token.clone());
        }
        if let Some(token) = headers.get_mut(AUTHORIZATION) {
            token.set_sensitive(true);
        }
        Ok(headers)
    }

    /// Returns kube-client's headers, from the refresh in progress if there is one.
    fn refreshed(&self, tasks: &BackgroundTasks) -> CredentialRefresh {
        let mut pending = self.refresh.lock();
        if let Some(refresh) = pending.as_ref().filter(|refresh| refresh.peek().is_none()) {
            return refresh.clone();
        }
        let response = self.headers.clone().oneshot(Request::new(String::new()));
        let headers = response.map(|response| match response {
            Ok(response) => Ok(response.into_parts().0.headers),
            Err(error) => Err(describe(&*error)),
        });
        let refresh = headers.boxed().shared();
        // Usually the headers are at hand.
        if refresh.clone().now_or_never().is_none() {
            tasks.spawn("credential refresh", refresh.clone().map(drop));
            *pending = Some(refresh.clone());
        }
        refresh
    }

    /// Logs the reason that there are no credentials, at a limited rate; returns the error for the caller.
    fn log_unavailable(&self, why: String) -> UpstreamError {
        if let Some(failures) = self.failures.failed(Instant::now()) {
            tracing::warn!(
                error = %why, failures,
                "cannot load the proxy's upstream credentials; requests that need upstream fail with 503"
            );
        }
        UpstreamError::Credentials(why)
    }

    /// Returns the same address and server verification, without credentials of the proxy.
    pub(super) fn without_identity(&self) -> Self {
        let (headers, token) = (BoxCloneSyncService::new(echo()), WatchedFile::fixed(None));
        Self { tls: self.anonymous_tls.clone(), headers, refresh: Arc::default(), token, ..self.clone() }
    }
}

/// Returns the validity of the certificate in the credentials. Inline data has precedence over a file, as in
/// kube-client.
fn client_certificate(auth: &AuthInfo) -> Option<CertificateValidity> {
    let pem = match (&auth.client_certificate_data, &auth.client_certificate) {
        (Some(data), _) => base64::engine::general_purpose::STANDARD.decode(data).ok()?,
        (None, Some(path)) => std::fs::read(path).ok()?,
        (None, None) => return None,
    };
    CertificateValidity::of_pem(&pem)
}

/// Returns the configuration for a server without TLS and authentication.
fn without_identity(server: Uri) -> kube_client::Config {
    let mut config = kube_client::Config::new(server);
    // There is nothing to verify. An empty root set also keeps the platform's roots from being read.
    config.root_cert = Some(Vec::new());
    config
}

/// Reads the token file, unless a password or an inline token has precedence over it, as in kube-client.
fn token_file(auth: &AuthInfo, names: CredentialNames) -> Result<WatchedFile<Option<HeaderValue>>, CredentialError> {
    let has_other =
        auth.auth_provider.is_some() || auth.username.is_some() && auth.password.is_some() || auth.token.is_some();
    let Some(path) = auth.token_file.as_ref().filter(|_| !has_other) else { return Ok(WatchedFile::fixed(None)) };
    let token = WatchedFile::load(names.token, vec![path.into()], |files| bearer(&files[0]).map(Some));
    token.map_err(|error| CredentialError::Invalid(format!("token file {path}: {error}")))
}

/// Returns the `Authorization` header for the token in a file.
fn bearer(content: &[u8]) -> Result<HeaderValue, &'static str> {
    match content.trim_ascii() {
        [] => Err("the file is empty"),
        token => HeaderValue::try_from([b"Bearer ", token].concat()).map_err(|_| "the content is not a token"),
    }
}

/// A service that returns a request's headers.
fn echo()
-> impl Service<Request<String>, Response = Response<String>, Error = BoxError, Future: Send> + Clone + Send + Sync {
    service_fn(|request: Request<String>| {
        let mut response = Response::new(String::new());
        *response.headers_mut() = request.into_parts().0.headers;
        ready(Ok::<_, BoxError>(response))
    })
}

impl std::fmt::Debug for UpstreamCredentials {
    /// Formats the credentials without any secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("base", &self.base).finish_non_exhaustive()
    }
}

/// A command that runs another command, which follows its own arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CredentialPluginRunner {
    pub program: String,
    pub arguments: Vec<String>,
}

static RUNNER: OnceLock<CredentialPluginRunner> = OnceLock::new();

/// Runs all exec plugins through this command. Child processes inherit the limits of this process; the command restores
/// the limits that the process was started with (R-HOST-2).
pub fn run_plugins_by(runner: CredentialPluginRunner) {
    // The original limits are determined once, so a second call is ignored.
    let _ = RUNNER.set(runner);
}

/// Changes the plugins of a kubeconfig to run through the runner.
fn set_runner(kubeconfig: &mut Kubeconfig) {
    let Some(runner) = RUNNER.get() else { return };
    let users = kubeconfig.auth_infos.iter_mut().filter_map(|named| named.auth_info.as_mut());
    users.filter_map(|user| user.exec.as_mut()).for_each(|plugin| runner.wrap(plugin));
}

impl CredentialPluginRunner {
    fn wrap(&self, plugin: &mut ExecConfig) {
        // A plugin without a command is refused when it is run.
        let Some(command) = plugin.command.take() else { return };
        let own = plugin.args.take().unwrap_or_default();
        plugin.command = Some(self.program.clone());
        plugin.args = Some(self.arguments.iter().cloned().chain([command]).chain(own).collect());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use metrics_exporter_prometheus::PrometheusBuilder;
    use tokio::sync::Semaphore;

    use super::*;

    /// An exec plugin that hangs must not be started again for each request that is cancelled or gives up.
    #[tokio::test(start_paused = true)]
    async fn cancelled_and_late_requests_share_one_refresh() {
        let source = CredentialSource::Anonymous(Uri::from_static("http://up"));
        let mut credentials =
            UpstreamCredentials::load(&source, &[], CredentialNames::OWN).expect("nothing to read").remove(0);
        let (runs, ends, tasks) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)), BackgroundTasks::new());
        let (counter, end) = (runs.clone(), ends.clone());
        credentials.headers = BoxCloneSyncService::new(service_fn(move |_: Request<String>| {
            counter.fetch_add(1, Ordering::SeqCst);
            let end = end.clone();
            async move {
                end.acquire().await.expect("it is open").forget();
                Ok::<_, BoxError>(Response::new(String::new()))
            }
        }));
        let cancelled = timeout(REFRESH_WAIT_MAX / 2, credentials.headers(&tasks)).await;
        assert!(cancelled.is_err(), "it still waits");
        for _ in 0..3 {
            let late = credentials.headers(&tasks).await.expect_err("the refresh has not ended");
            assert!(matches!(&late, UpstreamError::Credentials(why) if why.contains("has not finished")), "{late}");
        }
        for run in 1..=2 {
            ends.add_permits(1);
            credentials.headers(&tasks).await.expect("the refresh has ended");
            assert_eq!(runs.load(Ordering::SeqCst), run);
        }
    }

    #[test]
    fn expiry_of_client_certificate_is_exported_until_it_is_removed() {
        let path = |what: &str| std::env::temp_dir().join(format!("kube-fanout-{what}-{}", fastrand::u64(..)));
        let paths = ["kubeconfig", "crt", "key"].map(path);
        let [kubeconfig, certificate, key] = &paths;
        let pair = rcgen::KeyPair::generate().expect("a key");
        let mut parameters = rcgen::CertificateParams::new(vec!["proxy".to_owned()]).expect("parameters");
        parameters.not_after = rcgen::date_time_ymd(2021, 2, 3);
        std::fs::write(certificate, parameters.self_signed(&pair).expect("a certificate").pem()).expect("written");
        std::fs::write(key, pair.serialize_pem()).expect("written");
        let recorder = PrometheusBuilder::new().build_recorder();
        let expiry = |user: &str| {
            let text = format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts:\n- {{name: x, context: {{cluster: c, user: u}}}}\n\
                 clusters:\n- {{name: c, cluster: {{server: 'http://127.0.0.1:1'}}}}\nusers:\n- {{name: u, user: {{{user}}}}}\n"
            );
            std::fs::write(kubeconfig, text).expect("written");
            let source = CredentialSource::File(kubeconfig.clone());
            metrics::with_local_recorder(&recorder, || {
                UpstreamCredentials::load(&source, &[], CredentialNames::IMPERSONATOR).expect("usable")
            });
            let rendered = recorder.handle().render();
            let name = "kube_fanout_certificate_expiry_timestamp_seconds{what=\"impersonator_certificate\"} ";
            let value = rendered.lines().find_map(|line| line.strip_prefix(name)).expect("a value");
            value.parse::<f64>().expect("a number")
        };
        let of_files = format!("client-certificate: {}, client-key: {}", certificate.display(), key.display());
        assert!((expiry(&of_files) - 1_612_310_400.0).abs() < 1.0, "midnight before 2021-02-03");
        assert!(expiry("token: t").is_infinite());
        for path in &paths {
            std::fs::remove_file(path).expect("removed");
        }
    }

    #[test]
    fn unusable_cluster_of_a_kubeconfig_is_refused() {
        let path = std::env::temp_dir().join(format!("kube-fanout-plaintext-{}", fastrand::u64(..)));
        let load = |cluster: &str| {
            let cluster = format!("clusters:\n- name: c\n  cluster: {{{cluster}}}\n");
            let rest =
                "users:\n- name: u\n  user: {token: t}\ncontexts:\n- name: x\n  context: {cluster: c, user: u}\n";
            let text = format!("apiVersion: v1\nkind: Config\ncurrent-context: x\n{cluster}{rest}");
            std::fs::write(&path, text).expect("written");
            UpstreamCredentials::load(&CredentialSource::File(path.clone()), &[], CredentialNames::OWN)
        };
        assert!(load("server: 'http://127.0.0.1:1'").is_ok());
        for (cluster, problem) in [
            ("server: 'http://10.1.2.3:6443'", "http://10.1.2.3:6443/ does not use TLS"),
            // The text "none".
            ("server: 'https://up', certificate-authority-data: bm9uZQ==", "authority of upstream has no certificate"),
            ("server: 'https://up', proxy-url: 'http://user:secret@proxy'", "proxy-url is not supported"),
        ] {
            let refused = load(cluster).expect_err(cluster).to_string();
            assert!(refused.contains(problem) && !refused.contains("secret"), "{refused}");
        }
        std::fs::remove_file(&path).expect("removed");
    }

    #[test]
    fn plugin_command_and_arguments_follow_runner_arguments() {
        let runner =
            CredentialPluginRunner { program: "runner".to_owned(), arguments: vec!["run".to_owned(), "--".to_owned()] };
        for (plugin, expected) in [
            ("{command: aws}", Some("runner run -- aws")),
            ("{command: aws, args: [eks, --, get-token]}", Some("runner run -- aws eks -- get-token")),
            ("{args: [eks]}", None),
        ] {
            let user = format!("users:\n- name: u\n  user:\n    exec: {plugin}\n");
            let mut kubeconfig = Kubeconfig::from_yaml(&user).expect("a kubeconfig");
            let user = kubeconfig.auth_infos[0].auth_info.as_mut().expect("it is there");
            let plugin = user.exec.as_mut().expect("a plugin");
            runner.wrap(plugin);
            let command = plugin.command.take().into_iter();
            let arguments: Vec<_> = command.chain(plugin.args.take().unwrap_or_default()).collect();
            match expected {
                Some(expected) => assert_eq!(arguments.join(" "), expected),
                None => assert_eq!(arguments, ["eks"], "there is nothing to run"),
            }
        }
    }
}
