mod alarm;
mod clock;
mod initial;
mod part;
#[cfg(test)]
mod tests;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use tokio::time::Instant;

use self::alarm::{Alarm, Call};
use self::clock::Clock;
use self::initial::{Initial, Put};
use self::part::{Bookmark, Part, Told};
use super::admission::Place;
use super::metrics::WatchMetrics;
use crate::auth::{Permit, Standing};
use crate::base::{DrainWatch, Rarely};
use crate::cache::{Cursor, Lease, Opened, Pull, Reason, Run, State, Step};
use crate::kube::{EventType, ResourceVersion, Status};
use crate::wire::{Columns, Object, Refused, Renderer, Representation};

/// One downstream watch: its place in the feed, its clock, and how it ends. It holds no events of its own.
///
/// Pulled by a sink whenever its client has room; the sink's protocol is none of its business.
pub(super) struct WatchSession {
    lease: Lease,
    cursor: Cursor,
    phase: Phase,
    bookmarks: bool,
    /// Bookmarks are only for versions above this one: what the client was last told, or started from.
    told: ResourceVersion,
    /// Upstream's bookmarks seen so far.
    seen_bookmarks: u64,
    clock: Clock,
    alarm: Rarely<Alarm>,
    /// What the alarm said last, until it has been heeded.
    called: Option<Call>,
    /// One is due once there is nothing else to say.
    is_bookmark_due: bool,
    /// There is nothing to say until its waker is woken.
    is_parked: bool,
    /// Of a Table: for the first event, and for that one alone.
    columns: Option<Columns>,
    metrics: WatchMetrics,
    standing: Standing,
    /// Of a watch that does not show all namespaces.
    part: Option<Box<Part>>,
    _place: Place,
}

/// What the client gets next.
#[derive(Debug)]
enum Phase {
    /// The state as ADDED events.
    Initial(Box<Initial>),
    /// A state of one object as upstream has just printed it, older than all events.
    Row(Box<Object>),
    Live,
    /// A last frame, then the end.
    Last(Bytes, End),
    Ended,
}

/// Why a watch is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// Its time was up.
    Timeout,
    /// Its position left the ring, or its feed started a new history: 410.
    Expired,
    /// The state it asked for did not come: 504.
    TooLarge,
    /// Its feed is over.
    FeedEnded,
    /// What it shows can no longer be derived: the client goes on from another feed.
    Underivable,
    /// Its client may not read any more: 403 or 401.
    Revoked,
    /// The proxy is going away.
    Drained,
    /// The client went away.
    Closed,
}

/// Everything that a watch is made of.
pub(super) struct Opening {
    pub(super) permit: Permit,
    pub(super) place: Place,
    pub(super) lease: Lease,
    pub(super) renderer: Renderer,
    pub(super) opened: Opened,
    /// Of the state that the watch begins with, for a sink that takes several frames in one.
    pub(super) runs: Option<Arc<[Run]>>,
    /// A state of one object, as a Table has it.
    pub(super) row: Option<Object>,
    pub(super) terms: Terms,
    pub(super) drain: DrainWatch,
    pub(super) metrics: WatchMetrics,
}

/// What the client asked for.
pub(super) struct Terms {
    pub(super) bookmarks: bool,
    pub(super) end_bookmark: bool,
    pub(super) timeout_seconds: Option<i64>,
}

impl WatchSession {
    /// Starts the watch. Its clock starts now.
    pub(super) fn new(opening: Opening) -> Self {
        let Opening { permit, place, lease, renderer, opened, runs, row, terms, drain, metrics } = opening;
        let (readable, standing) = (permit.part().cloned(), permit.standing());
        let part = |readable| Box::new(Part::new(readable, &opened, opened.cursor.view(), terms.end_bookmark));
        let part = readable.map(part);
        let Opened { snapshot, cursor } = opened;
        let is_table = matches!(renderer.representation(), Representation::Table(_));
        let columns = is_table.then(|| lease.columns.clone());
        let cursor = cursor.rendered_by(renderer);
        let over = terms.timeout_seconds.is_some_and(i64::is_negative);
        let phase = match snapshot {
            // Already over when it begins (semantics.md §2.7).
            _ if over => {
                metrics.ended(End::Timeout);
                Phase::Ended
            }
            // It is told in parts.
            Some(_) if part.is_some() => Phase::Live,
            Some(snapshot) => {
                let initial = Initial::new(snapshot, terms.end_bookmark);
                Phase::Initial(Box::new(match runs.filter(|_| !is_table) {
                    Some(runs) => initial.in_runs(runs, &permit, &cursor, &lease.reader),
                    None => initial,
                }))
            }
            None => row.map_or(Phase::Live, |row| Phase::Row(Box::new(row))),
        };
        let clock = Clock::new(Instant::now(), terms.timeout_seconds);
        Self {
            seen_bookmarks: lease.reader.progress().bookmarks,
            alarm: Rarely::new(Alarm::new(drain, &standing, clock.next())),
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
            _place: place,
        }
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
                    if let Err(refused) = self.live(cx, room, batch) {
                        self.underivable(&refused);
                    }
                }
            }
            if let Some(first) = batch.first_mut() {
                if let Some(headed) = self.columns.as_ref().and_then(|columns| columns.put(first)) {
                    *first = headed;
                    self.columns = None;
                }
                self.metrics.sent(frames.max(batch.len()), batch);
                return Poll::Ready(Some(()));
            }
            if matches!(self.phase, Phase::Live) && self.called(cx).is_none() {
                self.is_parked = true;
                return Poll::Pending;
            }
        }
    }

    /// Whatever was to come, nothing does once the client may not read it (reliability.md A4).
    fn check_grant(&mut self) {
        if matches!(self.phase, Phase::Ended | Phase::Last(..)) {
            return;
        }
        if let Some(status) = self.standing.revoked().cloned() {
            self.end_with(&status, End::Revoked);
        }
    }

    /// A stretch of the initial state; how many frames it is.
    fn initial(&mut self, cx: &Context<'_>, room: usize, batch: &mut Vec<Bytes>) -> Poll<Result<usize, Refused>> {
        let Phase::Initial(initial) = &mut self.phase else { return Poll::Ready(Ok(0)) };
        let reader = &self.lease.reader;
        let mut frames = match ready!(initial.poll_put(cx, &self.cursor, reader, room, batch))? {
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
            if batch.is_empty() && !self.is_settled() {
                continue;
            }
            if let Step::Pulled(pull) = step {
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
        self.part.as_deref().is_none_or(Part::is_settled)
    }

    /// What comes or goes with rights. False: there is nothing of the kind.
    fn turn(&mut self, cx: &mut Context<'_>, room: usize, batch: &mut Vec<Bytes>) -> Result<bool, Refused> {
        if let Some(part) = &mut self.part {
            part.notice(cx);
        }
        loop {
            let Some(part) = &mut self.part else { return Ok(false) };
            if !part.turns(&self.cursor) {
                return Ok(false);
            }
            match part.pull(&mut self.cursor, room, None, batch) {
                Step::Reached => {}
                Step::Waits => {
                    self.wait();
                    return Ok(true);
                }
                Step::Pulled(pull) => return self.pulled(pull, batch).map(|()| true),
            }
            if let Told::All { at, bookmark } = part.tell(&self.cursor, &self.lease.reader, room, batch)? {
                self.told = self.told.max(at);
                if self.bookmarks && bookmark == Bookmark::Place {
                    batch.push(self.lease.reader.bookmark(self.told, false, self.cursor.renderer())?);
                }
            }
            if !batch.is_empty() {
                return Ok(true);
            }
        }
    }

    fn pull(&mut self, room: usize, waker: Option<&Waker>, batch: &mut Vec<Bytes>) -> Step {
        match &mut self.part {
            Some(part) => part.pull(&mut self.cursor, room, waker, batch),
            None => Step::Pulled(self.cursor.pull(room, waker, batch)),
        }
    }

    fn pulled(&mut self, pull: Pull, batch: &mut Vec<Bytes>) -> Result<(), Refused> {
        match pull {
            Pull::Frames { last, applied, caught_up } => {
                self.told = self.told.max(last);
                self.metrics.delivered(applied);
                // Events that come with rights, and bookmarks, are looked for when there are no others.
                self.is_parked = self.part.is_none()
                    && !self.is_bookmark_due
                    && caught_up.is_some_and(|progress| progress.bookmarks == self.seen_bookmarks);
            }
            Pull::CaughtUp { progress } => {
                let announced = progress.bookmarks != self.seen_bookmarks;
                self.seen_bookmarks = progress.bookmarks;
                let due = self.bookmark_due();
                if self.bookmarks && (due || announced) && progress.rv > self.told {
                    self.told = progress.rv;
                    batch.push(self.bookmark(progress.rv)?);
                }
            }
            // Its feed is over: the resource is gone, or no longer ours to read. No version was too old.
            Pull::Expired { .. } if matches!(self.lease.reader.state(), State::Ended(_)) => {
                self.phase = Phase::Ended;
                self.metrics.ended(End::FeedEnded);
            }
            Pull::Expired { oldest } => {
                let status = Status::too_old(self.told.0, oldest.0);
                self.end_with(&status, End::Expired);
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
        self.lease.refuse(self.cursor.renderer().representation(), Reason::Unrenderable, refused);
        self.phase = Phase::Ended;
        self.metrics.ended(End::Underivable);
    }

    /// Whether the watch ends now: its time is up, or the proxy drains.
    fn over(&mut self, cx: &mut Context<'_>) -> bool {
        // It is revoked after it was disproven, so whoever sees the one sees the other.
        let is_revoked = self.cursor.renderer().is_revoked();
        let end = if self.cursor.renderer().is_disproven() {
            // What this client holds may be wrong: going on from here would leave it so.
            let status = Status::too_old(self.told.0, self.lease.reader.progress().rv.0);
            self.end_with(&status, End::Underivable);
            return true;
        } else if is_revoked {
            End::Underivable
        } else {
            match self.called(cx) {
                Some(Call::Time) if self.clock.is_over(Instant::now()) => End::Timeout,
                Some(Call::Drained) => End::Drained,
                Some(Call::Revoked) => {
                    // The grant is looked at next, and says why.
                    self.called = None;
                    return true;
                }
                Some(Call::Time) => {
                    self.called = None;
                    self.is_bookmark_due = true;
                    self.alarm.inner().set_to(self.clock.deadline());
                    return false;
                }
                None => return false,
            }
        };
        self.phase = Phase::Ended;
        match self.last_bookmark(end) {
            Some(bookmark) => self.phase = Phase::Last(bookmark, end),
            None => self.metrics.ended(end),
        }
        true
    }

    /// A bookmark for a client that is sent away: it resumes here or at another replica without a list.
    fn last_bookmark(&mut self, end: End) -> Option<Bytes> {
        if end != End::Drained || !self.bookmarks {
            return None;
        }
        match self.pull(0, None, &mut Vec::new()) {
            _ if !self.is_settled() => None,
            Step::Pulled(Pull::CaughtUp { progress }) if progress.rv > self.told => self.bookmark(progress.rv).ok(),
            _ => None,
        }
    }

    /// What the alarm has said that was not heeded yet; it is set.
    fn called(&mut self, cx: &mut Context<'_>) -> Option<Call> {
        if self.called.is_none()
            && let Poll::Ready(call) = Pin::new(&mut self.alarm).poll(cx)
        {
            self.called = Some(call);
        }
        self.called
    }

    /// Whether a bookmark is due; if so the next one is scheduled.
    fn bookmark_due(&mut self) -> bool {
        if !std::mem::take(&mut self.is_bookmark_due) {
            return false;
        }
        let is_due = self.clock.bookmark_due(Instant::now());
        self.alarm.inner().set_to(self.clock.next());
        is_due
    }

    /// Ends the watch with an ERROR event. The version asked for decides nothing any more.
    pub(super) fn end_with(&mut self, status: &Status, end: End) {
        if matches!(self.phase, Phase::Ended) {
            return;
        }
        let envelope = self.cursor.renderer().envelope();
        let frame = envelope.error_frame(&status.to_event_json(), &status.to_protobuf());
        self.phase = Phase::Last(frame, end);
    }
}

impl Drop for WatchSession {
    fn drop(&mut self) {
        if !matches!(self.phase, Phase::Ended) {
            self.metrics.ended(End::Closed);
        }
    }
}

impl End {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Expired => "expired",
            Self::TooLarge => "too_large",
            Self::FeedEnded => "feed_ended",
            Self::Underivable => "underivable",
            Self::Revoked => "revoked",
            Self::Drained => "drained",
            Self::Closed => "closed",
        }
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
