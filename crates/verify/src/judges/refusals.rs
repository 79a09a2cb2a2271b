//! Expired and Future: history is refused only if it may be forgotten, and a version only while it is in the future.

use super::super::event_text;
use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::operation::{ReceivedItem, RecordedOperation};
use super::super::parsed_request::{ExpectedReadVersion, FreshnessRequirement};
use super::super::record::{ReadVerb, RecordedEventType, RequestServerRole};
use super::super::refused_requests::is_of_the_future;
use super::super::violation::GuaranteeVerdict;

/// The maximum delay of the recorded true history. Changes recorded this long after a 410 may have happened before it.
const TRUTH_LAG_NS: u64 = 1_000_000_000;

/// Judges that a 410 is returned only if history may have been forgotten. A watch gets it as its last event.
pub(super) fn expired(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Expired);
    for op in history.judged(ApiserverGuarantee::Expired) {
        if let Some(answer) = op.answered(410) {
            judged.instances += 1;
            let plan = op.request.as_ref().map(|request| request.plan);
            let version = match plan {
                Some(ExpectedReadVersion::Exact(version) | ExpectedReadVersion::Page(version)) => Some(version),
                _ => None,
            };
            if !version.is_some_and(|version| is_gone(history, op, version, answer.at_ns)) {
                judged.violation(op, &[answer.line], || {
                    let expected = match (op.verb, version) {
                        (ReadVerb::Watch, _) => "200, and a 410 only as an event".to_owned(),
                        (_, Some(version)) => format!("the state at {version}, which was not compacted"),
                        _ => "the current state".to_owned(),
                    };
                    (expected, format!("410 {}", answer.status.message))
                });
            }
        }
        errors(history, op, &mut judged);
    }
    judged
}

fn errors(history: &RunHistory, op: &RecordedOperation, judged: &mut GuaranteeVerdict) {
    let errors = op.events.iter().enumerate().filter(|(_, received)| received.kind == RecordedEventType::Error);
    for ((at, received), status) in errors.zip(&op.errors) {
        judged.instances += 1;
        if let Some(next) = op.events.get(at + 1) {
            judged.violation(op, &[received.line, next.line], || {
                ("no event after an error".to_owned(), event_text::received(history, next))
            });
        }
        let position = position(history, op, &op.events[..at]);
        if status.code == 410 && !is_forgotten(history, op, position, received.at_ns) {
            judged.violation(op, &[received.line], || {
                let expected = format!("the events after {position}, which were still in the history");
                (expected, format!("410 {}", status.message))
            });
        }
    }
}

/// Returns how far a watch had got, by the events sent to it.
pub(super) fn position(history: &RunHistory, op: &RecordedOperation, received: &[ReceivedItem]) -> u64 {
    let live = received.get(op.live_from..).unwrap_or_default().iter().map(|received| received.version).max();
    // A watch that was still sending the state, or nothing, was at the server's position.
    let start = op.start().unwrap_or_else(|| history.witnessed(op, op.at_ns));
    live.map_or(start, |live| live.max(start))
}

/// Whether the store may have forgotten the state at a version.
fn is_gone(history: &RunHistory, op: &RecordedOperation, version: u64, at_ns: u64) -> bool {
    op.verb == ReadVerb::List && version < history.compacted_by(at_ns)
}

/// Whether changes after a version may be forgotten: by the store, or by the server's own declared history.
fn is_forgotten(history: &RunHistory, op: &RecordedOperation, version: u64, at_ns: u64) -> bool {
    is_forgotten_by(op.server, history, op, version, at_ns)
}

/// The same for one server, and the resource of an operation.
pub(super) fn is_forgotten_by(
    server: RequestServerRole,
    history: &RunHistory,
    op: &RecordedOperation,
    version: u64,
    at_ns: u64,
) -> bool {
    // The first change after a version has the next version, and a compaction keeps its own.
    let compacted = version + 1 < history.compacted_by(at_ns);
    let resource = op.request.as_ref().map_or("", |request| &request.resource);
    let begun = history.windows.iter().map(|line| &line.record).any(|window| {
        (window.resource.is_empty() || window.resource == resource)
            && window.server.is_none_or(|named| named == server)
            && window.at_ns <= at_ns
            && version < window.version
    });
    let outgrown = || {
        let (Some(kept_changes), Some(truth)) = (history.run.window_changes, history.truth(op)) else { return false };
        let behind = &truth.changes[truth.index_behind(version)..];
        let by = at_ns.saturating_add(TRUTH_LAG_NS);
        behind.iter().filter(|change| change.learnt_ns <= by).count() as u64 > kept_changes
    };
    compacted || begun || outgrown()
}

/// Judges requests with a version of the future. A watch gets no event at or below it, and no refusal, unless later
/// changes may have happened and been forgotten. A read is refused only while the version is in the future.
pub(super) fn future(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Future);
    for op in history.judged(ApiserverGuarantee::Future) {
        match op.request.as_ref().map(|request| request.plan) {
            Some(ExpectedReadVersion::Behind(version)) => behind(history, op, version, &mut judged),
            Some(
                ExpectedReadVersion::Read(FreshnessRequirement::NotOlderThan(version))
                | ExpectedReadVersion::State(FreshnessRequirement::NotOlderThan(version))
                | ExpectedReadVersion::Exact(version),
            ) => refused(history, op, version, &mut judged),
            _ => {}
        }
    }
    judged
}

fn behind(history: &RunHistory, op: &RecordedOperation, version: u64, judged: &mut GuaranteeVerdict) {
    // The compacted versions existed, whether or not any participant had seen them.
    let past = history.witnessed(op, op.at_ns).max(history.compacted_by(op.at_ns));
    if op.answered(200).is_none() || version <= past {
        return;
    }
    judged.instances += 1;
    let mut errors = op.errors.iter();
    for received in &op.events {
        let got = match received.kind {
            RecordedEventType::Error => {
                let status = errors.next().cloned().unwrap_or_default();
                // While the watch waits, later changes may happen and be forgotten.
                let is_gone = is_forgotten(history, op, version, received.at_ns);
                let refuses = status.code == 410 && !is_gone || is_of_the_future(&status);
                refuses.then(|| format!("{} {}", status.code, status.message))
            }
            RecordedEventType::Bookmark => {
                (received.version < version).then(|| event_text::received(history, received))
            }
            _ => (received.version <= version).then(|| event_text::received(history, received)),
        };
        if let Some(got) = got {
            judged.violation(op, &[received.line], || (format!("the events after {version}, a future version"), got));
        }
    }
}

fn refused(history: &RunHistory, op: &RecordedOperation, version: u64, judged: &mut GuaranteeVerdict) {
    let error = op.events.iter().find(|received| received.kind == RecordedEventType::Error).zip(op.errors.first());
    let error = error.map(|(received, status)| (received.at_ns, received.line, status));
    let answer = op.answered(504).map(|answer| (answer.at_ns, answer.line, &answer.status));
    let Some((at_ns, line, _)) = answer.or(error).filter(|(_, _, status)| is_of_the_future(status)) else { return };
    judged.instances += 1;
    // During a fault the server may lag behind versions known to others.
    if version <= history.witnessed(op, op.at_ns) && !history.is_disturbed(op.at_ns, at_ns) {
        judged.violation(op, &[line], || {
            (format!("a response, because {version} was known before"), format!("a refusal of {version} as too large"))
        });
    }
}
