//! Builds a history from records, one by one.

use std::io::BufRead;

use super::history::{HistoryReadError, NumberedHistoryRecord, RunHistory};
use super::interner::Interner;
use super::operation::{ReceivedItem, ReceivedResponse, RecordedOperation, RecordedWatchEnd};
use super::parsed_request::ParsedRequest;
use super::record::{
    CallRecord, EventRecord, GroundTruthRangeRecord, GroundTruthRecord, HistoryRecord, OperationId, RecordedEventType,
    ResponseRecord, WatchEndRecord,
};
use super::selection::LabelsAndFields;
use super::truth::{GroundTruthChange, ResourceGroundTruth};

impl RunHistory {
    /// Reads a run, with one record per line. Empty lines are ignored.
    ///
    /// # Errors
    /// The first line that is not a record, or that cannot follow the lines before it.
    pub fn read(mut from: impl BufRead) -> Result<Self, HistoryReadError> {
        let mut reading = HistoryReader::default();
        let mut text = String::new();
        for line in 1.. {
            text.clear();
            let wrong = |what: String| HistoryReadError { line, what };
            if from.read_line(&mut text).map_err(|error| wrong(error.to_string()))? == 0 {
                break;
            }
            if !text.trim().is_empty() {
                let record: HistoryRecord = serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))?;
                reading.push(record, line).map_err(wrong)?;
            }
        }
        reading.finish()
    }

    /// Builds a history from records in memory, which are numbered like lines.
    ///
    /// # Errors
    /// The first record that cannot follow those before it.
    pub fn of(records: impl IntoIterator<Item = HistoryRecord>) -> Result<Self, HistoryReadError> {
        let mut reader = HistoryReader::default();
        for (line, record) in (1..).zip(records) {
            reader.push(record, line).map_err(|what| HistoryReadError { line, what })?;
        }
        reader.finish()
    }
}

/// A history that is being read.
#[derive(Debug, Default)]
pub(super) struct HistoryReader {
    history: RunHistory,
    attributes: Interner<LabelsAndFields>,
}

impl HistoryReader {
    /// Adds a record to the history.
    ///
    /// # Errors
    /// The reason that the record cannot follow those before it.
    pub(super) fn push(&mut self, record: HistoryRecord, line: u32) -> Result<(), String> {
        let history = &mut self.history;
        let seen_ns = match record {
            HistoryRecord::Run(run) => {
                history.run = run;
                0
            }
            HistoryRecord::Call(call) => self.call(&call, line)?,
            HistoryRecord::Return(answer) => self.answer(answer, line)?,
            HistoryRecord::Event(event) => self.event(event, line)?,
            HistoryRecord::End(end) => self.end(&end, line)?,
            HistoryRecord::Written(record) => {
                let at_ns = record.return_ns;
                history.written.push(NumberedHistoryRecord { line, record });
                at_ns
            }
            HistoryRecord::Truth(change) => self.change(change, line),
            HistoryRecord::Known(known) => self.known(&known)?,
            HistoryRecord::Compacted(record) => {
                history.compacted.push(NumberedHistoryRecord { line, record });
                0
            }
            HistoryRecord::Window(record) => {
                history.windows.push(NumberedHistoryRecord { line, record });
                0
            }
            HistoryRecord::Fault(record) => {
                history.faults.push(NumberedHistoryRecord { line, record });
                0
            }
            HistoryRecord::UpstreamRequest(record) => {
                let at_ns = record.at_ns;
                history.upstream_requests.push(NumberedHistoryRecord { line, record });
                at_ns
            }
        };
        self.history.end_ns = self.history.end_ns.max(seen_ns);
        Ok(())
    }

    /// Completes the history.
    ///
    /// # Errors
    /// The line that invalidates the truth.
    pub(super) fn finish(self) -> Result<RunHistory, HistoryReadError> {
        self.history.settle(self.attributes)
    }

    fn call(&mut self, call: &CallRecord, line: u32) -> Result<u64, String> {
        let at = self.history.operations.len();
        if self.history.by_op.insert(call.op, at).is_some() {
            return Err(format!("a second call of operation {}", call.op));
        }
        self.history.operations.push(RecordedOperation {
            op: call.op,
            client: call.client,
            at_ns: call.at_ns,
            line,
            verb: call.verb,
            server: call.server,
            encoding: call.encoding,
            resumes: call.resumes,
            request: ParsedRequest::parse(call),
            answer: None,
            events: Vec::new(),
            errors: Vec::new(),
            over: None,
            truth: None,
            view: None,
            live_from: 0,
            state: None,
            is_no_state: false,
        });
        Ok(call.at_ns)
    }

    fn operation(&mut self, op: OperationId) -> Result<&mut RecordedOperation, String> {
        let at = self.history.by_op.get(&op).ok_or_else(|| format!("operation {op} has no call"))?;
        Ok(&mut self.history.operations[*at])
    }

    fn answer(&mut self, answer: ResponseRecord, line: u32) -> Result<u64, String> {
        let item = |item: super::record::RecordedItem| {
            let key = self.history.keys.number(&item.key);
            let mut received = ReceivedItem::new(answer.at_ns, line, RecordedEventType::Added, key, item.version);
            (received.digest, received.bytes) = (item.digest, item.bytes);
            received
        };
        let items = answer.items.into_iter().map(item).collect();
        let op = self.operation(answer.op)?;
        if op.answer.is_some() {
            return Err(format!("a second answer to operation {}", answer.op));
        }
        op.answer = Some(ReceivedResponse {
            at_ns: answer.at_ns,
            line,
            code: answer.code,
            version: answer.version,
            encoding: answer.encoding,
            from_memory: answer.from_memory,
            items,
            more: answer.more,
            remaining: answer.remaining,
            status: answer.status,
        });
        let server = op.server;
        if answer.from_memory {
            self.history.tell_memory.insert(server);
        }
        Ok(answer.at_ns)
    }

    fn event(&mut self, event: EventRecord, line: u32) -> Result<u64, String> {
        let key = if event.key.is_empty() {
            super::interner::ObjectKeyId::default()
        } else {
            self.history.keys.number(&event.key)
        };
        let op = self.operation(event.op)?;
        if op.over.is_some() {
            return Err(format!("an event of operation {}, which is over", event.op));
        }
        let mut received = ReceivedItem::new(event.at_ns, line, event.kind, key, event.version);
        (received.digest, received.bytes, received.initial_end) = (event.digest, event.bytes, event.initial_end);
        op.events.push(received);
        if event.kind == RecordedEventType::Error {
            op.errors.push(event.status);
        }
        Ok(event.at_ns)
    }

    fn end(&mut self, end: &WatchEndRecord, line: u32) -> Result<u64, String> {
        let op = self.operation(end.op)?;
        if op.over.replace(RecordedWatchEnd { at_ns: end.at_ns, how: end.how, line }).is_some() {
            return Err(format!("a second end of operation {}", end.op));
        }
        Ok(end.at_ns)
    }

    fn truth(&mut self, resource: &str) -> &mut ResourceGroundTruth {
        let truths = &mut self.history.truths;
        let at = truths.iter().position(|truth| truth.resource == resource).unwrap_or_else(|| {
            truths.push(ResourceGroundTruth::of(resource));
            truths.len() - 1
        });
        &mut truths[at]
    }

    fn change(&mut self, change: GroundTruthRecord, line: u32) -> u64 {
        let attributes = self.attributes.number(LabelsAndFields { labels: change.labels, fields: change.fields });
        let key = self.history.keys.number(&change.key);
        self.truth(&change.resource).changes.push(GroundTruthChange {
            version: change.version,
            key,
            kind: change.kind,
            digest: change.digest,
            metadata: change.metadata,
            attributes,
            learnt_ns: change.at_ns,
            before: None,
            after: None,
            line,
        });
        change.at_ns
    }

    fn known(&mut self, known: &GroundTruthRangeRecord) -> Result<u64, String> {
        let truth = self.truth(&known.resource);
        if truth.to > 0 && truth.from != known.from {
            return Err(format!("the true history of {} begins twice", known.resource));
        }
        (truth.from, truth.to) = (known.from, truth.to.max(known.to));
        truth.reached.push((known.at_ns, known.to));
        Ok(known.at_ns)
    }
}
