//! The record format: one line for each fact of a run, such as a request, a response, a write or a true change.
//!
//! A line is a JSON object with one member, whose name is the kind of record: `{"event":{"op":7,"at_ns":12,…}}`. All
//! times are nanoseconds on one monotonic clock that started with the run. All versions are resource versions. Lines of
//! one operation are in the order in which they happened. Lines of several need not be, because they have times.
//!
//! A *resource* is spelled as in the apiserver's messages, `configmaps` or `deployments.apps`. A *key* is
//! `namespace/name`, or `name` for cluster-wide resources.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ApiserverGuarantee, ContentDigest};

/// The number of an operation: one request and its results.
pub type OperationId = u64;

/// One line of a record of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum HistoryRecord {
    /// The first line of a record: the parameters of the run.
    Run(RunRecord),
    /// A client has sent a request.
    Call(CallRecord),
    /// The head of the response and, unless it is a watch, its content.
    Return(ResponseRecord),
    /// A watch has delivered an event.
    Event(EventRecord),
    /// A watch has ended, for a recorded reason.
    End(WatchEndRecord),
    /// A write, with its request and result in one line.
    Written(WriteRecord),
    /// A change that happened, or an object of the truth's initial state.
    Truth(GroundTruthRecord),
    /// The range of versions for which the truth is complete.
    Known(GroundTruthRangeRecord),
    /// The store may have forgotten history.
    Compacted(CompactionRecord),
    /// The server may have forgotten history.
    Window(HistoryWindowRecord),
    /// A fault was active for a time.
    Fault(FaultRecord),
    /// A request that the server sent to its own upstream.
    UpstreamRequest(UpstreamRequestRecord),
}

/// The parameters of a recorded run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunRecord {
    pub seed: u64,
    /// The URL of the judged server.
    pub url: String,
    /// Additional servers of the same cluster, which clients also use. They are judged in the same way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// Whether clients resume for as long as any server permits it, so that each receives a state only once.
    #[serde(skip_serializing_if = "is_default")]
    pub begins_once: bool,
    /// The wall-clock start time of the run, for display.
    pub started: String,
    pub truth: GroundTruthSource,
    /// The command that repeats the run.
    pub command: String,
    /// The server's declared minimum history, as a number of changes of each resource. Without it, only
    /// [`CompactionRecord`] and [`HistoryWindowRecord`] justify a 410.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_changes: Option<u64>,
    /// The maximum time that the delivery of a change to an open watch may take while no fault is active. Without it, a
    /// silent watch is never late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience_ns: Option<u64>,
}

/// The source of the true history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroundTruthSource {
    /// The true history comes from a watch of the store itself.
    #[default]
    Etcd,
    /// The true history comes from a watch at an apiserver. This is weaker, because changes that the watch misses are
    /// not noticed.
    Direct,
}

/// A recorded request of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallRecord {
    pub op: OperationId,
    pub client: u32,
    pub at_ns: u64,
    pub verb: ReadVerb,
    /// The request path as sent, such as `/api/v1/namespaces/a/configmaps`.
    pub path: String,
    /// The request query as sent, without the question mark.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub query: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub encoding: RecordedEncoding,
    #[serde(default, skip_serializing_if = "is_default")]
    pub transport: ClientTransport,
    /// The operation that this operation resumes. For a watch, it is the list or watch with the same version; for a
    /// page, the previous page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumes: Option<OperationId>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub server: RequestServerRole,
}

/// The kind of a recorded read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadVerb {
    #[default]
    Get,
    List,
    Watch,
}

/// The encoding of objects in a request or a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedEncoding {
    #[default]
    Json,
    Protobuf,
    /// The `PartialObjectMetadata` encoded in JSON.
    Metadata,
    /// `PartialObjectMetadata`, encoded in protobuf.
    MetadataProtobuf,
    Table,
}

/// The transport of a recorded request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientTransport {
    H1,
    #[default]
    H2,
    Ws,
}

/// The server that a request is sent to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RequestServerRole {
    /// The request was sent to the judged server.
    #[default]
    Subject,
    /// An additional server of a run, by its index in [`RunRecord::also`]. It is judged like the first.
    Also(u8),
    /// The apiserver behind the judged server, for comparison. Its responses are not judged.
    Direct,
}

impl RequestServerRole {
    pub(super) fn is_judged(self) -> bool {
        self != Self::Direct
    }
}

/// The head of a response and, unless it is a watch, its content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResponseRecord {
    pub op: OperationId,
    pub at_ns: u64,
    /// The HTTP status code; 0 if there was no response because the connection broke or the client cancelled the
    /// request.
    pub code: u16,
    /// The version of a list, or of the object of a GET.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The encoding in the response's `Content-Type`, if it differs from the requested one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<RecordedEncoding>,
    /// Whether the server marked the response as cached, as kube-fanout does with `Kube-Fanout-Served: cache`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub from_memory: bool,
    /// The items in the order of the response.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<RecordedItem>,
    /// Whether the response has a continue token, so that more pages follow.
    #[serde(default, skip_serializing_if = "is_default")]
    pub more: bool,
    /// The `remainingItemCount` of a list; `None` if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub status: RecordedStatus,
}

/// An object of a list, or of a GET.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedItem {
    pub key: String,
    pub version: u64,
    /// A digest of the object's content; `None` if the encoding could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<ContentDigest>,
    /// A digest of the object's raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<ContentDigest>,
}

/// The content of a `Status` in a response or an ERROR event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecordedStatus {
    #[serde(skip_serializing_if = "is_default")]
    pub code: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason of the Status's first cause, such as `ResourceVersionTooLarge`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cause: String,
}

/// A recorded event of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRecord {
    pub op: OperationId,
    pub at_ns: u64,
    #[serde(rename = "type")]
    pub kind: RecordedEventType,
    /// The key of the object; empty for a bookmark and an error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// The resourceVersion of the event; 0 for an error.
    #[serde(default, skip_serializing_if = "is_default")]
    pub version: u64,
    /// A digest of the object's content; `None` if the encoding could not be read, for a bookmark and for an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<ContentDigest>,
    /// A digest of the object's raw bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<ContentDigest>,
    /// Whether a bookmark has the annotation for the end of the initial events.
    #[serde(default, skip_serializing_if = "is_default")]
    pub initial_end: bool,
    /// The Status of an ERROR event.
    #[serde(default, skip_serializing_if = "is_default")]
    pub status: RecordedStatus,
}

/// The types of watch events, and of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum RecordedEventType {
    #[default]
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

impl RecordedEventType {
    /// Returns the name on the wire and in records.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
            Self::Bookmark => "BOOKMARK",
            Self::Error => "ERROR",
        }
    }
}

/// The recorded end of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchEndRecord {
    pub op: OperationId,
    pub at_ns: u64,
    pub how: WatchEnding,
}

/// The way in which a watch ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchEnding {
    /// The server ended the watch cleanly between two events.
    #[default]
    Clean,
    /// The server ended the watch cleanly within an event.
    Torn,
    /// The stream or its connection broke.
    Broken,
    /// The client ended the watch.
    Left,
}

/// A recorded write of a client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriteRecord {
    pub call_ns: u64,
    pub return_ns: u64,
    pub verb: WriteVerb,
    pub resource: String,
    pub key: String,
    /// The version of the written object or, for a deletion, of the deleted object; `None` if the response does not
    /// contain it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// The status code; 0 if there was no response: the write may have happened, or may still happen.
    pub code: u16,
}

/// The kind of a recorded write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteVerb {
    #[default]
    Create,
    Update,
    Patch,
    Delete,
}

/// A change that happened, or an object of the truth's initial state, which is ADDED at its own version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroundTruthRecord {
    pub resource: String,
    pub key: String,
    /// The version of the change; a deletion has its own.
    pub version: u64,
    #[serde(rename = "type")]
    pub kind: RecordedEventType,
    /// The time at which the change was received. The change had happened by then.
    pub at_ns: u64,
    /// A digest of the content; `None` for a deletion, or if it is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<ContentDigest>,
    /// A digest of the content as `PartialObjectMetadata`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<ContentDigest>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The fields for field selectors, besides name and namespace; a missing field is `""`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub source: GroundTruthSource,
}

/// The range of a resource's truth: the whole state at `from`, and every change after it up to `to`. Later lines
/// replace earlier ones.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GroundTruthRangeRecord {
    pub resource: String,
    pub from: u64,
    pub to: u64,
    pub at_ns: u64,
}

/// The store may have forgotten everything before a version, except the state at that version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompactionRecord {
    pub version: u64,
    /// The time at which the compaction was requested, or the last time at which it was known not to have happened.
    pub at_ns: u64,
}

/// The server may not have changes at or below a version, because it began there or has reported that it dropped them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HistoryWindowRecord {
    /// The resource whose changes the server may not have; empty for all resources.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource: String,
    pub version: u64,
    /// The earliest time at which the server may have forgotten the changes.
    pub at_ns: u64,
    /// The server that may have forgotten changes; `None` means all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<RequestServerRole>,
}

/// A fault that was active for a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRecord {
    pub name: String,
    pub from_ns: u64,
    pub to_ns: u64,
    /// The number of times that the fault took effect: streams that were cut, requests that were refused.
    pub hits: u64,
    /// The guarantees that do not hold during the fault. Guarantees that compare two moments do not hold across it
    /// either.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waives: Vec<ApiserverGuarantee>,
}

/// A request that the server sent to its own upstream, as recorded by a relay between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamRequestRecord {
    pub at_ns: u64,
    pub verb: ReadVerb,
    pub path: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub query: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub encoding: RecordedEncoding,
    /// The status code; 0 if there was no response.
    pub code: u16,
    /// Whether the request was a client's, forwarded by the proxy, according to its user agent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub forwarded: bool,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_round_trips_and_omits_default_fields() {
        let event = EventRecord { op: 7, at_ns: 1200, key: "a/b".into(), version: 5, ..EventRecord::default() };
        let line = serde_json::to_string(&HistoryRecord::Event(event.clone())).unwrap();
        assert_eq!(line, r#"{"event":{"op":7,"at_ns":1200,"type":"ADDED","key":"a/b","version":5}}"#);
        assert_eq!(serde_json::from_str::<HistoryRecord>(&line).unwrap(), HistoryRecord::Event(event));
    }

    #[test]
    fn record_omits_server_only_for_the_tested_one() {
        let call = |server| serde_json::to_string(&CallRecord { server, ..CallRecord::default() }).unwrap();
        assert!(!call(RequestServerRole::Subject).contains("server"));
        for (server, text) in
            [(RequestServerRole::Also(1), r#""server":{"also":1}"#), (RequestServerRole::Direct, r#":"direct""#)]
        {
            assert!(call(server).contains(text), "{}", call(server));
            assert_eq!(serde_json::from_str::<CallRecord>(&call(server)).unwrap().server, server);
        }
    }

    #[test]
    fn unknown_record_field_is_an_error() {
        let line = r#"{"end":{"op":7,"at_ns":1,"how":"clean","why":"?"}}"#;
        assert!(serde_json::from_str::<HistoryRecord>(line).is_err());
    }
}
