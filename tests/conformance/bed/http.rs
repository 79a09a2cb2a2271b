use std::error::Error as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};

use super::identity::Identity;
use super::watch::{Event, Watch};
use super::{eventually, log_line, within};

/// A server, the CA to trust for it, and the caller's credentials.
#[derive(Debug, Clone)]
pub struct Target {
    pub url: String,
    pub ca: Option<PathBuf>,
    pub identity: Identity,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    H1,
    H2,
}

/// A client of one server. It sends a request unchanged except for the caller's token, and returns the response.
#[derive(Clone)]
pub struct Http {
    target: Target,
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// A request.
#[derive(Debug, Clone)]
pub struct RequestSpec {
    pub method: Method,
    pub path: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A response with its complete body.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// The reason for a missing response.
#[derive(Debug)]
pub struct NoAnswer {
    pub why: String,
    /// Whether the server closed the connection and declared the request unprocessed.
    pub resent: bool,
}

impl Target {
    /// A TLS configuration that trusts this server and presents the caller's certificate, if there is one.
    pub fn tls(&self) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        for certificate in self.ca.iter().flat_map(|path| CertificateDer::pem_file_iter(path).expect("a PEM file")) {
            roots.add(certificate.expect("a certificate")).expect("a trust anchor");
        }
        let tls = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has them")
            .with_root_certificates(roots);
        let Some(own) = &self.identity.certificate else { return tls.with_no_client_auth() };
        let chain =
            CertificateDer::pem_file_iter(own).expect("a PEM file").map(|certificate| certificate.expect("one"));
        let key = PrivateKeyDer::from_pem_file(own).expect("a key");
        tls.with_client_auth_cert(chain.collect(), key).expect("they belong together")
    }

    /// The same server, with another caller's credentials.
    pub fn by(&self, identity: &Identity) -> Self {
        Self { identity: identity.clone(), ..self.clone() }
    }

    /// A kubeconfig with the caller's token. It has no certificate, because a client certificate does not pass a proxy
    /// that terminates TLS.
    pub fn kubeconfig(&self) -> String {
        let ca = self.ca.as_ref().expect("servers have TLS").display().to_string();
        let user = match &self.identity.certificate {
            Some(path) => json!({"client-certificate": path, "client-key": path}),
            None => json!({"token": self.identity.token}),
        };
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": self.url, "certificate-authority": ca}}],
            "users": [{"name": "it", "user": user}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        })
        .to_string()
    }

    /// The origin of a web page from this server.
    pub fn origin(&self) -> &str {
        &self.url
    }

    pub fn host(&self) -> &str {
        self.url.split_once("//").map_or(self.url.as_str(), |(_, host)| host)
    }
}

/// Whether the request failed because the server closed the connection gracefully (GOAWAY with `NO_ERROR`), or refused
/// it unprocessed afterwards (RFC 9113 §8.7).
///
/// After it sends a request, hyper 1.12 polls the connection once more (`proto/h2/client.rs`, the second `poll_ready`).
/// It fails the request if the GOAWAY that follows a 401 has arrived by then. The test
/// `floods::requests_racing_a_goaway_are_processed_or_refused` shows with raw frames that the server itself loses
/// no request.
fn is_goodbye(error: &hyper_util::client::legacy::Error) -> bool {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(h2) = error.downcast_ref::<h2::Error>() {
            let refused = h2.is_reset() && h2.reason() == Some(h2::Reason::REFUSED_STREAM);
            return refused || h2.is_go_away() && h2.reason() == Some(h2::Reason::NO_ERROR);
        }
        cause = error.source();
    }
    false
}

/// How long a read waits for a proof that the cache is current, before the proxy forwards it (docs/CONFIG.md, "Fixed
/// limits").
const PROOF_WITHIN: Duration = Duration::from_secs(3);
/// The start of the error message of a server whose cache did not reach a version in time.
pub const TOO_LARGE: &str = "Too large resource version: ";
/// The reason that the proxy reports when it forwards a read for that.
pub const NO_PROOF: &str = "no_proof";

/// Repeats a read of the current state while the proxy forwards it because no proof arrived within 3 s. Panics if the
/// proxy never has a proof.
pub async fn proven(mut send: impl AsyncFnMut() -> Answer) -> Answer {
    eventually("the proxy proves that its cache is current", async || {
        let started = Instant::now();
        let answer = send().await;
        let is_unproven = answer.is_unproven(started.elapsed());
        if is_unproven {
            log_line("no proof in time");
        }
        (!is_unproven).then_some(answer)
    })
    .await
}

impl Http {
    pub fn new(target: Target, protocol: Protocol) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let tls = HttpsConnectorBuilder::new().with_tls_config(target.tls()).https_or_http();
        let connector = match protocol {
            Protocol::H1 => tls.enable_http1().wrap_connector(tcp),
            Protocol::H2 => tls.enable_http2().wrap_connector(tcp),
        };
        let mut builder = Client::builder(TokioExecutor::new());
        builder.http2_only(protocol == Protocol::H2);
        if protocol == Protocol::H1 {
            // The proxy closes connections that are idle for 10 s. A request that crosses the close is lost.
            builder.pool_timer(TokioTimer::new()).pool_idle_timeout(Duration::from_secs(5));
        }
        let client = builder.build(connector);
        Self { target, client }
    }

    /// Sends a request, and returns when the response head has arrived. If a GET fails because the connection was
    /// closed gracefully, it is sent once more, as every client does.
    pub async fn send(&self, spec: RequestSpec) -> Response<Incoming> {
        let what = format!("{} {}{}", spec.method, self.target.url, spec.path);
        let again = (spec.method == Method::GET).then(|| spec.clone());
        let mut answer = within(&what, self.client.request(self.request(spec))).await;
        if let (Err(error), Some(spec)) = (&answer, again)
            && is_goodbye(error)
        {
            answer = within(&what, self.client.request(self.request(spec))).await;
        }
        answer.unwrap_or_else(|error| panic!("{what}: {error:?}"))
    }

    /// Lists the current state ([`proven`]).
    pub async fn list_now(&self, spec: RequestSpec) -> Answer {
        proven(async || self.fetch(spec.clone()).await).await
    }

    pub async fn fetch(&self, spec: RequestSpec) -> Answer {
        let what = format!("{} {}{}", spec.method, self.target.url, spec.path);
        let (head, body) = self.send(spec).await.into_parts();
        let body = within(&what, body.collect()).await.unwrap_or_else(|error| panic!("{what}: {error:?}"));
        Answer { status: head.status, headers: head.headers, body: body.to_bytes() }
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.fetch(RequestSpec::get(path)).await
    }

    /// Sends a GET to a server that may be down.
    pub async fn try_get(&self, path: &str) -> Option<Answer> {
        let (head, body) = self.try_send(RequestSpec::get(path)).await?.into_parts();
        Some(Answer { status: head.status, headers: head.headers, body: body.collect().await.ok()?.to_bytes() })
    }

    /// Sends a request to a server that may abort the response. The error says why there is no response.
    pub async fn try_fetch(&self, spec: RequestSpec) -> Result<Answer, NoAnswer> {
        let sent = self.client.request(self.request(spec)).await;
        let resent = sent.as_ref().is_err_and(is_goodbye);
        let (head, body) = sent.map_err(|error| NoAnswer { why: format!("{error:?}"), resent })?.into_parts();
        let broken = |error| NoAnswer { why: format!("{} and then {error:?}", head.status), resent: false };
        let body = body.collect().await.map_err(broken)?;
        Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
    }

    /// Sends a request to a server that may be down.
    pub async fn try_send(&self, spec: RequestSpec) -> Option<Response<Incoming>> {
        self.client.request(self.request(spec)).await.ok()
    }

    fn request(&self, spec: RequestSpec) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(spec.body));
        *request.method_mut() = spec.method;
        *request.uri_mut() = format!("{}{}", self.target.url, spec.path).parse().expect("a path");
        *request.headers_mut() = spec.headers;
        let token = &self.target.identity.token;
        if !token.is_empty() {
            let token = HeaderValue::from_str(&format!("Bearer {token}")).expect("a token");
            request.headers_mut().entry(AUTHORIZATION).or_insert(token);
        }
        request
    }

    /// Repeats a request until the response is 200. Before that, a missing object gives 404, and a future version gives
    /// 504.
    pub async fn until_ok(&self, what: &str, spec: RequestSpec) {
        eventually(what, async || (self.fetch(spec.clone()).await.status == 200).then_some(())).await;
    }

    /// Sends a GET and returns the JSON. Panics unless the response is successful.
    pub async fn json(&self, path: &str) -> Value {
        self.get(path).await.ok(path)
    }

    /// Opens a watch. After a 429 with `Retry-After` it retries, as every client does: on a busy machine, a feed may
    /// sync more slowly than the proxy holds a watch for it.
    pub async fn watch(&self, spec: RequestSpec) -> Watch {
        let path = spec.path.clone();
        let let_in = async {
            loop {
                let response = self.send(spec.clone()).await;
                let comes_again = response.status() == StatusCode::TOO_MANY_REQUESTS;
                match response.headers().get(RETRY_AFTER).and_then(|seconds| seconds.to_str().ok()?.parse().ok()) {
                    Some(seconds) if comes_again => tokio::time::sleep(Duration::from_secs(seconds)).await,
                    _ => return response,
                }
            }
        };
        let response = within("a watch is accepted", let_in).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        Watch::new(response)
    }

    /// Opens a watch that begins with the current state, and reads its initial events. If the server's cache did not
    /// reach the current version within 3 s, this opens the watch again, as every client does.
    pub async fn begin(&self, spec: RequestSpec) -> (Vec<Event>, Watch) {
        eventually("a watch begins with the state", async || {
            let mut watch = self.watch(spec.clone()).await;
            let mut events = vec![watch.event().await.expect("the watch continues")];
            if events[0].line.contains(TOO_LARGE) {
                return None;
            }
            while !events.last().is_some_and(Event::ends_initial) {
                events.push(watch.event().await.expect("the watch continues"));
            }
            Some((events, watch))
        })
        .await
    }

    pub async fn create(&self, path: &str, object: Value) -> Value {
        self.fetch(RequestSpec::get(path).with(Method::POST, "application/json", object.to_string())).await.ok(path)
    }

    pub async fn patch(&self, path: &str, patch: Value) -> Value {
        let kind = "application/merge-patch+json";
        self.fetch(RequestSpec::get(path).with(Method::PATCH, kind, patch.to_string())).await.ok(path)
    }

    /// Deletes an object without a grace period, because no kubelet would end one.
    pub async fn delete(&self, path: &str) -> Value {
        let options = r#"{"gracePeriodSeconds":0,"propagationPolicy":"Background"}"#;
        self.fetch(RequestSpec::get(path).with(Method::DELETE, "application/json", options.to_owned())).await.ok(path)
    }

    /// The group, name and path of each watchable resource, in the preferred version of its group.
    pub async fn watchable(&self) -> Vec<(String, String, String)> {
        let groups = self.json("/apis").await;
        let preferred = groups["groups"].as_array().expect("groups").iter().map(|group| {
            let version = group["preferredVersion"]["groupVersion"].as_str().expect("a version");
            (group["name"].as_str().expect("a name").to_owned(), format!("/apis/{version}"))
        });
        let mut found = Vec::new();
        for (group, prefix) in preferred.chain([(String::new(), "/api/v1".to_owned())]) {
            for resource in self.json(&prefix).await["resources"].as_array().expect("resources") {
                let name = resource["name"].as_str().expect("a name").to_owned();
                let watched = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("watch")));
                if watched && !name.contains('/') {
                    found.push((group.clone(), name.clone(), format!("{prefix}/{name}")));
                }
            }
        }
        found
    }

    /// The current resourceVersion of a collection.
    pub async fn version(&self, path: &str) -> u64 {
        version_of(&self.json(&format!("{path}?limit=1")).await)
    }
}

/// The resourceVersion of an object or a list.
pub fn version_of(object: &Value) -> u64 {
    let version = object["metadata"]["resourceVersion"].as_str();
    version.and_then(|version| version.parse().ok()).unwrap_or_else(|| panic!("no version in {object}"))
}

impl RequestSpec {
    /// A GET for JSON like that of a client-go program. Servers do not indent JSON for its user agent.
    pub fn get(path: &str) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static("conformance"));
        Self { method: Method::GET, path: path.to_owned(), headers, body: Bytes::new() }
    }

    pub fn accept(self, accept: &str) -> Self {
        self.header(ACCEPT, accept)
    }

    pub fn header(mut self, name: HeaderName, value: &str) -> Self {
        self.headers.insert(name, HeaderValue::from_str(value).expect("a header value"));
        self
    }

    pub fn method(self, method: Method) -> Self {
        Self { method, ..self }
    }

    pub fn with(self, method: Method, kind: &str, body: String) -> Self {
        Self { method, body: Bytes::from(body), ..self.header(CONTENT_TYPE, kind) }
    }
}

impl Answer {
    pub fn content_type(&self) -> &str {
        self.header("content-type")
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a text header"))
    }

    /// Whether the proxy answered from its cache.
    pub fn is_cached(&self) -> bool {
        self.header("kube-fanout-served") == "cache"
    }

    /// Whether the proxy forwarded the read after it had waited for a proof as long as it may.
    pub fn is_unproven(&self, took: Duration) -> bool {
        took >= PROOF_WITHIN && self.header("kube-fanout-reason") == NO_PROOF
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn value(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {:?}", self.text()))
    }

    fn ok(&self, path: &str) -> Value {
        assert!(self.status.is_success(), "{path}: {} {}", self.status, self.text());
        self.value()
    }
}
