//! Objects as the records of `fanoutctl verify`, and the verdicts of its checkers. Tests on a real control plane also
//! use this.

use std::collections::BTreeMap;

use serde_json::Value;
use verify::{
    ApiserverGuarantee, ContentDigest, EventRecord, GroundTruthRecord, GroundTruthSource, HistoryRecord, OperationId,
    RecordedEventType, RecordedItem, RecordedStatus, RunHistory,
};

/// Fields that tests select by, besides name and namespace. Shards select by the UID.
const FIELDS: [&str; 5] = ["metadata.uid", "spec.nodeName", "spec.restartPolicy", "status.phase", "status.podIP"];

/// Fails with the names of the promises if these records break one, or if one of those given was not judged.
#[track_caller]
pub fn assert_kept(what: &str, records: &[HistoryRecord], promises: &[ApiserverGuarantee]) {
    let history = RunHistory::of(records.iter().cloned()).unwrap_or_else(|error| panic!("no history: {error}"));
    let judged = history.judge_all();
    let broken: Vec<_> = judged.iter().filter(|judged| judged.broken > 0).collect();
    if let Some(first) = broken.iter().find_map(|judged| judged.violations.first()) {
        let names: Vec<_> = broken.iter().map(|judged| judged.promise.to_string()).collect();
        let lines = first.lines.iter().filter_map(|line| records.get(*line as usize - 1));
        let lines: Vec<_> = lines.filter_map(|record| serde_json::to_string(record).ok()).collect();
        let (names, lines) = (names.join(", "), lines.join("\n  "));
        panic!("{names} broken: expected {}, got {}\n  {what}\n  {lines}", first.expected, first.got);
    }
    for promise in promises {
        let instances = judged.iter().find(|judged| judged.promise == *promise).map_or(0, |judged| judged.instances);
        assert!(instances > 0, "nothing to judge {promise} by: {what}");
    }
}

/// A change as a watch without the proxy reports it, or an object of the initial state.
pub fn truth(resource: &str, kind: RecordedEventType, object: &Value, at_ns: u64) -> GroundTruthRecord {
    let there = (kind != RecordedEventType::Deleted).then_some(object);
    GroundTruthRecord {
        resource: resource.to_owned(),
        key: key(object),
        version: version(object),
        kind,
        at_ns,
        digest: there.map(ContentDigest::of_object),
        metadata: there.map(ContentDigest::of_metadata),
        labels: there.map(labels).unwrap_or_default(),
        fields: there.map(fields).unwrap_or_default(),
        source: GroundTruthSource::Direct,
    }
}

/// An event without digests.
pub fn event(op: OperationId, at_ns: u64, kind: RecordedEventType, object: &Value) -> EventRecord {
    let is_object = kind < RecordedEventType::Bookmark;
    EventRecord {
        op,
        at_ns,
        kind,
        key: if is_object { key(object) } else { String::new() },
        version: version(object),
        initial_end: object["metadata"]["annotations"]["k8s.io/initial-events-end"] == "true",
        status: if kind == RecordedEventType::Error { status(object) } else { RecordedStatus::default() },
        ..EventRecord::default()
    }
}

pub fn item(object: &Value) -> RecordedItem {
    RecordedItem {
        key: key(object),
        version: version(object),
        digest: Some(ContentDigest::of_object(object)),
        bytes: None,
    }
}

pub fn kind(name: &str) -> RecordedEventType {
    match name {
        "ADDED" => RecordedEventType::Added,
        "MODIFIED" => RecordedEventType::Modified,
        "DELETED" => RecordedEventType::Deleted,
        "BOOKMARK" => RecordedEventType::Bookmark,
        "ERROR" => RecordedEventType::Error,
        other => panic!("{other} is no type of an event"),
    }
}

/// The version of an object or a list; 0 if it has none.
pub fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
}

pub fn status(object: &Value) -> RecordedStatus {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let code = object["code"].as_u64().and_then(|code| u16::try_from(code).ok()).unwrap_or(0);
    let [reason, message, cause] = ["/reason", "/message", "/details/causes/0/reason"].map(text);
    RecordedStatus { code, reason, message, cause }
}

fn key(object: &Value) -> String {
    let name = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    match name("namespace") {
        "" => name("name").to_owned(),
        namespace => format!("{namespace}/{}", name("name")),
    }
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object["metadata"]["labels"].as_object();
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    labels.into_iter().flatten().filter_map(text).collect()
}

fn fields(object: &Value) -> BTreeMap<String, String> {
    let value = |name: &str| object.pointer(&format!("/{}", name.replace('.', "/"))).and_then(Value::as_str);
    FIELDS.iter().filter_map(|name| Some(((*name).to_owned(), value(name)?.to_owned()))).collect()
}
