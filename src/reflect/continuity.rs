//! Whether upstream still tells the history that a feed holds. Decided here, acted upon by the reflector.
//!
//! A storage that was restored from a backup counts its versions up again from an earlier one. As long as it is behind
//! what we hold, its version shows that. Once it has passed it, versions alone look as they should, and what shows it
//! is the content: an object at a version that we had been told everything of, and that we do not know.

use std::cmp::Ordering;

use crate::cache::{CacheReader, Snapshot, Witness};
use crate::kube::{ObjectKey, ResourceVersion};
use crate::wire::{Object, WatchItem};

/// What a listed state says about the history that a feed holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Finding {
    /// Nothing has changed.
    Same,
    /// What differs may have happened later.
    Later,
    /// It cannot have come of what we hold: upstream's history is another one.
    Other,
}

/// One object's place in a state.
pub(super) type Placed<'a> = (&'a ObjectKey, ResourceVersion);

/// How far a feed is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reach {
    pub(super) at: ResourceVersion,
    /// Up to here everything that happened is known: of the version of the newest event more may be on its way.
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
        // What is gone went by the listed version at the latest.
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

/// Whether two objects of one key are the same one: by their versions, which a storage that does not go back gives only
/// once. Bodies are not compared: another release of the apiserver writes the same object in other bytes.
pub(super) fn is_same(one: &Object, other: &Object) -> bool {
    one.rv == other.rv
}

/// How sure a feed is that upstream's history is the one it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Continuity {
    /// It has been told of it without a break.
    #[default]
    Sure,
    /// The connection was lost. Whatever happened to upstream may have happened then.
    Doubtful,
    /// The same, and upstream's window does not have our newest change any more.
    Untold,
}

impl Continuity {
    /// The connection is lost, or upstream could not be reached.
    pub(super) fn lost(&mut self) {
        if *self == Self::Sure {
            *self = Self::Doubtful;
        }
    }

    pub(super) fn is_sure(self) -> bool {
        self == Self::Sure
    }

    /// The change that upstream is to tell again when its stream is opened: it costs one event, and shows whether the
    /// history is the same one where a stream from our own version would be silent.
    pub(super) fn witness(self, cache: &CacheReader) -> Option<Witness> {
        if self == Self::Doubtful { cache.witness() } else { None }
    }
}

/// What the first item of a stream says that was to begin with our newest change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Testimony {
    /// It is that change.
    Continues,
    /// The change is left out.
    Contradicts,
    /// Upstream does not have it any more.
    Expired,
    /// Upstream refuses for another reason, which says nothing of its history.
    Refuses,
}

pub(super) fn testimony(witness: &Witness, item: &WatchItem) -> Testimony {
    match item {
        WatchItem::Change { event_type, object, .. } if witness.is_told_by(*event_type, &object.key, object.rv) => {
            Testimony::Continues
        }
        WatchItem::Error { event } if event.code == 410 => Testimony::Expired,
        WatchItem::Error { .. } => Testimony::Refuses,
        WatchItem::Change { .. } | WatchItem::Bookmark { .. } => Testimony::Contradicts,
    }
}

#[cfg(test)]
mod tests;
