//! A test's writes, requests and responses as the records of `fanoutctl verify`, so that the same checkers judge them.

use std::collections::HashMap;
use std::sync::Arc;

use base::now_ns;
use bytes::Bytes;
use demo::{ReceivedRequest, RunningDemoApiserver};
use kubeapi::UrlQuery;
use serde_json::Value;
use verify::{
    ApiserverGuarantee, CallRecord, ContentDigest, EventRecord, FaultRecord, GroundTruthRangeRecord, GroundTruthSource,
    HistoryRecord, HistoryWindowRecord, OperationId, ReadVerb, RecordedEncoding, RecordedEventType, RecordedStatus,
    RequestServerRole, ResponseRecord, RunHistory as Judges, RunRecord, UpstreamRequestRecord, WatchEndRecord,
    WatchEnding, WriteRecord, WriteVerb,
};

use super::client::Answer;
use super::event::{Ended, Event};
use super::records;
use super::watch::Watch;

/// Records of one resource: its true history, and the responses about it.
pub struct Evidence {
    records: Vec<HistoryRecord>,
    resource: String,
    from: u64,
    /// The newest version that is known or was sent to any client.
    newest: u64,
    next: OperationId,
    read: HashMap<Bytes, Spelled>,
    /// Description of the scenario, for failure messages.
    what: String,
}

/// A parsed object, by its bytes.
#[derive(Clone)]
struct Spelled {
    object: Arc<Value>,
    content: ContentDigest,
    bytes: ContentDigest,
}

impl Evidence {
    /// Starts with the collection at a path, whose whole state is known at a version.
    pub(super) fn about(path: &str, from: u64, at_ns: u64, what: &str) -> Self {
        let parts: Vec<_> = path.split('/').collect();
        let plural = parts.last().copied().unwrap_or_default();
        let resource = if parts[1] == "apis" { format!("{plural}.{}", parts[2]) } else { plural.to_owned() };
        let known = GroundTruthRangeRecord { resource: resource.clone(), from, to: from, at_ns };
        let query = format!("watch=true&resourceVersion={from}");
        let (verb, server) = (ReadVerb::Watch, RequestServerRole::Direct);
        let call = CallRecord { at_ns, verb, path: path.to_owned(), query, server, ..CallRecord::default() };
        let answer = ResponseRecord { at_ns, code: 200, ..ResponseRecord::default() };
        let run = RunRecord { truth: GroundTruthSource::Direct, ..RunRecord::default() };
        let records = vec![
            HistoryRecord::Run(run),
            HistoryRecord::Known(known),
            HistoryRecord::Call(call),
            HistoryRecord::Return(answer),
        ];
        Self { records, resource, from, newest: from, next: 1, read: HashMap::new(), what: what.to_owned() }
    }

    /// Records a change, or an object of the initial state. `gone` is the event for a watch whose selection the object
    /// leaves.
    pub(super) fn truth(&mut self, event: &Event, gone: Option<Event>, at_ns: u64) {
        let object = self.spelled(&event.body).object;
        let kind = records::kind(&event.kind);
        self.records.push(HistoryRecord::Truth(records::truth(&self.resource, kind, &object, at_ns)));
        // Other watches receive the same bytes, so each object is parsed only once.
        for event in [Some(event.clone()), gone].into_iter().flatten() {
            let record = self.event(0, &event, at_ns);
            self.records.push(HistoryRecord::Event(record));
        }
        self.newest = self.newest.max(event.rv);
    }

    /// Records the events that a watch has received so far.
    pub fn watch(&mut self, watch: &Watch) -> OperationId {
        self.resumed(watch, None)
    }

    /// Records the events of a watch that continues a previous one.
    pub fn resumed(&mut self, watch: &Watch, resumes: Option<OperationId>) -> OperationId {
        let op = self.op();
        self.records.push(HistoryRecord::Call(CallRecord { op, resumes, ..watch.call.clone() }));
        self.records.push(HistoryRecord::Return(ResponseRecord {
            op,
            at_ns: watch.answered_ns,
            code: 200,
            ..ResponseRecord::default()
        }));
        let (received, ended) = watch.timed_events();
        for (event, at_ns) in &received {
            let record = self.event(op, event, *at_ns);
            self.newest = self.newest.max(record.version);
            self.records.push(HistoryRecord::Event(record));
        }
        if let Some((ended, at_ns)) = ended {
            let how = if matches!(ended, Ended::Broken(_)) { WatchEnding::Broken } else { WatchEnding::Clean };
            self.records.push(HistoryRecord::End(WatchEndRecord { op, at_ns, how }));
        }
        op
    }

    pub fn watches<'a>(&mut self, watches: impl IntoIterator<Item = &'a Watch>) -> &mut Self {
        for watch in watches {
            self.watch(watch);
        }
        self
    }

    /// Records the response to a LIST, a GET or a refused watch.
    pub fn answer(&mut self, answer: &Answer) -> OperationId {
        let op = self.op();
        let (path, query) = answer.path.split_once('?').unwrap_or((&answer.path, ""));
        let body: Value = serde_json::from_slice(&answer.body).unwrap_or_default();
        let verb = verb(path, query);
        let (path, query, at_ns) = (path.to_owned(), query.to_owned(), answer.asked_ns);
        self.records.push(HistoryRecord::Call(CallRecord { op, at_ns, verb, path, query, ..CallRecord::default() }));
        let items = match &body["items"] {
            Value::Array(items) => items.iter().map(records::item).collect(),
            _ if answer.status == 200 => vec![records::item(&body)],
            _ => Vec::new(),
        };
        let is_ok = answer.status == 200;
        let newest = is_ok.then(|| records::version(&body));
        self.newest = self.newest.max(newest.unwrap_or(0));
        let more = body["metadata"]["continue"].as_str().is_some_and(|token| !token.is_empty());
        self.records.push(HistoryRecord::Return(ResponseRecord {
            op,
            at_ns: answer.came_ns,
            code: answer.status,
            version: newest,
            from_memory: answer.is_cached(),
            items,
            more,
            remaining: body["metadata"]["remainingItemCount"].as_u64(),
            status: if is_ok { RecordedStatus::default() } else { records::status(&body) },
            ..ResponseRecord::default()
        }));
        op
    }

    pub fn answers<'a>(&mut self, answers: impl IntoIterator<Item = &'a Answer>) -> &mut Self {
        for answer in answers {
            self.answer(answer);
        }
        self
    }

    /// Records a write that was complete at this time.
    pub fn written(&mut self, key: &str, version: u64, at_ns: u64) -> &mut Self {
        self.records.push(HistoryRecord::Written(WriteRecord {
            call_ns: at_ns,
            return_ns: at_ns,
            verb: WriteVerb::Update,
            resource: self.resource.clone(),
            key: key.to_owned(),
            version: Some(version),
            code: 200,
        }));
        self.newest = self.newest.max(version);
        self
    }

    /// Allows 410 for versions up to this one. Without this, every 410 is a violation.
    pub fn forgotten(&mut self, version: u64) -> &mut Self {
        let resource = self.resource.clone();
        self.records.push(HistoryRecord::Window(HistoryWindowRecord {
            resource,
            version,
            ..HistoryWindowRecord::default()
        }));
        self
    }

    /// Records that the proxy keeps only this many changes, so it may have evicted older ones.
    pub fn window(&mut self, changes: u64) -> &mut Self {
        if let HistoryRecord::Run(run) = &mut self.records[0] {
            run.window_changes = Some(changes);
        }
        self
    }

    /// Treats everything that has not arrived by now as late.
    pub fn overdue(&mut self) -> &mut Self {
        if let HistoryRecord::Run(run) = &mut self.records[0] {
            run.patience_ns = Some(0);
        }
        self
    }

    /// Records that this version was observable, for any resource, from this time on.
    pub fn reached(&mut self, to: u64, at_ns: u64) -> &mut Self {
        let (resource, from) = (self.resource.clone(), self.from);
        self.records.push(HistoryRecord::Known(GroundTruthRangeRecord { resource, from, to, at_ns }));
        self.newest = self.newest.max(to);
        self
    }

    /// Records one fault that lasted from this time until now.
    pub fn broken(&mut self, name: &str, from_ns: u64, waives: &[ApiserverGuarantee]) -> &mut Self {
        let (name, to_ns, waives) = (name.to_owned(), now_ns(), waives.to_vec());
        self.records.push(HistoryRecord::Fault(FaultRecord { name, from_ns, to_ns, hits: 1, waives }));
        self
    }

    /// Records the upstream requests of proxies so far, their own and forwarded ones.
    pub fn upstream_requests(&mut self, up: &RunningDemoApiserver) -> &mut Self {
        self.records.extend(up.requests().iter().filter_map(request_record).map(HistoryRecord::UpstreamRequest));
        self
    }

    /// Fails with the promise's name if one is broken, or if one of these was not judged. Responses are compared with
    /// the whole known history, so a test that still writes must record its writes first (`History::upto`).
    #[track_caller]
    pub fn shows(&self, promises: &[ApiserverGuarantee]) {
        records::assert_kept(&self.what, &self.all(), promises);
    }

    /// Whether a required event is still missing and no later event has superseded it.
    pub(super) fn is_awaited(&mut self) -> bool {
        let broken = |evidence: &Self| {
            let judges = Judges::of(evidence.all()).unwrap_or_else(|error| panic!("no history: {error}"));
            judges.judge(ApiserverGuarantee::Reliable).broken
        };
        let before = broken(self);
        broken(self.overdue()) > before
    }

    fn all(&self) -> Vec<HistoryRecord> {
        let (resource, from, to, at_ns) = (self.resource.clone(), self.from, self.newest, now_ns());
        let known = HistoryRecord::Known(GroundTruthRangeRecord { resource, from, to, at_ns });
        self.records.iter().cloned().chain([known]).collect()
    }

    fn op(&mut self) -> OperationId {
        self.next += 1;
        self.next - 1
    }

    fn event(&mut self, op: OperationId, event: &Event, at_ns: u64) -> EventRecord {
        let spelled = self.spelled(&event.body);
        let record = records::event(op, at_ns, records::kind(&event.kind), &spelled.object);
        let is_object = record.kind < RecordedEventType::Bookmark;
        let (digest, bytes) = (is_object.then_some(spelled.content), is_object.then_some(spelled.bytes));
        EventRecord { digest, bytes, ..record }
    }

    /// Most watches receive the same bytes, so each object is parsed only once.
    fn spelled(&mut self, body: &Bytes) -> Spelled {
        let read = || {
            let object: Value = serde_json::from_slice(body).expect("an object");
            Spelled {
                content: ContentDigest::of_object(&object),
                bytes: ContentDigest::of_bytes(body),
                object: Arc::new(object),
            }
        };
        self.read.entry(body.clone()).or_insert_with(read).clone()
    }
}

/// A request as it is recorded. The deprecated form of a path is recorded as query parameters.
pub(super) fn call(path: &str, accept: &str) -> CallRecord {
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let (mut path, mut query) = (path.to_owned(), query.to_owned());
    if let Some((root, rest)) = path.clone().split_once("/watch/") {
        let parts: Vec<_> = rest.split('/').collect();
        let name = if let ["namespaces", _, _, name] = parts[..] { name } else { "" };
        path = format!("{root}/{}", rest.strip_suffix(&format!("/{name}")).unwrap_or(rest));
        let of_one = if name.is_empty() { String::new() } else { format!("&fieldSelector=metadata.name%3D{name}") };
        query = format!("watch=true{of_one}{}{query}", if query.is_empty() { "" } else { "&" });
    }
    CallRecord {
        at_ns: now_ns(),
        verb: ReadVerb::Watch,
        path,
        query,
        encoding: encoding(accept),
        ..CallRecord::default()
    }
}

/// The kind of read: a collection or one object.
fn verb(path: &str, query: &str) -> ReadVerb {
    if UrlQuery::parse(query).first("watch").is_some_and(|value| value != "false" && value != "0") {
        return ReadVerb::Watch;
    }
    let parts: Vec<_> = path.split('/').skip(1).collect();
    match parts.get(if parts[0] == "api" { 2 } else { 3 }..).unwrap_or_default() {
        [_] | ["namespaces", _, _] => ReadVerb::List,
        _ => ReadVerb::Get,
    }
}

fn encoding(accept: &str) -> RecordedEncoding {
    match (accept.contains("as=PartialObjectMetadata"), accept.contains("as=Table"), accept.contains("protobuf")) {
        (true, _, false) => RecordedEncoding::Metadata,
        (true, _, true) => RecordedEncoding::MetadataProtobuf,
        (_, true, _) => RecordedEncoding::Table,
        (_, _, true) => RecordedEncoding::Protobuf,
        _ => RecordedEncoding::Json,
    }
}

/// A request of a proxy. It counts as forwarded for a client unless the proxy marks it as its own.
fn request_record(seen: &ReceivedRequest) -> Option<UpstreamRequestRecord> {
    let header = |name: &str| seen.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    if !seen.headers.contains_key("kube-fanout-hops") || seen.method != http::Method::GET {
        return None;
    }
    let (path, query) = (seen.uri.path(), seen.uri.query().unwrap_or_default());
    // Discovery reads the definitions once more after an outage, at some time. Lists of their feeds have a version.
    if header("kube-fanout-cause") == "definitions" && query.is_empty() {
        return None;
    }
    Some(UpstreamRequestRecord {
        at_ns: seen.at_ns,
        verb: verb(path, query),
        path: path.to_owned(),
        query: query.to_owned(),
        encoding: encoding(header("accept")),
        code: seen.status.unwrap_or(0),
        forwarded: !header("user-agent").starts_with("kube-fanout/"),
    })
}
