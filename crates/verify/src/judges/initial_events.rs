//! `InitialEvents`: the initial events of a watch are the state at one version.

use super::super::event_text;
use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::operation::RecordedOperation;
use super::super::parsed_request::ExpectedReadVersion;
use super::super::record::RecordedEventType;
use super::super::view::ObjectStateFingerprint;
use super::super::violation::GuaranteeVerdict;
use super::difference::{difference, objects};

/// Judges that initial events are only ADDED, and exactly the matching part of the state at one version, each object
/// once. If the watch requested it, one bookmark at that version marks their end; other watches get none.
pub(super) fn initial_events(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::InitialEvents);
    for op in history.watches(ApiserverGuarantee::InitialEvents) {
        let begins = matches!(op.request.as_ref().map(|request| request.plan), Some(ExpectedReadVersion::State(_)));
        let stray = if begins { op.live() } else { &op.events };
        for received in stray.iter().filter(|received| received.initial_end) {
            judged.violation(op, &[received.line], || {
                let expected = if begins {
                    "one bookmark that ends the initial events"
                } else {
                    "no initial events, because none were requested"
                };
                (expected.to_owned(), event_text::received(history, received))
            });
        }
        if begins && (op.state.is_some() || op.is_no_state) {
            judged.instances += 1;
            state(history, op, &mut judged);
        }
    }
    judged
}

fn state(history: &RunHistory, op: &RecordedOperation, judged: &mut GuaranteeVerdict) {
    let Some(version) = op.state else {
        let line = op.events.get(op.live_from).map_or(0, |received| received.line);
        judged.violation(op, &[line], || {
            (
                "initial events that form the state at some version".to_owned(),
                "initial events that form no such state".to_owned(),
            )
        });
        return;
    };
    let end = op.events[..op.live_from].last().map_or(0, |received| received.line);
    let odd = |received: &&super::super::operation::ReceivedItem| {
        received.kind != RecordedEventType::Added || received.version > version
    };
    if let Some(received) = op.initial().iter().find(odd) {
        judged.violation(op, &[received.line, end], || {
            (format!("initial events ADDED up to {version}"), event_text::received(history, received))
        });
        return;
    }
    let Some((truth, view)) = history.view(op).filter(|(truth, _)| truth.knows(version)) else { return };
    let mut sum = ObjectStateFingerprint::default();
    op.initial().iter().for_each(|received| sum.add(received.key, received.version));
    if sum != view.sum_at(version) && judged.has_room() {
        let mut replay = view.replay(truth);
        let Some((expected, got, line)) = difference(history, truth, replay.at(version).iter(), objects(op.initial()))
        else {
            return;
        };
        judged.violation(op, &[line, end], || {
            (format!("the state at {version}, with {expected}"), format!("initial events {got}"))
        });
    }
}
