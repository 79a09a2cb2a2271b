//! Answers GETs and LISTs from the cache.
//!
//! **Invariant.** All memory that unread responses hold is counted. A response to a GET shares its object's bytes. A
//! large one may be the last to keep these bytes alive, so it takes permits for its whole length from its user's LIST
//! pool. Every response has a deadline.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;

use super::request::{AuthorizedRead, CacheReadResult, NotServable, ReadRequest};
use super::sources::{FeedRequirements, FeedResolver, FeedWithRenderer, ReadKind};
use crate::auth::{ReadPermission, ReadableNamespaces};
use crate::cache::{CollectionView, FeedSnapshot};
use crate::feeds::FeedHandle;
use crate::listing::{
    CallerCpuSlices, GzipList, LimitExceeded, ListBody, ListPageRequest, PlainList, ScanBudget, ScanPacer, ScanQueue,
    cost, gzip, page,
};
use crate::serve::activity::metrics;
use crate::serve::limits::{BufferedResponseBody, PIECE_BYTES_MAX, TOO_SLOW};
use crate::serve::response::{LIST_RETRY_SECONDS, ResponseBody, ServedFeedStatus, gzipped, put_served, too_many};
use crate::serve::route::{ForwardReason, RoutedGet};
use crate::serve::serve_components::ServeComponents;
use crate::wire::{FeedEncoding, FrameEnvelope};
use base::half_core_count;
use kubeapi::{ResourceVersionMatch, Status};

/// The size in bytes up to which a response takes no permit. Most responses are far smaller, and few connections have
/// that many streams.
pub(crate) const FREE_BYTES_MAX: usize = 64 << 10;

/// Answers GETs and LISTs from feeds.
#[derive(Debug)]
pub(crate) struct ReadHandler {
    pub(crate) shared: Arc<ServeComponents>,
    pub(crate) sources: Arc<FeedResolver>,
    pub(crate) scans: ScanScheduler,
}

impl ReadHandler {
    /// Returns one object.
    pub(crate) async fn get(&self, authorized: AuthorizedRead<'_>, read: RoutedGet) -> CacheReadResult {
        let AuthorizedRead { request, resource, .. } = authorized;
        let (name, kind) = (Some(read.key.name()), ReadKind::Get(read.version));
        let need = FeedRequirements::new(authorized, name, read.representation, kind)?;
        let mut source =
            self.sources.running_source(resource, &need).ok_or(NotServable::Forward(ForwardReason::NotCached))?;
        self.sources.wait_ready(&source, &need).await?;
        source.print(resource, read.representation)?;
        let feed = &source.feed;
        let changes = feed.body_release.changes_before_states();
        let current = feed.reader.current().ok_or(NotServable::FeedEnded)?;
        let Some(object) = current.get(&read.key).cloned() else {
            metrics::served("get", &feed.spec.key, read.representation);
            let mut response = request.context.status(&Status::not_found(&resource.gvr, read.key.name()));
            put_served(response.headers_mut(), ServedFeedStatus::stale_seconds(feed));
            return Ok(response);
        };
        match feed.reader.body(&object, &source.renderer) {
            Ok(body) => {
                let body = source.renderer.sole_body(body, object.rv);
                let (encoding, envelope) = (read.representation.encoding(), source.renderer.envelope());
                let response =
                    self.object(request, envelope, (encoding, body), ServedFeedStatus::of_state(feed, changes)).await?;
                metrics::served("get", &feed.spec.key, read.representation);
                Ok(response)
            }
            Err(refused) => {
                source.refuse(&refused);
                Err(NotServable::Forward(ForwardReason::NotDerivable))
            }
        }
    }

    /// Returns the response with an object's body. It is compressed if the client accepts that and the body is large
    /// enough.
    async fn object(
        &self,
        request: &ReadRequest,
        envelope: &FrameEnvelope,
        (encoding, body): (FeedEncoding, Bytes),
        feed_status: ServedFeedStatus,
    ) -> CacheReadResult {
        let (context, bytes) = (&request.context, envelope.object_len(body.len()));
        if bytes <= FREE_BYTES_MAX {
            // Nothing is allocated for a response that is sent at once, as most are.
            context.abort.set_timeout(self.shared.slow_readers.body_max(), TOO_SLOW);
            // A response that fits into one piece is copied as cheaply as shared.
            let body = if bytes <= PIECE_BYTES_MAX {
                ResponseBody::full(envelope.object(&body))
            } else {
                ResponseBody::pieces(envelope.object_pieces(body))
            };
            return Ok(context.served(encoding, false, feed_status, body));
        }
        let permits = self.shared.concurrency.buffered(request.caller.flow().as_ref(), bytes)?.into();
        let is_gzip = context.compresses(bytes);
        let body = if is_gzip {
            BufferedResponseBody::from_bytes(gzip::compress(envelope.object(&body)).await, vec![permits])
        } else {
            BufferedResponseBody::new(envelope.object_pieces(body), vec![permits])
        };
        let body = ResponseBody::whole(body, &self.shared.slow_readers, context.abort.clone());
        let response = context.served(encoding, false, feed_status, body);
        Ok(if is_gzip { gzipped(response) } else { response })
    }

    /// Returns a page of a collection.
    pub(crate) async fn list(&self, authorized: AuthorizedRead<'_>, read: ListPageRequest) -> CacheReadResult {
        // Values that are copied out of the arguments enlarge the future of every waiting request.
        let kind = ReadKind::List(read.plan.version);
        let need = FeedRequirements::new(authorized, read.view.name(), read.representation, kind)?;
        let mut source = self.sources.source(authorized.resource, &need).await?;
        let is_namespaced = authorized.resource.namespaced;
        let Some(cost) = cost::list_cost(&read.view, is_namespaced, &source.feed.reader.snapshot()) else {
            return too_expensive(authorized.request, authorized.permission);
        };
        self.sources.wait_ready(&source, &need).await?;
        source.print(authorized.resource, read.representation)?;
        // Boxed, so that a request that waits until then has no room for it.
        Box::pin(self.list_state(authorized, source, read, cost)).await
    }

    /// Lists the objects of the requested state of the feed.
    async fn list_state(
        &self,
        authorized: AuthorizedRead<'_>,
        source: FeedWithRenderer,
        read: ListPageRequest,
        cost: usize,
    ) -> CacheReadResult {
        let AuthorizedRead { request, permission, .. } = authorized;
        let feed = &source.feed;
        let changes = feed.body_release.changes_before_states();
        let snapshot = match read.plan.version {
            ResourceVersionMatch::Exact(rv) if read.plan.start.is_some() => match feed.reader.paging_snapshot(rv) {
                None if permission.namespaces().is_some() => {
                    return Ok(request.context.status(&Status::too_old_list()));
                }
                state => state.ok_or_else(|| request.not_cached(ForwardReason::Continue))?,
            },
            ResourceVersionMatch::Exact(rv) => {
                let state = self.sources.state_at(feed, rv, request.context.by_proxy).await;
                state.ok_or_else(|| request.not_cached(ForwardReason::ExactVersion))?
            }
            _ if request.context.by_proxy => feed.reader.applied().ok_or(NotServable::FeedEnded)?,
            _ => feed.reader.current().ok_or(NotServable::FeedEnded)?,
        };
        let pin = self.shared.slow_readers.pin(feed, &snapshot, &request.context.abort, true);
        if let Some(part) = permission.namespaces() {
            let from = (&read.view, read.plan.start.as_deref());
            if let Err(refusal) =
                self.scans.reviewed_namespaces(request, part, (feed, &snapshot), from, LIST_RETRY_SECONDS).await
            {
                return Ok(*refusal);
            }
        }
        let mut pacer = self.scans.pacer(request, cost).await?;
        let page = page::page(permission, feed, &snapshot, &read, &mut pacer).await;
        let list_permit = self.shared.concurrency.list(request.caller.flow().as_ref(), page.bytes())?;
        let list = match PlainList::prepare(page, &source.renderer, &mut pacer).await {
            Ok(list) => list,
            Err(refused) => {
                source.refuse(&refused);
                drop((list_permit, pin, pacer));
                // The representation is now refused, so the recursion ends.
                return Box::pin(self.list(authorized, read)).await;
            }
        };
        drop(pacer);
        metrics::served("list", &feed.spec.key, read.representation);
        let is_gzip = request.context.gzip && list.is_worth_compressing();
        let list = if is_gzip { ListBody::new(GzipList::new(list)) } else { ListBody::new(list) };
        let body = ResponseBody::list(list, list_permit, pin);
        let status = ServedFeedStatus::of_state(feed, changes);
        let response = request.context.served(read.representation.encoding(), false, status, body);
        Ok(if is_gzip { gzipped(response) } else { response })
    }
}

const TOO_EXPENSIVE: &str = "the selectors are too expensive for a list of the permitted namespaces; simplify them, \
                             or list one namespace at a time";

/// The queue of scans and the CPU slices of callers, which LISTs and watches share.
#[derive(Debug, Clone)]
pub(crate) struct ScanScheduler {
    queue: ScanQueue,
    slices: CallerCpuSlices,
}

impl ScanScheduler {
    pub(crate) fn new() -> Self {
        Self { queue: ScanQueue::at_a_time(half_core_count()), slices: CallerCpuSlices::new(half_core_count()) }
    }

    /// Prepares a scan with the cost `cost`. A scan above a minimum cost waits for a permit.
    pub(crate) async fn pacer(&self, request: &ReadRequest, cost: usize) -> Result<ScanPacer, LimitExceeded> {
        let flow = request.caller.flow();
        let permit = if cost > cost::SMALL { Some(self.queue.acquire(flow.clone()).await?) } else { None };
        Ok(ScanPacer::new(permit, (self.queue.clone(), self.slices.clone()), flow))
    }

    /// Returns the budget of a stream, which scans objects for as long as it lasts.
    pub(crate) fn budget(&self, request: &ReadRequest, is_expensive: bool) -> ScanBudget {
        ScanBudget::new(self.slices.clone(), request.caller.flow(), is_expensive)
    }

    /// Returns the namespaces that have matching objects or match themselves, permitted or not, once the permission for each is decided.
    pub(crate) async fn reviewed_namespaces(
        &self,
        request: &ReadRequest,
        part: &ReadableNamespaces,
        (feed, state): (&FeedHandle, &FeedSnapshot),
        (view, start): (&CollectionView, Option<&str>),
        retry_seconds: u32,
    ) -> Result<Vec<Arc<str>>, Box<Response<ResponseBody>>> {
        let namespaced = feed.reader.namespaced();
        let pacer = self.pacer(request, cost::scan_cost(view, namespaced, state)).await;
        let mut pacer = pacer.map_err(|shed| Box::new(request.context.status(&too_many(shed, retry_seconds))))?;
        let (view, limit) = ((view, namespaced), ReadableNamespaces::COLLECT_MAX);
        let namespaces = page::namespaces(state, view, start, limit, &mut pacer).await;
        // Releases the permit, so that other scans do not wait for authorization responses from upstream.
        drop(pacer);
        let reviewed = part.review_all(namespaces.iter().map(|namespace| &**namespace)).await;
        reviewed.map(|()| namespaces).map_err(|refused| Box::new(request.auth_refusal(&refused)))
    }
}

/// Handles a read that costs too much. The read is forwarded, unless it is for the readable part of a collection.
/// Upstream would deny that without giving a reason, so the proxy rejects it.
pub(crate) fn too_expensive(request: &ReadRequest, permission: &ReadPermission) -> CacheReadResult {
    if permission.namespaces().is_none() {
        return Err(NotServable::Forward(ForwardReason::ExpensiveSelector));
    }
    Ok(request.context.status(&Status::bad_request(TOO_EXPENSIVE)))
}
