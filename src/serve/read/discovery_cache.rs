//! Discovery and `/version`: the apiserver's documents about itself. A document is the same for all callers that may
//! read it, so one copy serves them all.
//!
//! **Freshness.** A response comes from a request that was sent to upstream after the caller's request had arrived;
//! concurrent callers share it, and aggregated discovery is requested by its `ETag`. A copy is used instead if it is
//! known to be current:
//!
//! - The proxy's watches of `CustomResourceDefinitions` and `APIServices` are live, and the copy was requested at least
//!   `lag_max` after the last change that they showed. Upstream updates its discovery from the same two watches.
//! - The copy was requested in the last `CURRENT_MAX`, because no watch shows that another release of the apiserver, or
//!   another version of an aggregated one, has taken over.
//!
//! Where the proxy may not watch the two resources, as on a node, every request is compared with upstream.
//!
//! **Not cached**: the groups of aggregated API servers, whose responses may depend on the caller, and groups that
//! discovery does not know.

use std::sync::Arc;
use std::time::Duration;

use http::header::{
    ACCEPT, ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, HeaderMap, HeaderName, HeaderValue,
    IF_NONE_MATCH, VARY,
};
use http::{Method, Response, StatusCode};
use tokio::time::{Instant, timeout};

use crate::serve::activity::metrics;
use crate::serve::audit::ServedLocally;
use crate::serve::limits::{BufferedResponseBody, TOO_SLOW};
use crate::serve::read::{FREE_BYTES_MAX, ReadRequest};
use crate::serve::response::{AUDIT_ID, ResponseBody, new_audit_id, put_served};
use crate::serve::serve_components::ServeComponents;
use crate::upstream::{CachedDocument, HOPS, ServerBuild, UpstreamError, is_impersonation};
use base::CoalescingCache;
use kubeapi::{SupportedMediaTypes, UrlQuery, discovery_accept, pretty};

/// All properties of a request that determine the discovery document. Upstream has few documents and each has few keys,
/// so no caller can fill the cache.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct DiscoveryDocumentKey {
    path: String,
    accept: &'static str,
    gzip: bool,
}

/// A response from upstream that callers share.
#[derive(Debug, Clone)]
pub(crate) struct TimedResponse<V> {
    /// A time before its request was sent.
    pub(crate) requested_at: Instant,
    pub(crate) value: V,
}

/// Serves discovery documents from copies of upstream's.
#[derive(Debug)]
pub(crate) struct DiscoveryCache {
    shared: Arc<ServeComponents>,
    copies: CoalescingCache<DiscoveryDocumentKey, TimedResponse<Arc<CachedDocument>>>,
}

/// How long a copy of a document is used without comparing it with upstream.
const CURRENT_MAX: Duration = Duration::from_secs(10);
const COPIES_BYTES_MAX: u64 = 64 << 20;
/// The maximum size in bytes of a document that callers share.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;
/// How long a request waits for a document. Then it is forwarded.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
const VERSION: &str = "/version";
/// The headers that belong to a discovery document. All others belong to one response.
const HEADERS: [HeaderName; 5] = [CONTENT_TYPE, CONTENT_ENCODING, CACHE_CONTROL, ETAG, VARY];

impl<V> TimedResponse<V> {
    /// Returns the metric label of the response's origin: a request to upstream since `called`, which other callers may
    /// share, or memory.
    pub(crate) fn origin(&self, called: Instant) -> &'static str {
        if self.requested_at >= called { "upstream" } else { "memory" }
    }
}

impl DiscoveryCache {
    pub(crate) fn new(shared: Arc<ServeComponents>) -> Self {
        Self { shared, copies: CoalescingCache::new(COPIES_BYTES_MAX, len_bytes, |_, _| None) }
    }

    /// Returns the key of the requested document, regardless of the caller's permissions; `None` if the request must be
    /// forwarded.
    pub(crate) fn key(&self, request: &ReadRequest) -> Option<DiscoveryDocumentKey> {
        let ReadRequest { http, info, query, context, .. } = request;
        let accept = context.accept.as_deref();
        let is_plain = *http.method() == Method::GET
            && !info.is_resource
            && info.is_canonical
            && is_plain(query)
            && !http.headers().keys().any(is_impersonation)
            && http.headers().get_all(ACCEPT).iter().count() <= 1
            && !pretty(query, context.user_agent.as_deref(), accept, SupportedMediaTypes::BUILTIN);
        let accept = discovery_accept(accept).filter(|_| is_plain && self.is_served_by_upstream(&info.path))?;
        Some(DiscoveryDocumentKey { path: info.path.clone(), accept, gzip: context.gzip })
    }

    /// Whether upstream itself writes the document at `path`, rather than an aggregated server.
    fn is_served_by_upstream(&self, path: &str) -> bool {
        match group_version(path) {
            Some((group, version)) => self.shared.catalog.is_local_group(group, version),
            None => [VERSION, "/api", "/api/v1", "/apis"].contains(&path),
        }
    }

    /// Returns the response for a caller that may read the document. Returns `None` if the caller's own request must be
    /// forwarded. That includes a caller with too many requests in flight, whose forwarded request is then rejected.
    /// `hops` lists the proxies on the path, including this one.
    pub(crate) async fn respond(
        &self,
        request: &ReadRequest,
        key: &DiscoveryDocumentKey,
        hops: HeaderValue,
    ) -> Option<Response<ResponseBody>> {
        let (flow, called) = (request.caller.flow(), Instant::now());
        let fetch = |last: Option<TimedResponse<_>>| async {
            // The fetch takes the same permit as the caller's forwarded request would.
            let _permit = self.shared.concurrency.forwards.acquire(flow.as_ref()).map_err(|error| error.to_string())?;
            let last = last.map(|last| last.value);
            self.fetch(key, hops.clone(), last).await.map_err(|error| error.to_string())
        };
        // A copy that was requested before the caller's request arrived may predate that request.
        let is_accepted = |copy: &TimedResponse<_>| copy.requested_at >= request.received || self.is_current(key, copy);
        let fetching = timeout(FETCH_TIMEOUT, self.copies.get_or_fetch(key, is_accepted, fetch));
        let fetched = fetching.await.unwrap_or_else(|elapsed| Err(Arc::new(elapsed.to_string())));
        let fetched = fetched.inspect_err(|error| {
            tracing::debug!(path = key.path, %error, "cannot serve discovery from the cache; forwarding");
        });
        let copy = fetched.ok()?;
        let kind = if key.path == VERSION { "version" } else { "discovery" };
        metrics::served_discovery(kind, copy.origin(called));
        self.response(request, &copy.value)
    }

    /// Whether a copy is current, as far as changes are observed.
    fn is_current(&self, key: &DiscoveryDocumentKey, copy: &TimedResponse<Arc<CachedDocument>>) -> bool {
        let lag_max = self.shared.config.get().lag_max;
        self.shared.catalog.is_settled(copy.requested_at, lag_max)
            && copy.requested_at.elapsed() <= CURRENT_MAX
            && (key.path != VERSION || self.matches_feeds(&copy.value))
    }

    /// Whether the build in a version document has encoded all feeds.
    fn matches_feeds(&self, version: &CachedDocument) -> bool {
        let build = ServerBuild::parse(&version.body);
        let by = |build: &Arc<ServerBuild>| ServerBuild::clone(build);
        let mut writers =
            self.shared.feeds.all().into_iter().filter_map(|feed| feed.body_release.current_build().build);
        build.is_some() && writers.all(|writer| build == Some(by(&writer)))
    }

    async fn fetch(
        &self,
        key: &DiscoveryDocumentKey,
        hops: HeaderValue,
        last: Option<Arc<CachedDocument>>,
    ) -> Result<TimedResponse<Arc<CachedDocument>>, UpstreamError> {
        let mut headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(key.accept)), (HOPS, hops)]);
        if key.gzip {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
        if let Some(etag) = last.as_ref().and_then(|last| last.headers.get(ETAG)) {
            headers.insert(IF_NONE_MATCH, etag.clone());
        }
        let requested_at = Instant::now();
        let value = match (self.shared.client.document(&key.path, headers, DOCUMENT_BYTES_MAX).await?, last) {
            (Some(CachedDocument { headers, body }), _) => {
                let values =
                    |name: HeaderName| headers.get_all(&name).iter().map(move |value| (name.clone(), value.clone()));
                Arc::new(CachedDocument { headers: HEADERS.into_iter().flat_map(values).collect(), body })
            }
            (None, Some(last)) => last,
            (None, None) => return Err(UpstreamError::OtherDocument(key.path.clone())),
        };
        Ok(TimedResponse { requested_at, value })
    }

    /// Returns the document, or 304 if the caller already has it. A large body holds a permit for its length until the
    /// client has read it; `None` if there is none.
    fn response(&self, request: &ReadRequest, document: &CachedDocument) -> Option<Response<ResponseBody>> {
        let CachedDocument { headers, body } = document;
        let (etag, abort) = (headers.get(ETAG), &request.context.abort);
        let is_unchanged = etag.is_some() && etag == request.http.headers().get(IF_NONE_MATCH);
        let mut response = Response::new(if is_unchanged {
            ResponseBody::empty()
        } else if body.len() <= FREE_BYTES_MAX {
            abort.set_timeout(self.shared.slow_readers.body_max(), TOO_SLOW);
            ResponseBody::full(body.clone())
        } else {
            let permit = self.shared.concurrency.buffered(request.caller.flow().as_ref(), body.len()).ok()?;
            let whole = BufferedResponseBody::from_bytes(body.clone(), vec![permit.into()]);
            ResponseBody::whole(whole, &self.shared.slow_readers, abort.clone())
        });
        response.headers_mut().clone_from(headers);
        if is_unchanged {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            remove_body_headers(response.headers_mut());
        }
        let audit_id = request.context.audit_id.clone().unwrap_or_else(new_audit_id);
        response.headers_mut().insert(AUDIT_ID, audit_id);
        put_served(response.headers_mut(), None);
        response.extensions_mut().insert(ServedLocally::from_cache(false));
        Some(response)
    }
}

/// Removes the headers that a 304 response must not have.
fn remove_body_headers(headers: &mut HeaderMap) {
    headers.remove(CONTENT_TYPE);
    headers.remove(CONTENT_ENCODING);
    // The first value is the handler's, `Accept`. Compression adds another.
    if let Some(vary) = headers.get(VARY).cloned() {
        headers.insert(VARY, vary);
    }
}

/// Whether the query is empty or only a time limit, as discovery clients send it.
fn is_plain(query: &UrlQuery) -> bool {
    let raw = query.raw();
    let is_timeout = |pair: &str| pair.strip_prefix("timeout=").is_some_and(|time| time.ends_with('s'));
    raw.is_empty() || is_timeout(raw) && !raw.contains('&') && kubeapi::has_valid_timeout(query)
}

/// Returns the API group, and the version if any, that a document below `/apis` is about.
fn group_version(path: &str) -> Option<(&str, Option<&str>)> {
    let path = path.strip_prefix("/apis/").filter(|path| !path.is_empty())?;
    Some(path.split_once('/').map_or((path, None), |(group, version)| (group, Some(version))))
}

fn len_bytes(copy: &TimedResponse<Arc<CachedDocument>>) -> usize {
    const HEADERS_BYTES: usize = 2_048;
    HEADERS_BYTES + copy.value.body.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_version_is_the_path_below_apis() {
        for (path, expected) in [
            ("/apis/apps", Some(("apps", None))),
            ("/apis/apps/v1", Some(("apps", Some("v1")))),
            ("/apis/apps/", Some(("apps", Some("")))),
            ("/apis/apps/v1/deployments", Some(("apps", Some("v1/deployments")))),
            ("/apis/", None),
            ("/apis", None),
            ("/api/v1", None),
            ("/version", None),
        ] {
            assert_eq!(group_version(path), expected, "{path}");
        }
    }

    #[test]
    fn only_an_empty_query_or_a_time_limit_is_plain() {
        for (query, expected) in [
            ("", true),
            ("timeout=32s", true),
            ("timeout=", false),
            ("timeout=x", false),
            ("timeout=xs", false),
            ("timeout=1s&timeout=2s", false),
            ("pretty=1", false),
            ("timeout=1s&pretty=1", false),
        ] {
            assert_eq!(is_plain(&UrlQuery::parse(query)), expected, "{query}");
        }
    }

    /// The apiserver compresses after it has compared the `ETag`.
    #[test]
    fn headers_of_304_are_those_without_a_body() {
        let headers = |all: &[(HeaderName, &'static str)]| -> HeaderMap {
            all.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
        };
        let own = [(ETAG, "\"1\""), (VARY, "Accept"), (CACHE_CONTROL, "public")];
        let of_body = [(VARY, "Accept-Encoding"), (CONTENT_ENCODING, "gzip"), (CONTENT_TYPE, "application/json")];
        let mut all = headers(&[own.clone(), of_body].concat());
        remove_body_headers(&mut all);
        assert_eq!(all, headers(&own));
    }
}
