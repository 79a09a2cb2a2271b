use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http::StatusCode;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::time::sleep;

use super::TrialError;
use super::informer_store::InformerStore;
use super::ledger::WriteLedger;
use super::writers::number_of;
use base::{BackgroundTasks, random};
use probe::{
    self, EstablishedConnection, FlowControlWindows, HttpRequestSender, PendingResponse, RequestSpec,
    StreamFrameSplitter, StreamFraming, TargetServer, WatchProtocol,
};

/// Many informers of one collection. Each records the events that it receives. It resumes when its stream ends, and
/// relists when its resourceVersion has expired.
pub struct InformerFleet {
    shared: Arc<InformerFleetState>,
    tasks: BackgroundTasks,
}

struct InformerFleetState {
    target: TargetServer,
    path: String,
    seen: Vec<Mutex<InformerStore>>,
    open: AtomicU64,
    complaint: Mutex<Option<String>>,
}

/// The counts of all informers of a trial.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InformerFleetCounts {
    pub informers: u64,
    pub streams_open: u64,
    pub synced: u64,
    pub delivered: u64,
    pub lost: u64,
    pub wrong: u64,
    /// The number of initial states after the first one of each informer.
    pub relists: u64,
    /// The number of informers that have not reached the newest version.
    pub behind: u64,
}

/// The number of streams per connection: the concurrent streams that an apiserver allows.
const STREAMS_PER_CONNECTION: usize = 100;
const WINDOWS: FlowControlWindows =
    FlowControlWindows { stream: 1 << 20, connection: 16 << 20, socket: None, as_go: false };
/// The first and the longest pause before a retry. Each pause is multiplied by a random factor from 0.5 to 1.5.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(3));
/// The range of `timeoutSeconds`, as client-go's reflectors choose it.
const STREAM_SECONDS: std::ops::Range<u32> = 300..600;
/// The maximum number of bytes read of a response that is not a stream.
const REFUSAL_BYTES_MAX: usize = 4096;

impl InformerFleet {
    /// Starts this many informers of the collection at `path`, which has this many objects.
    pub fn start(target: TargetServer, path: &str, informers: usize, objects: usize) -> Self {
        let seen = (0..informers).map(|_| Mutex::new(InformerStore::new(objects))).collect();
        let (open, complaint) = (AtomicU64::new(0), Mutex::new(None));
        let shared = Arc::new(InformerFleetState { target, path: path.to_owned(), seen, open, complaint });
        let tasks = BackgroundTasks::new();
        for first in (0..informers).step_by(STREAMS_PER_CONNECTION) {
            let some = first..informers.min(first + STREAMS_PER_CONNECTION);
            tasks.spawn("informers", shared.clone().run(some));
        }
        Self { shared, tasks }
    }

    /// Compares the informers with the writes whose outcome is known, and returns the counts.
    pub fn judge(&self, ledger: &WriteLedger) -> InformerFleetCounts {
        let mut least = u64::MAX;
        for seen in &self.shared.seen {
            let mut seen = seen.lock();
            seen.judge(ledger);
            least = least.min(seen.judged_to());
        }
        ledger.forget_to(least);
        self.counts(ledger.newest())
    }

    /// Compares the informers with all writes, at the end. A change that has not arrived yet counts as lost.
    pub fn judge_all(&self, ledger: &WriteLedger) -> InformerFleetCounts {
        self.shared.seen.iter().for_each(|seen| seen.lock().judge_all(ledger));
        self.counts(ledger.newest())
    }

    fn counts(&self, newest: u64) -> InformerFleetCounts {
        let shared = &self.shared;
        let mut sum = InformerFleetCounts { informers: shared.seen.len() as u64, ..InformerFleetCounts::default() };
        for seen in &shared.seen {
            let seen = seen.lock();
            sum.delivered += seen.counts.delivered;
            sum.lost += seen.counts.lost;
            sum.wrong += seen.counts.wrong;
            sum.relists += seen.counts.states.saturating_sub(1);
            sum.synced += u64::from(seen.counts.states > 0);
            sum.behind += u64::from(seen.at().is_none_or(|at| at < newest));
        }
        sum.streams_open = shared.open.load(Ordering::Relaxed);
        sum
    }

    /// Returns the first error, which may explain why informers receive nothing.
    pub fn complaint(&self) -> Option<String> {
        self.shared.complaint.lock().clone()
    }

    pub async fn stop(self) {
        self.tasks.join().await;
    }
}

impl InformerFleetState {
    /// Runs some of the informers on one connection, and reconnects whenever it ends.
    async fn run(self: Arc<Self>, some: std::ops::Range<usize>) {
        let mut failures = 0;
        loop {
            match probe::open(&self.target, WatchProtocol::H2, WINDOWS).await {
                Ok(EstablishedConnection { sender, mut driver, .. }) => {
                    failures = 0;
                    let mut all: FuturesUnordered<_> = some.clone().map(|nth| self.follow(nth, &sender)).collect();
                    tokio::select! {
                        biased;
                        () = &mut driver => {}
                        _ = all.next() => {}
                    }
                }
                Err(error) => {
                    self.complain(&error.to_string());
                    failures += 1;
                }
            }
            pause(failures).await;
        }
    }

    /// Opens streams one after another while the connection exists.
    async fn follow(&self, nth: usize, sender: &HttpRequestSender) {
        let mut failures = 0;
        loop {
            match self.stream(nth, sender).await {
                Ok(()) => failures = 0,
                Err(error) => {
                    self.complain(&error.to_string());
                    failures += 1;
                }
            }
            pause(failures).await;
        }
    }

    async fn stream(&self, nth: usize, sender: &HttpRequestSender) -> Result<(), TrialError> {
        let seen = &self.seen[nth];
        let begin = match seen.lock().at() {
            Some(version) => format!("resourceVersion={version}"),
            None => "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=".to_owned(),
        };
        let seconds = fastrand::u32(STREAM_SECONDS);
        let path = format!("{}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&{begin}", self.path);
        let answer = sender.get(&self.target, &RequestSpec::get(&path, "application/json")).await;
        let mut answer = answer.map_err(|error| TrialError::of("a watch", error))?;
        if answer.status == StatusCode::GONE {
            seen.lock().expires();
            return Ok(());
        }
        if answer.status != StatusCode::OK {
            return Err(refusal(answer).await);
        }
        seen.lock().begins();
        self.open.fetch_add(1, Ordering::Relaxed);
        let _open = OpenStreamGuard(&self.open);
        let mut frames = StreamFrameSplitter::new(StreamFraming::Lines);
        let mut unreadable = None;
        while let Some(chunk) = answer.body.chunk().await {
            let chunk = chunk.map_err(|error| TrialError::of("a watch", error))?;
            let mut seen = seen.lock();
            let fed = frames.feed(&chunk, |frame| {
                if let Err(error) = take(&mut seen, frame) {
                    unreadable.get_or_insert(error);
                }
            });
            if fed.is_err() {
                return Err(TrialError::of("a watch", "the frame is too long"));
            }
            if let Some(error) = unreadable {
                return Err(error);
            }
        }
        Ok(())
    }

    fn complain(&self, what: &str) {
        self.complaint.lock().get_or_insert_with(|| what.to_owned());
    }
}

struct OpenStreamGuard<'a>(&'a AtomicU64);

impl Drop for OpenStreamGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn refusal(mut answer: PendingResponse) -> TrialError {
    let message = answer.body.read(REFUSAL_BYTES_MAX).await.map(|(bytes, _)| bytes).unwrap_or_default();
    TrialError::of("a watch", format!("{} {}", answer.status, String::from_utf8_lossy(&message)))
}

async fn pause(failures: u32) {
    let (first, longest) = BACKOFF;
    let wait = first.saturating_mul(1 << failures.min(10)).min(longest);
    sleep(if failures == 0 { first } else { wait }.mul_f64(0.5 + random::f64())).await;
}

#[derive(Deserialize)]
struct WatchFrameHead<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: WatchObjectHead<'a>,
}

#[derive(Deserialize)]
struct WatchObjectHead<'a> {
    #[serde(borrow, default)]
    metadata: WatchObjectMetadata<'a>,
    /// A field of a Status, in an ERROR event.
    code: Option<u16>,
    message: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct WatchObjectMetadata<'a> {
    name: Option<&'a str>,
    resource_version: Option<&'a str>,
    #[serde(borrow)]
    annotations: Option<&'a RawValue>,
}

const INITIAL_EVENTS_END: &str = "\"k8s.io/initial-events-end\":\"true\"";

/// Applies one frame of a watch.
fn take(seen: &mut InformerStore, frame: &[u8]) -> Result<(), TrialError> {
    let WatchFrameHead { kind, object } =
        serde_json::from_slice(frame).map_err(|error| TrialError::of("a frame", error))?;
    let WatchObjectHead { metadata, code, message } = object;
    if kind == "ERROR" {
        if code == Some(StatusCode::GONE.as_u16()) {
            seen.expires();
            return Ok(());
        }
        return Err(TrialError::of("a watch ended", message.unwrap_or_default()));
    }
    let version = metadata.resource_version.and_then(|version| version.parse().ok());
    let version: u64 = version.ok_or_else(|| TrialError::of("a frame", "no version"))?;
    if kind == "BOOKMARK" {
        let text = metadata.annotations.map(|text| text.get().replace(' ', "")).unwrap_or_default();
        seen.reaches(version, text.contains(INITIAL_EVENTS_END));
    } else if let Some(object) = metadata.name.and_then(number_of) {
        seen.takes(object, version, kind == "DELETED");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watch_frames_update_state_as_in_an_informer() {
        let ledger = WriteLedger::new(3, 1);
        ledger.created(2, 5);
        let mut seen = InformerStore::new(3);
        seen.begins();
        let end = r#"{"k8s.io/initial-events-end":"true"}"#;
        for frame in [
            r#"{"type":"ADDED","object":{"kind":"Pod","metadata":{"name":"try-0002","resourceVersion":"5"}}}"#
                .to_owned(),
            r#"{"type":"ADDED","object":{"metadata":{"name":"other","resourceVersion":"4"}}}"#.to_owned(),
            format!(r#"{{"type":"BOOKMARK","object":{{"metadata":{{"resourceVersion":"6","annotations":{end}}}}}}}"#),
            r#"{"type":"MODIFIED","object":{"metadata":{"name":"try-0002","resourceVersion":"9"}}}"#.to_owned(),
        ] {
            take(&mut seen, frame.as_bytes()).unwrap();
        }
        assert_eq!((seen.at(), seen.counts.delivered, seen.counts.states), (Some(9), 1, 1));
        let gone = r#"{"type":"ERROR","object":{"kind":"Status","metadata":{},"code":410,"message":"too old"}}"#;
        take(&mut seen, gone.as_bytes()).unwrap();
        assert_eq!(seen.at(), None);
        let other = r#"{"type":"ERROR","object":{"kind":"Status","metadata":{},"code":500,"message":"why not"}}"#;
        assert!(take(&mut seen, other.as_bytes()).unwrap_err().to_string().contains("why not"));
        assert!(take(&mut seen, b"{").is_err());
    }
}
