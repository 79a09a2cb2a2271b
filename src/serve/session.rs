mod clock;
mod end;
mod initial_events;
mod opening;
mod partial_view;
#[cfg(test)]
mod tests;
mod watch_timers;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tokio::time::{Instant, Sleep};

pub(super) use self::opening::{Opening, WatchTerms};

use self::clock::Clock;
use self::initial_events::{InitialEvents, Put};
use self::partial_view::{Bookmark, PartialView, TurnProgress};
use self::watch_timers::{Call, WatchTimers};
use super::admission::AdmissionPlace;
use super::metrics::WatchMetrics;
use super::overdue::Watchdog;
use super::refusals::revoked;
use super::watch_end::WatchEnd;
use crate::auth::GrantStatus;
use crate::cache::{Cursor, FeedState, OpenedWatch, Pull, SiftStep, Snapshot};
use crate::feeds::{FeedHandle, RenderingRefusal};
use crate::kube::{EventType, ResourceVersion, Status};
use crate::listing::Looks;
use crate::wire::{Columns, Object, Refused, Representation};

/// One downstream watch: its place in the feed, its clock, and how it ends. It holds no events of its own.
///
/// Pulled by a sink whenever its client has room; the sink's protocol is none of its business.
pub(super) struct WatchSession {
    lease: FeedHandle,
    cursor: Cursor,
    phase: Phase,
    bookmarks: bool,
    /// Bookmarks are only for versions above this one: what the client was last told, or started from.
    told: ResourceVersion,
    /// Upstream's bookmarks seen so far.
    seen_bookmarks: u64,
    clock: Clock,
    /// Polled when its dog says so.
    alarm: Pin<Box<WatchTimers>>,
    dog: Arc<Watchdog>,
    /// Whom the dog wakes.
    task: Waker,
    /// What the alarm said last, until it has been heeded.
    called: Option<Call>,
    /// One is due once there is nothing else to say.
    is_bookmark_due: bool,
    /// There is nothing to say until its waker is woken.
    is_parked: bool,
    /// The columns of a Table, which the first event carries and no other.
    columns: Option<Columns>,
    metrics: WatchMetrics,
    standing: GrantStatus,
    /// Of a watch that does not show all namespaces.
    part: Option<Box<PartialView>>,
    looks: Looks,
    /// The end waits for the rest of a transaction, until then.
    rest: Option<Pin<Box<Sleep>>>,
    _place: AdmissionPlace,
}

/// What the client gets next.
#[derive(Debug)]
enum Phase {
    /// The state as ADDED events.
    Initial(Box<InitialEvents>),
    /// A state of one object as upstream has just printed it, older than all events.
    Row(Box<Object>),
    Live,
    /// A last frame, then the end.
    Last(Bytes, WatchEnd),
    Ended,
}

impl WatchSession {
    /// Starts the watch. Its clock starts now.
    pub(super) fn new(opening: Opening) -> Self {
        let Opening { permit, place, lease, renderer, opened, namespaces, runs, row, terms, .. } = opening;
        let Opening { drain, looks, metrics, cut, overdue, .. } = opening;
        let (readable, standing) = (permit.part().cloned(), permit.standing());
        let over = terms.timeout_seconds.is_some_and(i64::is_negative);
        let pin = |state: &Snapshot| lease.pin(state, cut.clone(), overdue.state_terms());
        let pin = opened.snapshot.as_ref().filter(|_| !over).map(pin);
        let (part, pin) = match readable {
            Some(readable) => {
                let part = PartialView::new(readable, &opened, namespaces, terms.end_bookmark, pin);
                (Some(Box::new(part)), None)
            }
            None => (None, pin),
        };
        let OpenedWatch { snapshot, cursor } = opened;
        let is_table = matches!(renderer.representation(), Representation::Table(_));
        let columns = is_table.then(|| lease.columns.clone());
        let cursor = cursor.rendered_by(renderer);
        let phase = match snapshot.zip(pin) {
            // Already over when it begins (R-TIMEOUT-1).
            _ if over => {
                metrics.ended(WatchEnd::Timeout);
                Phase::Ended
            }
            // It is told in parts.
            _ if part.is_some() => Phase::Live,
            Some((snapshot, pin)) => {
                let initial = InitialEvents::new(snapshot, pin, terms.end_bookmark);
                Phase::Initial(Box::new(match runs.filter(|_| !is_table) {
                    Some(runs) => initial.in_runs(runs, &permit, &cursor, &lease.reader),
                    None => initial,
                }))
            }
            None => row.map_or(Phase::Live, |row| Phase::Row(Box::new(row))),
        };
        let clock = Clock::new(Instant::now(), terms.timeout_seconds);
        let mut session = Self {
            seen_bookmarks: lease.reader.progress().bookmarks,
            alarm: Box::pin(WatchTimers::new(&drain, &standing, clock.next())),
            dog: Watchdog::new(overdue, cut, clock.deadline(), standing.clone()),
            task: Waker::noop().clone(),
            called: None,
            is_bookmark_due: false,
            is_parked: false,
            clock,
            lease,
            told: cursor.start(),
            cursor,
            phase,
            bookmarks: terms.bookmarks,
            columns,
            metrics,
            standing,
            part,
            looks,
            rest: None,
            _place: place,
        };
        // From now on it is heard, whether or not the watch is ever polled.
        session.set_alarm(session.clock.next());
        if session.is_ended() {
            session.dog.end();
        }
        session
    }

    /// What ends the watch when it is not polled. Held by its sink for as long as what was told is on its way.
    pub(super) fn dog(&self) -> &Arc<Watchdog> {
        &self.dog
    }

    /// Whether all has been said.
    pub(super) fn is_ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    /// Whether there is nothing to say until the waker is woken that it was last polled with. It may be so right after
    /// frames, too: then it need not be polled to hear that there are no more.
    pub(super) fn is_parked(&self) -> bool {
        self.is_parked
    }

    /// The next frames, about `room` bytes of them; `None` when the watch is over.
    pub(super) fn poll_frames(
        &mut self,
        cx: &mut Context<'_>,
        room: usize,
        batch: &mut Vec<Bytes>,
    ) -> Poll<Option<()>> {
        self.is_parked = false;
        loop {
            self.check_grant();
            let mut frames = 0;
            match &self.phase {
                Phase::Ended => return Poll::Ready(None),
                Phase::Last(..) => {
                    if let Phase::Last(frame, end) = std::mem::replace(&mut self.phase, Phase::Ended) {
                        batch.push(frame);
                        self.metrics.ended(end);
                    }
                }
                Phase::Initial(_) => {
                    if let Some(end) = self.heed(cx) {
                        self.end_without_a_word(end);
                        continue;
                    }
                    let _slice = ready!(self.looks.poll(cx));
                    match ready!(self.initial(cx, room, batch)) {
                        Ok(put) => frames = put,
                        Err(refused) => self.underivable(&refused),
                    }
                    // Nothing to say of an empty state; but nobody has asked to be woken yet either.
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
                    let _slice = ready!(self.looks.poll(cx));
                    if let Err(refused) = self.live(cx, room, batch) {
                        self.underivable(&refused);
                    }
                }
            }
            if self.says(frames, batch) {
                return Poll::Ready(Some(()));
            }
            if self.looks.are_used_up() {
                // There is more to look at when others have had their turn.
                continue;
            }
            let waits = self.called(cx).is_none() || self.rest.is_some() && self.lease.reader.is_open(self.told);
            if matches!(self.phase, Phase::Live) && waits {
                self.is_parked = true;
                return Poll::Pending;
            }
        }
    }

    /// Whether there is something in the batch, which is said now: so many frames, or as many as there are pieces.
    fn says(&mut self, frames: usize, batch: &mut [Bytes]) -> bool {
        let Some(first) = batch.first_mut() else { return false };
        if let Some(headed) = self.columns.as_ref().and_then(|columns| columns.put(first)) {
            *first = headed;
            self.columns = None;
        }
        self.metrics.sent(frames.max(batch.len()), batch);
        if self.is_ended() {
            self.dog.end();
        }
        true
    }

    /// Whatever was to come, nothing does once the client may not read it (A4).
    fn check_grant(&mut self) {
        if matches!(self.phase, Phase::Ended | Phase::Last(..)) {
            return;
        }
        if let Some(status) = self.standing.revoked().map(revoked) {
            self.end_with(&status, WatchEnd::Revoked);
        }
    }

    /// A stretch of the initial state; how many frames it is.
    fn initial(&mut self, cx: &mut Context<'_>, room: usize, batch: &mut Vec<Bytes>) -> Poll<Result<usize, Refused>> {
        let Phase::Initial(initial) = &mut self.phase else { return Poll::Ready(Ok(0)) };
        let reader = &self.lease.reader;
        initial.pin.told();
        let places = (room, self.looks.left());
        let mut frames = match ready!(initial.poll_put(cx, &self.cursor, reader, places, batch))? {
            Put::Some(frames) => return Poll::Ready(Ok(frames)),
            Put::All(frames) => frames,
        };
        self.told = initial.snapshot.rv;
        if initial.end_bookmark {
            batch.push(reader.bookmark(initial.snapshot.rv, true, self.cursor.renderer())?);
            frames += 1;
        }
        self.phase = Phase::Live;
        Poll::Ready(Ok(frames))
    }

    /// Events, or a bookmark that is due, or nothing.
    fn live(&mut self, cx: &mut Context<'_>, room: usize, batch: &mut Vec<Bytes>) -> Result<(), Refused> {
        loop {
            if self.turn(cx, room, batch)? {
                return Ok(());
            }
            let step = self.pull(room, Some(cx.waker()), batch);
            if step == SiftStep::More {
                return Ok(());
            }
            if batch.is_empty() && !self.is_settled() {
                continue;
            }
            if let SiftStep::Pulled(pull) = step {
                return self.pulled(pull, batch);
            }
            self.wait();
            return Ok(());
        }
    }

    /// The next event is not to be told yet; nor is where the watch is.
    fn wait(&mut self) {
        self.bookmark_due();
    }

    fn is_settled(&self) -> bool {
        self.part.as_deref().is_none_or(PartialView::is_settled)
    }

    /// What comes or goes with rights. False: there is nothing of the kind.
    fn turn(&mut self, cx: &mut Context<'_>, room: usize, batch: &mut Vec<Bytes>) -> Result<bool, Refused> {
        if let Some(part) = &mut self.part {
            part.notice(cx);
        }
        loop {
            let Self { part: Some(part), cursor, lease, dog, .. } = self else { return Ok(false) };
            let pin = |state: &Snapshot| lease.pin(state, dog.cut().clone(), dog.overdue().state_terms());
            if !part.turns(cursor, pin) {
                return Ok(false);
            }
            match part.pull(&mut self.cursor, (room, self.looks.left()), None, batch) {
                SiftStep::Reached => {}
                SiftStep::Waits => {
                    part.wait();
                    self.wait();
                    return Ok(true);
                }
                SiftStep::More => return Ok(true),
                SiftStep::Pulled(pull) => return self.pulled(pull, batch).map(|()| true),
            }
            let places = (room, self.looks.left());
            if let TurnProgress::All { at, bookmark } = part.tell(&self.cursor, &self.lease.reader, places, batch)? {
                self.told = self.told.max(at);
                let place = self.bookmarks && bookmark == Bookmark::Place;
                if place && !self.lease.reader.is_open(self.told) {
                    batch.push(self.lease.reader.bookmark(self.told, false, self.cursor.renderer())?);
                }
            }
            if !batch.is_empty() || self.looks.are_used_up() {
                return Ok(true);
            }
        }
    }

    fn pull(&mut self, room: usize, waker: Option<&Waker>, batch: &mut Vec<Bytes>) -> SiftStep {
        let places = (room, self.looks.left());
        match &mut self.part {
            Some(part) => part.pull(&mut self.cursor, places, waker, batch),
            None => self.cursor.pull_some(places, waker, batch),
        }
    }

    fn pulled(&mut self, pull: Pull, batch: &mut Vec<Bytes>) -> Result<(), Refused> {
        match pull {
            Pull::Frames { last, applied, caught_up } => {
                self.told = self.told.max(last);
                self.metrics.delivered(applied);
                if caught_up.is_some() {
                    self.looks.begin_anew();
                }
                // Events that come with rights, and bookmarks, are looked for when there are no others.
                self.is_parked = self.part.is_none()
                    && self.rest.is_none()
                    && !self.is_bookmark_due
                    && caught_up.is_some_and(|progress| progress.bookmarks == self.seen_bookmarks);
            }
            Pull::CaughtUp { progress } => {
                self.looks.begin_anew();
                let announced = progress.bookmarks != self.seen_bookmarks;
                self.seen_bookmarks = progress.bookmarks;
                let due = self.bookmark_due();
                if self.bookmarks && (due || announced) && progress.rv > self.told {
                    self.told = progress.rv;
                    batch.push(self.bookmark(progress.rv)?);
                }
            }
            // Its feed is over: the resource is gone, or no longer ours to read. No version was too old.
            Pull::Expired { .. } if matches!(self.lease.reader.state(), FeedState::Ended(_)) => {
                self.phase = Phase::Ended;
                self.metrics.ended(WatchEnd::FeedEnded);
            }
            Pull::Expired { oldest } => {
                let status = Status::too_old(self.told.0, oldest.0);
                self.end_with(&status, WatchEnd::Expired);
            }
            Pull::Refused(refused) => return Err(refused),
        }
        Ok(())
    }

    fn bookmark(&self, rv: ResourceVersion) -> Result<Bytes, Refused> {
        self.lease.reader.bookmark(rv, false, self.cursor.renderer())
    }

    /// An object cannot be written as this client wants it. The watch ends between two events, as watches end every
    /// now and then: the client goes on from the last version it has seen, and from a feed that has the whole object.
    fn underivable(&mut self, refused: &Refused) {
        self.lease.refuse(self.cursor.renderer().representation(), RenderingRefusal::Unrenderable, refused);
        self.phase = Phase::Ended;
        self.metrics.ended(WatchEnd::Underivable);
    }

    /// Whether the watch ends now: its time is up, or the proxy drains.
    fn over(&mut self, cx: &mut Context<'_>) -> bool {
        // It is revoked after it was disproven, so whoever sees the one sees the other.
        let is_revoked = self.cursor.renderer().is_revoked();
        let end = if self.cursor.renderer().is_disproven() {
            // What this client holds may be wrong: going on from here would leave it so.
            let status = Status::too_old(self.told.0, self.lease.reader.progress().rv.0);
            self.end_with(&status, WatchEnd::Underivable);
            return true;
        } else if is_revoked {
            WatchEnd::Underivable
        } else {
            match self.heed(cx) {
                Some(end) => end,
                None => return false,
            }
        };
        if end != WatchEnd::Revoked && self.is_amid(cx) {
            return false;
        }
        match self.last_bookmark(end) {
            Some(bookmark) => self.phase = Phase::Last(bookmark, end),
            None => self.end_without_a_word(end),
        }
        true
    }

    /// What the alarm has said, if the watch ends by it; it is set again if not.
    fn heed(&mut self, cx: &Context<'_>) -> Option<WatchEnd> {
        match self.called(cx)? {
            Call::Time if self.clock.is_over(Instant::now()) => Some(WatchEnd::Timeout),
            Call::Drained => Some(WatchEnd::Drained),
            Call::Revoked => Some(WatchEnd::Revoked),
            Call::Time => {
                self.called = None;
                self.is_bookmark_due = true;
                self.set_alarm(self.clock.deadline());
                None
            }
        }
    }

    /// What the alarm has said that was not heeded yet; it is set.
    fn called(&mut self, cx: &Context<'_>) -> Option<Call> {
        // Who is polled has been looked at by nobody else.
        if self.dog.has_rung(&mut self.task, cx) && self.called.is_none() {
            self.called = self.listen();
        }
        self.called
    }

    /// What the alarm says; its dog hears it if that is nothing yet.
    fn listen(&mut self) -> Option<Call> {
        let dog = Waker::from(self.dog.clone());
        match self.alarm.as_mut().poll(&mut Context::from_waker(&dog)) {
            Poll::Ready(call) => Some(call),
            Poll::Pending => None,
        }
    }

    /// Sets the alarm. If it rings at once, that is heeded when the watch is polled next, which may be never.
    fn set_alarm(&mut self, at: Instant) {
        self.alarm.set_to(at);
        self.called = self.listen();
        if self.called.is_some() {
            Waker::from(self.dog.clone()).wake();
        }
    }

    /// Whether a bookmark is due; if so the next one is scheduled.
    fn bookmark_due(&mut self) -> bool {
        if !std::mem::take(&mut self.is_bookmark_due) {
            return false;
        }
        let is_due = self.clock.bookmark_due(Instant::now());
        self.set_alarm(self.clock.next());
        is_due
    }
}

impl std::fmt::Debug for WatchSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WatchSession")
            .field("feed", &self.lease.spec.key)
            .field("told", &self.told)
            .finish_non_exhaustive()
    }
}
