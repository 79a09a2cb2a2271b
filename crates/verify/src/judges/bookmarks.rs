//! Bookmarkable: a bookmark guarantees that everything up to it was delivered.

use super::super::event_match::{EventMatch, follow};
use super::super::event_text;
use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::operation::{ReceivedItem, RecordedOperation};
use super::super::violation::GuaranteeVerdict;

/// Judges that every matching change up to a bookmark was sent before it, and that all later ones are above it.
/// Bookmarks do not decrease, and only watches that request them get them.
pub(super) fn bookmarkable(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Bookmarkable);
    for op in history.watches(ApiserverGuarantee::Bookmarkable) {
        let is_requested = op.request.as_ref().is_some_and(|request| request.bookmarks);
        for received in op.events.iter().filter(|received| received.is_bookmark()) {
            judged.instances += 1;
            if !is_requested {
                judged.violation(op, &[received.line], || {
                    ("no bookmarks, because none were requested".to_owned(), event_text::received(history, received))
                });
            }
        }
        rising(history, op, &mut judged);
        missed(history, op, &mut judged);
    }
    judged
}

/// Checks that a bookmark is not below anything sent before it, and that everything sent after it is above it.
fn rising(history: &RunHistory, op: &RecordedOperation, judged: &mut GuaranteeVerdict) {
    // The last bookmark, and the highest version sent, with its line.
    let end = op.events[..op.live_from].last().filter(|received| received.initial_end);
    let mut bookmark = end.copied();
    let mut newest = (op.start().unwrap_or(0), op.line);
    for received in op.live() {
        let behind = |bookmark: &ReceivedItem| received.is_object() && received.version <= bookmark.version;
        if received.is_bookmark() && received.version < newest.0 {
            judged.violation(op, &[newest.1, received.line], || {
                (format!("bookmarks at {} and later", newest.0), event_text::received(history, received))
            });
        }
        if let Some(bookmark) = bookmark.filter(|bookmark| behind(bookmark)) {
            judged.violation(op, &[bookmark.line, received.line], || {
                (
                    format!("events above {} after that bookmark", bookmark.version),
                    event_text::received(history, received),
                )
            });
        }
        if received.is_bookmark() {
            bookmark = Some(*received);
        }
        if (received.is_object() || received.is_bookmark()) && received.version > newest.0 {
            newest = (received.version, received.line);
        }
    }
}

fn missed(history: &RunHistory, op: &RecordedOperation, judged: &mut GuaranteeVerdict) {
    let Some((truth, view)) = history.view(op) else { return };
    follow(truth, view, op, |step| {
        let EventMatch::Missed { position, event } = step else { return };
        let (received, expected) = (&op.live()[event], &view.events[position]);
        if received.is_bookmark() {
            let line = truth.changes[expected.change as usize].line;
            judged.violation(op, &[line, received.line], || {
                let got = format!("{} without it", event_text::received(history, received));
                (format!("{} first", event_text::expected(history, truth, expected)), got)
            });
        }
    });
}
