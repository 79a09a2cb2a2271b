//! Steady: who takes bookmarks hears something every minute.

use super::super::ask::ReadPlan;
use super::super::history::History;
use super::super::operation::Operation;
use super::super::promise::Promise;
use super::super::violation::Judged;
use super::SECOND_NS;

/// A bookmark is sent a minute behind the one before (KEP-956). The rest is for a machine that does other things too.
const SILENCE_MAX_NS: u64 = 75 * SECOND_NS;

/// A watch with bookmarks is never silent for longer than [`SILENCE_MAX_NS`] while nothing is broken.
pub(super) fn steady(history: &History) -> Judged {
    let mut judged = Judged::new(Promise::Steady);
    for op in history.watches(Promise::Steady) {
        if !op.ask.as_ref().is_some_and(|ask| ask.bookmarks) {
            continue;
        }
        judged.instances += 1;
        let moments = moments(history, op);
        for pair in moments.windows(2) {
            let [(from_ns, before), (to_ns, after)] = pair else { continue };
            let silent_ns = to_ns.saturating_sub(*from_ns);
            if silent_ns > SILENCE_MAX_NS && !history.is_disturbed(*from_ns, *to_ns) {
                judged.violation(op, &[*before, *after], || {
                    ("a bookmark within a minute".to_owned(), format!("silence for {} s", silent_ns / SECOND_NS))
                });
            }
        }
    }
    judged
}

/// When something was heard of a watch, from its answer to its end, each with its line. Who waits for a version that
/// may be still to come is told nothing before, not even how far it is.
fn moments(history: &History, op: &Operation) -> Vec<(u64, u32)> {
    let plan = op.ask.as_ref().map(|ask| ask.plan);
    let is_to_come = matches!(plan, Some(ReadPlan::Behind(version)) if version > history.witnessed(op, op.at_ns));
    let answer = op.answer.as_ref().filter(|_| !is_to_come).map(|answer| (answer.at_ns, answer.line));
    let events = op.events.iter().map(|told| (told.at_ns, told.line));
    let over = op.over.map(|over| (over.at_ns, over.line));
    answer.into_iter().chain(events).chain(over).collect()
}
