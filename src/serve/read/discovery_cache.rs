//! Discovery, OpenAPI and `/version`: the apiserver's documents about itself. A document is the same for all callers that
//! may read it, so one copy serves them all.
//!
//! **Freshness.** A response comes from a request that was sent to upstream after the caller's request had arrived.
//! Concurrent callers share it, and it names the `ETag` of the copy. A copy is used instead in two cases:
//!
//! - It is *watched*. The proxy's watches of `CustomResourceDefinitions` and `APIServices` are live, and the copy was
//!   requested at least `lag_max` after the last change that they showed, because upstream updates its documents from
//!   the same two watches. It was also requested in the last `CURRENT_MAX`, because no watch shows that another release
//!   of the apiserver, or another version of an aggregated one, has taken over.
//! - It is *implied*: its root, which is requested or used as above, says the same about it ([`evidence`]). No change was
//!   observed since the copy was requested, and that is at most `IMPLIED_MAX` ago, because a root has no
//!   `storageVersionHash`. If the proxy may not watch the two resources, as on a node, the root may be `RECENT` old, so
//!   that a client that reads hundreds of documents does not cost as many requests.
//!
//! A document of OpenAPI v3 that is requested by its hash is immutable: it is served if a `RECENT` root has this hash.
//!
//! **Not cached**: the groups of aggregated API servers, whose responses may depend on the caller, and groups that
//! discovery does not know. **Limits**: all copies, one document, all that are being read from upstream, and the
//! responses that clients have not read yet (`limits.lists`). What exceeds one of them is forwarded.

mod document;
mod evidence;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT, ACCEPT_ENCODING, ACCEPT_RANGES, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_TYPE, ETAG, EXPIRES, HeaderMap,
    HeaderName, HeaderValue, IF_NONE_MATCH, LAST_MODIFIED, VARY,
};
use http::{Response, StatusCode};
use tokio::time::{Instant, timeout_at};

use self::document::{DocumentKey, DocumentRequest, VERSION};
use self::evidence::DocumentEvidence;
use crate::serve::activity::metrics;
use crate::serve::audit::ServedLocally;
use crate::serve::limits::{BufferedResponseBody, TOO_SLOW};
use crate::serve::read::{FREE_BYTES_MAX, ReadRequest};
use crate::serve::response::{AUDIT_ID, ResponseBody, new_audit_id, put_served};
use crate::serve::serve_components::ServeComponents;
use crate::upstream::{CachedDocument, HOPS, ServerBuild, UpstreamError};
use base::CoalescingCache;

/// A response from upstream that callers share.
#[derive(Debug, Clone)]
pub(crate) struct TimedResponse<V> {
    /// A time before its request was sent.
    pub(crate) requested_at: Instant,
    pub(crate) value: V,
}

/// Serves the apiserver's documents about itself from copies of upstream's.
#[derive(Debug)]
pub(crate) struct DiscoveryCache {
    shared: Arc<ServeComponents>,
    copies: CoalescingCache<DocumentKey, DocumentCopy>,
    /// The bytes of the documents that are being read from upstream.
    reading: AtomicUsize,
}

/// A document; `None` if it is too large to be shared.
type DocumentCopy = TimedResponse<Option<Arc<Document>>>;

#[derive(Debug)]
struct Document {
    headers: HeaderMap,
    body: Bytes,
    evidence: DocumentEvidence,
}

/// The bytes of one document that is being read, which are subtracted on drop.
struct ReadingBytes<'a> {
    all: &'a AtomicUsize,
    own: usize,
}

/// How long a copy of a document is used without comparing it, or its root, with upstream.
const CURRENT_MAX: Duration = Duration::from_secs(10);
/// How long a copy of a root proves the documents below it if no watch shows changes.
const RECENT: Duration = Duration::from_secs(1);
/// How long a copy is kept, and used as its root implies, after it was last compared with upstream itself.
const IMPLIED_MAX: Duration = Duration::from_secs(3_600);
/// How long requests for a document that is too large are forwarded before it is read again.
const TOO_LARGE_FOR: Duration = Duration::from_secs(600);
const COPIES_BYTES_MAX: u64 = 64 << 20;
/// The maximum size in bytes of a document that callers share.
const DOCUMENT_BYTES_MAX: usize = 16 << 20;
/// The maximum size in bytes of all documents that are being read from upstream.
const READING_BYTES_MAX: usize = 64 << 20;
/// How long a request waits for a document. Then it is forwarded.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The headers that belong to a document. All others belong to one response.
const HEADERS: [HeaderName; 8] =
    [CONTENT_TYPE, CONTENT_ENCODING, CACHE_CONTROL, ETAG, VARY, LAST_MODIFIED, ACCEPT_RANGES, EXPIRES];

impl<V> TimedResponse<V> {
    /// Returns the metric label of the response's origin: a request to upstream since `called`, which other callers may
    /// share, or memory.
    pub(crate) fn origin(&self, called: Instant) -> &'static str {
        if self.requested_at >= called { "upstream" } else { "memory" }
    }
}

impl DiscoveryCache {
    pub(crate) fn new(shared: Arc<ServeComponents>) -> Self {
        let ttl =
            |_: &DocumentKey, copy: &DocumentCopy| Some(if copy.value.is_some() { IMPLIED_MAX } else { TOO_LARGE_FOR });
        Self { shared, copies: CoalescingCache::new(COPIES_BYTES_MAX, len_bytes, ttl), reading: AtomicUsize::new(0) }
    }

    /// Returns the document that a request asks for, regardless of the caller's permissions; `None` if the request must
    /// be forwarded.
    pub(crate) fn parse(&self, request: &ReadRequest) -> Option<DocumentRequest> {
        DocumentRequest::parse(request, &self.shared.catalog)
    }

    /// Returns the response for a caller that may read the document. Returns `None` if the caller's own request must be
    /// forwarded. That includes a caller with too many requests in flight, whose forwarded request is then rejected.
    /// `hops` lists the proxies on the path, including this one.
    pub(crate) async fn respond(
        &self,
        request: &ReadRequest,
        wanted: &DocumentRequest,
        hops: HeaderValue,
    ) -> Option<Response<ResponseBody>> {
        let (DocumentRequest { key, hash }, called) = (wanted, Instant::now());
        // Soon after a change, a root implies nothing.
        let may_imply = key.is_openapi() || self.settled_since().is_none_or(|since| since <= called);
        let root_key = key.root().filter(|_| may_imply);
        let root = match &root_key {
            Some(root) => {
                let is_accepted = |copy: &DocumentCopy| self.is_root_current(root, copy, request.received);
                self.copy(request, (root, None), &hops, is_accepted).await.and_then(|copy| copy.value)
            }
            None => None,
        };
        let said = root.as_ref().and_then(|root| root.evidence.of(&key.path));
        // The root also bounds the paths and hashes that have copies.
        let is_known = said.is_some_and(|said| hash.as_ref().is_none_or(|hash| hash.as_bytes() == said));
        if key.is_openapi() && root_key.is_some() && !is_known {
            return None;
        }
        let is_accepted = |copy: &DocumentCopy| match &copy.value {
            None => true,
            Some(document) if hash.is_some() => document.evidence.own.as_deref() == said,
            Some(document) => {
                // The root of OpenAPI v3 follows its documents with a delay.
                let is_implied = !key.is_openapi() && self.is_implied(copy, document, said);
                is_implied || self.is_current(key, copy, request.received)
            }
        };
        let copy = self.copy(request, (key, hash.as_deref()), &hops, is_accepted).await?;
        metrics::served_discovery(key.kind(), copy.origin(called));
        self.response(request, key, copy.value.as_deref()?)
    }

    /// Returns an accepted copy, which is requested if there is none. `hash` is that of the requested contents.
    async fn copy(
        &self,
        request: &ReadRequest,
        (key, hash): (&DocumentKey, Option<&str>),
        hops: &HeaderValue,
        is_accepted: impl Fn(&DocumentCopy) -> bool,
    ) -> Option<DocumentCopy> {
        let flow = request.caller.flow();
        let fetch = |last: Option<DocumentCopy>| async {
            // The fetch takes the same permit as the caller's forwarded request would.
            let _permit = self.shared.concurrency.forwards.acquire(flow.as_ref()).map_err(|error| error.to_string())?;
            let last = last.and_then(|last| last.value);
            self.fetch((key, hash), hops.clone(), last).await.map_err(|error| error.to_string())
        };
        let fetching = timeout_at(request.received + FETCH_TIMEOUT, self.copies.get_or_fetch(key, is_accepted, fetch));
        let fetched = fetching.await.unwrap_or_else(|elapsed| Err(Arc::new(elapsed.to_string())));
        fetched
            .inspect_err(|error| {
                tracing::debug!(path = key.path, %error, "cannot serve discovery from the cache; forwarding");
            })
            .ok()
    }

    /// Whether a copy is current: requested since the caller's request arrived, or watched.
    fn is_current(&self, key: &DocumentKey, copy: &DocumentCopy, received: Instant) -> bool {
        let is_settled = self.settled_since().is_some_and(|since| copy.requested_at >= since);
        let is_watched = is_settled && copy.requested_at.elapsed() <= CURRENT_MAX;
        let is_of_feeds = || copy.value.as_ref().is_some_and(|version| self.matches_feeds(version));
        copy.requested_at >= received || is_watched && (key.path != VERSION || is_of_feeds())
    }

    /// Whether a root tells which copies below it are current.
    fn is_root_current(&self, root: &DocumentKey, copy: &DocumentCopy, received: Instant) -> bool {
        let is_recent =
            || (root.is_openapi() || self.settled_since().is_none()) && copy.requested_at + RECENT >= received;
        copy.value.is_none() || self.is_current(root, copy, received) || is_recent()
    }

    /// Whether a copy is what its root says, and nothing shows a change of what a root does not say.
    fn is_implied(&self, copy: &DocumentCopy, document: &Document, said: Option<&[u8]>) -> bool {
        said.is_some()
            && document.evidence.own.as_deref() == said
            && self.settled_since().is_none_or(|since| copy.requested_at >= since)
            && copy.requested_at.elapsed() <= IMPLIED_MAX
    }

    /// Returns the time from which on upstream's documents contain all changes that the proxy has observed; `None` if a
    /// change may go unnoticed.
    fn settled_since(&self) -> Option<Instant> {
        self.shared.catalog.settled_since(self.shared.config.get().lag_max)
    }

    /// Whether the build in a version document has encoded all feeds.
    fn matches_feeds(&self, version: &Document) -> bool {
        let build = ServerBuild::parse(&version.body);
        let by = |build: &Arc<ServerBuild>| ServerBuild::clone(build);
        let mut writers =
            self.shared.feeds.all().into_iter().filter_map(|feed| feed.body_release.current_build().build);
        build.is_some() && writers.all(|writer| build == Some(by(&writer)))
    }

    async fn fetch(
        &self,
        (key, hash): (&DocumentKey, Option<&str>),
        hops: HeaderValue,
        last: Option<Arc<Document>>,
    ) -> Result<DocumentCopy, UpstreamError> {
        let mut headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(key.accept)), (HOPS, hops)]);
        if key.gzip {
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
        if let Some(etag) = last.as_ref().and_then(|last| last.headers.get(ETAG)) {
            headers.insert(IF_NONE_MATCH, etag.clone());
        }
        let url = match hash {
            Some(hash) => format!("{}?hash={hash}", key.path),
            None if key.is_pretty => format!("{}?pretty=1", key.path),
            None => key.path.clone(),
        };
        let requested_at = Instant::now();
        let mut reading = ReadingBytes { all: &self.reading, own: 0 };
        let fetched = self.shared.client.document(&url, headers, DOCUMENT_BYTES_MAX, |bytes| reading.grow(bytes)).await;
        let value = match (fetched, last) {
            (Ok(Some(CachedDocument { headers, body })), _) => {
                let values =
                    |name: HeaderName| headers.get_all(&name).iter().map(move |value| (name.clone(), value.clone()));
                let headers = HEADERS.into_iter().flat_map(values).collect();
                let evidence = DocumentEvidence::read(&key.path, &headers, &body);
                // What a document was read into may be twice as large, and copies are kept.
                Some(Arc::new(Document { headers, body: Bytes::copy_from_slice(&body), evidence }))
            }
            (Ok(None), Some(last)) => Some(last),
            (Ok(None), None) => return Err(UpstreamError::OtherDocument(url)),
            (Err(UpstreamError::TooLarge(DOCUMENT_BYTES_MAX)), _) => None,
            (Err(error), _) => return Err(error),
        };
        // A definition can change between the request for the root and this one.
        let is_other = |document: &Arc<Document>| hash.map(str::as_bytes) != document.evidence.own.as_deref();
        if hash.is_some() && value.as_ref().is_some_and(is_other) {
            return Err(UpstreamError::OtherDocument(url));
        }
        Ok(TimedResponse { requested_at, value })
    }

    /// Returns the document, or 304 if the caller already has it. A large body holds a permit for its length until the
    /// client has read it; `None` if there is none.
    fn response(
        &self,
        request: &ReadRequest,
        key: &DocumentKey,
        document: &Document,
    ) -> Option<Response<ResponseBody>> {
        let Document { headers, body, .. } = document;
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
            remove_body_headers(response.headers_mut(), key.is_openapi());
        }
        let audit_id = request.context.audit_id.clone().unwrap_or_else(new_audit_id);
        response.headers_mut().insert(AUDIT_ID, audit_id);
        put_served(response.headers_mut(), None);
        response.extensions_mut().insert(ServedLocally::from_cache(false));
        Some(response)
    }
}

impl ReadingBytes<'_> {
    fn grow(&mut self, bytes: usize) -> Result<(), UpstreamError> {
        let more = bytes.saturating_sub(self.own);
        self.own += more;
        if self.all.fetch_add(more, Ordering::Relaxed) + more > READING_BYTES_MAX {
            return Err(UpstreamError::TooLarge(READING_BYTES_MAX));
        }
        Ok(())
    }
}

impl Drop for ReadingBytes<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.own, Ordering::Relaxed);
    }
}

/// Removes the headers that a 304 response must not have.
fn remove_body_headers(headers: &mut HeaderMap, is_openapi: bool) {
    for name in [CONTENT_TYPE, CONTENT_ENCODING, LAST_MODIFIED, ACCEPT_RANGES] {
        headers.remove(name);
    }
    // In discovery, the first value is the handler's, `Accept`, and compression adds another.
    if let Some(vary) = headers.get(VARY).filter(|_| !is_openapi).cloned() {
        headers.insert(VARY, vary);
    }
}

fn len_bytes(copy: &DocumentCopy) -> usize {
    const HEADERS_BYTES: usize = 2_048;
    HEADERS_BYTES + copy.value.as_ref().map_or(0, |document| document.body.len() + document.evidence.len_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The apiserver compresses after it has compared the `ETag`.
    #[test]
    fn headers_of_304_are_those_without_a_body() {
        let headers = |all: &[(HeaderName, &'static str)]| -> HeaderMap {
            all.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
        };
        let own = [(ETAG, "\"1\""), (VARY, "Accept"), (CACHE_CONTROL, "public")];
        let of_body = [(VARY, "Accept-Encoding"), (CONTENT_ENCODING, "gzip"), (CONTENT_TYPE, "application/json")];
        let mut all = headers(&[own.clone(), of_body].concat());
        let mut of_openapi = all.clone();
        remove_body_headers(&mut all, false);
        assert_eq!(all, headers(&own));
        of_openapi.extend(headers(&[(LAST_MODIFIED, "x"), (ACCEPT_RANGES, "bytes")]));
        remove_body_headers(&mut of_openapi, true);
        assert_eq!(of_openapi, headers(&[&own[..], &[(VARY, "Accept-Encoding")]].concat()));
    }

    #[test]
    fn documents_being_read_are_bounded_together() {
        let all = AtomicUsize::new(0);
        let reading = || ReadingBytes { all: &all, own: 0 };
        let (mut first, mut second) = (reading(), reading());
        assert!(first.grow(READING_BYTES_MAX / 2).is_ok() && first.grow(READING_BYTES_MAX - 1).is_ok());
        assert!(second.grow(1).is_ok() && second.grow(2).is_err());
        drop((first, second));
        assert!(reading().grow(READING_BYTES_MAX).is_ok() && all.into_inner() == 0);
    }
}
