//! Reliable and Resumable: every required change was delivered.

use std::collections::BTreeMap;

use super::super::event_match::{EventMatch, WatchMatchResult, follow};
use super::super::event_text;
use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::operation::RecordedOperation;
use super::super::record::WatchEnding;
use super::super::truth::ResourceGroundTruth;
use super::super::view::SelectionView;
use super::super::violation::GuaranteeVerdict;

/// Judges that every matching change between two delivered moments is delivered, and no invented one. No clean end may
/// cut an event short.
pub(super) fn reliable(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Reliable);
    for op in history.watches(ApiserverGuarantee::Reliable) {
        if let Some(over) = op.over.filter(|over| over.how == WatchEnding::Torn) {
            judged.violation(op, &[over.line], || {
                ("a stream that ends between two events".into(), "one that ends within an event".into())
            });
        }
        let Some((truth, view)) = history.view(op) else { continue };
        // Positions that were passed over, with the event that did so. An event that arrives late still counts as
        // delivered.
        let mut missed: BTreeMap<usize, usize> = BTreeMap::new();
        let mut unheard = Vec::new();
        let reached = follow(truth, view, op, |step| match step {
            EventMatch::Due { .. } => judged.instances += 1,
            EventMatch::Missed { position, event } => drop(missed.insert(position, event)),
            EventMatch::Past { position: Some(position), .. } => drop(missed.remove(&position)),
            EventMatch::NotLearnt { event } => unheard.push(event),
            EventMatch::Past { .. } | EventMatch::Foreign { .. } => {}
        });
        for event in unheard {
            let received = &op.live()[event];
            judged.violation(op, &[received.line], || {
                (
                    "events of actual changes".to_owned(),
                    format!("{} without a change", event_text::received(history, received)),
                )
            });
        }
        for (position, event) in missed {
            let (received, expected) = (&op.live()[event], &view.events[position]);
            judged.violation(op, &[truth.changes[expected.change as usize].line, received.line], || {
                let got = format!("{} without it", event_text::received(history, received));
                (format!("{} first", event_text::expected(history, truth, expected)), got)
            });
        }
        overdue(history, op, truth, view, &reached, &mut judged);
    }
    judged
}

/// Finds changes that nothing passed over and that were not delivered, although the watch was open for longer than the
/// allowed delay.
fn overdue(
    history: &RunHistory,
    op: &RecordedOperation,
    truth: &ResourceGroundTruth,
    view: &SelectionView,
    reached: &WatchMatchResult,
    judged: &mut GuaranteeVerdict,
) {
    let Some(patience) = history.run.patience_ns.filter(|_| op.start().is_some()) else { return };
    let until = op.over.map_or(history.end_ns, |over| over.at_ns);
    let rest = reached.pending.iter().copied().chain(reached.next..view.events.len());
    let rest = rest.map(|position| &view.events[position]).filter(|expected| expected.version <= truth.to);
    let failed = op.live().last().is_some_and(|received| !received.is_object() && !received.is_bookmark());
    if let Some(expected) = rest.filter(|_| !failed).find(|expected| {
        let since = truth.changes[expected.change as usize].learnt_ns.max(op.at_ns);
        let by = since.saturating_add(patience);
        by < until && !history.is_disturbed(since, by)
    }) {
        let line = truth.changes[expected.change as usize].line;
        let end = op.over.map_or(0, |over| over.line);
        judged.violation(op, &[line, end], || {
            let expected = event_text::expected(history, truth, expected);
            (format!("{expected} within {} ms", patience / 1_000_000), "neither it nor a later event".to_owned())
        });
    }
}

/// Judges that a watch from a version begins with the first matching change after it.
pub(super) fn resumable(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Resumable);
    for op in history.watches(ApiserverGuarantee::Resumable) {
        let Some((truth, view)) = history.view(op) else { continue };
        let Some(start) = op.start().filter(|start| op.state.is_none() && truth.knows(*start)) else { continue };
        let Some(received) = op.live().iter().find(|received| received.is_object() && received.version <= truth.to)
        else {
            continue;
        };
        judged.instances += 1;
        let first = view.events.get(view.index_behind(start));
        let is_first = first.is_some_and(|first| first.version == received.version);
        let is_none = received.change().is_none_or(|change| view.position(change).is_none());
        // Other judges check events that never happened or do not match. Here only events at or below the version count
        // as well.
        if !is_first && (!is_none || received.version <= start) {
            let line = first.map_or(0, |first| truth.changes[first.change as usize].line);
            judged.violation(op, &[line, received.line], || {
                let first =
                    first.map_or_else(|| "nothing".to_owned(), |first| event_text::expected(history, truth, first));
                (
                    format!("{first} as the first event after {start}"),
                    format!("{} as the first event", event_text::received(history, received)),
                )
            });
        }
    }
    judged
}
