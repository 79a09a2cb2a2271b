//! Responses of the proxy itself: Statuses, objects and lists, with the apiserver's headers, and refusals.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, EXPECT, HeaderName,
    HeaderValue, RETRY_AFTER, VARY, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderMap, Request, Response, StatusCode, Version};

use crate::auth::{GrantError, RevokedPermission};
use crate::cache::FeedState;
use crate::feeds::FeedHandle;
use crate::listing::{LimitExceeded, PLAIN_BYTES_MAX, gzip};
use crate::net::{ConnectionPeer, DownstreamConnection, RequestBody};
use crate::serve::audit::{AuditDecision, AuditRecord, ServedLocally};
use crate::serve::response::body::ResponseBody;
use crate::upstream::{BUILD, HOPS, PROXY_ACCEPT_ENCODING, SERVED, STALE, ServerBuild};
use crate::wire::FeedEncoding;
use base::AbortSignal;
use kubeapi::{
    AccessAttributes, MediaType, RequestInfo, Status, SupportedMediaTypes, UrlQuery, check_accept_length, negotiate,
    pretty,
};

pub(crate) const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
/// The response header of a collection that shows only the namespaces that the caller may read, and of an access review
/// that allows to read such a collection.
pub(crate) const FILTERED: HeaderName = HeaderName::from_static("kube-fanout-filtered");
/// The response header that states why a request was forwarded.
pub(crate) const REASON: HeaderName = HeaderName::from_static("kube-fanout-reason");
/// The header that names the origin of an error: `apiserver` if a review by the apiserver denied the request, otherwise
/// `proxy`.
pub(crate) const REFUSED_BY: HeaderName = HeaderName::from_static("kube-fanout-refused-by");
/// The header that states how long the RBAC objects have been stale by which a caller was authorized.
const PERMISSIONS_STALE: HeaderName = HeaderName::from_static("kube-fanout-permissions-stale-seconds");

/// The properties of a request that determine the form of its response.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one request")]
pub(crate) struct ResponseContext {
    pub(crate) accept: Option<String>,
    /// The refusal if the Accept header is too long. `accept` is `None` in that case, so that the header does not
    /// choose the encoding of the refusal.
    pub(crate) accept_refused: Option<Box<Status>>,
    pub(crate) user_agent: Option<String>,
    pub(crate) audit_id: Option<HeaderValue>,
    /// The request's audit record, if the audit log is on.
    pub(crate) record: Option<Arc<AuditRecord>>,
    /// Whether the client accepts compressed responses.
    pub(crate) gzip: bool,
    pub(crate) query: Option<Arc<UrlQuery>>,
    /// Whether the response shows only the namespaces that the caller may read.
    pub(crate) is_filtered: bool,
    /// Whether the caller may read what it requests, so that the proxy may request it for all such callers.
    pub(crate) is_permitted: bool,
    /// How long the RBAC objects have been stale by which the request was decided, if they are.
    pub(crate) stale_rules: Option<Duration>,
    /// Ends the request and its response when it is signalled by another task.
    pub(crate) abort: AbortSignal,
    /// The connection of the request, which runs what follows an upgrade.
    pub(crate) connection: DownstreamConnection,
    /// Whether the request arrived from another proxy.
    pub(crate) by_proxy: bool,
}

/// The state of the feed as reported in a response from the cache.
#[derive(Debug, Default)]
pub(crate) struct ServedFeedStatus {
    /// The number of seconds since the feed was disconnected from upstream.
    pub(crate) stale_seconds: Option<u64>,
    /// The apiserver build that encoded the bodies, if known. Only downstream proxies receive it.
    pub(crate) encoder_build: Option<Arc<ServerBuild>>,
}

impl ServedFeedStatus {
    /// Returns the status of a response with a state of the feed, for which
    /// [`changes_before_states`](crate::feeds::ServerReleaseMatch::changes_before_states) was `changes`. The response may
    /// be made much later.
    pub(crate) fn of_state(feed: &FeedHandle, changes: u32) -> Self {
        let now = feed.body_release.current_build();
        let encoder_build = now.build.filter(|_| now.changes == changes);
        Self { stale_seconds: Self::stale_seconds(feed), encoder_build }
    }

    /// Returns for how many seconds the feed has been disconnected from upstream.
    pub(crate) fn stale_seconds(feed: &FeedHandle) -> Option<u64> {
        match feed.reader.state() {
            FeedState::Stale { since } => Some(since.elapsed().as_secs()),
            _ => None,
        }
    }
}

impl ResponseContext {
    pub(crate) fn from_headers(peer: &ConnectionPeer, headers: &HeaderMap, query: Arc<UrlQuery>) -> Self {
        let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
        let accept = text(ACCEPT);
        let accept_refused = accept.and_then(|accept| check_accept_length(accept).err()).map(Box::new);
        Self {
            accept: accept.filter(|_| accept_refused.is_none()).map(str::to_owned),
            accept_refused,
            user_agent: text(http::header::USER_AGENT).map(str::to_owned),
            audit_id: headers.get(AUDIT_ID).filter(|id| !id.is_empty()).cloned(),
            record: None,
            gzip: [ACCEPT_ENCODING, PROXY_ACCEPT_ENCODING]
                .into_iter()
                .any(|name| text(name).is_some_and(gzip::is_accepted)),
            query: Some(query),
            is_filtered: false,
            is_permitted: false,
            stale_rules: None,
            abort: peer.abort.clone(),
            connection: peer.connection.clone(),
            by_proxy: headers.contains_key(HOPS),
        }
    }

    /// Returns a Status in the encoding that the request accepts (R-ACCEPT-5).
    pub(crate) fn status(&self, status: &Status) -> Response<ResponseBody> {
        let accept = self.accept.as_deref();
        let is_pretty = self
            .query
            .as_ref()
            .is_some_and(|query| pretty(query, self.user_agent.as_deref(), accept, SupportedMediaTypes::ERROR));
        let (content_type, body) = match negotiate(accept, SupportedMediaTypes::ERROR).media() {
            Some(MediaType::Protobuf) => (MediaType::Protobuf.as_str(), status.to_protobuf()),
            Some(MediaType::Json) if !is_pretty => (MediaType::Json.as_str(), status.to_json()),
            // YAML errors are not written here; a request that accepts only YAML is forwarded.
            _ => (MediaType::Json.as_str(), status.to_json_indented()),
        };
        let mut response = Response::new(ResponseBody::full(Bytes::from(body)));
        *response.status_mut() = StatusCode::from_u16(status.http_code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self.put_common(response.headers_mut(), content_type);
        if response.status().is_client_error() || response.status().is_server_error() {
            response.headers_mut().insert(REFUSED_BY, HeaderValue::from_static("proxy"));
        }
        if let Some(seconds) = status.retry_after_seconds() {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
        }
        response.extensions_mut().insert(ServedLocally { status: Some(status.clone()), ..ServedLocally::default() });
        response
    }

    /// Returns a 200 response from the cache.
    pub(crate) fn served(
        &self,
        encoding: FeedEncoding,
        watch: bool,
        ServedFeedStatus { stale_seconds, encoder_build }: ServedFeedStatus,
        body: ResponseBody,
    ) -> Response<ResponseBody> {
        let content_type = if watch { encoding.watch_media_type() } else { encoding.media_type() };
        let mut response = Response::new(body);
        response.extensions_mut().insert(ServedLocally::from_cache(watch));
        self.put_common(response.headers_mut(), content_type);
        put_served(response.headers_mut(), stale_seconds);
        if let Some(build) = encoder_build.filter(|_| self.by_proxy).and_then(|build| build.header()) {
            response.headers_mut().insert(BUILD, build);
        }
        self.put_filtered(response.headers_mut());
        response
    }

    /// Returns a 200 response with a document that the proxy composed of upstream's parts.
    pub(crate) fn composed(&self, body: ResponseBody) -> Response<ResponseBody> {
        let mut response = Response::new(body);
        response.extensions_mut().insert(ServedLocally::default());
        self.put_common(response.headers_mut(), FeedEncoding::Json.media_type());
        self.put_filtered(response.headers_mut());
        response
    }

    fn put_filtered(&self, headers: &mut HeaderMap) {
        if self.is_filtered {
            headers.insert(FILTERED, HeaderValue::from_static("true"));
        }
    }

    /// Whether a response of this many bytes is compressed.
    pub(crate) fn compresses(&self, bytes: usize) -> bool {
        self.gzip && bytes > PLAIN_BYTES_MAX
    }

    fn put_common(&self, headers: &mut HeaderMap, content_type: &'static str) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        headers.insert(AUDIT_ID, self.audit_id.clone().unwrap_or_else(new_audit_id));
        put_stale_rules(headers, self.stale_rules);
    }
}

pub(crate) fn gzipped(mut response: Response<ResponseBody>) -> Response<ResponseBody> {
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    response
}

pub(crate) const TEXT: &str = "text/plain; charset=utf-8";

/// Returns a response with a fixed text.
pub(crate) fn plain(code: StatusCode, text: &'static str) -> Response<ResponseBody> {
    let mut response =
        Response::new(if text.is_empty() { ResponseBody::empty() } else { ResponseBody::full(text.into()) });
    *response.status_mut() = code;
    response
}

/// Returns the response of Go's server to an unreadable request line, which it sends before any apiserver code runs.
pub(crate) fn malformed(version: Version) -> Response<ResponseBody> {
    let mut response = plain(StatusCode::BAD_REQUEST, "400 Bad Request");
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    if version < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Returns the response of Go's server to an unknown expectation.
pub(crate) fn expectation_failed() -> Response<ResponseBody> {
    let mut response = plain(StatusCode::EXPECTATION_FAILED, "");
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

pub(crate) fn put_served(headers: &mut HeaderMap, stale_seconds: Option<u64>) {
    headers.insert(SERVED, HeaderValue::from_static("cache"));
    if let Some(seconds) = stale_seconds {
        headers.insert(STALE, HeaderValue::from(seconds));
    }
}

/// States how long the rules have been stale by which the caller was authorized, if they are.
pub(crate) fn put_stale_rules(headers: &mut HeaderMap, stale: Option<Duration>) {
    if let Some(stale) = stale {
        headers.insert(PERMISSIONS_STALE, HeaderValue::from(stale.as_secs()));
    }
}

/// Returns a random UUID, as the apiserver assigns to requests without an id.
pub(crate) fn new_audit_id() -> HeaderValue {
    let [a, b] = [fastrand::u64(..), fastrand::u64(..)];
    let text = format!(
        "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xffff,
        a & 0xfff,
        0x8000 | ((b >> 48) & 0x3fff),
        b & 0xffff_ffff_ffff
    );
    HeaderValue::from_str(&text).expect("hexadecimal digits and dashes")
}

/// The `Retry-After` for a client when a concurrency limit is reached. Lists complete within seconds, and the apiserver
/// uses the same value.
pub(crate) const LIST_RETRY_SECONDS: u32 = 1;
/// The `Retry-After` for a client when upstream is unreachable.
const RETRY_AFTER_SECONDS: u32 = 1;

/// Returns the Status for a caller without permission, with the apiserver's text (R-STATUS-3, R-AUTHZ-3).
pub(crate) fn denied_status(error: &GrantError, user: &str, access: &AccessAttributes) -> Status {
    match error {
        GrantError::Unauthenticated => Status::unauthorized(),
        GrantError::Denied(reason) => Status::forbidden_access(user, access, reason),
        GrantError::TooManyNamespaces { .. } => Status::forbidden_access(user, access, &error.to_string()),
        GrantError::Unavailable(_) | GrantError::ReviewsForbidden(_) | GrantError::RulesUnknown { .. } => {
            unavailable(&error.to_string())
        }
        GrantError::TooMany { retry_after_seconds } => {
            Status::too_many_requests(error.to_string(), *retry_after_seconds)
        }
    }
}

/// Returns the Status for a revoked permission.
pub(crate) fn revoked(revoked: &RevokedPermission) -> Status {
    denied_status(&revoked.reason, &revoked.user.name, &revoked.access)
}

/// Returns a 503 Status with a `Retry-After`, so that the client retries.
pub(crate) fn unavailable(message: &str) -> Status {
    let mut status = Status::service_unavailable(message);
    status.set_retry_after(RETRY_AFTER_SECONDS);
    status
}

/// Returns the refusal of a request because too many requests are already waiting.
pub(crate) fn too_many_waiting(_: LimitExceeded) -> GrantError {
    GrantError::TooMany { retry_after_seconds: LIST_RETRY_SECONDS }
}

pub(crate) fn too_many(shed: LimitExceeded, retry_seconds: u32) -> Status {
    Status::too_many_requests(shed.to_string(), retry_seconds)
}

/// Whether an HTTP/1 request has an `Expect` header that no server can meet: only `100-continue` is defined (RFC 9110
/// §10.1.1). Go's server checks this before any handler, and for HTTP/1 only.
pub(crate) fn has_unsupported_expect(request: &Request<RequestBody>) -> bool {
    let expected = request.headers().get(EXPECT).map(|expected| expected.to_str().unwrap_or("?")).unwrap_or_default();
    let is_met = |expectation: &str| expectation.trim().eq_ignore_ascii_case("100-continue");
    request.version() < Version::HTTP_2 && !expected.is_empty() && !expected.split(',').any(is_met)
}

/// Returns the response to a caller without permission.
pub(crate) fn auth_refusal(
    context: &ResponseContext,
    user: &str,
    info: &RequestInfo,
    refused: &GrantError,
) -> Response<ResponseBody> {
    let mut response = context.status(&denied_status(refused, user, &AccessAttributes::from_request(info)));
    let decision = match refused {
        GrantError::Denied(reason) => AuditDecision::Denied(reason.clone()),
        GrantError::TooManyNamespaces { .. } => AuditDecision::Denied(refused.to_string().into()),
        _ => AuditDecision::Unknown,
    };
    response.extensions_mut().insert(decision);
    if response.status() == StatusCode::FORBIDDEN {
        let by = if matches!(refused, GrantError::TooManyNamespaces { .. }) { "proxy" } else { "apiserver" };
        response.headers_mut().insert(REFUSED_BY, HeaderValue::from_static(by));
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubeapi::UrlQuery;

    use super::*;
    use crate::auth::GrantError::{Denied, ReviewsForbidden, TooMany, TooManyNamespaces, Unauthenticated, Unavailable};

    #[test]
    fn each_denial_reason_has_its_status() {
        let query = UrlQuery::parse("watch=1");
        let info = RequestInfo::parse("GET", "/api/v1/namespaces/t1/pods", &query).expect("a path");
        let denied = "pods is forbidden: User \"ada\" cannot watch resource \"pods\" in API group \"\" in the \
                      namespace \"t1\"";
        for (error, code, reason, retry, message) in [
            (Unauthenticated, 401, "Unauthorized", None, "Unauthorized".to_owned()),
            (Denied(Arc::from("")), 403, "Forbidden", None, denied.to_owned()),
            (Denied(Arc::from("no")), 403, "Forbidden", None, format!("{denied}: no")),
            (
                TooManyNamespaces { max: 7 },
                403,
                "Forbidden",
                None,
                format!("{denied}: {}", TooManyNamespaces { max: 7 }),
            ),
            (Unavailable("who you are".to_owned()), 503, "ServiceUnavailable", Some(1), "who you are".to_owned()),
            (
                ReviewsForbidden("the proxy's account may not create tokenreviews (RBAC)".to_owned()),
                503,
                "ServiceUnavailable",
                Some(1),
                "the proxy's account may not create tokenreviews (RBAC)".to_owned(),
            ),
            (
                TooMany { retry_after_seconds: 7 },
                429,
                "TooManyRequests",
                Some(7),
                TooMany { retry_after_seconds: 7 }.to_string(),
            ),
        ] {
            let reported = denied_status(&error, "ada", &AccessAttributes::from_request(&info));
            let parts =
                (reported.code, reported.reason.as_str(), reported.retry_after_seconds(), reported.message.as_str());
            assert_eq!(parts, (code, reason, retry, message.as_str()), "{error:?}");
        }
    }
}
