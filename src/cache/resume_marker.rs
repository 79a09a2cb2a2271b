use super::CacheReader;
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// The newest change that a feed knows. A stream that starts right before it tells it first, if the stream is of the
/// same history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeMarker {
    rv: ResourceVersion,
    /// The objects that are known to have changed at that version, and whether they were deleted. Several changes may
    /// share a version.
    known: Vec<(ObjectKey, bool)>,
    /// Whether deletions at that version would be among them.
    knows_deletions: bool,
}

impl ResumeMarker {
    /// The version from which a watch tells the change first.
    pub fn before(&self) -> ResourceVersion {
        ResourceVersion(self.rv.0.saturating_sub(1))
    }

    /// Whether the first change of such a watch is this one.
    pub fn is_told_by(&self, event_type: EventType, key: &ObjectKey, rv: ResourceVersion) -> bool {
        let deleted = event_type == EventType::Deleted;
        let known = self.known.iter().any(|(known, was_deleted)| known == key && *was_deleted == deleted);
        rv == self.rv && (known || (deleted && !self.knows_deletions))
    }
}

impl CacheReader {
    /// Whether `rv` is the version of the newest event, and nothing later has shown that no more of it will come.
    pub fn is_at_event(&self, rv: ResourceVersion) -> bool {
        let timeline = self.shared.timeline.read();
        timeline.last_event == rv && rv > timeline.told_from()
    }

    /// The newest change that is known: the newest event, or the newest object where history begins later than that.
    /// `None` if the feed holds neither.
    pub fn witness(&self) -> Option<ResumeMarker> {
        let timeline = self.shared.timeline.read();
        let rv = timeline.last_event;
        if rv > timeline.told_from() {
            let known = timeline.ring.lanes.all.with_events(|events| {
                let of_it = events.iter().rev().take_while(|event| event.rv == rv);
                of_it.map(|event| (event.object.key.clone(), event.event_type == EventType::Deleted)).collect()
            });
            return Some(ResumeMarker { rv, known, knows_deletions: true });
        }
        let snapshot = timeline.applied();
        drop(timeline);
        let rv = snapshot.iter().map(|object| object.rv).max()?;
        let newest = snapshot.iter().filter(|object| object.rv == rv);
        Some(ResumeMarker {
            rv,
            known: newest.map(|object| (object.key.clone(), false)).collect(),
            knows_deletions: false,
        })
    }
}
