//! Clients and writers of an in-process server, with their records in memory. The caller controls the clock and
//! supplies the truth.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::ContentDigest;
use super::client;
use super::frame_decode_cache::FrameDecodeCache;
use super::links::SharedConnections;
use super::object_set::{ObjectSet, VerifiedResource};
use super::record::{
    ClientTransport, GroundTruthRangeRecord, GroundTruthRecord, GroundTruthSource, HistoryRecord, RecordedEncoding,
    RecordedEventType, RunRecord,
};
use super::recorder::HistoryRecorder;
use super::run_context::{RunNotes, VerifyRunContext};
use super::writer::{self, WriterPlan};
use base::{BackgroundTasks, now_ns};
use probe::{InMemoryConnectFn, TargetServer};

/// The clients, their number, and the servers that they use.
#[derive(Clone)]
pub struct ClientFleetOptions {
    /// The seed that determines all behaviour.
    pub seed: u64,
    pub resource: VerifiedResource,
    pub namespaces: usize,
    pub objects: usize,
    /// The encodings of clients. JSON must be the first.
    pub encodings: Vec<RecordedEncoding>,
    pub transports: Vec<ClientTransport>,
    /// The factor by which everything that a client does lasts longer than with `fanoutctl verify`.
    pub pace: u32,
    /// The `patience_ns` of the [`RunRecord`].
    pub patience: Duration,
    pub window_changes: Option<u64>,
    /// Opens connections to the judged server.
    pub subject: InMemoryConnectFn,
    /// Opens connections to the upstream of the judged server.
    pub direct: InMemoryConnectFn,
}

/// Running clients and writers, with their records.
pub struct ClientFleet {
    scene: Arc<VerifyRunContext>,
    /// A signal that is cancelled when writers must stop.
    calm: CancellationToken,
}

/// The authority of in-memory servers in requests.
const AUTHORITY: &str = "127.0.0.1:8001";
/// The maximum size of a record in bytes.
const RECORD_BYTES_MAX: u64 = 1 << 30;

impl ClientFleet {
    pub fn new(order: ClientFleetOptions) -> Self {
        let ClientFleetOptions { seed, resource, namespaces, objects, encodings, transports, pace, .. } = order;
        let scene = VerifyRunContext {
            recorder: HistoryRecorder::in_memory(RECORD_BYTES_MAX),
            world: ObjectSet::new(resource, namespaces, objects),
            subjects: vec![TargetServer::in_memory(AUTHORITY, order.subject)],
            informers: false,
            links: SharedConnections::new(1),
            frames: FrameDecodeCache::default(),
            direct: Some(TargetServer::in_memory(AUTHORITY, order.direct)),
            seed,
            encodings,
            transports,
            pace,
            leave: CancellationToken::new(),
            tasks: BackgroundTasks::new(),
            notes: RunNotes::default(),
        };
        scene.recorder.put(&HistoryRecord::Run(RunRecord {
            seed,
            url: scene.subject().url().to_owned(),
            truth: GroundTruthSource::Etcd,
            patience_ns: Some(u64::try_from(order.patience.as_nanos()).unwrap_or(u64::MAX)),
            window_changes: order.window_changes,
            ..RunRecord::default()
        }));
        Self { scene: Arc::new(scene), calm: CancellationToken::new() }
    }

    /// Returns the namespaces of the fleet's objects.
    pub fn namespaces(&self) -> &[String] {
        &self.scene.world.namespaces
    }

    /// Starts the client with the number `client`.
    pub fn begin(&self, client: u32) {
        self.scene.tasks.spawn("clientele client", client::run(self.scene.clone(), client));
    }

    /// Runs the writer with the given number, out of `writers`, until [`calm`](Self::calm). All writers together write
    /// at `rate` per second. Every second writer bypasses the judged server.
    pub async fn write(&self, number: u32, writers: u32, rate: f64) {
        let scene = &self.scene;
        let past = scene.direct.as_ref().filter(|_| number % 2 == 1);
        let target = past.unwrap_or_else(|| scene.subject()).clone();
        writer::run(scene.clone(), number, WriterPlan { writers, rate }, target, self.calm.clone()).await;
    }

    /// Makes writers finish with their last changes.
    pub fn calm(&self) {
        self.calm.cancel();
    }

    /// Writes a fact that the caller knows to the record.
    pub fn put(&self, record: &HistoryRecord) {
        self.scene.recorder.put(record);
    }

    /// Records a change of an object. The object is JSON, or `None` after a deletion.
    pub fn learn(&self, version: u64, key: &str, kind: RecordedEventType, object: Option<&[u8]>) {
        let object: Option<Value> = object.and_then(|json| serde_json::from_slice(json).ok());
        self.put(&HistoryRecord::Truth(GroundTruthRecord {
            resource: self.resource(),
            key: key.to_owned(),
            version,
            kind,
            at_ns: now_ns(),
            digest: object.as_ref().map(ContentDigest::of_object),
            metadata: object.as_ref().map(ContentDigest::of_metadata),
            labels: object.as_ref().map(super::truth_recorder::labels).unwrap_or_default(),
            fields: BTreeMap::new(),
            source: GroundTruthSource::Etcd,
        }));
    }

    /// Records that all changes after one version, up to another, were recorded.
    pub fn known(&self, from: u64, to: u64) {
        self.scene.world.saw(to);
        self.put(&HistoryRecord::Known(GroundTruthRangeRecord {
            resource: self.resource(),
            from,
            to,
            at_ns: now_ns(),
        }));
    }

    /// Returns the name of the resource in records.
    pub fn resource(&self) -> String {
        self.scene.world.resource.name()
    }

    /// Makes all clients leave. Returns the records, one per line, and the problems that are not violations.
    pub async fn leave(self) -> (Vec<u8>, Vec<String>) {
        self.scene.leave.cancel();
        // Clients end at once, but one may wait for a response.
        self.scene.tasks.finish(GOODBYE_MAX).await;
        (self.scene.recorder.take(), self.scene.notes.take())
    }
}

/// The maximum wait for a response at the end.
const GOODBYE_MAX: Duration = Duration::from_secs(120);
