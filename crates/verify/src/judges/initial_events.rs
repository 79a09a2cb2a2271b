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
        let begins = matches!(op.ask.as_ref().map(|ask| ask.plan), Some(ExpectedReadVersion::State(_)));
        let stray = if begins { op.live() } else { &op.events };
        for reported in stray.iter().filter(|reported| reported.initial_end) {
            judged.violation(op, &[reported.line], || {
                let expected = if begins {
                    "one bookmark that ends the initial events"
                } else {
                    "no initial events, because none were requested"
                };
                (expected.to_owned(), event_text::reported(history, reported))
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
        let line = op.events.get(op.live_from).map_or(0, |reported| reported.line);
        judged.violation(op, &[line], || {
            (
                "initial events that form the state at some version".to_owned(),
                "initial events that form no such state".to_owned(),
            )
        });
        return;
    };
    let end = op.events[..op.live_from].last().map_or(0, |reported| reported.line);
    let odd = |reported: &&super::super::operation::ReceivedItem| {
        reported.kind != RecordedEventType::Added || reported.version > version
    };
    if let Some(reported) = op.initial().iter().find(odd) {
        judged.violation(op, &[reported.line, end], || {
            (format!("initial events ADDED up to {version}"), event_text::reported(history, reported))
        });
        return;
    }
    let Some((truth, view)) = history.view(op).filter(|(truth, _)| truth.knows(version)) else { return };
    let mut sum = ObjectStateFingerprint::default();
    op.initial().iter().for_each(|reported| sum.add(reported.key, reported.version));
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
