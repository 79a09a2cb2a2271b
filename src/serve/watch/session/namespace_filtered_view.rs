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

use super::WatchSessionContext;
use super::end::WatchExit;
use super::initial_events::FrameBatch;
use super::named_objects::NamedObjects;
use super::namespace_view_change::{NamespaceViewChange, NamespaceViewChangeResult};
use super::namespace_visibility::{self, NamespaceRemoval, NamespaceVisibilities, NamespaceVisibility};
use crate::auth::{NamespaceAccess, NamespaceAccessChanges, ReadableNamespaces};
use crate::cache::{CursorStopReason, FeedCursor, FeedSnapshot, PullResult};
use crate::serve::limits::TimedSnapshotPin;
use crate::wire::TranscodeError;

/// The namespaces that a watch shows, and those that are being added or removed.
pub(super) struct NamespaceFilteredView {
    readable: ReadableNamespaces,
    namespaces: NamespaceVisibilities,
    /// The objects that are shown by name, in namespaces that are not shown.
    named: NamedObjects,
    change: Option<NamespaceViewChange>,
    /// Whether decisions have changed since the namespaces were last checked.
    stale: bool,
    changed: Pin<Box<dyn Future<Output = NamespaceAccessChanges> + Send>>,
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
            let mut out = FrameBatch::new(cursor, &feed.reader, (bytes_max, scan_budget.left()), batch);
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
        let (mut visibilities, mut named) = (NamespaceVisibilities::new(), NamedObjects::default());
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
            NamespaceViewChange::of_initial_state(cursor.capture_at_position(snapshot), pin, adding, end_bookmark)
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
                NamespaceVisibility::Hidden => is_changed |= self.named.differs(namespace, &access),
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
        self.change.iter().for_each(NamespaceViewChange::pause);
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
        let mark = change.as_ref().map(NamespaceViewChange::mark);
        cursor.pull_filtered(mark, limits, waker.filter(|_| mark.is_none()), batch, |event, seen| {
            namespace_visibility::decide((namespaces, named), readable, event, seen, stale)
        })
    }

    /// Sends the frames of the current change at the mark. The watch must have been read up to the mark. Returns the
    /// result once the last frame is sent.
    pub(super) fn send_change(
        &mut self,
        out: &mut FrameBatch<'_>,
    ) -> Result<Option<NamespaceViewChangeResult>, TranscodeError> {
        let Self { readable, namespaces, named, change: Some(change), .. } = self else { return Ok(None) };
        let Some(end) = change.send(readable, (namespaces, named), out)? else { return Ok(None) };
        self.change = None;
        // Decisions that have changed during this change need another one.
        self.stale = true;
        Ok(Some(end))
    }
}
