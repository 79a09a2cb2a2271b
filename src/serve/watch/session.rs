//! A watch as a state machine, after kube-rs's `watcher`: each state owns what only it needs, and
//! [`WatchSessionContext::step`] takes a state and returns the next one.
//!
//! ```text
//! Initial ─┐
//! Row ─────┼─► Live ─► Last ─► Ended        Last may be skipped
//! ─────────┘
//! ```

mod initial_events;
mod namespace_filtered_view;
mod namespace_visibility;
#[cfg(test)]
mod tests;
mod timers;

use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;

pub(crate) use self::initial_events::WatchBatch;
pub(crate) use self::timers::WatchTimers;

use self::initial_events::{FrameBatch, InitialEvents};
use self::namespace_filtered_view::NamespaceFilteredView;
use self::timers::WatchExit;
use crate::auth::{ReadPermission, ReadableNamespaces};
use crate::cache::{
    CacheReader, CursorStopReason, EventFilterDecision, FeedCursor, FeedSnapshot, FeedState, ObjectChunk, PullResult,
};
use crate::feeds::FeedHandle;
use crate::listing::ScanBudget;
use crate::serve::activity::WatchEndReason;
use crate::serve::activity::metrics::WatchMetrics;
use crate::serve::limits::{ConcurrencyPermit, WatchDeadlineTimer};
use crate::serve::read::FeedWithRenderer;
use crate::serve::response::ServedFeedStatus;
use crate::wire::{ObjectRevision, Representation, TableColumns, TranscodeError};
use kubeapi::{EventType, ResourceVersion, Status, WatchTimeout};

/// One downstream watch. It buffers no events.
///
/// A sink polls the session whenever its client has room. The session does not depend on the sink's protocol.
pub(crate) struct WatchSession {
    state: WatchSessionState,
    common: WatchSessionContext,
}

/// The part of the watch that the client receives next.
///
/// Any state but the last two becomes `Last` if the permission is revoked, and `Ended` if an object cannot be
/// converted.
enum WatchSessionState {
    /// The initial state is sent as ADDED events. After them, and the bookmark that marks their end, the watch is
    /// `Live`. If the timeout expires or the proxy drains before that, it is `Ended`.
    Initial(Box<InitialEvents>),
    /// The initial state is one object, which upstream has printed for this watch. It is older than all events. Once it
    /// is sent, the watch is `Live`.
    Row(Box<ObjectRevision>),
    /// Events are sent as they are received, and bookmarks when they are due. A partial view also sends its initial
    /// state here. If the watch must end, it is `Last` if the client receives an error or a last bookmark, and `Ended`
    /// otherwise. The watch remains `Live` until all events of a version are sent.
    Live,
    /// A last frame is sent. Then the watch is `Ended`.
    Last(Box<(Bytes, WatchEndReason)>),
    /// The watch has ended; no more frames are sent.
    Ended,
}

/// The parts that all states need: the position in the feed, and the watch's options.
struct WatchSessionContext {
    feed: FeedHandle,
    cursor: FeedCursor,
    /// The visible namespaces; set for a watch that shows only some namespaces.
    partial: Option<Box<NamespaceFilteredView>>,
    bookmarks: bool,
    /// Whether a bookmark marks the end of the initial state.
    end_bookmark: bool,
    /// The last version that was sent to the client, or from which the watch started. Bookmarks are sent only for later
    /// versions.
    last_sent_rv: ResourceVersion,
    /// The number of upstream bookmarks that the session has observed.
    seen_bookmarks: u32,
    timers: WatchTimers,
    /// Whether no frames will come until the waker is woken.
    is_parked: bool,
    /// The columns of a Table, which only the first event has.
    columns: Option<TableColumns>,
    metrics: WatchMetrics,
    scan_budget: ScanBudget,
    /// How often the build that encodes the feed's bodies had changed when the watch started; set only for a downstream
    /// proxy.
    changes: Option<u32>,
    _permit: ConcurrencyPermit,
}

/// The options that the client requested, and the proxy's defaults.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchOptions {
    pub(crate) bookmarks: bool,
    pub(crate) end_bookmark: bool,
    pub(crate) timeout_seconds: Option<i64>,
    /// The minimum duration of a watch without a client timeout; the maximum is twice that.
    pub(crate) duration_min: Duration,
    /// Whether the client is a downstream proxy, which caches the events.
    pub(crate) by_proxy: bool,
    /// The version after which events are sent as differences.
    pub(crate) deltas_after: Option<ResourceVersion>,
    /// If the watch starts with a state, the number of build changes before it.
    pub(crate) changes_before_state: Option<u32>,
}

/// The outcome of a step: how many frames it has put, and the next state. If it is pending, nothing was put, and the
/// waker is woken when there may be more. If the batch has more pieces than frames, each piece counts as a frame.
type WatchSessionStepResult = Result<(Poll<usize>, WatchSessionState), WatchExit>;

impl WatchSession {
    /// Starts a live watch at the cursor's position.
    pub(crate) fn new(
        source: FeedWithRenderer,
        cursor: FeedCursor,
        options: &WatchOptions,
        timers: WatchTimers,
        permit: ConcurrencyPermit,
        scan_budget: ScanBudget,
        metrics: WatchMetrics,
    ) -> Self {
        let FeedWithRenderer { feed, renderer } = source;
        let is_table = matches!(renderer.representation(), Representation::Table(_));
        let columns = is_table.then(|| feed.columns.clone());
        let cursor = cursor.rendered_by(renderer).with_deltas_after(options.deltas_after);
        let cursor = if options.by_proxy { cursor.mark_as_proxy() } else { cursor };
        let common = WatchSessionContext {
            partial: None,
            bookmarks: options.bookmarks,
            end_bookmark: options.end_bookmark,
            last_sent_rv: cursor.start(),
            seen_bookmarks: feed.reader.progress().bookmarks,
            timers,
            is_parked: false,
            columns,
            metrics,
            scan_budget,
            changes: options.by_proxy.then(|| {
                feed.proxy_watch_opened();
                let since = || feed.body_release.build_since(cursor.start()).changes;
                options.changes_before_state.unwrap_or_else(since)
            }),
            _permit: permit,
            feed,
            cursor,
        };
        // The timeout has already expired (R-TIMEOUT-1).
        let is_elapsed = WatchTimeout::of(options.timeout_seconds) == WatchTimeout::Elapsed;
        let state =
            if is_elapsed { common.end(WatchExit::Silent(WatchEndReason::Timeout)) } else { WatchSessionState::Live };
        if is_elapsed {
            common.timers.watchdog().end();
        }
        Self { state, common }
    }

    /// Sends a state before the events. A sink that can send several frames in one piece passes the state's shared
    /// `chunks`.
    pub(crate) fn send_state(
        &mut self,
        snapshot: FeedSnapshot,
        permission: &ReadPermission,
        chunks: Option<Arc<[ObjectChunk]>>,
    ) {
        if self.is_ended() {
            return;
        }
        let WatchSessionContext { cursor, feed, columns, timers, .. } = &self.common;
        let pin = timers.pin(feed, &snapshot);
        let initial = InitialEvents::new(snapshot, pin);
        self.state = WatchSessionState::Initial(Box::new(match chunks.filter(|_| columns.is_none()) {
            Some(chunks) => initial.in_chunks(chunks, permission, cursor, &feed.reader),
            None => initial,
        }));
    }

    /// Sends the initial state of one object, a row of a Table, before the events.
    pub(crate) fn send_row(&mut self, row: ObjectRevision) {
        if !self.is_ended() {
            self.state = WatchSessionState::Row(Box::new(row));
        }
    }

    /// Shows only the readable namespaces: those of the state first, if there is one, and then their events.
    /// `namespaces` are those with matching objects.
    pub(crate) fn show_part(
        &mut self,
        readable: ReadableNamespaces,
        namespaces: Vec<Arc<str>>,
        snapshot: Option<FeedSnapshot>,
    ) {
        if self.is_ended() {
            return;
        }
        let WatchSessionContext { cursor, feed, timers, end_bookmark, .. } = &self.common;
        let state = snapshot.map(|snapshot| (timers.pin(feed, &snapshot), snapshot));
        let partial = NamespaceFilteredView::new(readable, namespaces, cursor, state, *end_bookmark);
        self.common.partial = Some(Box::new(partial));
    }

    /// Ends the watch with an ERROR event, regardless of the version that the end was waiting for.
    pub(crate) fn end_with(&mut self, status: &Status, end: WatchEndReason) {
        if !self.is_ended() {
            self.state = self.common.end(WatchExit::error(status.clone(), end));
        }
    }

    /// Polls the next frames; `None` when the watch has ended. Updates the watch's entry on the debug pages.
    pub(crate) fn poll_frames(&mut self, cx: &mut Context<'_>, batch: &mut WatchBatch) -> Poll<Option<()>> {
        let Self { state, common } = self;
        common.is_parked = false;
        let polled = loop {
            if let WatchSessionState::Ended = state {
                break Poll::Ready(None);
            }
            let step = common.step(std::mem::replace(state, WatchSessionState::Ended), cx, batch);
            let (polled, next) = step.unwrap_or_else(|exit| (Poll::Ready(0), common.end(exit)));
            *state = next;
            let Poll::Ready(frames) = polled else { break Poll::Pending };
            if !batch.frames.is_empty() {
                common.complete(frames, &mut batch.frames);
                if let WatchSessionState::Ended = state {
                    common.timers.watchdog().end();
                }
                break Poll::Ready(Some(()));
            }
        };
        common.metrics.active_watch.reported(common.last_sent_rv.0, common.cursor.next(), common.is_parked);
        polled
    }

    /// Returns the watchdog, which ends the watch if it is not polled. The sink holds it while frames are in flight.
    pub(crate) fn watchdog(&self) -> &Arc<WatchDeadlineTimer> {
        self.common.timers.watchdog()
    }

    pub(crate) fn reader(&self) -> &CacheReader {
        &self.common.feed.reader
    }

    /// Whether the watch is on Secrets.
    pub(crate) fn is_of_secrets(&self) -> bool {
        self.common.feed.spec.key.gvr.is_secrets()
    }

    /// Whether initial events are still to be put.
    pub(crate) fn is_initial(&self) -> bool {
        matches!(self.state, WatchSessionState::Initial(_))
    }

    pub(crate) fn metrics(&self) -> &WatchMetrics {
        &self.common.metrics
    }

    /// Whether all frames of the watch were put.
    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.state, WatchSessionState::Ended)
    }

    /// Whether no frames follow until the waker of the last poll is woken. This can be true right after frames were
    /// put; then another poll would find nothing.
    pub(crate) fn is_parked(&self) -> bool {
        self.common.is_parked
    }

    /// Returns the state of the feed that a downstream proxy receives at the start of the watch.
    pub(crate) fn feed_status(&self) -> ServedFeedStatus {
        let WatchSessionContext { feed, last_sent_rv, changes, .. } = &self.common;
        let written = feed.body_release.build_since(*last_sent_rv);
        let encoder_build = written.build.filter(|_| *changes == Some(written.changes));
        ServedFeedStatus { stale_seconds: ServedFeedStatus::stale_seconds(feed), encoder_build }
    }
}

impl WatchSessionContext {
    /// Puts the next frames of the watch, if there are any.
    fn step(
        &mut self,
        state: WatchSessionState,
        cx: &mut Context<'_>,
        batch: &mut WatchBatch,
    ) -> WatchSessionStepResult {
        match self.check_end(state, cx)? {
            WatchSessionState::Initial(initial) => self.send_initial(initial, cx, batch),
            WatchSessionState::Row(row) => {
                batch.frames.push(self.cursor.renderer().frame(EventType::Added, row.body())?);
                Ok((Poll::Ready(1), WatchSessionState::Live))
            }
            WatchSessionState::Live => self.send_events(cx, batch),
            WatchSessionState::Last(last) => {
                let (frame, end) = *last;
                batch.frames.push(frame);
                self.metrics.ended(end.as_str());
                Ok((Poll::Ready(1), WatchSessionState::Ended))
            }
            WatchSessionState::Ended => Ok((Poll::Ready(0), WatchSessionState::Ended)),
        }
    }

    /// Decides whether the watch ends before it sends more, and why. Otherwise, returns the state to continue with.
    ///
    /// A revocation comes first, even if frames are pending (A4), except for the rest of a chunk of the initial state.
    /// A live watch then ends for its renderer, its timeout or the drain, unless it must first send the rest of a
    /// version.
    fn check_end(&mut self, state: WatchSessionState, cx: &Context<'_>) -> Result<WatchSessionState, WatchExit> {
        if matches!(state, WatchSessionState::Last(_) | WatchSessionState::Ended) {
            return Ok(state);
        }
        // A watch ends between two events (W13). Its timers are not read here, so a client that does not read the rest
        // of the chunk is aborted after the grace period.
        if matches!(&state, WatchSessionState::Initial(initial) if initial.is_within_chunk()) {
            return Ok(state);
        }
        if let Some(exit) = self.timers.revocation() {
            return Err(exit);
        }
        match state {
            WatchSessionState::Initial(_) => return self.timers.exit(cx).map_or(Ok(state), Err),
            WatchSessionState::Live => {}
            state => return Ok(state),
        }
        // A renderer is disproven before it is revoked, so this order of loads never misses a disproof.
        let is_revoked = self.cursor.renderer().is_revoked();
        if self.cursor.renderer().is_mismatched() {
            // What this client holds may be wrong, and would stay so if it went on from here.
            let status = Status::too_old(self.last_sent_rv.0, self.feed.reader.progress().rv.0);
            return Err(WatchExit::error(status, WatchEndReason::NotDerivable));
        }
        let exit =
            if is_revoked { Some(WatchExit::Silent(WatchEndReason::NotDerivable)) } else { self.timers.exit(cx) };
        match exit {
            None => Ok(WatchSessionState::Live),
            Some(WatchExit::Silent(_)) if self.is_mid_version() => Ok(WatchSessionState::Live),
            Some(WatchExit::Silent(WatchEndReason::Drained)) if self.bookmarks => Err(self.drained()),
            Some(exit) => Err(exit),
        }
    }

    /// Puts a portion of the initial state.
    fn send_initial(
        &mut self,
        mut initial: Box<InitialEvents>,
        cx: &mut Context<'_>,
        batch: &mut WatchBatch,
    ) -> WatchSessionStepResult {
        let Poll::Ready(_slice) = self.scan_budget.poll(cx) else {
            return Ok((Poll::Pending, WatchSessionState::Initial(initial)));
        };
        initial.pin.extend();
        let reader = &self.feed.reader;
        let mut out = FrameBatch::new(&self.cursor, reader, self.scan_budget.left(), batch);
        let Poll::Ready(put) = initial.poll_put(cx, &mut out) else {
            return Ok((Poll::Pending, WatchSessionState::Initial(initial)));
        };
        let (mut frames, is_last) = put?;
        if !is_last {
            return Ok((Poll::Ready(frames), WatchSessionState::Initial(initial)));
        }
        self.last_sent_rv = initial.snapshot.rv;
        if self.end_bookmark {
            batch.frames.push(reader.bookmark(initial.snapshot.rv, true, self.cursor.renderer())?);
            frames += 1;
        }
        Ok((Poll::Ready(frames), WatchSessionState::Live))
    }

    /// Puts events, or a bookmark that is due. If there are none, the watch waits for its waker.
    fn send_events(&mut self, cx: &mut Context<'_>, batch: &mut WatchBatch) -> WatchSessionStepResult {
        let Poll::Ready(slice) = self.scan_budget.poll(cx) else { return Ok((Poll::Pending, WatchSessionState::Live)) };
        if self.partial.is_some() {
            self.send_partial_view(cx, batch)?;
        } else {
            let (limits, waker) = ((batch.bytes_max, self.scan_budget.left()), Some(cx.waker()));
            let frames = &mut batch.frames;
            let pull = self.cursor.pull_filtered(None, limits, waker, frames, |_, _| EventFilterDecision::Send);
            self.handle_pull(pull, batch)?;
        }
        drop(slice);
        if batch.frames.is_empty() && !self.scan_budget.is_used_up() && self.timers.fired(cx).is_none() {
            self.is_parked = true;
            return Ok((Poll::Pending, WatchSessionState::Live));
        }
        // If nothing was put, more events remain to be scanned after other tasks had their turn, or a timer has fired.
        Ok((Poll::Ready(batch.frames.len()), WatchSessionState::Live))
    }

    /// Acts on what was pulled. Puts a bookmark that is due if no events are pending.
    fn handle_pull(&mut self, pull: PullResult, batch: &mut WatchBatch) -> Result<(), WatchExit> {
        match pull {
            PullResult::Frames { last, applied, caught_up } => {
                self.last_sent_rv = self.last_sent_rv.max(last);
                self.metrics.delivered(applied);
                if caught_up.is_some() {
                    self.scan_budget.renew();
                }
                // Changes of permissions and bookmarks are checked only when no events are pending.
                self.is_parked = self.partial.is_none()
                    && !self.encoder_changed()
                    && !self.timers.is_due()
                    && caught_up.is_some_and(|progress| progress.bookmarks == self.seen_bookmarks);
            }
            PullResult::CaughtUp { progress } => {
                self.scan_budget.renew();
                if let Some(exit) = self.encoder_change_exit(progress.rv) {
                    return Err(exit);
                }
                let announced = progress.bookmarks != self.seen_bookmarks;
                self.seen_bookmarks = progress.bookmarks;
                let due = self.timers.take_bookmark();
                // Like upstream, repeats the last version when a bookmark is due, because a client may consider a
                // silent stream dead. A disconnected feed cannot confirm the version, so it sends none.
                let repeats = due && progress.rv == self.last_sent_rv && self.feed.reader.state() == FeedState::Live;
                if self.bookmarks && (repeats || (due || announced) && progress.rv > self.last_sent_rv) {
                    self.last_sent_rv = progress.rv;
                    batch.frames.push(self.bookmark(progress.rv)?);
                }
            }
            // The feed has ended: the resource is gone, or the proxy may no longer read it. This is not an expired
            // version.
            PullResult::Expired { .. } if matches!(self.feed.reader.state(), FeedState::Ended(_)) => {
                return Err(WatchExit::Silent(WatchEndReason::FeedEnded));
            }
            PullResult::Expired { oldest } => {
                return Err(WatchExit::error(Status::too_old(self.last_sent_rv.0, oldest.0), WatchEndReason::Expired));
            }
            PullResult::Refused(refused) => return Err(refused.into()),
            // The next event must wait, and so must a bookmark after it.
            PullResult::Stopped(CursorStopReason::MarkReached | CursorStopReason::Undecided) => {
                self.timers.take_bookmark();
            }
            PullResult::Stopped(CursorStopReason::ScanBudgetSpent) => {}
        }
        Ok(())
    }

    /// Completes a batch of `frames` frames.
    fn complete(&mut self, frames: usize, batch: &mut [Bytes]) {
        if let Some(first) = batch.first_mut()
            && let Some(headed) = self.columns.as_ref().and_then(|columns| columns.with_columns(first))
        {
            *first = headed;
            self.columns = None;
        }
        self.metrics.sent(frames.max(batch.len()), batch);
    }

    fn is_settled(&self) -> bool {
        self.partial.as_deref().is_none_or(NamespaceFilteredView::is_settled)
    }

    fn bookmark(&self, rv: ResourceVersion) -> Result<Bytes, TranscodeError> {
        self.feed.reader.bookmark(rv, false, self.cursor.renderer())
    }

    /// Whether the watch belongs to a downstream proxy and another build has begun to encode the feed's bodies. The
    /// proxy gets the new build only when it opens a new watch.
    fn encoder_changed(&self) -> bool {
        self.changes.is_some_and(|changes| changes != self.feed.body_release.changes())
    }
}

impl Drop for WatchSession {
    fn drop(&mut self) {
        let Self { state, common } = self;
        if common.changes.is_some() {
            common.feed.proxy_watch_closed();
        }
        if !matches!(state, WatchSessionState::Ended) {
            let reason = common.timers.watchdog().abort().reason();
            common.metrics.ended(reason.unwrap_or(WatchEndReason::ClientClosed.as_str()));
        }
    }
}

impl std::fmt::Debug for WatchSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchSession")
            .field("feed", &self.common.feed.spec.key)
            .field("last_sent_rv", &self.common.last_sent_rv)
            .finish_non_exhaustive()
    }
}
