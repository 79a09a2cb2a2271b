//! Messages from the tasks of a feed to its reflector, and between the feeds of one upstream.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::cache::{BackfilledEvents, FeedEvent, ObjectChange};
use crate::wire::ObjectRevision;
use kubeapi::{ObjectKey, ResourceVersion};
use tokio::sync::watch;

/// A finding of a task that runs beside a reflector.
#[derive(Debug)]
pub(super) enum ReflectorFinding {
    /// The changes after the feed's version, in order and without a gap, up to `until`.
    Proof {
        /// The number of the feed's history to which the changes belong.
        history: u64,
        changes: Vec<ObjectChange>,
        until: ResourceVersion,
        /// Whether readers are sent the new version, because one of them requested it.
        announced: bool,
    },
    /// Objects whose encoding has changed.
    Renewal {
        objects: Vec<Arc<ObjectRevision>>,
        /// The state of the servers for which the objects were listed, as
        /// [`BodyEncoderTracker`](super::body_encoder_tracker) counts.
        count: u64,
        /// Notified when the reflector has replaced the objects.
        done: oneshot::Sender<()>,
    },
    /// Earlier events to prepend to the history. `done` receives whether the history now begins with them.
    Backfill {
        past: BackfilledEvents,
        done: oneshot::Sender<bool>,
    },
    /// The previous objects of all changes after `known` that lacked them. `done` is notified when they are recorded.
    PreviousObjects {
        known: ResourceVersion,
        before: Vec<(Arc<FeedEvent>, Arc<ObjectRevision>)>,
        done: oneshot::Sender<()>,
    },
    /// An upstream response contradicts the cached state of this history.
    HistoryMismatch {
        history: u64,
    },
    Divergence(ObjectDivergence),
}

/// An object that certainly differs from upstream's.
#[derive(Debug)]
pub(super) struct ObjectDivergence {
    /// The number of the feed's history in which the difference was found.
    pub(super) history: u64,
    pub(super) key: ObjectKey,
    /// The version of the compared states.
    pub(super) at: ResourceVersion,
    /// The cached version of the object, and the one that upstream has; `None` if the object is absent.
    pub(super) cached: Option<ResourceVersion>,
    pub(super) upstream: Option<ResourceVersion>,
    /// A description of how the object differs.
    pub(super) difference: &'static str,
}

/// The time at which a feed last found that upstream's storage had gone back. On each notice, all feeds of that
/// upstream check their history.
#[derive(Debug, Default)]
pub(super) struct StorageRollbackNotifier(watch::Sender<Option<Instant>>);

/// The time within which rollbacks that several feeds find count as the same incident.
const SAME_INCIDENT: Duration = Duration::from_secs(60);

impl StorageRollbackNotifier {
    /// Notifies the other feeds, unless another feed did so within the same incident.
    pub(super) fn notify(&self, now: Instant) {
        self.0.send_if_modified(|last| {
            let is_news = last.is_none_or(|last| now.duration_since(last) >= SAME_INCIDENT);
            if is_news {
                *last = Some(now);
            }
            is_news
        });
    }

    /// Returns a receiver of later rollback notices.
    pub(super) fn follow(&self) -> watch::Receiver<Option<Instant>> {
        let mut following = self.0.subscribe();
        following.mark_unchanged();
        following
    }
}

/// How a feed's current history began.
#[derive(Debug, Clone, Copy)]
pub(super) struct HistoryOrigin {
    /// The time at which the request for the history's first state was sent.
    pub(super) requested_at: Instant,
    /// Whether the history replaced one that upstream no longer had.
    pub(super) replaced_history: bool,
}

impl HistoryOrigin {
    /// Whether a rollback that another feed found at `found` may affect this feed.
    pub(super) fn is_affected(self, found: Instant) -> bool {
        let same_incident = self.replaced_history && found.duration_since(self.requested_at) < SAME_INCIDENT;
        self.requested_at < found && !same_incident
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewind_found_by_another_feed_affects_only_older_histories() {
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        for (began, rewound, found, concerned) in [
            (0, false, 5, true),
            (0, false, 500, true),
            (6, false, 5, false),
            (5, false, 5, false),
            (4, true, 5, false),
            (6, true, 5, false),
            // The storage may have gone back once more.
            (4, true, 65, true),
        ] {
            let begun = HistoryOrigin { requested_at: after(began), replaced_history: rewound };
            assert_eq!(begun.is_affected(after(found)), concerned, "{began} {rewound} {found}");
        }
    }
}
