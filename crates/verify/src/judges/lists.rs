//! `ListSnapshot`: a list is the matching part of the state at its version, in the order of keys.

use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::interner::ObjectKeyId;
use super::super::operation::{ReceivedItem, ReceivedResponse, RecordedOperation};
use super::super::record::{OperationId, ReadVerb};
use super::super::truth::ResourceGroundTruth;
use super::super::view::{ObjectStateFingerprint, SelectionView};
use super::super::violation::GuaranteeVerdict;
use super::difference::{difference, objects};
use std::collections::{BTreeMap, HashMap};

/// Judges that a list or a page is the state that it claims to be, and that a GET returns an object that existed.
pub(super) fn list_snapshot(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::ListSnapshot);
    // Pages, and lists that differ from the state, by selection and version. They are sorted so that the state is
    // replayed only once.
    let mut closer: Vec<(usize, u64, &RecordedOperation)> = Vec::new();
    for op in history.judged(ApiserverGuarantee::ListSnapshot) {
        let Some(answer) = op.answered(200) else { continue };
        match op.verb {
            ReadVerb::Watch => {}
            ReadVerb::Get => get(history, op, answer, &mut judged),
            ReadVerb::List => {
                let Some(version) = answer.version else {
                    judged.instances += 1;
                    judged.violation(op, &[answer.line], || {
                        ("a list with a resourceVersion".into(), "a list without one".into())
                    });
                    continue;
                };
                let Some((truth, view)) = history.view(op).filter(|(truth, _)| truth.knows(version)) else { continue };
                judged.instances += 1;
                contents(history, op, answer, truth, &mut judged);
                if !is_whole(op, answer, view, version) {
                    closer.push((op.view.unwrap_or_default(), version, op));
                }
            }
        }
    }
    let ends = ends(history);
    closer.sort_by_key(|(view, version, op)| (*view, *version, op.op));
    for of_view in closer.chunk_by(|one, next| one.0 == next.0) {
        let view = &history.views[of_view[0].0];
        let truth = &history.truths[view.truth];
        let mut replay = view.replay(truth);
        // How many objects were returned up to the end of each page.
        let mut counts: HashMap<OperationId, usize> = HashMap::new();
        for (_, version, op) in of_view {
            let state = replay.at(*version);
            let before = if is_first(op) { Some(0) } else { op.resumes.and_then(|op| counts.get(&op).copied()) };
            if let Some(count) = page(history, op, state, &ends, truth, view, before, &mut judged) {
                counts.extend(before.map(|before| (op.op, before + count)));
            }
        }
    }
    judged
}

/// Whether an operation is a one-page list that is ordered and equal to the state.
fn is_whole(op: &RecordedOperation, answer: &ReceivedResponse, view: &SelectionView, version: u64) -> bool {
    let mut sum = ObjectStateFingerprint::default();
    answer.items.iter().for_each(|item| sum.add(item.key, item.version));
    let is_one_page = !answer.more && is_first(op) && answer.remaining.unwrap_or(0) == 0;
    is_one_page && answer.items.is_sorted_by_key(|item| item.key) && sum == view.sum_at(version)
}

fn is_first(op: &RecordedOperation) -> bool {
    op.request.as_ref().is_some_and(|request| request.first.is_empty())
}

/// Checks that each item has the content of its version.
fn contents(
    history: &RunHistory,
    op: &RecordedOperation,
    answer: &ReceivedResponse,
    truth: &ResourceGroundTruth,
    judged: &mut GuaranteeVerdict,
) {
    let other = |item: &&ReceivedItem| {
        let change = item.change().map(|change| &truth.changes[change as usize]);
        let content = change.and_then(|change| change.content(op.encoding));
        item.digest.zip(content).is_some_and(|(got, expected)| got != expected)
    };
    if let Some(item) = answer.items.iter().find(other) {
        let change = item.change().map(|change| &truth.changes[change as usize]);
        judged.violation(op, &[change.map_or(0, |change| change.line), item.line], || {
            let content_text = |digest| {
                format!("{} at {} {}", history.key(item.key), item.version, super::super::event_text::content(digest))
            };
            (content_text(change.and_then(|change| change.content(op.encoding))), content_text(item.digest))
        });
    }
}

/// Returns where the next page of each list begins, by operation.
fn ends(history: &RunHistory) -> HashMap<OperationId, ObjectKeyId> {
    let lists = history.operations.iter().filter(|op| op.verb == ReadVerb::List);
    let end = |op: &RecordedOperation| {
        let first = op.request.as_ref().map(|request| request.first.as_str()).filter(|first| !first.is_empty())?;
        Some((op.resumes?, history.keys.at_or_behind(first)))
    };
    lists.filter_map(end).collect()
}

/// Checks the objects of a page; returns their number, or `None` if they are wrong.
#[expect(clippy::too_many_arguments, reason = "a page belongs to a list whose state and other pages are known")]
fn page(
    history: &RunHistory,
    op: &RecordedOperation,
    state: &BTreeMap<ObjectKeyId, u32>,
    ends: &HashMap<OperationId, ObjectKeyId>,
    truth: &ResourceGroundTruth,
    view: &SelectionView,
    before: Option<usize>,
    judged: &mut GuaranteeVerdict,
) -> Option<usize> {
    let (answer, request) = (op.answer.as_ref()?, op.request.as_ref()?);
    let items = &answer.items;
    if let Some([first, second]) = items.windows(2).find(|pair| pair[0].key >= pair[1].key) {
        let [first, second] = [first, second].map(|item| history.key(item.key));
        judged.violation(op, &[answer.line], || {
            (format!("a list in key order, {second} before {first}"), format!("{first} before {second}"))
        });
        return None;
    }
    let version = answer.version.unwrap_or_default();
    let first = history.keys.at_or_behind(&request.first);
    let rest = || state.range(first..);
    // A page extends to the start of the next one. If the next one was not requested, the page extends to its last key.
    let is_on_it = |key: &ObjectKeyId| match ends.get(&op.op) {
        _ if !answer.more => true,
        Some(end) => key < end,
        None => items.last().is_some_and(|last| *key <= last.key),
    };
    let count = rest().take_while(|(key, _)| is_on_it(key)).count();
    if let Some((expected, got, line)) = difference(history, truth, rest().take(count), objects(items)) {
        judged.violation(op, &[line, answer.line], || {
            (format!("the state at {version}, with {expected}"), format!("a list {got}"))
        });
        return None;
    }
    // With selectors, the apiserver returns a continue token before it knows whether more objects match.
    let remains = match before {
        _ if !answer.more => 0,
        Some(before) => state.len() - before - count,
        None => rest().count() - count,
    } as u64;
    let is_wrong = match answer.remaining {
        Some(number) => number != remains,
        None => answer.more && remains == 0 && !view.selection.is_selective(),
    };
    if is_wrong {
        let number =
            answer.remaining.map_or_else(|| "that more remain".to_owned(), |number| format!("that {number} remain"));
        judged.violation(op, &[answer.line], || {
            (format!("a page at {version} after which {remains} objects remain"), format!("a page that says {number}"))
        });
    }
    Some(count)
}

fn get(history: &RunHistory, op: &RecordedOperation, answer: &ReceivedResponse, judged: &mut GuaranteeVerdict) {
    let Some(truth) = history.truth(op) else { return };
    let Some(item) = answer.items.first().filter(|item| item.version <= truth.to) else { return };
    let change = item.change().map(|change| &truth.changes[change as usize]);
    // Changes before the beginning of the truth are unknown.
    if change.is_none() && item.version <= truth.from {
        return;
    }
    judged.instances += 1;
    let is_requested = op.request.as_ref().is_some_and(|request| request.key == history.key(item.key));
    let is_there = change.is_some_and(|change| !change.is_deletion());
    if !is_requested || !is_there {
        judged.violation(op, &[answer.line], || {
            let expected = format!("the existing object {}", op.request.as_ref().map_or("", |request| &request.key));
            (expected, format!("{} at {}", history.key(item.key), item.version))
        });
        return;
    }
    contents(history, op, answer, truth, judged);
}
