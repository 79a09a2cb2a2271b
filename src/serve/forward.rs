//! Forwards requests that the cache does not answer to upstream, with limits on how many and for how long, and streams
//! in both directions.

mod coalesce;
mod filtered_table;
#[cfg(test)]
mod tests;

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, CONTENT_LENGTH, EXPECT, HeaderValue, UPGRADE, X_CONTENT_TYPE_OPTIONS};
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Empty};
use hyper::body::Body as _;
use hyper_util::rt::TokioIo;
use tokio::io::copy_bidirectional;
use tokio::time::timeout;

pub(crate) use self::coalesce::RequestCoalescer;

use self::coalesce::{CoalesceError, CoalesceKey, CoalescedResponse};
use crate::auth::{Caller, Impersonation};
use crate::listing::LimitExceeded;
use crate::net::RequestBody;
use crate::serve::activity::metrics;
use crate::serve::audit::ServedLocally;
use crate::serve::limits::{BodyError, BufferedResponseBody, ConcurrencyLimits, ConcurrencyPermit, DeadlineBody};
use crate::serve::response::{
    AUDIT_ID, LIST_RETRY_SECONDS, REASON, ResponseBody, ResponseContext, denied_status, too_many, unavailable,
};
use crate::serve::route::ForwardReason;
use crate::serve::serve_components::ServeComponents;
use crate::serve::watch::websocket;
use crate::upstream::{
    CAUSE, ForwardPoolKind, HOPS, PROXY_ACCEPT_ENCODING, RequestIdentity, UpstreamBody, UpstreamError,
    UpstreamResponseBody,
};
use base::AbortSignal;
use kubeapi::{FlowDistinguisher, RequestInfo, RequestVerb, Status, UrlQuery};

/// Upstream's response, or the reason that there is none.
type UpstreamReadResult = Result<Response<UpstreamResponseBody>, UpstreamError>;

/// How long upstream may exceed the time limit for bodies before its response starts. This lets upstream's own timeout
/// error arrive first.
const HEAD_TIMEOUT_SLACK: Duration = Duration::from_secs(5);
/// The maximum size in bytes of a response that is buffered to be shared.
const SHARED_BYTES_MAX: usize = 4 << 20;
/// The maximum number of proxies in a chain.
const HOPS_MAX: usize = 16;
const REDIRECTED: &str = "the backend attempted to redirect this request, which is not permitted";
const LOOP_DETECTED: &str = "loop detected: the request has passed this proxy before (its upstream leads back to it)";
const BROKEN_BODY: &str = "the request body is malformed or incomplete";
/// The maximum number of rows of a Table that identical requests share.
const SHARED_ROWS_MAX: usize = 1_000;

/// Forwards requests with the permissions of their callers.
#[derive(Debug)]
pub(crate) struct ForwardHandler {
    pub(crate) shared: Arc<ServeComponents>,
    pub(crate) coalesced: RequestCoalescer,
}

/// The headers in which upstream names the flow of a request.
const FLOW_HEADERS: [&str; 2] = ["x-kubernetes-pf-flowschema-uid", "x-kubernetes-pf-prioritylevel-uid"];

impl ForwardHandler {
    /// Forwards a request unchanged. The response has a header with the reason.
    pub(crate) async fn forward(
        &self,
        request: Request<RequestBody>,
        caller: &Caller,
        info: Option<&RequestInfo>,
        query: &UrlQuery,
        context: &ResponseContext,
        reason: ForwardReason,
    ) -> Response<ResponseBody> {
        metrics::forwarded(reason);
        let response = self.send_upstream(request, caller, info, query, context, reason).await;
        let mut response = response.unwrap_or_else(|status| context.status(&status));
        response.headers_mut().insert(REASON, HeaderValue::from_static(reason.as_str()));
        response
    }

    async fn send_upstream(
        &self,
        mut request: Request<RequestBody>,
        caller: &Caller,
        info: Option<&RequestInfo>,
        query: &UrlQuery,
        context: &ResponseContext,
        reason: ForwardReason,
    ) -> Result<Response<ResponseBody>, Status> {
        let (flow, pool_kind) = (caller.flow(), pool_kind(request.headers(), request.method(), info));
        let identity = {
            let identity = pin!(self.upstream_identity(caller, request.headers(), info));
            self.shared.concurrency.waiting.while_waiting(flow.as_ref(), query, identity).await
        };
        let identity = match identity.unwrap_or_else(|shed| Err(too_many(shed, LIST_RETRY_SECONDS))) {
            Ok(identity) => identity,
            // Upstream rejects an unreadable path, and does so before it authenticates the caller (R-ORDER-1).
            Err(_) if info.is_none() => RequestIdentity::Anonymous,
            Err(status) => {
                let mut refused = context.status(&status);
                refused.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
                return Ok(refused);
            }
        };
        let is_anonymous = identity == RequestIdentity::Anonymous;
        let pool = match (pool_kind, reason) {
            _ if is_anonymous => &self.shared.concurrency.anonymous,
            (_, ForwardReason::Syncing) => &self.shared.concurrency.unready,
            (ForwardPoolKind::Short, _) => &self.shared.concurrency.forwards,
            (ForwardPoolKind::Stream | ForwardPoolKind::Tunnel, _) => &self.shared.concurrency.streams,
        };
        let permit = pool.acquire(flow.as_ref().filter(|_| !is_anonymous));
        let permit = Arc::new(permit.map_err(|shed| too_many(shed, LIST_RETRY_SECONDS))?);
        if pool_kind == ForwardPoolKind::Tunnel {
            return self.tunnel(request, &identity, context, permit).await;
        }
        let is_shareable = match reason {
            ForwardReason::ConsistentGet | ForwardReason::NoProof => true,
            ForwardReason::Table => is_short_table(info, query),
            _ => false,
        };
        self.rewrite_headers(request.headers_mut(), &identity);
        if is_shareable && pool_kind == ForwardPoolKind::Short && !is_anonymous && request.body().is_end_stream() {
            let sender = if context.is_permitted { RequestIdentity::ProxyItself } else { identity.clone() };
            let shared = self.shared(&request, flow, sender, context, &permit).await;
            // An error may concern the proxy's rights or limits, which are not the caller's.
            let response = match shared {
                Ok(response) => response.filter(|it| !context.is_permitted || it.status().is_success()),
                Err(_) if context.is_permitted => None,
                Err(status) => return Err(status),
            };
            if let Some(mut response) = response {
                if context.is_permitted {
                    // Upstream classified the proxy's request, and not the caller's.
                    FLOW_HEADERS.into_iter().for_each(|name| drop(response.headers_mut().remove(name)));
                }
                return Ok(response);
            }
        }
        let is_repeatable = request.method().is_safe();
        let is_broken = Arc::new(AtomicBool::new(false));
        // A request and its response have a deadline of one minute each. A caller without a credential always has one.
        let is_short = pool_kind == ForwardPoolKind::Short || is_anonymous;
        let request = request.map(|body| {
            let is_broken = is_broken.clone();
            if is_short {
                track_body_error(DeadlineBody::new(body, &self.shared.slow_readers, AbortSignal::default()), is_broken)
            } else {
                track_body_error(body, is_broken)
            }
        });
        // Boxed, because the future has about 3 KB and moving it into another future would double that.
        let response = Box::pin(self.shared.forwarder.forward(&identity, pool_kind, request));
        let response = if is_short { self.with_timeout(response).await } else { response.await };
        match response {
            Ok(response) => Ok(self.relay(response, is_short, permit, context)),
            Err(_) if is_broken.load(Ordering::Relaxed) => Err(Status::bad_request(BROKEN_BODY)),
            Err(error) if !is_repeatable && error.may_be_processed() => Err(maybe_applied(&error)),
            Err(error) => Err(unreachable(&error)),
        }
    }

    /// Awaits the head of a response, and fails after the timeout.
    async fn with_timeout(&self, response: impl Future<Output = UpstreamReadResult>) -> UpstreamReadResult {
        let max = self.shared.slow_readers.body_max() + HEAD_TIMEOUT_SLACK;
        timeout(max, response).await.unwrap_or(Err(UpstreamError::Timeout(max)))
    }

    /// Returns upstream's response to the caller. An error response is always treated as short.
    fn relay(
        &self,
        response: Response<UpstreamResponseBody>,
        is_short: bool,
        permit: Arc<ConcurrencyPermit>,
        context: &ResponseContext,
    ) -> Response<ResponseBody> {
        let is_short = is_short || !response.status().is_success();
        let deadline = is_short.then(|| (&self.shared.slow_readers, context.abort.clone()));
        response.map(|body| ResponseBody::forwarded(body, permit, deadline))
    }

    /// Answers a read by sharing the response with identical requests. The response is buffered. The permit is kept
    /// until the last caller stops waiting and the upstream request has ended.
    ///
    /// Returns `None` if the response cannot be shared, because it is large or its user has no permits left. Each
    /// caller then sends its own request and reads at its own pace.
    async fn shared(
        &self,
        request: &Request<RequestBody>,
        flow: Option<FlowDistinguisher>,
        identity: RequestIdentity,
        context: &ResponseContext,
        permit: &Arc<ConcurrencyPermit>,
    ) -> Result<Option<Response<ResponseBody>>, Status> {
        let path = request.uri().path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
        let encoding = request.headers().get(ACCEPT_ENCODING).and_then(|value| value.to_str().ok());
        let key = CoalesceKey {
            identity: identity.clone(),
            path_and_query: path.as_str().to_owned(),
            accept: context.accept.clone(),
            accept_encoding: encoding.map(str::to_owned),
            user_agent: context.user_agent.clone(),
        };
        // Callers that share the proxy's response are each charged for it.
        let (is_permitted, reader) = (context.is_permitted, flow.clone());
        let (request_permit, mut headers) = (permit.clone(), request.headers().clone());
        if is_permitted {
            websocket::drop_bearer(&mut headers);
        }
        let shared = self.shared.clone();
        let send = move || -> Pin<Box<dyn Future<Output = _> + Send>> {
            let (shared, identity) = (shared.clone(), identity.clone());
            let (request_permit, flow) = (request_permit.clone(), flow.clone());
            let mut request = Request::new(no_body());
            *request.uri_mut() = Uri::from(path.clone());
            request.headers_mut().clone_from(&headers);
            Box::pin(async move {
                let response = shared.forwarder.forward(&identity, ForwardPoolKind::Short, request).await?;
                let mut response = CoalescedResponse::read(&shared.client, response, SHARED_BYTES_MAX).await?;
                drop(request_permit);
                response.headers.remove(CONTENT_LENGTH);
                if !is_permitted {
                    response.permit = Some(permit_for(&response.body, &shared.concurrency, flow.as_ref())?);
                }
                Ok(response)
            })
        };
        match self.coalesced.send(key, &self.shared.tasks, Arc::new(send)).await {
            Some(Ok(CoalescedResponse { status, headers, body, permit: bytes_permit })) => {
                let bytes_permit = match bytes_permit {
                    None => permit_for(&body, &self.shared.concurrency, reader.as_ref()).ok(),
                    shared => shared,
                };
                if bytes_permit.is_none() {
                    return Ok(None);
                }
                let whole =
                    BufferedResponseBody::from_bytes(body, bytes_permit.into_iter().chain([permit.clone()]).collect());
                let mut response =
                    Response::new(ResponseBody::whole(whole, &self.shared.slow_readers, context.abort.clone()));
                *response.status_mut() = status;
                *response.headers_mut() = headers;
                // Upstream's audit log has one entry for all requests that share a response.
                if let (Some(_), Some(id)) = (&context.record, &context.audit_id) {
                    response.headers_mut().insert(AUDIT_ID, id.clone());
                    response.extensions_mut().insert(ServedLocally::default());
                }
                Ok(Some(response))
            }
            Some(Err(error)) => match &*error {
                CoalesceError::TooLarge => Ok(None),
                CoalesceError::Failed(error) => Err(unreachable(error)),
            },
            None => Err(Status::shutting_down()),
        }
    }

    /// Forwards an upgrade request. Bytes flow in both directions only after upstream has accepted the upgrade (P3).
    async fn tunnel(
        &self,
        mut request: Request<RequestBody>,
        identity: &RequestIdentity,
        context: &ResponseContext,
        permit: Arc<ConcurrencyPermit>,
    ) -> Result<Response<ResponseBody>, Status> {
        let downstream = hyper::upgrade::on(&mut request);
        self.rewrite_headers(request.headers_mut(), identity);
        let mut request = request.map(|_| no_body());
        for name in [CONTENT_LENGTH, EXPECT] {
            request.headers_mut().remove(name);
        }
        let drain_hold = self.shared.drain.block_end();
        let response = Box::pin(self.shared.forwarder.forward(identity, ForwardPoolKind::Tunnel, request));
        let response =
            if *identity == RequestIdentity::Anonymous { self.with_timeout(response).await } else { response.await };
        let mut response = response.map_err(|error| unreachable(&error))?;
        if response.status().is_redirection() {
            // Redirects are not passed on, because clients follow them with their credentials, and some with those of
            // the tunnel (R-THREAT-9).
            return Err(Status::from_code(502, REDIRECTED));
        }
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            return Ok(self.relay(response, true, permit, context));
        }
        let upstream = hyper::upgrade::on(&mut response);
        context.connection.run_upgraded(async move {
            if let (Ok(down), Ok(up)) = tokio::join!(downstream, upstream) {
                let (mut down, mut up) = (TokioIo::new(down), TokioIo::new(up));
                if let Err(error) = copy_bidirectional(&mut down, &mut up).await {
                    tracing::debug!(%error, "upgraded connection closed with an error");
                }
            }
            drop((permit, drain_hold));
        });
        Ok(response.map(|_| ResponseBody::empty()))
    }

    /// Returns the identity with which a request is forwarded.
    ///
    /// # Errors
    /// The caller impersonates another user without permission, or with invalid headers. This is checked here only if
    /// the caller's credential cannot be forwarded.
    async fn upstream_identity(
        &self,
        caller: &Caller,
        headers: &HeaderMap,
        info: Option<&RequestInfo>,
    ) -> Result<RequestIdentity, Status> {
        let identity = self.shared.authorizer.upstream_identity(caller).await;
        let identity = identity.map_err(|error| unavailable(&error.to_string()))?;
        if !matches!(identity, RequestIdentity::User(_)) {
            return Ok(identity);
        }
        let Some(impersonation) =
            Impersonation::from_headers(headers).map_err(|error| Status::bad_request(error.to_string()))?
        else {
            return Ok(identity);
        };
        let user = Box::pin(self.shared.authorizer.impersonation(caller, &impersonation, info)).await;
        let user = user.map_err(|denied| denied_status(&denied.refused, caller.name(), &denied.access))?;
        Ok(RequestIdentity::User(Arc::new(user)))
    }

    /// Rewrites the headers of a request for its next hop.
    fn rewrite_headers(&self, headers: &mut HeaderMap, identity: &RequestIdentity) {
        headers.insert(HOPS, self.hops_with_self(headers));
        headers.remove(CAUSE);
        headers.remove(PROXY_ACCEPT_ENCODING);
        if !matches!(identity, RequestIdentity::Bearer(..) | RequestIdentity::Anonymous) {
            websocket::drop_bearer(headers);
        }
    }

    /// Rejects a request that has passed this proxy before, or too many proxies.
    pub(crate) fn check_hops(&self, headers: &HeaderMap) -> Result<(), Status> {
        let passed = hops(headers);
        let looped = passed.contains(&self.shared.client.instance()) || passed.len() >= HOPS_MAX;
        if looped { Err(Status::from_code(508, LOOP_DETECTED)) } else { Ok(()) }
    }

    /// Returns the hop list of the request, including this proxy.
    pub(crate) fn hops_with_self(&self, headers: &HeaderMap) -> HeaderValue {
        let hops = hops(headers).into_iter().chain([self.shared.client.instance()]).collect::<Vec<_>>().join(",");
        HeaderValue::from_str(&hops).expect("the items are visible ASCII")
    }
}

/// Wraps a request body and records when it breaks off, because then the sender is at fault and not upstream.
fn track_body_error<B>(body: B, is_broken: Arc<AtomicBool>) -> UpstreamBody
where
    B: hyper::body::Body<Data = Bytes, Error: Into<BodyError>> + Send + 'static,
{
    let on_error = move |error: B::Error| {
        is_broken.store(true, Ordering::Relaxed);
        error.into()
    };
    body.map_err(on_error).boxed_unsync()
}

fn no_body() -> UpstreamBody {
    Empty::new().map_err(|never| match never {}).boxed_unsync()
}

/// Returns the proxies in the hop list, up to [`HOPS_MAX`].
fn hops(headers: &HeaderMap) -> Vec<&str> {
    let hops = headers.get(HOPS).and_then(|value| value.to_str().ok()).unwrap_or_default();
    hops.split(',').map(str::trim).filter(|hop| !hop.is_empty()).take(HOPS_MAX).collect()
}

/// Takes a permit for the response's bytes. All requests that share the response hold the permit together, because each
/// may keep the bytes until its deadline.
fn permit_for(
    body: &Bytes,
    concurrency: &ConcurrencyLimits,
    flow: Option<&FlowDistinguisher>,
) -> Result<Arc<ConcurrencyPermit>, CoalesceError> {
    concurrency.buffered(flow, body.len()).map(Arc::new).map_err(|LimitExceeded(_)| CoalesceError::TooLarge)
}

/// Whether a Table is short enough to be buffered and shared: a single row, or one page. kubectl requests pages of 500.
pub(crate) fn is_short_table(info: Option<&RequestInfo>, query: &UrlQuery) -> bool {
    let limit = query.first("limit").and_then(|limit| limit.parse::<usize>().ok());
    info.is_some_and(|info| info.verb == RequestVerb::Get)
        || info.is_some_and(|info| info.verb == RequestVerb::List)
            && limit.is_some_and(|limit| (1..=SHARED_ROWS_MAX).contains(&limit))
}

/// Returns the connection pool for a forwarded request.
fn pool_kind(headers: &HeaderMap, method: &Method, info: Option<&RequestInfo>) -> ForwardPoolKind {
    let protocol = headers.get(UPGRADE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_spdy = protocol.to_ascii_lowercase().starts_with("spdy/") && websocket::requests_upgrade(headers);
    if is_spdy || websocket::is_upgrade(headers) {
        return ForwardPoolKind::Tunnel;
    }
    let Some(info) = info else { return ForwardPoolKind::Short };
    // Upstream lets only these requests run longer than a minute.
    let streams = matches!(info.verb, RequestVerb::Watch | RequestVerb::Proxy)
        || matches!(info.subresource.as_str(), "exec" | "attach" | "portforward" | "proxy" | "log")
        || (!info.is_resource && info.path.starts_with("/debug/pprof/"));
    if streams && *method != Method::HEAD { ForwardPoolKind::Stream } else { ForwardPoolKind::Short }
}

/// Returns the Status for a client when upstream did not respond.
pub(crate) fn unreachable(error: &UpstreamError) -> Status {
    match error {
        UpstreamError::Refused(status) => Status::clone(status),
        UpstreamError::Unsendable(_) => Status::from_code(403, &error.for_callers()),
        UpstreamError::Timeout(_) => Status::from_code(504, &error.for_callers()),
        UpstreamError::Unreachable(_) | UpstreamError::Credentials(_) => unavailable(&error.for_callers()),
        // An invalid request may be one whose body broke off. The others occur only for responses that the proxy decodes,
        // or that broke off; forwarded responses are not decoded.
        UpstreamError::ConnectionLost(_)
        | UpstreamError::InvalidRequest(_)
        | UpstreamError::OtherDocument(_)
        | UpstreamError::OtherRepresentation { .. }
        | UpstreamError::NotInitial(_)
        | UpstreamError::EndlessPages
        | UpstreamError::HiddenDefinitions
        | UpstreamError::TooLarge(_)
        | UpstreamError::OverBudget
        | UpstreamError::Wire(_) => Status::from_code(502, &error.for_callers()),
    }
}

/// Returns the Status for a write that upstream may have applied. It has no `Retry-After`, because clients would retry.
fn maybe_applied(error: &UpstreamError) -> Status {
    Status::from_code(502, &error.for_callers())
}
