//! Opens watches: takes their place, waits for the feed, and answers with a stream.

use std::sync::Arc;

use http::Response;
use http::header::USER_AGENT;

use super::body::WatchBody;
use super::hold::unreachable;
use super::initial_rows::InitialRows;
use super::session::{WatchOptions, WatchSession, WatchTimers};
use super::websocket;
use crate::auth::Permit;
use crate::cache::{Cursor, OpenedWatch, TooOld};
use crate::listing::{PageChunks, cost};
use crate::serve::activity::{ActiveWatches, RequestSource, WatchDescription, WatchEnd, WatchTransport, metrics};
use crate::serve::audit::ServedLocally;
use crate::serve::limits::{ConcurrencyLimits, ConcurrencyPermit, SlowReaderReaper};
use crate::serve::read::{FeedSource, FeedSources, NotServable, ReadRequest, ReadResult, ScanScheduler, too_expensive};
use crate::serve::response::{FeedStatus, ReplyBody, too_many};
use crate::serve::route::{ForwardReason, WatchRead};
use crate::upstream::{Client, Resource};
use crate::wire::{Encoding, Representation};
use base::{AbortSignal, Tasks};
use kubeapi::{Status, VersionMatch, WatchStart};

/// The `Retry-After` in seconds for a watch whose feed is still syncing.
const SYNC_RETRY_SECONDS: u32 = 1;

const WATCH_RETRY_SECONDS: u32 = 5;

/// Opens downstream watches on feeds.
#[derive(Debug)]
pub(crate) struct WatchOpener {
    sources: Arc<FeedSources>,
    scans: ScanScheduler,
    first_rows: InitialRows,
    concurrency: Arc<ConcurrencyLimits>,
    watches: metrics::Watches,
    active_watches: ActiveWatches,
    slow_readers: SlowReaderReaper,
    tasks: Tasks,
}

impl WatchOpener {
    pub(crate) fn new(
        sources: Arc<FeedSources>,
        scans: ScanScheduler,
        client: Client,
        concurrency: Arc<ConcurrencyLimits>,
        slow_readers: SlowReaderReaper,
        active_watches: ActiveWatches,
        tasks: Tasks,
    ) -> Self {
        Self {
            sources,
            scans,
            first_rows: InitialRows { client, concurrency: concurrency.clone() },
            concurrency,
            watches: metrics::Watches::default(),
            active_watches,
            slow_readers,
            tasks,
        }
    }

    pub(crate) async fn open(
        &self,
        request: &mut ReadRequest,
        permit: Permit,
        resource: &Resource,
        mut read: WatchRead,
    ) -> ReadResult {
        if !permit.names(read.view.name()) {
            return Err(NotServable::Forward(ForwardReason::PermissionMismatch));
        }
        if !cost::is_for_watch(read.view.selector()) {
            return too_expensive(request, &permit);
        }
        // Taken before any wait, so that waiting watches count against the limit.
        let place = match self.concurrency.watch(request.caller.payer().as_ref(), selector_bytes(request, &read)) {
            Ok(place) => place,
            Err(shed) => return Ok(request.context.status(&too_many(shed, WATCH_RETRY_SECONDS))),
        };
        let row = self.first_rows.of_watch(request, resource, &mut read).await.map_err(NotServable::Forward)?;
        let source = self.source(request, &permit, resource, &read).await?;
        let late = self.fresh(request, &source, &read).await?;
        let follows = request.context.by_proxy || permit.part().is_some();
        let opened = self.sources.open(&source.feed, &read, permit.part().is_some(), follows).await?;
        let namespaces = match self.namespaces(request, &permit, opened.as_ref().ok()).await {
            Ok(namespaces) => namespaces,
            Err(refusal) => return Ok(*refusal),
        };
        // A watch that is late or starts too early sends one error, and ends.
        let (OpenedWatch { snapshot, cursor }, error) = match opened {
            Ok(opened) => (opened, late.map(|status| (status, WatchEnd::TooLarge))),
            Err(TooOld { requested, floor }) => {
                let status = Status::too_old(requested.0, floor.0);
                (source.feed.reader.open_at_end(read.view.clone()), Some((status, WatchEnd::Expired)))
            }
        };
        let is_websocket = transport(request) == WatchTransport::WebSocket;
        let upgrade = match is_websocket.then(|| websocket::handshake(request.http.headers())).transpose() {
            Ok(upgrade) => upgrade,
            Err(response) => return Ok(response),
        };
        let chunks = match &snapshot {
            // A WebSocket message contains exactly one frame, and other views do not consist of whole chunks.
            Some(state) if !is_websocket && permit.part().is_none() && PageChunks::suit(cursor.view()) => {
                Some(state.chunks().await)
            }
            _ => None,
        };
        let mut session = self.session(request, &permit, &read, source, cursor, place);
        match (permit.part(), snapshot, row) {
            (Some(part), snapshot, _) => session.show_part(part.clone(), namespaces, snapshot),
            (None, Some(snapshot), _) => session.send_state(snapshot, &permit, chunks),
            (None, None, Some(row)) => session.send_row(row),
            (None, None, None) => {}
        }
        if let Some((status, end)) = error {
            session.end_with(&status, end);
        }
        Ok(self.respond(request, session, read.representation.encoding(), upgrade))
    }

    /// Returns a synced feed for the watch.
    async fn source(
        &self,
        request: &ReadRequest,
        permit: &Permit,
        resource: &Resource,
        read: &WatchRead,
    ) -> Result<FeedSource, NotServable> {
        let resume = match read.start {
            WatchStart::After(rv) => Some(rv),
            _ => None,
        };
        let need = request.need(permit, resource, read.representation, resume);
        let source = self.sources.source(resource, &need).await.map_err(refused_while_syncing)?;
        // kubectl stops if it cannot resume from here. Its lists work, because upstream answers them.
        if let (Representation::Table(_), Some(resume)) = (read.representation, resume)
            && resume < source.feed.reader.floor()
        {
            return Err(NotServable::Forward(ForwardReason::TooOld));
        }
        Ok(source)
    }

    /// Waits until the feed is as fresh as the watch requires. On a timeout, returns the error that the stream sends,
    /// which is like the apiserver's (R-VERSION-4). This avoids a private upstream watch for every client.
    async fn fresh(
        &self,
        request: &ReadRequest,
        source: &FeedSource,
        read: &WatchRead,
    ) -> Result<Option<Status>, NotServable> {
        let (feed, received, by_proxy) = (&source.feed, request.received, request.context.by_proxy);
        let fresh = match read.start {
            WatchStart::After(rv) => {
                // The client has the version from another proxy or the apiserver, so the feed must catch up.
                if feed.reader.progress().rv < rv && (by_proxy || feed.reader.shown_at() < rv) {
                    feed.freshness.want_version(rv);
                }
                Ok(())
            }
            WatchStart::FromCached => Ok(()),
            WatchStart::State { at: VersionMatch::Unset, .. } | WatchStart::FromCurrent => {
                let is_proven = self.sources.proven(feed, received, read.timeout_seconds).await?;
                if is_proven { Ok(()) } else { Err(NotServable::Forward(ForwardReason::NoProof)) }
            }
            WatchStart::State { at, .. } => self.sources.fresh(feed, at, (received, by_proxy)).await,
        };
        match fresh {
            Ok(()) => {}
            Err(NotServable::FeedEnded) => return Err(NotServable::FeedEnded),
            Err(NotServable::Refuse(status)) => return Ok(Some(*status)),
            Err(NotServable::Forward(_)) if FeedStatus::stale_seconds(feed).is_some() => return Err(unreachable()),
            Err(NotServable::Forward(_)) => {
                let at = feed.reader.progress().rv.0;
                return Ok(Some(Status::too_large(at + 1, at)));
            }
        }
        if matches!(read.start, WatchStart::State { .. }) {
            self.sources.of_present(source).await.map_err(refused_while_syncing)?;
        }
        Ok(None)
    }

    /// Returns the namespaces that a watch starts with, if it is a partial view.
    async fn namespaces(
        &self,
        request: &ReadRequest,
        permit: &Permit,
        opened: Option<&OpenedWatch>,
    ) -> Result<Vec<Arc<str>>, Box<Response<ReplyBody>>> {
        let (Some(opened), Some(part)) = (opened, permit.part()) else { return Ok(Vec::new()) };
        let state = opened.snapshot.clone().unwrap_or_else(|| opened.cursor.mark().snapshot);
        self.scans.permitted_namespaces(request, part, &state, (opened.cursor.view(), None), WATCH_RETRY_SECONDS).await
    }

    /// Returns the session of a watch at the cursor's position.
    fn session(
        &self,
        request: &ReadRequest,
        permit: &Permit,
        read: &WatchRead,
        source: FeedSource,
        cursor: Cursor,
        place: ConcurrencyPermit,
    ) -> WatchSession {
        let key = &source.feed.spec.key;
        metrics::served("watch", key, read.representation);
        let transport = transport(request);
        let who = RequestSource::new(request.caller.payer(), request.http.headers().get(USER_AGENT));
        let active_watch = self.active_watches.opened(WatchDescription::new(who, &cursor, read, transport));
        let metrics = self.watches.open(key, read.representation, transport).seen(active_watch);
        let terms = WatchOptions {
            bookmarks: read.bookmarks,
            end_bookmark: read.start.ends_with_bookmark(),
            timeout_seconds: read.timeout_seconds,
            lasts_min: self.sources.watch_min(),
            by_proxy: request.context.by_proxy,
        };
        // An upgraded connection belongs to the watch alone.
        let is_alone = transport == WatchTransport::WebSocket;
        let cut = if is_alone { AbortSignal::default() } else { request.context.cut.clone() };
        let (grant, slow_readers) = (permit.grant_status(), self.slow_readers.clone());
        let timers = WatchTimers::start(request.received, &terms, grant, slow_readers, cut, &self.sources.drain);
        let scan_budget = self.scans.budget(request, read.view.is_expensive());
        WatchSession::new(source, cursor, &terms, timers, place, scan_budget, metrics)
    }

    /// Returns the response that streams the session, or the `upgrade` to a WebSocket.
    fn respond(
        &self,
        request: &mut ReadRequest,
        session: WatchSession,
        encoding: Encoding,
        upgrade: Option<Response<ReplyBody>>,
    ) -> Response<ReplyBody> {
        let record = request.context.record.clone();
        let Some(mut response) = upgrade else {
            // Read after the session was created. If the writer changes in between, the watch ends.
            let feed_status = session.feed_status();
            let body = ReplyBody::watch(WatchBody::new(session, record, transport(request), encoding));
            return request.context.served(encoding, true, feed_status, body);
        };
        response.extensions_mut().insert(ServedLocally { is_served: true, is_watch: true, ..ServedLocally::default() });
        let reading = self.scans.budget(request, true);
        let running = websocket::run(hyper::upgrade::on(&mut request.http), encoding, session, reading);
        self.tasks.spawn("websocket", async move {
            running.await;
            drop(record);
        });
        response
    }
}

fn transport(request: &ReadRequest) -> WatchTransport {
    WatchTransport::of(&request.http, websocket::is_upgrade(request.http.headers()))
}

/// Returns how many bytes a watch holds for its selector: as written, to re-check the permission, and as compiled.
fn selector_bytes(request: &ReadRequest, read: &WatchRead) -> usize {
    let written = [&request.info.label_selector, &request.info.field_selector];
    let written: usize = written.into_iter().flatten().map(String::len).sum();
    written + read.view.selector().held_bytes()
}

/// Rejects a watch whose feed is syncing. A forwarded watch would last for an hour. The apiserver's error for an
/// initializing cache is better (R-LIST-5).
fn refused_while_syncing(why: NotServable) -> NotServable {
    match why {
        NotServable::Forward(ForwardReason::Syncing) => {
            NotServable::Refuse(Box::new(Status::initializing(SYNC_RETRY_SECONDS)))
        }
        why => why,
    }
}
