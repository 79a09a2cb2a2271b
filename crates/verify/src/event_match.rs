//! Compares the events of a watch with the events that it must get.

use super::operation::RecordedOperation;
use super::truth::ResourceGroundTruth;
use super::view::SelectionView;

/// The relation of one event of a watch to the required events. Events are numbered from the first live one on;
/// positions are those of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EventMatch {
    /// A required event, in order or out of order.
    Due { event: usize, position: usize },
    /// An event that is late or repeated, or at or below the requested version.
    Past { event: usize, position: Option<usize> },
    /// A required event that was missing when a later event or a bookmark arrived.
    Missed { position: usize, event: usize },
    /// A change that does not concern this selection.
    Foreign { event: usize },
    /// The event is a change that never happened.
    NotLearnt { event: usize },
}

/// The position that a watch reached among the required events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct WatchMatchResult {
    /// The first position from which no event was delivered.
    pub(super) next: usize,
    /// Earlier positions whose events may still be delivered, because they share the last version.
    pub(super) pending: Vec<usize>,
}

/// Classifies the live events of a watch, as far as the truth is known. Events of one version may be in any order.
pub(super) fn follow(
    truth: &ResourceGroundTruth,
    view: &SelectionView,
    op: &RecordedOperation,
    mut step: impl FnMut(EventMatch),
) -> WatchMatchResult {
    let first = || op.live().iter().find(|received| received.change().is_some());
    let start = op.start().or_else(|| first().map(|received| received.version - 1)).unwrap_or(u64::MAX);
    let mut reached = WatchMatchResult { next: view.index_behind(start.max(truth.from)), pending: Vec::new() };
    for (event, received) in op.live().iter().enumerate() {
        if received.is_bookmark() {
            reached.pass(view, received.version.min(truth.to), |position| step(EventMatch::Missed { position, event }));
            continue;
        }
        let is_known = truth.from < received.version && received.version <= truth.to;
        if !received.is_object() {
            continue;
        }
        if received.version <= start {
            step(EventMatch::Past { event, position: received.change().and_then(|change| view.position(change)) });
            continue;
        }
        if !is_known {
            continue;
        }
        let Some(change) = received.change() else {
            step(EventMatch::NotLearnt { event });
            continue;
        };
        let Some(position) = view.position(change) else {
            step(EventMatch::Foreign { event });
            continue;
        };
        if let Some(at) = reached.pending.iter().position(|pending| *pending == position) {
            reached.pending.swap_remove(at);
        } else if position < reached.next {
            step(EventMatch::Past { event, position: Some(position) });
            continue;
        } else {
            reached.pass(view, received.version - 1, |position| step(EventMatch::Missed { position, event }));
            reached.pending.extend(reached.next..position);
            reached.next = position + 1;
        }
        step(EventMatch::Due { event, position });
    }
    reached
}

impl WatchMatchResult {
    /// Reports every required event up to a version that was not delivered.
    fn pass(&mut self, view: &SelectionView, version: u64, mut missed: impl FnMut(usize)) {
        let is_due = |position: usize| view.events.get(position).is_some_and(|event| event.version <= version);
        self.pending.retain(|position| {
            if is_due(*position) {
                missed(*position);
            }
            !is_due(*position)
        });
        while is_due(self.next) {
            missed(self.next);
            self.next += 1;
        }
    }
}
