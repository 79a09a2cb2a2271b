//! How a watch that shows only some namespaces sends what is added and removed at one position.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;

use super::initial_events::{FrameBatch, InitialStateSendProgress};
use super::named_objects::{NameChange, NamedObjects};
use super::namespace_visibility::{NamespaceRemoval, NamespaceVisibilities, NamespaceVisibility};
use crate::auth::{NamespaceAccess, ReadableNamespaces};
use crate::cache::{CollectionView, SnapshotWithPosition};
use crate::serve::limits::TimedSnapshotPin;
use crate::wire::{ObjectRevision, TranscodeError};
use kubeapi::{EventType, ResourceVersion};

/// The addition and removal of namespaces and names at one mark.
pub(super) struct NamespaceViewChange {
    mark: SnapshotWithPosition,
    pin: TimedSnapshotPin,
    adding: VecDeque<Arc<str>>,
    /// The names that are being shown or hidden.
    naming: Option<VecDeque<NameChange>>,
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

/// The result of a completed view change.
pub(super) struct NamespaceViewChangeResult {
    /// The resourceVersion of the mark.
    pub(super) at: ResourceVersion,
    /// Whether the view change's frames were older than the mark, so that the client needs the watch's current version.
    pub(super) reported_older: bool,
}

impl NamespaceViewChange {
    pub(super) fn new(mark: SnapshotWithPosition, pin: TimedSnapshotPin, adding: VecDeque<Arc<str>>) -> Self {
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

    /// Creates the change that sends the initial state, and then a bookmark if `end_bookmark`.
    pub(super) fn of_initial_state(
        mark: SnapshotWithPosition,
        pin: TimedSnapshotPin,
        adding: VecDeque<Arc<str>>,
        end_bookmark: bool,
    ) -> Self {
        Self { is_initial: true, end_bookmark, ..Self::new(mark, pin, adding) }
    }

    pub(super) fn mark(&self) -> &SnapshotWithPosition {
        &self.mark
    }

    /// Records that the watch waits for a verdict, so that its client does not count as a slow reader.
    pub(super) fn pause(&self) {
        self.pin.pause();
    }

    /// Sends the next frames at the mark. The watch must have been read up to the mark. Returns the result once the last
    /// frame is sent.
    pub(super) fn send(
        &mut self,
        readable: &ReadableNamespaces,
        (namespaces, named): (&mut NamespaceVisibilities, &mut NamedObjects),
        out: &mut FrameBatch<'_>,
    ) -> Result<Option<NamespaceViewChangeResult>, TranscodeError> {
        self.pin.extend();
        if self.send_added(readable, (namespaces, named), out)? == InitialStateSendProgress::More
            || self.send_named(readable, (namespaces, named), out)? == InitialStateSendProgress::More
        {
            return Ok(None);
        }
        let at = self.mark.snapshot.rv;
        if std::mem::take(&mut self.end_bookmark) {
            out.batch.push(out.reader.bookmark(at, true, out.cursor.renderer())?);
        }
        if self.send_removed(namespaces, named, out)? == InitialStateSendProgress::More {
            return Ok(None);
        }
        Ok(Some(NamespaceViewChangeResult { at, reported_older: self.reported_older }))
    }

    /// Sends the objects of added namespaces as ADDED events.
    fn send_added(
        &mut self,
        readable: &ReadableNamespaces,
        (namespaces, named): (&mut NamespaceVisibilities, &mut NamedObjects),
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
        (namespaces, named): (&mut NamespaceVisibilities, &mut NamedObjects),
        out: &mut FrameBatch<'_>,
    ) -> Result<InitialStateSendProgress, TranscodeError> {
        let changes = || {
            let hidden = namespaces.iter().filter(|(_, visibility)| !matches!(visibility, NamespaceVisibility::Shown));
            hidden.flat_map(|(namespace, _)| named.changes(namespace, &readable.access(namespace))).collect()
        };
        let naming = self.naming.get_or_insert_with(changes);
        let at = self.mark.snapshot.rv;
        while let Some(change) = naming.front() {
            let key = &change.key;
            // A decision may have changed since the first part was sent.
            if change.is_required_by(&readable.access(key.namespace())) {
                let leaving = match namespaces.get_mut(key.namespace()) {
                    Some(NamespaceVisibility::Leaving(removal)) => Some(removal),
                    _ => None,
                };
                let is_known = leaving.as_ref().is_some_and(|removal| removal.client_has(key));
                let before = out.batch.len();
                let is_put = out.put_one(&self.mark.snapshot, key, |out, object| match change.shows {
                    true if is_known => Ok(None),
                    true => out.added(object),
                    false => deleted(out, object, at),
                })?;
                self.reported_older |= !self.is_initial && out.batch.len() > before;
                if !is_put {
                    return Ok(InitialStateSendProgress::More);
                }
                // Nothing more is sent of the object when the rest of the namespace is removed.
                leaving.into_iter().for_each(|removal| _ = removal.touched.insert(key.clone()));
                named.apply(change);
            }
            naming.pop_front();
        }
        Ok(InitialStateSendProgress::Last)
    }

    /// Sends the objects of removed namespaces as DELETED events.
    fn send_removed(
        &mut self,
        namespaces: &mut NamespaceVisibilities,
        named: &NamedObjects,
        out: &mut FrameBatch<'_>,
    ) -> Result<InitialStateSendProgress, TranscodeError> {
        let leaving = |namespaces: &NamespaceVisibilities| {
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
