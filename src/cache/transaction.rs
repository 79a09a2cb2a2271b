use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{Event, Snapshot};
use crate::kube::{EventType, Gvr, ResourceVersion};

/// The newest version of a feed, while more of its events may come.
///
/// Upstream tells of the events of one transaction one by one, at one version, and does not say which is the last
/// (R-VERSION-2). Whoever is given that version as a position goes on behind all of it. So it is given to nobody
/// before the transaction is whole; until then the newest position is the version before it, at which everything else
/// has been applied. It is whole when something later comes, or a bookmark.
///
/// The apiserver itself writes one object a transaction, so that next to always the first event is the last one, and
/// nothing later may come for a minute: silence is taken for an answer. It is not where there are several for certain:
/// when a second one has come, and when a lease may have run out, which deletes whatever hangs on it.
#[derive(Debug)]
pub(super) struct Transaction {
    rv: ResourceVersion,
    /// Those that have come.
    events: Vec<Arc<Event>>,
    event_before: ResourceVersion,
    /// The state before it, at the version before its own, once somebody has asked for it.
    before: OnceLock<Snapshot>,
    has_more: bool,
}

/// Events of one transaction are sent in one go: a first one that is alone for so long is the only one.
const SILENCE: Duration = Duration::from_millis(10);

impl Transaction {
    /// Twice as long.
    pub(super) const SETTLING_MAX: Duration = Duration::from_millis(20);

    /// `event` is the first of it, behind one at `event_before`.
    pub(super) fn new(event: &Arc<Event>, gvr: &Gvr, event_before: ResourceVersion) -> Self {
        let runs_out = &*gvr.resource == "events" && event.event_type == EventType::Deleted;
        let (events, before) = (vec![event.clone()], OnceLock::new());
        Self { rv: event.rv, events, event_before, before, has_more: runs_out }
    }

    pub(super) fn rv(&self) -> ResourceVersion {
        self.rv
    }

    /// The version before its own: everything up to there has come.
    pub(super) fn whole(&self) -> ResourceVersion {
        ResourceVersion(self.rv.0 - 1)
    }

    /// The state before it, of what is there now: put together for the first who asks, and the same for all who do.
    pub(super) fn before(&self, now: impl FnOnce() -> Snapshot) -> &Snapshot {
        self.before.get_or_init(|| now().without(&self.events).at(self.whole()))
    }

    pub(super) fn event_before(&self) -> ResourceVersion {
        self.event_before
    }

    /// Another event of it came.
    pub(super) fn goes_on(&mut self, event: &Arc<Event>) {
        self.events.push(event.clone());
        self.has_more = true;
    }

    /// How long upstream may be silent until this is taken to be whole; `None`: silence does not tell.
    pub(super) fn settles_after(&self) -> Option<Duration> {
        (!self.has_more).then_some(SILENCE)
    }
}
