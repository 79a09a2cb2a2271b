use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::{Event, Snapshot};
use kubeapi::{EventType, Gvr, ResourceVersion};

/// The newest version of a feed, while more of its events may come.
///
/// Upstream sends the events of one transaction one by one, at one version, and does not mark the last one
/// (R-VERSION-2). A client that has this version resumes after all of it. So the proxy does not publish the version
/// before the transaction is complete. Until then the newest position is the version before it, at which everything
/// else has been applied. The transaction is complete when a later event or bookmark arrives.
///
/// A bookmark at the same version alone does not complete it. The apiserver sends bookmarks periodically, at the
/// version of the last event sent, which may be in the middle of a transaction (R-BOOKMARK-1). But the rest is then in
/// flight, so the transaction is complete if none of it arrives within [`REST_FOLLOWS_WITHIN`].
///
/// The apiserver itself writes one object per transaction, so the first event is nearly always the last one. Nothing
/// later may come for a minute, so a short silence counts as completion. It does not count where several events are
/// likely. These cases are a second event, and a lease that may have expired, which deletes every object attached to
/// it.
///
/// Events (the resource) have no watch cache upstream and no bookmarks (R-EVENT-4), and an expired lease may be the
/// last change for hours. The apiserver forwards etcd's responses, and etcd sends a transaction in one response: after
/// its first event the rest is in flight. So [`REST_FOLLOWS_WITHIN`] applies to them without a bookmark.
#[derive(Debug)]
pub(super) struct Transaction {
    rv: ResourceVersion,
    /// The events received so far.
    events: Vec<Arc<Event>>,
    event_before: ResourceVersion,
    /// The state before the transaction, at the version before its own, computed at first use.
    before: OnceLock<Snapshot>,
    has_more: bool,
    /// Whether upstream has the whole transaction when it sends its first event.
    comes_at_once: bool,
    /// Whether a bookmark at its version has arrived, and no event of it since.
    is_vouched: bool,
    /// Whether a reader has disconnected in the middle of its events.
    left_amid: AtomicBool,
}

/// Upstream sends the events of one transaction together: a first event followed by this much silence is the only one.
const SILENCE: Duration = Duration::from_millis(10);
/// Time within which the rest of a transaction arrives once upstream is known to be sending it.
pub const REST_FOLLOWS_WITHIN: Duration = Duration::from_millis(200);

impl Transaction {
    /// Bound on the wait for a version to settle: twice `SILENCE`.
    pub(super) const SETTLING_MAX: Duration = Duration::from_millis(20);

    /// Starts a transaction with its first event. The event before it was at `event_before`.
    pub(super) fn new(event: &Arc<Event>, gvr: &Gvr, event_before: ResourceVersion) -> Self {
        let comes_at_once = !gvr.has_watch_cache();
        Self {
            rv: event.rv,
            events: vec![event.clone()],
            event_before,
            before: OnceLock::new(),
            has_more: comes_at_once && event.event_type == EventType::Deleted,
            comes_at_once,
            is_vouched: false,
            left_amid: AtomicBool::new(false),
        }
    }

    pub(super) fn rv(&self) -> ResourceVersion {
        self.rv
    }

    /// Returns the version before its own, which is complete.
    pub(super) fn whole(&self) -> ResourceVersion {
        ResourceVersion(self.rv.0 - 1)
    }

    /// Returns the state before the transaction, computed from the current state `now` at first use and shared.
    pub(super) fn before(&self, now: impl FnOnce() -> Snapshot) -> &Snapshot {
        self.before.get_or_init(|| now().without(&self.events).at(self.whole()))
    }

    pub(super) fn event_before(&self) -> ResourceVersion {
        self.event_before
    }

    /// Adds another event of the transaction.
    pub(super) fn goes_on(&mut self, event: &Arc<Event>) {
        self.events.push(event.clone());
        self.has_more = true;
        self.is_vouched = false;
    }

    /// Records a bookmark at its version.
    pub(super) fn vouch(&mut self) {
        self.is_vouched = true;
    }

    /// Returns whether upstream has been silent for `settles_after`.
    pub(super) fn has_been_silent(&self, now: Instant) -> bool {
        let silent = self.events.last().map_or(Duration::ZERO, |last| now.duration_since(last.at));
        self.settles_after().is_some_and(|lasts| silent >= lasts)
    }

    /// Records that another watch delivers it from its beginning, for which an earlier bookmark does not count.
    pub(super) fn told_again(&mut self) {
        self.is_vouched = false;
    }

    pub(super) fn is_vouched(&self) -> bool {
        self.is_vouched
    }

    /// Records that a reader disconnects. `next` is the `seq` of the next event that it would have processed.
    pub(super) fn note_leaving(&self, next: u64) {
        if self.events.first().is_some_and(|first| first.seq < next) {
            self.left_amid.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the version up to which a watch resumed from this version skips events. Its client usually has all of
    /// it, from an earlier feed or another server. But a client that disconnected in the middle may also resume from
    /// this version, and needs the rest.
    pub(super) fn skipped_by_who_has_it(&self) -> ResourceVersion {
        if self.left_amid.load(Ordering::Relaxed) { self.whole() } else { self.rv }
    }

    /// Returns how long upstream must be silent until the version counts as complete; `None` if silence is not
    /// sufficient.
    pub(super) fn settles_after(&self) -> Option<Duration> {
        match (self.has_more, self.is_vouched || self.comes_at_once) {
            (false, _) => Some(SILENCE),
            (true, true) => Some(REST_FOLLOWS_WITHIN),
            (true, false) => None,
        }
    }
}
