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

use super::WatchSessionContext;
use super::end::WatchExit;
use super::initial_events::{FrameBatch, InitialStateSendProgress};
use super::named_objects::{NameChange, NamedObjects};
use crate::auth::{NamespaceAccess, NamespaceAccessChanges, ReadableNamespaces};
use crate::cache::{
    CollectionView, CursorStopReason, EventFilterDecision, FeedCursor, FeedEvent, FeedSnapshot, PullResult,
    SnapshotWithPosition,
};
use crate::serve::limits::TimedSnapshotPin;
use crate::wire::{ObjectRevision, TranscodeError};
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// The namespaces that a watch shows, and those that are being added or removed.
pub(super) struct NamespaceFilteredView {
    readable: ReadableNamespaces,
    namespaces: BTreeMap<Arc<str>, NamespaceVisibility>,
    /// The objects that are shown by name, in namespaces that are not shown.
    named: NamedObjects,
    change: Option<NamespaceViewChange>,
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

/// The addition and removal of namespaces and names at one mark.
struct NamespaceViewChange {
    mark: SnapshotWithPosition,
    pin: TimedSnapshotPin,
    adding: VecDeque<Arc<str>>,
    /// The namespaces whose shown names are being changed.
    naming: Option<VecDeque<Arc<str>>>,
    removing: Option<VecDeque<Arc<str>>>,
    /// The key of the next object to send, in the first namespace that is being added or removed.
    next: String,
    /// Whether the mark is the initial state.
    is_initial: bool,
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

impl WatchSessionContext {
    /// Puts the events of a partial view, and the frames of namespaces whose permission has changed.
    pub(super) fn send_visible_namespaces(
        &mut self,
        cx: &mut Context<'_>,
        bytes_max: usize,
        batch: &mut Vec<Bytes>,
    ) -> Result<(), WatchExit> {
        loop {
            let Self { partial: Some(partial), cursor, feed, timers, scan_budget, .. } = self else { return Ok(()) };
            partial.update(cx, cursor, |state| timers.pin(feed, state));
            match partial.pull(cursor, (bytes_max, scan_budget.left()), Some(cx.waker()), batch) {
                PullResult::Stopped(CursorStopReason::MarkReached) => {}
                pull if pull != PullResult::Stopped(CursorStopReason::ScanBudgetSpent)
                    && batch.is_empty()
                    && partial.needs_update() =>
                {
                    continue;
                }
                pull => {
                    if pull == PullResult::Stopped(CursorStopReason::Undecided) {
                        partial.wait();
                    }
                    return self.handle_pull(pull, batch);
                }
            }
            let mut out =
                FrameBatch { cursor, reader: &feed.reader, bytes_max, scan_budget: scan_budget.left(), batch };
            if let Some(end) = partial.send_change(&mut out)? {
                self.last_sent_rv = self.last_sent_rv.max(end.at);
                if self.bookmarks && end.reported_older {
                    batch.push(self.bookmark(self.last_sent_rv)?);
                }
            }
            if !batch.is_empty() || self.scan_budget.is_used_up() {
                return Ok(());
            }
        }
    }
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
        let mut adding = VecDeque::new();
        let (mut visibilities, mut named) = (BTreeMap::new(), NamedObjects::default());
        for namespace in namespaces {
            match readable.decision(&namespace) {
                Some(NamespaceAccess::Allowed) if state.is_some() => {
                    adding.push_back(namespace.clone());
                    visibilities.insert(namespace, NamespaceVisibility::Hidden)
                }
                Some(NamespaceAccess::Allowed) => visibilities.insert(namespace, NamespaceVisibility::Shown),
                Some(NamespaceAccess::Named(names)) if state.is_none() => {
                    names.iter().for_each(|name| named.insert(&namespace, name));
                    visibilities.insert(namespace, NamespaceVisibility::Hidden)
                }
                Some(NamespaceAccess::Denied | NamespaceAccess::Named(_) | NamespaceAccess::Unanswered) => {
                    visibilities.insert(namespace, NamespaceVisibility::Hidden)
                }
                // The namespace appeared after the watch's position.
                None => None,
            };
        }
        let change = state.map(|(pin, snapshot)| {
            let change = NamespaceViewChange::new(cursor.capture_at_position(snapshot), pin, adding);
            NamespaceViewChange { is_initial: true, end_bookmark, ..change }
        });
        let changed = Box::pin(readable.subscribe().changed());
        Self { readable, namespaces: visibilities, named, change, stale: true, changed }
    }

    /// Checks changed verdicts on namespaces; later changes wake the task that polls. If namespaces must be added or
    /// removed, the watch must be read up to a mark, where their frames are sent.
    pub(super) fn update(
        &mut self,
        cx: &mut Context<'_>,
        cursor: &FeedCursor,
        pin: impl FnOnce(&FeedSnapshot) -> TimedSnapshotPin,
    ) {
        while let Poll::Ready(verdicts) = self.changed.as_mut().poll(cx) {
            self.changed = Box::pin(verdicts.changed());
            self.stale = true;
        }
        if !std::mem::take(&mut self.stale) {
            return;
        }
        let mut is_changed = false;
        let mut adding = VecDeque::new();
        for (namespace, visibility) in &mut self.namespaces {
            let access = self.readable.access(namespace);
            let allowed = access == NamespaceAccess::Allowed;
            match visibility {
                NamespaceVisibility::Shown if !allowed => {
                    *visibility = NamespaceVisibility::Leaving(NamespaceRemoval::default());
                    is_changed = true;
                }
                NamespaceVisibility::Hidden if allowed => adding.push_back(namespace.clone()),
                NamespaceVisibility::Hidden => is_changed |= self.named.next_change(namespace, &access).is_some(),
                NamespaceVisibility::Leaving(_) => is_changed = true,
                NamespaceVisibility::Shown => {}
            }
        }
        if self.change.is_none() && (is_changed || !adding.is_empty()) {
            let mark = cursor.capture();
            let pin = pin(&mark.snapshot);
            self.change = Some(NamespaceViewChange::new(mark, pin, adding));
        }
    }

    /// Whether an event has changed which namespaces must be added or removed, since the last update.
    pub(super) fn needs_update(&self) -> bool {
        self.change.is_none() && self.stale
    }

    /// Records that the watch waits for a verdict, so that its client does not count as a slow reader.
    pub(super) fn wait(&self) {
        self.change.iter().for_each(|change| change.pin.pause());
    }

    /// Whether no namespaces are known to be added or removed.
    pub(super) fn is_settled(&self) -> bool {
        self.change.is_none() && !self.stale
    }

    /// Reads events, up to the mark of the current view change if there is one.
    pub(super) fn pull(
        &mut self,
        cursor: &mut FeedCursor,
        limits: (usize, &mut usize),
        waker: Option<&Waker>,
        batch: &mut Vec<Bytes>,
    ) -> PullResult {
        let Self { readable, namespaces, named, change, stale, .. } = self;
        let mark = change.as_ref().map(|change| &change.mark);
        cursor.pull_filtered(mark, limits, waker.filter(|_| mark.is_none()), batch, |event, seen| {
            decide((namespaces, named), readable, event, seen, stale)
        })
    }

    /// Sends the frames of the current change at the mark. The watch must have been read up to the mark. Returns the
    /// result once the last frame is sent.
    pub(super) fn send_change(
        &mut self,
        out: &mut FrameBatch<'_>,
    ) -> Result<Option<NamespaceViewChangeResult>, TranscodeError> {
        let Self { readable, namespaces, named, change, stale, .. } = self;
        let Some(change) = change else { return Ok(None) };
        change.pin.extend();
        if change.send_added(readable, (namespaces, named), out)? == InitialStateSendProgress::More
            || change.send_named(readable, (namespaces, named), out)? == InitialStateSendProgress::More
        {
            return Ok(None);
        }
        let at = change.mark.snapshot.rv;
        if change.end_bookmark {
            out.batch.push(out.reader.bookmark(at, true, out.cursor.renderer())?);
            change.end_bookmark = false;
        }
        if change.send_removed(namespaces, named, out)? == InitialStateSendProgress::More {
            return Ok(None);
        }
        let end = NamespaceViewChangeResult { at, reported_older: change.reported_older };
        self.change = None;
        // Decisions that have changed during this change need another one.
        *stale = true;
        Ok(Some(end))
    }
}

impl NamespaceViewChange {
    fn new(mark: SnapshotWithPosition, pin: TimedSnapshotPin, adding: VecDeque<Arc<str>>) -> Self {
        let (naming, removing, next) = (None, None, String::new());
        Self {
            mark,
            pin,
            adding,
            naming,
            removing,
            next,
            is_initial: false,
            end_bookmark: false,
            reported_older: false,
        }
    }

    /// Sends the objects of added namespaces as ADDED events.
    fn send_added(
        &mut self,
        readable: &ReadableNamespaces,
        (namespaces, named): (&mut BTreeMap<Arc<str>, NamespaceVisibility>, &mut NamedObjects),
        out: &mut FrameBatch<'_>,
    ) -> Result<InitialStateSendProgress, TranscodeError> {
        while let Some(namespace) = self.adding.front().cloned() {
            let started = std::mem::take(&mut self.next);
            if readable.decision(&namespace) != Some(NamespaceAccess::Allowed) {
                let visibility = match started.as_str() {
                    "" => NamespaceVisibility::Hidden,
                    _ => NamespaceVisibility::Leaving(NamespaceRemoval {
                        before: Some(started),
                        ..NamespaceRemoval::default()
                    }),
                };
                namespaces.insert(namespace, visibility);
                self.adding.pop_front();
                continue;
            }
            let before = out.batch.len();
            let more = out.put(&self.mark.snapshot, &in_namespace(out, &namespace), &started, |out, object| {
                if named.contains(&object.key) { Ok(None) } else { out.added(object) }
            })?;
            self.reported_older |= !self.is_initial && out.batch.len() > before;
            if let Some(next) = more {
                self.next = next;
                return Ok(InitialStateSendProgress::More);
            }
            named.clear(&namespace);
            namespaces.insert(namespace, NamespaceVisibility::Shown);
            self.adding.pop_front();
        }
        Ok(InitialStateSendProgress::Last)
    }

    /// Sends the objects that are shown by name from here on as ADDED events, and others as DELETED events.
    fn send_named(
        &mut self,
        readable: &ReadableNamespaces,
        (namespaces, named): (&mut BTreeMap<Arc<str>, NamespaceVisibility>, &mut NamedObjects),
        out: &mut FrameBatch<'_>,
    ) -> Result<InitialStateSendProgress, TranscodeError> {
        let hidden = |namespaces: &BTreeMap<Arc<str>, NamespaceVisibility>| {
            let hidden = namespaces.iter().filter(|(_, visibility)| !matches!(visibility, NamespaceVisibility::Shown));
            hidden.map(|(namespace, _)| namespace.clone()).collect()
        };
        let naming = self.naming.get_or_insert_with(|| hidden(namespaces));
        let at = self.mark.snapshot.rv;
        while let Some(namespace) = naming.front() {
            let Some(change) = named.next_change(namespace, &readable.access(namespace)) else {
                naming.pop_front();
                continue;
            };
            let (NameChange::Show(name) | NameChange::Hide(name)) = &change;
            let key = ObjectKey::new(namespace, name);
            let mut leaving = match namespaces.get_mut(namespace) {
                Some(NamespaceVisibility::Leaving(removal)) => Some(removal),
                _ => None,
            };
            let is_known = leaving.as_ref().is_some_and(|removal| removal.client_has(&key));
            let before = out.batch.len();
            let mut view = in_namespace(out, namespace).selector().clone();
            view.fields = view.fields.requiring_name(name);
            let view = CollectionView::new(Some(namespace), view);
            let more = out.put(&self.mark.snapshot, &view, "", |out, object| match &change {
                NameChange::Show(_) if is_known => Ok(None),
                NameChange::Show(_) => out.added(object),
                NameChange::Hide(_) => deleted(out, object, at),
            })?;
            self.reported_older |= !self.is_initial && out.batch.len() > before;
            if more.is_some() {
                return Ok(InitialStateSendProgress::More);
            }
            // Nothing more is sent of the object when the rest of the namespace is removed.
            if let Some(removal) = &mut leaving {
                removal.touched.insert(key);
            }
            match &change {
                NameChange::Show(name) => named.insert(namespace, name),
                NameChange::Hide(name) => named.remove(namespace, name),
            }
        }
        Ok(InitialStateSendProgress::Last)
    }

    /// Sends the objects of removed namespaces as DELETED events.
    fn send_removed(
        &mut self,
        namespaces: &mut BTreeMap<Arc<str>, NamespaceVisibility>,
        named: &NamedObjects,
        out: &mut FrameBatch<'_>,
    ) -> Result<InitialStateSendProgress, TranscodeError> {
        let leaving = |namespaces: &BTreeMap<Arc<str>, NamespaceVisibility>| {
            let leaving =
                namespaces.iter().filter(|(_, visibility)| matches!(visibility, NamespaceVisibility::Leaving(_)));
            leaving.map(|(namespace, _)| namespace.clone()).collect()
        };
        let removing = self.removing.get_or_insert_with(|| leaving(namespaces));
        let at = self.mark.snapshot.rv;
        while let Some(namespace) = removing.front().cloned() {
            let Some(NamespaceVisibility::Leaving(removal)) = namespaces.get(&namespace) else {
                removing.pop_front();
                continue;
            };
            self.reported_older = true;
            let start = std::mem::take(&mut self.next);
            let more = out.put(&self.mark.snapshot, &in_namespace(out, &namespace), &start, |out, object| {
                let is_known = removal.client_has(&object.key) && !named.contains(&object.key);
                if is_known { deleted(out, object, at) } else { Ok(None) }
            })?;
            if let Some(next) = more {
                self.next = next;
                return Ok(InitialStateSendProgress::More);
            }
            namespaces.insert(namespace, NamespaceVisibility::Hidden);
            removing.pop_front();
        }
        Ok(InitialStateSendProgress::Last)
    }
}

/// Returns the DELETED event of an object that is hidden at a version.
fn deleted(
    out: &FrameBatch<'_>,
    object: &Arc<ObjectRevision>,
    at: ResourceVersion,
) -> Result<Option<Bytes>, TranscodeError> {
    out.cursor.renderer().frame(EventType::Deleted, &object.with_resource_version(at)).map(Some)
}

/// Returns the watch's view of one namespace: of the objects in it, or of the `Namespace` itself.
fn in_namespace(out: &FrameBatch<'_>, namespace: &str) -> CollectionView {
    let mut selector = out.cursor.view().selector().clone();
    if out.reader.namespaced() {
        return CollectionView::new(Some(namespace), selector);
    }
    selector.fields = selector.fields.requiring_name(namespace);
    CollectionView::new(None, selector)
}

impl NamespaceRemoval {
    /// Whether the client has the object as it is at the mark.
    fn client_has(&self, key: &ObjectKey) -> bool {
        !self.touched.contains(key) && self.before.as_deref().is_none_or(|before| key.as_str() < before)
    }
}

fn decide(
    (namespaces, named): (&mut BTreeMap<Arc<str>, NamespaceVisibility>, &mut NamedObjects),
    readable: &ReadableNamespaces,
    event: &FeedEvent,
    seen: EventType,
    stale: &mut bool,
) -> EventFilterDecision {
    let (key, namespace) = (&event.object.key, event.object.key.namespace_or_name());
    let access = readable.decision(namespace);
    let allows = access.as_ref().is_some_and(|access| access.allows(key.name()));
    if named.contains(key) {
        if !allows {
            named.remove(namespace, key.name());
            if let Some(NamespaceVisibility::Leaving(removal)) = namespaces.get_mut(namespace) {
                removal.touched.insert(key.clone());
            }
        }
        return if allows { EventFilterDecision::Send } else { retraction(seen) };
    }
    match disposition(namespaces.get(namespace), access.as_ref()) {
        EventDisposition::Send => EventFilterDecision::Send,
        EventDisposition::SendAdded => {
            namespaces.insert(namespace.into(), NamespaceVisibility::Shown);
            EventFilterDecision::Send
        }
        EventDisposition::Hidden => {
            if namespaces.contains_key(namespace) {
                return EventFilterDecision::Skip;
            }
            namespaces.insert(namespace.into(), NamespaceVisibility::Hidden);
            // Its other names are shown from the next mark on.
            *stale |= matches!(access, Some(NamespaceAccess::Named(_)));
            if !allows {
                return EventFilterDecision::Skip;
            }
            named.insert(namespace, key.name());
            EventFilterDecision::Send
        }
        EventDisposition::SendDeleted => {
            *stale = true;
            let touched = HashSet::from([key.clone()]);
            namespaces
                .insert(namespace.into(), NamespaceVisibility::Leaving(NamespaceRemoval { touched, before: None }));
            if !allows {
                return retraction(seen);
            }
            named.insert(namespace, key.name());
            EventFilterDecision::Send
        }
        EventDisposition::Retract => match namespaces.get_mut(namespace) {
            Some(NamespaceVisibility::Leaving(removal)) => {
                if matches!(access, Some(NamespaceAccess::Named(_))) && allows && removal.client_has(key) {
                    removal.touched.insert(key.clone());
                    named.insert(namespace, key.name());
                    EventFilterDecision::Send
                } else if removal.touched.insert(key.clone()) {
                    retraction(seen)
                } else {
                    EventFilterDecision::Skip
                }
            }
            _ => EventFilterDecision::Skip,
        },
        EventDisposition::Undecided => {
            readable.request_review(namespace);
            EventFilterDecision::Undecided
        }
    }
}

/// Returns what the client receives for an object's first change after its permission was revoked: a deletion, if the
/// client knew the object.
fn retraction(seen: EventType) -> EventFilterDecision {
    if seen == EventType::Added { EventFilterDecision::Skip } else { EventFilterDecision::SendDeleted }
}

fn disposition(visibility: Option<&NamespaceVisibility>, access: Option<&NamespaceAccess>) -> EventDisposition {
    match (visibility, access) {
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
        const ALLOWED: Option<&NamespaceAccess> = Some(&NamespaceAccess::Allowed);
        const DENIED: Option<&NamespaceAccess> = Some(&NamespaceAccess::Denied);
        const UNCLEAR: Option<&NamespaceAccess> = Some(&NamespaceAccess::Unanswered);
        let leaving = NamespaceVisibility::Leaving(NamespaceRemoval::default());
        for (visibility, access, expected) in [
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
            assert_eq!(disposition(visibility, access), expected, "{visibility:?} {access:?}");
        }
    }
}
