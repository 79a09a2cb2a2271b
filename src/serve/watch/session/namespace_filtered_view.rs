//! The view of a watch that shows only some namespaces of a collection. The set changes with the caller's permissions.
//!
//! **Invariant.** Between two frames, the client knows each shown namespace as it is at the watch's position. So a
//! namespace appears or disappears at one position: the watch is read up to a mark, which is a snapshot and the
//! position after it. There, the objects of a new namespace are sent as ADDED, and those of a removed one as DELETED.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use super::initial_events::FrameBatch;
use super::namespace_visibility::{NamespaceRemoval, NamespaceView, NamespaceViews, NamespaceVisibility, decide};
use super::timers::WatchExit;
use super::{WatchBatch, WatchSessionContext};
use crate::auth::{NamespaceAccess, NamespaceAccessChanges, ReadableNamespaces};
use crate::cache::{CollectionView, CursorStopReason, FeedCursor, FeedSnapshot, PullResult, SnapshotWithPosition};
use crate::serve::limits::TimedSnapshotPin;
use crate::wire::{ObjectRevision, TranscodeError};
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// The namespaces that a watch shows, and those that are being added or removed.
pub(super) struct NamespaceFilteredView {
    readable: ReadableNamespaces,
    namespaces: NamespaceViews,
    change: Option<NamespaceViewChange>,
    /// Whether decisions have changed since the namespaces were last checked.
    stale: bool,
    changed: Pin<Box<dyn Future<Output = NamespaceAccessChanges> + Send>>,
}

impl WatchSessionContext {
    /// Puts the events of a partial view, and the frames of namespaces whose permission has changed.
    pub(super) fn send_partial_view(&mut self, cx: &mut Context<'_>, batch: &mut WatchBatch) -> Result<(), WatchExit> {
        loop {
            let Self { partial: Some(partial), cursor, feed, timers, scan_budget, .. } = self else { return Ok(()) };
            partial.update(cx, cursor, |state| timers.pin(feed, state));
            match partial.pull(cursor, (batch.bytes_max, scan_budget.left()), Some(cx.waker()), &mut batch.frames) {
                PullResult::Stopped(CursorStopReason::MarkReached) => {}
                pull if pull != PullResult::Stopped(CursorStopReason::ScanBudgetSpent)
                    && batch.frames.is_empty()
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
            let mut out = FrameBatch::new(cursor, &feed.reader, scan_budget.left(), batch);
            if let Some(change) = partial.send_change(&mut out)? {
                self.last_sent_rv = self.last_sent_rv.max(change.mark.snapshot.rv);
                if self.bookmarks && change.reported_older {
                    batch.frames.push(self.bookmark(self.last_sent_rv)?);
                }
            }
            if !batch.frames.is_empty() || self.scan_budget.is_used_up() {
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
        let mut views = NamespaceViews::new();
        for namespace in namespaces {
            // If there is none, the namespace appeared after the watch's position.
            let Some(access) = readable.decision(&namespace) else { continue };
            let mut view = NamespaceView::default();
            match access {
                NamespaceAccess::Allowed if state.is_some() => adding.push_back(namespace.clone()),
                NamespaceAccess::Allowed => view = NamespaceView::shown(),
                NamespaceAccess::Named(names) if state.is_none() => view.names.clone_from(&names),
                NamespaceAccess::Denied | NamespaceAccess::Named(_) | NamespaceAccess::Unanswered => {}
            }
            views.insert(namespace, view);
        }
        let change = state.map(|(pin, snapshot)| {
            let mut change = NamespaceViewChange::new(cursor.capture_at_position(snapshot), pin, adding);
            (change.is_initial, change.end_bookmark) = (true, end_bookmark);
            change
        });
        let changed = Box::pin(readable.subscribe().changed());
        Self { readable, namespaces: views, change, stale: true, changed }
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
        for (namespace, view) in &mut self.namespaces {
            let access = self.readable.access(namespace);
            let allowed = access == NamespaceAccess::Allowed;
            match view.visibility {
                NamespaceVisibility::Shown if !allowed => {
                    view.visibility = NamespaceVisibility::Leaving(NamespaceRemoval::default());
                    is_changed = true;
                }
                NamespaceVisibility::Hidden if allowed => adding.push_back(namespace.clone()),
                NamespaceVisibility::Hidden => is_changed |= view.name_changes(&access).next().is_some(),
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
        let Self { readable, namespaces, change, stale, .. } = self;
        let mark = change.as_ref().map(|change| &change.mark);
        cursor.pull_filtered(mark, limits, waker.filter(|_| mark.is_none()), batch, |event, seen| {
            decide(namespaces, readable, &event.object.key, seen, stale)
        })
    }

    /// Sends the frames of the current change at the mark. The watch must have been read up to the mark. Returns the
    /// change once its last frame is sent.
    fn send_change(&mut self, out: &mut FrameBatch<'_>) -> Result<Option<NamespaceViewChange>, TranscodeError> {
        let Some(change) = &mut self.change else { return Ok(None) };
        if !change.send(&self.readable, &mut self.namespaces, out)? {
            return Ok(None);
        }
        // Decisions that have changed during this change need another one.
        self.stale = true;
        Ok(self.change.take())
    }
}

/// The addition and removal of namespaces and names at one mark.
#[expect(clippy::struct_excessive_bools, reason = "independent facts about one change")]
struct NamespaceViewChange {
    mark: SnapshotWithPosition,
    pin: TimedSnapshotPin,
    /// The namespaces to add, and after them those to remove.
    pending: VecDeque<Arc<str>>,
    is_removing: bool,
    /// The key of the next object to send, in the first pending namespace.
    next: String,
    /// Whether the mark is the initial state.
    is_initial: bool,
    /// Whether a bookmark must follow the objects of the initial state.
    end_bookmark: bool,
    /// Whether frames were put that are older than the mark, or that only this watch receives. Then the client needs
    /// the watch's current version.
    reported_older: bool,
}

impl NamespaceViewChange {
    /// Creates the change that first adds these namespaces, and then removes those that are leaving by then.
    fn new(mark: SnapshotWithPosition, pin: TimedSnapshotPin, adding: VecDeque<Arc<str>>) -> Self {
        Self {
            mark,
            pin,
            pending: adding,
            is_removing: false,
            next: String::new(),
            is_initial: false,
            end_bookmark: false,
            reported_older: false,
        }
    }

    /// Sends the next frames at the mark. The watch must have been read up to the mark. Like the parts of it, returns
    /// whether all frames are sent.
    fn send(
        &mut self,
        readable: &ReadableNamespaces,
        namespaces: &mut NamespaceViews,
        out: &mut FrameBatch<'_>,
    ) -> Result<bool, TranscodeError> {
        self.pin.extend();
        if !self.is_removing {
            if !self.send_added(readable, namespaces, out)? || !self.send_named(readable, namespaces, out)? {
                return Ok(false);
            }
            if self.end_bookmark {
                out.batch.frames.push(out.reader.bookmark(self.mark.snapshot.rv, true, out.cursor.renderer())?);
            }
            self.is_removing = true;
            let leaving =
                namespaces.iter().filter(|(_, view)| matches!(view.visibility, NamespaceVisibility::Leaving(_)));
            self.pending = leaving.map(|(namespace, _)| namespace.clone()).collect();
        }
        self.send_removed(namespaces, out)
    }

    /// Sends the objects of added namespaces as ADDED events.
    fn send_added(
        &mut self,
        readable: &ReadableNamespaces,
        namespaces: &mut NamespaceViews,
        out: &mut FrameBatch<'_>,
    ) -> Result<bool, TranscodeError> {
        while let Some(namespace) = self.pending.front() {
            let view = namespaces.entry(namespace.clone()).or_default();
            let started = std::mem::take(&mut self.next);
            if readable.decision(namespace) == Some(NamespaceAccess::Allowed) {
                let before = out.batch.frames.len();
                let more = out.put(&self.mark.snapshot, &in_namespace(out, namespace), &started, |out, object| {
                    if view.names.contains(object.key.name()) { Ok(None) } else { out.added(object) }
                })?;
                self.reported_older |= !self.is_initial && out.batch.frames.len() > before;
                if let Some(next) = more {
                    self.next = next;
                    return Ok(false);
                }
                *view = NamespaceView::shown();
            } else if !started.is_empty() {
                let removal = NamespaceRemoval { before: Some(started), ..NamespaceRemoval::default() };
                view.visibility = NamespaceVisibility::Leaving(removal);
            }
            self.pending.pop_front();
        }
        Ok(true)
    }

    /// Sends the objects that are shown by name from here on as ADDED events, and others as DELETED events.
    fn send_named(
        &mut self,
        readable: &ReadableNamespaces,
        namespaces: &mut NamespaceViews,
        out: &mut FrameBatch<'_>,
    ) -> Result<bool, TranscodeError> {
        let at = self.mark.snapshot.rv;
        let hidden = namespaces.iter_mut().filter(|(_, view)| !matches!(view.visibility, NamespaceVisibility::Shown));
        for (namespace, view) in hidden {
            // A decision may have changed since the first part was sent.
            let access = readable.access(namespace);
            let changes: Vec<_> =
                view.name_changes(&access).map(|(name, shows)| (Box::<str>::from(name), shows)).collect();
            for (name, shows) in changes {
                let key = ObjectKey::new(namespace, &name);
                let leaving = match &mut view.visibility {
                    NamespaceVisibility::Leaving(removal) => Some(removal),
                    NamespaceVisibility::Shown | NamespaceVisibility::Hidden => None,
                };
                let is_known = leaving.as_ref().is_some_and(|removal| removal.client_has(&key));
                let before = out.batch.frames.len();
                let is_put = out.put_one(&self.mark.snapshot, &key, |out, object| match shows {
                    true if is_known => Ok(None),
                    true => out.added(object),
                    false => deleted(out, object, at),
                })?;
                self.reported_older |= !self.is_initial && out.batch.frames.len() > before;
                if !is_put {
                    return Ok(false);
                }
                // Nothing more is sent of the object when the rest of the namespace is removed.
                leaving.into_iter().for_each(|removal| _ = removal.touched.insert(key.clone()));
                if shows {
                    view.names.insert(name)
                } else {
                    view.names.remove(&name)
                };
            }
        }
        Ok(true)
    }

    /// Sends the objects of removed namespaces as DELETED events.
    fn send_removed(
        &mut self,
        namespaces: &mut NamespaceViews,
        out: &mut FrameBatch<'_>,
    ) -> Result<bool, TranscodeError> {
        let at = self.mark.snapshot.rv;
        while let Some(namespace) = self.pending.front() {
            if let Some(view) = namespaces.get_mut(namespace)
                && let NamespaceVisibility::Leaving(removal) = &view.visibility
            {
                self.reported_older = true;
                let start = std::mem::take(&mut self.next);
                let more = out.put(&self.mark.snapshot, &in_namespace(out, namespace), &start, |out, object| {
                    let is_known = removal.client_has(&object.key) && !view.names.contains(object.key.name());
                    if is_known { deleted(out, object, at) } else { Ok(None) }
                })?;
                if let Some(next) = more {
                    self.next = next;
                    return Ok(false);
                }
                view.visibility = NamespaceVisibility::Hidden;
            }
            self.pending.pop_front();
        }
        Ok(true)
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
