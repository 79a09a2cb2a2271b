//! The way of a request through the proxy, in stages:
//!
//! ```text
//! UnauthenticatedRequest ─screen─► ─authenticate─► caller ─check_caller─► ReadRequest
//!     ─dispatch: route, authorize, serve or forward─► response ─record─► ─finish─► response
//! ```
//!
//! `screen` and `check_caller` may respond to the request themselves. Of the responses of `screen`, only the audit log
//! has a record.

mod page_authorizer;
mod request_router;
mod self_review;

use std::sync::Arc;

use http::header::{HeaderValue, STRICT_TRANSPORT_SECURITY, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Version};
use tokio::time::Instant;

pub use self::page_authorizer::PageAuthorizer;

use crate::auth::{Caller, ClientConnectionInfo, GrantError, ReviewRateLimitKey};
use crate::net::{ConnectionPeer, ListenAddress, PeerAddress, RequestBody};
use crate::serve::activity::metrics::WatchMetricsRegistry;
use crate::serve::activity::{UserAndAgent, metrics};
use crate::serve::audit::{AuditRecord, ServedLocally};
use crate::serve::forward::{ForwardHandler, RequestCoalescer};
use crate::serve::peers::{DownstreamReviewHandler, health};
use crate::serve::read::{DiscoveryCache, FeedResolver, ReadHandler, ReadRequest, ScanScheduler};
use crate::serve::response::{
    AUDIT_ID, REASON, REFUSED_BY, ResponseBody, ResponseContext, auth_refusal, expectation_failed,
    has_unsupported_expect, malformed, new_audit_id, too_many_waiting, unavailable,
};
use crate::serve::route::CacheCoverage;
use crate::serve::serve_components::ServeComponents;
use crate::serve::serve_config::{ListenerRoles, ServeConfig};
use crate::serve::watch::WatchOpener;
use crate::upstream::{SERVED, inspect};
use kubeapi::{FlowDistinguisher, RequestInfo, RequestInfoError, Status, UrlQuery, targets_workload};

/// Receives requests, authenticates their senders, authorizes the requests, and passes each to the part that serves or
/// forwards it.
#[derive(Debug)]
pub struct HttpFrontend {
    reader: ReadHandler,
    watches: WatchOpener,
    forwarding: ForwardHandler,
    discovery: DiscoveryCache,
    reviews: DownstreamReviewHandler,
    shared: Arc<ServeComponents>,
}

/// What was parsed from the method, path and query of a request.
type ParsedRequestInfo = Result<Box<RequestInfo>, RequestInfoError>;

/// A request whose caller is not authenticated yet.
struct UnauthenticatedRequest {
    http: Request<RequestBody>,
    peer: ConnectionPeer,
    query: Arc<UrlQuery>,
    context: ResponseContext,
    received: Instant,
    listener: ListenerRoles,
}

/// The properties of a request that the logs state about its response.
struct RequestLog {
    method: Method,
    path: String,
    client: UserAndAgent,
    received: Instant,
    /// The context with the audit record, if there is one.
    audited: Option<Box<ResponseContext>>,
}

const CONNECT_FORBIDDEN: &str = "exec, attach, portforward and proxy are not forwarded from a port that every local \
                                 process can reach; use a unix socket, or set execOnLoopback";
const LISTENER_FULL: &str =
    "connection limit reached (limits.connections), and no other caller has more connections than you";
/// The `Retry-After` of a client whose connection got no slot, in seconds. It is long, because other connections rarely
/// end.
const LISTENER_FULL_RETRY_SECONDS: u32 = 10;

impl HttpFrontend {
    /// Creates the frontend and the parts that answer its requests.
    pub(crate) fn new(shared: ServeComponents) -> Self {
        let shared = Arc::new(shared);
        let (config, feeds, drain) = (shared.config.clone(), shared.feeds.clone(), shared.drain.clone());
        shared.tasks.spawn_critical("slow readers", shared.slow_readers.clone().run(drain.clone()));
        let (sources, scans) = (Arc::new(FeedResolver::new(config, feeds, drain)), ScanScheduler::new());
        Self {
            reader: ReadHandler { shared: shared.clone(), sources: sources.clone(), scans: scans.clone() },
            watches: WatchOpener { shared: shared.clone(), sources, scans, metrics: WatchMetricsRegistry::default() },
            forwarding: ForwardHandler { shared: shared.clone(), coalesced: RequestCoalescer::default() },
            discovery: DiscoveryCache::new(shared.clone()),
            reviews: DownstreamReviewHandler::new(shared.clone()),
            shared,
        }
    }

    /// Applies new settings to later requests; requests in flight are not affected. The node, authorization, body and
    /// unread limits and the freshness timeout keep their initial values.
    pub fn tune(&self, to: &ServeConfig) {
        let now = self.shared.config.get();
        let (node, authorizes) = (now.coverage.node.clone(), now.coverage.authorizes);
        let coverage = CacheCoverage { node, authorizes, ..to.coverage.clone() };
        let (body_max, unread, fresh_wait_max) = (now.body_max, now.unread, now.fresh_wait_max);
        self.shared.config.set(ServeConfig { coverage, fresh_wait_max, body_max, unread, ..to.clone() });
        self.shared.concurrency.tune(&to.limits);
    }

    /// Allows local access decisions again that a disagreement with upstream has stopped.
    pub fn enable_local_decisions(&self) {
        self.shared.authorizer.enable_local_decisions();
    }

    /// Answers one request that was received on a `listener`, as its address is configured. The head is read at once.
    pub fn handle(
        self: Arc<Self>,
        peer: ConnectionPeer,
        listener: &ListenAddress,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Response<ResponseBody>> + Send + use<> {
        let mut request = UnauthenticatedRequest::new(peer, request);
        request.listener = self.shared.config.get().roles(listener);
        async move {
            // Moved, so that it is dropped with the response and not with the future.
            let mut request = request;
            let without_body = request.http.method() == Method::HEAD && request.http.version() == Version::HTTP_2;
            let info = RequestInfo::parse(request.http.method().as_str(), request.http.uri().path(), &request.query);
            let info = info.map(Box::new);
            let response = match self.screen(&mut request, &info) {
                Ok(record) => {
                    let caller = self.authenticate(&mut request, record).await;
                    let log = RequestLog::new(&request, &caller);
                    let response = match (self.check_caller(&request, &info, &caller), info, caller) {
                        (Err(refusal), ..) => refusal,
                        (Ok(()), Ok(info), Ok(caller)) => self.dispatch(request.with_caller(caller, info)).await,
                        (Ok(()), Ok(info), Err(error)) => auth_refusal(&request.context, "", &info, &error),
                        // For any caller, upstream rejects a path that names no resource, with its own text.
                        (Ok(()), Err(RequestInfoError::NoResource(_)), caller) => {
                            Box::pin(self.forward_unparsed(request, caller.unwrap_or(Caller::Anonymous))).await
                        }
                        // A path with an invalid escape is not forwarded, because upstream would close the connection.
                        (Ok(()), Err(RequestInfoError::BadEscape), _) => {
                            metrics::refused(400);
                            malformed(request.http.version())
                        }
                    };
                    self.record(&log, response)
                }
                Err(response) => response,
            };
            self.finish(response, without_body)
        }
    }

    /// Checks a request before its caller is authenticated: it must be addressed to this proxy and unambiguous. Returns
    /// its audit record; `None` if the audit log is off or the path cannot be parsed.
    ///
    /// # Errors
    /// The response to a request that needs no caller: the refusal of one that is not addressed to this proxy or is
    /// ambiguous, or a proxy's health check. The connection closes after it, unless an authenticated caller has used
    /// the connection. So each such response costs the sender a handshake.
    fn screen(
        &self,
        request: &mut UnauthenticatedRequest,
        info: &ParsedRequestInfo,
    ) -> Result<Option<Box<AuditRecord>>, Response<ResponseBody>> {
        let record = info.as_ref().ok().filter(|_| self.shared.audit.is_on()).and_then(|info| {
            // The response names the record.
            let id = request.context.audit_id.get_or_insert_with(new_audit_id);
            let head = (request.http.uri(), request.http.headers());
            AuditRecord::new(&self.shared.audit, &request.peer, head, info, id).map(Box::new)
        });
        match self.respond_without_caller(request, info.as_deref().ok()) {
            None => Ok(record),
            Some(response) => {
                request.peer.connection.authentication_failed();
                request.context.record = record.map(Arc::from);
                Err(recorded(&request.context, response))
            }
        }
    }

    fn respond_without_caller(
        &self,
        UnauthenticatedRequest { http, peer, context, .. }: &UnauthenticatedRequest,
        info: Option<&RequestInfo>,
    ) -> Option<Response<ResponseBody>> {
        if let Err(looped) = self.forwarding.check_hops(http.headers()) {
            Some(context.status(&looped))
        } else if let Some(status) = &context.accept_refused {
            Some(context.status(status))
        } else if has_unsupported_expect(http) {
            Some(expectation_failed())
        } else if let Err(ambiguous) = inspect(http.headers()) {
            Some(context.status(&Status::bad_request(ambiguous.to_string())))
        } else if self.is_unauthenticated_port(peer)
            && let Err(foreign) = self.shared.browsers.get().check(http.uri(), http.headers())
        {
            Some(context.status(&Status::from_code(403, &foreign.to_string())))
        } else {
            health(http, info.filter(|_| context.by_proxy)?, &self.shared.ready, &self.shared.feeds)
        }
    }

    /// Authenticates the sender of a request, within the limits on requests that wait for it. Completes the audit record
    /// with the caller.
    async fn authenticate(
        &self,
        request: &mut UnauthenticatedRequest,
        mut record: Option<Box<AuditRecord>>,
    ) -> Result<Caller, GrantError> {
        let caller = {
            let sender = ClientConnectionInfo::from_peer(&request.peer);
            let permits = |party: &ReviewRateLimitKey| -> Result<Box<dyn Send>, GrantError> {
                let permit = self.shared.concurrency.waiting_for_review(party, &request.query);
                Ok(Box::new(permit.map_err(too_many_waiting)?))
            };
            Box::pin(self.shared.authorizer.authenticate(sender, request.http.headers(), &permits)).await
        };
        if let (Some(record), Ok(caller)) = (&mut record, &caller) {
            record.set_caller(caller);
        }
        request.context.record = record.map(Arc::from);
        caller
    }

    /// Charges the connection to the caller, and checks what the caller may not send from it.
    ///
    /// # Errors
    /// The refusal: there is no slot for the connection, or the caller is forbidden to send the request.
    fn check_caller(
        &self,
        request: &UnauthenticatedRequest,
        info: &ParsedRequestInfo,
        caller: &Result<Caller, GrantError>,
    ) -> Result<(), Response<ResponseBody>> {
        match caller {
            Ok(authenticated @ (Caller::ProxyItself | Caller::Known(_))) => {
                if !request.peer.connection.authenticated(authenticated.flow().as_ref().map(FlowDistinguisher::number))
                {
                    let no_slot = Status::too_many_requests(LISTENER_FULL, LISTENER_FULL_RETRY_SECONDS);
                    return Err(request.context.status(&no_slot));
                }
            }
            // Like upstream, closes the connection of an unknown caller after this response, and reads no further
            // requests from it. A connection that a load balancer shares with known callers stays open
            // (R-THREAT-14).
            Ok(Caller::Anonymous) | Err(_) => request.peer.connection.authentication_failed(),
        }
        let rejected = caller.as_ref().ok().and_then(|caller| self.rejection(request, info, caller));
        match rejected {
            Some(reason) => Err(request.context.status(&Status::from_code(403, &reason))),
            None => Ok(()),
        }
    }

    /// Returns why a request is forbidden although its sender is authenticated, if it is. Either a web page may have
    /// caused the sender's browser to send it, or any local process may be the sender. `kubectl proxy` rejects `exec`
    /// and `attach` for the latter reason.
    fn rejection(&self, request: &UnauthenticatedRequest, info: &ParsedRequestInfo, caller: &Caller) -> Option<String> {
        let UnauthenticatedRequest { http, peer, .. } = request;
        if caller.has_client_certificate() {
            // A browser adds the client certificate to every request that a page sends.
            return self.shared.browsers.get().check_site(http.headers()).err().map(|foreign| foreign.to_string());
        }
        let reaches = || match info {
            // Such a request is always rejected.
            Err(RequestInfoError::BadEscape) => false,
            info => targets_workload(http.uri().path(), info.as_deref().ok()),
        };
        let forbidden = !self.shared.config.get().exec_on_loopback && self.is_unauthenticated_port(peer) && reaches();
        forbidden.then(|| CONNECT_FORBIDDEN.to_owned())
    }

    /// Whether any process on this machine can connect and act with the proxy's permissions.
    fn is_unauthenticated_port(&self, peer: &ConnectionPeer) -> bool {
        self.shared.authorizer.is_open() && matches!(peer.address, PeerAddress::Tcp(_))
    }

    /// Writes the response to the audit log, the access log and the recent events of the debug pages. Returns the
    /// response, or a refusal if a required audit record cannot be written.
    fn record(&self, log: &RequestLog, response: Response<ResponseBody>) -> Response<ResponseBody> {
        let RequestLog { method, path, client, received, audited } = log;
        let mut response = match audited {
            Some(context) => recorded(context, response),
            None => response,
        };
        if let Some(id) = response.headers_mut().get_mut(AUDIT_ID) {
            // Every audit id is unique. As sensitive values, they are not added to HTTP/2's header table, which would
            // store each one and compare it with all others.
            id.set_sensitive(true);
        }
        let (code, took) = (response.status().as_u16(), received.elapsed());
        let cached = response.headers().contains_key(SERVED);
        tracing::debug!(target: "access", %method, path, code, cached, ?took, "response sent");
        // The recent events have the refusals, and the reads that were forwarded.
        let request = (method.as_str(), &**path);
        if let Some(ServedLocally { status: Some(status), .. }) = response.extensions().get() {
            if response.status() != StatusCode::NOT_FOUND {
                self.shared.active_watches.refused(client, request, (status.http_code(), &status.message));
            }
        } else if let Some(reason) = response.headers().get(REASON).and_then(|reason| reason.to_str().ok())
            && [Method::GET, Method::HEAD].contains(method)
        {
            self.shared.active_watches.forwarded(client, request, reason);
        }
        response
    }

    /// Completes a response. Responses of the proxy itself get upstream's `Strict-Transport-Security`, and its errors
    /// get a header that names the origin of the refusal.
    fn finish(&self, mut response: Response<ResponseBody>, without_body: bool) -> Response<ResponseBody> {
        if let Some(ServedLocally { status: Some(status), .. }) = response.extensions().get() {
            metrics::refused(status.http_code());
        }
        let is_own = !response.headers().contains_key(REASON);
        if let Some(policy) = self.shared.client.strict_transport_security().filter(|_| is_own) {
            response.headers_mut().insert(STRICT_TRANSPORT_SECURITY, policy);
        }
        if is_own && (response.status().is_client_error() || response.status().is_server_error()) {
            response.headers_mut().entry(REFUSED_BY).or_insert(HeaderValue::from_static("proxy"));
        }
        if without_body { response.map(ResponseBody::without_body) } else { response }
    }
}

impl UnauthenticatedRequest {
    /// Creates the request. It is boxed, because it is moved from one future to the next, and each of them would
    /// reserve its size twice.
    fn new(peer: ConnectionPeer, http: Request<RequestBody>) -> Box<Self> {
        let received = Instant::now();
        let query = Arc::new(UrlQuery::parse(http.uri().query().unwrap_or_default()));
        let context = ResponseContext::from_headers(&peer, http.headers(), query.clone());
        Box::new(Self { http, peer, query, context, received, listener: ListenerRoles::default() })
    }

    /// Returns the request of an authenticated caller. It takes the boxes, because one whose content is moved out of it
    /// is freed only with the future that has it.
    fn with_caller(self: Box<Self>, caller: Caller, info: Box<RequestInfo>) -> Box<ReadRequest> {
        let Self { http, query, context, received, listener, .. } = *self;
        Box::new(ReadRequest { http, caller, info: *info, query, context, received, listener })
    }
}

impl RequestLog {
    fn new(request: &UnauthenticatedRequest, caller: &Result<Caller, GrantError>) -> Self {
        let UnauthenticatedRequest { http, context, received, .. } = request;
        let flow = caller.as_ref().ok().and_then(Caller::flow);
        Self {
            method: http.method().clone(),
            path: http.uri().path().to_owned(),
            client: UserAndAgent::new(flow, http.headers().get(USER_AGENT)),
            received: *received,
            audited: context.record.is_some().then(|| Box::new(context.clone())),
        }
    }
}

/// Writes the audit record of the response. Returns the response, or a refusal if a required record cannot be written.
fn recorded(context: &ResponseContext, response: Response<ResponseBody>) -> Response<ResponseBody> {
    match &context.record {
        Some(record) if !record.record_response(&response) => {
            metrics::records("refused", 1);
            context.status(&unavailable("the audit log queue is full, and this read must be audited; try again"))
        }
        _ => response,
    }
}
