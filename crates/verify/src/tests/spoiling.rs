//! The input of mutations: the records of a run, with the positions of its streams and reads.

use super::super::record::{EventRecord, HistoryRecord, OperationId, ReadVerb, RecordedEventType, ResponseRecord};
use super::acts::Scope;
use super::model::Model;

/// A history for injecting errors.
pub(super) struct Spoiling<'a> {
    pub(super) model: &'a Model,
    pub(super) records: Vec<HistoryRecord>,
    pub(super) random: fastrand::Rng,
}

/// A watch of the judged server whose start is known.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) op: OperationId,
    pub(super) of: Scope,
    pub(super) query: String,
    pub(super) resumes: Option<OperationId>,
    /// The position of its call.
    pub(super) call: usize,
    /// The version after which its live events begin.
    pub(super) start: u64,
    /// The positions of its initial events, with the bookmark that ends them.
    pub(super) initial: Vec<usize>,
    pub(super) live: Vec<usize>,
}

/// A list or a GET with a response.
#[derive(Clone, Debug)]
pub(super) struct Answered {
    pub(super) of: Option<Scope>,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) call: usize,
    pub(super) call_ns: u64,
    /// The position of its response.
    pub(super) at: usize,
}

impl Stream {
    pub(super) fn requested_bookmarks(&self) -> bool {
        self.query.contains("allowWatchBookmarks=true")
    }
}

impl Answered {
    pub(super) fn is_consistent(&self) -> bool {
        !self.query.contains("resourceVersion") && !self.query.contains("continue")
    }

    /// Returns the value of a numeric parameter.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        let mut pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find(|(key, _)| *key == name)?.1.parse().ok()
    }
}

impl Spoiling<'_> {
    pub(super) fn pick<T>(&mut self, mut of: Vec<T>) -> Option<T> {
        let count = of.len();
        (count > 0).then(|| of.swap_remove(self.random.usize(..count)))
    }

    pub(super) fn event(&self, at: usize) -> &EventRecord {
        let HistoryRecord::Event(event) = &self.records[at] else { panic!("no event at {at}") };
        event
    }

    pub(super) fn event_mut(&mut self, at: usize) -> &mut EventRecord {
        let HistoryRecord::Event(event) = &mut self.records[at] else { panic!("no event at {at}") };
        event
    }

    pub(super) fn answer(&self, at: usize) -> &ResponseRecord {
        let HistoryRecord::Return(answer) = &self.records[at] else { panic!("no answer at {at}") };
        answer
    }

    pub(super) fn answer_mut(&mut self, at: usize) -> &mut ResponseRecord {
        let HistoryRecord::Return(answer) = &mut self.records[at] else { panic!("no answer at {at}") };
        answer
    }

    pub(super) fn is_object(&self, at: usize) -> bool {
        !matches!(self.event(at).kind, RecordedEventType::Bookmark | RecordedEventType::Error)
    }

    pub(super) fn streams(&self) -> Vec<Stream> {
        let calls = self.records.iter().enumerate().filter_map(|(at, record)| match record {
            HistoryRecord::Call(call) if call.verb == ReadVerb::Watch && call.server.is_judged() => Some((at, call)),
            _ => None,
        });
        let stream = |(call, record): (usize, &super::super::record::CallRecord)| {
            let is_mine =
                |at: &usize| matches!(&self.records[*at], HistoryRecord::Event(event) if event.op == record.op);
            let events: Vec<_> = (call..self.records.len()).filter(is_mine).collect();
            let end = events.iter().position(|at| self.event(*at).initial_end);
            let version = || record.query.split("resourceVersion=").nth(1)?.split('&').next()?.parse().ok();
            let start = match end {
                Some(end) => self.event(events[end]).version,
                None if record.query.contains("sendInitialEvents") => return None,
                None => version()?,
            };
            let (initial, live) = events.split_at(end.map_or(0, |end| end + 1));
            Some(Stream {
                op: record.op,
                of: self.model.scopes[&record.op],
                query: record.query.clone(),
                resumes: record.resumes,
                call,
                start,
                initial: initial.to_vec(),
                live: live.to_vec(),
            })
        };
        calls.filter_map(stream).collect()
    }

    /// Returns the positions of live events of objects, each with its stream.
    pub(super) fn objects(&self) -> Vec<(Stream, usize)> {
        let of_one = |stream: Stream| {
            let objects = stream.live.clone().into_iter().filter(|at| self.is_object(*at));
            objects.map(move |at| (stream.clone(), at)).collect::<Vec<_>>()
        };
        self.streams().into_iter().flat_map(of_one).collect()
    }

    /// Returns the live events of objects that a later event passes.
    pub(super) fn passed(&self) -> Vec<(Stream, usize)> {
        let is_passed = |(stream, at): &(Stream, usize)| {
            let version = self.event(*at).version;
            stream.live.iter().any(|later| later > at && self.event(*later).version > version)
        };
        self.objects().into_iter().filter(is_passed).collect()
    }

    /// Returns lists or GETs with a 200 response.
    pub(super) fn reads(&self, verb: ReadVerb) -> Vec<Answered> {
        let read = |(call, record): (usize, &HistoryRecord)| {
            let HistoryRecord::Call(request) = record else { return None };
            let is_answer =
                |record: &HistoryRecord| matches!(record, HistoryRecord::Return(answer) if answer.op == request.op);
            let at = self.records.iter().position(is_answer)?;
            (request.verb == verb && self.answer(at).code == 200).then(|| Answered {
                of: self.model.scopes.get(&request.op).copied(),
                path: request.path.clone(),
                query: request.query.clone(),
                call,
                call_ns: request.at_ns,
                at,
            })
        };
        self.records.iter().enumerate().filter_map(read).collect()
    }

    /// Returns lists in one page, from the beginning.
    pub(super) fn lists(&self) -> Vec<Answered> {
        let whole = |read: &Answered| !self.answer(read.at).more && !read.query.contains("continue");
        self.reads(ReadVerb::List).into_iter().filter(whole).collect()
    }

    /// Returns the versions of changes before a record, except those of the initial state.
    pub(super) fn changed_before(&self, at: usize) -> Vec<u64> {
        let version = |record: &HistoryRecord| match record {
            HistoryRecord::Truth(truth) if truth.version > 10 => Some(truth.version),
            _ => None,
        };
        self.records[..at].iter().filter_map(version).collect()
    }

    /// Returns the newest version that any participant can have known before a record.
    pub(super) fn newest_before(&self, at: usize) -> u64 {
        let version = |record: &HistoryRecord| match record {
            HistoryRecord::Truth(truth) => Some(truth.version),
            HistoryRecord::Return(answer) => answer.version,
            HistoryRecord::Event(event) => Some(event.version),
            HistoryRecord::Known(known) => Some(known.to),
            _ => None,
        };
        self.records[..at].iter().filter_map(version).max().unwrap_or(0)
    }

    /// Returns the last version that was compacted before a record.
    pub(super) fn compacted_before(&self, at: usize) -> u64 {
        let version = |record: &HistoryRecord| match record {
            HistoryRecord::Compacted(compacted) => Some(compacted.version),
            _ => None,
        };
        self.records[..at].iter().filter_map(version).max().unwrap_or(0)
    }

    pub(super) fn has_faults(&self) -> bool {
        self.records.iter().any(|record| matches!(record, HistoryRecord::Fault(_)))
    }

    /// Makes a list return the state at another version.
    pub(super) fn show_state(&mut self, list: &Answered, version: u64) {
        let items = self.model.items(version, list.of.unwrap());
        let answer = self.answer_mut(list.at);
        (answer.version, answer.items) = (Some(version), items);
    }

    /// Makes a GET return the object at another version.
    pub(super) fn show_object(&mut self, get: &Answered, version: u64) {
        let path: Vec<_> = get.path.split('/').collect();
        let key = format!("{}/{}", path[4], path[6]);
        let all = Scope { namespace: "", selector: ("", &[0, 1, 2]) };
        let item = self.model.items(version, all).into_iter().find(|item| item.key == key);
        let answer = self.answer_mut(get.at);
        answer.code = if item.is_some() { 200 } else { 404 };
        answer.version = item.as_ref().map(|item| item.version);
        answer.items = item.into_iter().collect();
    }
}
