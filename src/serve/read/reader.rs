//! Answers GETs and LISTs from the cache.

mod get;

use std::sync::Arc;

use tokio::time::Instant;

use super::object_responder::ObjectResponder;
use super::request::{ReadRequest, ReadResult};
use super::scans::{ScanScheduler, too_expensive};
use super::sources::{FeedSource, FeedSources, NotServable};
use crate::auth::Permit;
use crate::listing::{ListRead, cost, page};
use crate::serve::activity::metrics;
use crate::serve::limits::{ConcurrencyLimits, SlowReaderReaper, StreamedList};
use crate::serve::response::{FeedStatus, LIST_RETRY_SECONDS, too_many};
use crate::serve::route::ForwardReason;
use crate::upstream::Resource;
use kubeapi::{Status, VersionMatch};

/// Answers GETs and LISTs from feeds.
#[derive(Debug)]
pub(crate) struct ReadHandler {
    sources: Arc<FeedSources>,
    scans: ScanScheduler,
    objects: ObjectResponder,
    concurrency: Arc<ConcurrencyLimits>,
}

impl ReadHandler {
    pub(crate) fn new(
        sources: Arc<FeedSources>,
        scans: ScanScheduler,
        (concurrency, slow_readers): (Arc<ConcurrencyLimits>, SlowReaderReaper),
    ) -> Self {
        let objects = ObjectResponder { concurrency: concurrency.clone(), slow_readers };
        Self { sources, scans, objects, concurrency }
    }

    pub(crate) async fn list(
        &self,
        request: &ReadRequest,
        permit: &Permit,
        resource: &Resource,
        read: ListRead,
    ) -> ReadResult {
        if !permit.names(read.view.name()) {
            return Err(NotServable::Forward(ForwardReason::PermissionMismatch));
        }
        let source =
            match self.sources.source(resource, &request.need(permit, resource, read.representation, None)).await {
                Ok(source) => source,
                Err(why) => return Err(why),
            };
        let feed = &source.feed;
        let Some(cost) = cost::of_list(&read.view, resource.namespaced, &feed.reader.snapshot()) else {
            return too_expensive(request, permit);
        };
        let asked = (request.received, request.context.by_proxy);
        self.fit_to_show(&source, &read, asked).await?;
        // Boxed, so that a request that waits until then has no room for it.
        Box::pin(self.show(request, permit, resource, source, (read, cost))).await
    }

    /// Lists the objects of the feed's current state.
    async fn show(
        &self,
        request: &ReadRequest,
        permit: &Permit,
        resource: &Resource,
        source: FeedSource,
        (read, cost): (ListRead, usize),
    ) -> ReadResult {
        let feed = &source.feed;
        let snapshot = match read.plan.version {
            VersionMatch::Exact(rv) if read.plan.start.is_some() => match feed.reader.held_at(rv) {
                Some(snapshot) => snapshot,
                None if permit.part().is_some() => return Ok(request.context.status(&Status::too_old_list())),
                None => return Err(request.not_held(ForwardReason::Continue)),
            },
            VersionMatch::Exact(rv) => match self.sources.state_at(feed, rv, request.context.by_proxy).await {
                Some(snapshot) => snapshot,
                None => return Err(request.not_held(ForwardReason::ExactVersion)),
            },
            _ => match if request.context.by_proxy { feed.reader.applied() } else { feed.reader.current() } {
                Some(snapshot) => snapshot,
                None => return Err(NotServable::FeedEnded),
            },
        };
        let pin = StreamedList::pin(&self.objects.slow_readers, feed, &snapshot, &request.context.cut);
        if let Some(part) = permit.part() {
            let from = (&read.view, read.plan.start.as_deref());
            if let Err(refusal) =
                self.scans.permitted_namespaces(request, part, &snapshot, from, LIST_RETRY_SECONDS).await
            {
                return Ok(*refusal);
            }
        }
        let mut pace = match self.scans.pace(request, cost).await {
            Ok(pace) => pace,
            Err(shed) => return Ok(request.context.status(&too_many(shed, LIST_RETRY_SECONDS))),
        };
        let page = page::page(permit, feed, &snapshot, &read, &mut pace).await;
        let place = match self.concurrency.list(request.caller.payer().as_ref(), page.bytes()) {
            Ok(place) => place,
            Err(shed) => return Ok(request.context.status(&too_many(shed, LIST_RETRY_SECONDS))),
        };
        let body = match page.written_by(&source.renderer, &mut pace).await {
            Ok(body) => body,
            Err(refused) => {
                source.refuse(&refused);
                drop((place, pin, pace));
                // The representation is refused permanently, so the recursion ends.
                return Box::pin(self.list(request, permit, resource, read)).await;
            }
        };
        drop(pace);
        metrics::served("list", &feed.spec.key, read.representation);
        let (encoding, feed_status) = (read.representation.encoding(), FeedStatus::of(feed));
        Ok(request.context.list(encoding, feed_status, body, |it| StreamedList::new(it, place, pin)))
    }

    /// Waits until the feed can show the state that a list requests.
    async fn fit_to_show(
        &self,
        source: &FeedSource,
        read: &ListRead,
        asked: (Instant, bool),
    ) -> Result<(), NotServable> {
        self.sources.fresh(&source.feed, read.plan.version, asked).await?;
        self.sources.of_present(source).await
    }
}
