//! Records of what clients of a real control plane received, for the checkers of `fanoutctl verify`. The apiserver is
//! the reference.

use std::sync::atomic::{AtomicU64, Ordering};

use base::now_ns;
use parking_lot::Mutex;
use serde_json::Value;
use verify::{
    ApiserverGuarantee, CallRecord, ContentDigest, EventRecord, FaultRecord, GroundTruthRangeRecord, GroundTruthSource,
    HistoryRecord, HistoryWindowRecord, OperationId, ReadVerb, RecordedEventType, ResponseRecord, RunRecord,
    WatchEndRecord, WatchEnding,
};

use crate::bed::{Event, Plane, RequestSpec, version_of};
use crate::records;

/// The records of clients that list and watch one collection, starting with a state.
pub struct Ledger {
    path: &'static str,
    resource: String,
    from: u64,
    records: Mutex<Vec<HistoryRecord>>,
    next: AtomicU64,
}

impl Ledger {
    /// Starts with the current state of a collection of the core group.
    pub async fn begin(plane: &Plane, path: &'static str) -> Self {
        let state = plane.direct().json(path).await;
        let (resource, from, at_ns) = (path.trim_start_matches("/api/v1/").to_owned(), version_of(&state), now_ns());
        let run = RunRecord { truth: GroundTruthSource::Direct, ..RunRecord::default() };
        let known = GroundTruthRangeRecord { resource: resource.clone(), from, to: from, at_ns };
        let mut records = vec![HistoryRecord::Run(run), HistoryRecord::Known(known)];
        let items = state["items"].as_array().expect("a list");
        records.extend(
            items
                .iter()
                .map(|item| HistoryRecord::Truth(records::truth(&resource, RecordedEventType::Added, item, at_ns))),
        );
        Self { path, resource, from, records: Mutex::new(records), next: AtomicU64::new(1) }
    }

    pub fn path(&self) -> &str {
        self.path
    }

    /// The version of the initial state.
    pub fn from(&self) -> u64 {
        self.from
    }

    /// Records that servers may have forgotten changes up to a version from a moment on, so that a 410 is permitted.
    pub fn may_be_forgotten(&self, version: u64, at_ns: u64) {
        let resource = self.resource.clone();
        self.put(HistoryRecord::Window(HistoryWindowRecord { resource, version, at_ns, server: None }));
    }

    /// Records that servers were down or recovering from a moment until now. Guarantees about time do not hold then.
    pub fn disturbed(&self, from_ns: u64) {
        let (name, to_ns) = ("outage".to_owned(), now_ns());
        self.put(HistoryRecord::Fault(FaultRecord { name, from_ns, to_ns, hits: 1, ..FaultRecord::default() }));
    }

    /// Records a request for the collection, which may resume after an earlier operation.
    pub fn called(&self, verb: ReadVerb, query: &str, resumes: Option<OperationId>) -> OperationId {
        let op = self.next.fetch_add(1, Ordering::Relaxed);
        let (path, query, at_ns) = (self.path.to_owned(), query.to_owned(), now_ns());
        self.put(HistoryRecord::Call(CallRecord { op, at_ns, verb, path, query, resumes, ..CallRecord::default() }));
        op
    }

    /// Records that a watch was accepted.
    pub fn opened(&self, op: OperationId) {
        self.put(HistoryRecord::Return(ResponseRecord { op, at_ns: now_ns(), code: 200, ..ResponseRecord::default() }));
    }

    pub fn listed(&self, op: OperationId, list: &Value, from_memory: bool) {
        let items = list["items"].as_array().expect("items").iter().map(records::item).collect();
        let (at_ns, version) = (now_ns(), Some(version_of(list)));
        self.put(HistoryRecord::Return(ResponseRecord {
            op,
            at_ns,
            code: 200,
            version,
            items,
            from_memory,
            ..ResponseRecord::default()
        }));
    }

    pub fn record_event(&self, op: OperationId, event: &Event) {
        let record = records::event(op, now_ns(), records::kind(&event.kind), &event.object);
        let is_object = record.kind < RecordedEventType::Bookmark;
        let digest = is_object.then(|| ContentDigest::of_object(&event.object));
        self.put(HistoryRecord::Event(EventRecord { digest, ..record }));
    }

    pub fn over(&self, op: OperationId, how: WatchEnding) {
        self.put(HistoryRecord::End(WatchEndRecord { op, at_ns: now_ns(), how }));
    }

    /// Reads up to the last version of the collection. Panics if a promise was broken, or if one of `promises` was not
    /// checked.
    pub async fn shows(&self, plane: &Plane, last: u64, promises: &[ApiserverGuarantee]) {
        let query = format!("?watch=true&resourceVersion={}", self.from);
        let mut watch = plane.direct().watch(RequestSpec::get(&format!("{}{query}", self.path))).await;
        let (mut to, mut changes) = (self.from, Vec::new());
        while to < last {
            let event = watch.change().await;
            to = event.version();
            changes.push((records::kind(&event.kind), event.object));
        }
        self.judge(&changes, to, promises);
    }

    /// Panics if these changes, which are complete up to a version, break a promise, or if one of `promises` was not
    /// checked.
    pub fn judge(&self, changes: &[(RecordedEventType, Value)], to: u64, promises: &[ApiserverGuarantee]) {
        for (kind, object) in changes {
            self.put(HistoryRecord::Truth(records::truth(&self.resource, *kind, object, now_ns())));
        }
        let known = GroundTruthRangeRecord { resource: self.resource.clone(), from: self.from, to, at_ns: now_ns() };
        self.put(HistoryRecord::Known(known));
        records::assert_kept(self.path, &self.records.lock(), promises);
    }

    fn put(&self, record: HistoryRecord) {
        self.records.lock().push(record);
    }
}
