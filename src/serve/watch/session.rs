mod clock;
mod end;
mod initial_events;
mod opening;
mod partial_view;
mod portion;
mod seen;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake as _, Waker, ready};

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::WaitForCancellationFutureOwned;

pub(crate) use self::opening::{Opening, WatchTerms};

use self::clock::Clock;
use self::end::AwaitedVersion;
use self::initial_events::InitialEvents;
use self::partial_view::PartialView;
use self::portion::Portion;
use crate::cache::{Cursor, FeedState, OpenedWatch, Pull, Snapshot, Stop};
use crate::feeds::{FeedHandle, RenderingRefusal};
use crate::listing::ScanBudget;
use crate::serve::activity::WatchEnd;
use crate::serve::activity::metrics::WatchMetrics;
use crate::serve::limits::{ConcurrencyPermit, Fired, Watchdog};
use crate::serve::response::revoked;
use crate::wire::{Columns, Object, Refused, Representation};
use base::Draining;
use kubeapi::{EventType, ResourceVersion, Status, WatchTimeout};

/// One downstream watch: its position in the feed, its clock, and its end. It buffers no events.
///
/// A sink polls the session whenever its client has room. The session does not depend on the sink's protocol.
pub(crate) struct WatchSession {
    feed: FeedHandle,
    cursor: Cursor,
    phase: Phase,
    bookmarks: bool,
    /// The last version that was sent to the client, or from which the watch started. Bookmarks are sent only for later
    /// versions.
    last_sent_rv: ResourceVersion,
    /// The number of upstream bookmarks seen so far.
    seen_bookmarks: u64,
    clock: Clock,
    watchdog: Arc<Watchdog>,
    /// The future of the permission's end, if the permission can end. It wakes the watchdog.
    _revocation: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Keeps the drain waiting until the watch has ended, even after its request has ended (WebSocket).
    _held: Draining,
    /// The task that the watchdog wakes.
    task: Waker,
    /// The timer that has fired, until the watch has reacted to it.
    fired: Option<Fired>,
    /// Whether to send a bookmark once no events are pending.
    is_bookmark_due: bool,
    /// Whether no frames will come until the waker is woken.
    is_parked: bool,
    /// The columns of a Table, which only the first event carries.
    columns: Option<Columns>,
    metrics: WatchMetrics,
    /// Set for a watch that shows only some namespaces.
    partial: Option<Box<PartialView>>,
    scan_budget: ScanBudget,
    /// Set for a downstream proxy: how often the build that writes the feed's bodies had changed when the watch
    /// started.
    changes: Option<u32>,
    /// The version that the end of the watch waits for: the rest of a transaction, or the newest version.
    rest: Option<AwaitedVersion>,
    _place: ConcurrencyPermit,
}

/// The next frames for the client.
#[derive(Debug)]
enum Phase {
    /// The initial state, as ADDED events.
    Initial(Box<InitialEvents>),
    /// The initial state of one object, which upstream has printed for this watch. It is older than all events.
    Row(Box<Object>),
    Live,
    /// A last frame, and then the end.
    Last(Box<(Bytes, WatchEnd)>),
    Ended,
}

impl WatchSession {
    /// Starts the watch. Its clock has been running since the request arrived.
    pub(crate) fn new(opening: Opening) -> Self {
        let Opening { permit, place, feed, renderer, opened, namespaces, chunks, row, terms, .. } = opening;
        let Opening { received, drain, scan_budget, metrics, cut, slow_readers, .. } = opening;
        let (readable, grant) = (permit.part().cloned(), permit.grant_status());
        let over = WatchTimeout::of(terms.timeout_seconds) == WatchTimeout::Over;
        let pin = |state: &Snapshot| slow_readers.pin(&feed, state, &cut);
        let pin = opened.snapshot.as_ref().filter(|_| !over).map(pin);
        let (partial, pin) = match readable {
            Some(readable) => {
                let partial = PartialView::new(readable, &opened, namespaces, terms.end_bookmark, pin);
                (Some(Box::new(partial)), None)
            }
            None => (None, pin),
        };
        let OpenedWatch { snapshot, cursor } = opened;
        let is_table = matches!(renderer.representation(), Representation::Table(_));
        let columns = is_table.then(|| feed.columns.clone());
        let cursor = cursor.rendered_by(renderer);
        let cursor = if terms.by_proxy { cursor.for_a_proxy() } else { cursor };
        let phase = match snapshot.zip(pin) {
            // The timeout has already expired (R-TIMEOUT-1).
            _ if over => {
                metrics.ended(WatchEnd::Timeout);
                Phase::Ended
            }
            // A partial view sends the initial state in turns.
            _ if partial.is_some() => Phase::Live,
            Some((snapshot, pin)) => {
                let initial = InitialEvents::new(snapshot, pin, terms.end_bookmark);
                Phase::Initial(Box::new(match chunks.filter(|_| !is_table) {
                    Some(chunks) => initial.in_chunks(chunks, &permit, &cursor, &feed.reader),
                    None => initial,
                }))
            }
            None => row.map_or(Phase::Live, |row| Phase::Row(Box::new(row))),
        };
        let clock = Clock::new(received, terms.timeout_seconds, terms.lasts_min);
        let watchdog = Watchdog::new(slow_readers, cut, clock.deadline(), grant, drain.has_started());
        let mut session = Self {
            seen_bookmarks: feed.reader.progress().bookmarks,
            _revocation: revocation(&watchdog),
            watchdog,
            _held: drain.hold(),
            task: Waker::noop().clone(),
            fired: None,
            is_bookmark_due: false,
            is_parked: false,
            clock,
            changes: terms.by_proxy.then(|| Self::begins_for_a_proxy(&feed, cursor.start())),
            feed,
            last_sent_rv: cursor.start(),
            cursor,
            phase,
            bookmarks: terms.bookmarks,
            columns,
            metrics,
            partial,
            scan_budget,
            rest: None,
            _place: place,
        };
        // From here on, timers take effect even if the watch is never polled.
        session.set_timer(session.clock.next());
        if session.is_ended() {
            session.watchdog.end();
        }
        session
    }

    /// Returns the watchdog, which ends the watch if it is not polled. The sink holds it while frames are in flight.
    pub(crate) fn watchdog(&self) -> &Arc<Watchdog> {
        &self.watchdog
    }

    /// Whether all frames were put.
    pub(crate) fn is_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// Whether no frames will come until the waker of the last poll is woken. This can be true right after frames were
    /// put; then another poll would find nothing.
    pub(crate) fn is_parked(&self) -> bool {
        self.is_parked
    }

    fn poll_next(&mut self, cx: &mut Context<'_>, room: usize, batch: &mut Vec<Bytes>) -> Poll<Option<()>> {
        self.is_parked = false;
        loop {
            self.check_grant();
            let mut frames = 0;
            match &self.phase {
                Phase::Ended => return Poll::Ready(None),
                Phase::Last(..) => {
                    if let Phase::Last(last) = std::mem::replace(&mut self.phase, Phase::Ended) {
                        let (frame, end) = *last;
                        batch.push(frame);
                        self.metrics.ended(end);
                    }
                }
                Phase::Initial(_) => {
                    if let Some(end) = self.ended_by_timer(cx) {
                        self.end_silently(end);
                        continue;
                    }
                    let _slice = ready!(self.scan_budget.poll(cx));
                    match ready!(self.initial(cx, room, batch)) {
                        Ok(put) => frames = put,
                        Err(refused) => self.underivable(&refused),
                    }
                    // An empty state has no frames, but no waker was registered yet.
                    if batch.is_empty() {
                        continue;
                    }
                }
                Phase::Row(object) => match self.cursor.renderer().frame(EventType::Added, object.body()) {
                    Ok(frame) => {
                        batch.push(frame);
                        self.phase = Phase::Live;
                    }
                    Err(refused) => self.underivable(&refused),
                },
                Phase::Live => {
                    if self.over(cx) {
                        continue;
                    }
                    let _slice = ready!(self.scan_budget.poll(cx));
                    if let Err(refused) = self.live(cx, room, batch) {
                        self.underivable(&refused);
                    }
                }
            }
            if self.says(frames, batch) {
                return Poll::Ready(Some(()));
            }
            if self.scan_budget.are_used_up() {
                // More events remain to be scanned after other tasks had their turn.
                continue;
            }
            let waits = self.fired(cx).is_none() || self.is_resting();
            if matches!(self.phase, Phase::Live) && waits {
                self.is_parked = true;
                return Poll::Pending;
            }
        }
    }

    /// Completes a batch, unless it is empty. It has `frames` frames, or as many as there are pieces.
    fn says(&mut self, frames: usize, batch: &mut [Bytes]) -> bool {
        let Some(first) = batch.first_mut() else { return false };
        if let Some(headed) = self.columns.as_ref().and_then(|columns| columns.put(first)) {
            *first = headed;
            self.columns = None;
        }
        self.metrics.sent(frames.max(batch.len()), batch);
        if self.is_ended() {
            self.watchdog.end();
        }
        true
    }

    /// Ends the watch if its permission was revoked, even if frames are pending (A4).
    fn check_grant(&mut self) {
        if matches!(self.phase, Phase::Ended | Phase::Last(..)) {
            return;
        }
        if let Some(status) = self.watchdog.grant().revoked().map(revoked) {
            self.end_with(&status, WatchEnd::Revoked);
        }
    }

    /// Puts a portion of the initial state. Returns the number of frames.
    fn initial(&mut self, cx: &mut Context<'_>, room: usize, batch: &mut Vec<Bytes>) -> Poll<Result<usize, Refused>> {
        let Phase::Initial(initial) = &mut self.phase else { return Poll::Ready(Ok(0)) };
        let reader = &self.feed.reader;
        initial.pin.progressed();
        let places = (room, self.scan_budget.left());
        let (mut frames, portion) = ready!(initial.poll_put(cx, &self.cursor, reader, places, batch))?;
        if portion == Portion::More {
            return Poll::Ready(Ok(frames));
        }
        self.last_sent_rv = initial.snapshot.rv;
        if initial.end_bookmark {
            batch.push(reader.bookmark(initial.snapshot.rv, true, self.cursor.renderer())?);
            frames += 1;
        }
        self.phase = Phase::Live;
        Poll::Ready(Ok(frames))
    }

    /// Puts events, or a bookmark that is due, or nothing.
    fn live(&mut self, cx: &mut Context<'_>, room: usize, batch: &mut Vec<Bytes>) -> Result<(), Refused> {
        loop {
            if self.turn(cx, room, batch)? {
                return Ok(());
            }
            let pull = self.pull(room, Some(cx.waker()), batch);
            if pull != Pull::Stopped(Stop::LooksSpent) && batch.is_empty() && !self.is_settled() {
                continue;
            }
            return self.pulled(pull, batch);
        }
    }

    fn is_settled(&self) -> bool {
        self.partial.as_deref().is_none_or(PartialView::is_settled)
    }

    /// Puts the frames of namespaces whose permission has changed. Returns false if there are none.
    fn turn(&mut self, cx: &mut Context<'_>, room: usize, batch: &mut Vec<Bytes>) -> Result<bool, Refused> {
        if let Some(partial) = &mut self.partial {
            partial.notice(cx);
        }
        loop {
            let Self { partial: Some(partial), cursor, feed, watchdog, .. } = self else { return Ok(false) };
            let pin = |state: &Snapshot| watchdog.slow_readers().pin(feed, state, watchdog.cut());
            if !partial.turns(cursor, pin) {
                return Ok(false);
            }
            match partial.pull(&mut self.cursor, (room, self.scan_budget.left()), None, batch) {
                Pull::Stopped(Stop::AtMark) => {}
                pull => {
                    if pull == Pull::Stopped(Stop::Undecided) {
                        partial.wait();
                    }
                    return self.pulled(pull, batch).map(|()| true);
                }
            }
            let places = (room, self.scan_budget.left());
            if let Portion::Last(end) = partial.tell(&self.cursor, &self.feed.reader, places, batch)? {
                self.last_sent_rv = self.last_sent_rv.max(end.at);
                if self.bookmarks && end.told_older && !self.feed.reader.is_open(self.last_sent_rv) {
                    batch.push(self.feed.reader.bookmark(self.last_sent_rv, false, self.cursor.renderer())?);
                }
            }
            if !batch.is_empty() || self.scan_budget.are_used_up() {
                return Ok(true);
            }
        }
    }

    fn pull(&mut self, room: usize, waker: Option<&Waker>, batch: &mut Vec<Bytes>) -> Pull {
        let places = (room, self.scan_budget.left());
        match &mut self.partial {
            Some(partial) => partial.pull(&mut self.cursor, places, waker, batch),
            None => self.cursor.pull_some(places, waker, batch),
        }
    }

    fn pulled(&mut self, pull: Pull, batch: &mut Vec<Bytes>) -> Result<(), Refused> {
        match pull {
            Pull::Frames { last, applied, caught_up } => {
                self.last_sent_rv = self.last_sent_rv.max(last);
                self.metrics.delivered(applied);
                if caught_up.is_some() {
                    self.scan_budget.begin_anew();
                }
                // Changes of permissions and bookmarks are checked only when no events are pending.
                self.is_parked = self.partial.is_none()
                    && !self.has_another_writer()
                    && self.rest.is_none()
                    && !self.is_bookmark_due
                    && caught_up.is_some_and(|progress| progress.bookmarks == self.seen_bookmarks);
            }
            Pull::CaughtUp { progress } => {
                self.scan_budget.begin_anew();
                if self.ends_for_another_writer(progress.rv) {
                    return Ok(());
                }
                let announced = progress.bookmarks != self.seen_bookmarks;
                self.seen_bookmarks = progress.bookmarks;
                let due = self.bookmark_due();
                // Like upstream, repeats the last version when a bookmark is due, because a client may consider a
                // silent stream dead. A disconnected feed cannot confirm the version, so it sends none.
                let again = due && progress.rv == self.last_sent_rv && self.feed.reader.state() == FeedState::Live;
                if self.bookmarks && (again || (due || announced) && progress.rv > self.last_sent_rv) {
                    self.last_sent_rv = progress.rv;
                    batch.push(self.bookmark(progress.rv)?);
                }
            }
            // The feed has ended: the resource is gone, or the proxy may no longer read it. This is not an expired
            // version.
            Pull::Expired { .. } if matches!(self.feed.reader.state(), FeedState::Ended(_)) => {
                self.phase = Phase::Ended;
                self.metrics.ended(WatchEnd::FeedEnded);
            }
            Pull::Expired { oldest } => {
                let status = Status::too_old(self.last_sent_rv.0, oldest.0);
                self.end_with(&status, WatchEnd::Expired);
            }
            Pull::Refused(refused) => return Err(refused),
            // The next event must wait, and so must a bookmark after it.
            Pull::Stopped(Stop::AtMark | Stop::Undecided) => {
                self.bookmark_due();
            }
            Pull::Stopped(Stop::LooksSpent) => {}
        }
        Ok(())
    }

    fn bookmark(&self, rv: ResourceVersion) -> Result<Bytes, Refused> {
        self.feed.reader.bookmark(rv, false, self.cursor.renderer())
    }

    /// Ends the watch because an object cannot be rendered for this client. The watch ends between two events, as
    /// watches may. The client resumes after the last version it has seen, from a feed that has the whole object.
    fn underivable(&mut self, refused: &Refused) {
        self.feed.refuse(self.cursor.renderer().representation(), RenderingRefusal::Unrenderable, refused);
        self.phase = Phase::Ended;
        self.metrics.ended(WatchEnd::NotDerivable);
    }

    /// Ends the watch if its timeout has expired or the proxy drains. Returns whether it has ended.
    fn over(&mut self, cx: &mut Context<'_>) -> bool {
        // A renderer is disproven before it is revoked, so this order of loads never misses a disproof.
        let is_revoked = self.cursor.renderer().is_revoked();
        let end = if self.cursor.renderer().is_disproven() {
            // What this client holds may be wrong, and would stay so if it went on from here.
            let status = Status::too_old(self.last_sent_rv.0, self.feed.reader.progress().rv.0);
            self.end_with(&status, WatchEnd::NotDerivable);
            return true;
        } else if is_revoked {
            WatchEnd::NotDerivable
        } else {
            match self.ended_by_timer(cx) {
                Some(end) => end,
                None => return false,
            }
        };
        if end != WatchEnd::Revoked && self.is_amid(end, cx) {
            return false;
        }
        match self.last_bookmark(end) {
            Some(bookmark) => self.phase = Phase::Last(Box::new((bookmark, end))),
            None => self.end_silently(end),
        }
        true
    }

    /// Returns why a timer ends the watch, if it does. Otherwise, the timer is set again.
    fn ended_by_timer(&mut self, cx: &Context<'_>) -> Option<WatchEnd> {
        match self.fired(cx)? {
            Fired::Time if self.clock.is_over(Instant::now()) => Some(WatchEnd::Timeout),
            Fired::Drained => Some(WatchEnd::Drained),
            Fired::Revoked => Some(WatchEnd::Revoked),
            Fired::Time => {
                self.fired = None;
                self.is_bookmark_due = true;
                self.set_timer(self.clock.deadline());
                None
            }
        }
    }

    /// Returns the timer that has fired and to which the watch has not reacted yet.
    fn fired(&mut self, cx: &Context<'_>) -> Option<Fired> {
        if self.watchdog.has_fired(&mut self.task, cx) && self.fired.is_none() {
            self.fired = self.watchdog.due();
        }
        self.fired
    }

    /// Sets the timer. If it fires at once, the watch is woken, and it reacts when it is polled next, which may be
    /// never.
    fn set_timer(&mut self, at: Instant) {
        self.watchdog.set_alarm(at);
        self.fired = self.watchdog.due();
        if self.fired.is_some() {
            self.watchdog.wake_by_ref();
        }
    }

    /// Whether a bookmark is due. If so, the next one is scheduled.
    fn bookmark_due(&mut self) -> bool {
        if !std::mem::take(&mut self.is_bookmark_due) {
            return false;
        }
        let is_due = self.clock.bookmark_due(Instant::now());
        self.set_timer(self.clock.next());
        is_due
    }
}

/// Returns the future of the permission's end, which wakes the watchdog from now on.
fn revocation(watchdog: &Arc<Watchdog>) -> Option<Pin<Box<WaitForCancellationFutureOwned>>> {
    let mut over = Box::pin(watchdog.grant().over()?.cancelled_owned());
    let watchdog = Waker::from(watchdog.clone());
    // If the permission has already ended, the next poll checks it first.
    let _ = over.as_mut().poll(&mut Context::from_waker(&watchdog));
    Some(over)
}

impl std::fmt::Debug for WatchSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchSession")
            .field("feed", &self.feed.spec.key)
            .field("told", &self.last_sent_rv)
            .finish_non_exhaustive()
    }
}
