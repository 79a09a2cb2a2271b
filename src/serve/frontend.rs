//! The way of a request through the proxy, in stages. Each stage takes the type that the one before returns:
//!
//! ```text
//! UnauthenticatedRequest ─screen─► ScreenedRequest ─authenticate─► AuthenticationOutcome ─check_caller─►
//!     RoutableRequest ─RequestRouter: route, authorize, serve or forward─► response ─record─► ─finish─► response
//! ```
//!
//! `screen` and `check_caller` may respond to the request themselves. Of the responses of `screen`, only the audit log
//! has a record.

mod page_authorizer;
mod request_router;
mod self_review;
mod unauthenticated_request;
mod wiring;

use std::sync::Arc;

use http::header::{HeaderValue, STRICT_TRANSPORT_SECURITY, USER_AGENT};
use http::{Method, Request, Response, StatusCode, Version};
use tokio::time::Instant;

pub use self::page_authorizer::PageAuthorizer;
pub use self::wiring::HttpFrontendDeps;

use self::request_router::RequestRouter;
use self::unauthenticated_request::UnauthenticatedRequest;
use crate::auth::{Caller, ClientConnectionInfo, CrossOriginCheck, GrantError, ReviewRateLimitKey};
use crate::net::{ConnectionPeer, ListenAddress, PeerAddress, RequestBody};
use crate::serve::activity::{UserAndAgent, metrics};
use crate::serve::audit::{AuditRecord, ServedLocally};
use crate::serve::peers::health;
use crate::serve::read::ReadRequest;
use crate::serve::response::{
    AUDIT_ID, REASON, REFUSED_BY, ResponseBody, ResponseContext, auth_refusal, expectation_failed,
    has_unsupported_expect, malformed, new_audit_id, too_many_waiting, unavailable,
};
use crate::serve::route::CacheCoverage;
use crate::serve::serve_components::ServeComponents;
use crate::serve::serve_config::ServeConfig;
use crate::upstream::{SERVED, inspect};
use base::{ReadinessTracker, Reloadable};
use kubeapi::{FlowDistinguisher, RequestInfo, RequestInfoError, Status, targets_workload};

/// Receives requests, authenticates their senders, and passes them to the `RequestRouter`.
#[derive(Debug)]
pub struct HttpFrontend {
    router: RequestRouter,
    shared: Arc<ServeComponents>,
    browsers: Reloadable<CrossOriginCheck>,
    ready: ReadinessTracker,
}

/// A request that is addressed to this proxy and unambiguous. Its caller is not authenticated yet.
struct ScreenedRequest {
    request: Box<UnauthenticatedRequest>,
    info: Result<Box<RequestInfo>, RequestInfoError>,
    /// `None` if the audit log is off or the path cannot be parsed.
    record: Option<Box<AuditRecord>>,
}

/// A request whose caller is authenticated, or the reason that it is not. Its audit record has the caller.
struct AuthenticationOutcome {
    request: Box<UnauthenticatedRequest>,
    info: Result<Box<RequestInfo>, RequestInfoError>,
    caller: Result<Caller, GrantError>,
}

/// A request that the router may answer. It is not authorized yet.
enum RoutableRequest {
    Parsed(Box<ReadRequest>),
    /// The path names no resource. Upstream rejects the request with its own text.
    NoResource(Box<UnauthenticatedRequest>, Caller),
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
        let mut request = UnauthenticatedRequest::new(&peer, request);
        request.listener = self.shared.config.get().roles(listener);
        async move {
            // Moved, so that they are dropped with the response and not with the future.
            let (peer, request) = (peer, request);
            let without_body = request.http.method() == Method::HEAD && request.http.version() == Version::HTTP_2;
            let info = RequestInfo::parse(request.http.method().as_str(), request.http.uri().path(), &request.query);
            let response = match self.screen(&peer, request, info.map(Box::new)) {
                Ok(request) => {
                    let request = self.authenticate(&peer, request).await;
                    let log = RequestLog::new(&request);
                    let response = match self.check_caller(&peer, request) {
                        Ok(RoutableRequest::Parsed(request)) => self.router.dispatch(request).await,
                        Ok(RoutableRequest::NoResource(request, caller)) => {
                            Box::pin(self.router.forward_unparsed(request, caller)).await
                        }
                        Err(refusal) => refusal,
                    };
                    self.record(&log, response)
                }
                Err(response) => response,
            };
            self.finish(response, without_body)
        }
    }

    /// Checks a request before its caller is authenticated, and creates its audit record.
    ///
    /// # Errors
    /// The response to a request that needs no caller: the refusal of one that is not addressed to this proxy or is
    /// ambiguous, or a proxy's health check. The connection closes after it, unless an authenticated caller has used
    /// the connection. So each such response costs the sender a handshake.
    fn screen(
        &self,
        peer: &ConnectionPeer,
        mut request: Box<UnauthenticatedRequest>,
        info: Result<Box<RequestInfo>, RequestInfoError>,
    ) -> Result<ScreenedRequest, Response<ResponseBody>> {
        let record = info.as_ref().ok().filter(|_| self.shared.audit.is_on()).and_then(|info| {
            // The response names the record.
            let id = request.context.audit_id.get_or_insert_with(new_audit_id);
            let head = (request.http.uri(), request.http.headers());
            AuditRecord::new(&self.shared.audit, peer, head, info, id).map(Box::new)
        });
        match self.respond_without_caller(peer, &request, info.as_deref().ok()) {
            None => Ok(ScreenedRequest { request, info, record }),
            Some(response) => {
                peer.connection.authentication_failed();
                request.context.record = record.map(Arc::from);
                Err(recorded(&request.context, response))
            }
        }
    }

    fn respond_without_caller(
        &self,
        peer: &ConnectionPeer,
        UnauthenticatedRequest { http, context, .. }: &UnauthenticatedRequest,
        info: Option<&RequestInfo>,
    ) -> Option<Response<ResponseBody>> {
        if let Err(looped) = self.router.forwarding.check_hops(http.headers()) {
            Some(context.status(&looped))
        } else if let Some(status) = &context.accept_refused {
            Some(context.status(status))
        } else if has_unsupported_expect(http) {
            Some(expectation_failed())
        } else if let Err(ambiguous) = inspect(http.headers()) {
            Some(context.status(&Status::bad_request(ambiguous.to_string())))
        } else if self.is_unauthenticated_port(peer)
            && let Err(foreign) = self.browsers.get().check(http.uri(), http.headers())
        {
            Some(context.status(&Status::from_code(403, &foreign.to_string())))
        } else {
            health(http, info.filter(|_| context.by_proxy)?, &self.ready)
        }
    }

    /// Authenticates the sender of a request, within the limits on requests that wait for it.
    async fn authenticate(&self, peer: &ConnectionPeer, request: ScreenedRequest) -> AuthenticationOutcome {
        let ScreenedRequest { mut request, info, mut record } = request;
        let caller = {
            let sender = ClientConnectionInfo::from_peer(peer);
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
        AuthenticationOutcome { request, info, caller }
    }

    /// Charges the connection to the caller, and checks what the caller may not send from it.
    ///
    /// # Errors
    /// The refusal: there is no slot for the connection, the caller is forbidden to send the request or is not
    /// authenticated, or the path cannot be parsed.
    fn check_caller(
        &self,
        peer: &ConnectionPeer,
        AuthenticationOutcome { request, info, caller }: AuthenticationOutcome,
    ) -> Result<RoutableRequest, Response<ResponseBody>> {
        match &caller {
            Ok(authenticated @ (Caller::ProxyItself | Caller::Known(_))) => {
                if !peer.connection.authenticated(authenticated.flow().as_ref().map(FlowDistinguisher::number)) {
                    let no_slot = Status::too_many_requests(LISTENER_FULL, LISTENER_FULL_RETRY_SECONDS);
                    return Err(request.context.status(&no_slot));
                }
            }
            // Like upstream, closes the connection of an unknown caller after this response, and reads no further
            // requests from it. A connection that a load balancer shares with known callers stays open
            // (R-THREAT-14).
            Ok(Caller::Anonymous) | Err(_) => peer.connection.authentication_failed(),
        }
        if let Ok(caller) = &caller
            && let Some(reason) = self.rejection(peer, &request.http, &info, caller)
        {
            return Err(request.context.status(&Status::from_code(403, &reason)));
        }
        match (info, caller) {
            (Ok(info), Ok(caller)) => Ok(RoutableRequest::Parsed(request.with_caller(caller, info))),
            (Ok(info), Err(error)) => Err(auth_refusal(&request.context, "", &info, &error)),
            // For any caller, upstream rejects the request.
            (Err(RequestInfoError::NoResource(_)), caller) => {
                Ok(RoutableRequest::NoResource(request, caller.unwrap_or(Caller::Anonymous)))
            }
            // A path with an invalid escape is not forwarded, because upstream would close the connection.
            (Err(RequestInfoError::BadEscape), _) => {
                metrics::refused(400);
                Err(malformed(request.http.version()))
            }
        }
    }

    /// Returns why a request is forbidden although its sender is authenticated, if it is. Either a web page may have
    /// caused the sender's browser to send it, or any local process may be the sender. `kubectl proxy` rejects `exec`
    /// and `attach` for the latter reason.
    fn rejection(
        &self,
        peer: &ConnectionPeer,
        request: &Request<RequestBody>,
        info: &Result<Box<RequestInfo>, RequestInfoError>,
        caller: &Caller,
    ) -> Option<String> {
        if caller.has_client_certificate() {
            // A browser adds the client certificate to every request that a page sends.
            return self.browsers.get().check_site(request.headers()).err().map(|foreign| foreign.to_string());
        }
        let reaches = || match info {
            // Such a request is always rejected.
            Err(RequestInfoError::BadEscape) => false,
            info => targets_workload(request.uri().path(), info.as_deref().ok()),
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

impl RequestLog {
    fn new(AuthenticationOutcome { request, caller, .. }: &AuthenticationOutcome) -> Self {
        let UnauthenticatedRequest { http, context, received, .. } = &**request;
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
