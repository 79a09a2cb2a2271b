//! The documents that other proxies request about the apiserver itself: version, discovery and health. A document is
//! the same for all authorized callers, so it is fetched once and cached until a change is observed.
//!
//! Only proxies are answered from this cache. Their clients' discovery lags behind definitions in any case. Requests
//! from other clients are forwarded.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH,
};
use http::{Method, Request, Response, StatusCode};
use tokio::time::{Instant, timeout};

use crate::feeds::Feeds;
use crate::listing::OverLimit;
use crate::serve::activity::metrics::{self, AnsweredFrom};
use crate::serve::audit::ServedLocally;
use crate::serve::limits::{ConcurrencyLimits, SlowReaderReaper, TOO_SLOW, Whole};
use crate::serve::peers::remembered::{AskedAt, Remembered};
use crate::serve::read::{FREE_BYTES_MAX, ReadRequest};
use crate::serve::response::{AUDIT_ID, ReplyBody, new_audit_id, put_served};
use crate::upstream::{Build, Catalog, Client, Error, SharedDocument, is_impersonation, strip_hop_by_hop};
use base::Ready;
use kubeapi::{Offers, Query, RequestInfo, discovery_accept, pretty};

/// The kind of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The server's version.
    Version,
    /// The APIs that the server offers.
    Discovery,
}

/// All properties of a request that determine the document.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    path: String,
    /// In its canonical spelling, so that callers cannot create more keys than there are documents.
    accept: HeaderValue,
}

/// Why upstream did not return a document.
#[derive(Debug, thiserror::Error)]
enum NotAsked {
    #[error(transparent)]
    OverLimit(#[from] OverLimit),
    #[error(transparent)]
    Failed(#[from] Error),
}

#[derive(Debug, Clone)]
struct Kept {
    asked: Instant,
    document: Arc<SharedDocument>,
}

/// The documents that downstream proxies have requested.
#[derive(Debug)]
pub(crate) struct ServerDocuments {
    client: Client,
    catalog: Catalog,
    feeds: Feeds,
    kept: Remembered<Key, Kept>,
    concurrency: Arc<ConcurrencyLimits>,
    slow_readers: SlowReaderReaper,
    /// How long upstream's discovery may lag behind its own definitions. A document fetched within this time after a
    /// change is not reused for later requests.
    lag_max: Duration,
}

/// How long a document is cached when no change is observed, because another server may answer by now.
const KEPT_MAX: Duration = Duration::from_secs(60);
const KEPT_BYTES_MAX: u64 = 64 << 20;
/// How long a request waits for a document. Then it is forwarded.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const SNIFFED: HeaderName = http::header::X_CONTENT_TYPE_OPTIONS;
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

impl ServerDocuments {
    pub(crate) fn new(
        client: Client,
        (catalog, feeds): (Catalog, Feeds),
        concurrency: Arc<ConcurrencyLimits>,
        slow_readers: SlowReaderReaper,
        lag_max: Duration,
    ) -> Self {
        Self { client, catalog, feeds, kept: Remembered::new(KEPT_BYTES_MAX), concurrency, slow_readers, lag_max }
    }

    /// Whether the request is for a cached document, regardless of the caller's permissions.
    pub(crate) fn has(&self, request: &ReadRequest) -> bool {
        request.context.by_proxy && self.kind(request).is_some()
    }

    fn kind(&self, request: &ReadRequest) -> Option<Kind> {
        let ReadRequest { http, info, query, context, .. } = request;
        let asks_otherwise = *http.method() != Method::GET
            || http.headers().keys().any(is_impersonation)
            || http.headers().get_all(ACCEPT).iter().count() > 1
            || pretty(query, context.user_agent.as_deref(), context.accept.as_deref(), Offers::BUILTIN);
        if asks_otherwise || !is_plain(query) {
            return None;
        }
        kind_of(info).filter(|_| !group_of(&info.path).is_some_and(|group| self.catalog.is_elsewhere(group)))
    }

    /// Returns the response for a caller that may read the document. Returns `None` if the caller's own request must be
    /// forwarded. That includes a caller with too many requests in flight, whose forwarded request is then rejected.
    /// `hops` lists the proxies on the path, including this one.
    pub(crate) async fn answer(&self, request: &ReadRequest, hops: &HeaderValue) -> Option<Response<ReplyBody>> {
        let kind = self.kind(request)?;
        let accept = HeaderValue::try_from(discovery_accept(request.context.accept.as_deref())?).ok()?;
        let key = Key { path: request.info.path.clone(), accept };
        let (asked_before, payer) = (Instant::now(), request.caller.payer());
        let ask = async |last| {
            // The fetch takes the same permit as the caller's forwarded request would.
            let _place = self.concurrency.forward(payer.as_ref())?;
            Ok::<_, NotAsked>(self.ask(&key, hops, last).await?)
        };
        let asking = self.kept.get(&key, request.received, |kept| self.will_do(kind, kept), ask);
        let kept = match timeout(ANSWER_MAX, asking).await {
            Ok(Ok(kept)) => kept,
            Ok(Err(why)) => {
                tracing::debug!(path = %key.path, %why, "cannot answer a downstream proxy from memory");
                return None;
            }
            Err(_) => return None,
        };
        let from = if kept.asked >= asked_before { AnsweredFrom::Upstream } else { AnsweredFrom::Memory };
        metrics::answered_proxy(if kind == Kind::Version { "version" } else { "discovery" }, from);
        self.told(request, &kept.document)
    }

    /// Whether a document is current, as far as changes have been observed.
    fn will_do(&self, kind: Kind, kept: &Kept) -> bool {
        let is_settled = self.catalog.unchanged_since().is_some_and(|since| kept.asked >= since + self.lag_max);
        is_settled && kept.asked.elapsed() <= KEPT_MAX && (kind != Kind::Version || self.is_followed(&kept.document))
    }

    /// Whether all feeds are written by the build in this version document.
    fn is_followed(&self, version: &SharedDocument) -> bool {
        let build = Build::parse(&version.body);
        let by = |build: &Arc<Build>| Build::clone(build);
        let mut writers = self.feeds.all().into_iter().filter_map(|feed| feed.body_release.written().by);
        build.is_some() && writers.all(|writer| build == Some(by(&writer)))
    }

    async fn ask(&self, key: &Key, hops: &HeaderValue, last: Option<Kept>) -> Result<Kept, Error> {
        let asked = Instant::now();
        let known = last.as_ref().and_then(|last| last.document.headers.get(ETAG));
        match (self.client.document(&key.path, Some(&key.accept), hops.clone(), known).await?, last) {
            (Some(mut document), _) => {
                strip_hop_by_hop(&mut document.headers);
                for name in [AUDIT_ID, DATE, CONTENT_LENGTH] {
                    document.headers.remove(name);
                }
                Ok(Kept { asked, document: Arc::new(document) })
            }
            (None, Some(last)) => Ok(Kept { asked, ..last }),
            (None, None) => Err(Error::OtherDocument(key.path.clone())),
        }
    }

    /// Returns the document, or 304 if the caller already has it.
    fn told(&self, request: &ReadRequest, document: &SharedDocument) -> Option<Response<ReplyBody>> {
        let etag = document.headers.get(ETAG);
        let is_known = etag.is_some() && etag == request.http.headers().get(IF_NONE_MATCH);
        let mut response = if is_known {
            Response::new(ReplyBody::empty())
        } else {
            Response::new(self.body(request, document.body.clone())?)
        };
        response.headers_mut().clone_from(&document.headers);
        if is_known {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response.headers_mut().remove(CONTENT_TYPE);
        }
        let audit_id = request.context.audit_id.clone().unwrap_or_else(new_audit_id);
        response.headers_mut().insert(AUDIT_ID, audit_id);
        put_served(response.headers_mut(), None);
        response.extensions_mut().insert(ServedLocally { is_served: true, ..ServedLocally::default() });
        Some(response)
    }

    /// Creates the body. A large one holds a permit for its length until the client has read it.
    fn body(&self, request: &ReadRequest, bytes: Bytes) -> Option<ReplyBody> {
        let cut = &request.context.cut;
        if bytes.len() <= FREE_BYTES_MAX {
            cut.within(self.slow_readers.body_max(), TOO_SLOW);
            return Some(ReplyBody::full(bytes));
        }
        let place = self.concurrency.whole(request.caller.payer().as_ref(), bytes.len()).ok()?;
        Some(ReplyBody::whole(Whole::of(bytes, vec![place.into()]), &self.slow_readers, cut.clone()))
    }
}

/// Returns the health of this proxy to a proxy below it, for which this proxy is the upstream. It needs no
/// authorization, because the response contains no data about any caller.
pub(crate) fn health<B>(request: &Request<B>, info: &RequestInfo, ready: &Ready) -> Option<Response<ReplyBody>> {
    if *request.method() != Method::GET || request.uri().query().is_some() || !info.is_canonical {
        return None;
    }
    let is_well = match info.path.as_str() {
        "/livez" | "/healthz" => true,
        "/readyz" => ready.is_ready(),
        _ => return None,
    };
    metrics::answered_proxy("health", AnsweredFrom::Memory);
    let failed = (StatusCode::SERVICE_UNAVAILABLE, "readyz check failed\n");
    let (status, text) = if is_well { (StatusCode::OK, "ok") } else { failed };
    let mut response = Response::new(ReplyBody::full(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    let headers: &mut HeaderMap = response.headers_mut();
    headers.insert(CONTENT_TYPE, PLAIN);
    headers.insert(SNIFFED, HeaderValue::from_static("nosniff"));
    put_served(headers, None);
    response.extensions_mut().insert(ServedLocally { is_served: true, ..ServedLocally::default() });
    Some(response)
}

/// Whether the query is empty or only a time limit, as discovery clients send it.
fn is_plain(query: &Query) -> bool {
    let raw = query.raw();
    let is_timeout = |pair: &str| pair.strip_prefix("timeout=").is_some_and(|time| time.ends_with('s'));
    raw.is_empty() || is_timeout(raw) && !raw.contains('&') && kubeapi::check_timeout(query).is_ok()
}

fn kind_of(info: &RequestInfo) -> Option<Kind> {
    if info.is_resource || !info.is_canonical || info.path.ends_with('/') {
        return None;
    }
    let segments: Vec<_> = info.path.split('/').skip(1).collect();
    match *segments.as_slice() {
        ["version"] => Some(Kind::Version),
        ["api" | "apis"] | ["api" | "apis", _] | ["apis", _, _] => Some(Kind::Discovery),
        _ => None,
    }
}

/// Returns the API group that a document is about, if any.
fn group_of(path: &str) -> Option<&str> {
    path.strip_prefix("/apis/").map(|rest| rest.split('/').next().unwrap_or_default())
}

impl AskedAt for Kept {
    fn asked(&self) -> Instant {
        self.asked
    }

    fn len_bytes(&self) -> usize {
        const HEADERS_BYTES: usize = 2_048;
        HEADERS_BYTES + self.document.body.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cached_documents_are_recognized_by_path() {
        for (path, kind, group) in [
            ("/version", Some(Kind::Version), None),
            ("/api", Some(Kind::Discovery), None),
            ("/apis", Some(Kind::Discovery), None),
            ("/api/v1", Some(Kind::Discovery), None),
            ("/apis/apps", Some(Kind::Discovery), Some("apps")),
            ("/apis/apps/v1", Some(Kind::Discovery), Some("apps")),
            ("/apis/apps/v1/deployments", None, Some("apps")),
            ("/api/v1/pods", None, None),
            ("/apis/", None, Some("")),
            ("/version/", None, None),
            ("/api/v1/", None, None),
            ("/", None, None),
            ("/metrics", None, None),
            ("/openapi/v3", None, None),
            ("//version", None, None),
            ("/apis/apps/%76%31", None, Some("apps")),
        ] {
            let info = RequestInfo::parse("GET", path, &Query::parse("")).expect("well-formed");
            assert_eq!((kind_of(&info), group_of(&info.path)), (kind, group), "{path}");
        }
    }

    #[test]
    fn only_timeout_parameter_allows_cached_document() {
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
            assert_eq!(is_plain(&Query::parse(query)), expected, "{query}");
        }
    }
}
