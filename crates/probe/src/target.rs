use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, CONTENT_TYPE, HOST, USER_AGENT};
use http::{HeaderValue, Method, Request, Uri};
use kube_client::Config;
use kube_client::client::ConfigExt as _;
use kube_client::config::{AuthInfo, Kubeconfig};
use rustls::ClientConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::DuplexStream;
use tower::{Layer as _, ServiceExt as _, service_fn};

/// The client credentials and trust settings, shared by all servers of a run.
#[derive(Clone, Debug, Default)]
pub struct TargetCredentials {
    pub kubeconfig: Option<PathBuf>,
    /// A file of certificates to trust in addition to the kubeconfig's.
    pub ca: Option<PathBuf>,
    pub insecure: bool,
    pub client_certificate: Option<PathBuf>,
    pub client_key: Option<PathBuf>,
    pub token_file: Option<PathBuf>,
}

/// The reason that a server's address or credentials cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("cannot use the server URL {url}: {reason}")]
    Url { url: String, reason: String },
    #[error("cannot use the file {path}: {reason}")]
    File { path: PathBuf, reason: String },
    #[error("cannot use the credentials: {0}")]
    Credentials(String),
    #[error("cannot set up TLS: {0}")]
    Tls(String),
}

/// One server: its address, TLS settings and request headers.
#[derive(Clone)]
pub struct TargetServer {
    url: String,
    /// The server's address as `HOST:PORT`.
    authority: String,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    authorization: Option<HeaderValue>,
    agent: HeaderValue,
    /// The in-memory connector that replaces TCP, if there is one.
    memory: Option<InMemoryConnectFn>,
}

/// Opens a connection within this process; returns `None` while nothing listens there.
pub type InMemoryConnectFn = Arc<dyn Fn() -> Option<DuplexStream> + Send + Sync>;

const AGENT: &str = "kube-fanout-bench";

impl TargetCredentials {
    /// Returns the URL of the server that the kubeconfig names.
    ///
    /// # Errors
    /// If there is no kubeconfig, or if it names no server.
    pub fn server(&self) -> Result<String, TargetError> {
        let Some(path) = &self.kubeconfig else {
            return Err(TargetError::Credentials("no kubeconfig was given that could name a server".to_owned()));
        };
        Ok(of_kubeconfig(path)?.cluster_url.to_string().trim_end_matches('/').to_owned())
    }

    /// Resolves the server at `url`, with these credentials.
    ///
    /// # Errors
    /// See [`TargetError`].
    pub async fn target(&self, url: &str) -> Result<TargetServer, TargetError> {
        let fail = |reason: &str| TargetError::Url { url: url.to_owned(), reason: reason.to_owned() };
        let uri: Uri = url.trim_end_matches('/').parse().map_err(|_| fail("it is not a URL"))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(fail("expected http://HOST:PORT or https://HOST:PORT"));
        };
        if !matches!(scheme, "http" | "https") || !matches!(uri.path(), "" | "/") {
            return Err(fail("expected http://HOST:PORT or https://HOST:PORT"));
        }
        let secure = scheme == "https";
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let config = self.config(&uri)?;
        let tls = if secure {
            let tls = config.rustls_client_config().map_err(|error| TargetError::Tls(error.to_string()))?;
            let host = authority.host().trim_matches(['[', ']']);
            let name = config.tls_server_name.clone().unwrap_or_else(|| host.to_owned());
            let name = ServerName::try_from(name).map_err(|error| fail(&error.to_string()))?;
            Some((Arc::new(tls), name))
        } else {
            None
        };
        // Kubeconfig credentials are sent only over TLS, because the server's identity is not verified otherwise.
        let sends_token = secure || self.token_file.is_some();
        let authorization = if sends_token { authorization(&config).await? } else { None };
        let authority = format!("{}:{port}", authority.host());
        let (url, agent) = (url.trim_end_matches('/').to_owned(), HeaderValue::from_static(AGENT));
        Ok(TargetServer { url, authority, tls, authorization, agent, memory: None })
    }

    fn config(&self, uri: &Uri) -> Result<Config, TargetError> {
        let mut config = match &self.kubeconfig {
            Some(path) => of_kubeconfig(path)?,
            None => Config::new(uri.clone()),
        };
        if uri.scheme_str() == Some("http") {
            // Over plain HTTP there is nothing to verify. An empty root set also prevents loading the platform's roots.
            config.root_cert.get_or_insert_default();
        }
        config.cluster_url = uri.clone();
        config.accept_invalid_certs |= self.insecure;
        if let Some(path) = &self.ca {
            let fail = |reason: String| TargetError::File { path: path.clone(), reason };
            let more: Result<Vec<_>, _> =
                CertificateDer::pem_file_iter(path).map_err(|error| fail(error.to_string()))?.collect();
            let more = more.map_err(|error| fail(error.to_string()))?;
            config.root_cert.get_or_insert_default().extend(more.into_iter().map(|der| der.to_vec()));
        }
        let text = |path: &PathBuf| path.to_string_lossy().into_owned();
        if let (Some(certificate), Some(key)) = (&self.client_certificate, &self.client_key) {
            config.auth_info = AuthInfo {
                client_certificate: Some(text(certificate)),
                client_key: Some(text(key)),
                ..AuthInfo::default()
            };
        }
        if let Some(path) = &self.token_file {
            config.auth_info.token = None;
            config.auth_info.token_file = Some(text(path));
        }
        Ok(config)
    }
}

fn of_kubeconfig(path: &Path) -> Result<Config, TargetError> {
    let fail = |reason: String| TargetError::File { path: path.to_owned(), reason };
    let file = Kubeconfig::read_from(path).map_err(|error| fail(error.to_string()))?;
    Config::try_from(file).map_err(|error| fail(error.to_string()))
}

/// Returns the `Authorization` header that kube-client would send now. It is not refreshed, because a run is shorter
/// than the lifetime of a token.
async fn authorization(config: &Config) -> Result<Option<HeaderValue>, TargetError> {
    let fail = |error: &dyn std::fmt::Display| TargetError::Credentials(error.to_string());
    let Some(layer) = config.auth_layer().map_err(|error| fail(&error))? else { return Ok(None) };
    let echo = service_fn(|request: Request<String>| async move {
        let token = request.headers().get(AUTHORIZATION).cloned();
        let mut answer = http::Response::new(String::new());
        answer.headers_mut().extend(token.map(|token| (AUTHORIZATION, token)));
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(answer)
    });
    let answer = layer.layer(echo).oneshot(Request::new(String::new())).await.map_err(|error| fail(&error))?;
    Ok(answer.headers().get(AUTHORIZATION).cloned())
}

impl TargetServer {
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns a server within this process. It has no TLS and no credentials.
    pub fn in_memory(authority: &str, connect: InMemoryConnectFn) -> Self {
        Self {
            url: format!("http://{authority}"),
            authority: authority.to_owned(),
            tls: None,
            authorization: None,
            agent: HeaderValue::from_static(AGENT),
            memory: Some(connect),
        }
    }

    /// Returns the connector to use instead of TCP, if there is one.
    pub fn memory(&self) -> Option<&InMemoryConnectFn> {
        self.memory.as_ref()
    }

    /// Returns the same server with another `User-Agent`.
    #[must_use]
    pub fn by(mut self, agent: &'static str) -> Self {
        self.agent = HeaderValue::from_static(agent);
        self
    }

    /// Returns the server's origin (`SCHEME://HOST:PORT`), for the `Origin` header.
    pub fn origin(&self) -> String {
        format!("{}://{}", if self.tls.is_some() { "https" } else { "http" }, self.authority)
    }

    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns a TLS configuration that offers one ALPN protocol, and the server name to verify.
    pub fn tls(&self, alpn: &[u8]) -> Option<(Arc<ClientConfig>, ServerName<'static>)> {
        let (config, name) = self.tls.as_ref()?;
        let mut config = ClientConfig::clone(config);
        config.alpn_protocols = vec![alpn.to_vec()];
        Some((Arc::new(config), name.clone()))
    }

    /// Builds a request without its body. `absolute` selects the HTTP/2 form (absolute URI); otherwise the HTTP/1.1
    /// form with a `Host` header.
    pub fn request(&self, spec: &RequestSpec<'_>, absolute: bool) -> Result<Request<()>, http::Error> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let uri = if absolute { format!("{scheme}://{}{}", self.authority, spec.path) } else { spec.path.to_owned() };
        let mut request = Request::builder().method(spec.method.clone()).uri(uri).header(USER_AGENT, &self.agent);
        if !spec.accept.is_empty() {
            request = request.header(ACCEPT, spec.accept);
        }
        if !spec.accept_encoding.is_empty() {
            request = request.header(ACCEPT_ENCODING, spec.accept_encoding);
        }
        if !spec.content_type.is_empty() {
            request = request.header(CONTENT_TYPE, spec.content_type);
        }
        if !absolute {
            request = request.header(HOST, &self.authority);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        request.body(())
    }
}

impl std::fmt::Debug for TargetServer {
    /// Prints only the URL, so that no secret is logged.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TargetServer").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The parts of a request that differ between requests.
#[derive(Clone, Debug)]
pub struct RequestSpec<'a> {
    pub method: Method,
    /// The request path with its query.
    pub path: &'a str,
    pub accept: &'a str,
    pub accept_encoding: &'a str,
    pub content_type: &'a str,
}

impl<'a> RequestSpec<'a> {
    pub fn get(path: &'a str, accept: &'a str) -> Self {
        Self { method: Method::GET, path, accept, accept_encoding: "", content_type: "" }
    }
}
