//! What the proxy answers to proxies below it: its health, and reviews of their callers.
//!
//! **Reviews.** Identical concurrent reviews are coalesced into one request to upstream. Its response also serves later
//! reviews for a short time, unless a change of permissions is observed.
//!
//! Reviews are sent with this proxy's identity, so only callers that may create reviews are answered here. A review's
//! result depends only on its body.
//!
//! Responses are cached here and not with the decisions on this proxy's own callers, because they are sent on as they
//! are. Neither cache uses the other's results.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use tokio::time::{Instant, timeout};

use crate::feeds::FeedRegistry;
use crate::net::RequestBody;
use crate::serve::activity::metrics;
use crate::serve::audit::ServedLocally;
use crate::serve::forward::unreachable;
use crate::serve::read::{ReadRequest, TimedResponse};
use crate::serve::response::{
    AUDIT_ID, LIST_RETRY_SECONDS, ResponseBody, TEXT, new_audit_id, plain, put_served, too_many,
};
use crate::serve::serve_components::ServeComponents;
use crate::upstream::{
    ACCESS_REVIEWS, AccessReviewResult, CAUSE, TOKEN_REVIEWS, TokenReviewResult, UpstreamError, UpstreamRequestCause,
    is_impersonation,
};
use base::{CoalescingCache, ReadinessTracker};
use kubeapi::{FlowDistinguisher, RequestInfo, Status};

/// The kind of a review that a downstream proxy requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum DownstreamReviewKind {
    /// A `SubjectAccessReview` for a request.
    Access,
    /// A `SubjectAccessReview` for an open watch.
    Lease,
    Token,
}

/// The cache key of a review. It has a digest of the body, because the body may contain a token. Reviews for open
/// watches are kept apart: if upstream is a proxy itself, its responses to them may be older than requests allow.
type DownstreamReviewKey = (DownstreamReviewKind, [u8; 32]);

#[derive(Debug, Clone)]
struct CachedDownstreamReview {
    body: Bytes,
    /// How long the response serves requests.
    ttl: Duration,
    /// How long the response serves reviews for open watches.
    lease_ttl: Duration,
}

/// The time from which on upstream's decisions reflect the last observed change of permissions.
#[derive(Debug, Clone, Copy)]
struct LastPermissionChange {
    /// The time from which they normally reflect the change.
    seen_at: Instant,
    /// The time from which they certainly reflect the change. After a change, each open watch is reviewed once more,
    /// and must not receive the earlier decision.
    settled_at: Instant,
}

/// Creates reviews on behalf of downstream proxies, and shares the results.
#[derive(Debug)]
pub(crate) struct DownstreamReviewHandler {
    shared: Arc<ServeComponents>,
    cache: CoalescingCache<DownstreamReviewKey, TimedResponse<CachedDownstreamReview>>,
}

/// The timeout of a review, including the wait for identical ones.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
/// How long all feeds may be disconnected from upstream before this proxy is not ready for the proxies below it.
const STALE_MAX: Duration = Duration::from_secs(10);
const CACHE_BYTES_MAX: u64 = 32 << 20;
const KEY_BYTES: usize = 256;
/// The maximum size of a review. It contains the name and groups of a user, or a token.
const REVIEW_BYTES_MAX: usize = 128 << 10;
const JSON: &str = "application/json";
const UNREADABLE: &str = "the review body is too large or incomplete";

impl DownstreamReviewHandler {
    pub(crate) fn new(shared: Arc<ServeComponents>) -> Self {
        let len_bytes = |cached: &TimedResponse<CachedDownstreamReview>| KEY_BYTES + cached.value.body.len();
        // Entries that serve no request would take the room of others. Those that wait for a review may share it.
        let ttl = |(kind, _): &DownstreamReviewKey, cached: &TimedResponse<CachedDownstreamReview>| {
            let CachedDownstreamReview { ttl, lease_ttl, .. } = cached.value;
            let ttl = if *kind == DownstreamReviewKind::Lease { ttl.max(lease_ttl) } else { ttl };
            Some(ttl.max(REVIEW_TIMEOUT))
        };
        Self { shared, cache: CoalescingCache::new(CACHE_BYTES_MAX, len_bytes, ttl) }
    }

    /// Whether another proxy requests a review for itself, in the form that proxies use.
    pub(crate) fn is_proxy_review(request: &ReadRequest) -> bool {
        let headers = request.http.headers();
        let is_json = |name| headers.get(name).is_some_and(|value: &HeaderValue| value == JSON);
        request.context.by_proxy
            && DownstreamReviewKind::from_request(request).is_some()
            && *request.http.method() == Method::POST
            && request.http.uri().query().is_none()
            && (is_json(ACCEPT) && is_json(CONTENT_TYPE))
            && !headers.keys().any(is_impersonation)
    }

    /// Answers a proxy that may create reviews. `hops` names the requesting proxies and this one.
    pub(crate) async fn handle(&self, request: Box<ReadRequest>, hops: HeaderValue) -> Response<ResponseBody> {
        let (kind, received, flow) =
            (DownstreamReviewKind::from_request(&request), request.received, request.caller.flow());
        let ReadRequest { http, context, .. } = *request;
        match self.respond(kind.unwrap_or(DownstreamReviewKind::Access), http.into_body(), (received, flow), hops).await
        {
            Ok(body) => {
                let mut response = Response::new(ResponseBody::full(body));
                *response.status_mut() = StatusCode::CREATED;
                let headers = response.headers_mut();
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(JSON));
                headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
                headers.insert(AUDIT_ID, context.audit_id.unwrap_or_else(new_audit_id));
                response.extensions_mut().insert(ServedLocally::from_cache(false));
                response
            }
            Err(status) => context.status(&status),
        }
    }

    async fn respond(
        &self,
        kind: DownstreamReviewKind,
        body: RequestBody,
        (received, flow): (Instant, Option<FlowDistinguisher>),
        hops: HeaderValue,
    ) -> Result<Bytes, Status> {
        let _permit = self
            .shared
            .concurrency
            .forwards
            .acquire(flow.as_ref())
            .map_err(|shed| too_many(shed, LIST_RETRY_SECONDS))?;
        let collected =
            timeout(self.shared.slow_readers.body_max(), Limited::new(body, REVIEW_BYTES_MAX).collect()).await;
        let Ok(Ok(collected)) = collected else { return Err(Status::bad_request(UNREADABLE)) };
        let body = collected.to_bytes();
        let digest = ring::digest::digest(&ring::digest::SHA256, &body);
        let key = (kind, digest.as_ref().try_into().expect("SHA-256 has 32 bytes"));
        let called = Instant::now();
        let is_accepted = |cached: &TimedResponse<_>| {
            cached.requested_at >= received || kind.is_fresh(cached, self.last_change(), Instant::now())
        };
        let pending = self.cache.get_or_fetch(&key, is_accepted, |_| self.send(kind, hops.clone(), body.clone()));
        let outcome = timeout(REVIEW_TIMEOUT, pending).await;
        let outcome = outcome.unwrap_or_else(|_| Err(Arc::new(UpstreamError::Timeout(REVIEW_TIMEOUT))));
        let cached = outcome.map_err(|error| unreachable(&error))?;
        metrics::answered_proxy("review", cached.origin(called));
        Ok(cached.value.body)
    }

    async fn send(
        &self,
        kind: DownstreamReviewKind,
        hops: HeaderValue,
        body: Bytes,
    ) -> Result<TimedResponse<CachedDownstreamReview>, UpstreamError> {
        let (cause, path) = match kind {
            DownstreamReviewKind::Access => (UpstreamRequestCause::AccessReview, ACCESS_REVIEWS),
            DownstreamReviewKind::Lease => (UpstreamRequestCause::LeaseReview, ACCESS_REVIEWS),
            DownstreamReviewKind::Token => (UpstreamRequestCause::TokenReview, TOKEN_REVIEWS),
        };
        let requested_at = Instant::now();
        let body = self.shared.client.review(cause, path, hops, body).await?;
        let (ttl, lease_ttl) = self.ttls(kind, &body);
        let body = if kind == DownstreamReviewKind::Token { without_spec(&body).unwrap_or(body) } else { body };
        Ok(TimedResponse { requested_at, value: CachedDownstreamReview { body, ttl, lease_ttl } })
    }

    /// Returns how long a response serves requests, and how long it serves reviews for open watches.
    fn ttls(&self, kind: DownstreamReviewKind, response: &[u8]) -> (Duration, Duration) {
        let config = self.shared.authorizer.config();
        if kind == DownstreamReviewKind::Token {
            // An unknown token may become valid a moment later, so the result is not reused.
            let is_known = TokenReviewResult::parse(response).is_some_and(|result| result.user.is_some());
            return (if is_known { config.token_ttl } else { Duration::ZERO }, Duration::ZERO);
        }
        match AccessReviewResult::parse(response) {
            // This proxy observes every change of RBAC, which not every proxy below it may.
            Some(AccessReviewResult { allowed: true, reason }) if AccessReviewResult::is_by_rbac(&reason) => {
                (config.allowed_ttl, config.recheck_rbac.max(config.allowed_ttl))
            }
            Some(AccessReviewResult { allowed: true, .. }) => (config.allowed_ttl, config.allowed_ttl),
            Some(AccessReviewResult { reason, .. }) if AccessReviewResult::is_transient_denial(&reason) => {
                (Duration::ZERO, Duration::ZERO)
            }
            _ => (config.denied_ttl, config.denied_ttl),
        }
    }

    /// Returns the last change of permissions, or `None` if changes are not observed.
    fn last_change(&self) -> Option<LastPermissionChange> {
        let recheck = self.shared.authorizer.config().recheck;
        let at = self.shared.authorizer.policy_unchanged_since()?;
        let lag_max = self.shared.config.get().lag_max;
        Some(LastPermissionChange { seen_at: at + lag_max, settled_at: at + recheck.max(lag_max) })
    }
}

/// Returns the health of this proxy to a proxy below it, for which this proxy is the upstream. It needs no
/// authorization, because the response contains no data about any caller. If this proxy cannot reach its own upstream,
/// it is not ready, because another upstream of the proxy below may be.
pub(crate) fn health<B>(
    request: &Request<B>,
    info: &RequestInfo,
    ready: &ReadinessTracker,
    feeds: &FeedRegistry,
) -> Option<Response<ResponseBody>> {
    if *request.method() != Method::GET || request.uri().query().is_some() || !info.is_canonical {
        return None;
    }
    let is_healthy = match info.path.as_str() {
        "/livez" | "/healthz" => true,
        "/readyz" => ready.is_ready() && !feeds.are_stale(STALE_MAX),
        _ => return None,
    };
    metrics::answered_proxy("health", "memory");
    let failed = (StatusCode::SERVICE_UNAVAILABLE, "readyz check failed\n");
    let (status, text) = if is_healthy { (StatusCode::OK, "ok") } else { failed };
    let mut response = plain(status, text);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(TEXT));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    put_served(headers, None);
    response.extensions_mut().insert(ServedLocally::from_cache(false));
    Some(response)
}

/// Returns a review without its spec, because that of a TokenReview has the token.
fn without_spec(review: &[u8]) -> Option<Bytes> {
    let mut review: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(review).ok()?;
    review.remove("spec")?;
    serde_json::to_vec(&review).ok().map(Bytes::from)
}

impl DownstreamReviewKind {
    /// Returns the kind of review that another proxy states.
    fn from_request(request: &ReadRequest) -> Option<Self> {
        let has_cause = |cause: UpstreamRequestCause| {
            request.http.headers().get(CAUSE).is_some_and(|value| value == cause.as_str())
        };
        match request.http.uri().path() {
            ACCESS_REVIEWS if has_cause(UpstreamRequestCause::AccessReview) => Some(Self::Access),
            ACCESS_REVIEWS if has_cause(UpstreamRequestCause::LeaseReview) => Some(Self::Lease),
            TOKEN_REVIEWS if has_cause(UpstreamRequestCause::TokenReview) => Some(Self::Token),
            _ => None,
        }
    }

    /// Whether a response is recent enough by the proxy's own rules, and no change of permissions was observed since.
    fn is_fresh(
        self,
        last: &TimedResponse<CachedDownstreamReview>,
        change: Option<LastPermissionChange>,
        now: Instant,
    ) -> bool {
        let (age, cached) = (now.saturating_duration_since(last.requested_at), &last.value);
        match change {
            _ if self == Self::Token => age < cached.ttl,
            None => false,
            Some(LastPermissionChange { settled_at, .. }) if self == Self::Lease && now >= settled_at => {
                age < cached.lease_ttl && last.requested_at >= settled_at
            }
            Some(LastPermissionChange { seen_at, .. }) => age < cached.ttl && last.requested_at >= seen_at,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_token_review_has_no_token() {
        let review = r#"{"kind":"TokenReview","spec":{"token":"abc"},"status":{"authenticated":true,"user":{"username":"ada"}}}"#;
        let kept = without_spec(review.as_bytes()).expect("a review");
        assert_eq!(kept, r#"{"kind":"TokenReview","status":{"authenticated":true,"user":{"username":"ada"}}}"#);
        assert!(TokenReviewResult::parse(&kept).is_some_and(|result| result.user.is_some()), "it can still be read");
    }

    /// A change at 0 s. Decisions normally reflect it from 5 s on, and certainly from 60 s on. They are reused for 10
    /// s, and decisions by RBAC for open watches for 600 s.
    #[test]
    fn shared_review_expires_after_ttl_or_rbac_change() {
        let zero = Instant::now();
        let at = |second: u64| zero + Duration::from_secs(second);
        let change = LastPermissionChange { seen_at: at(5), settled_at: at(60) };
        let (by_rbac, by_others) = (600, 10);
        for (kind, requested_at, now, lease_ttl, expected) in [
            (DownstreamReviewKind::Access, 4, 6, by_rbac, false),
            (DownstreamReviewKind::Access, 6, 15, by_rbac, true),
            (DownstreamReviewKind::Access, 6, 16, by_rbac, false),
            (DownstreamReviewKind::Access, 100, 111, by_rbac, false),
            (DownstreamReviewKind::Lease, 4, 6, by_rbac, false),
            (DownstreamReviewKind::Lease, 6, 15, by_rbac, true),
            // Upstream may not know of the change yet.
            (DownstreamReviewKind::Lease, 6, 17, by_rbac, false),
            (DownstreamReviewKind::Lease, 55, 59, by_rbac, true),
            (DownstreamReviewKind::Lease, 55, 60, by_rbac, false),
            (DownstreamReviewKind::Lease, 60, 61, by_rbac, true),
            (DownstreamReviewKind::Lease, 61, 660, by_rbac, true),
            (DownstreamReviewKind::Lease, 61, 661, by_rbac, false),
            (DownstreamReviewKind::Lease, 61, 70, by_others, true),
            (DownstreamReviewKind::Lease, 61, 71, by_others, false),
            (DownstreamReviewKind::Token, 1, 10, 0, true),
            (DownstreamReviewKind::Token, 1, 11, 0, false),
        ] {
            let (ttl, lease_ttl) = (Duration::from_secs(10), Duration::from_secs(lease_ttl));
            let cached = TimedResponse {
                requested_at: at(requested_at),
                value: CachedDownstreamReview { body: Bytes::new(), ttl, lease_ttl },
            };
            let case = format!("{kind:?}, requested at {requested_at} s, at {now} s, for {lease_ttl:?}");
            assert_eq!(kind.is_fresh(&cached, Some(change), at(now)), expected, "{case}");
            let of_token = kind == DownstreamReviewKind::Token && expected;
            assert_eq!(kind.is_fresh(&cached, None, at(now)), of_token, "{case}, where no change would be seen");
        }
    }
}
