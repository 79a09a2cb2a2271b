//! Decides whether upstream still tells the history that a feed holds. The reflector acts on it.
//!
//! A storage that was restored from a backup counts its versions up again from an earlier one. As long as it is behind
//! what we hold, its version shows that. Once it is ahead again, versions alone look as they should. Then the content
//! shows it: an object that we do not know, at a version of which we had been told everything.
//!
//! Three signs raise a doubt:
//!
//! 1. **The newest change is not told again.** A stream that was lost is opened again right before our newest change,
//!    and begins with that one event if upstream has the same history. If it is silent for a second, upstream is asked
//!    how far it is, and if that is far enough, what it holds. Where upstream's window begins later (410), the stream
//!    begins at our own version, and the position is asked once, spread over ten seconds.
//! 2. **A version below ours** in a consistent answer: a position, a list or a relist.
//! 3. **A list that cannot follow from what we hold**: it has an object that is not later than our version and that we
//!    do not know so, or differs at the very same version. Proofs by equality, gaps before they are mended, and every
//!    version that is read back are checked for that.

use std::cmp::Ordering;

use crate::cache::{CacheReader, ResumeMarker, Snapshot};
use crate::wire::{Object, WatchItem};
use kubeapi::{ObjectKey, ResourceVersion};

/// What a listed state says about the history that a feed holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// Nothing has changed.
    Same,
    /// Some objects differ, which may have happened later.
    Later,
    /// The state cannot follow from what we hold: upstream's history is another one.
    Other,
}

/// One object's place in a state.
pub(super) type Placed<'a> = (&'a ObjectKey, ResourceVersion);

/// How far a feed is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) at: ResourceVersion,
    /// Everything up to here that happened is known. Of the version of the newest event, more may be on its way.
    whole: ResourceVersion,
}

impl Reach {
    pub(super) fn of(cache: &CacheReader, at: ResourceVersion) -> Self {
        let whole = if cache.is_at_event(at) { ResourceVersion(at.0.saturating_sub(1)) } else { at };
        Self { at, whole }
    }

    pub(super) fn is_whole_at(self, rv: ResourceVersion) -> bool {
        self.whole >= rv
    }
}

/// Compares what was known at `reach` with a state that was listed after that, at version `at`.
pub(super) fn compare<'a, 'b>(
    known: impl Iterator<Item = Placed<'a>>,
    reach: Reach,
    listed: impl Iterator<Item = Placed<'b>>,
    at: ResourceVersion,
) -> Finding {
    if at < reach.at {
        return Finding::Other;
    }
    let (mut known, mut listed) = (known.peekable(), listed.peekable());
    let mut finding = Finding::Same;
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
        // A missing object was deleted at the listed version or before.
        if after.unwrap_or(at) <= reach.whole {
            return Finding::Other;
        }
        finding = Finding::Later;
    }
}

/// The places of a state's objects, in key order.
pub(super) fn places(snapshot: &Snapshot) -> impl Iterator<Item = Placed<'_>> {
    snapshot.iter().map(|object| (&object.key, object.rv))
}

/// Whether two objects of one key are the same, by their versions: a storage that does not go back gives each version
/// only once. Bodies are not compared, for another release of the apiserver writes the same object in other bytes.
pub(super) fn is_same(one: &Object, other: &Object) -> bool {
    one.rv == other.rv
}

/// How sure a feed is that upstream's history is the one it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Continuity {
    /// The history was told without a break.
    #[default]
    Sure,
    /// The connection was lost. Upstream's storage may have gone back meanwhile.
    Doubtful,
    /// The connection was lost, and upstream's window does not have our newest change any more.
    Untold,
}

impl Continuity {
    /// Notes that the connection is lost, or upstream could not be reached.
    pub(super) fn lost(&mut self) {
        if *self == Self::Sure {
            *self = Self::Doubtful;
        }
    }

    pub(super) fn is_sure(self) -> bool {
        self == Self::Sure
    }

    /// The change that upstream is to tell again when its stream is opened. That costs one event, and shows whether the
    /// history is the same; a stream from our own version would be silent.
    pub(super) fn witness(self, cache: &CacheReader) -> Option<ResumeMarker> {
        if self == Self::Doubtful { cache.witness() } else { None }
    }
}

/// What the first item of a stream says that was to begin with our newest change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResumeEvidence {
    /// It is that change.
    Continues,
    /// The change is left out.
    Contradicts,
    /// Upstream does not have it any more.
    Expired,
    /// Upstream refuses for another reason, which says nothing of its history.
    Refuses,
}

pub(super) fn testimony(witness: &ResumeMarker, item: &WatchItem) -> ResumeEvidence {
    match item {
        WatchItem::Change { event_type, object, .. } if witness.is_told_by(*event_type, &object.key, object.rv) => {
            ResumeEvidence::Continues
        }
        WatchItem::Error { event } if event.code == 410 => ResumeEvidence::Expired,
        WatchItem::Error { .. } => ResumeEvidence::Refuses,
        WatchItem::Change { .. } | WatchItem::Bookmark { .. } => ResumeEvidence::Contradicts,
    }
}

#[cfg(test)]
mod tests;
