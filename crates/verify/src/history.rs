//! A history: all records of a run, parsed, ordered and linked with the truth.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::guarantee::ApiserverGuarantee;
use super::interner::{InternedKeys, Interner, ObjectKeyId};
use super::operation::{ReceivedItem, RecordedOperation};
use super::record::{
    CompactionRecord, FaultRecord, HistoryWindowRecord, OperationId, ReadVerb, RequestServerRole, RunRecord,
    UpstreamRequestRecord, WriteRecord, WriteVerb,
};
use super::selection::{LabelsAndFields, ObjectSelection};
use super::timeline::VersionTimeline;
use super::truth::ResourceGroundTruth;
use super::view::SelectionView;

/// A record with its line number.
#[derive(Clone, Debug)]
pub(super) struct NumberedHistoryRecord<T> {
    pub(super) line: u32,
    pub(super) record: T,
}

/// The reason that records do not form a history.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct HistoryReadError {
    /// The number of the record's line, counted from 1.
    pub line: u32,
    pub what: String,
}

/// All records of a run, linked with the truth.
#[derive(Debug, Default)]
pub struct RunHistory {
    pub(super) run: RunRecord,
    pub(super) keys: InternedKeys,
    pub(super) truths: Vec<ResourceGroundTruth>,
    pub(super) views: Vec<SelectionView>,
    /// The operations in the order of their records.
    pub(super) operations: Vec<RecordedOperation>,
    pub(super) by_op: HashMap<OperationId, usize>,
    pub(super) written: Vec<NumberedHistoryRecord<WriteRecord>>,
    pub(super) compacted: Vec<NumberedHistoryRecord<CompactionRecord>>,
    pub(super) windows: Vec<NumberedHistoryRecord<HistoryWindowRecord>>,
    pub(super) faults: Vec<NumberedHistoryRecord<FaultRecord>>,
    pub(super) upstream_requests: Vec<NumberedHistoryRecord<UpstreamRequestRecord>>,
    /// The newest version that any participant had seen by each moment, for each resource.
    pub(super) witnessed: Vec<VersionTimeline>,
    /// The servers that mark responses from their cache.
    pub(super) tell_memory: HashSet<RequestServerRole>,
    /// The last time in the records, in nanoseconds.
    pub(super) end_ns: u64,
}

impl RunHistory {
    /// Returns the description of the run.
    pub fn run(&self) -> &RunRecord {
        &self.run
    }

    /// The watches by which a promise is judged: accepted ones of the judged servers.
    pub(super) fn watches(&self, promise: ApiserverGuarantee) -> impl Iterator<Item = &RecordedOperation> {
        self.judged(promise).filter(|op| op.verb == ReadVerb::Watch && op.answered(200).is_some())
    }

    /// The operations by which a promise is judged: those of the judged servers that are understood, and during which
    /// no fault waives the promise.
    pub(super) fn judged(&self, promise: ApiserverGuarantee) -> impl Iterator<Item = &RecordedOperation> {
        self.operations.iter().filter(move |op| {
            let last = op.last_ns().unwrap_or(self.end_ns);
            op.server.is_judged() && op.request.is_some() && !self.is_waived(promise, op.at_ns, last)
        })
    }

    pub(super) fn is_waived(&self, promise: ApiserverGuarantee, from_ns: u64, to_ns: u64) -> bool {
        let mut waivers = self.faults.iter().filter(|fault| fault.record.waives.contains(&promise));
        waivers.any(|fault| fault.record.from_ns <= to_ns && from_ns <= fault.record.to_ns)
    }

    /// Whether a response may come from the server's cache.
    pub(super) fn may_be_from_memory(&self, op: &RecordedOperation) -> bool {
        !self.tell_memory.contains(&op.server) || op.answer.as_ref().is_some_and(|answer| answer.from_memory)
    }

    /// Whether a fault was active between two moments.
    pub(super) fn is_disturbed(&self, from_ns: u64, to_ns: u64) -> bool {
        self.faults.iter().any(|fault| fault.record.from_ns <= to_ns && from_ns <= fault.record.to_ns)
    }

    pub(super) fn truth(&self, op: &RecordedOperation) -> Option<&ResourceGroundTruth> {
        op.truth.map(|at| &self.truths[at]).filter(|truth| truth.to > 0)
    }

    /// Returns the view of a list's or watch's selection, with the truth about its resource.
    pub(super) fn view(&self, op: &RecordedOperation) -> Option<(&ResourceGroundTruth, &SelectionView)> {
        Some((self.truth(op)?, &self.views[op.view?]))
    }

    /// Returns the operation that an operation resumes.
    pub(super) fn before(&self, op: &RecordedOperation) -> Option<&RecordedOperation> {
        self.by_op.get(&op.resumes?).map(|at| &self.operations[*at])
    }

    /// Returns the newest version of an operation's resource that any participant had seen before a moment.
    pub(super) fn witnessed(&self, op: &RecordedOperation, before_ns: u64) -> u64 {
        op.truth.map_or(0, |at| self.witnessed[at].before(before_ns))
    }

    /// Returns the newest version that the store had compacted by a moment; 0 if none.
    pub(super) fn compacted_by(&self, at_ns: u64) -> u64 {
        let records = self.compacted.iter().map(|line| &line.record);
        records.filter(|compacted| compacted.at_ns <= at_ns).map(|compacted| compacted.version).max().unwrap_or(0)
    }

    pub(super) fn key(&self, key: ObjectKeyId) -> &str {
        self.keys.text(key)
    }
}

/// Links the records after the last one was read.
impl RunHistory {
    /// Sorts the keys, and links events and items with the truth.
    pub(super) fn settle(mut self, attributes: Interner<LabelsAndFields>) -> Result<Self, HistoryReadError> {
        let moved = self.keys.sort();
        let place = |key: ObjectKeyId| moved.get(key.0 as usize).copied().unwrap_or_default();
        for truth in &mut self.truths {
            truth.changes.iter_mut().for_each(|change| change.key = place(change.key));
            truth
                .link()
                .map_err(|(line, what)| HistoryReadError { line, what: format!("the true history has {what}") })?;
        }
        let resources: HashMap<String, usize> =
            self.truths.iter().enumerate().map(|(at, truth)| (truth.resource.clone(), at)).collect();
        let attributes = attributes.into_values();
        for op in &mut self.operations {
            let items = op.answer.iter_mut().flat_map(|answer| &mut answer.items);
            items.chain(&mut op.events).for_each(|received| received.key = place(received.key));
            op.truth = op.request.as_ref().and_then(|request| resources.get(&request.resource).copied());
        }
        self.link_changes();
        self.add_views(&attributes);
        for op in &mut self.operations {
            let view = op.view.map(|at| &self.views[at]);
            let truth = op.truth.map(|at| &self.truths[at]);
            op.find_state(view, |version| truth.is_some_and(|truth| truth.knows(version)));
        }
        self.witnessed = (0..self.truths.len()).map(|truth| self.witness(truth)).collect();
        Ok(self)
    }

    /// Finds the change of each event and item. It had happened by the time of arrival.
    fn link_changes(&mut self) {
        for op in &mut self.operations {
            let Some(at) = op.truth else { continue };
            let truth = &mut self.truths[at];
            let items = op.answer.iter_mut().flat_map(|answer| &mut answer.items);
            for received in items.chain(&mut op.events).filter(|received| received.is_object()) {
                let change = truth.change_at(received.key, received.version);
                received.set_change(change);
                if let Some(change) = change {
                    let learnt = &mut truth.changes[change as usize].learnt_ns;
                    *learnt = received.at_ns.min(*learnt);
                }
            }
        }
    }

    fn add_views(&mut self, attributes: &[Arc<LabelsAndFields>]) {
        let mut numbers: HashMap<(usize, ObjectSelection), usize> = HashMap::new();
        for op in &mut self.operations {
            let (Some(at), Some(request), ReadVerb::List | ReadVerb::Watch) = (op.truth, &op.request, op.verb) else {
                continue;
            };
            let number = *numbers.entry((at, request.selection.clone())).or_insert_with(|| {
                self.views.push(SelectionView::new(
                    at,
                    &self.truths[at],
                    request.selection.clone(),
                    attributes,
                    &self.keys,
                ));
                self.views.len() - 1
            });
            op.view = Some(number);
        }
    }

    /// Collects which version of a resource any participant had seen by when: from the truth, from completed writes,
    /// and from the versions of responses and bookmarks.
    fn witness(&self, at: usize) -> VersionTimeline {
        let truth = &self.truths[at];
        let mut points: Vec<_> = truth.changes.iter().map(|change| (change.learnt_ns, change.version)).collect();
        points.extend(&truth.reached);
        for op in self.operations.iter().filter(|op| op.truth == Some(at)) {
            let answer = op.answer.as_ref().filter(|answer| answer.code == 200);
            points.extend(answer.and_then(|answer| Some((answer.at_ns, answer.version?))));
            let bookmarks = op.events.iter().filter(|received| received.is_bookmark());
            points.extend(bookmarks.map(|received: &ReceivedItem| (received.at_ns, received.version)));
        }
        for NumberedHistoryRecord { record: write, .. } in &self.written {
            let done = (200..300).contains(&write.code) && write.resource == truth.resource;
            let Some(version) = write.version.filter(|_| done) else { continue };
            // A delete's version is that of the deleted object. The key's next change is the deletion, which had
            // happened by then.
            let next = || self.keys.get(&write.key).and_then(|key| truth.next_of(key, version, |_| true));
            let version = match write.verb {
                WriteVerb::Delete => next().map(|change| change.version),
                _ => Some(version),
            };
            points.extend(version.map(|version| (write.return_ns, version)));
        }
        VersionTimeline::new(points)
    }
}
