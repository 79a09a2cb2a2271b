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
            op.initial().iter().map(|told| (told.key, told)).collect();
        let mut last: Option<&ReceivedItem> = None;
        for told in op.live().iter().filter(|told| told.is_object()) {
            judged.instances += 1;
            let same = of_key.insert(told.key, told).filter(|before| before.version >= told.version);
            let any = last.filter(|last| last.version > told.version);
            if let Some(before) = same.or(any) {
                judged.violation(op, &[before.line, told.line], || {
                    let least = if same.is_some() { "an event above" } else { "no event below" };
                    (format!("{least} {}", event_text::told(history, before)), event_text::told(history, told))
                });
            }
            last = Some(told);
        }
    }
    judged
}

/// Judges that no change is delivered twice, and none again to a watch that resumes after it.
pub(super) fn unique(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Unique);
    for op in history.watches(ApiserverGuarantee::Unique) {
        let mut newest: HashMap<ObjectKeyId, u64> = HashMap::new();
        for (at, told) in op.live().iter().enumerate().filter(|(_, told)| told.is_object()) {
            judged.instances += 1;
            let newest = newest.entry(told.key).or_default();
            let again = if told.version > *newest { None } else { find(&op.live()[..at], told) };
            let again = again.or_else(|| told_before(history, op, told));
            *newest = told.version.max(*newest);
            if let Some(first) = again {
                judged.violation(op, &[first.line, told.line], || {
                    let told = event_text::told(history, told);
                    (format!("{told} once"), format!("{told} again"))
                });
            }
        }
    }
    judged
}

fn find<'a>(events: &'a [ReceivedItem], wanted: &ReceivedItem) -> Option<&'a ReceivedItem> {
    events.iter().find(|told| told.is_object() && told.key == wanted.key && told.version == wanted.version)
}

/// Finds the same event in an earlier watch of the chain that a watch resumes.
fn told_before<'a>(history: &'a RunHistory, op: &RecordedOperation, told: &ReceivedItem) -> Option<&'a ReceivedItem> {
    if op.start().is_none_or(|start| told.version > start) {
        return None;
    }
    let chain = std::iter::successors(history.before(op), |op| history.before(op));
    // A chain cannot be longer than the number of operations. This bound ends a cycle.
    chain.take(history.operations.len()).find_map(|before| find(&before.events, told))
}
