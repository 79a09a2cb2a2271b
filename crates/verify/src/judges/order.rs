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
            op.initial().iter().map(|received| (received.key, received)).collect();
        let mut last: Option<&ReceivedItem> = None;
        for received in op.live().iter().filter(|received| received.is_object()) {
            judged.instances += 1;
            let same = of_key.insert(received.key, received).filter(|before| before.version >= received.version);
            let any = last.filter(|last| last.version > received.version);
            if let Some(before) = same.or(any) {
                judged.violation(op, &[before.line, received.line], || {
                    let least = if same.is_some() { "an event above" } else { "no event below" };
                    (
                        format!("{least} {}", event_text::received(history, before)),
                        event_text::received(history, received),
                    )
                });
            }
            last = Some(received);
        }
    }
    judged
}

/// Judges that no change is delivered twice, and none again to a watch that resumes after it.
pub(super) fn unique(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Unique);
    for op in history.watches(ApiserverGuarantee::Unique) {
        let mut newest: HashMap<ObjectKeyId, u64> = HashMap::new();
        for (at, received) in op.live().iter().enumerate().filter(|(_, received)| received.is_object()) {
            judged.instances += 1;
            let newest = newest.entry(received.key).or_default();
            let again = if received.version > *newest { None } else { find(&op.live()[..at], received) };
            let again = again.or_else(|| received_before(history, op, received));
            *newest = received.version.max(*newest);
            if let Some(first) = again {
                judged.violation(op, &[first.line, received.line], || {
                    let text = event_text::received(history, received);
                    (format!("{text} once"), format!("{text} again"))
                });
            }
        }
    }
    judged
}

fn find<'a>(events: &'a [ReceivedItem], event: &ReceivedItem) -> Option<&'a ReceivedItem> {
    events
        .iter()
        .find(|received| received.is_object() && received.key == event.key && received.version == event.version)
}

/// Finds the same event in an earlier watch of the chain that a watch resumes.
fn received_before<'a>(
    history: &'a RunHistory,
    op: &RecordedOperation,
    received: &ReceivedItem,
) -> Option<&'a ReceivedItem> {
    if op.start().is_none_or(|start| received.version > start) {
        return None;
    }
    let chain = std::iter::successors(history.before(op), |op| history.before(op));
    // A chain cannot be longer than the number of operations. This bound ends a cycle.
    chain.take(history.operations.len()).find_map(|before| find(&before.events, received))
}
