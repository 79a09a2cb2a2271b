//! The view of a watch that shows only some namespaces of a collection. The set changes with the caller's permissions.
//!
//! **Invariant.** Between two frames, the client knows each shown namespace as it is at the watch's position. So a
//! namespace appears or disappears at one position: the watch is read up to a mark, which is a snapshot and the
//! position after it. There, the objects of a new namespace are sent as ADDED, and those of a removed one as DELETED.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::initial_events::{FrameBatch, InitialStateSendProgress};
use crate::auth::{NamespaceAccess, NamespaceAccessChanges, ReadableNamespaces};
use crate::cache::{
    CollectionView, EventFilterDecision, FeedCursor, FeedEvent, FeedSnapshot, PullResult, SnapshotWithPosition,
};
use crate::serve::limits::TimedSnapshotPin;
use crate::wire::{ObjectRevision, TranscodeError};
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// The namespaces that a watch shows, and those that are being added or removed.
pub(super) struct NamespaceFilteredView {
    readable: ReadableNamespaces,
    places: BTreeMap<Arc<str>, NamespaceVisibility>,
    turn: Option<NamespaceViewChange>,
    /// Whether decisions have changed since the namespaces were last checked.
    stale: bool,
    changed: Pin<Box<dyn Future<Output = NamespaceAccessChanges> + Send>>,
}

/// The visibility of a namespace for the client. A namespace without an entry has not occurred yet, because it had no
/// matching objects.
#[derive(Debug)]
enum NamespaceVisibility {
    Shown,
    Hidden,
    Leaving(NamespaceRemoval),
}

/// A namespace that is no longer visible, and of which the client still has objects.
#[derive(Debug, Default)]
struct NamespaceRemoval {
    /// The objects that have changed since the namespace was removed. The client has received their deletion, or never
    /// had them.
    touched: HashSet<ObjectKey>,
    /// The first key that the client does not have; set if the namespace was still being added.
    before: Option<String>,
}

/// The addition and removal of namespaces at one mark.
struct NamespaceViewChange {
    mark: SnapshotWithPosition,
    pin: TimedSnapshotPin,
    coming: VecDeque<Arc<str>>,
    going: Option<VecDeque<Arc<str>>>,
    /// The key of the next object to send, in the first namespace that is being added or removed.
    next: String,
    /// Whether the mark is the initial state.
    begins: bool,
    /// Whether a bookmark must follow the objects of the initial state.
    end_bookmark: bool,
    /// Whether frames were put that are older than the mark, or that only this watch receives.
    reported_older: bool,
}

/// The decision about an event of a partial view.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EventDisposition {
    Send,
    /// The event is sent, and the namespace is visible from here on.
    SendAdded,
    Hidden,
    /// The namespace is hidden from here on, and the client must receive deletions for its objects.
    SendDeleted,
    /// The client must receive a deletion for the object.
    Retract,
    /// The permission for the namespace is not decided yet, and is being requested.
    Undecided,
}

/// The result of a completed view change.
pub(super) struct NamespaceViewChangeResult {
    /// The resourceVersion of the mark.
    pub(super) at: ResourceVersion,
    /// Whether the view change's frames were older than the mark, so that the client needs the watch's current version.
    pub(super) reported_older: bool,
}

impl NamespaceFilteredView {
    /// Creates the view of a watch. If there is a `state`, the first view change sends it. `namespaces` are those with
    /// matching objects.
    pub(super) fn new(
        readable: ReadableNamespaces,
        namespaces: Vec<Arc<str>>,
        cursor: &FeedCursor,
        state: Option<(TimedSnapshotPin, FeedSnapshot)>,
        end_bookmark: bool,
    ) -> Self {
        let mut coming = VecDeque::new();
        let mut places = BTreeMap::new();
        for namespace in namespaces {
            match readable.verdict(&namespace) {
                Some(NamespaceAccess::Allowed) if state.is_some() => {
                    coming.push_back(namespace.clone());
                    places.insert(namespace, NamespaceVisibility::Hidden)
                }
                Some(NamespaceAccess::Allowed) => places.insert(namespace, NamespaceVisibility::Shown),
                Some(NamespaceAccess::Denied | NamespaceAccess::Unclear) => {
                    places.insert(namespace, NamespaceVisibility::Hidden)
                }
                // The namespace appeared after the watch's position.
                None => None,
            };
        }
        let turn = state.map(|(pin, snapshot)| {
            let turn = NamespaceViewChange::new(cursor.mark_here(snapshot), pin, coming);
            NamespaceViewChange { begins: true, end_bookmark, ..turn }
        });
        let changed = Box::pin(readable.verdicts().changed());
        Self { readable, places, turn, stale: true, changed }
    }

    /// Records changed verdicts on namespaces. Later changes wake the task that polls.
    pub(super) fn notice(&mut self, cx: &mut Context<'_>) {
        while let Poll::Ready(verdicts) = self.changed.as_mut().poll(cx) {
            self.changed = Box::pin(verdicts.changed());
            self.stale = true;
        }
    }

    /// Whether namespaces are being added or removed. If so, the watch must be read up to the mark, where their frames
    /// are sent.
    pub(super) fn turns(&mut self, cursor: &FeedCursor, pin: impl FnOnce(&FeedSnapshot) -> TimedSnapshotPin) -> bool {
        if !std::mem::take(&mut self.stale) {
            return self.turn.is_some();
        }
        let mut goes = false;
        let mut coming = VecDeque::new();
        for (namespace, place) in &mut self.places {
            let allowed = self.readable.verdict(namespace) == Some(NamespaceAccess::Allowed);
            match place {
                NamespaceVisibility::Shown if !allowed => {
                    *place = NamespaceVisibility::Leaving(NamespaceRemoval::default());
                    goes = true;
                }
                NamespaceVisibility::Hidden if allowed => coming.push_back(namespace.clone()),
                NamespaceVisibility::Leaving(_) => goes = true,
                NamespaceVisibility::Shown | NamespaceVisibility::Hidden => {}
            }
        }
        if self.turn.is_none() && (goes || !coming.is_empty()) {
            let mark = cursor.mark();
            let pin = pin(&mark.snapshot);
            self.turn = Some(NamespaceViewChange::new(mark, pin, coming));
        }
        self.turn.is_some()
    }

    /// Records that the watch waits for a verdict, so that its client does not count as a slow reader.
    pub(super) fn wait(&self) {
        self.turn.iter().for_each(|turn| turn.pin.pause());
    }

    /// Whether no namespaces are known to be added or removed.
    pub(super) fn is_settled(&self) -> bool {
        self.turn.is_none() && !self.stale
    }

    /// Reads events, up to the mark of the current view change if there is one.
    pub(super) fn pull(
        &mut self,
        cursor: &mut FeedCursor,
        places_left: (usize, &mut usize),
        waker: Option<&Waker>,
        batch: &mut Vec<Bytes>,
    ) -> PullResult {
        let Self { readable, places, turn, stale, .. } = self;
        let until = turn.as_ref().map(|turn| &turn.mark);
        cursor.pull_sifted(until, places_left, waker.filter(|_| until.is_none()), batch, |event, seen| {
            sift(places, readable, event, seen, stale)
        })
    }

    /// Sends the frames of the current turn at the mark. The watch must have been read up to the mark.
    pub(super) fn tell(
        &mut self,
        out: &mut FrameBatch<'_>,
    ) -> Result<InitialStateSendProgress<NamespaceViewChangeResult>, TranscodeError> {
        let Self { readable, places, turn, stale, .. } = self;
        let Some(turn) = turn else { return Ok(InitialStateSendProgress::More) };
        turn.pin.progressed();
        if turn.come(readable, places, out)? == InitialStateSendProgress::More {
            return Ok(InitialStateSendProgress::More);
        }
        let at = turn.mark.snapshot.rv;
        if turn.end_bookmark {
            out.batch.push(out.reader.bookmark(at, true, out.cursor.renderer())?);
            turn.end_bookmark = false;
        }
        if turn.go(places, out)? == InitialStateSendProgress::More {
            return Ok(InitialStateSendProgress::More);
        }
        let end = NamespaceViewChangeResult { at, reported_older: turn.reported_older };
        self.turn = None;
        // Decisions that have changed during this turn need another one.
        *stale = true;
        Ok(InitialStateSendProgress::Last(end))
    }
}

impl NamespaceViewChange {
    fn new(mark: SnapshotWithPosition, pin: TimedSnapshotPin, coming: VecDeque<Arc<str>>) -> Self {
        let (going, next) = (None, String::new());
        Self { mark, pin, coming, going, next, begins: false, end_bookmark: false, reported_older: false }
    }

    /// Sends the objects of added namespaces as ADDED events.
    fn come(
        &mut self,
        readable: &ReadableNamespaces,
        places: &mut BTreeMap<Arc<str>, NamespaceVisibility>,
        out: &mut FrameBatch<'_>,
    ) -> Result<InitialStateSendProgress, TranscodeError> {
        while let Some(namespace) = self.coming.front().cloned() {
            let started = std::mem::take(&mut self.next);
            if readable.verdict(&namespace) != Some(NamespaceAccess::Allowed) {
                let place = match started.as_str() {
                    "" => NamespaceVisibility::Hidden,
                    _ => NamespaceVisibility::Leaving(NamespaceRemoval {
                        before: Some(started),
                        ..NamespaceRemoval::default()
                    }),
                };
                places.insert(namespace, place);
                self.coming.pop_front();
                continue;
            }
            let before = out.batch.len();
            let more = out.put(&self.mark.snapshot, &in_namespace(out, &namespace), &started, FrameBatch::added)?;
            self.reported_older |= !self.begins && out.batch.len() > before;
            if let Some(next) = more {
                self.next = next;
                return Ok(InitialStateSendProgress::More);
            }
            places.insert(namespace, NamespaceVisibility::Shown);
            self.coming.pop_front();
        }
        Ok(InitialStateSendProgress::Last(()))
    }

    /// Sends the objects of removed namespaces as DELETED events.
    fn go(
        &mut self,
        places: &mut BTreeMap<Arc<str>, NamespaceVisibility>,
        out: &mut FrameBatch<'_>,
    ) -> Result<InitialStateSendProgress, TranscodeError> {
        let leaving = |places: &BTreeMap<Arc<str>, NamespaceVisibility>| {
            let leaving = places.iter().filter(|(_, place)| matches!(place, NamespaceVisibility::Leaving(_)));
            leaving.map(|(namespace, _)| namespace.clone()).collect()
        };
        let going = self.going.get_or_insert_with(|| leaving(places));
        let at = self.mark.snapshot.rv;
        while let Some(namespace) = going.front().cloned() {
            let Some(NamespaceVisibility::Leaving(left)) = places.get(&namespace) else {
                going.pop_front();
                continue;
            };
            self.reported_older = true;
            let gone = |out: &FrameBatch<'_>, object: &Arc<ObjectRevision>| {
                let known = left.knows(&object.key).then(|| object.restamped(at));
                known.map(|body| out.cursor.renderer().frame(EventType::Deleted, &body)).transpose()
            };
            let start = std::mem::take(&mut self.next);
            let more = out.put(&self.mark.snapshot, &in_namespace(out, &namespace), &start, gone)?;
            if let Some(next) = more {
                self.next = next;
                return Ok(InitialStateSendProgress::More);
            }
            places.insert(namespace, NamespaceVisibility::Hidden);
            going.pop_front();
        }
        Ok(InitialStateSendProgress::Last(()))
    }
}

/// Returns the watch's view of one namespace.
fn in_namespace(out: &FrameBatch<'_>, namespace: &str) -> CollectionView {
    CollectionView::new(Some(namespace), out.cursor.view().selector().clone())
}

impl NamespaceRemoval {
    /// Whether the client has the object as it is at the mark.
    fn knows(&self, key: &ObjectKey) -> bool {
        !self.touched.contains(key) && self.before.as_deref().is_none_or(|before| key.as_str() < before)
    }
}

fn sift(
    places: &mut BTreeMap<Arc<str>, NamespaceVisibility>,
    readable: &ReadableNamespaces,
    event: &FeedEvent,
    seen: EventType,
    stale: &mut bool,
) -> EventFilterDecision {
    let (key, namespace) = (&event.object.key, event.object.key.namespace());
    match fate(places.get(namespace), readable.verdict(namespace)) {
        EventDisposition::Send => EventFilterDecision::Send,
        EventDisposition::SendAdded => {
            places.insert(namespace.into(), NamespaceVisibility::Shown);
            EventFilterDecision::Send
        }
        EventDisposition::Hidden => {
            if !places.contains_key(namespace) {
                places.insert(namespace.into(), NamespaceVisibility::Hidden);
            }
            EventFilterDecision::Skip
        }
        EventDisposition::SendDeleted => {
            *stale = true;
            let touched = HashSet::from([key.clone()]);
            places.insert(namespace.into(), NamespaceVisibility::Leaving(NamespaceRemoval { touched, before: None }));
            taken_back(seen)
        }
        EventDisposition::Retract => match places.get_mut(namespace) {
            Some(NamespaceVisibility::Leaving(left)) => {
                if left.touched.insert(key.clone()) {
                    taken_back(seen)
                } else {
                    EventFilterDecision::Skip
                }
            }
            _ => EventFilterDecision::Skip,
        },
        EventDisposition::Undecided => {
            readable.ask(namespace);
            EventFilterDecision::Undecided
        }
    }
}

/// Returns what the client receives for an object's first change after its permission was revoked: a deletion, if the
/// client knew the object.
fn taken_back(seen: EventType) -> EventFilterDecision {
    if seen == EventType::Added { EventFilterDecision::Skip } else { EventFilterDecision::SendDeleted }
}

fn fate(place: Option<&NamespaceVisibility>, verdict: Option<NamespaceAccess>) -> EventDisposition {
    match (place, verdict) {
        (None, None) => EventDisposition::Undecided,
        (None, Some(NamespaceAccess::Allowed)) => EventDisposition::SendAdded,
        (Some(NamespaceVisibility::Shown), Some(NamespaceAccess::Allowed)) => EventDisposition::Send,
        (Some(NamespaceVisibility::Shown), _) => EventDisposition::SendDeleted,
        (Some(NamespaceVisibility::Leaving(_)), _) => EventDisposition::Retract,
        (None | Some(NamespaceVisibility::Hidden), _) => EventDisposition::Hidden,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_outcome_depends_on_namespace_state_and_decision() {
        const ALLOWED: Option<NamespaceAccess> = Some(NamespaceAccess::Allowed);
        const DENIED: Option<NamespaceAccess> = Some(NamespaceAccess::Denied);
        const UNCLEAR: Option<NamespaceAccess> = Some(NamespaceAccess::Unclear);
        let leaving = NamespaceVisibility::Leaving(NamespaceRemoval::default());
        for (place, verdict, expected) in [
            (None, None, EventDisposition::Undecided),
            (None, ALLOWED, EventDisposition::SendAdded),
            (None, DENIED, EventDisposition::Hidden),
            (None, UNCLEAR, EventDisposition::Hidden),
            (Some(&NamespaceVisibility::Shown), ALLOWED, EventDisposition::Send),
            (Some(&NamespaceVisibility::Shown), DENIED, EventDisposition::SendDeleted),
            (Some(&NamespaceVisibility::Shown), UNCLEAR, EventDisposition::SendDeleted),
            (Some(&NamespaceVisibility::Shown), None, EventDisposition::SendDeleted),
            // Missed events are sent at a mark, not one by one.
            (Some(&NamespaceVisibility::Hidden), ALLOWED, EventDisposition::Hidden),
            (Some(&NamespaceVisibility::Hidden), DENIED, EventDisposition::Hidden),
            // The namespace must be removed completely before it can be added again.
            (Some(&leaving), ALLOWED, EventDisposition::Retract),
            (Some(&leaving), DENIED, EventDisposition::Retract),
        ] {
            assert_eq!(fate(place, verdict), expected, "{place:?} {verdict:?}");
        }
    }
}
