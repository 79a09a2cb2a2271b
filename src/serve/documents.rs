//! What other proxies ask of an apiserver as such: its version, what it serves, whether it is ready. It is the same for
//! everybody who may ask, so it is asked for once, and kept as long as nothing is heard of a change.
//!
//! Only proxies get it from here. Their clients' discovery lags behind definitions in any case; who asks us directly is
//! answered by upstream, as ever.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG, HeaderMap, HeaderName, HeaderValue, IF_NONE_MATCH,
};
use http::{Method, Request, Response, StatusCode};
use tokio::time::{Instant, timeout};

use super::audit::ServedLocally;
use super::body::ReplyBody;
use super::bounded_body::{BodyTimes, TOO_SLOW, Whole};
use super::concurrency::ConcurrencyLimits;
use super::metrics::{self, AnsweredFrom};
use super::object_answers::FREE_BYTES_MAX;
use super::read_request::ReadRequest;
use super::remembered::{AskedAt, Remembered};
use super::response_context::{AUDIT_ID, new_audit_id, put_served};
use crate::feeds::Feeds;
use crate::listing::OverLimit;
use crate::upstream::{Build, Catalog, Client, Error, SharedDocument, is_impersonation, strip_hop_by_hop};
use base::Ready;
use kubeapi::{Offers, Query, RequestInfo, discovery_accept, pretty};

/// Which document is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// What the server is.
    Version,
    /// What it serves.
    Discovery,
}

/// Everything that decides what a document says.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    path: String,
    /// In its one spelling, so that no caller makes more keys than there are documents.
    accept: HeaderValue,
}

/// Why there is no document from upstream.
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

/// The documents that proxies below have asked for.
#[derive(Debug)]
pub(super) struct ServerDocuments {
    client: Client,
    catalog: Catalog,
    feeds: Feeds,
    kept: Remembered<Key, Kept>,
    admission: Arc<ConcurrencyLimits>,
    times: BodyTimes,
    /// Upstream's discovery lags behind its own definitions. What was asked for so soon after a change serves nobody
    /// who comes later.
    lag_max: Duration,
}

/// How long a document is kept for changes that no definition tells of: another server may answer by now.
const KEPT_MAX: Duration = Duration::from_secs(60);
const KEPT_BYTES_MAX: u64 = 64 << 20;
/// How long a request waits for a question. Then it is passed through.
const ANSWER_MAX: Duration = Duration::from_secs(10);
const SNIFFED: HeaderName = http::header::X_CONTENT_TYPE_OPTIONS;
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

impl ServerDocuments {
    pub(super) fn new(
        client: Client,
        (catalog, feeds): (Catalog, Feeds),
        admission: Arc<ConcurrencyLimits>,
        times: BodyTimes,
        lag_max: Duration,
    ) -> Self {
        Self { client, catalog, feeds, kept: Remembered::new(KEPT_BYTES_MAX), admission, times, lag_max }
    }

    /// Whether the request is for a document that is kept here, whoever may see it.
    pub(super) fn has(&self, request: &ReadRequest) -> bool {
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

    /// The response to a caller that may read the document; `None` if the caller's own request has to go upstream. It
    /// is also `None` if the caller has too many requests running, and then its own request is refused. `hops` names
    /// the proxies on the way, including this one.
    pub(super) async fn answer(&self, request: &ReadRequest, hops: &HeaderValue) -> Option<Response<ReplyBody>> {
        let kind = self.kind(request)?;
        let accept = HeaderValue::try_from(discovery_accept(request.context.accept.as_deref())?).ok()?;
        let key = Key { path: request.info.path.clone(), accept };
        let (asked_before, payer) = (Instant::now(), request.caller.payer());
        let ask = async |last| {
            // It takes the same place as the caller's own request to upstream would.
            let _place = self.admission.forward(payer.as_ref())?;
            Ok::<_, NotAsked>(self.ask(&key, hops, last).await?)
        };
        let asking = self.kept.get(&key, request.received, |kept| self.will_do(kind, kept), ask);
        let kept = match timeout(ANSWER_MAX, asking).await {
            Ok(Ok(kept)) => kept,
            Ok(Err(why)) => {
                tracing::debug!(path = %key.path, %why, "not to be had for another proxy");
                return None;
            }
            Err(_) => return None,
        };
        let from = if kept.asked >= asked_before { AnsweredFrom::Upstream } else { AnsweredFrom::Memory };
        metrics::answered_proxy(if kind == Kind::Version { "version" } else { "discovery" }, from);
        self.told(request, &kept.document)
    }

    /// Whether a document is as upstream has it now, as far as changes are heard of.
    fn will_do(&self, kind: Kind, kept: &Kept) -> bool {
        let is_settled = self.catalog.unchanged_since().is_some_and(|since| kept.asked >= since + self.lag_max);
        is_settled && kept.asked.elapsed() <= KEPT_MAX && (kind != Kind::Version || self.is_followed(&kept.document))
    }

    /// Whether no feed is written by another build than this.
    fn is_followed(&self, version: &SharedDocument) -> bool {
        let build = Build::parse(&version.body);
        let by = |build: &Arc<Build>| Build::clone(build);
        let mut writers = self.feeds.all().into_iter().filter_map(|feed| feed.vintage.written().by);
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

    /// The answer, or that nothing has changed since the one that the asker has.
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

    /// A large one has a place for its length, for as long as it is not taken.
    fn body(&self, request: &ReadRequest, bytes: Bytes) -> Option<ReplyBody> {
        let cut = &request.context.cut;
        if bytes.len() <= FREE_BYTES_MAX {
            cut.within(self.times.max(), TOO_SLOW);
            return Some(ReplyBody::full(bytes));
        }
        let place = self.admission.whole(request.caller.payer().as_ref(), bytes.len()).ok()?;
        Some(ReplyBody::whole(Whole::of(bytes, vec![place.into()]), &self.times, cut.clone()))
    }
}

/// What a proxy is told that asks how its upstream is: how we are, for we are what it uses. Nobody's rights are looked
/// at, and nothing is said of anybody.
pub(super) fn health<B>(request: &Request<B>, info: &RequestInfo, ready: &Ready) -> Option<Response<ReplyBody>> {
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

/// Whether a query asks for nothing but a time limit, as clients of discovery do.
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

/// The group that a document is about, if it is about one.
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
    fn documents_are_known_by_their_paths() {
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
    fn a_time_limit_changes_no_document_and_anything_else_may() {
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
