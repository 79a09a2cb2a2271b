//! Serves one WATCH: holds a position in the ring, and pulls from there whenever the connection can take more.

mod frames;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::sync::broadcast;
use tokio::time::{Instant, sleep, sleep_until};

use super::counts::OpenWatchCountGuard;
use super::fault_switches::{FaultAction, FaultCommand, WatchStall};
use super::kinds::KINDS;
use super::response_form::ResponseForm;
use super::selector::ObjectSelector;
use super::shared::DemoState;
use super::status::DemoStatus;
use super::store::{ObjectMap, StoreEvent, StoreEventType, frame};
use super::table::IncludeObject;

use frames::seen_as;
use tokio::sync::watch;

/// The size up to which objects are written together when a watch begins with the initial objects.
const BATCH_BYTES: usize = 64 * 1024;
const BATCH_EVENTS_MAX: usize = 64;
/// The time before its deadline at which a watch gets a last bookmark.
const LAST_BOOKMARK: Duration = Duration::from_secs(2);
/// The pause before a stream is broken, so that earlier output is sent first.
const BEFORE_CUT: Duration = Duration::from_millis(10);

/// A validated request for a watch.
#[derive(Debug)]
pub(crate) struct ValidatedWatchRequest {
    pub(crate) kind: usize,
    pub(crate) selector: ObjectSelector,
    pub(crate) form: ResponseForm,
    pub(crate) include: IncludeObject,
    pub(crate) bookmarks: bool,
    pub(crate) start: WatchStartPoint,
    pub(crate) timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WatchStartPoint {
    /// The watch starts with all objects at a revision of at least `rv`, then a bookmark that marks their end if
    /// `mark_end` is set. If `any` is set, the objects may come from a stale cache.
    Initial { rv: u64, any: bool, mark_end: bool },
    /// The watch starts with the events after this revision.
    After(u64),
    /// The watch starts with the events from now on.
    Now,
}

#[derive(Debug)]
enum DemoWatchPhase {
    Opening,
    Replaying {
        objects: ObjectMap,
        at: usize,
    },
    Live,
    /// Everything before the break of the stream was sent; the break follows.
    Breaking,
    Over,
}

pub(crate) struct DemoWatch {
    plan: ValidatedWatchRequest,
    shared: Arc<DemoState>,
    phase: DemoWatchPhase,
    /// The ring position to pull from next.
    position: u64,
    /// The revision that the watch began at. Events and bookmarks up to it are not sent.
    after: u64,
    columns_sent: bool,
    last_frame: Option<Bytes>,
    /// The revision of the last event that was sent.
    last_sent: Option<u64>,
    stall: watch::Receiver<WatchStall>,
    /// The last stall order that this watch has received, with the number of events that it may still send.
    stalled: WatchStall,
    /// The bytes that were ready when the watch was silenced. They are sent first when the watch may send again.
    kept_back: Option<Bytes>,
    deadline: Instant,
    next_bookmark: Instant,
    changed: watch::Receiver<u64>,
    hushed: watch::Receiver<bool>,
    orders: broadcast::Receiver<FaultCommand>,
    _open: OpenWatchCountGuard,
}

/// The error of a stream that a test breaks. The HTTP layer turns it into a reset.
#[derive(Debug)]
pub(crate) struct BrokenWatchError;

impl fmt::Display for BrokenWatchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cut by the test")
    }
}

impl std::error::Error for BrokenWatchError {}

impl DemoWatch {
    pub(crate) fn new(plan: ValidatedWatchRequest, shared: Arc<DemoState>) -> Self {
        let now = Instant::now();
        let deadline = now + plan.timeout;
        Self {
            phase: DemoWatchPhase::Opening,
            position: 0,
            after: 0,
            columns_sent: false,
            last_frame: None,
            last_sent: None,
            stalled: WatchStall { after_events: None, ..*shared.faults.stall().borrow() },
            stall: shared.faults.stall(),
            kept_back: None,
            deadline,
            next_bookmark: next_bookmark(now, deadline, shared.settings.bookmark_period),
            changed: shared.store.subscribe(plan.kind),
            hushed: shared.faults.hushed(),
            orders: shared.faults.orders(),
            _open: shared.counts.open_watch(plan.kind),
            plan,
            shared,
        }
    }

    /// Returns the next bytes to send; `None` ends the stream cleanly.
    pub(crate) async fn next(&mut self) -> Option<Result<Bytes, BrokenWatchError>> {
        loop {
            if *self.hushed.borrow_and_update() {
                let stopping = self.shared.stopping.cancelled();
                tokio::select! {
                    biased;
                    _ = self.hushed.changed() => continue,
                    () = stopping => return None,
                }
            }
            if let Some(chunk) = self.kept_back.take() {
                return Some(Ok(chunk));
            }
            let chunk = match &mut self.phase {
                DemoWatchPhase::Opening => self.open().await,
                DemoWatchPhase::Replaying { objects, at } => {
                    let (objects, from) = (objects.clone(), *at);
                    Some(self.replay(&objects, from))
                }
                DemoWatchPhase::Live => match self.pull() {
                    Some(events) if events.is_empty() && matches!(self.phase, DemoWatchPhase::Live) => {
                        self.idle().await
                    }
                    other => other,
                },
                DemoWatchPhase::Breaking => {
                    sleep(BEFORE_CUT).await;
                    return Some(Err(BrokenWatchError));
                }
                DemoWatchPhase::Over => return None,
            };
            match chunk {
                Some(bytes) if bytes.is_empty() => {}
                Some(bytes) if *self.hushed.borrow() => self.kept_back = Some(bytes),
                Some(bytes) => return Some(Ok(bytes)),
                None => return None,
            }
        }
    }

    async fn open(&mut self) -> Option<Bytes> {
        let (store, kind) = (&self.shared.store, self.plan.kind);
        if self.plan.timeout.is_zero() {
            return None;
        }
        match self.plan.start {
            WatchStartPoint::Initial { rv, any, .. } => {
                if let Err(status) = store.reach(rv, self.shared.settings.future_wait).await {
                    return Some(self.fail(&status));
                }
                let (mut objects, mut revision, next) = store.now(kind);
                if let Some(old) = self.shared.faults.cached_at().filter(|_| any) {
                    (objects, revision) = (store.at(kind, old).unwrap_or_default(), old);
                }
                // Only a list of a selection may end with an old version. The proxy requests a selection that matches
                // nothing where it needs only the version.
                let selective = self.plan.selector.is_selective();
                let version = if selective { self.shared.faults.reported_of(revision) } else { revision };
                (self.position, self.after) = (next, version);
                self.phase = DemoWatchPhase::Replaying { objects, at: 0 };
            }
            WatchStartPoint::After(rv) => match store.since(kind, rv) {
                Ok(position) => {
                    (self.position, self.after) = (position, rv);
                    self.phase = DemoWatchPhase::Live;
                }
                Err(status) => return Some(self.fail(&status)),
            },
            WatchStartPoint::Now => {
                let (_, revision, next) = store.now(kind);
                (self.position, self.after) = (next, revision);
                self.phase = DemoWatchPhase::Live;
            }
        }
        Some(Bytes::new())
    }

    /// Writes a refusal as an ERROR event, because the response has already begun. It is the last event.
    fn fail(&mut self, status: &DemoStatus) -> Bytes {
        self.phase = DemoWatchPhase::Over;
        frame("ERROR", status.to_json().as_bytes())
    }

    fn replay(&mut self, objects: &ObjectMap, from: usize) -> Bytes {
        let mut out = BytesMut::new();
        let mut at = from;
        while out.len() < BATCH_BYTES && at < objects.len() {
            let object = &objects[at];
            at += 1;
            if self.plan.selector.matches(object) {
                let line = self.line(StoreEventType::Added, object, object.meta.rv, None);
                out.extend_from_slice(&line);
            }
        }
        self.phase = DemoWatchPhase::Replaying { objects: objects.clone(), at };
        if at == objects.len() {
            self.phase = DemoWatchPhase::Live;
            if matches!(self.plan.start, WatchStartPoint::Initial { mark_end: true, .. }) {
                let line = self.bookmark_line(self.after, true);
                out.extend_from_slice(&line);
            }
        }
        self.end_if_unencodable(out.freeze())
    }

    /// Returns the lines of new events; empty if there are none, `None` if the ring no longer holds their position.
    fn pull(&mut self) -> Option<Bytes> {
        loop {
            let max = self.may_send();
            let pulled = self.shared.store.pull(self.plan.kind, self.position, max)?;
            if let Some(left) = &mut self.stalled.after_events {
                *left -= pulled.events.len();
            }
            if pulled.events.is_empty() {
                return Some(Bytes::new());
            }
            self.position = pulled.next;
            let mut lines = Vec::with_capacity(pulled.events.len());
            let after = self.after;
            let shared = self.shared.clone();
            let is_sent = |event: &&Arc<StoreEvent>| event.rv > after && !shared.faults.is_lost(event.rv);
            for event in pulled.events.iter().filter(is_sent) {
                if let Some(as_type) = seen_as(&self.plan.selector, event)
                    && let Some(object) = event.subject(as_type)
                {
                    let is_hollow = as_type == StoreEventType::Deleted && self.shared.faults.is_next_deletion_hollow();
                    let line = self.line(as_type, object, event.rv, Some(event));
                    lines.push(if is_hollow { as_type.frame(b"null") } else { line });
                }
            }
            let Some(last) = lines.last() else { continue };
            self.last_frame = Some(last.clone());
            self.last_sent = pulled.events.last().map(|event| event.rv);
            let chunk = if lines.len() == 1 { lines.swap_remove(0) } else { Bytes::from(lines.concat()) };
            return Some(self.end_if_unencodable(chunk));
        }
    }

    /// Returns how many events may be sent now.
    fn may_send(&mut self) -> usize {
        let stall = *self.stall.borrow_and_update();
        if stall.ordered > self.stalled.ordered {
            self.stalled = stall;
        }
        if stall.after_events.is_none() {
            self.stalled.after_events = None;
        }
        self.stalled.after_events.unwrap_or(BATCH_EVENTS_MAX).min(BATCH_EVENTS_MAX)
    }

    /// Ends a watch that requests `PartialObjectMetadataList` at its first event, as the apiserver does, because an
    /// event cannot have that form.
    fn end_if_unencodable(&mut self, chunk: Bytes) -> Bytes {
        if self.plan.form == (ResponseForm::Partial { list: true }) && !chunk.is_empty() {
            self.phase = DemoWatchPhase::Over;
            return Bytes::new();
        }
        chunk
    }

    /// Waits for the next event, bookmark, order or end, once everything was sent.
    async fn idle(&mut self) -> Option<Bytes> {
        let stopping = self.shared.stopping.clone();
        tokio::select! {
            biased;
            () = stopping.cancelled() => None,
            _ = self.changed.changed() => Some(Bytes::new()),
            _ = self.hushed.changed() => Some(Bytes::new()),
            _ = self.stall.changed() => Some(Bytes::new()),
            order = self.orders.recv() => self.obey(order.ok()),
            () = sleep_until(self.deadline) => None,
            () = sleep_until(self.next_bookmark), if self.plan.bookmarks => {
                let period = self.shared.settings.bookmark_period;
                self.next_bookmark = next_bookmark(Instant::now(), self.deadline, period);
                Some(if KINDS[self.plan.kind].cached { self.bookmark() } else { Bytes::new() })
            }
        }
    }

    /// Returns a bookmark for everything that was sent; empty if its version is not new, or if events must be sent
    /// first.
    fn bookmark(&mut self) -> Bytes {
        match self.shared.store.pull(self.plan.kind, self.position, 1) {
            _ if self.stalled.after_events == Some(0) => Bytes::new(),
            Some(pulled) if pulled.events.is_empty() && pulled.revision > self.after && self.plan.bookmarks => {
                self.bookmark_line(pulled.revision, false)
            }
            _ => Bytes::new(),
        }
    }

    fn obey(&mut self, order: Option<FaultCommand>) -> Option<Bytes> {
        let Some(order) = order.filter(|order| order.kind.is_none_or(|kind| kind == self.plan.kind)) else {
            return Some(Bytes::new());
        };
        Some(match order.act {
            FaultAction::Bookmark => self.bookmark(),
            FaultAction::BookmarkAtLast => match self.last_sent {
                Some(revision) if self.plan.bookmarks => self.bookmark_line(revision, false),
                _ => Bytes::new(),
            },
            FaultAction::End => return None,
            FaultAction::Reset => {
                self.phase = DemoWatchPhase::Breaking;
                Bytes::new()
            }
            FaultAction::BreakFrame { after_bytes } => {
                self.phase = DemoWatchPhase::Breaking;
                let whole = self.made_up_frame();
                whole.slice(..after_bytes.min(whole.len() - 1))
            }
            FaultAction::TearFrame { after_bytes } => {
                self.phase = DemoWatchPhase::Over;
                let whole = self.made_up_frame();
                whole.slice(..after_bytes.min(whole.len() - 1))
            }
            FaultAction::Malformed => Bytes::from_static(b"{\"type\":\"ADDED\",\"object\":{\"kind\":\"Pod\",oops}\n"),
            FaultAction::Duplicate => self.last_frame.clone().unwrap_or_default(),
            FaultAction::Regress => {
                self.any_object().map(|object| StoreEventType::Modified.frame(&object.restamped(1))).unwrap_or_default()
            }
        })
    }
}

/// Returns when the next bookmark is due: one each period, and one shortly before the deadline.
fn next_bookmark(now: Instant, deadline: Instant, period: Duration) -> Instant {
    let periodic = now + period;
    match deadline.checked_sub(LAST_BOOKMARK) {
        Some(last) if last > now => periodic.min(last),
        _ => periodic,
    }
}
