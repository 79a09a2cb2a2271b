use super::CacheReader;
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// The newest known change of a feed. A watch that starts directly before the change delivers it first, if its history
/// is the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResumeMarker {
    rv: ResourceVersion,
    /// The known changes at the marker's version: the object, and whether it was deleted. Several changes may share a
    /// version.
    known: Vec<(ObjectKey, bool)>,
    /// Whether `known` would contain deletions at the marker's version.
    knows_deletions: bool,
}

impl ResumeMarker {
    /// Returns the version from which a watch delivers the marked change first.
    pub fn before(&self) -> ResourceVersion {
        ResourceVersion(self.rv.0.saturating_sub(1))
    }

    /// Returns whether the first change of such a watch is the marked one.
    pub fn is_reported_by(&self, event_type: EventType, key: &ObjectKey, rv: ResourceVersion) -> bool {
        let deleted = event_type == EventType::Deleted;
        let known = self.known.iter().any(|(known, was_deleted)| known == key && *was_deleted == deleted);
        rv == self.rv && (known || (deleted && !self.knows_deletions))
    }
}

impl CacheReader {
    /// Returns the newest known change: the newest event, or the newest object if the history begins after it. `None`
    /// if the feed has neither.
    pub fn resume_marker(&self) -> Option<ResumeMarker> {
        let timeline = self.shared.timeline.read();
        let rv = timeline.last_event;
        if rv > timeline.complete_from() {
            let known = timeline.ring.all.with_events(|events| {
                let of_it = events.iter().rev().take_while(|event| event.rv == rv);
                of_it.map(|event| (event.object.key.clone(), event.event_type == EventType::Deleted)).collect()
            });
            return Some(ResumeMarker { rv, known, knows_deletions: true });
        }
        let snapshot = timeline.snapshot();
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
