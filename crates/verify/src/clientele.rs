//! A clientele: clients and writers of a server within this process, whose records stay in memory. Whoever runs it has
//! the clock and tells the truth.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::Digest;
use super::client::{self, FramesOnce, SharedLinks};
use super::record::{EventKind, KnownRecord, Record, RecordedEncoding, RunRecord, Transport, TruthRecord, TruthSource};
use super::recorder::Recorder;
use super::scene::{Notes, Scene};
use super::world::{VerifiedResource, World};
use super::writing::{self, WriterPlan};
use base::{Tasks, now_ns};
use probe::{MemoryConnect, Target};

/// Who is in a clientele, and whom it asks.
#[derive(Clone)]
pub struct ClienteleOrder {
    /// What everybody does follows from it.
    pub seed: u64,
    pub resource: VerifiedResource,
    pub namespaces: usize,
    pub objects: usize,
    /// JSON must be the first.
    pub encodings: Vec<RecordedEncoding>,
    pub transports: Vec<Transport>,
    /// How many times as long as with `fanoutctl verify` everything lasts that a client does.
    pub pace: u32,
    /// See [`RunRecord`].
    pub patience: Duration,
    pub window_changes: Option<u64>,
    /// To the server that is judged.
    pub subject: MemoryConnect,
    /// To the server behind it.
    pub direct: MemoryConnect,
}

/// Clients and writers at work, and what they have written down.
pub struct Clientele {
    scene: Arc<Scene>,
    /// Cancelled when writers are to stop.
    calm: CancellationToken,
}

/// What a server in memory is called in requests.
const AUTHORITY: &str = "127.0.0.1:8001";
/// A record is not longer.
const RECORD_BYTES_MAX: u64 = 1 << 30;

impl Clientele {
    pub fn new(order: ClienteleOrder) -> Self {
        let ClienteleOrder { seed, resource, namespaces, objects, encodings, transports, pace, .. } = order;
        let scene = Scene {
            recorder: Recorder::in_memory(RECORD_BYTES_MAX),
            world: World::new(resource, namespaces, objects),
            subjects: vec![Target::in_memory(AUTHORITY, order.subject)],
            informers: false,
            links: SharedLinks::new(1),
            frames: FramesOnce::default(),
            direct: Some(Target::in_memory(AUTHORITY, order.direct)),
            seed,
            encodings,
            transports,
            pace,
            leave: CancellationToken::new(),
            tasks: Tasks::new(),
            notes: Notes::default(),
        };
        scene.recorder.put(&Record::Run(RunRecord {
            seed,
            url: scene.subject().url().to_owned(),
            truth: TruthSource::Etcd,
            patience_ns: Some(u64::try_from(order.patience.as_nanos()).unwrap_or(u64::MAX)),
            window_changes: order.window_changes,
            ..RunRecord::default()
        }));
        Self { scene: Arc::new(scene), calm: CancellationToken::new() }
    }

    /// The namespaces that its objects are in.
    pub fn namespaces(&self) -> &[String] {
        &self.scene.world.namespaces
    }

    /// Begins what the client of this number does.
    pub fn begin(&self, client: u32) {
        self.scene.tasks.spawn("clientele client", client::run(self.scene.clone(), client));
    }

    /// Writes as the writer of this number, of so many, with so many writes in a second together, until
    /// [`calm`](Self::calm). Every other one writes past the server that is judged.
    pub async fn write(&self, number: u32, writers: u32, rate: f64) {
        let scene = &self.scene;
        let past = scene.direct.as_ref().filter(|_| number % 2 == 1);
        let target = past.unwrap_or_else(|| scene.subject()).clone();
        writing::run(scene.clone(), number, WriterPlan { writers, rate }, target, self.calm.clone()).await;
    }

    /// Has writers make their last changes.
    pub fn calm(&self) {
        self.calm.cancel();
    }

    /// Writes something down that others have found out.
    pub fn put(&self, record: &Record) {
        self.scene.recorder.put(record);
    }

    /// Writes down what has happened to an object, which is given in JSON unless it is gone.
    pub fn learn(&self, version: u64, key: &str, kind: EventKind, object: Option<&[u8]>) {
        let object: Option<Value> = object.and_then(|json| serde_json::from_slice(json).ok());
        self.put(&Record::Truth(TruthRecord {
            resource: self.resource(),
            key: key.to_owned(),
            version,
            kind,
            at_ns: now_ns(),
            digest: object.as_ref().map(Digest::of_object),
            metadata: object.as_ref().map(Digest::of_metadata),
            labels: object.as_ref().map(super::learning::labels).unwrap_or_default(),
            fields: BTreeMap::new(),
            source: TruthSource::Etcd,
        }));
    }

    /// Writes down that everything behind one version up to another has been learnt.
    pub fn known(&self, from: u64, to: u64) {
        self.scene.world.saw(to);
        self.put(&Record::Known(KnownRecord { resource: self.resource(), from, to, at_ns: now_ns() }));
    }

    /// What the resource is called in records.
    pub fn resource(&self) -> String {
        self.scene.world.resource.name()
    }

    /// Lets everybody leave; returns the records, a line each, and what went wrong beside the promises.
    pub async fn leave(self) -> (Vec<u8>, Vec<String>) {
        self.scene.leave.cancel();
        // Clients say goodbye at once, but one may wait for an answer.
        self.scene.tasks.finish(GOODBYE_MAX).await;
        (self.scene.recorder.take(), self.scene.notes.take())
    }
}

/// How long an answer that is waited for at the end may take.
const GOODBYE_MAX: Duration = Duration::from_secs(120);
