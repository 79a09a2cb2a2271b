//! Decides whether upstream still has the history that a feed holds. The reflector acts on the result.
//!
//! A storage that was restored from a backup continues from an earlier version. While its version is below ours, the
//! version itself shows the restore. Once it exceeds ours, only the content shows it: an unknown object at a version up
//! to which the feed knows everything.
//!
//! Three signs trigger a history check:
//!
//! 1. **Upstream does not repeat the newest change.** When a lost stream is reopened, it starts right before our newest
//!    change. If upstream has the same history, the stream begins with that one event. If it is silent for a second,
//!    the feed asks upstream for its position and, if that is far enough, lists its state. If upstream's window begins
//!    later (410), the stream starts at our own version, and the feed asks for the position once, spread over ten
//!    seconds.
//! 2. **A version below ours** in a consistent response: a position, a list or a relist.
//! 3. **A list that cannot follow from what the feed holds.** It differs at the very same version, or has an object
//!    that is not newer than our version and that we do not know in that form. This is checked for equality proofs, for
//!    gaps before they are mended, and for every past version that is read.

use std::cmp::Ordering;

use crate::cache::{CacheReader, Change, ResumeMarker, Snapshot};
use crate::wire::{Object, WatchItem};
use kubeapi::{ObjectKey, ResourceVersion};

/// The result of comparing a listed state with the history that a feed holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HistoryComparison {
    /// The states are equal.
    Same,
    /// Some objects differ, but later changes may explain that.
    Later,
    /// The state cannot follow from ours: upstream has another history.
    Other,
}

impl HistoryComparison {
    /// For logs.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Same => "equal",
            Self::Later => "newer",
            Self::Other => "other_history",
        }
    }
}

/// One object's place in a state.
pub(super) type ObjectVersion<'a> = (&'a ObjectKey, ResourceVersion);

/// Compares the objects known at version `reached` with a state listed after that, at version `at`. Both iterators must
/// be in key order.
pub(super) fn compare<'a, 'b>(
    known: impl Iterator<Item = ObjectVersion<'a>>,
    reached: ResourceVersion,
    listed: impl Iterator<Item = ObjectVersion<'b>>,
    at: ResourceVersion,
) -> HistoryComparison {
    if at < reached {
        return HistoryComparison::Other;
    }
    let (mut known, mut listed) = (known.peekable(), listed.peekable());
    let mut finding = HistoryComparison::Same;
    loop {
        let order = match (known.peek(), listed.peek()) {
            (Some((known, _)), Some((listed, _))) => (*known).cmp(*listed),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return finding,
        };
        let before = known.next_if(|_| order != Ordering::Greater).map(|(_, rv)| rv);
        let after = listed.next_if(|_| order != Ordering::Less).map(|(_, rv)| rv);
        if before == after {
            continue;
        }
        // If an object is missing, it was deleted at or before the listed version.
        if after.unwrap_or(at) <= reached {
            return HistoryComparison::Other;
        }
        finding = HistoryComparison::Later;
    }
}

/// The keys and versions of a state's objects, in key order.
pub(super) fn places(snapshot: &Snapshot) -> impl Iterator<Item = ObjectVersion<'_>> {
    snapshot.iter().map(|object| (&object.key, object.rv))
}

/// Whether two objects of one key are the same, by version: storage that does not go back assigns each version only
/// once. Bodies are not compared, because another apiserver release may encode the same object in different bytes.
pub(super) fn is_same(one: &Object, other: &Object) -> bool {
    one.rv == other.rv
}

/// How certain it is that upstream has the history that a feed holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Continuity {
    /// No connection loss since the history was last verified.
    #[default]
    Certain,
    /// The connection was lost, and upstream's storage may have gone back in the meantime.
    Doubtful,
    /// The connection was lost, and upstream's window no longer has our newest change.
    Unknown,
}

impl Continuity {
    /// Records that the connection was lost or that upstream was unreachable.
    pub(super) fn lost(&mut self) {
        if *self == Self::Certain {
            *self = Self::Doubtful;
        }
    }

    pub(super) fn is_sure(self) -> bool {
        self == Self::Certain
    }

    /// The change that a reopened stream must repeat first, if one is needed. It costs one event and shows whether the
    /// history is the same; a stream from our own version would be silent.
    pub(super) fn resume_marker(self, cache: &CacheReader) -> Option<ResumeMarker> {
        if self == Self::Doubtful { cache.resume_marker() } else { None }
    }
}

/// The evidence in the first item of a stream that should begin with our newest change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResumeEvidence {
    /// The item is that change.
    Continues,
    /// The stream skips the change.
    Contradicts,
    /// Upstream no longer has the change.
    Expired,
    /// Upstream refuses for another reason, which says nothing about its history.
    Refuses,
}

pub(super) fn testimony(resume_marker: &ResumeMarker, item: &WatchItem) -> ResumeEvidence {
    match item {
        WatchItem::Change { event_type, object, .. }
            if resume_marker.is_told_by(*event_type, &object.key, object.rv) =>
        {
            ResumeEvidence::Continues
        }
        WatchItem::Error { status } if status.code == 410 => ResumeEvidence::Expired,
        WatchItem::Error { .. } => ResumeEvidence::Refuses,
        WatchItem::Change { .. } | WatchItem::Bookmark { .. } => ResumeEvidence::Contradicts,
    }
}

/// The evidence in a transaction at the beginning of such a stream.
pub(super) fn testimony_of_changes(resume_marker: &ResumeMarker, changes: &[Change]) -> ResumeEvidence {
    let is_it = |change: &Change| resume_marker.is_told_by(change.event_type, &change.object.key, change.object.rv);
    if changes.iter().any(is_it) { ResumeEvidence::Continues } else { ResumeEvidence::Contradicts }
}

#[cfg(test)]
mod tests;
