//! Messages from the parts of a feed to its reflector, and between the feeds of one upstream.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::cache::{BackfilledEvents, Change, MissingPrevious};
use crate::wire::Object;
use kubeapi::{ObjectKey, ResourceVersion};
use tokio::sync::watch;

/// A finding of those that work beside a reflector.
#[derive(Debug)]
pub(super) enum ReflectorFinding {
    Proof(Proof),
    /// Objects are written differently now.
    Renewal(Renewal),
    /// Earlier events for the front of the history.
    Prehistory(Found),
    /// What was there before changes in it.
    PreviousObjects(PreviousObjects),
    /// An answer of upstream contradicts what the feed holds in this history.
    Doubt {
        history: u64,
    },
    /// An object is certainly not what upstream has.
    Divergence(Divergence),
}

/// An object that is certainly not what upstream has.
#[derive(Debug)]
pub(super) struct Divergence {
    /// The number of the feed's history that it was found in.
    pub(super) history: u64,
    pub(super) key: ObjectKey,
    /// The version of the states that were compared.
    pub(super) at: ResourceVersion,
    /// The version that is held, and the one that upstream has.
    pub(super) ours: Option<ResourceVersion>,
    pub(super) theirs: Option<ResourceVersion>,
    /// What differs, in words.
    pub(super) difference: &'static str,
}

/// Changes after our version, in order and without a gap, up to `until`.
#[derive(Debug)]
pub(super) struct Proof {
    /// The number of the feed's history that they belong to.
    pub(super) history: u64,
    pub(super) changes: Vec<Change>,
    pub(super) until: ResourceVersion,
    /// Whether readers are told how far it is: somebody has asked for that.
    pub(super) announced: bool,
}

/// Earlier events for the front of the history.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) past: BackfilledEvents,
    /// Notified whether the history begins with them now.
    pub(super) done: oneshot::Sender<bool>,
}

/// What was there before changes of which that was not known: all of them behind `known`.
#[derive(Debug)]
pub(super) struct PreviousObjects {
    pub(super) known: ResourceVersion,
    pub(super) before: Vec<(MissingPrevious, Arc<Object>)>,
    /// Notified when it was noted.
    pub(super) done: oneshot::Sender<()>,
}

/// Objects that are written differently now.
#[derive(Debug)]
pub(super) struct Renewal {
    pub(super) objects: Vec<Arc<Object>>,
    /// The exchange is for this state of the servers: [`By::count`](super::body_writers::By::count).
    pub(super) count: u64,
    /// Notified when they were exchanged.
    pub(super) done: oneshot::Sender<()>,
}

/// When a feed last found out, by itself, that upstream's storage had gone back. All feeds of that upstream look then.
#[derive(Debug, Default)]
pub(super) struct RewindNotices(watch::Sender<Option<Instant>>);

/// Feeds find the same restored backup within this time of each other.
const SAME_INCIDENT: Duration = Duration::from_secs(60);

impl RewindNotices {
    /// Tells the other feeds, unless one has just done so.
    pub(super) fn announce(&self, now: Instant) {
        self.0.send_if_modified(|last| {
            let is_news = last.is_none_or(|last| now.duration_since(last) >= SAME_INCIDENT);
            if is_news {
                *last = Some(now);
            }
            is_news
        });
    }

    /// Follows later announcements.
    pub(super) fn follow(&self) -> watch::Receiver<Option<Instant>> {
        let mut following = self.0.subscribe();
        following.mark_unchanged();
        following
    }
}

/// How a feed's present history began.
#[derive(Debug, Clone, Copy)]
pub(super) struct HistoryBegin {
    /// When the question was sent whose answer it begins with.
    pub(super) asked: Instant,
    /// Whether it took the place of a history that upstream knew nothing of any more.
    pub(super) rewound: bool,
}

impl HistoryBegin {
    /// Whether what another feed found at `found` may concern this one.
    pub(super) fn is_concerned(self, found: Instant) -> bool {
        let same_incident = self.rewound && found.duration_since(self.asked) < SAME_INCIDENT;
        self.asked < found && !same_incident
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_feed_is_concerned_by_what_others_find_unless_it_has_begun_since_or_found_it_as_well() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        for (began, rewound, found, concerned) in [
            (0, false, 5, true),
            (0, false, 500, true),
            (6, false, 5, false),
            (5, false, 5, false),
            (4, true, 5, false),
            (6, true, 5, false),
            // It may have gone back once more.
            (4, true, 65, true),
        ] {
            let begun = HistoryBegin { asked: after(began), rewound };
            assert_eq!(begun.is_concerned(after(found)), concerned, "{began} {rewound} {found}");
        }
    }
}
