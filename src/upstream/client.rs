use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt as _;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderValue, STRICT_TRANSPORT_SECURITY, USER_AGENT};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Body as _;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ListMeta;
use parking_lot::RwLock;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::timeout;

use super::credentials::CredentialNames;
use super::endpoints::{UpstreamEndpoints, UpstreamEndpointsConfig, UpstreamRequestOrigin};
use super::identity_headers::{RequestIdentity, set_proxy_credentials};
use super::pool::{ForwardPoolKind, UpstreamResponseBody, send_on};
use super::retryable_request::{CountedRequest, UpstreamBody};
use super::transport::{UpstreamTransport, UpstreamTransports};
use super::{
    BODY_BYTES_MAX, CAUSE, CredentialError, CredentialSource, HOPS, STALE, UpstreamCostTotals, UpstreamError,
    UpstreamRequestCause, UpstreamServer,
};
use crate::net::CertificateValidity;
use crate::wire::FeedEncoding;
use base::BackgroundTasks;
use kubeapi::Status;
use tokio::sync::watch;

/// A client of upstream with the proxy's own credentials. Clones share the connections.
#[derive(Clone, Debug)]
pub struct UpstreamClient {
    shared: Arc<UpstreamClientState>,
}

#[derive(Debug)]
struct UpstreamClientState {
    transports: UpstreamTransports,
    costs: UpstreamCostTotals,
    instance: String,
    /// The tasks for requests that outlive the callers that wait for them.
    tasks: BackgroundTasks,
    /// The number of received responses, for tasks that wait until upstream is reachable again.
    responses: watch::Sender<u64>,
    strict_transport: HstsHeader,
}

/// The kind of a request of the proxy: it selects the connections and the timeout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UpstreamRequestKind {
    /// The request is a stream that lives for minutes.
    Watch,
    /// The request has a single response, which is read whole.
    Short,
}

/// The connection of a request of the proxy.
#[derive(Debug, Clone, Copy)]
pub(super) enum ConnectionTarget<'a> {
    /// Any connection to the server in use.
    Any(UpstreamRequestKind),
    /// The one to this server, as long as it is in use.
    Server(&'a UpstreamServer),
}

impl ConnectionTarget<'_> {
    pub(super) const SHORT: Self = Self::Any(UpstreamRequestKind::Short);
}

/// A document that is the same for every caller.
#[derive(Debug, Clone)]
pub struct CachedDocument {
    pub headers: HeaderMap,
    pub body: Bytes,
}

const JSON: &str = "application/json";
const REVIEW_BYTES_MAX: usize = 1 << 20;
/// The timeout for the response head of the proxy's own requests; the apiserver's own limit is 60 s (R-TIMEOUT-2).
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the proxy reads the body of an error.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

impl UpstreamClient {
    /// Reads the credentials, for the server that they name. Sends no request. The cost of later requests is counted in
    /// `costs`.
    pub fn connect(source: &CredentialSource, costs: UpstreamCostTotals) -> Result<Self, CredentialError> {
        let endpoints = UpstreamEndpoints::new(UpstreamEndpointsConfig::default());
        Self::connect_to(source, endpoints, costs, BackgroundTasks::new())
    }

    /// Reads the credentials, for the servers in `endpoints`. `tasks` own the requests that outlive the callers that
    /// wait for them.
    pub fn connect_to(
        source: &CredentialSource,
        endpoints: UpstreamEndpoints,
        costs: UpstreamCostTotals,
        tasks: BackgroundTasks,
    ) -> Result<Self, CredentialError> {
        Ok(Self::of(UpstreamTransports::load(source, endpoints, CredentialNames::OWN)?, costs, tasks))
    }

    /// Reads the kubeconfig of an identity that may only impersonate, for the same servers.
    pub fn impersonator(&self, kubeconfig: &Path) -> Result<Self, CredentialError> {
        let source = CredentialSource::File(kubeconfig.to_owned());
        let transports = UpstreamTransports::load(&source, self.endpoints().clone(), CredentialNames::IMPERSONATOR)?;
        Ok(Self::of(transports, self.costs().clone(), self.tasks().clone()))
    }

    fn of(transports: UpstreamTransports, costs: UpstreamCostTotals, tasks: BackgroundTasks) -> Self {
        let instance = format!("{:016x}", fastrand::u64(..));
        let (responses, strict_transport) = (watch::Sender::new(0), HstsHeader::default());
        Self {
            shared: Arc::new(UpstreamClientState { transports, costs, instance, tasks, responses, strict_transport }),
        }
    }

    /// Creates a client whose connections come from `connect`, for tests with a paused clock.
    #[cfg(test)]
    pub(crate) fn in_memory(connect: impl Fn() -> Option<tokio::io::DuplexStream> + Send + Sync + 'static) -> Self {
        let memory = super::InMemoryUpstream::new(connect, false).without_idle();
        Self::connect(&CredentialSource::Memory(memory), UpstreamCostTotals::default()).expect("nothing is read")
    }

    /// Reloads the credentials whenever their files change; to be spawned once. New requests use the new credentials on
    /// new connections; open streams continue.
    pub async fn reload_credentials(self, every: Duration) {
        let transports = self.shared.transports.clone();
        let check = move || {
            let client = self.clone();
            async move { drop(client.own_user().await) }.boxed()
        };
        transports.reload_credentials(every, check).await;
    }

    /// Calls `on_change` whenever the credentials were reloaded; never returns. Credentials that are not in a file never
    /// change.
    pub async fn watch_credentials(&self, on_change: impl Fn()) {
        let mut transports = self.shared.transports.transports.clone();
        loop {
            transports.changed().await;
            on_change();
        }
    }

    pub(super) fn costs(&self) -> &UpstreamCostTotals {
        &self.shared.costs
    }

    pub(super) fn tasks(&self) -> &BackgroundTasks {
        &self.shared.tasks
    }

    /// Returns the servers of upstream.
    pub fn endpoints(&self) -> &UpstreamEndpoints {
        &self.shared.transports.endpoints
    }

    /// Returns the URL of the server in use.
    pub fn server_url(&self) -> String {
        self.shared.transports.current().server_url()
    }

    /// Returns the URL at which a server was reached.
    pub fn url_of(&self, server: &UpstreamServer) -> String {
        self.shared.transports.at(server.endpoint).server_url()
    }

    /// Returns the validity of the proxy's client certificate, if the credentials have one. Certificates from exec
    /// plugins are not included.
    pub fn client_certificate(&self) -> Option<CertificateValidity> {
        self.shared.transports.current().credentials.client_certificate
    }

    /// Returns the TLS settings that verify upstream's servers, without a client certificate; `None` without TLS.
    pub fn server_verification(&self) -> Option<rustls::ClientConfig> {
        let transport = self.shared.transports.current();
        let is_tls = transport.credentials.base.scheme_str() == Some("https");
        is_tls.then(|| transport.credentials.without_identity().tls)
    }

    /// Returns the identifier of this process, by which it recognizes its own requests.
    pub fn instance(&self) -> &str {
        &self.shared.instance
    }

    /// Returns the `Strict-Transport-Security` header of upstream's last response to a request of the proxy.
    pub fn strict_transport_security(&self) -> Option<HeaderValue> {
        self.shared.strict_transport.get()
    }

    /// Completes when upstream responds to any request after this call, which shows that it is reachable.
    pub async fn next_response(&self) {
        let mut responses = self.shared.responses.subscribe();
        // The sender lives as long as this client, so waiting cannot fail.
        let _ = responses.changed().await;
    }

    /// Sends a GET of the proxy and returns the response, whose body is read by the caller. Any response other than a
    /// success is [`UpstreamError::Refused`].
    pub async fn open(
        &self,
        cause: UpstreamRequestCause,
        kind: UpstreamRequestKind,
        path_and_query: &str,
        accept: &str,
    ) -> Result<Response<UpstreamResponseBody>, UpstreamError> {
        self.send_request(cause, ConnectionTarget::Any(kind), path_and_query, accepting(accept)?, None).await
    }

    /// Sends a GET like [`open`](Self::open), with more headers. A proxy may have compressed the response for them.
    pub async fn open_compressed(
        &self,
        cause: UpstreamRequestCause,
        kind: UpstreamRequestKind,
        path_and_query: &str,
        headers: HeaderMap,
    ) -> Result<Response<UpstreamResponseBody>, UpstreamError> {
        let via = ConnectionTarget::Any(kind);
        Ok(UpstreamResponseBody::inflated(self.send_request(cause, via, path_and_query, headers, None).await?))
    }

    /// Sends a review for a downstream proxy and reads the response. `hops` names the proxies below and this proxy.
    pub async fn review(
        &self,
        cause: UpstreamRequestCause,
        path: &str,
        hops: HeaderValue,
        body: Bytes,
    ) -> Result<Bytes, UpstreamError> {
        let headers = HeaderMap::from_iter([(HOPS, hops)]);
        let response = self.send_request(cause, ConnectionTarget::SHORT, path, headers, Some(body)).await?;
        self.read_at_most(response, REVIEW_BYTES_MAX).await
    }

    /// Sends a GET of the proxy or, with a body in JSON, a POST for a response in JSON. Waits for the response. Any
    /// response other than a success is read and returned as [`UpstreamError::Refused`].
    pub(super) async fn send_request(
        &self,
        cause: UpstreamRequestCause,
        via: ConnectionTarget<'_>,
        path_and_query: &str,
        headers: HeaderMap,
        body: Option<Bytes>,
    ) -> Result<Response<UpstreamResponseBody>, UpstreamError> {
        let (at, is_stream) = match via {
            ConnectionTarget::Any(kind) => (self.endpoints().current(), kind == UpstreamRequestKind::Watch),
            ConnectionTarget::Server(server) => (server.endpoint, false),
        };
        let counter = self.shared.costs.counter(cause, is_stream);
        let transport = self.shared.transports.at(at);
        let request = self.build_request(&transport, cause, path_and_query, headers, body).await?;
        let outgoing = CountedRequest { request, counter, flow: None };
        let responding = async {
            let pool = match via {
                ConnectionTarget::Any(UpstreamRequestKind::Watch) => &transport.watches,
                ConnectionTarget::Any(UpstreamRequestKind::Short) => &transport.short,
                ConnectionTarget::Server(server) => {
                    let stream = transport.watches.acquire_on(server).or_else(|| transport.short.acquire_on(server));
                    return match stream {
                        Some(stream) => send_on(stream, outgoing).await,
                        // The credentials have been reloaded since, and so have the connections.
                        None => transport.short.send(outgoing).await,
                    };
                }
            };
            self.endpoints().watch_response(at, UpstreamRequestOrigin::Proxy, pin!(pool.send(outgoing))).await
        };
        let response =
            timeout(RESPONSE_TIMEOUT, responding).await.map_err(|_| UpstreamError::Timeout(RESPONSE_TIMEOUT))??;
        self.record_response();
        self.shared.transports.record_status(response.status().as_u16());
        self.shared.strict_transport.update(response.headers());
        if response.status().is_success() {
            if response.headers().contains_key(STALE) {
                self.endpoints().report_failure(at);
            }
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        if head.status.is_server_error() && matches!(via, ConnectionTarget::Any(_)) {
            self.endpoints().report_failure(at);
        }
        // The code decides what follows, so a body that arrives slowly must not delay it.
        let body = timeout(STATUS_TIMEOUT, read_whole(body, STATUS_BYTES_MAX, |_| Ok(()))).await;
        let status = read_status(&head, &body.unwrap_or(Ok(Bytes::new())).unwrap_or_default());
        Err(UpstreamError::Refused(Box::new(status)))
    }

    /// Sends a GET of the proxy to one of the servers, on a connection that is not reused. Returns the status code of
    /// the response.
    pub(super) async fn send_to_server(&self, endpoint: usize, path: &str) -> Result<u16, UpstreamError> {
        let transport = self.shared.transports.at(endpoint);
        let cause = UpstreamRequestCause::Readiness;
        let request = self.build_request(&transport, cause, path, HeaderMap::new(), None).await?;
        let counter = self.shared.costs.counter(cause, false);
        Ok(transport.tunnels.send(CountedRequest { request, counter, flow: None }).await?.status().as_u16())
    }

    /// Builds a request with the credentials of a transport to upstream.
    async fn build_request(
        &self,
        transport: &UpstreamTransport,
        cause: UpstreamRequestCause,
        path_and_query: &str,
        mut headers: HeaderMap,
        body: Option<Bytes>,
    ) -> Result<Request<UpstreamBody>, UpstreamError> {
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("kube-fanout/", env!("CARGO_PKG_VERSION"))));
        headers.insert(CAUSE, HeaderValue::from_static(cause.as_str()));
        let ourselves = || HeaderValue::from_str(self.instance()).expect("hexadecimal digits");
        // A request on behalf of another proxy already names the proxies below.
        headers.entry(HOPS).or_insert_with(ourselves);
        let method = if body.is_some() { Method::POST } else { Method::GET };
        if body.is_some() {
            headers.extend([ACCEPT, CONTENT_TYPE].map(|name| (name, HeaderValue::from_static(JSON))));
        }
        headers.extend(transport.credentials.headers(self.tasks()).await?);
        let body = Full::new(body.unwrap_or_default()).map_err(|never| match never {}).boxed_unsync();
        let mut request = Request::new(body);
        *request.method_mut() = method;
        *request.uri_mut() = transport.uri(path_and_query)?;
        *request.headers_mut() = headers;
        Ok(request)
    }

    /// Sends a GET of the proxy and reads the whole body. Returns the encoding from Content-Type, and the body.
    pub async fn fetch(
        &self,
        cause: UpstreamRequestCause,
        path_and_query: &str,
        accept: &str,
    ) -> Result<(Option<FeedEncoding>, Bytes), UpstreamError> {
        let response = self.open(cause, UpstreamRequestKind::Short, path_and_query, accept).await?;
        let encoding = encoding_of(&response);
        Ok((encoding, self.read(response).await?))
    }

    /// Requests a document of at most `bytes_max` bytes, as long as `goes_on` returns `Ok` for the bytes of memory that
    /// it occupies so far. Returns `None` if it still has the `ETag` in `headers`.
    pub async fn document(
        &self,
        path: &str,
        headers: HeaderMap,
        bytes_max: usize,
        goes_on: impl FnMut(usize) -> Result<(), UpstreamError>,
    ) -> Result<Option<CachedDocument>, UpstreamError> {
        let cause = UpstreamRequestCause::Discovery;
        match self.send_request(cause, ConnectionTarget::SHORT, path, headers, None).await {
            Ok(response) => {
                let headers = response.headers().clone();
                let body = read_whole(response.into_body(), bytes_max, goes_on).await?;
                Ok(Some(CachedDocument { headers, body }))
            }
            Err(error) if error.code() == Some(304) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the whole body of a response. Fails with [`UpstreamError::TooLarge`] if it exceeds `bytes_max`.
    pub async fn read_at_most(
        &self,
        response: Response<UpstreamResponseBody>,
        bytes_max: usize,
    ) -> Result<Bytes, UpstreamError> {
        read_whole(response.into_body(), bytes_max, |_| Ok(())).await
    }

    /// Reads the whole body of a response to a request of the proxy.
    pub async fn read(&self, response: Response<UpstreamResponseBody>) -> Result<Bytes, UpstreamError> {
        read_whole(response.into_body(), BODY_BYTES_MAX, |_| Ok(())).await
    }

    /// Reads the whole body of a response, as long as `goes_on` returns `Ok`; `goes_on` receives the bytes of memory
    /// that the body occupies so far.
    pub async fn read_while(
        &self,
        response: Response<UpstreamResponseBody>,
        goes_on: impl FnMut(usize) -> Result<(), UpstreamError>,
    ) -> Result<Bytes, UpstreamError> {
        read_whole(response.into_body(), BODY_BYTES_MAX, goes_on).await
    }

    /// Sends a caller's request with `identity`: with the proxy's credentials or with its own one. With
    /// the proxy's, impersonation headers are kept: upstream decides whether the proxy may impersonate that user.
    pub(super) async fn send(
        &self,
        identity: &RequestIdentity,
        lane: ForwardPoolKind,
        mut request: Request<UpstreamBody>,
    ) -> Result<Response<UpstreamResponseBody>, UpstreamError> {
        let transport = self.shared.transports.current();
        transport.set_authority(&mut request)?;
        let is_own = matches!(identity, RequestIdentity::ProxyItself | RequestIdentity::User(_));
        if is_own {
            let credentials = transport.credentials.headers(self.tasks()).await?;
            set_proxy_credentials(request.headers_mut(), credentials)?;
        }
        let counter = self.shared.costs.counter(UpstreamRequestCause::Forwarded, lane != ForwardPoolKind::Short);
        let flow = if request.body().is_end_stream() { None } else { identity.flow() };
        let outgoing = CountedRequest { request, counter, flow };
        let sending = pin!(async {
            match lane {
                _ if !is_own => transport.caller_pools.send(identity, lane, outgoing).await,
                ForwardPoolKind::Short => transport.forwards.here().send(outgoing).await,
                ForwardPoolKind::Stream => transport.streams.send(outgoing).await,
                ForwardPoolKind::Tunnel => transport.tunnels.send(outgoing).await,
            }
        });
        let endpoint = transport.credentials.endpoint;
        let response = self.endpoints().watch_response(endpoint, UpstreamRequestOrigin::Caller, sending).await?;
        if is_own && response.status().as_u16() == 401 {
            self.shared.transports.are_doubted.store(true, Ordering::Relaxed);
        }
        Ok(response)
    }

    pub(super) fn record_response(&self) {
        if self.shared.responses.receiver_count() > 0 {
            self.shared.responses.send_modify(|count| *count = count.wrapping_add(1));
        }
    }
}

/// Returns the header of a GET for this media type.
pub(super) fn accepting(media_type: &str) -> Result<HeaderMap, UpstreamError> {
    let value = HeaderValue::from_str(media_type).map_err(|error| UpstreamError::InvalidRequest(error.to_string()))?;
    Ok(HeaderMap::from_iter([(ACCEPT, value)]))
}

const STATUS_BYTES_MAX: usize = 1 << 20;
/// The maximum silence between two frames of a response that is read as a whole.
const BODY_SILENCE_MAX: Duration = Duration::from_secs(30);

/// Returns the encoding that the Content-Type of the response names.
pub(crate) fn encoding_of<B>(response: &Response<B>) -> Option<FeedEncoding> {
    let content_type = response.headers().get(http::header::CONTENT_TYPE)?.to_str().ok()?;
    FeedEncoding::from_content_type(content_type)
}

/// Reads the whole body of a response, as long as `goes_on` returns `Ok`.
pub(super) async fn read_whole(
    mut body: UpstreamResponseBody,
    bytes_max: usize,
    mut goes_on: impl FnMut(usize) -> Result<(), UpstreamError>,
) -> Result<Bytes, UpstreamError> {
    let mut whole = BytesMut::new();
    while let Some(data) =
        timeout(BODY_SILENCE_MAX, body.data()).await.map_err(|_| UpstreamError::Timeout(BODY_SILENCE_MAX))??
    {
        if whole.len() + data.len() > bytes_max {
            return Err(UpstreamError::TooLarge(bytes_max));
        }
        whole.extend_from_slice(&data);
        goes_on(whole.capacity())?;
    }
    Ok(whole.freeze())
}

/// Reads the Status of a refusal. If the body is not a Status, one is made from the HTTP code. The `Retry-After` header
/// applies if the Status has no retry delay.
pub fn read_status(head: &http::response::Parts, body: &[u8]) -> Status {
    let code = head.status.as_u16();
    let parsed = if body.starts_with(b"k8s\0") { Status::from_protobuf(body) } else { Status::from_json(body) };
    let mut status = parsed.unwrap_or_else(|_| {
        let text = String::from_utf8_lossy(&body[..body.len().min(512)]);
        // An error page of a load balancer has many lines.
        Status::from_code(code, &text.split_whitespace().collect::<Vec<_>>().join(" "))
    });
    if status.code == 0 {
        status.code = i32::from(code);
    }
    let retry_after = head.headers.get(http::header::RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
    if let (None, Some(seconds)) = (status.retry_after_seconds(), retry_after) {
        status.set_retry_after(seconds);
    }
    status
}

/// A page of a list in JSON. Its objects are not decoded.
#[derive(Debug, Default, Deserialize)]
pub struct JsonListPage<'a> {
    pub metadata: ListMeta,
    #[serde(borrow, default)]
    pub items: Vec<&'a RawValue>,
}

/// Parses a document in JSON that upstream returned for `path`.
///
/// # Errors
/// It has another form. The error names the path only, because serde's could quote credentials of a review.
pub fn parse_json<'a, T: Deserialize<'a>>(document: &'a [u8], path: &str) -> Result<T, UpstreamError> {
    serde_json::from_slice(document).map_err(|_| UpstreamError::OtherDocument(path.to_owned()))
}

/// Upstream's `Strict-Transport-Security` header (`--strict-transport-security-directives`), learned from its responses
/// to the proxy's own requests.
#[derive(Debug, Default)]
struct HstsHeader {
    /// Whether the server has sent the header. Most servers send none, and readers then take no lock.
    is_sent: AtomicBool,
    value: RwLock<Option<HeaderValue>>,
}

impl HstsHeader {
    fn update(&self, headers: &HeaderMap) {
        let received = headers.get(STRICT_TRANSPORT_SECURITY);
        if received.is_none() && !self.is_sent.load(Ordering::Relaxed) || received == self.value.read().as_ref() {
            return;
        }
        *self.value.write() = received.cloned();
        self.is_sent.store(received.is_some(), Ordering::Relaxed);
    }

    fn get(&self) -> Option<HeaderValue> {
        if self.is_sent.load(Ordering::Relaxed) { self.value.read().clone() } else { None }
    }
}

#[cfg(test)]
mod tests;
