//! Recovers the changes that happened while no stream was open: the history between our last event and a list. The
//! history is either proven or given up.
//!
//! An apiserver that restarts loses its window: a watch from our version gets 410 although usually nothing was lost. If
//! every downstream watch ended because of that, the restart would reach the whole fleet. Therefore:
//!
//! 1. The 410 names the oldest version of the new window. The feed lists the state at *that* version and resumes the
//!    watch after it, so all later history is upstream's own. Only the short gap before it remains. A feed with a field
//!    selector lists the current state, because a past one would cost upstream a read of the whole collection.
//! 2. An object whose version is the same on both sides did not change in the gap.
//! 3. For an object that did, its versions in the gap are read one by one from the store
//!    (`resourceVersionMatch=Exact`).
//! 4. Every recovered change must lie in the gap. An unknown change that is not newer than the start of the gap belongs
//!    to another history: upstream's storage went back (F3).
//! 5. If the changes cannot be proven within the limits below, the feed does not invent them. It starts a new history,
//!    and its watches end with 410 (F6).
//!
//! This cannot detect an object that was both created and deleted inside the gap (docs/DIFFERENCES.md).

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::cache::{FeedSnapshot, ObjectChange};
use crate::upstream::UpstreamError;
use crate::wire::ObjectRevision;
use kubeapi::{EventType, ObjectKey, ResourceVersion};

use super::continuity::merge_join;
use super::initial_state::UpstreamLister;
use super::stream::{StreamItem, decoded};

/// The maximum age of a gap that is mended. In a longer one, too many objects may have been created and deleted.
pub(super) const OUTAGE_MAX: Duration = Duration::from_secs(5 * 60);
/// The maximum number of objects that may differ if the gap is mended.
const DIFFERENCES_MAX: usize = 64;
/// The maximum number of versions of one object in the gap.
const VERSIONS_MAX: usize = 32;

/// An object that differs between the two sides of the gap.
#[derive(Debug, Clone)]
pub(super) struct GapObjectDifference {
    pub(super) key: ObjectKey,
    pub(super) before: Option<Arc<ObjectRevision>>,
    pub(super) after: Option<Arc<ObjectRevision>>,
}

/// Returns the objects that differ, in key order. Versions suffice, because storage that does not go back assigns each
/// only once. Another apiserver release may encode the same object in different bytes.
pub(super) fn differences(before: &FeedSnapshot, after: &FeedSnapshot) -> Vec<GapObjectDifference> {
    let version = |object: Option<&Arc<ObjectRevision>>| object.map(|object| object.rv);
    merge_join(before.iter(), after.iter(), |before, after| before.key.cmp(&after.key))
        .filter(|(before, after)| version(*before) != version(*after))
        .filter_map(|(before, after)| {
            let key = before.or(after)?.key.clone();
            Some(GapObjectDifference { key, before: before.cloned(), after: after.cloned() })
        })
        .collect()
}

/// Reads past versions of single objects from upstream.
pub(super) struct PastObjectReader<'a> {
    pub(super) lister: UpstreamLister<'a>,
    /// The version at which the gap starts.
    pub(super) from: ResourceVersion,
}

/// The reason that the changes in a gap are not known.
#[derive(Debug)]
pub(super) enum GapRecoveryError {
    /// The missed changes cannot be recovered within the limits.
    Unknown,
    /// The list cannot follow from the cached state: upstream has another history.
    OtherHistory,
    Upstream(UpstreamError),
}

impl From<UpstreamError> for GapRecoveryError {
    fn from(error: UpstreamError) -> Self {
        Self::Upstream(error)
    }
}

impl PastObjectReader<'_> {
    /// Recovers every change in the gap, which ends at `until`, in order.
    pub(super) async fn recover(
        &self,
        differences: &[GapObjectDifference],
        until: ResourceVersion,
    ) -> Result<Vec<ObjectChange>, GapRecoveryError> {
        if differences.len() > DIFFERENCES_MAX {
            return Err(GapRecoveryError::Unknown);
        }
        let mut changes = Vec::new();
        for difference in differences {
            changes.extend(self.changes_of(difference, until).await?);
        }
        changes.sort_by_key(|change| change.object.rv);
        Ok(changes)
    }

    async fn changes_of(
        &self,
        of: &GapObjectDifference,
        until: ResourceVersion,
    ) -> Result<Vec<ObjectChange>, GapRecoveryError> {
        let known = of.before.as_ref().map(|object| object.rv);
        let mut changes = Vec::new();
        let mut next = match &of.after {
            Some(object) => Some(ObjectRevision::clone(object)),
            None => {
                let (last, at) = self.deletion(&of.key, until).await?;
                changes.push(self.deleted(&last, at)?);
                (Some(last.rv) != known).then_some(last)
            }
        };
        while let Some(object) = next {
            if object.rv <= self.from {
                return Err(GapRecoveryError::OtherHistory);
            }
            if changes.len() >= VERSIONS_MAX {
                return Err(GapRecoveryError::Unknown);
            }
            let below = ResourceVersion(object.rv.0.saturating_sub(1));
            changes.push(ObjectChange { event_type: EventType::Modified, object, frame: None });
            next = match self.lister.object_at(&of.key, below).await? {
                Some(older) if Some(older.rv) == known => None,
                Some(older) => Some(older),
                None if known.is_none() => None,
                // The object was deleted and created again in between, which this walk does not recover.
                None => return Err(GapRecoveryError::Unknown),
            };
        }
        Ok(changes)
    }

    /// Finds, by bisection of the gap, the last content of an object that no longer exists at `until`, and the version
    /// of its deletion. The storage may have been compacted up to the start of the gap.
    async fn deletion(
        &self,
        key: &ObjectKey,
        until: ResourceVersion,
    ) -> Result<(ObjectRevision, ResourceVersion), GapRecoveryError> {
        let (mut there, mut gone) = (self.from, until);
        let mut last = None;
        while there.0 + 1 < gone.0 || last.is_none() {
            let middle = ResourceVersion(if there.0 + 1 < gone.0 { there.0.midpoint(gone.0) } else { there.0 });
            match self.lister.object_at(key, middle).await? {
                Some(object) => {
                    there = middle;
                    last = Some(object);
                }
                // The feed had the object at that very version.
                None if middle == there => return Err(GapRecoveryError::OtherHistory),
                None => gone = middle,
            }
        }
        last.filter(|_| gone > self.from).map(|last| (last, gone)).ok_or(GapRecoveryError::OtherHistory)
    }

    /// Builds a DELETED event: the last content, at the version of the deletion.
    fn deleted(&self, last: &ObjectRevision, at: ResourceVersion) -> Result<ObjectChange, GapRecoveryError> {
        let frame = self.lister.spec.envelope().frame(EventType::Deleted, &last.with_resource_version(at));
        match decoded(&self.lister.upstream.reader, frame)? {
            StreamItem::Change { change, .. } => Ok(change),
            StreamItem::Bookmark { .. } => Err(GapRecoveryError::Unknown),
        }
    }
}

/// Parses the oldest version of upstream's window from the message of its 410: `too old resource version: N (M)`
/// (R-GONE-1). It is a hint: without it, the most recent state is listed and less can be proven.
pub(super) fn window_start(message: &str) -> Option<ResourceVersion> {
    let (_, rest) = message.split_once("too old resource version: ")?;
    let (_, rest) = rest.split_once('(')?;
    rest.split_once(')')?.0.parse().ok()
}
