//! Expired and Future: history is refused only where it may be gone, and a version only while it is to come.

use super::super::ask::{Fresh, ReadPlan};
use super::super::history::History;
use super::super::operation::{Operation, Told};
use super::super::promise::Promise;
use super::super::record::{AskedServer, EventKind, ReadVerb};
use super::super::refused_requests::is_of_the_future;
use super::super::say;
use super::super::violation::Judged;

/// The truth may be this late: changes that were learnt so long after a 410 may have happened before it.
const TRUTH_LAG_NS: u64 = 1_000_000_000;

/// A 410 comes only where history may have been forgotten: to a watch as one event, behind which nothing comes.
pub(super) fn expired(history: &History) -> Judged {
    let mut judged = Judged::new(Promise::Expired);
    for op in history.judged(Promise::Expired) {
        if let Some(answer) = op.answered(410) {
            judged.instances += 1;
            let plan = op.ask.as_ref().map(|ask| ask.plan);
            let version = match plan {
                Some(ReadPlan::Exact(version) | ReadPlan::Page(version)) => Some(version),
                _ => None,
            };
            if !version.is_some_and(|version| is_gone(history, op, version, answer.at_ns)) {
                judged.violation(op, &[answer.line], || {
                    let expected = match (op.verb, version) {
                        (ReadVerb::Watch, _) => "200, and a 410 as an event if at all".to_owned(),
                        (_, Some(version)) => format!("the state at {version}, which nothing had compacted"),
                        _ => "what there is".to_owned(),
                    };
                    (expected, format!("410 {}", answer.status.message))
                });
            }
        }
        errors(history, op, &mut judged);
    }
    judged
}

fn errors(history: &History, op: &Operation, judged: &mut Judged) {
    let errors = op.events.iter().enumerate().filter(|(_, told)| told.kind == EventKind::Error);
    for ((at, told), status) in errors.zip(&op.errors) {
        judged.instances += 1;
        if let Some(next) = op.events.get(at + 1) {
            judged.violation(op, &[told.line, next.line], || {
                ("nothing behind an error".to_owned(), say::told(history, next))
            });
        }
        let position = position(history, op, &op.events[..at]);
        if status.code == 410 && !is_forgotten(history, op, position, told.at_ns) {
            judged.violation(op, &[told.line], || {
                let expected = format!("what came behind {position}, which nothing had let go of");
                (expected, format!("410 {}", status.message))
            });
        }
    }
}

/// How far a watch had got by what it had told.
pub(super) fn position(history: &History, op: &Operation, told: &[Told]) -> u64 {
    let live = told.get(op.live_from..).unwrap_or_default().iter().map(|told| told.version).max();
    // A watch that was still telling the state, or nothing, stood where the server did.
    let start = op.start().unwrap_or_else(|| history.witnessed(op, op.at_ns));
    live.map_or(start, |live| live.max(start))
}

/// Whether the state at a version may be gone from the store.
fn is_gone(history: &History, op: &Operation, version: u64, at_ns: u64) -> bool {
    op.verb == ReadVerb::List && version < history.compacted_by(at_ns)
}

/// Whether changes behind a version may be gone: from the store, or from what the server says that it holds.
fn is_forgotten(history: &History, op: &Operation, version: u64, at_ns: u64) -> bool {
    is_forgotten_by(op.server, history, op, version, at_ns)
}

/// Whether they may be gone at any one server, of the resource of an operation.
pub(super) fn is_forgotten_by(
    server: AskedServer,
    history: &History,
    op: &Operation,
    version: u64,
    at_ns: u64,
) -> bool {
    // What comes behind a version begins with the next one, and a compaction keeps its own.
    let compacted = version + 1 < history.compacted_by(at_ns);
    let resource = op.ask.as_ref().map_or("", |ask| &ask.resource);
    let begun = history.windows.iter().map(|line| &line.record).any(|window| {
        (window.resource.is_empty() || window.resource == resource)
            && window.server.is_none_or(|named| named == server)
            && window.at_ns <= at_ns
            && version < window.version
    });
    let outgrown = || {
        let (Some(held), Some(truth)) = (history.run.window_changes, history.truth(op)) else { return false };
        let behind = &truth.changes[truth.index_behind(version)..];
        let by = at_ns.saturating_add(TRUTH_LAG_NS);
        behind.iter().filter(|change| change.learnt_ns <= by).count() as u64 > held
    };
    compacted || begun || outgrown()
}

/// Who watches from a version of the future gets nothing at or below it and no refusal, unless what comes behind it may
/// have come and be gone; who reads at one is refused
/// only while it is one.
pub(super) fn future(history: &History) -> Judged {
    let mut judged = Judged::new(Promise::Future);
    for op in history.judged(Promise::Future) {
        match op.ask.as_ref().map(|ask| ask.plan) {
            Some(ReadPlan::Behind(version)) => behind(history, op, version, &mut judged),
            Some(
                ReadPlan::Read(Fresh::NotOlderThan(version))
                | ReadPlan::State(Fresh::NotOlderThan(version))
                | ReadPlan::Exact(version),
            ) => refused(history, op, version, &mut judged),
            _ => {}
        }
    }
    judged
}

fn behind(history: &History, op: &Operation, version: u64, judged: &mut Judged) {
    // What the store has compacted was there, whether or not anybody had seen it.
    let past = history.witnessed(op, op.at_ns).max(history.compacted_by(op.at_ns));
    if op.answered(200).is_none() || version <= past {
        return;
    }
    judged.instances += 1;
    let mut errors = op.errors.iter();
    for told in &op.events {
        let got = match told.kind {
            EventKind::Error => {
                let status = errors.next().cloned().unwrap_or_default();
                // While it waits, what is to come may come and be forgotten.
                let is_gone = is_forgotten(history, op, version, told.at_ns);
                let refuses = status.code == 410 && !is_gone || is_of_the_future(&status);
                refuses.then(|| format!("{} {}", status.code, status.message))
            }
            EventKind::Bookmark => (told.version < version).then(|| say::told(history, told)),
            _ => (told.version <= version).then(|| say::told(history, told)),
        };
        if let Some(got) = got {
            judged.violation(op, &[told.line], || (format!("what comes behind {version}, which is to come"), got));
        }
    }
}

fn refused(history: &History, op: &Operation, version: u64, judged: &mut Judged) {
    let error = op.events.iter().find(|told| told.kind == EventKind::Error).zip(op.errors.first());
    let error = error.map(|(told, status)| (told.at_ns, told.line, status));
    let answer = op.answered(504).map(|answer| (answer.at_ns, answer.line, &answer.status));
    let Some((at_ns, line, _)) = answer.or(error).filter(|(_, _, status)| is_of_the_future(status)) else { return };
    judged.instances += 1;
    // While something is broken the server may lag behind what others know.
    if version <= history.witnessed(op, op.at_ns) && !history.is_disturbed(op.at_ns, at_ns) {
        judged.violation(op, &[line], || {
            (format!("an answer: {version} was known before"), format!("{version} is refused as too large"))
        });
    }
}
