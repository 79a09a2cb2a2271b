//! Opens watches: takes their permit, waits for the feed, and responds with a stream.

use std::sync::Arc;
use std::time::Duration;

use http::header::{HeaderValue, USER_AGENT};
use http::{Response, Version};

use super::body::{WatchBody, WatchBodyForm};
use super::session::{WatchOptions, WatchSession, WatchTimers};
use super::websocket;
use crate::auth::ReadPermission;
use crate::cache::{FeedCursor, FeedState, OpenedWatch, VersionTooOld, WatchStartPosition};
use crate::feeds::FeedHandle;
use crate::listing::{PageChunks, cost};
use crate::serve::activity::metrics::{WatchMetricsRegistry, served};
use crate::serve::activity::{UserAndAgent, WatchEndReason, WatchTransport};
use crate::serve::audit::ServedLocally;
use crate::serve::limits::ConcurrencyPermit;
use crate::serve::read::{
    AuthorizedRead, CacheReadResult, FeedRequirements, FeedResolver, FeedWithRenderer, NotServable, ReadKind,
    ReadRequest, ScanScheduler, too_expensive,
};
use crate::serve::response::{ResponseBody, gzipped, too_many};
use crate::serve::route::{ForwardReason, RoutedWatch};
use crate::serve::serve_components::ServeComponents;
use crate::serve::serve_config::WatchCompression;
use crate::upstream::{DELTAS, UpstreamResource};
use crate::wire::{FeedEncoding, ObjectRevision, Representation};
use base::AbortSignal;
use kubeapi::{ResourceVersion, Status, WatchStart, WatchTimeout};

const WATCH_RETRY_SECONDS: u32 = 5;
/// The maximum time that a watch from before the history waits. After that, the client receives the error that it would
/// have received at once.
const BACKFILL_WAIT_MAX: Duration = Duration::from_secs(8);

/// Opens downstream watches on feeds.
#[derive(Debug)]
pub(crate) struct WatchOpener {
    pub(crate) shared: Arc<ServeComponents>,
    pub(crate) sources: Arc<FeedResolver>,
    pub(crate) scans: ScanScheduler,
    pub(crate) metrics: WatchMetricsRegistry,
}

impl WatchOpener {
    pub(crate) async fn open(
        &self,
        request: &mut ReadRequest,
        permission: ReadPermission,
        resource: &UpstreamResource,
        mut read: RoutedWatch,
    ) -> CacheReadResult {
        let kind = |read: &RoutedWatch| ReadKind::Watch { start: read.start, timeout_seconds: read.timeout_seconds };
        let authorized = AuthorizedRead { request, permission: &permission, resource };
        let mut need = FeedRequirements::new(authorized, read.view.name(), read.representation, kind(&read))?;
        if !cost::is_watchable(read.view.selector()) {
            return too_expensive(request, &permission);
        }
        // Taken before any wait, so that waiting watches count against the limit.
        // It holds its selector as written, to re-check the permission, and as compiled.
        let written = [&request.info.label_selector, &request.info.field_selector];
        let written: usize = written.into_iter().flatten().map(String::len).sum();
        let selector_bytes = written + read.view.selector().heap_bytes();
        let permit = self.shared.concurrency.watch(request.caller.flow().as_ref(), selector_bytes);
        let refused = |shed| NotServable::Refuse(Box::new(too_many(shed, WATCH_RETRY_SECONDS)));
        let permit = permit.map_err(refused)?;
        let row = self.initial_row(request, resource, &mut read).await.map_err(NotServable::Forward)?;
        need.kind = kind(&read);
        let source = self.sources.source(resource, &need).await?;
        // kubectl stops if it cannot resume from here. Its lists work, because upstream answers them. It would deny a
        // filtered watch, so that waits until the history is extended.
        if let (Representation::Table(_), WatchStart::After(rv)) = (read.representation, read.start)
            && rv < source.feed.reader.floor()
            && permission.namespaces().is_none()
        {
            return Err(NotServable::Forward(ForwardReason::TooOld));
        }
        let timed_out = match self.sources.wait_ready(&source, &need).await {
            Ok(()) => None,
            Err(NotServable::Late(status)) => Some(status),
            Err(refusal) => return Err(refusal),
        };
        let follows = request.context.by_proxy || permission.namespaces().is_some();
        let changes = source.feed.body_release.changes_before_states();
        let opened = self.sources.position(&source.feed, &read, permission.namespaces().is_some(), follows).await?;
        let namespaces =
            match self.namespaces(request, &permission, &source.feed, (opened.as_ref().ok(), row.as_ref())).await {
                Ok(namespaces) => namespaces,
                Err(refusal) => return Ok(*refusal),
            };
        // A watch that is late or starts too early sends one error, and ends.
        let (OpenedWatch { snapshot, cursor }, error) = match opened {
            Ok(opened) => (opened, timed_out.map(|status| (*status, WatchEndReason::TooLarge))),
            Err(VersionTooOld { requested, floor }) => {
                let status = Status::too_old(requested.0, floor.0);
                (source.feed.reader.open_at_end(read.view.clone()), Some((status, WatchEndReason::Expired)))
            }
        };
        let is_websocket = transport(request) == WatchTransport::WebSocket;
        let upgrade = match is_websocket.then(|| websocket::handshake(request.http.headers())).transpose() {
            Ok(upgrade) => upgrade,
            Err(response) => return Ok(response),
        };
        let chunks = match &snapshot {
            // A WebSocket message contains exactly one frame, and other views do not consist of whole chunks.
            Some(state)
                if !is_websocket && permission.namespaces().is_none() && PageChunks::can_share(cursor.view()) =>
            {
                Some(state.chunks().await)
            }
            _ => None,
        };
        // A new feed does not know it yet.
        let release = source.feed.renderings.release().or_else(|| self.shared.catalog.minor());
        let compresses = self.sources.config.get().compress_watches;
        let deltas_after = deltas_after(request, resource, &read)
            .filter(|_| compresses != WatchCompression::Never && permission.namespaces().is_none() && !is_websocket);
        let start = (deltas_after, snapshot.as_ref().map(|_| changes));
        let mut session = self.session(request, &permission, &read, source, (cursor, start), permit);
        match (permission.namespaces(), snapshot, row) {
            (Some(part), snapshot, row) => {
                session.show_part(part.clone(), namespaces, snapshot);
                let row = row.filter(|row| permission.access(row.key.namespace_or_name()).allows(row.key.name()));
                row.into_iter().for_each(|row| session.send_row(row));
            }
            (None, Some(snapshot), _) => session.send_state(snapshot, &permission, chunks),
            (None, None, Some(row)) => session.send_row(row),
            (None, None, None) => {}
        }
        if let Some((status, end)) = error {
            session.end_with(&status, end);
        }
        let is_gzip = match deltas_after {
            Some(_) => session.is_initial() && read.start.ends_with_bookmark(),
            None => request.context.gzip && compresses.applies_to(read.start.ends_with_bookmark(), release),
        };
        let form =
            WatchBodyForm { encoding: read.representation.encoding(), is_gzip, has_deltas: deltas_after.is_some() };
        Ok(self.respond(request, session, form, upgrade))
    }

    /// Returns the namespaces that a watch starts with, if it is a partial view.
    async fn namespaces(
        &self,
        request: &ReadRequest,
        permission: &ReadPermission,
        feed: &FeedHandle,
        (opened, row): (Option<&OpenedWatch>, Option<&ObjectRevision>),
    ) -> Result<Vec<Arc<str>>, Box<Response<ResponseBody>>> {
        let (Some(opened), Some(part)) = (opened, permission.namespaces()) else { return Ok(Vec::new()) };
        let state = opened.snapshot.clone().unwrap_or_else(|| opened.cursor.capture().snapshot);
        let view = (opened.cursor.view(), None);
        let namespaces =
            self.scans.reviewed_namespaces(request, part, (feed, &state), view, WATCH_RETRY_SECONDS).await?;
        // The feed may not have the row's namespace yet.
        let reviewed = part.review_all(row.map(|row| row.key.namespace_or_name())).await;
        reviewed.map(|()| namespaces).map_err(|refused| Box::new(request.auth_refusal(&refused)))
    }

    /// Returns the session of a watch at the cursor's position.
    fn session(
        &self,
        request: &ReadRequest,
        permission: &ReadPermission,
        read: &RoutedWatch,
        source: FeedWithRenderer,
        (cursor, (deltas_after, changes_before_state)): (FeedCursor, (Option<ResourceVersion>, Option<u32>)),
        permit: ConcurrencyPermit,
    ) -> WatchSession {
        let key = &source.feed.spec.key;
        served("watch", key, read.representation);
        let transport = transport(request);
        let client = UserAndAgent::new(request.caller.flow(), request.http.headers().get(USER_AGENT));
        let active_watch = self.shared.active_watches.opened(client, cursor.follower(), read.representation, transport);
        let metrics = self.metrics.open(key, read.representation, transport, active_watch);
        let options = WatchOptions {
            bookmarks: read.bookmarks,
            end_bookmark: read.start.ends_with_bookmark(),
            timeout_seconds: read.timeout_seconds,
            duration_min: self.sources.config.get().watch_min,
            by_proxy: request.context.by_proxy,
            deltas_after,
            changes_before_state,
        };
        // An upgraded connection belongs to the watch alone.
        let is_alone = transport == WatchTransport::WebSocket;
        let abort = if is_alone { AbortSignal::default() } else { request.context.abort.clone() };
        let (grant, slow_readers) = (permission.grant_status(), self.shared.slow_readers.clone());
        let timers = WatchTimers::start(request.received, &options, grant, slow_readers, abort, &self.sources.drain);
        let scan_budget = self.scans.budget(request, read.view.is_expensive());
        WatchSession::new(source, cursor, &options, timers, permit, scan_budget, metrics)
    }

    /// Returns the response that streams the session, or the `upgrade` to a WebSocket.
    fn respond(
        &self,
        request: &mut ReadRequest,
        session: WatchSession,
        form: WatchBodyForm,
        upgrade: Option<Response<ResponseBody>>,
    ) -> Response<ResponseBody> {
        let record = request.context.record.clone();
        let Some(mut response) = upgrade else {
            // Read after the session was created. If the writer changes in between, the watch ends.
            let feed_status = session.feed_status();
            let gzip = form.is_gzip.then(|| self.scans.budget(request, false));
            let body = ResponseBody::watch(WatchBody::new(session, record, transport(request), form, gzip));
            let mut response = request.context.served(form.encoding, true, feed_status, body);
            if form.has_deltas {
                let value = HeaderValue::from_static(if form.is_gzip { "gzip" } else { "true" });
                response.headers_mut().insert(DELTAS, value);
                return response;
            }
            return if form.is_gzip { gzipped(response) } else { response };
        };
        response.extensions_mut().insert(ServedLocally::from_cache(true));
        let reading = self.scans.budget(request, true);
        let running = websocket::run(hyper::upgrade::on(&mut request.http), form.encoding, session, reading);
        request.context.connection.run_upgraded(async move {
            running.await;
            drop(record);
        });
        response
    }
}

impl FeedResolver {
    /// Opens a watch at its start version. If the version precedes the feed's history, the watch waits for a while,
    /// because the history may be extended from upstream. Its client does not receive "too old" because a feed or the
    /// proxy ends: the next one may have the history. `is_part` marks a partial view; if the watch `follows` the
    /// stream, it starts at the stream's version.
    async fn position(
        &self,
        feed: &FeedHandle,
        read: &RoutedWatch,
        is_part: bool,
        follows: bool,
    ) -> Result<Result<OpenedWatch, VersionTooOld>, NotServable> {
        let reader = &feed.reader;
        // A partial view needs the previous state of each object, because revoking a permission deletes visible
        // objects.
        let view = if is_part { read.view.clone().with_previous_state() } else { read.view.clone() };
        let open = || match read.start {
            WatchStart::State { .. } if follows => reader.open(WatchStartPosition::UpstreamProgress, view.clone()),
            WatchStart::After(rv) => reader.open(WatchStartPosition::After(rv), view.clone()),
            WatchStart::State { .. } => reader.open(WatchStartPosition::Current, view.clone()),
            WatchStart::FromCached | WatchStart::FromCurrent => Ok(reader.open_at_end(view.clone())),
        };
        let mut opened = open();
        if let Err(VersionTooOld { requested: from, .. }) = opened {
            // Upstream would print an old change with current cells. That is better than an error if it would deny the
            // watch.
            let is_table = feed.spec.key.encoding == FeedEncoding::Table;
            if (!is_table || is_part) && !reader.reaches(from, &view) && reader.can_backfill() {
                let wait = WatchTimeout::of(read.timeout_seconds).capped(BACKFILL_WAIT_MAX);
                // The history may come after the end of a short watch, and upstream may have it now. Its client may not
                // wait for a response longer than the watch lasts.
                // Upstream may not know shards.
                let is_short = wait < BACKFILL_WAIT_MAX && !is_part && view.selector().shard.is_none();
                let wait = if is_short { wait / 2 } else { wait };
                let waited = self.hold(feed, wait, feed.resume_backfills.wait(from, &view, reader)).await?;
                if waited.is_none() && is_short {
                    return Err(NotServable::Forward(ForwardReason::TooOld));
                }
            }
            opened = open();
        }
        // The next feed may have what an ended feed does not.
        if opened.is_err() && matches!(reader.state(), FeedState::Ended(_)) {
            Err(NotServable::FeedEnded)
        } else {
            Ok(opened)
        }
    }
}

/// Returns the version after which a downstream proxy reads events as differences. Events of Secrets are sent whole,
/// because the length of a difference would show to the network how alike two versions are. The first event of a Table
/// is not what the proxy caches.
fn deltas_after(request: &ReadRequest, resource: &UpstreamResource, read: &RoutedWatch) -> Option<ResourceVersion> {
    let after = request.http.headers().get(DELTAS).filter(|_| request.context.by_proxy)?.to_str().ok()?;
    let is_object = matches!(read.representation, Representation::Object(_));
    after.parse().ok().map(ResourceVersion).filter(|_| is_object && !resource.gvr.is_secrets())
}

/// Returns the transport of a watch request.
fn transport(request: &ReadRequest) -> WatchTransport {
    match request.http.version() {
        _ if websocket::is_upgrade(request.http.headers()) => WatchTransport::WebSocket,
        Version::HTTP_2 => WatchTransport::Http2,
        _ => WatchTransport::Http1,
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::cache::{CacheConfig, CacheWriter, CollectionView, FeedEndReason, FeedSnapshot};
    use crate::feeds::{
        BackfillOutcome, BackfillRequest, FeedKey, FeedRegistry, FeedScope, FeedSpec, FeedStartRequest,
    };
    use crate::serve::serve_config::ServeConfig;
    use base::DrainTrigger;
    use kubeapi::{Gvr, ResourceVersion};

    /// The events that can end the wait of a watch.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Event {
        Nothing,
        HistoryBeginsEarlier,
        Refusal,
        Drain,
        EndOfFeed,
    }

    fn feed(encoding: FeedEncoding) -> (FeedRegistry, FeedHandle, CacheWriter) {
        let (feeds, mut demands) = FeedRegistry::new(CacheConfig::default());
        let key = FeedKey { gvr: Gvr::new("", "v1", "pods"), scope: FeedScope::Cluster, encoding };
        let feed = feeds.handle(&FeedSpec::like_pods(key), None).expect("there is room");
        let FeedStartRequest { mut writer, .. } = demands.try_recv().expect("the feed is demanded");
        writer.replace(FeedSnapshot::from_objects(ResourceVersion(100), Vec::new()));
        writer.set_state(FeedState::Live);
        (feeds, feed, writer)
    }

    fn from(version: u64) -> RoutedWatch {
        let (representation, start) = (Representation::Object(FeedEncoding::Json), ResourceVersion(version));
        let (view, start) = (CollectionView::everything(), WatchStart::After(start));
        RoutedWatch { representation, view, start, bookmarks: false, timeout_seconds: None }
    }

    fn outcome(opened: &Result<Result<OpenedWatch, VersionTooOld>, NotServable>) -> String {
        match opened {
            Ok(Ok(_)) => "opened".into(),
            Ok(Err(_)) => "too old".into(),
            Err(NotServable::FeedEnded) => "routed again".into(),
            Err(NotServable::Late(status) | NotServable::Refuse(status)) => {
                format!("refused with {}, again in {} s", status.code, status.retry_after_seconds().unwrap_or_default())
            }
            Err(NotServable::Forward(reason)) => format!("{reason:?}"),
            Err(NotServable::Unauthorized(error)) => error.to_string(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn resume_on_ended_feed_is_routed_again() {
        for encoding in [FeedEncoding::Json, FeedEncoding::Table] {
            let (feeds, feed, mut writer) = feed(encoding);
            let (_trigger, drain) = DrainTrigger::new();
            let sources = FeedResolver::new(ServeConfig::default().into(), feeds, drain);
            writer.set_state(FeedState::Ended(FeedEndReason::Outdated));
            assert_eq!(
                outcome(&sources.position(&feed, &from(90), false, false).await),
                "routed again",
                "{encoding:?}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn resume_before_history_waits_for_backfill_up_to_limit() {
        for (event, expected, waited) in [
            (Event::Nothing, "too old", BACKFILL_WAIT_MAX),
            (Event::HistoryBeginsEarlier, "opened", Duration::from_secs(1)),
            (Event::Refusal, "too old", Duration::from_secs(1)),
            (Event::Drain, "refused with 503, again in 1 s", Duration::from_secs(1)),
            (Event::EndOfFeed, "routed again", Duration::from_secs(1)),
        ] {
            let (feeds, feed, mut writer) = feed(FeedEncoding::Json);
            let (trigger, drain) = DrainTrigger::new();
            let sources = FeedResolver::new(ServeConfig::default().into(), feeds, drain);
            let (watched, began) = (feed.clone(), Instant::now());
            let watch = tokio::spawn(async move { sources.position(&watched, &from(90), false, false).await });
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert_eq!(
                feed.resume_backfills.next(&feed.reader),
                Some(BackfillRequest::Events(ResourceVersion(90))),
                "it waits"
            );
            let mut draining = None;
            match event {
                Event::Nothing => {}
                Event::HistoryBeginsEarlier => {
                    let beginning = feed.reader.history_start().expect("nothing was evicted");
                    let past = beginning.joined_by(ResourceVersion(90), Vec::new()).expect("nothing happened");
                    assert!(writer.prepend(past));
                    feed.resume_backfills.answered(BackfillOutcome::Prepended);
                }
                Event::Refusal => feed.resume_backfills.answered(BackfillOutcome::Gone { before: ResourceVersion(91) }),
                Event::Drain => draining = Some(tokio::spawn(trigger.drain(Duration::from_secs(60)))),
                Event::EndOfFeed => writer.set_state(FeedState::Ended(FeedEndReason::Outdated)),
            }
            assert_eq!(outcome(&watch.await.expect("no panic")), expected, "{event:?}");
            assert!(began.elapsed().abs_diff(waited) < Duration::from_millis(10), "{event:?}: {:?}", began.elapsed());
            drop(draining);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn short_watch_is_forwarded_if_the_history_does_not_come_in_time() {
        let (feeds, feed, _writer) = feed(FeedEncoding::Json);
        let (_trigger, drain) = DrainTrigger::new();
        let sources = FeedResolver::new(ServeConfig::default().into(), feeds, drain);
        for (version, seconds, is_part, expected) in [
            (90, 1, false, "TooOld"),
            (100, 1, false, "opened"),
            // No upstream response shows only a part.
            (90, 1, true, "too old"),
            (90, 8, false, "too old"),
        ] {
            let watch = RoutedWatch { timeout_seconds: Some(seconds), ..from(version) };
            let opened = sources.position(&feed, &watch, is_part, false).await;
            assert_eq!(outcome(&opened), expected, "{version} {seconds} {is_part}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn resume_within_history_or_of_table_does_not_wait() {
        for (encoding, version, expected) in [
            (FeedEncoding::Json, 100, "opened"),
            (FeedEncoding::Json, 120, "opened"),
            // A row shows the cells that upstream printed when the event occurred.
            (FeedEncoding::Table, 90, "too old"),
        ] {
            let (feeds, feed, _writer) = feed(encoding);
            let (_trigger, drain) = DrainTrigger::new();
            let (sources, began) = (FeedResolver::new(ServeConfig::default().into(), feeds, drain), Instant::now());
            let opened = sources.position(&feed, &from(version), false, false).await;
            assert_eq!(outcome(&opened), expected, "{encoding:?} {version}");
            assert_eq!(began.elapsed(), Duration::ZERO);
        }
    }
}
