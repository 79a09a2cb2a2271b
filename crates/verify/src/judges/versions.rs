//! `NotOlderThan` and Exact: a response has the requested version, or a later one.

use super::super::guarantee::ApiserverGuarantee;
use super::super::history::RunHistory;
use super::super::operation::RecordedOperation;
use super::super::parsed_request::{ExpectedReadVersion, FreshnessRequirement};
use super::super::record::ReadVerb;
use super::super::violation::GuaranteeVerdict;

/// Judges that a response is not older than the requested version.
pub(super) fn not_older_than(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::NotOlderThan);
    for op in history.judged(ApiserverGuarantee::NotOlderThan) {
        let plan = op.request.as_ref().map(|request| request.plan);
        let Some(
            ExpectedReadVersion::Read(FreshnessRequirement::NotOlderThan(requested))
            | ExpectedReadVersion::State(FreshnessRequirement::NotOlderThan(requested)),
        ) = plan
        else {
            continue;
        };
        if let Some(response) = response_version(history, op) {
            judged.instances += 1;
            response.judge(history, op, requested, &mut judged, || format!("a response at {requested} or later"));
        }
    }
    judged
}

/// Judges that a list at a requested version has it, and so does each of its pages.
pub(super) fn exact(history: &RunHistory) -> GuaranteeVerdict {
    let mut judged = GuaranteeVerdict::new(ApiserverGuarantee::Exact);
    for op in history.judged(ApiserverGuarantee::Exact) {
        let Some(ExpectedReadVersion::Exact(requested) | ExpectedReadVersion::Page(requested)) =
            op.request.as_ref().map(|request| request.plan)
        else {
            continue;
        };
        let Some(answer) = op.answered(200) else { continue };
        judged.instances += 1;
        let before = history.before(op).and_then(|before| before.answered(200));
        let before = before.filter(|before| before.more && before.version != answer.version);
        if answer.version != Some(requested) || before.is_some() {
            let requested = before.and_then(|before| before.version).unwrap_or(requested);
            judged.violation(op, &[before.map_or(0, |before| before.line), answer.line], || {
                (format!("a list at {requested}"), of_version(answer.version))
            });
        }
    }
    judged
}

fn of_version(version: Option<u64>) -> String {
    version.map_or_else(|| "one without a version".to_owned(), |version| format!("one at {version}"))
}

/// The content of a response, as far as its age is judged.
pub(super) enum ResponseVersion {
    /// A state: of a list, or of the initial events of a watch.
    State { version: u64, line: u32 },
    /// A response with one object of a version, or without it.
    Object { version: Option<u64>, line: u32 },
}

/// Returns the content of a response; `None` if it has none.
pub(super) fn response_version(history: &RunHistory, op: &RecordedOperation) -> Option<ResponseVersion> {
    let answer = op.answer.as_ref()?;
    match (op.verb, answer.code) {
        (ReadVerb::List, 200) => Some(ResponseVersion::State { version: answer.version?, line: answer.line }),
        (ReadVerb::Watch, 200) => {
            let line = op.events[..op.live_from].last().map_or(answer.line, |received| received.line);
            Some(ResponseVersion::State { version: op.state?, line })
        }
        (ReadVerb::Get, 200) => {
            Some(ResponseVersion::Object { version: Some(answer.items.first()?.version), line: answer.line })
        }
        (ReadVerb::Get, 404) => history.truth(op).map(|_| ResponseVersion::Object { version: None, line: answer.line }),
        _ => None,
    }
}

impl ResponseVersion {
    /// Checks that the content is not older than a version. An object must have been in that form at that version or
    /// later.
    pub(super) fn judge(
        &self,
        history: &RunHistory,
        op: &RecordedOperation,
        least: u64,
        judged: &mut GuaranteeVerdict,
        expected: impl FnOnce() -> String,
    ) {
        match self {
            Self::State { version, line } if *version < least => {
                judged.violation(op, &[*line], || (expected(), of_version(Some(*version))));
            }
            Self::State { .. } => {}
            Self::Object { version, line } => {
                let (Some(truth), Some(request)) = (history.truth(op), &op.request) else { return };
                let Some(key) = history.keys.get(&request.key) else { return };
                let least = least.min(truth.to);
                let changed = match version {
                    // The object did not exist, or was changed since.
                    Some(version) => truth.next_of(key, *version, |_| true).filter(|change| change.version <= least),
                    // The object exists, and is not deleted later either.
                    None => {
                        let there = truth.state_of(key, least).filter(|there| !there.is_deletion());
                        there.filter(|_| {
                            truth.next_of(key, least, super::super::truth::GroundTruthChange::is_deletion).is_none()
                        })
                    }
                };
                if let Some(change) = changed {
                    judged.violation(op, &[change.line, *line], || {
                        let got = version
                            .map_or_else(|| "no object".to_owned(), |version| format!("the object at {version}"));
                        (format!("{}, with {}", expected(), super::super::event_text::change(history, change)), got)
                    });
                }
            }
        }
    }
}
