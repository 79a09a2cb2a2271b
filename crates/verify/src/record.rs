//! A record is one line of what a run wrote down: what clients asked and got, what was written, what is true.
//!
//! A line is a JSON object with one member, whose name says what it is: `{"event":{"op":7,"at_ns":12,…}}`. All times
//! are nanoseconds on one monotonic clock that began with the run; all versions are resource versions. Lines of one
//! operation are in the order in which they happened; lines of several need not be, for they have times.
//!
//! A *resource* is spelled as the apiserver spells it in messages, `configmaps` or `deployments.apps`; a *key* is
//! `namespace/name`, or `name` where there are no namespaces.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Digest, Promise};

/// The number of an operation: one request and what came of it.
pub type Op = u64;

/// One line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Record {
    /// The first line: what was run.
    Run(RunRecord),
    /// A client asks.
    Call(CallRecord),
    /// The head of the answer, and all of it where it is no watch.
    Return(ReturnRecord),
    /// A watch delivers an event.
    Event(EventRecord),
    /// A watch is over.
    End(EndRecord),
    /// Somebody wrote, with the call and what came of it in one line.
    Written(WrittenRecord),
    /// A change that happened, or an object of the state that the truth begins with.
    Truth(TruthRecord),
    /// How far the truth is whole.
    Known(KnownRecord),
    /// The store may have forgotten history.
    Compacted(CompactedRecord),
    /// The server may have forgotten history.
    Window(WindowRecord),
    /// Something was broken for a time.
    Fault(FaultRecord),
    /// A request that the server sent to its own upstream.
    Asked(AskedRecord),
}

/// What was run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunRecord {
    pub seed: u64,
    /// The server that is judged.
    pub url: String,
    /// Further servers of the same cluster, which clients go to as well and which are judged as it is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<String>,
    /// Whether clients go on for as long as any server lets them, so that each begins once.
    #[serde(skip_serializing_if = "is_default")]
    pub begins_once: bool,
    /// Wall-clock time, for people.
    pub started: String,
    pub truth: TruthSource,
    /// The command that repeats the run.
    pub command: String,
    /// The server says that it holds at least so many last changes of each resource, whatever it has forgotten beyond
    /// them. Without it, only [`CompactedRecord`] and [`WindowRecord`] justify a 410.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_changes: Option<u64>,
    /// How long a change may take to be delivered to a watch that is open while nothing is broken. Without it, a watch
    /// that is silent is never late.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patience_ns: Option<u64>,
}

/// Where the truth was learnt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TruthSource {
    /// A watch of the store itself.
    #[default]
    Etcd,
    /// A watch at an apiserver, which is weaker: what it misses nobody misses.
    Direct,
}

/// A client asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CallRecord {
    pub op: Op,
    pub client: u32,
    pub at_ns: u64,
    pub verb: ReadVerb,
    /// As it was sent: `/api/v1/namespaces/a/configmaps`.
    pub path: String,
    /// As it was sent, without the question mark.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub query: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub encoding: RecordedEncoding,
    #[serde(default, skip_serializing_if = "is_default")]
    pub transport: Transport,
    /// The operation that this one goes on from: of a watch, the list or the watch whose version it names; of a page,
    /// the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resumes: Option<Op>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub server: AskedServer,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadVerb {
    #[default]
    Get,
    List,
    Watch,
}

/// In what form objects are asked for, and come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordedEncoding {
    #[default]
    Json,
    Protobuf,
    /// `PartialObjectMetadata` in JSON.
    Metadata,
    /// `PartialObjectMetadata` in protobuf.
    MetadataProtobuf,
    Table,
}

/// How a request travels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    H1,
    #[default]
    H2,
    Ws,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskedServer {
    /// The server that is judged.
    #[default]
    Subject,
    /// One of the further servers of a run ([`RunRecord::also`]), by its place there. It is judged as the first is.
    Also(u8),
    /// The apiserver behind it, for comparison. What it answers is not judged.
    Direct,
}

impl AskedServer {
    pub(super) fn is_judged(self) -> bool {
        self != Self::Direct
    }
}

/// The answer's head, and all of it where it is no watch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReturnRecord {
    pub op: Op,
    pub at_ns: u64,
    /// 0 when no answer came: the connection broke, or the client gave up.
    pub code: u16,
    /// The version of a list, or of the object of a GET.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// What the answer's `Content-Type` says, where it is not what was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoding: Option<RecordedEncoding>,
    /// Whether the server says that the answer is from its memory, as kube-fanout does by `Kube-Fanout-Served: cache`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub from_memory: bool,
    /// In the order of the answer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub items: Vec<RecordedItem>,
    /// Whether the answer has a continue token, so that more pages follow.
    #[serde(default, skip_serializing_if = "is_default")]
    pub more: bool,
    /// `remainingItemCount`.
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
    /// A digest of its content; none where the encoding could not be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// A digest of its bytes as they came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Digest>,
}

/// What a `Status` says, in an answer or an ERROR event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecordedStatus {
    #[serde(skip_serializing_if = "is_default")]
    pub code: u16,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The reason of the first of its causes, such as `ResourceVersionTooLarge`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cause: String,
}

/// A watch delivers an event.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventRecord {
    pub op: Op,
    pub at_ns: u64,
    #[serde(rename = "type")]
    pub kind: EventKind,
    /// Empty for a bookmark and an error.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// 0 for an error.
    #[serde(default, skip_serializing_if = "is_default")]
    pub version: u64,
    /// A digest of the object's content; none where the encoding could not be read, for a bookmark and for an error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// A digest of the object's bytes as they came.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Digest>,
    /// Whether a bookmark is annotated as the end of the initial events.
    #[serde(default, skip_serializing_if = "is_default")]
    pub initial_end: bool,
    /// What an error says.
    #[serde(default, skip_serializing_if = "is_default")]
    pub status: RecordedStatus,
}

/// The types of watch events, and of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum EventKind {
    #[default]
    Added,
    Modified,
    Deleted,
    Bookmark,
    Error,
}

impl EventKind {
    /// As it is on the wire and in a record.
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

/// A watch is over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndRecord {
    pub op: Op,
    pub at_ns: u64,
    pub how: Ending,
}

/// How a watch is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// The server ended it between two events.
    #[default]
    Clean,
    /// The server ended it as if it were whole, within an event.
    Torn,
    /// The stream or its connection broke.
    Broken,
    /// The client left.
    Left,
}

/// Somebody wrote.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WrittenRecord {
    pub call_ns: u64,
    pub return_ns: u64,
    pub verb: WriteVerb,
    pub resource: String,
    pub key: String,
    /// The version of what a deletion has deleted; none where the answer does not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<u64>,
    /// 0 when no answer came: it may have happened, or may yet.
    pub code: u16,
}

/// How somebody wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteVerb {
    #[default]
    Create,
    Update,
    Patch,
    Delete,
}

/// A change that happened, or an object of the state that the truth begins with, which is ADDED at its own version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TruthRecord {
    pub resource: String,
    pub key: String,
    /// The version of the change; a deletion has its own.
    pub version: u64,
    #[serde(rename = "type")]
    pub kind: EventKind,
    /// When it was learnt: it had happened by then.
    pub at_ns: u64,
    /// A digest of the content; none for a deletion, and where it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<Digest>,
    /// A digest of the content as `PartialObjectMetadata`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Digest>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// What field selectors may name, besides name and namespace; a field that is missing is `""`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub fields: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub source: TruthSource,
}

/// The truth about a resource has its whole state at `from`, and every change behind it up to `to`. Later lines say
/// more, and what they say holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnownRecord {
    pub resource: String,
    pub from: u64,
    pub to: u64,
    pub at_ns: u64,
}

/// The store may have forgotten everything before a version, except the state there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompactedRecord {
    pub version: u64,
    /// When it was asked to, or the last time at which it was known not to have done so.
    pub at_ns: u64,
}

/// The server need not know changes at or below a version, for it began there or says that it has let go of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WindowRecord {
    /// Empty for all resources.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource: String,
    pub version: u64,
    /// When it may have done so at the earliest.
    pub at_ns: u64,
    /// The one server that this is said of; all of them without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<AskedServer>,
}

/// Something was broken for a time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FaultRecord {
    pub name: String,
    pub from_ns: u64,
    pub to_ns: u64,
    /// How often it took effect: streams that were cut, requests that were refused.
    pub hits: u64,
    /// Promises that nobody makes while it lasts, and, where they compare two moments, across it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waives: Vec<Promise>,
}

/// A request that the server sent to its own upstream, as a relay between them saw it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskedRecord {
    pub at_ns: u64,
    pub verb: ReadVerb,
    pub path: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub query: String,
    #[serde(default, skip_serializing_if = "is_default")]
    pub encoding: RecordedEncoding,
    /// What it was answered; 0 when no answer came.
    pub code: u16,
    /// Whether it is a client's own request that was passed on, as its user agent tells.
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
    fn a_line_reads_as_what_was_written_and_says_no_more_than_it_must() {
        let event = EventRecord { op: 7, at_ns: 1200, key: "a/b".into(), version: 5, ..EventRecord::default() };
        let line = serde_json::to_string(&Record::Event(event.clone())).unwrap();
        assert_eq!(line, r#"{"event":{"op":7,"at_ns":1200,"type":"ADDED","key":"a/b","version":5}}"#);
        assert_eq!(serde_json::from_str::<Record>(&line).unwrap(), Record::Event(event));
    }

    #[test]
    fn a_server_is_named_where_it_is_not_the_first() {
        let call = |server| serde_json::to_string(&CallRecord { server, ..CallRecord::default() }).unwrap();
        assert!(!call(AskedServer::Subject).contains("server"));
        for (server, text) in [(AskedServer::Also(1), r#""server":{"also":1}"#), (AskedServer::Direct, r#":"direct""#)]
        {
            assert!(call(server).contains(text), "{}", call(server));
            assert_eq!(serde_json::from_str::<CallRecord>(&call(server)).unwrap().server, server);
        }
    }

    #[test]
    fn a_field_that_nobody_knows_is_an_error() {
        let line = r#"{"end":{"op":7,"at_ns":1,"how":"clean","why":"?"}}"#;
        assert!(serde_json::from_str::<Record>(line).is_err());
    }
}
