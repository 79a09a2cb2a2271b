//! Timed: a watch ends when its time is up, and before that with a word.

use std::ops::RangeInclusive;

use super::super::history::History;
use super::super::operation::Operation;
use super::super::promise::Promise;
use super::super::record::Ending;
use super::super::violation::Judged;
use super::SECOND_NS;

/// How long a watch lasts, in seconds, whose client does not say so: the apiserver draws it.
const CHOSEN: RangeInclusive<u64> = 1_800..=3_600;
/// How early clocks may let a watch end.
const EARLY_NS: u64 = 20_000_000;
/// How late a client may hear of the end, on a machine that does other things too.
const LATE_NS: u64 = 10 * SECOND_NS;

/// A watch that the server ends as if it were whole, and to which it has told no error, has had its time. None is open
/// for longer. Where something was broken meanwhile, it may have ended for that.
pub(super) fn timed(history: &History) -> Judged {
    let mut judged = Judged::new(Promise::Timed);
    for op in history.watches(Promise::Timed) {
        let asked = op.ask.as_ref().and_then(|ask| ask.timeout_seconds);
        let (Some(asked), Some(answer), Some(over)) = (asked, &op.answer, op.over) else { continue };
        let lasts = if asked > 0 { asked..=asked } else { CHOSEN };
        let (least, most) = (lasts.start().saturating_mul(SECOND_NS), lasts.end().saturating_mul(SECOND_NS));
        // The server counts from a moment between the two.
        let (at_least, at_most) = (over.at_ns.saturating_sub(answer.at_ns), over.at_ns.saturating_sub(op.at_ns));
        if history.is_disturbed(op.at_ns, over.at_ns) {
            continue;
        }
        let is_goodbye = over.how == Ending::Clean && op.errors.is_empty();
        let is_late = at_least > most.saturating_add(LATE_NS);
        let is_early = is_goodbye && at_most.saturating_add(EARLY_NS) < least;
        judged.instances += 1;
        if is_early || is_late {
            judged.violation(op, &lines(op, over.line), || {
                let expected = format!("a watch of {} s, or an error", words(&lasts));
                (expected, format!("an end after {} ms", at_most / 1_000_000))
            });
        }
    }
    judged
}

fn words(seconds: &RangeInclusive<u64>) -> String {
    let (least, most) = (seconds.start(), seconds.end());
    if least == most { least.to_string() } else { format!("{least} to {most}") }
}

/// The last event, and the end.
fn lines(op: &Operation, end: u32) -> Vec<u32> {
    op.events.last().map(|told| told.line).into_iter().chain([end]).collect()
}
