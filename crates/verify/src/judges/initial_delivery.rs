//! `BeginsOnce`: a client that switches between servers of one cluster never needs a second state.

use std::collections::HashMap;

use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::operation::RecordedOperation;
use super::super::parsed_request::ExpectedReadVersion;
use super::super::record::{ReadVerb, RecordedEventType, RequestServerRole};
use super::super::violation::GuaranteeVerdict;
use super::refusals::{is_forgotten_by, position};

/// The state that one client has received.
#[derive(Clone, Copy, Debug)]
struct InitialDelivery<'a> {
    /// The operation that returned the first state.
    first: &'a RecordedOperation,
    /// The last event that refused the client's version, if any.
    refusal: Option<RefusedResume>,
}

#[derive(Clone, Copy, Debug)]
struct RefusedResume {
    line: u32,
    /// Whether every server of the run may have forgotten the changes after the client's position.
    by_all: bool,
}

/// Judges that a client with a state never requests another one. Clients of such a run resume as long as any server may
/// accept it.
pub(super) fn begins_once(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::BeginsOnce);
    if !history.run.begins_once {
        return judged;
    }
    let mut clients: HashMap<u32, InitialDelivery<'_>> = HashMap::new();
    for op in history.judged(ApiserverGuarantee::BeginsOnce) {
        let Some(begun) = clients.get_mut(&op.client) else {
            if is_whole(op) {
                clients.insert(op.client, InitialDelivery { first: op, refusal: None });
            }
            continue;
        };
        judged.instances += u64::from(op.verb == ReadVerb::Watch);
        if begins(op) && !begun.refusal.is_some_and(|refused| refused.by_all) {
            let (first, refusal) = (begun.first, begun.refusal.map_or(0, |refused| refused.line));
            judged.violation(op, &[first.line, refusal], || {
                let began = first.answer.as_ref().and_then(|answer| answer.version).or(first.state);
                let got = if op.verb == ReadVerb::List { "another list" } else { "another initial state" };
                (format!("a client that resumes from the state at {}", began.unwrap_or_default()), got.to_owned())
            });
        }
        // An accepted operation cancels earlier refusals.
        if op.answered(200).is_some() {
            begun.refusal = refused(history, op);
        }
    }
    judged
}

/// Returns the last error event of a watch.
fn refused(history: &RunHistory, op: &RecordedOperation) -> Option<RefusedResume> {
    let at = op.events.iter().rposition(|received| received.kind == RecordedEventType::Error)?;
    let (received, position) = (&op.events[at], position(history, op, &op.events[..at]));
    let also = (0..history.run.also.len()).filter_map(|place| u8::try_from(place).ok());
    let mut servers = std::iter::once(RequestServerRole::Subject).chain(also.map(RequestServerRole::Also));
    let by_all = servers.all(|server| is_forgotten_by(server, history, op, position, received.at_ns));
    let expired = op.errors.last().is_some_and(|status| status.code == 410);
    Some(RefusedResume { line: received.line, by_all: expired && by_all })
}

/// Whether the operation delivered a whole state.
fn is_whole(op: &RecordedOperation) -> bool {
    match op.verb {
        ReadVerb::List => op.answered(200).is_some_and(|answer| !answer.more),
        ReadVerb::Watch => op.state.is_some(),
        ReadVerb::Get => false,
    }
}

/// Whether the operation requests a whole state.
fn begins(op: &RecordedOperation) -> bool {
    op.request.as_ref().is_some_and(|request| match op.verb {
        ReadVerb::List => request.first.is_empty(),
        ReadVerb::Watch => matches!(request.plan, ExpectedReadVersion::State(_)),
        ReadVerb::Get => false,
    })
}
