//! Steady: a watch with bookmarks gets an event at least every minute.

use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::operation::RecordedOperation;
use super::super::parsed_request::ExpectedReadVersion;
use super::super::violation::GuaranteeVerdict;
use super::SECOND_NS;

/// A bookmark is sent every minute (KEP-956). The rest is a tolerance for a busy machine.
const SILENCE_MAX_NS: u64 = 75 * SECOND_NS;

/// Judges that a watch with bookmarks is never silent for longer than [`SILENCE_MAX_NS`] unless there is a fault.
pub(super) fn steady(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Steady);
    for op in history.watches(ApiserverGuarantee::Steady) {
        if !op.request.as_ref().is_some_and(|request| request.bookmarks) {
            continue;
        }
        judged.instances += 1;
        let moments = moments(history, op);
        for pair in moments.windows(2) {
            let [(from_ns, before), (to_ns, after)] = pair else { continue };
            let silent_ns = to_ns.saturating_sub(*from_ns);
            if silent_ns > SILENCE_MAX_NS && !history.is_disturbed(*from_ns, *to_ns) {
                judged.violation(op, &[*before, *after], || {
                    ("a bookmark within a minute".to_owned(), format!("no event for {} s", silent_ns / SECOND_NS))
                });
            }
        }
    }
    judged
}

/// Returns when a watch received anything, from its response to its end, each with its line. A watch that may still
/// wait for a version of the future gets nothing before it, including bookmarks.
fn moments(history: &RunHistory, op: &RecordedOperation) -> Vec<(u64, u32)> {
    let plan = op.request.as_ref().map(|request| request.plan);
    let is_to_come =
        matches!(plan, Some(ExpectedReadVersion::Behind(version)) if version > history.witnessed(op, op.at_ns));
    let answer = op.answer.as_ref().filter(|_| !is_to_come).map(|answer| (answer.at_ns, answer.line));
    let events = op.events.iter().map(|received| (received.at_ns, received.line));
    let over = op.over.map(|over| (over.at_ns, over.line));
    answer.into_iter().chain(events).chain(over).collect()
}
