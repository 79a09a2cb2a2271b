//! Fetches complete states of a feed, which are staged and returned as a whole, and the versions of its objects, which
//! cost less.

use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout};

use crate::cache::{FeedSnapshot, OverMemoryBudget, SnapshotStaging};
use crate::feeds::FeedSpec;
use crate::upstream::{UpstreamError, UpstreamRequestCause, UpstreamRequestKind, UpstreamServer, encoding_of};
use crate::wire::{BookmarkTemplate, FeedEncoding, JsonLayout, ListPage, ObjectReader, ObjectRevision, is_delta};
use kubeapi::{EventType, ObjectKey, ResourceVersion};

use super::continuity::ObjectVersion;
use super::failure::refuses_watch_list;
use super::feed_client::FeedTaskContext;
use super::metrics::FeedRequestPurpose;
use super::stream::{StreamItem, UpstreamWatchStream, WatchStreamEnd, decoded};

/// A complete state, and the stream that continues it if one came with it.
#[derive(Debug)]
pub(super) struct FeedInitialState {
    pub(super) snapshot: FeedSnapshot,
    /// The time at which the state was requested.
    pub(super) requested_at: Instant,
    pub(super) stream: Option<ContinuingWatch>,
    /// The servers that encoded the state.
    pub(super) servers: Vec<UpstreamServer>,
    /// Whether the version is the position of a proxy's feed rather than of upstream's storage.
    pub(super) is_from_memory: bool,
}

/// The resourceVersion that upstream has reached, as it reported it.
#[derive(Debug)]
pub(super) struct UpstreamReportedVersion {
    /// The version. Every write to the resource that was complete before the request is at or below it.
    pub(super) at: ResourceVersion,
    /// The layout of the resource's bookmarks, if upstream sent one.
    pub(super) template: Option<BookmarkTemplate>,
    /// Whether the version is the position of a proxy's feed.
    pub(super) is_from_memory: bool,
}

/// The watch that continues a state.
#[derive(Debug)]
pub(super) struct ContinuingWatch {
    pub(super) stream: UpstreamWatchStream,
    /// The layout of upstream's bookmarks, if the stream has sent one.
    pub(super) template: Option<BookmarkTemplate>,
}

/// One object at a past version, as upstream returned it.
#[derive(Debug)]
pub(super) struct PastObject {
    /// The object at the version; `None` if it did not exist.
    pub(super) object: Option<ObjectRevision>,
    /// The version of the response. It equals the requested one if upstream can read a past state.
    pub(super) at: ResourceVersion,
    /// The server that sent the state.
    pub(super) server: UpstreamServer,
}

/// Keys and versions of a part of a collection.
#[derive(Debug, Clone, Default)]
pub(super) struct ObjectVersionPage {
    /// The resourceVersion of the listed collection.
    pub(super) at: ResourceVersion,
    pub(super) versions: BTreeMap<ObjectKey, ResourceVersion>,
    /// Whether this page is the last one of the collection.
    pub(super) is_last: bool,
    /// The number of objects after this page, if upstream reports it.
    pub(super) remaining: Option<u64>,
    /// Whether upstream is a proxy that responds from its cache. The version is then the position of its feed.
    pub(super) is_from_memory: bool,
}

/// The state that a LIST requests (R-LIST-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestedListVersion {
    /// The read must return the most recent state.
    Current,
    NotOlderThan(ResourceVersion),
    Exact(ResourceVersion),
}

const PAGE_LIMIT: usize = 500;
/// The maximum size in bytes of the events that may be received while a list runs under an open watch.
const AHEAD_BYTES_MAX: usize = 64 << 20;
/// The time to wait for a 410: an apiserver that no longer has the changes after a version sends it before anything
/// else.
const GONE_RESPONSE_WAIT: Duration = Duration::from_millis(250);
/// The number of attempts at a paginated LIST whose continue token expires. After that the LIST is made without a
/// limit.
const PAGED_TRIES_MAX: usize = 2;
/// The maximum number of consecutive empty pages with a continue token. An apiserver fills a page or ends the list.
const EMPTY_PAGES_MAX: usize = 8;

impl FeedTaskContext {
    /// Returns a lister whose requests are accounted to `purpose`.
    pub(super) fn lister(&self, purpose: FeedRequestPurpose) -> UpstreamLister<'_> {
        let spec = &self.feed.spec;
        UpstreamLister { upstream: self, spec, cause: purpose.cause().of(&spec.key.gvr) }
    }

    /// Lists the versions that upstream returns for `query`, as metadata only where it can. Fails with
    /// [`UpstreamError::TooLarge`] if the response exceeds `bytes_max`.
    pub(super) async fn versions(
        &self,
        cause: UpstreamRequestCause,
        query: &str,
        bytes_max: usize,
    ) -> Result<ObjectVersionPage, UpstreamError> {
        const METADATA: &str = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,\
                                application/json";
        let path = self.feed.spec.key.url(query);
        let kind = UpstreamRequestKind::Short;
        let response = self.client.open_compressed(cause, kind, &path, self.headers(kind, METADATA)).await?;
        let encoding = encoding_of(&response).unwrap_or(FeedEncoding::Json);
        let is_from_memory = response.body().is_from_memory();
        let body = self.client.read_at_most(response, bytes_max).await;
        let body = body.inspect_err(|error| self.record_failed_list(error))?;
        // Metadata in protobuf has one layout for every resource; JSON has the resource's own.
        let layout = if encoding == FeedEncoding::Protobuf { JsonLayout::BuiltIn } else { self.feed.spec.shape };
        let page = ObjectReader::new(encoding, layout, Arc::default()).list(&body)?;
        Ok(ObjectVersionPage {
            at: page.resource_version,
            is_last: page.continue_token.is_empty(),
            remaining: page.remaining,
            is_from_memory,
            versions: page.items.into_iter().map(|object| (object.key, object.rv)).collect(),
        })
    }
}

impl ObjectVersionPage {
    /// Returns the last key of this page; `None` if it is the last page of the collection.
    pub(super) fn end(&self) -> Option<&ObjectKey> {
        self.versions.last_key_value().filter(|_| !self.is_last).map(|(last, _)| last)
    }

    /// Returns the keys and versions in key order.
    pub(super) fn objects(&self) -> impl Iterator<Item = ObjectVersion<'_>> {
        self.versions.iter().map(|(key, rv)| (key, *rv))
    }

    /// Returns the number of objects from the first of this page on, if upstream reports it.
    pub(super) fn count(&self) -> Option<usize> {
        let behind = if self.is_last { Some(0) } else { self.remaining };
        Some(self.versions.len() + usize::try_from(behind?).ok()?)
    }
}

/// Fetches states of one feed.
pub(super) struct UpstreamLister<'a> {
    pub(super) upstream: &'a FeedTaskContext,
    pub(super) spec: &'a FeedSpec,
    cause: UpstreamRequestCause,
}

impl UpstreamLister<'_> {
    /// Streams the most recent state (KEP-3157): one request is both the list and the watch after it.
    async fn watch_list(&self) -> Result<FeedInitialState, WatchStreamEnd> {
        let query = "watch=true&allowWatchBookmarks=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let requested_at = Instant::now();
        let mut stream = self.upstream.open(self.cause, &self.spec.key.url(query), Some(ResourceVersion(0))).await?;
        let mut staged = self.stage();
        loop {
            match stream.next(&self.upstream.reader).await? {
                StreamItem::Change { change, .. } if change.event_type == EventType::Added => {
                    // This frame is not sent to clients, so only the body is kept.
                    staged.push(self.upstream.reader.detached(change.object)).map_err(over_budget)?;
                }
                StreamItem::Change { change, .. } => {
                    return Err(stream.failed(UpstreamError::NotInitial(change.event_type).into()));
                }
                StreamItem::Bookmark { object, rv, initial_events_end: true } => {
                    let template = BookmarkTemplate::from_object(&self.spec.envelope(), &object)
                        .map_err(|error| stream.failed(UpstreamError::Wire(error).into()))?;
                    stream.end_list().await?;
                    let (snapshot, servers) = (staged.finish(rv), vec![stream.server().clone()]);
                    let is_from_memory = stream.is_from_memory();
                    let stream = Some(ContinuingWatch { stream, template: Some(template) });
                    return Ok(FeedInitialState { snapshot, requested_at, stream, servers, is_from_memory });
                }
                StreamItem::Bookmark { .. } => {}
            }
        }
    }

    /// Lists the current state, as a streamed list where upstream supports it.
    pub(super) async fn current(&self) -> Result<FeedInitialState, WatchStreamEnd> {
        match self.streamed().await? {
            Some(initial) => Ok(initial),
            None => Ok(self.list(RequestedListVersion::Current).await?),
        }
    }

    /// Returns a current state, `listed`, or a later one for a feed that has been at version `reached`. If the result
    /// is older than that, the storage went back. A proxy may only lag, so it must reach the version first
    /// ([`storage_position`](Self::storage_position)).
    pub(super) async fn not_before(
        &self,
        reached: ResourceVersion,
        listed: FeedInitialState,
    ) -> Result<FeedInitialState, WatchStreamEnd> {
        if listed.snapshot.rv >= reached || !listed.is_from_memory {
            return Ok(listed);
        }
        match self.list(RequestedListVersion::NotOlderThan(reached)).await {
            // The second list may be from memory too, so it is no proof as of its own request.
            Ok(later) => Ok(FeedInitialState { requested_at: listed.requested_at, ..later }),
            Err(error) if error.is_too_large_version() => Ok(listed),
            Err(error) => Err(error.into()),
        }
    }

    /// Lists the current state together with an open watch after it. This works however short upstream's window is.
    pub(super) async fn current_and_watch(&self) -> Result<FeedInitialState, WatchStreamEnd> {
        match self.streamed().await? {
            Some(initial) => Ok(initial),
            None => self.list_with_open_watch().await,
        }
    }

    /// Streams the current state; returns `None` if upstream does not support streamed lists.
    async fn streamed(&self) -> Result<Option<FeedInitialState>, WatchStreamEnd> {
        let lists_only = &self.upstream.lists_only;
        if lists_only.load(Ordering::Relaxed) {
            return Ok(None);
        }
        match self.watch_list().await {
            Ok(initial) => Ok(Some(initial)),
            Err(WatchStreamEnd::Failed(error)) if refuses_watch_list(&error) => {
                tracing::info!(
                    feed = %self.spec.key, %error,
                    "upstream does not support streaming lists; using paginated lists"
                );
                lists_only.store(true, Ordering::Relaxed);
                Ok(None)
            }
            Err(ended) => Err(ended),
        }
    }

    /// Returns the position of upstream's storage, for a feed that is at version `cached`. A result below `cached`
    /// means that the storage went back, or that a server lags.
    ///
    /// A proxy reports the position of its feed, and may prove that nothing newer exists without moving it. A feed that
    /// followed another proxy may therefore be further ahead with the same state. In that case the proxy must reach
    /// `cached`; if it does, nothing contradicts the feed's history.
    pub(super) async fn storage_position(&self, cached: ResourceVersion) -> Result<ResourceVersion, WatchStreamEnd> {
        let reported = self.position(None).await?;
        if reported.at >= cached || !reported.is_from_memory {
            return Ok(reported.at);
        }
        match self.position(Some(cached)).await {
            Ok(_) => Ok(cached),
            Err(WatchStreamEnd::Failed(error)) if error.is_too_large_version() => Ok(reported.at),
            Err(ended) => Err(ended),
        }
    }

    /// Requests the position of upstream, or asks it to reach the version `least`. Upstream responds to a streamed list
    /// of a nonexistent object with one bookmark, which costs it no objects.
    pub(super) async fn position(
        &self,
        least: Option<ResourceVersion>,
    ) -> Result<UpstreamReportedVersion, WatchStreamEnd> {
        const NOTHING: &str = "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan\
                               &allowWatchBookmarks=true&timeoutSeconds=5";
        let version = least.map(|rv| format!("&resourceVersion={rv}")).unwrap_or_default();
        let path = self.spec.key.empty_list_url(&format!("{NOTHING}{version}"));
        let mut stream = match self.upstream.open(UpstreamRequestCause::Proof, &path, None).await {
            Ok(stream) => stream,
            Err(error) if refuses_watch_list(&error) => {
                let at = least.map_or(RequestedListVersion::Current, RequestedListVersion::NotOlderThan);
                let first = self.spec.key.url(&page_query(at, Some(1), ""));
                let (page, _, is_from_memory) = self.page(&first, &mut self.stage()).await?;
                return Ok(UpstreamReportedVersion { at: page.resource_version, template: None, is_from_memory });
            }
            Err(error) => return Err(error.into()),
        };
        loop {
            if let StreamItem::Bookmark { rv, object, .. } = stream.next(&self.upstream.reader).await? {
                let template = BookmarkTemplate::from_object(&self.spec.envelope(), &object);
                let (template, is_from_memory) =
                    (Some(template.map_err(UpstreamError::Wire)?), stream.is_from_memory());
                return Ok(UpstreamReportedVersion { at: rv, template, is_from_memory });
            }
        }
    }

    /// Lists a collection in one response, because it is expected to be small. Falls back to pages if the response is
    /// too large.
    pub(super) async fn list_whole(&self, at: RequestedListVersion) -> Result<FeedInitialState, UpstreamError> {
        match self.pages(at, None).await {
            Err(UpstreamError::TooLarge(_)) => self.list(at).await,
            listed => listed,
        }
    }

    /// Lists page by page, all pages at one version.
    pub(super) async fn list(&self, at: RequestedListVersion) -> Result<FeedInitialState, UpstreamError> {
        for _ in 0..PAGED_TRIES_MAX {
            match self.pages(at, Some(PAGE_LIMIT)).await {
                // The snapshot of the continue token was compacted, so the list starts over (R-UPSTREAM-9).
                Err(error) if error.is_expired() && !matches!(at, RequestedListVersion::Exact(_)) => {}
                listed => return listed,
            }
        }
        self.pages(at, None).await
    }

    /// Lists the most recent state while an earlier watch is open and read. If lists are not streamed, this joins a
    /// list with its events even when upstream's window is shorter than a list takes.
    async fn list_with_open_watch(&self) -> Result<FeedInitialState, WatchStreamEnd> {
        let from = self.position(None).await?.at;
        // The items are read before the objects that they may refer to.
        let mut stream = self.watch_from(from, None).await?;
        let (mut ahead, mut bytes) = (VecDeque::new(), 0);
        let mut listing = pin!(self.list(RequestedListVersion::Current));
        let listed = loop {
            let item = tokio::select! {
                biased;
                listed = &mut listing => break listed?,
                item = stream.next(&self.upstream.reader) => item?,
            };
            if let StreamItem::Change { change, .. } = &item {
                bytes += change.frame.as_ref().map_or(0, Bytes::len);
            }
            if bytes > AHEAD_BYTES_MAX {
                return Err(UpstreamError::TooLarge(AHEAD_BYTES_MAX).into());
            }
            ahead.push_back(item);
        };
        // Drops the items that the list includes already.
        ahead.retain(|item| match item {
            StreamItem::Change { change, .. } => change.object.rv > listed.snapshot.rv,
            StreamItem::Bookmark { rv, .. } => *rv > listed.snapshot.rv,
        });
        let stream = stream.preceded_by(ahead);
        Ok(FeedInitialState { stream: Some(ContinuingWatch { stream, template: None }), ..listed })
    }

    /// Opens the watch that continues from `at`. Returns `None` if upstream no longer has the changes after it, which
    /// it reports at once in the stream.
    pub(super) async fn open_watch_if_available(&self, at: ResourceVersion) -> Option<UpstreamWatchStream> {
        let mut stream = self.watch_from(at, Some(at)).await.ok()?;
        match timeout(GONE_RESPONSE_WAIT, stream.peek_frame()).await {
            // Silence: nothing has changed since that version.
            Err(_) => Some(stream),
            Ok(Err(_)) => None,
            Ok(Ok(frame)) => {
                let continues = is_delta(&frame) || decoded(&self.upstream.reader, frame).is_ok();
                continues.then_some(stream)
            }
        }
    }

    /// Opens the watch that continues from version `at`.
    async fn watch_from(
        &self,
        at: ResourceVersion,
        deltas_after: Option<ResourceVersion>,
    ) -> Result<UpstreamWatchStream, UpstreamError> {
        let query = format!("watch=true&allowWatchBookmarks=true&resourceVersion={at}");
        self.upstream.open(UpstreamRequestCause::Watch, &self.spec.key.url(&query), deltas_after).await
    }

    /// Reads one object exactly as it was at `rv`; `None` if it did not exist.
    pub(super) async fn object_at(
        &self,
        key: &ObjectKey,
        rv: ResourceVersion,
    ) -> Result<Option<ObjectRevision>, UpstreamError> {
        Ok(self.object_then(key, rv).await?.object)
    }

    /// Reads one object at `rv`, with the server that responded and the version of the response.
    pub(super) async fn object_then(&self, key: &ObjectKey, rv: ResourceVersion) -> Result<PastObject, UpstreamError> {
        let (page, server, _) = self.page(&self.spec.key.url_of(key, &exact(rv)), &mut self.stage()).await?;
        let object = page.items.into_iter().find(|object| object.key == *key);
        Ok(PastObject { object, at: page.resource_version, server })
    }

    async fn pages(&self, at: RequestedListVersion, limit: Option<usize>) -> Result<FeedInitialState, UpstreamError> {
        let (requested_at, mut staged) = (Instant::now(), self.stage());
        let (mut token, mut servers, mut is_from_memory) = (String::new(), Vec::<UpstreamServer>::new(), false);
        let mut empty_pages = 0;
        loop {
            let (page, server, of_memory) =
                self.page(&self.spec.key.url(&page_query(at, limit, &token)), &mut staged).await?;
            is_from_memory |= of_memory;
            if !servers.iter().any(|known| known.is_same(&server)) {
                servers.push(server);
            }
            empty_pages = if page.items.is_empty() { empty_pages + 1 } else { 0 };
            for object in page.items {
                staged.push(object).map_err(over_budget)?;
            }
            if page.continue_token.is_empty() {
                let snapshot = staged.finish(page.resource_version);
                return Ok(FeedInitialState { snapshot, requested_at, stream: None, servers, is_from_memory });
            }
            if page.continue_token == token || empty_pages > EMPTY_PAGES_MAX {
                return Err(UpstreamError::EndlessPages);
            }
            token = page.continue_token;
        }
    }

    /// Reads one page; its size is accounted in addition to the objects that are decoded from it. Returns the page, the
    /// server, and whether that is a proxy that served it from memory.
    async fn page(
        &self,
        path: &str,
        staged: &mut SnapshotStaging,
    ) -> Result<(ListPage, UpstreamServer, bool), UpstreamError> {
        let client = &self.upstream.client;
        let response = self.upstream.send(self.cause, UpstreamRequestKind::Short, path, None).await?;
        let (server, is_from_memory) = (response.body().server().clone(), response.body().is_from_memory());
        let reading = client.read_while(response, |len| staged.page_grows_to(len).map_err(over_budget));
        // Asks the server for its release while its connection is certainly open. If that fails, code that needs the
        // release asks again.
        let (body, _) = tokio::join!(reading, client.learn_build(&server));
        let body = body.inspect_err(|error| self.upstream.record_failed_list(error))?;
        staged.page_is_read().map_err(over_budget)?;
        let page = self.upstream.reader.list(&body)?;
        drop(body);
        staged.page_done();
        Ok((page, server, is_from_memory))
    }

    fn stage(&self) -> SnapshotStaging {
        self.upstream.feed.reader.stage()
    }
}

fn over_budget(_: OverMemoryBudget) -> UpstreamError {
    UpstreamError::OverBudget
}

/// Returns the query for a state at version `rv` or later.
pub(super) fn not_older_than(rv: ResourceVersion) -> String {
    format!("resourceVersion={rv}&resourceVersionMatch=NotOlderThan")
}

/// Returns the query for the state at version `rv`.
pub(super) fn exact(rv: ResourceVersion) -> String {
    format!("resourceVersion={rv}&resourceVersionMatch=Exact")
}

fn page_query(at: RequestedListVersion, limit: Option<usize>, token: &str) -> String {
    let mut query = Vec::new();
    query.extend(limit.map(|limit| format!("limit={limit}")));
    if token.is_empty() {
        match at {
            RequestedListVersion::Current => {}
            RequestedListVersion::NotOlderThan(rv) => query.push(not_older_than(rv)),
            RequestedListVersion::Exact(rv) => query.push(exact(rv)),
        }
    } else {
        // Tokens are base64url without padding, so they need no escaping.
        query.push(format!("continue={token}"));
    }
    query.join("&")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_list_page_sends_resource_version() {
        let exact = RequestedListVersion::Exact(ResourceVersion(7));
        assert_eq!(page_query(RequestedListVersion::Current, None, ""), "");
        assert_eq!(page_query(exact, Some(500), ""), "limit=500&resourceVersion=7&resourceVersionMatch=Exact");
        assert_eq!(page_query(exact, Some(500), "abc"), "limit=500&continue=abc");
        let later = page_query(RequestedListVersion::NotOlderThan(ResourceVersion(7)), Some(1), "");
        assert_eq!(later, "limit=1&resourceVersion=7&resourceVersionMatch=NotOlderThan");
    }
}
