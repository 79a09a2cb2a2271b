use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{ACCEPT, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, USER_AGENT};
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::time::timeout;

use super::acting_as::CredentialId;
use super::credentials::put_all;
use super::endpoints::{Endpoints, EndpointsConfig, RequestOrigin};
use super::identity_headers::{NestedImpersonation, put_ours};
use super::link::{CredentialChanges, Link, Links};
use super::outgoing::{CountedRequest, UpstreamBody};
use super::pool::ResponseBody;
use super::strict_transport::HstsHeader;
use super::{BODY_BYTES_MAX, CAUSE, Cause, CostLedger, CredentialError, CredentialSource, Error, Server, Unsendable};
use crate::net::CertificateValidity;
use crate::wire::Encoding;
use base::Tasks;
use kubeapi::{FlowDistinguisher, Status};
use tokio::sync::watch;

/// A client of upstream with the proxy's own credentials. Clones share the connections.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    links: Links,
    costs: CostLedger,
    instance: String,
    /// The tasks for requests that outlive the callers that wait for them.
    tasks: Tasks,
    /// The number of received responses, for tasks that wait until upstream is reachable again.
    answered: watch::Sender<u64>,
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

/// A document that is the same for every caller.
#[derive(Debug, Clone)]
pub struct SharedDocument {
    pub headers: HeaderMap,
    pub body: Bytes,
}

const JSON: &str = "application/json";
const REVIEW_BYTES_MAX: usize = 1 << 20;
/// The maximum size in bytes of a document that callers share.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;
/// The timeout for the response head of the proxy's own requests; the apiserver's own limit is 60 s (R-TIMEOUT-2).
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

impl Client {
    /// Reads the credentials, for the server that they name. Sends no request. The cost of later requests is counted in
    /// `costs`.
    pub fn connect(source: &CredentialSource, costs: CostLedger) -> Result<Self, CredentialError> {
        Self::connect_to(source, Endpoints::new(EndpointsConfig::default()), costs, Tasks::new())
    }

    /// Reads the credentials, for the servers in `endpoints`. `tasks` own the requests that outlive the callers that
    /// wait for them.
    pub fn connect_to(
        source: &CredentialSource,
        endpoints: Endpoints,
        costs: CostLedger,
        tasks: Tasks,
    ) -> Result<Self, CredentialError> {
        Ok(Self::of(Links::load(source, endpoints)?, costs, tasks))
    }

    /// Creates a client whose connections come from `connect`, for tests with a paused clock.
    #[cfg(test)]
    pub(crate) fn in_memory(connect: impl Fn() -> Option<tokio::io::DuplexStream> + Send + Sync + 'static) -> Self {
        let memory = super::InMemoryUpstream::new(connect, false).without_idle();
        Self::connect(&CredentialSource::Memory(memory), CostLedger::default()).expect("nothing is read")
    }

    pub(super) fn of(links: Links, costs: CostLedger, tasks: Tasks) -> Self {
        let instance = format!("{:016x}", fastrand::u64(..));
        let (answered, strict_transport) = (watch::Sender::new(0), HstsHeader::default());
        let shared = Shared { links, costs, instance, tasks, answered, strict_transport };
        Self { shared: Arc::new(shared) }
    }

    /// Reloads the credentials whenever their files change; to be spawned once. New requests use the new credentials on
    /// new connections; open streams continue.
    pub async fn keep_up(self, every: Duration) {
        self.shared.links.clone().keep_up(every).await;
    }

    /// Returns a receiver of credential changes.
    pub fn credentials(&self) -> CredentialChanges {
        self.shared.links.changes()
    }

    pub(super) fn tasks(&self) -> &Tasks {
        &self.shared.tasks
    }

    /// Returns the servers of upstream.
    pub fn endpoints(&self) -> &Endpoints {
        &self.shared.links.endpoints
    }

    /// Returns the URL of the server in use.
    pub fn server_url(&self) -> String {
        self.shared.links.current().credentials.base.to_string().trim_end_matches('/').to_owned()
    }

    /// Returns the validity of the proxy's client certificate, if the credentials have one. Certificates from exec
    /// plugins are not included.
    pub fn client_certificate(&self) -> Option<CertificateValidity> {
        self.shared.links.current().credentials.client_certificate
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
    pub async fn answers(&self) {
        let mut answered = self.shared.answered.subscribe();
        // The sender lives as long as this client, so waiting cannot fail.
        let _ = answered.changed().await;
    }

    /// Sends a GET of the proxy and returns the response, whose body is read by the caller. Any response other than a
    /// success is [`Error::Refused`].
    pub async fn open(
        &self,
        cause: Cause,
        kind: UpstreamRequestKind,
        path_and_query: &str,
        accept: &str,
    ) -> Result<Response<ResponseBody>, Error> {
        let request = Request::builder().method(Method::GET).header(ACCEPT, accept);
        self.ask(cause, kind, path_and_query, request, Bytes::new()).await
    }

    /// Sends a POST of the proxy and reads the response; both bodies are JSON.
    pub(super) async fn post(&self, cause: Cause, path: &str, body: Vec<u8>) -> Result<Bytes, Error> {
        let request = Request::builder().method(Method::POST).header(ACCEPT, JSON).header(CONTENT_TYPE, JSON);
        self.read(self.ask(cause, UpstreamRequestKind::Short, path, request, body.into()).await?).await
    }

    /// Sends a review for a downstream proxy and reads the response. `hops` names the proxies below and this proxy.
    pub async fn review(&self, cause: Cause, path: &str, hops: HeaderValue, body: Bytes) -> Result<Bytes, Error> {
        let request = Request::builder().method(Method::POST).header(super::HOPS, hops);
        let request = request.header(ACCEPT, JSON).header(CONTENT_TYPE, JSON);
        self.read_at_most(self.ask(cause, UpstreamRequestKind::Short, path, request, body).await?, REVIEW_BYTES_MAX)
            .await
    }

    async fn ask(
        &self,
        cause: Cause,
        kind: UpstreamRequestKind,
        path_and_query: &str,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<Response<ResponseBody>, Error> {
        let counter = self.shared.costs.counter(cause, kind == UpstreamRequestKind::Watch);
        let link = self.shared.links.current();
        let request = self.prepared(&link, cause, path_and_query, request, body).await?;
        let (at, outgoing) = (link.credentials.endpoint, CountedRequest { request, counter });
        let sending = pin!(async {
            match kind {
                UpstreamRequestKind::Watch => link.watches.ask(outgoing).await,
                UpstreamRequestKind::Short => link.short.send(outgoing).await,
            }
        });
        let answer = self.taken(self.endpoints().heed(at, RequestOrigin::Proxy, sending)).await;
        if answer.as_ref().is_err_and(|error| error.code().is_some_and(|code| code >= 500)) {
            self.endpoints().raise(at);
        }
        answer
    }

    /// Sends a GET of the proxy to one of the servers, on a connection that is not reused. Returns the status code of
    /// the response.
    pub(super) async fn ask_server(&self, endpoint: usize, path: &str) -> Result<u16, Error> {
        let link = self.shared.links.at(endpoint);
        let request = Request::builder().method(Method::GET);
        let request = self.prepared(&link, Cause::Readiness, path, request, Bytes::new()).await?;
        let counter = self.shared.costs.counter(Cause::Readiness, false);
        Ok(link.tunnels.send(CountedRequest { request, counter }).await?.status().as_u16())
    }

    /// Sends a GET of the proxy on the connection to `server`, as long as that connection is in use.
    pub(super) async fn open_beside(
        &self,
        cause: Cause,
        server: &Server,
        path_and_query: &str,
        accept: &str,
    ) -> Result<Response<ResponseBody>, Error> {
        let request = Request::builder().method(Method::GET).header(ACCEPT, accept);
        let link = self.shared.links.at(server.endpoint);
        let request = self.prepared(&link, cause, path_and_query, request, Bytes::new()).await?;
        let outgoing = CountedRequest { request, counter: self.shared.costs.counter(cause, false) };
        let sending = async {
            match link.watches.send_beside(server, outgoing).await {
                Ok(sent) => sent,
                Err(outgoing) => match link.short.send_beside(server, outgoing).await {
                    Ok(sent) => sent,
                    // The credentials have been reloaded since, and so have the connections.
                    Err(outgoing) => link.short.send(outgoing).await,
                },
            }
        };
        self.taken(sending).await
    }

    /// Builds a request with the credentials of a link to upstream.
    async fn prepared(
        &self,
        link: &Link,
        cause: Cause,
        path_and_query: &str,
        request: http::request::Builder,
        body: Bytes,
    ) -> Result<Request<UpstreamBody>, Error> {
        let mut request = request
            .uri(link.uri(path_and_query)?)
            .header(USER_AGENT, concat!("kube-fanout/", env!("CARGO_PKG_VERSION")))
            .header(CAUSE, cause.as_str())
            .body(Full::new(body).map_err(|never| match never {}).boxed_unsync())
            .map_err(|error| Error::InvalidRequest(error.to_string()))?;
        let ourselves = || HeaderValue::from_str(self.instance()).expect("hexadecimal digits");
        // A request on behalf of another proxy already names the proxies below.
        request.headers_mut().entry(super::HOPS).or_insert_with(ourselves);
        put_all(request.headers_mut(), link.credentials.headers().await?);
        Ok(request)
    }

    /// Waits for the response. Any response other than a success is read and returned as [`Error::Refused`].
    async fn taken(
        &self,
        sending: impl Future<Output = Result<Response<ResponseBody>, Error>>,
    ) -> Result<Response<ResponseBody>, Error> {
        let response = timeout(ANSWER_TIMEOUT, sending).await.map_err(|_| Error::Timeout(ANSWER_TIMEOUT))??;
        self.note_answer();
        self.shared.strict_transport.learn(response.headers());
        if response.status().is_success() {
            return Ok(response);
        }
        let (head, body) = response.into_parts();
        let body = read_whole(body, STATUS_BYTES_MAX, |_| Ok(())).await.unwrap_or_default();
        Err(Error::Refused(Box::new(read_status(&head, &body))))
    }

    /// Sends a GET of the proxy and reads the whole body. Returns the encoding from Content-Type, and the body.
    pub async fn fetch(
        &self,
        cause: Cause,
        path_and_query: &str,
        accept: &str,
    ) -> Result<(Option<Encoding>, Bytes), Error> {
        let response = self.open(cause, UpstreamRequestKind::Short, path_and_query, accept).await?;
        let encoding = encoding_of(&response);
        Ok((encoding, self.read(response).await?))
    }

    /// Sends a GET of the proxy. Returns the `ETag` and the body of the response, or `None` if the document still has
    /// the `ETag` `known`.
    pub(super) async fn fetch_changed(
        &self,
        cause: Cause,
        path: &str,
        accept: &str,
        known: Option<&HeaderValue>,
    ) -> Result<Option<(Option<HeaderValue>, Bytes)>, Error> {
        let mut request = Request::builder().method(Method::GET).header(ACCEPT, accept);
        if let Some(known) = known {
            request = request.header(IF_NONE_MATCH, known);
        }
        match self.ask(cause, UpstreamRequestKind::Short, path, request, Bytes::new()).await {
            Ok(response) => {
                let etag = response.headers().get(ETAG).cloned();
                Ok(Some((etag, self.read(response).await?)))
            }
            Err(error) if known.is_some() && error.code() == Some(304) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Requests a document that callers share. Returns `None` if it still has the `ETag` in `headers`.
    pub async fn document(&self, path: &str, headers: HeaderMap) -> Result<Option<SharedDocument>, Error> {
        let mut request = Request::builder().method(Method::GET);
        request.headers_mut().into_iter().for_each(|to| to.clone_from(&headers));
        match self.ask(Cause::Discovery, UpstreamRequestKind::Short, path, request, Bytes::new()).await {
            Ok(response) => {
                let headers = response.headers().clone();
                Ok(Some(SharedDocument { headers, body: self.read_at_most(response, DOCUMENT_BYTES_MAX).await? }))
            }
            Err(error) if error.code() == Some(304) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the whole body of a response. Fails with [`Error::TooLarge`] if it exceeds `bytes_max`.
    pub async fn read_at_most(&self, response: Response<ResponseBody>, bytes_max: usize) -> Result<Bytes, Error> {
        read_whole(response.into_body(), bytes_max, |_| Ok(())).await
    }

    /// Reads the whole body of a response to a request of the proxy.
    pub async fn read(&self, response: Response<ResponseBody>) -> Result<Bytes, Error> {
        read_whole(response.into_body(), BODY_BYTES_MAX, |_| Ok(())).await
    }

    /// Reads the whole body of a response, as long as `goes_on` returns `Ok`; `goes_on` receives the bytes of memory
    /// that the body occupies so far.
    pub async fn read_while(
        &self,
        response: Response<ResponseBody>,
        goes_on: impl FnMut(usize) -> Result<(), Error>,
    ) -> Result<Bytes, Error> {
        read_whole(response.into_body(), BODY_BYTES_MAX, goes_on).await
    }

    /// Sends a caller's request with the proxy's credentials instead of the caller's. Impersonation headers are kept:
    /// upstream decides whether the proxy may impersonate that user.
    pub(super) async fn send(
        &self,
        lane: super::ForwardPool,
        mut request: Request<UpstreamBody>,
    ) -> Result<Response<ResponseBody>, Error> {
        let link = self.shared.links.current();
        link.readdress(&mut request)?;
        let ours = link.credentials.headers().await?;
        put_ours(request.headers_mut(), ours).map_err(|NestedImpersonation| Unsendable::Nested)?;
        let pool = match lane {
            super::ForwardPool::Short => link.forwards.here(),
            super::ForwardPool::Stream => &link.long,
            super::ForwardPool::Tunnel => &link.tunnels,
        };
        let sending = pin!(pool.send(self.forwarded(lane, request)));
        self.endpoints().heed(link.credentials.endpoint, RequestOrigin::Caller, sending).await
    }

    fn forwarded(&self, lane: super::ForwardPool, request: Request<UpstreamBody>) -> CountedRequest {
        let is_stream = lane != super::ForwardPool::Short;
        CountedRequest { request, counter: self.shared.costs.counter(Cause::PassedThrough, is_stream) }
    }

    /// Sends a caller's request with its own credential, on connections that only that credential uses. Without a
    /// credential of a known user, it uses a connection that is not reused.
    pub(super) async fn send_bare(
        &self,
        credential: Option<(CredentialId, &FlowDistinguisher)>,
        lane: super::ForwardPool,
        mut request: Request<UpstreamBody>,
    ) -> Result<Response<ResponseBody>, Error> {
        let link = self.shared.links.current();
        link.readdress(&mut request)?;
        let outgoing = self.forwarded(lane, request);
        let sending = pin!(async {
            match credential {
                Some(credential) => link.caller_pools.send(credential, lane, outgoing).await,
                None => link.caller_pools.send_once(outgoing).await,
            }
        });
        self.endpoints().heed(link.credentials.endpoint, RequestOrigin::Caller, sending).await
    }

    pub(super) fn note_answer(&self) {
        if self.shared.answered.receiver_count() > 0 {
            self.shared.answered.send_modify(|answers| *answers = answers.wrapping_add(1));
        }
    }
}

const STATUS_BYTES_MAX: usize = 1 << 20;
/// The maximum silence between two frames of a response that is read as a whole.
const BODY_SILENCE_MAX: Duration = Duration::from_secs(30);

/// Returns the encoding that the Content-Type of the response names.
pub(crate) fn encoding_of<B>(response: &Response<B>) -> Option<Encoding> {
    let content_type = response.headers().get(http::header::CONTENT_TYPE)?.to_str().ok()?;
    Encoding::from_content_type(content_type)
}

async fn read_whole(
    mut body: ResponseBody,
    bytes_max: usize,
    mut goes_on: impl FnMut(usize) -> Result<(), Error>,
) -> Result<Bytes, Error> {
    let mut whole = BytesMut::new();
    while let Some(frame) =
        timeout(BODY_SILENCE_MAX, body.frame()).await.map_err(|_| Error::Timeout(BODY_SILENCE_MAX))?
    {
        if let Ok(data) = frame.map_err(Error::Broken)?.into_data() {
            if whole.len() + data.len() > bytes_max {
                return Err(Error::TooLarge(bytes_max));
            }
            whole.extend_from_slice(&data);
            goes_on(whole.capacity())?;
        }
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
        Status::from_code(code, text.trim())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_accepts_only_seconds() {
        let later = "Wed, 25 Nov 2026 07:28:00 GMT";
        for (header, seconds) in [
            ("3", Some(3)),
            ("86400", Some(86_400)),
            ("0", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
            ("", None),
            ("99999999999", None),
            (later, None),
        ] {
            let refused = http::Response::builder().status(429).header(http::header::RETRY_AFTER, header);
            let (head, ()) = refused.body(()).expect("a header").into_parts();
            assert_eq!(read_status(&head, b"").retry_after_seconds(), seconds, "{header:?}");
        }
        // The delay in the Status has precedence over the header.
        let refused = http::Response::builder().status(503).header(http::header::RETRY_AFTER, "9").body(());
        let (head, ()) = refused.expect("a header").into_parts();
        let mut status = Status::service_unavailable("later");
        status.set_retry_after(2);
        assert_eq!(read_status(&head, &status.to_json()).retry_after_seconds(), Some(2));
    }
}
