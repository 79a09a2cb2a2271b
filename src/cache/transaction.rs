use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use super::{Event, Snapshot};
use kubeapi::{EventType, Gvr, ResourceVersion};

/// The newest version of a feed, while more of its events may come.
///
/// Upstream sends the events of one transaction one by one, at one version, and does not say which is the last
/// (R-VERSION-2). A client that is given that version as a position goes on behind all of it. So nobody is given it
/// before the transaction is whole. Until then the newest position is the version before it, at which everything else
/// has been applied. The transaction is whole when something later comes, an event or a bookmark.
///
/// A bookmark at its very version is no such sign by itself. The apiserver sends bookmarks by the clock, at the version
/// of the event that it sent last, and that may be one in the middle of a transaction (R-BOOKMARK-1). But the rest is
/// on its way then, so the transaction is whole if nothing more of it comes within [`REST_FOLLOWS_WITHIN`].
///
/// The apiserver itself writes one object in a transaction, so the first event is nearly always the last one, and
/// nothing later may come for a minute. So a moment of silence is taken for an answer. It is not where there may well
/// be several events: when a second one has come, and when a lease may have expired, which deletes everything that is
/// attached to it.
///
/// Events have no watch cache upstream and no bookmarks (R-EVENT-4), and a lease that expires may be the last change
/// for hours. The apiserver passes on what etcd sends, and etcd sends a transaction in one response: once the first
/// event of it has come, the rest is on its way. So [`REST_FOLLOWS_WITHIN`] applies to them without a bookmark.
#[derive(Debug)]
pub(super) struct Transaction {
    rv: ResourceVersion,
    /// The events that have come.
    events: Vec<Arc<Event>>,
    event_before: ResourceVersion,
    /// The state before the transaction, at the version before its own, once somebody has asked for it.
    before: OnceLock<Snapshot>,
    has_more: bool,
    /// Upstream has the whole transaction when it sends the first event of it.
    comes_at_once: bool,
    /// A bookmark at its version has come, and no event of it since.
    is_vouched: bool,
    /// A reader has left that was past some of its events.
    left_amid: AtomicBool,
}

/// The events of one transaction are sent in one go: a first event that is alone for so long is the only one.
const SILENCE: Duration = Duration::from_millis(10);
/// The rest of a transaction follows within this time once upstream is known to have all of it, because it is sending
/// it.
pub const REST_FOLLOWS_WITHIN: Duration = Duration::from_millis(200);

impl Transaction {
    /// A bound on the time in which a version settles: twice as long.
    pub(super) const SETTLING_MAX: Duration = Duration::from_millis(20);

    /// `event` is the first of the transaction, and the event before it was at `event_before`.
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

    /// The version before its own: everything up to there has come.
    pub(super) fn whole(&self) -> ResourceVersion {
        ResourceVersion(self.rv.0 - 1)
    }

    /// The state before the transaction, made from the present state `now` for the first who asks and shared by all who
    /// do.
    pub(super) fn before(&self, now: impl FnOnce() -> Snapshot) -> &Snapshot {
        self.before.get_or_init(|| now().without(&self.events).at(self.whole()))
    }

    pub(super) fn event_before(&self) -> ResourceVersion {
        self.event_before
    }

    /// Takes another event of the transaction.
    pub(super) fn goes_on(&mut self, event: &Arc<Event>) {
        self.events.push(event.clone());
        self.has_more = true;
        self.is_vouched = false;
    }

    /// Notes a bookmark at its version.
    pub(super) fn vouch(&mut self) {
        self.is_vouched = true;
    }

    /// Whether upstream has been silent for as long as `settles_after` says.
    pub(super) fn has_been_silent(&self, now: Instant) -> bool {
        let silent = self.events.last().map_or(Duration::ZERO, |last| now.duration_since(last.at));
        self.settles_after().is_some_and(|lasts| silent >= lasts)
    }

    /// Notes that another stream tells it from its beginning: an earlier bookmark says nothing of that stream.
    pub(super) fn told_again(&mut self) {
        self.is_vouched = false;
    }

    pub(super) fn is_vouched(&self) -> bool {
        self.is_vouched
    }

    /// Notes that a reader leaves. `next` is the number of the event that it would have looked at next.
    pub(super) fn note_leaving(&self, next: u64) {
        if self.events.first().is_some_and(|first| first.seq < next) {
            self.left_amid.store(true, Ordering::Relaxed);
        }
    }

    /// The version up to which a watch is told nothing that asks for what follows this one. Its client mostly has all
    /// of it, of a feed before this one or of another server. But a client that left amid it may come back with this
    /// version too, and needs the rest.
    pub(super) fn skipped_by_who_has_it(&self) -> ResourceVersion {
        if self.left_amid.load(Ordering::Relaxed) { self.whole() } else { self.rv }
    }

    /// How long upstream has to be silent until the version is taken to be whole; `None` if silence does not tell.
    pub(super) fn settles_after(&self) -> Option<Duration> {
        match (self.has_more, self.is_vouched || self.comes_at_once) {
            (false, _) => Some(SILENCE),
            (true, true) => Some(REST_FOLLOWS_WITHIN),
            (true, false) => None,
        }
    }
}
