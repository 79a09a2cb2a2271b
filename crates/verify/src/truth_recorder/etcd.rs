use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{ExistingKeys, GroundTruthError, GroundTruthRecorder, RETRY};
use crate::record::{CompactionRecord, HistoryRecord};
use base::{BackgroundTasks, now_ns};
use probe::{
    self, EstablishedConnection, FlowControlWindows, RequestSpec, ResponseStream, StreamFrameSplitter, StreamFraming,
    TargetServer, WatchProtocol,
};

const WINDOWS: FlowControlWindows =
    FlowControlWindows { stream: 1 << 20, connection: 4 << 20, socket: None, as_go: false };
/// How many objects of the initial state are read at once.
const PAGE: u32 = 500;
const PAGE_BYTES_MAX: usize = 1 << 30;
const JSON: &str = "application/json";

/// An etcd client that uses the JSON gateway of a client URL.
#[derive(Clone)]
pub(crate) struct EtcdGatewayClient {
    target: TargetServer,
    /// The prefix of the resource's keys.
    prefix: String,
    tasks: BackgroundTasks,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EtcdHeader {
    #[serde(deserialize_with = "number")]
    revision: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EtcdRangeResponse {
    header: EtcdHeader,
    kvs: Vec<EtcdKeyValue>,
    more: bool,
    /// The error message of etcd, if there is no result.
    error: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EtcdKeyValue {
    key: String,
    value: String,
    #[serde(deserialize_with = "number")]
    mod_revision: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EtcdWatchLine {
    result: EtcdWatchResponse,
    error: Option<Value>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EtcdWatchResponse {
    header: EtcdHeader,
    created: bool,
    canceled: bool,
    #[serde(deserialize_with = "number")]
    compact_revision: u64,
    events: Vec<EtcdWatchEvent>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct EtcdWatchEvent {
    /// The type of an etcd event; absent for `PUT`, the default.
    #[serde(rename = "type")]
    kind: String,
    kv: EtcdKeyValue,
}

/// Parses a number, because the gateway writes 64-bit numbers as text.
fn number<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = <std::borrow::Cow<'_, str>>::deserialize(deserializer)?;
    text.parse().map_err(serde::de::Error::custom)
}

/// The last result of a watch.
enum EtcdWatchInterruption {
    /// The stream has ended; the watch resumes after this revision.
    Disconnected,
    Compacted(u64),
}

impl EtcdGatewayClient {
    pub(crate) fn new(target: &TargetServer, prefix: &str, tasks: &BackgroundTasks) -> Self {
        Self { target: target.clone(), prefix: prefix.to_owned(), tasks: tasks.clone() }
    }

    /// Records the state and then every change, until the task is ended.
    pub(crate) async fn learn(self, learnt: Arc<GroundTruthRecorder>) {
        if let Err(error) = self.learn_all(&learnt).await {
            learnt.failed(error);
        }
    }

    async fn learn_all(&self, learnt: &GroundTruthRecorder) -> Result<(), GroundTruthError> {
        let mut living = ExistingKeys::default();
        let mut at = self.state(learnt, &mut living).await?;
        learnt.begin(at);
        loop {
            match self.watch(at + 1, learnt, &mut living, &mut at).await? {
                EtcdWatchInterruption::Disconnected => sleep(RETRY).await,
                EtcdWatchInterruption::Compacted(revision) => {
                    return Err(GroundTruthError::Gap(format!("revision {at}: etcd has compacted up to {revision}")));
                }
            }
        }
    }

    /// Puts the state of one revision; returns the revision.
    async fn state(&self, learnt: &GroundTruthRecorder, living: &mut ExistingKeys) -> Result<u64, GroundTruthError> {
        let (mut revision, mut from) = (0, self.prefix.clone().into_bytes());
        loop {
            let range = json!({
                "key": STANDARD.encode(&from), "range_end": STANDARD.encode(end_of(&self.prefix)),
                "limit": PAGE, "revision": revision,
            });
            let range: EtcdRangeResponse = self.post("/v3/kv/range", &range).await?;
            if !range.error.is_empty() {
                return Err(self.unreachable(range.error));
            }
            revision = if revision == 0 { range.header.revision } else { revision };
            for kv in &range.kvs {
                let (key, object) = self.object(kv)?;
                learnt.put(living.change(&key, false), &key, kv.mod_revision, Some(&object));
            }
            let Some(last) = range.kvs.last().filter(|_| range.more) else { return Ok(revision) };
            from = decoded(&last.key)?;
            from.push(0);
        }
    }

    async fn watch(
        &self,
        from: u64,
        learnt: &GroundTruthRecorder,
        living: &mut ExistingKeys,
        at: &mut u64,
    ) -> Result<EtcdWatchInterruption, GroundTruthError> {
        let create = json!({"create_request": {
            "key": STANDARD.encode(&self.prefix), "range_end": STANDARD.encode(end_of(&self.prefix)),
            "start_revision": from.to_string(), "progress_notify": true,
        }});
        let Ok(mut body) = self.stream("/v3/watch", &create).await else {
            return Ok(EtcdWatchInterruption::Disconnected);
        };
        let mut frames = StreamFrameSplitter::new(StreamFraming::Lines);
        while let Some(Ok(chunk)) = body.chunk().await {
            let mut interruption = Ok(None);
            let fed = frames.feed(&chunk, |line| {
                if matches!(interruption, Ok(None)) {
                    interruption = self.line(line, learnt, living, at);
                }
            });
            if let Some(interruption) = interruption? {
                return Ok(interruption);
            }
            if fed.is_err() {
                return Err(GroundTruthError::Malformed("a line of etcd's watch".to_owned()));
            }
        }
        Ok(EtcdWatchInterruption::Disconnected)
    }

    fn line(
        &self,
        line: &[u8],
        learnt: &GroundTruthRecorder,
        living: &mut ExistingKeys,
        at: &mut u64,
    ) -> Result<Option<EtcdWatchInterruption>, GroundTruthError> {
        let EtcdWatchLine { result, error } = serde_json::from_slice(line)
            .map_err(|error| GroundTruthError::Malformed(format!("a line of etcd's watch ({error})")))?;
        if result.compact_revision > 0 {
            return Ok(Some(EtcdWatchInterruption::Compacted(result.compact_revision)));
        }
        if error.is_some() || result.canceled {
            return Ok(Some(EtcdWatchInterruption::Disconnected));
        }
        for event in &result.events {
            let is_deletion = event.kind == "DELETE";
            let revision = event.kv.mod_revision;
            if is_deletion {
                let key = self.key(&event.kv.key)?;
                learnt.put(living.change(&key, true), &key, revision, None);
            } else {
                let (key, object) = self.object(&event.kv)?;
                learnt.put(living.change(&key, false), &key, revision, Some(&object));
            }
            *at = revision.max(*at);
        }
        // A progress notification means that everything up to its revision was sent. A response with events means only
        // that these were sent.
        if result.events.is_empty() && !result.created {
            *at = result.header.revision.max(*at);
        }
        learnt.known(*at);
        Ok(None)
    }

    /// Returns the revision up to which etcd has compacted its history; `None` if it has not, or does not respond with
    /// one.
    async fn compacted(&self) -> Option<u64> {
        let create = json!({"create_request": {"key": STANDARD.encode("compact"), "start_revision": "1"}});
        let mut body = self.stream("/v3/watch", &create).await.ok()?;
        let mut frames = StreamFrameSplitter::new(StreamFraming::Lines);
        let mut revision = None;
        // The refusal follows the creation at once. Without one nothing follows.
        while let Ok(Some(Ok(chunk))) = tokio::time::timeout(RETRY, body.chunk()).await {
            let each = |line: &[u8]| {
                let line: Option<EtcdWatchLine> = serde_json::from_slice(line).ok();
                revision = line.map(|line| line.result.compact_revision).filter(|at| *at > 0).or(revision);
            };
            if frames.feed(&chunk, each).is_err() || revision.is_some() {
                break;
            }
        }
        revision
    }

    /// Records compactions until the task is ended.
    pub(crate) async fn keep_compactions(self, learnt: Arc<GroundTruthRecorder>) {
        let (mut known, mut intact_ns) = (0, 0);
        loop {
            let asked_ns = now_ns();
            if let Some(version) = self.compacted().await.filter(|version| *version > known) {
                learnt.scene.recorder.put(&HistoryRecord::Compacted(CompactionRecord { version, at_ns: intact_ns }));
                known = version;
            }
            // The compaction was not further than that at the time of the request.
            intact_ns = asked_ns;
            sleep(super::windows::TICK).await;
        }
    }

    fn key(&self, key: &str) -> Result<String, GroundTruthError> {
        let key = String::from_utf8(decoded(key)?).map_err(|_| GroundTruthError::Malformed("a key".to_owned()))?;
        let rest = key.strip_prefix(&self.prefix).map(str::to_owned);
        rest.ok_or_else(|| GroundTruthError::Malformed(format!("the key {key}")))
    }

    fn object(&self, kv: &EtcdKeyValue) -> Result<(String, Value), GroundTruthError> {
        let (key, value) = (self.key(&kv.key)?, decoded(&kv.value)?);
        let form = match &value[..] {
            [b'{', ..] => return Ok((key.clone(), parsed(&key, &value)?)),
            value if value.starts_with(b"k8s\0") => "protobuf",
            value if value.starts_with(b"k8s:enc:") => "encrypted data",
            _ => "unknown data",
        };
        Err(GroundTruthError::NotJson { key: format!("{}{key}", self.prefix), form })
    }

    async fn post<T: for<'de> Deserialize<'de>>(&self, path: &str, body: &Value) -> Result<T, GroundTruthError> {
        let mut answer = self.stream(path, body).await?;
        let (body, _) = answer.read(PAGE_BYTES_MAX).await.map_err(|error| self.unreachable(error.to_string()))?;
        serde_json::from_slice(&body).map_err(|error| {
            let text = String::from_utf8_lossy(&body[..body.len().min(100)]).into_owned();
            GroundTruthError::Malformed(format!("etcd's {text:?} ({error})"))
        })
    }

    async fn stream(&self, path: &str, body: &Value) -> Result<ResponseStream, GroundTruthError> {
        let opened = probe::open(&self.target, WatchProtocol::H1, WINDOWS).await;
        let EstablishedConnection { sender, driver, .. } =
            opened.map_err(|error| self.unreachable(error.to_string()))?;
        self.tasks.spawn("etcd connection", driver);
        let request = RequestSpec { method: Method::POST, content_type: JSON, ..RequestSpec::get(path, JSON) };
        let answer = sender.send(&self.target, &request, Bytes::from(body.to_string())).await;
        Ok(answer.map_err(|error| self.unreachable(error.to_string()))?.body)
    }

    fn unreachable(&self, what: String) -> GroundTruthError {
        GroundTruthError::Unreachable { url: self.target.url().to_owned(), what }
    }
}

fn parsed(key: &str, value: &[u8]) -> Result<Value, GroundTruthError> {
    serde_json::from_slice(value)
        .map_err(|error| GroundTruthError::Malformed(format!("the value of {key} in etcd ({error})")))
}

fn decoded(text: &str) -> Result<Vec<u8>, GroundTruthError> {
    STANDARD.decode(text).map_err(|_| GroundTruthError::Malformed(format!("etcd's {text:?}")))
}

/// Returns the first key after all keys with a prefix. Prefixes end with a slash, which has a successor byte.
fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> EtcdWatchResponse {
        serde_json::from_str::<EtcdWatchLine>(text).expect("a line").result
    }

    #[test]
    fn etcd_gateway_lines_parse_with_numbers_as_strings() {
        let put = r#"{"result":{"header":{"cluster_id":"1","revision":"12","raft_term":"2"},"events":[{"kv":{
            "key":"YQ==","create_revision":"12","mod_revision":"12","version":"1","value":"e30="}}]}}"#;
        let events = line(put).events;
        assert_eq!((events[0].kind.as_str(), events[0].kv.mod_revision), ("", 12));
        assert_eq!((decoded(&events[0].kv.key), decoded(&events[0].kv.value)), (Ok(b"a".to_vec()), Ok(b"{}".to_vec())));
        let gone = r#"{"result":{"header":{"revision":"13"},"events":[{"type":"DELETE","kv":{"key":"YQ==",
            "mod_revision":"13"}}]}}"#;
        assert_eq!(line(gone).events[0].kind, "DELETE");
        let progress = line(r#"{"result":{"header":{"revision":"19"}}}"#);
        assert!(progress.events.is_empty() && progress.header.revision == 19 && !progress.created);
        let lost = line(r#"{"result":{"header":{},"canceled":true,"compact_revision":"9","cancel_reason":"x"}}"#);
        assert!(lost.canceled && lost.compact_revision == 9);
    }

    #[test]
    fn prefix_range_contains_exactly_keys_with_the_prefix() {
        let (prefix, end) = ("/registry/configmaps/", end_of("/registry/configmaps/"));
        let within = |key: &str| prefix.as_bytes() <= key.as_bytes() && key.as_bytes() < &end[..];
        assert!(within("/registry/configmaps/a/b") && within("/registry/configmaps/~"));
        assert!(!within("/registry/configmaps0") && !within("/registry/configmap/a"));
    }
}
