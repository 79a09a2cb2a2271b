//! A server that keeps every promise by construction: all changes in one list, a cache that lags behind it, and simple
//! clients. Their records form a history that is judged as is, or with an injected error.

use std::collections::BTreeMap;

use super::super::digest::ContentDigest;
use super::super::record::{
    CallRecord, CompactionRecord, EventRecord, FaultRecord, GroundTruthRangeRecord, GroundTruthRecord, HistoryRecord,
    OperationId, ReadVerb, RecordedEventType, RecordedItem, RecordedStatus, RequestServerRole, ResponseRecord,
    RunRecord, UpstreamRequestRecord, WatchEndRecord, WatchEnding, WriteRecord, WriteVerb,
};
use super::acts::{Act, KEYS, Plan, Scope};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

/// Longer than any run, except for the wait at its end.
pub(super) const PATIENCE_NS: u64 = 1_000_000;

/// The version of the truth's initial state.
const BEGINNING: u64 = 10;

/// A change with the label after it; the label is `None` for a deletion.
#[derive(Clone, Copy, Debug)]
pub(super) struct Past {
    pub(super) version: u64,
    pub(super) key: &'static str,
    pub(super) label: Option<u8>,
}

#[derive(Debug)]
struct Open {
    op: OperationId,
    of: Scope,
    bookmarks: bool,
    server: RequestServerRole,
    /// Everything up to this version was sent, and nothing after it.
    delivered: u64,
    /// The version at which its client would resume.
    moment: u64,
}

/// The server, its clients, and their records.
#[derive(Debug)]
pub(super) struct Model {
    pub(super) records: Vec<HistoryRecord>,
    pub(super) past: Vec<Past>,
    pub(super) scopes: BTreeMap<OperationId, Scope>,
    at_ns: u64,
    version: u64,
    memory: u64,
    compacted: u64,
    ops: OperationId,
    /// The client of each operation.
    clients: BTreeMap<OperationId, u32>,
    watches: Vec<Open>,
    /// The last one-page list, with its version.
    listed: Option<(OperationId, Scope, u64)>,
}

/// Runs these acts and returns the model with its records.
pub(super) fn run(acts: &[Act]) -> Model {
    let about = RunRecord { patience_ns: Some(PATIENCE_NS), begins_once: true, ..RunRecord::default() };
    let mut model = Model {
        records: vec![HistoryRecord::Run(about)],
        past: Vec::new(),
        scopes: BTreeMap::new(),
        at_ns: 100,
        version: BEGINNING,
        memory: BEGINNING,
        compacted: BEGINNING,
        ops: 0,
        clients: BTreeMap::new(),
        watches: Vec::new(),
        listed: None,
    };
    for (version, key, label) in [(3, KEYS[1], 1), (7, KEYS[4], 2)] {
        model.learn(version, key, Some(label), RecordedEventType::Added);
    }
    model.know(BEGINNING);
    model.records.push(HistoryRecord::Compacted(CompactionRecord { version: BEGINNING, at_ns: 0 }));
    for act in acts {
        model.at_ns += 10;
        model.act(act);
    }
    model.catch_up();
    for watch in 0..model.watches.len() {
        model.bookmark(watch);
    }
    model.at_ns += 3 * PATIENCE_NS;
    while !model.watches.is_empty() {
        model.end(0, WatchEnding::Left);
    }
    model.know(model.version);
    model
}

impl Model {
    fn act(&mut self, act: &Act) {
        match *act {
            Act::Write { key, label, delete } => {
                self.version += 1 + u64::from(label == 2);
                self.write(KEYS[key], Some(label).filter(|_| !delete));
            }
            Act::Transaction { keys, label } => {
                self.version += 1;
                let delete = keys.iter().all(|key| self.state(self.version).contains_key(KEYS[*key]));
                keys.iter().for_each(|key| self.write(KEYS[*key], Some(label).filter(|_| !delete)));
            }
            Act::CatchUp => self.catch_up(),
            Act::Bookmark { watch } if !self.watches.is_empty() => self.bookmark(watch % self.watches.len()),
            Act::Resume { watch, amid } if !self.watches.is_empty() => self.resume(watch % self.watches.len(), amid),
            Act::Bookmark { .. } | Act::Resume { .. } => {}
            Act::List { plan, of, limit } => self.list(plan, of, limit),
            Act::Get { plan, key } => self.get(plan, KEYS[key]),
            Act::Watch { plan, of, bookmarks, server } => {
                self.watch(plan, of, bookmarks, server, None);
            }
            Act::Follow { bookmarks } => {
                if let Some((op, of, version)) = self.listed {
                    let behind = Plan::Behind(version.cast_signed() - self.version.cast_signed());
                    self.watch(behind, of, bookmarks, RequestServerRole::Subject, Some(op));
                }
            }
            Act::Compact { back } => {
                self.compacted = self.compacted.max(self.version.saturating_sub(back));
                let compacted = CompactionRecord { version: self.compacted, at_ns: self.at_ns };
                self.records.push(HistoryRecord::Compacted(compacted));
            }
            Act::Fault => self.fault(),
        }
    }

    /// Returns the objects at a version, each with its own version and its label.
    pub(super) fn state(&self, version: u64) -> BTreeMap<&'static str, (u64, u8)> {
        let mut state = BTreeMap::new();
        for past in self.past.iter().filter(|past| past.version <= version) {
            match past.label {
                Some(label) => state.insert(past.key, (past.version, label)),
                None => state.remove(past.key),
            };
        }
        state
    }

    /// Returns the event of a change for this selection, with the version of its content.
    pub(super) fn seen(&self, past: Past, of: Scope) -> Option<(RecordedEventType, u64)> {
        let before = self.state(past.version - 1).get(past.key).copied();
        let before = before.filter(|(_, label)| of.matches(past.key, *label));
        let now = past.label.filter(|label| of.matches(past.key, *label));
        match (before, now) {
            (None, Some(_)) => Some((RecordedEventType::Added, past.version)),
            (Some(_), Some(_)) => Some((RecordedEventType::Modified, past.version)),
            (Some((version, _)), None) => Some((RecordedEventType::Deleted, version)),
            (None, None) => None,
        }
    }

    fn write(&mut self, key: &'static str, label: Option<u8>) {
        let before = self.state(self.version).get(key).copied();
        let (kind, verb) = match (before, label) {
            (None, None) => return,
            (None, Some(_)) => (RecordedEventType::Added, WriteVerb::Create),
            (Some(_), Some(_)) => (RecordedEventType::Modified, WriteVerb::Update),
            (Some(_), None) => (RecordedEventType::Deleted, WriteVerb::Delete),
        };
        self.learn(self.version, key, label, kind);
        let deleted = before.filter(|_| verb == WriteVerb::Delete).map(|(version, _)| version);
        self.records.push(HistoryRecord::Written(WriteRecord {
            call_ns: self.at_ns,
            return_ns: self.at_ns + 1,
            verb,
            resource: "pods".into(),
            key: key.into(),
            version: Some(deleted.unwrap_or(self.version)),
            code: 200,
        }));
    }

    /// Records a change in the truth, some time later.
    fn learn(&mut self, version: u64, key: &'static str, label: Option<u8>, kind: RecordedEventType) {
        self.past.push(Past { version, key, label });
        self.records.push(HistoryRecord::Truth(GroundTruthRecord {
            resource: "pods".into(),
            key: key.into(),
            version,
            kind,
            at_ns: self.at_ns + version % 3 * 20,
            digest: label.map(|_| content(key, version)),
            labels: label.iter().map(|label| ("l".to_owned(), label.to_string())).collect(),
            ..GroundTruthRecord::default()
        }));
    }

    fn know(&mut self, to: u64) {
        let known = GroundTruthRangeRecord { resource: "pods".into(), from: BEGINNING, to, at_ns: self.at_ns };
        self.records.push(HistoryRecord::Known(known));
    }

    /// A fault occurs, and the server lists its resource once.
    fn fault(&mut self) {
        let at_ns = self.at_ns;
        let fault = FaultRecord { name: "cut".into(), from_ns: at_ns, to_ns: at_ns, hits: 1, ..FaultRecord::default() };
        self.records.push(HistoryRecord::Fault(fault));
        let request = UpstreamRequestRecord {
            at_ns,
            verb: ReadVerb::List,
            path: "/api/v1/pods".into(),
            code: 200,
            ..UpstreamRequestRecord::default()
        };
        self.records.push(HistoryRecord::UpstreamRequest(request));
    }

    fn call(
        &mut self,
        verb: ReadVerb,
        path: String,
        query: String,
        resumes: Option<OperationId>,
        server: RequestServerRole,
    ) -> OperationId {
        self.ops += 1;
        let (op, at_ns) = (self.ops, self.at_ns);
        // An operation that resumes nothing belongs to a new client.
        let client = resumes.map_or(u32::try_from(op).unwrap(), |before| self.clients[&before]);
        self.clients.insert(op, client);
        let call = CallRecord { op, client, at_ns, verb, path, query, resumes, server, ..CallRecord::default() };
        self.records.push(HistoryRecord::Call(call));
        self.at_ns += 2;
        op
    }

    fn answer(&mut self, answer: ResponseRecord) {
        self.records.push(HistoryRecord::Return(ResponseRecord { at_ns: self.at_ns, ..answer }));
    }

    /// Returns a version at this offset from the newest.
    fn near(&self, offset: i64) -> u64 {
        self.version.saturating_add_signed(offset).max(1)
    }

    /// Returns the version of the response, or the refusal.
    fn plan(&mut self, plan: Plan) -> Result<u64, (u16, &'static str)> {
        const TOO_LARGE: (u16, &str) = (504, "ResourceVersionTooLarge");
        match plan {
            Plan::Consistent => self.memory = self.version,
            Plan::AtLeast(offset) if self.near(offset) > self.version => return Err(TOO_LARGE),
            Plan::AtLeast(offset) => self.memory = self.memory.max(self.near(offset)),
            Plan::Exact(offset) if self.near(offset) > self.version => return Err(TOO_LARGE),
            Plan::Exact(offset) if self.near(offset) < self.compacted => return Err((410, "")),
            Plan::Exact(offset) => return Ok(self.near(offset)),
            Plan::Any | Plan::Behind(_) | Plan::Next => {}
        }
        Ok(self.memory)
    }

    fn list(&mut self, plan: Plan, of: Scope, limit: usize) {
        let limit = if matches!(plan, Plan::Any) { 0 } else { limit };
        let version = match plan {
            Plan::AtLeast(offset) => {
                format!("resourceVersion={}&resourceVersionMatch=NotOlderThan&", self.near(offset))
            }
            Plan::Exact(offset) => format!("resourceVersion={}&resourceVersionMatch=Exact&", self.near(offset)),
            Plan::Any => "resourceVersion=0&".to_owned(),
            _ => String::new(),
        };
        let mut query = format!("{}{version}limit={limit}", of.selector.0);
        let version_at = self.plan(plan);
        let mut resumes = None;
        let mut behind = String::new();
        loop {
            let op = self.call(ReadVerb::List, of.path(), query, resumes, RequestServerRole::Subject);
            self.scopes.insert(op, of);
            let version = match version_at {
                Ok(version) => version,
                Err((code, cause)) => {
                    let status = RecordedStatus { code, cause: cause.into(), ..RecordedStatus::default() };
                    return self.answer(ResponseRecord { op, code, status, ..ResponseRecord::default() });
                }
            };
            let items = self.items(version, of);
            let rest: Vec<_> = items.into_iter().filter(|item| item.key > behind).collect();
            let count = if limit == 0 { rest.len() } else { limit.min(rest.len()) };
            let more = count < rest.len();
            let remaining = (more && of.selector.0.is_empty()).then_some((rest.len() - count) as u64);
            let items = rest[..count].to_vec();
            behind = items.last().map(|item| item.key.clone()).unwrap_or_default();
            let answer = ResponseRecord { op, code: 200, version: Some(version), items, ..ResponseRecord::default() };
            self.answer(ResponseRecord { more, remaining, ..answer });
            if !more {
                self.listed = Some((op, of, version));
                return;
            }
            let start = if of.namespace.is_empty() { &behind } else { behind.split('/').nth(1).unwrap() };
            let token = format!(r#"{{"v":"meta.k8s.io/v1","rv":{version},"start":"{start}\u0000"}}"#);
            let token = BASE64_URL_SAFE_NO_PAD.encode(token);
            query = format!("{}limit={limit}&continue={token}", of.selector.0);
            resumes = Some(op);
        }
    }

    /// Returns the items of a list.
    pub(super) fn items(&self, version: u64, of: Scope) -> Vec<RecordedItem> {
        let state = self.state(version).into_iter().filter(|(key, (_, label))| of.matches(key, *label));
        state.map(|(key, (version, _))| item(key, version)).collect()
    }

    fn get(&mut self, plan: Plan, key: &'static str) {
        let plan = if matches!(plan, Plan::Exact(_)) { Plan::Any } else { plan };
        let query = match plan {
            Plan::Any => "resourceVersion=0".to_owned(),
            Plan::AtLeast(offset) => format!("resourceVersion={}", self.near(offset)),
            _ => String::new(),
        };
        let version_at = self.plan(plan);
        let (namespace, name) = key.split_once('/').unwrap();
        let path = format!("/api/v1/namespaces/{namespace}/pods/{name}");
        let op = self.call(ReadVerb::Get, path, query, None, RequestServerRole::Subject);
        let found = version_at.map(|version| self.state(version).get(key).map(|(version, _)| item(key, *version)));
        self.answer(match found {
            Ok(Some(item)) => {
                let version = Some(item.version);
                ResponseRecord { op, code: 200, version, items: vec![item], ..ResponseRecord::default() }
            }
            Ok(None) => ResponseRecord { op, code: 404, ..ResponseRecord::default() },
            Err((code, cause)) => {
                let status = RecordedStatus { code, cause: cause.into(), ..RecordedStatus::default() };
                ResponseRecord { op, code, status, ..ResponseRecord::default() }
            }
        });
    }

    fn watch(
        &mut self,
        plan: Plan,
        of: Scope,
        bookmarks: bool,
        server: RequestServerRole,
        resumes: Option<OperationId>,
    ) {
        let initial = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let version = match plan {
            Plan::Consistent => initial.to_owned(),
            Plan::Any => format!("{initial}&resourceVersion=0"),
            Plan::AtLeast(offset) | Plan::Exact(offset) => format!("{initial}&resourceVersion={}", self.near(offset)),
            Plan::Behind(offset) => format!("resourceVersion={}", self.near(offset)),
            Plan::Next => "sendInitialEvents=false".to_owned(),
        };
        let query = format!("{}{version}&allowWatchBookmarks={bookmarks}", of.selector.0);
        if matches!(plan, Plan::Next) {
            self.memory = self.version;
        }
        let version_at = self.plan(plan);
        let op = self.call(ReadVerb::Watch, of.path(), query, resumes, server);
        self.scopes.insert(op, of);
        self.answer(ResponseRecord { op, code: 200, ..ResponseRecord::default() });
        let mut open = Open { op, of, bookmarks, server, delivered: self.memory, moment: self.memory };
        match (plan, version_at) {
            (_, Err((code, cause))) => return self.refuse(&open, code, cause),
            (Plan::Behind(offset), _) => {
                let version = self.near(offset);
                if version + 1 < self.compacted {
                    return self.refuse(&open, 410, "");
                }
                (open.delivered, open.moment) = (version, version);
            }
            (Plan::Next, _) => {}
            (_, Ok(version)) => {
                for item in self.items(version, of) {
                    self.event(op, RecordedEventType::Added, &item);
                }
                if bookmarks {
                    self.mark(op, version, true);
                }
            }
        }
        self.deliver(&mut open, u64::MAX);
        self.watches.push(open);
    }

    fn refuse(&mut self, open: &Open, code: u16, cause: &str) {
        let status = RecordedStatus { code, cause: cause.into(), ..RecordedStatus::default() };
        let (op, at_ns, kind) = (open.op, self.at_ns, RecordedEventType::Error);
        self.records.push(HistoryRecord::Event(EventRecord { op, at_ns, kind, status, ..EventRecord::default() }));
        self.records.push(HistoryRecord::End(WatchEndRecord { op, at_ns, how: WatchEnding::Clean }));
    }

    fn catch_up(&mut self) {
        self.memory = self.version;
        let mut watches = std::mem::take(&mut self.watches);
        watches.iter_mut().for_each(|open| self.deliver(open, u64::MAX));
        self.watches = watches;
    }

    /// Sends a watch at most `most` changes of those in the cache.
    fn deliver(&mut self, open: &mut Open, most: u64) {
        let changes = self.past.iter().filter(|past| open.delivered < past.version && past.version <= self.memory);
        let seen = changes.filter_map(|past| Some((*past, self.seen(*past, open.of)?)));
        let seen: Vec<_> = seen.take(usize::try_from(most).unwrap_or(usize::MAX)).collect();
        for (past, (kind, object)) in seen {
            let object = RecordedItem { version: past.version, ..item(past.key, object) };
            self.event(open.op, kind, &object);
            open.moment = past.version;
        }
        open.delivered = open.delivered.max(self.memory);
    }

    fn event(&mut self, op: OperationId, kind: RecordedEventType, item: &RecordedItem) {
        let RecordedItem { key, version, digest, bytes } = item.clone();
        let at_ns = self.at_ns;
        let event = EventRecord { op, at_ns, kind, key, version, digest, bytes, ..EventRecord::default() };
        self.records.push(HistoryRecord::Event(event));
    }

    fn mark(&mut self, op: OperationId, version: u64, initial_end: bool) {
        let (at_ns, kind) = (self.at_ns, RecordedEventType::Bookmark);
        self.records.push(HistoryRecord::Event(EventRecord {
            op,
            at_ns,
            kind,
            version,
            initial_end,
            ..EventRecord::default()
        }));
    }

    /// Sends a bookmark. The changes in the cache are sent before it.
    fn bookmark(&mut self, watch: usize) {
        let mut open = self.watches.remove(watch);
        self.deliver(&mut open, u64::MAX);
        // A watch that waits for a future version gets no earlier one.
        if open.bookmarks && open.delivered == self.memory {
            open.moment = self.memory;
            self.mark(open.op, self.memory, false);
        }
        self.watches.insert(watch, open);
    }

    fn end(&mut self, watch: usize, how: WatchEnding) -> Open {
        let open = self.watches.remove(watch);
        self.records.push(HistoryRecord::End(WatchEndRecord { op: open.op, at_ns: self.at_ns, how }));
        open
    }

    fn resume(&mut self, watch: usize, amid: bool) {
        if amid {
            self.memory = self.version;
            let mut open = self.watches.remove(watch);
            self.deliver(&mut open, 1);
            self.watches.insert(watch, open);
        }
        let open = self.end(watch, WatchEnding::Broken);
        let behind = Plan::Behind(open.moment.cast_signed() - self.version.cast_signed());
        // Every second watch resumes at another server.
        let server = match open.server {
            RequestServerRole::Direct => RequestServerRole::Direct,
            _ if self.ops.is_multiple_of(2) => RequestServerRole::Also(0),
            _ => RequestServerRole::Subject,
        };
        self.watch(behind, open.of, open.bookmarks, server, Some(open.op));
        if amid {
            self.catch_up();
        }
    }
}

/// Returns an object as in lists and events.
fn item(key: &str, version: u64) -> RecordedItem {
    let digest = Some(content(key, version));
    RecordedItem { key: key.into(), version, digest, bytes: digest }
}

/// Returns the content of an object at a version.
pub(super) fn content(key: &str, version: u64) -> ContentDigest {
    ContentDigest::of_bytes(format!("{key} {version}").as_bytes())
}
