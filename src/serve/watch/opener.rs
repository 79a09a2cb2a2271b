//! Opens watches: takes their permit, waits for the feed, and answers with a stream.

use std::sync::Arc;

use http::Response;
use http::header::USER_AGENT;
use tokio::time::Instant;

use super::body::WatchBody;
use super::first_rows::FirstRows;
use super::hold::HoldOutcome;
use super::session::{Opening, WatchSession, WatchTerms};
use super::websocket;
use crate::auth::Permit;
use crate::cache::{Chunk, OpenedWatch, TooOld};
use crate::feeds::FeedHandle;
use crate::listing::{PageChunks, ScanBudget, cost};
use crate::serve::activity::{ActiveWatches, WatchDescription, WatchEnd, WatchTransport, Who, metrics};
use crate::serve::audit::ServedLocally;
use crate::serve::limits::{ConcurrencyLimits, ConcurrencyPermit, SlowReaderReaper};
use crate::serve::read::{FeedSource, NotServable, ReadRequest, ReadResult, Scans, Sources, too_expensive};
use crate::serve::response::{FeedStatus, ReplyBody, too_many, unavailable};
use crate::serve::route::{ForwardReason, WatchRead};
use crate::upstream::{Client, Resource};
use crate::wire::{Object, Representation};
use base::{Cut, DrainWatch, Tasks};
use kubeapi::{Status, VersionMatch, WatchStart};

/// The `Retry-After` for a watch whose feed is still syncing.
const SYNC_RETRY_SECONDS: u32 = 1;

const WATCH_RETRY_SECONDS: u32 = 5;

const CUT_OFF: &str = "upstream is unreachable, so the cache cannot be proven current";

/// A watch that may be opened, with its permission, its permit and its feed.
struct Admitted {
    received: Instant,
    permit: Permit,
    place: ConcurrencyPermit,
    source: FeedSource,
    opened: Result<OpenedWatch, TooOld>,
    /// For a partial view: the namespaces with something to show.
    namespaces: Vec<Arc<str>>,
    /// The shared chunks of the initial state.
    chunks: Option<Arc<[Chunk]>>,
    /// The initial row of a Table watch.
    row: Option<Object>,
}

/// Opens watches on feeds.
#[derive(Debug)]
pub(crate) struct WatchOpener {
    sources: Arc<Sources>,
    scans: Scans,
    first_rows: FirstRows,
    concurrency: Arc<ConcurrencyLimits>,
    watches: metrics::Watches,
    active_watches: ActiveWatches,
    slow_readers: SlowReaderReaper,
    tasks: Tasks,
    drain: DrainWatch,
}

impl WatchOpener {
    pub(crate) fn new(
        (sources, scans): (Arc<Sources>, Scans),
        client: Client,
        (concurrency, slow_readers): (Arc<ConcurrencyLimits>, SlowReaderReaper),
        active_watches: ActiveWatches,
        (tasks, drain): (Tasks, DrainWatch),
    ) -> Self {
        Self {
            sources,
            scans,
            first_rows: FirstRows { client, concurrency: concurrency.clone() },
            concurrency,
            watches: metrics::Watches::default(),
            active_watches,
            slow_readers,
            tasks,
            drain,
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
        let row = match self.first_rows.of_watch(request, resource, &mut read).await {
            Ok(row) => row,
            Err(reason) => return Err(NotServable::Forward(reason)),
        };
        let resume = match read.start {
            WatchStart::After(rv) => Some(rv),
            _ => None,
        };
        let need = request.need(&permit, resource, read.representation, resume);
        let source = match self.sources.source(resource, &need).await {
            Ok(source) => source,
            // A forwarded watch would last for an hour. The apiserver's error for an initializing cache is better
            // (R-LIST-5).
            Err(NotServable::Forward(ForwardReason::Syncing)) => return Err(initializing()),
            Err(why) => return Err(why),
        };
        let feed = &source.feed;
        // kubectl stops if it cannot resume from here. Its lists work, because upstream answers them.
        if let (Representation::Table(_), Some(resume)) = (read.representation, resume)
            && resume < feed.reader.floor()
        {
            return Err(NotServable::Forward(ForwardReason::TooOld));
        }
        let asked = (request.received, request.context.by_proxy);
        let failed = match self.fit_to_watch(feed, &read, asked).await {
            Ok(failed) => failed,
            Err(why) => return Err(why),
        };
        if failed.is_none() && matches!(read.start, WatchStart::State { .. }) {
            match self.sources.of_present(&source).await {
                Ok(()) => {}
                Err(NotServable::Forward(ForwardReason::Syncing)) => return Err(initializing()),
                Err(why) => return Err(why),
            }
        }
        let follows = request.context.by_proxy || permit.part().is_some();
        let opened = self.sources.open(&source.feed, &read, (permit.part().is_some(), follows)).await?;
        let namespaces = match self.begins_with(request, &permit, &opened).await {
            Ok(namespaces) => namespaces,
            Err(refusal) => return Ok(*refusal),
        };
        let received = request.received;
        let admitted = Admitted { received, permit, place, source, opened, namespaces, chunks: None, row };
        Ok(self.open_watch(request, admitted, &read, failed).await)
    }

    /// Waits until the feed is as fresh as a watch requires. On a timeout, the stream returns an error like the
    /// apiserver's (R-VERSION-4). This avoids a private upstream watch for every client.
    async fn fit_to_watch(
        &self,
        feed: &FeedHandle,
        read: &WatchRead,
        (received, by_proxy): (Instant, bool),
    ) -> Result<Option<Status>, NotServable> {
        let unproven = match read.start {
            WatchStart::After(rv) => {
                // The client has the version from another proxy or the apiserver, so the feed must catch up.
                if feed.reader.progress().rv < rv && (by_proxy || feed.reader.shown_at() < rv) {
                    feed.freshness.want_version(rv);
                }
                return Ok(None);
            }
            WatchStart::FromCached => return Ok(None),
            WatchStart::State { at: VersionMatch::Unset, .. } | WatchStart::FromCurrent => {
                match self.sources.hold(feed, received, read.timeout_seconds).await {
                    HoldOutcome::Proven => return Ok(None),
                    HoldOutcome::Late => NotServable::Forward(ForwardReason::NoProof),
                    HoldOutcome::CutOff => return Err(refusal(CUT_OFF)),
                    HoldOutcome::Draining => return Err(NotServable::going_away()),
                    HoldOutcome::Over => return Err(NotServable::Over),
                }
            }
            WatchStart::State { at, .. } => match self.sources.fit_to_list(feed, at, (received, by_proxy)).await {
                Ok(()) => return Ok(None),
                Err(why) => why,
            },
        };
        match unproven {
            NotServable::Over => Err(NotServable::Over),
            NotServable::Refuse(status) => Ok(Some(*status)),
            NotServable::Forward(_) if FeedStatus::stale_seconds(feed).is_some() => Err(refusal(CUT_OFF)),
            NotServable::Forward(_) => {
                let at = feed.reader.progress().rv.0;
                Ok(Some(Status::too_large(at + 1, at)))
            }
        }
    }

    /// Returns the namespaces that a watch starts with, if it is a partial view.
    async fn begins_with(
        &self,
        request: &ReadRequest,
        permit: &Permit,
        opened: &Result<OpenedWatch, TooOld>,
    ) -> Result<Vec<Arc<str>>, Box<Response<ReplyBody>>> {
        let (Ok(opened), Some(part)) = (opened, permit.part()) else { return Ok(Vec::new()) };
        let state = opened.snapshot.clone().unwrap_or_else(|| opened.cursor.mark().snapshot);
        self.scans.permitted_namespaces(request, part, &state, (opened.cursor.view(), None), WATCH_RETRY_SECONDS).await
    }

    async fn open_watch(
        &self,
        request: &mut ReadRequest,
        mut admitted: Admitted,
        read: &WatchRead,
        failed: Option<Status>,
    ) -> Response<ReplyBody> {
        let websocket = websocket::is_upgrade(request.http.headers());
        let upgrade = match websocket.then(|| websocket::handshake(request.http.headers())) {
            Some(Ok(response)) => Some(response),
            Some(Err(response)) => return response,
            None => None,
        };
        // A WebSocket message contains exactly one frame.
        admitted.chunks = if websocket { None } else { chunks(&admitted).await };
        metrics::served("watch", &admitted.source.feed.spec.key, read.representation);
        let feed = admitted.source.feed.clone();
        let protocol = WatchTransport::of(&request.http, websocket);
        let encoding = read.representation.encoding();
        // An upgraded connection belongs to the watch alone.
        let cut = if websocket { Cut::default() } else { request.context.cut.clone() };
        let scan_budget = self.scans.budget(request, read.view.is_expensive());
        let who = Who::new(request.caller.payer(), request.http.headers().get(USER_AGENT));
        let session = self.session(admitted, read, failed, (protocol, cut, scan_budget, request.context.by_proxy), who);
        // Read after the session was created. If the writer changes in between, the watch ends.
        let feed_status = session.feed_status(&feed);
        let Some(mut response) = upgrade else {
            let body = ReplyBody::watch(WatchBody::new(session, request.context.record.clone(), (protocol, encoding)));
            return request.context.served(encoding, true, feed_status, body);
        };
        response.extensions_mut().insert(ServedLocally { is_served: true, is_watch: true, ..ServedLocally::default() });
        let reading = self.scans.budget(request, true);
        let running = websocket::run(hyper::upgrade::on(&mut request.http), encoding, session, reading);
        let record = request.context.record.clone();
        self.tasks.spawn("websocket", async move {
            running.await;
            drop(record);
        });
        response
    }

    /// Returns the watch session, or one that sends an error and ends.
    fn session(
        &self,
        admitted: Admitted,
        read: &WatchRead,
        failed: Option<Status>,
        (protocol, cut, scan_budget, by_proxy): (WatchTransport, Cut, ScanBudget, bool),
        who: Who,
    ) -> WatchSession {
        let Admitted { received, permit, place, source, opened, namespaces, chunks, row } = admitted;
        let FeedSource { feed, renderer } = source;
        let end_bookmark = read.start.ends_with_bookmark();
        let (bookmarks, timeout_seconds) = (read.bookmarks, read.timeout_seconds);
        let lasts_min = self.sources.watch_min();
        let terms = WatchTerms { bookmarks, end_bookmark, timeout_seconds, lasts_min, by_proxy };
        let metrics = self.watches.open(&feed.spec.key, read.representation, protocol);
        let (opened, refusal) = match opened {
            Ok(opened) => (opened, failed.map(|status| (status, WatchEnd::TooLarge))),
            Err(too_old) => {
                let status = Status::too_old(too_old.requested.0, too_old.floor.0);
                (feed.reader.open_at_end(read.view.clone()), Some((status, WatchEnd::Expired)))
            }
        };
        let active_watch = self.active_watches.opened(WatchDescription::new(who, &opened.cursor, read, protocol));
        let (drain, slow_readers, metrics) =
            (self.drain.clone(), self.slow_readers.clone(), metrics.seen(active_watch));
        let mut session = WatchSession::new(Opening {
            permit,
            place,
            feed,
            renderer,
            opened,
            namespaces,
            chunks,
            row,
            terms,
            received,
            drain,
            scan_budget,
            metrics,
            cut,
            slow_readers,
        });
        if let Some((status, end)) = refusal {
            session.end_with(&status, end);
        }
        session
    }
}

/// Returns the shared chunks of the initial state, if the watch's view consists of whole chunks.
async fn chunks(admitted: &Admitted) -> Option<Arc<[Chunk]>> {
    let opened = admitted.opened.as_ref().ok()?;
    let snapshot = opened.snapshot.as_ref().filter(|_| admitted.permit.part().is_none())?;
    if PageChunks::suit(opened.cursor.view()) { Some(snapshot.chunks().await) } else { None }
}

/// Returns how many bytes a watch holds for its selector: as written, to re-check the permission, and as compiled.
fn selector_bytes(request: &ReadRequest, read: &WatchRead) -> usize {
    let written = [&request.info.label_selector, &request.info.field_selector];
    let written: usize = written.into_iter().flatten().map(String::len).sum();
    written + read.view.selector().held_bytes()
}

fn initializing() -> NotServable {
    NotServable::Refuse(Box::new(Status::initializing(SYNC_RETRY_SECONDS)))
}

fn refusal(why: &str) -> NotServable {
    NotServable::Refuse(Box::new(unavailable(why)))
}
