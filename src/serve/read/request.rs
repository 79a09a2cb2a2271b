use std::sync::Arc;

use http::header::CONTENT_LENGTH;
use http::{Request, Response};
use http_body_util::Either;
use http2::ReceivedBody;
use tokio::time::Instant;

use crate::auth::{Authorizer, Caller, GrantError, NamedCallers, ReadPermission};
use crate::listing::LimitExceeded;
use crate::net::RequestBody;
use crate::serve::response::{LIST_RETRY_SECONDS, ResponseBody, ResponseContext, auth_refusal, too_many};
use crate::serve::route::ForwardReason;
use crate::serve::serve_config::{ListenerRoles, ReducedReads};
use crate::upstream::{CAUSE, UpstreamRequestCause, UpstreamResource};
use kubeapi::{RequestInfo, RequestVerb, Status, UrlQuery};

/// A response, or the reason that the cache cannot give one.
pub(crate) type CacheReadResult = Result<Response<ResponseBody>, NotServable>;

/// The reason that a feed cannot answer a request.
#[derive(Debug, PartialEq)]
pub(crate) enum NotServable {
    /// The request must be forwarded to upstream.
    Forward(ForwardReason),
    /// The feed ended while the request was waiting. Another feed may replace it, so the request is routed again.
    FeedEnded,
    /// The feed did not reach the required version in time. A read is rejected. A watch sends the error in its stream,
    /// as the apiserver does (R-VERSION-4), because a forwarded one would cost upstream a watch.
    Late(Box<Status>),
    /// The request must be rejected, because the permission for a part of the collection was not obtained.
    Unauthorized(GrantError),
    /// The request must be rejected with this Status.
    Refuse(Box<Status>),
}

impl From<LimitExceeded> for NotServable {
    fn from(shed: LimitExceeded) -> Self {
        Self::Refuse(Box::new(too_many(shed, LIST_RETRY_SECONDS)))
    }
}

/// A read request, with the attributes that were parsed from it.
pub(crate) struct ReadRequest {
    pub(crate) http: Request<RequestBody>,
    pub(crate) caller: Caller,
    pub(crate) info: RequestInfo,
    pub(crate) query: Arc<UrlQuery>,
    pub(crate) context: ResponseContext,
    pub(crate) received: Instant,
    pub(crate) listener: ListenerRoles,
}

/// A read request for a resource, with the permission for it.
#[derive(Clone, Copy)]
pub(crate) struct AuthorizedRead<'a> {
    pub(crate) request: &'a ReadRequest,
    pub(crate) permission: &'a ReadPermission,
    pub(crate) resource: &'a UpstreamResource,
}

impl ReadRequest {
    pub(crate) fn auth_refusal(&self, refused: &GrantError) -> Response<ResponseBody> {
        auth_refusal(&self.context, self.caller.name(), &self.info, refused)
    }

    /// Drops the request's body. HTTP/1 reads none before it is polled.
    pub(crate) fn drop_body(&mut self) {
        if let Either::Left(body) = self.http.body_mut() {
            *body = ReceivedBody::empty();
            self.http.headers_mut().remove(CONTENT_LENGTH);
        }
    }

    /// Whether the request is a downstream proxy's own, for one of these causes.
    fn has_cause(&self, causes: &[UpstreamRequestCause]) -> bool {
        let stated = self.http.headers().get(CAUSE).filter(|_| self.context.by_proxy);
        stated.is_some_and(|stated| causes.iter().any(|cause| stated == cause.as_str()))
    }

    /// Whether a downstream proxy sends the request to fill its own feed.
    pub(crate) fn is_feed_request(&self) -> bool {
        self.has_cause(&[UpstreamRequestCause::List, UpstreamRequestCause::Watch, UpstreamRequestCause::Proof])
    }

    /// Returns the outcome for a read of a state that is not cached. It is forwarded, because upstream may have the
    /// state. A proxy that only compares its own data is rejected, because it can compare later.
    pub(crate) fn not_cached(&self, reason: ForwardReason) -> NotServable {
        if self.has_cause(&[UpstreamRequestCause::Comparison, UpstreamRequestCause::SelfCheck]) {
            return NotServable::Refuse(Box::new(Status::too_old_list()));
        }
        NotServable::Forward(reason)
    }

    /// Whether responses for the caller may be filtered. Those for a downstream proxy are not, because that proxy would
    /// take them for the whole.
    pub(crate) fn has_filtered_caller(&self, callers: &NamedCallers) -> bool {
        !self.context.by_proxy && callers.includes(&self.caller, self.listener.is_filtered)
    }

    /// Whether the configuration leaves fields out of responses for the caller. Those for a downstream proxy are whole,
    /// because it serves them to other clients.
    pub(crate) fn is_reduced(&self, readers: &ReducedReads) -> bool {
        let agent = self.context.user_agent.as_deref();
        !self.context.by_proxy && readers.includes(&self.caller, self.listener.is_reduced, agent)
    }
}

/// Whether a request is a LIST or watch of which the caller may see a part: across namespaces, or in one in which rules
/// let the caller get objects by name.
pub(crate) fn has_visible_part(
    info: &RequestInfo,
    resource: &UpstreamResource,
    caller: &Caller,
    authorizer: &Authorizer,
) -> bool {
    matches!(info.verb, RequestVerb::List | RequestVerb::Watch)
        && (resource.namespaced || resource.gvr.is_namespaces())
        && (info.namespace.is_empty() || authorizer.has_names(caller, info))
}
