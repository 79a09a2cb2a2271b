//! Timed: a watch ends at its timeout, and earlier only with an error.

use std::ops::RangeInclusive;

use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::operation::RecordedOperation;
use super::super::record::WatchEnding;
use super::super::violation::GuaranteeVerdict;
use super::SECOND_NS;

/// The duration in seconds of a watch without a requested timeout: the apiserver draws it.
const CHOSEN: RangeInclusive<u64> = 1_800..=3_600;
/// The tolerance for an early end, for clock differences.
const EARLY_NS: u64 = 20_000_000;
/// The tolerance for a late end, for a busy machine.
const LATE_NS: u64 = 10 * SECOND_NS;

/// Judges that a watch that the server ends cleanly, without an error, has reached its timeout, and that no watch is
/// open longer. Watches during a fault are excluded.
pub(super) fn timed(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Timed);
    for op in history.watches(ApiserverGuarantee::Timed) {
        let requested = op.request.as_ref().and_then(|request| request.timeout_seconds);
        let (Some(requested), Some(answer), Some(over)) = (requested, &op.answer, op.over) else { continue };
        let lasts = if requested > 0 { requested..=requested } else { CHOSEN };
        let (least, most) = (lasts.start().saturating_mul(SECOND_NS), lasts.end().saturating_mul(SECOND_NS));
        // The server's timer started between these two moments.
        let (at_least, at_most) = (over.at_ns.saturating_sub(answer.at_ns), over.at_ns.saturating_sub(op.at_ns));
        if history.is_disturbed(op.at_ns, over.at_ns) {
            continue;
        }
        let is_goodbye = over.how == WatchEnding::Clean && op.errors.is_empty();
        let is_late = at_least > most.saturating_add(LATE_NS);
        let is_early = is_goodbye && at_most.saturating_add(EARLY_NS) < least;
        judged.instances += 1;
        if is_early || is_late {
            judged.violation(op, &lines(op, over.line), || {
                let expected = format!("a watch of {} s, or an error", range_text(&lasts));
                (expected, format!("an end after {} ms", at_most / 1_000_000))
            });
        }
    }
    judged
}

fn range_text(seconds: &RangeInclusive<u64>) -> String {
    let (least, most) = (seconds.start(), seconds.end());
    if least == most { least.to_string() } else { format!("{least} to {most}") }
}

/// Returns the lines of the last event and of the end.
fn lines(op: &RecordedOperation, end: u32) -> Vec<u32> {
    op.events.last().map(|received| received.line).into_iter().chain([end]).collect()
}
