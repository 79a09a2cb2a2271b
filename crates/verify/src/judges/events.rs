//! Filtered and Typed: each event is one that its watch should get, with the right type and content.

use super::super::event_text;
use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::operation::{ReceivedItem, RecordedOperation};
use super::super::record::RecordedEventType;
use super::super::truth::ResourceGroundTruth;
use super::super::view::SelectionView;
use super::super::violation::GuaranteeVerdict;

/// Judges that no event matches neither before nor after the change.
pub(super) fn filtered(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Filtered);
    for op in history.watches(ApiserverGuarantee::Filtered) {
        let Some((truth, view)) = history.view(op) else { continue };
        for (at, received) in objects(op) {
            judged.instances += 1;
            let is_covered = view.selection.covers(history.key(received.key));
            let is_foreign = received.change().is_some_and(|change| {
                let is_live = at >= op.live_from && received.version > truth.from;
                if is_live { view.position(change).is_none() } else { !view.matches(change) }
            });
            if !is_covered || is_foreign {
                let line = received.change().map_or(0, |change| truth.changes[change as usize].line);
                judged.violation(op, &[line, received.line], || {
                    ("events of selected objects".to_owned(), event_text::received(history, received))
                });
            }
        }
    }
    judged
}

/// Judges that each event has the type and the content of its change for the selection.
pub(super) fn typed(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Typed);
    for op in history.watches(ApiserverGuarantee::Typed) {
        let Some((truth, view)) = history.view(op) else { continue };
        for (at, received) in objects(op) {
            let Some(change) = received.change() else { continue };
            let is_live = at >= op.live_from;
            if is_live && received.version <= truth.from {
                continue;
            }
            let kind = if is_live {
                let Some(position) = view.position(change) else { continue };
                view.events[position].kind
            } else {
                RecordedEventType::Added
            };
            judged.instances += 1;
            let content = content(op, truth, change, kind);
            let is_other = received.digest.zip(content).is_some_and(|(got, expected)| got != expected);
            if received.kind != kind || is_other {
                let line = truth.changes[change as usize].line;
                judged.violation(op, &[line, received.line], || {
                    let mut expected = *received;
                    expected.kind = kind;
                    let [expected, got] =
                        [(&expected, content), (received, received.digest)].map(|(received, digest)| {
                            format!("{} {}", event_text::received(history, received), event_text::content(digest))
                        });
                    (expected, got)
                });
            }
        }
    }
    judged
}

fn objects(op: &RecordedOperation) -> impl Iterator<Item = (usize, &ReceivedItem)> {
    op.events.iter().enumerate().filter(|(_, received)| received.is_object())
}

/// Returns the expected content of an event. A deletion, or a change that leaves the selection, has the previous
/// content.
fn content(
    op: &RecordedOperation,
    truth: &ResourceGroundTruth,
    change: u32,
    kind: RecordedEventType,
) -> Option<super::super::digest::ContentDigest> {
    let change = &truth.changes[change as usize];
    let delivered = if kind == RecordedEventType::Deleted { &truth.changes[change.before? as usize] } else { change };
    delivered.content(op.encoding)
}

impl SelectionView {
    /// Whether the object matches the selection after a change, by a live event or as part of the initial state.
    fn matches(&self, change: u32) -> bool {
        let live =
            || self.position(change).is_some_and(|position| self.events[position].kind != RecordedEventType::Deleted);
        self.is_initial(change) || live()
    }
}
