//! Learns the truth independently of the judged server: from etcd through its JSON gateway, or from an apiserver.
//!
//! Both sources record their initial state, every change after it, and up to which version everything is known. A truth
//! with a gap cannot be used: if a gap cannot be closed, the run is void.

mod apiserver_truth_source;
mod etcd;
mod windows;

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use serde_json::Value;
use tokio::time::Instant;

use super::ContentDigest;
use super::record::{GroundTruthRangeRecord, GroundTruthRecord, GroundTruthSource, HistoryRecord, RecordedEventType};
use super::run_context::VerifyRunContext;
use base::now_ns;
use tokio::sync::watch;

pub(super) use apiserver_truth_source::ApiserverTruthSource;
pub(super) use etcd::EtcdGatewayClient;
pub(super) use windows::{forgets, keep_windows};

/// The pause before another attempt to resume.
const RETRY: Duration = Duration::from_millis(200);
/// The interval between records of how far everything is known.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// The reason that the true history cannot be recorded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroundTruthError {
    #[error("cannot watch {url}: {what}")]
    Unreachable { url: String, what: String },
    #[error("etcd stores {key} as {form}, not as JSON: use a custom resource, or an apiserver for --truth")]
    NotJson { key: String, form: &'static str },
    #[error("the history has a gap at {0}; later events cannot be checked")]
    Gap(String),
    #[error("cannot parse data of etcd or the apiserver: {0}")]
    Malformed(String),
}

/// Records the true history of a run.
pub(super) struct GroundTruthRecorder {
    scene: Arc<VerifyRunContext>,
    source: GroundTruthSource,
    resource: String,
    from: AtomicU64,
    /// The version up to which everything is known.
    to: watch::Sender<u64>,
    /// The time at which the known position was last recorded. It is recorded at intervals, and at the end.
    last_recorded: Mutex<Option<Instant>>,
    failure: watch::Sender<Option<GroundTruthError>>,
}

impl GroundTruthRecorder {
    pub(super) fn new(scene: &Arc<VerifyRunContext>, source: GroundTruthSource) -> Arc<Self> {
        Arc::new(Self {
            scene: scene.clone(),
            source,
            resource: scene.world.resource.name(),
            from: AtomicU64::new(0),
            to: watch::Sender::new(0),
            last_recorded: Mutex::new(None),
            failure: watch::Sender::new(None),
        })
    }

    /// Sets the version of the initial state. Everything that is put before it is that state.
    fn begin(&self, version: u64) {
        self.from.store(version, Ordering::Relaxed);
        self.known(version);
    }

    /// Marks everything up to a version as put.
    fn known(&self, version: u64) {
        if version <= *self.to.borrow() {
            return;
        }
        self.scene.world.saw(version);
        self.to.send_replace(version);
        let mut last_recorded = self.last_recorded.lock();
        if last_recorded.is_none_or(|last_recorded| last_recorded.elapsed() >= RECORD_EVERY) {
            *last_recorded = Some(Instant::now());
            drop(last_recorded);
            self.record_known();
        }
    }

    /// Records up to which version everything is known.
    pub(super) fn record_known(&self) {
        self.scene.recorder.put(&HistoryRecord::Known(GroundTruthRangeRecord {
            resource: self.resource.clone(),
            from: self.from.load(Ordering::Relaxed),
            to: self.to(),
            at_ns: now_ns(),
        }));
    }

    fn put(&self, kind: RecordedEventType, key: &str, version: u64, object: Option<&Value>) {
        self.scene.recorder.put(&HistoryRecord::Truth(GroundTruthRecord {
            resource: self.resource.clone(),
            key: key.to_owned(),
            version,
            kind,
            at_ns: now_ns(),
            digest: object.map(ContentDigest::of_object),
            metadata: object.map(ContentDigest::of_metadata),
            labels: object.map(labels).unwrap_or_default(),
            fields: BTreeMap::new(),
            source: self.source,
        }));
    }

    fn failed(&self, error: GroundTruthError) {
        self.failure.send_replace(Some(error));
    }

    pub(super) fn to(&self) -> u64 {
        *self.to.borrow()
    }

    /// Waits until everything up to a version is known.
    pub(super) async fn reached(&self, version: u64) {
        // The sender lives as long as this does.
        let _ = self.to.subscribe().wait_for(|to| *to >= version).await;
    }

    /// Completes with an error when the true history can no longer be recorded.
    pub(super) async fn ended(&self) -> GroundTruthError {
        let mut failure = self.failure.subscribe();
        let failed = failure.wait_for(Option::is_some).await.ok().and_then(|failed| failed.clone());
        failed.unwrap_or_else(|| GroundTruthError::Gap("the end".to_owned()))
    }
}

pub(super) fn labels(object: &Value) -> BTreeMap<String, String> {
    let labels = object["metadata"]["labels"].as_object();
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    labels.into_iter().flatten().filter_map(text).collect()
}

/// The existing keys. A change of an existing key is MODIFIED and of any other ADDED, independent of the source's event
/// type.
#[derive(Debug, Default)]
struct ExistingKeys(HashSet<String>);

impl ExistingKeys {
    fn change(&mut self, key: &str, is_deletion: bool) -> RecordedEventType {
        if is_deletion {
            self.0.remove(key);
            return RecordedEventType::Deleted;
        }
        if self.0.insert(key.to_owned()) { RecordedEventType::Added } else { RecordedEventType::Modified }
    }
}
