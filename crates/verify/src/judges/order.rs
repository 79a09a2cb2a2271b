//! Ordered and Unique: versions increase, and no change is delivered twice.

use super::super::event_text;
use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::interner::ObjectKeyId;
use super::super::operation::{ReceivedItem, RecordedOperation};
use super::super::violation::GuaranteeVerdict;
use std::collections::HashMap;

/// Judges that versions never decrease after the initial events, and that those of one object increase.
pub(super) fn ordered(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Ordered);
    for op in history.watches(ApiserverGuarantee::Ordered) {
        let mut of_key: HashMap<ObjectKeyId, &ReceivedItem> =
            op.initial().iter().map(|reported| (reported.key, reported)).collect();
        let mut last: Option<&ReceivedItem> = None;
        for reported in op.live().iter().filter(|reported| reported.is_object()) {
            judged.instances += 1;
            let same = of_key.insert(reported.key, reported).filter(|before| before.version >= reported.version);
            let any = last.filter(|last| last.version > reported.version);
            if let Some(before) = same.or(any) {
                judged.violation(op, &[before.line, reported.line], || {
                    let least = if same.is_some() { "an event above" } else { "no event below" };
                    (
                        format!("{least} {}", event_text::reported(history, before)),
                        event_text::reported(history, reported),
                    )
                });
            }
            last = Some(reported);
        }
    }
    judged
}

/// Judges that no change is delivered twice, and none again to a watch that resumes after it.
pub(super) fn unique(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Unique);
    for op in history.watches(ApiserverGuarantee::Unique) {
        let mut newest: HashMap<ObjectKeyId, u64> = HashMap::new();
        for (at, reported) in op.live().iter().enumerate().filter(|(_, reported)| reported.is_object()) {
            judged.instances += 1;
            let newest = newest.entry(reported.key).or_default();
            let again = if reported.version > *newest { None } else { find(&op.live()[..at], reported) };
            let again = again.or_else(|| reported_before(history, op, reported));
            *newest = reported.version.max(*newest);
            if let Some(first) = again {
                judged.violation(op, &[first.line, reported.line], || {
                    let reported = event_text::reported(history, reported);
                    (format!("{reported} once"), format!("{reported} again"))
                });
            }
        }
    }
    judged
}

fn find<'a>(events: &'a [ReceivedItem], wanted: &ReceivedItem) -> Option<&'a ReceivedItem> {
    events
        .iter()
        .find(|reported| reported.is_object() && reported.key == wanted.key && reported.version == wanted.version)
}

/// Finds the same event in an earlier watch of the chain that a watch resumes.
fn reported_before<'a>(
    history: &'a RunHistory,
    op: &RecordedOperation,
    reported: &ReceivedItem,
) -> Option<&'a ReceivedItem> {
    if op.start().is_none_or(|start| reported.version > start) {
        return None;
    }
    let chain = std::iter::successors(history.before(op), |op| history.before(op));
    // A chain cannot be longer than the number of operations. This bound ends a cycle.
    chain.take(history.operations.len()).find_map(|before| find(&before.events, reported))
}
