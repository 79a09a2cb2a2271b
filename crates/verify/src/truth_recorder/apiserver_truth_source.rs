use std::sync::Arc;

use tokio::time::{sleep, timeout};

use super::{ExistingKeys, GroundTruthError, GroundTruthRecorder, RETRY};
use crate::client::{ClientConnection, QueryString};
use crate::decode::{accept, key_and_version, status};
use crate::record::{ClientTransport, RecordedEncoding, RecordedEventType};
use base::BackgroundTasks;
use probe::{PendingResponse, ResponseStream, StreamFrameSplitter, StreamFraming, TargetServer};

use serde_json::Value;

const LIST_BYTES_MAX: usize = 1 << 30;
/// The silence after which a stream is considered dead. Bookmarks are sent every minute.
const SILENCE_MAX: std::time::Duration = std::time::Duration::from_secs(90);

/// An apiserver as the source of truth, through a list and a watch.
pub(crate) struct ApiserverTruthSource {
    target: TargetServer,
    path: String,
    connection: ClientConnection,
}

impl ApiserverTruthSource {
    pub(crate) fn new(target: &TargetServer, path: &str, tasks: &BackgroundTasks) -> Self {
        let connection = ClientConnection::new(target, ClientTransport::H1, tasks);
        Self { target: target.clone(), path: path.to_owned(), connection }
    }

    /// Records the state and then every change, until the task is ended.
    pub(crate) async fn learn(mut self, learnt: Arc<GroundTruthRecorder>) {
        if let Err(error) = self.learn_all(&learnt).await {
            learnt.failed(error);
        }
    }

    async fn learn_all(&mut self, learnt: &GroundTruthRecorder) -> Result<(), GroundTruthError> {
        let list = self.list().await?;
        let mut living = ExistingKeys::default();
        for item in list["items"].as_array().into_iter().flatten() {
            let (key, version) = key_and_version(item).ok_or_else(|| malformed("an item of a list"))?;
            learnt.put(living.change(&key, false), &key, version, Some(item));
        }
        let version = list["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok());
        let mut at = version.ok_or_else(|| malformed("a list without a version"))?;
        learnt.begin(at);
        loop {
            if let Ok(answer) = self.watch(at).await {
                self.follow(answer.body, learnt, &mut living, &mut at).await?;
            }
            self.connection.give_up();
            sleep(RETRY).await;
        }
    }

    async fn list(&mut self) -> Result<Value, GroundTruthError> {
        let failed = |what: String| GroundTruthError::Unreachable { url: self.target.url().to_owned(), what };
        let response = self.connection.get(&self.path, accept(RecordedEncoding::Json, true, false)).await;
        let mut answer = response.map_err(|error| failed(error.to_string()))?;
        let read = answer.body.read(LIST_BYTES_MAX).await;
        let (body, _) = read.map_err(|error| failed(error.to_string()))?;
        if !answer.status.is_success() {
            return Err(failed(format!("{} {}", answer.status, status(&body).0.message)));
        }
        serde_json::from_slice(&body).map_err(|error| malformed(&format!("a list ({error})")))
    }

    async fn watch(&mut self, from: u64) -> Result<PendingResponse, GroundTruthError> {
        let query = QueryString::default().with("watch", "true").with("allowWatchBookmarks", "true");
        let path = query.with("resourceVersion", &from.to_string()).behind(&self.path);
        let answer = self.connection.get(&path, accept(RecordedEncoding::Json, false, true)).await;
        let answer = answer.map_err(|error| malformed(&error.to_string()))?;
        if answer.status.is_success() { Ok(answer) } else { Err(malformed("a refusal")) }
    }

    async fn follow(
        &self,
        mut body: ResponseStream,
        learnt: &GroundTruthRecorder,
        living: &mut ExistingKeys,
        at: &mut u64,
    ) -> Result<(), GroundTruthError> {
        let mut frames = StreamFrameSplitter::new(StreamFraming::Lines);
        while let Ok(Some(Ok(chunk))) = timeout(SILENCE_MAX, body.chunk()).await {
            let mut result = Ok(());
            let fed = frames.feed(&chunk, |line| {
                if result.is_ok() {
                    result = Self::line(line, learnt, living, at);
                }
            });
            result?;
            if fed.is_err() {
                return Err(malformed("a line of a watch"));
            }
        }
        Ok(())
    }

    fn line(
        line: &[u8],
        learnt: &GroundTruthRecorder,
        living: &mut ExistingKeys,
        at: &mut u64,
    ) -> Result<(), GroundTruthError> {
        let mut event: Value = serde_json::from_slice(line).map_err(|_| malformed("a line of a watch"))?;
        let object = event["object"].take();
        let kind = event["type"].as_str().unwrap_or_default();
        if kind == "ERROR" {
            let gap =
                GroundTruthError::Gap(format!("version {at}: {}", object["message"].as_str().unwrap_or_default()));
            return if object["code"] == 410 { Err(gap) } else { Ok(()) };
        }
        if kind == "BOOKMARK" {
            let version = object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok());
            *at = version.unwrap_or(0).max(*at);
        } else {
            let (key, version) = key_and_version(&object).ok_or_else(|| malformed("an event of a watch"))?;
            let is_deletion = kind == "DELETED";
            let change = living.change(&key, is_deletion);
            learnt.put(change, &key, version, Some(&object).filter(|_| change != RecordedEventType::Deleted));
            *at = version.max(*at);
        }
        learnt.known(*at);
        Ok(())
    }
}

fn malformed(what: &str) -> GroundTruthError {
    GroundTruthError::Malformed(what.to_owned())
}
