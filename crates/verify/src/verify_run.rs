//! One run, from the first created object to the last record.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::faults::{self, FaultPlan};
use super::frame_decode_cache::FrameDecodeCache;
use super::links::SharedConnections;
use super::object_set::ObjectSet;
use super::order::{EtcdOptions, VerifyOptions};
use super::record::{GroundTruthSource, HistoryRecord, RequestServerRole, RunRecord};
use super::recorder::{HistoryRecorder, RecordCounts};
use super::run_context::{RunNotes, VerifyRunContext};
use super::truth_recorder::{
    ApiserverTruthSource, EtcdGatewayClient, GroundTruthError, GroundTruthRecorder, keep_windows,
};
use super::writer::{self, WriterPlan};
use super::{VerifyError, client, preparation};
use base::BackgroundTasks;
use probe::{ProgressLine, TargetCredentials, TargetServer, UnaryClient, WatchProtocol};

const AGENT: &str = "kube-fanout-verify";
/// The time after the end of a run within which the true history must be recorded up to the last version that clients
/// received.
const TRUTH_WITHIN: Duration = Duration::from_secs(60);
/// The time within which the initial state of the true history must be recorded.
const STATE_WITHIN: Duration = Duration::from_secs(120);
const TICK: Duration = Duration::from_millis(250);
/// The time by which a run waits beyond the allowed delay, so that longer delays are detected.
const BEYOND_PATIENCE: Duration = Duration::from_secs(1);

/// The record of a run, with the problems that are not violations.
#[derive(Clone, Debug)]
pub struct RecordedRun {
    pub record: PathBuf,
    pub counts: RecordCounts,
    /// Problems of the run that are not violations.
    pub notes: Vec<String>,
}

/// Runs clients, writers and faults against a server, and records the responses and the truth.
///
/// # Errors
/// If the run could not start, or cannot be judged.
pub async fn run(
    order: &VerifyOptions,
    progress: &ProgressLine,
    stop: &CancellationToken,
) -> Result<RecordedRun, VerifyError> {
    let tasks = BackgroundTasks::new();
    let recorded = prepare_and_run(order, progress, stop, &tasks).await;
    tasks.join().await;
    progress.close();
    recorded
}

async fn prepare_and_run(
    order: &VerifyOptions,
    progress: &ProgressLine,
    stop: &CancellationToken,
    tasks: &BackgroundTasks,
) -> Result<RecordedRun, VerifyError> {
    let mut subjects = vec![order.credentials.target(&order.url).await?.by(AGENT)];
    for also in &order.also {
        let ca = also.ca.clone().or_else(|| order.credentials.ca.clone());
        let credentials = TargetCredentials { ca, ..order.credentials.clone() };
        subjects.push(credentials.target(&also.url).await?.by(AGENT));
    }
    let direct = match &order.direct {
        Some(url) => Some(order.credentials.target(url).await?.by(AGENT)),
        None => None,
    };
    progress.phase(format!("preparing {} at {}", order.resource, order.url));
    // Definitions and namespaces are created at the source of truth, if it is known.
    let short = UnaryClient::new(direct.as_ref().unwrap_or(&subjects[0]), WatchProtocol::H1, tasks);
    let resource = preparation::resource(&short, &order.resource).await?;
    let (notes, mut encodings) = (RunNotes::default(), order.encodings.clone());
    for subject in &subjects {
        preparation::rehearse(subject, &resource, &order.transports, &mut encodings, tasks, &notes).await?;
    }
    let world = ObjectSet::new(resource, order.namespaces, order.objects);
    preparation::namespaces(&short, &world).await?;
    let failed = |error| VerifyError::Write { path: order.out.clone(), source: error };
    std::fs::create_dir_all(&order.out).map_err(failed)?;
    let recorder = HistoryRecorder::create(&order.out.join(RECORD_FILE), order.record_bytes_max).map_err(failed)?;
    let scene = Arc::new(VerifyRunContext {
        recorder,
        world,
        subjects,
        informers: order.informers,
        links: SharedConnections::new(order.share),
        frames: FrameDecodeCache::default(),
        direct,
        seed: order.seed,
        encodings,
        transports: order.transports.clone(),
        pace: 1,
        leave: CancellationToken::new(),
        tasks: tasks.clone(),
        notes,
    });
    scene.recorder.put(&HistoryRecord::Run(about(order)));
    // The output of an earlier run's faults does not belong to this one.
    let _ = std::fs::remove_file(order.out.join(FAULTS_FILE));
    let session = VerifyRun { order, progress, stop, scene: &scene };
    let ran = session.run().await;
    let record = scene.recorder.close().map_err(failed)?;
    if !order.keep
        && let Err(error) = preparation::clean_up(&short, &scene.world).await
    {
        scene.notes.add(format!("cannot delete all objects: {error}"));
    }
    ran?;
    Ok(RecordedRun { record, counts: scene.recorder.counts(), notes: scene.notes.take() })
}

/// The record's file name in a run's directory.
const RECORD_FILE: &str = "records.jsonl";
/// The file name of the faults' output.
const FAULTS_FILE: &str = "faults.log";

fn about(order: &VerifyOptions) -> RunRecord {
    RunRecord {
        seed: order.seed,
        url: order.url.clone(),
        also: order.also.iter().map(|also| also.url.clone()).collect(),
        begins_once: order.informers,
        truth: if order.etcd.is_some() { GroundTruthSource::Etcd } else { GroundTruthSource::Direct },
        command: order.command.clone(),
        patience_ns: Some(u64::try_from(order.patience.as_nanos()).unwrap_or(u64::MAX)),
        ..RunRecord::default()
    }
}

struct VerifyRun<'a> {
    order: &'a VerifyOptions,
    progress: &'a ProgressLine,
    stop: &'a CancellationToken,
    scene: &'a Arc<VerifyRunContext>,
}

impl VerifyRun<'_> {
    async fn run(&self) -> Result<(), VerifyError> {
        let Self { order, scene, .. } = self;
        let learnt = self.learn().await?;
        let clients = self.start_clients();
        let calm = CancellationToken::new();
        let working = join(self.write(&calm), self.break_things(&learnt, &calm));
        let began = Instant::now();
        self.progress.phase(format!("{} s with {clients} clients", order.duration.as_secs()));
        let watching = async {
            let why = self.until_over(&learnt, began).await;
            calm.cancel();
            why
        };
        let (_, why) = join(working, watching).await;
        if let Some(why) = why {
            scene.notes.add(why);
        }
        self.progress.phase("waiting for the last events");
        self.settle(&learnt).await;
        scene.leave.cancel();
        self.close(&learnt).await
    }

    /// Starts to record the true history; returns once its initial state is known.
    async fn learn(&self) -> Result<Arc<GroundTruthRecorder>, VerifyError> {
        let Self { order, scene, .. } = self;
        let tasks = &scene.tasks;
        self.progress.phase("reading the initial state");
        let learnt = match &order.etcd {
            Some(etcd) => {
                let learnt = GroundTruthRecorder::new(scene, GroundTruthSource::Etcd);
                let prefix = etcd.prefix.clone().unwrap_or_else(|| scene.world.resource.etcd_prefix());
                let etcd = EtcdGatewayClient::new(&etcd_target(etcd, &order.credentials).await?, &prefix, tasks);
                tasks.spawn("verify compactions", etcd.clone().keep_compactions(learnt.clone()));
                tasks.spawn("verify truth", etcd.learn(learnt.clone()));
                learnt
            }
            None => {
                let learnt = GroundTruthRecorder::new(scene, GroundTruthSource::Direct);
                let path = scene.world.resource.collection(None);
                let direct = ApiserverTruthSource::new(scene.target(RequestServerRole::Direct), &path, tasks);
                tasks.spawn("verify truth", direct.learn(learnt.clone()));
                learnt
            }
        };
        let begun = async {
            tokio::select! {
                error = learnt.ended() => Err(error),
                () = learnt.reached(1) => Ok(()),
            }
        };
        match timeout(STATE_WITHIN, begun).await {
            Ok(begun) => begun?,
            Err(_) => return Err(GroundTruthError::Gap("the beginning".to_owned()).into()),
        }
        tasks.spawn("verify windows", keep_windows(learnt.clone(), order.window));
        Ok(learnt)
    }

    fn start_clients(&self) -> u32 {
        let Self { order, scene, .. } = self;
        for client in 0..order.clients {
            scene.tasks.spawn("verify client", client::run((*scene).clone(), client));
        }
        let mut count = order.clients;
        if scene.direct.is_some() {
            for encoding in scene.encodings.clone() {
                scene.tasks.spawn("verify twin", client::run_twin((*scene).clone(), count, encoding));
                count += 1;
            }
        }
        count
    }

    /// Starts the writers. Every second writer bypasses the judged server, if the apiserver is known.
    async fn write(&self, calm: &CancellationToken) {
        let Self { order, scene, .. } = self;
        let plan = WriterPlan { writers: order.writers, rate: order.rate };
        let writer = |number: u32| {
            let past = scene.direct.as_ref().filter(|_| number % 2 == 1);
            let target = past.unwrap_or_else(|| scene.subject()).clone();
            writer::run((*scene).clone(), number, plan, target, calm.clone())
        };
        join_all((0..order.writers).map(writer)).await;
    }

    async fn break_things(&self, learnt: &Arc<GroundTruthRecorder>, calm: &CancellationToken) {
        let (least, most) = self.order.fault_every;
        let (commands, log) = (self.order.faults.clone(), self.order.out.join(FAULTS_FILE));
        let plan = FaultPlan { commands, least, most, first_within: self.order.duration / 2, log };
        faults::run(self.scene.clone(), learnt.clone(), plan, calm.clone()).await;
    }

    /// Waits for the end of the run; returns the reason if it ends early.
    async fn until_over(&self, learnt: &GroundTruthRecorder, began: Instant) -> Option<String> {
        let scene = self.scene;
        let over = sleep(self.order.duration);
        tokio::pin!(over);
        loop {
            tokio::select! {
                () = &mut over => return None,
                () = self.stop.cancelled() => return Some("the run was ended before its time".to_owned()),
                () = scene.recorder.full() => return Some("the record was full before the time was over".to_owned()),
                error = learnt.ended() => return Some(error.to_string()),
                () = sleep(TICK) => {}
            }
            self.progress.tick(|| {
                let RecordCounts { events, answers, writes, .. } = scene.recorder.counts();
                let seconds = began.elapsed().as_secs();
                format!("{seconds} s: {writes} writes, {events} events, {answers} lists and gets")
            });
        }
    }

    /// Waits for the delivery of the last changes.
    async fn settle(&self, learnt: &GroundTruthRecorder) {
        tokio::select! {
            () = sleep(self.order.patience + BEYOND_PATIENCE) => {}
            () = self.stop.cancelled() => {}
            _ = learnt.ended() => {}
        }
    }

    /// Records the true history up to the last version that any participant has received.
    async fn close(&self, learnt: &GroundTruthRecorder) -> Result<(), VerifyError> {
        let scene = self.scene;
        let target = scene.target(RequestServerRole::Direct);
        let Some(version) = writer::fence(scene, target).await else {
            learnt.record_known();
            scene.notes.add("the last write failed: the end of the run was not checked");
            return Ok(());
        };
        let reached = async {
            tokio::select! {
                error = learnt.ended() => Err(error),
                () = learnt.reached(version) => Ok(()),
            }
        };
        let reached = timeout(TRUTH_WITHIN, reached).await;
        learnt.record_known();
        match reached {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => scene.notes.add(format!("the true history was not complete {TRUTH_WITHIN:?} after the end")),
        }
        Ok(())
    }
}

/// Returns etcd as a target, with its own certificates.
async fn etcd_target(etcd: &EtcdOptions, credentials: &TargetCredentials) -> Result<TargetServer, VerifyError> {
    let EtcdOptions { url, ca, certificate, key, .. } = etcd;
    let own = TargetCredentials {
        ca: ca.clone(),
        client_certificate: certificate.clone(),
        client_key: key.clone(),
        insecure: credentials.insecure,
        ..TargetCredentials::default()
    };
    Ok(own.target(url).await?.by(AGENT))
}
