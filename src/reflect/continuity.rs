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

use super::stream::StreamItem;
use crate::cache::{CacheReader, FeedSnapshot, ResumeMarker};
use kubeapi::{ObjectKey, ResourceVersion};

base::labelled_enum! {
    /// The result of comparing a listed state with the history that a feed holds.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(super) enum HistoryComparison {
        /// The two states are equal.
        Same = "equal",
        /// Some objects differ, but later changes may explain the differences.
        Later = "newer",
        /// Upstream's state cannot follow from the cached one: upstream has another history.
        Other = "other_history",
    }
}

/// The key of an object in a state, and its version.
pub(super) type ObjectVersion<'a> = (&'a ObjectKey, ResourceVersion);

/// Compares a cached state with a state listed after that, at version `at`. The iterator must be in key order.
pub(super) fn compare<'a>(
    cached: &'a FeedSnapshot,
    listed: impl Iterator<Item = ObjectVersion<'a>>,
    at: ResourceVersion,
) -> HistoryComparison {
    if at < cached.rv {
        return HistoryComparison::Other;
    }
    let mut finding = HistoryComparison::Same;
    for (_, contradicts) in differences(object_versions(cached), cached.rv, listed, at) {
        if contradicts {
            return HistoryComparison::Other;
        }
        finding = HistoryComparison::Later;
    }
    finding
}

/// Returns the keys whose versions differ between the objects cached at version `reached` and those listed at version
/// `at`, and whether changes between the two versions cannot explain the difference. Both iterators must be in key
/// order.
///
/// An object in a state has not changed since its own version. So the earlier state must have it too, if that state had
/// reached this version.
pub(super) fn differences<'a>(
    cached: impl Iterator<Item = ObjectVersion<'a>>,
    reached: ResourceVersion,
    listed: impl Iterator<Item = ObjectVersion<'a>>,
    at: ResourceVersion,
) -> impl Iterator<Item = (&'a ObjectKey, bool)> {
    merge_join(cached, listed, |cached, listed| cached.0.cmp(listed.0)).filter_map(move |(cached, listed)| {
        let (key, _) = cached.or(listed)?;
        let is_in_both = |object: Option<ObjectVersion<'_>>, earlier| object.is_some_and(|(_, rv)| rv <= earlier);
        let contradicts = reached <= at && is_in_both(listed, reached) || at <= reached && is_in_both(cached, at);
        (cached != listed).then_some((key, contradicts))
    })
}

/// Walks two sequences in key order side by side. Returns what each has of each key.
pub(super) fn merge_join<A, B>(
    one: impl Iterator<Item = A>,
    other: impl Iterator<Item = B>,
    compare: impl Fn(&A, &B) -> Ordering,
) -> impl Iterator<Item = (Option<A>, Option<B>)> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || {
        let order = match (one.peek(), other.peek()) {
            (Some(one), Some(other)) => compare(one, other),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => return None,
        };
        Some((one.next_if(|_| order != Ordering::Greater), other.next_if(|_| order != Ordering::Less)))
    })
}

/// The keys and versions of a state's objects, in key order.
pub(super) fn object_versions(snapshot: &FeedSnapshot) -> impl Iterator<Item = ObjectVersion<'_>> {
    snapshot.iter().map(|object| (&object.key, object.rv))
}

/// The degree of certainty that upstream has the history of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum HistoryContinuity {
    /// Upstream certainly has the history: the connection was not lost since the last verification.
    #[default]
    Certain,
    /// The connection was lost, so upstream's storage may have gone back since then.
    Doubtful,
    /// The connection was lost, and upstream's history no longer has the feed's newest change.
    Unknown,
}

impl HistoryContinuity {
    /// Records that the connection was lost or that upstream was unreachable.
    pub(super) fn connection_lost(&mut self) {
        if *self == Self::Certain {
            *self = Self::Doubtful;
        }
    }

    /// Returns the change that a reopened stream must repeat first, if one is needed. It costs one event and shows
    /// whether the history is the same; a stream from the feed's own version would show nothing.
    pub(super) fn resume_marker(self, cache: &CacheReader) -> Option<ResumeMarker> {
        if self == Self::Doubtful { cache.resume_marker() } else { None }
    }
}

/// Whether the first item of a stream is the change that the stream should repeat. If it is not, upstream has another
/// history.
pub(super) fn is_repeated(resume_marker: &ResumeMarker, first: &StreamItem) -> bool {
    let StreamItem::Change { change, more } = first else { return false };
    std::iter::once(change)
        .chain(more)
        .any(|change| resume_marker.is_reported_by(change.event_type, &change.object.key, change.object.rv))
}

#[cfg(test)]
mod tests;
