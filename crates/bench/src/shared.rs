use std::future::pending;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::{Semaphore, watch};

use super::frame_classifier::FrameClassifier;
use super::objects::{WorkloadObjects, with};
use super::option_values::WatchStartMode;
use super::plan::{BenchPlan, ResolvedWatchGroup};
use super::stream_outcome::StreamOutcome;
use super::tally::WatchTally;
use base::now_ns;
use probe::{
    FlowControlWindows, HttpRequestSender, RequestSpec, StreamFrameSplitter, StreamFraming, TargetServer, WatchProtocol,
};

const LIST_BYTES_MAX: usize = 1024;

/// The state that all watches of a fleet share.
pub(super) struct WatchFleetState {
    pub(super) target: TargetServer,
    pub(super) protocol: WatchProtocol,
    pub(super) windows: FlowControlWindows,
    pub(super) start: WatchStartMode,
    /// The `Accept-Encoding` of the watches.
    pub(super) accept_encoding: &'static str,
    /// The version at which watches without one begin; `None` lets each of them find it.
    pub(super) version: Option<u64>,
    /// The start of the run. Earlier writes do not belong to it.
    pub(super) began_ns: u64,
    pub(super) objects: WorkloadObjects,
    pub(super) kinds: Vec<FleetWatchKind>,
    pub(super) tally: WatchTally,
    /// The permits for opening connections and watches.
    pub(super) opening: Semaphore,
    /// Whether the watches may send requests.
    gate: watch::Sender<bool>,
    pub(super) cut: watch::Sender<()>,
    /// The number of storms, including the opening, and the beginning of the last one.
    storm: AtomicU64,
    storm_began_ns: AtomicU64,
    /// The cipher suite of the connections.
    pub(super) cipher: OnceLock<&'static str>,
    complaint: Mutex<Option<String>>,
    has_complained: AtomicBool,
}

/// One kind of watch, with the recogniser for its frames.
pub(super) struct FleetWatchKind {
    pub(super) kind: ResolvedWatchGroup,
    pub(super) recogniser: FrameClassifier,
}

impl WatchFleetState {
    pub(super) fn new(plan: &BenchPlan, target: &TargetServer, version: Option<u64>) -> Arc<Self> {
        let watched = |kind: ResolvedWatchGroup| FleetWatchKind {
            recogniser: FrameClassifier::new(kind.encoding.is_protobuf()),
            kind,
        };
        let all_at_once = plan.storm.is_some();
        Arc::new(Self {
            target: target.clone(),
            protocol: plan.protocol,
            windows: plan.windows(),
            start: plan.start(),
            accept_encoding: if plan.gzip { "gzip" } else { "" },
            version,
            began_ns: now_ns(),
            objects: WorkloadObjects::of(plan),
            kinds: plan.kinds().into_iter().map(watched).collect(),
            tally: WatchTally::new(plan.watch_count()),
            opening: Semaphore::new(if all_at_once { Semaphore::MAX_PERMITS } else { plan.opening }),
            gate: watch::Sender::new(false),
            cut: watch::Sender::new(()),
            storm: AtomicU64::new(0),
            storm_began_ns: AtomicU64::new(0),
            cipher: OnceLock::new(),
            complaint: Mutex::new(None),
            has_complained: AtomicBool::new(false),
        })
    }

    pub(super) async fn gate_open(&self) {
        if !*self.gate.borrow() {
            // The sender lives as long as this.
            let _ = self.gate.subscribe().wait_for(|open| *open).await;
        }
    }

    /// Lets the watches send requests from now on.
    pub(super) fn open_gate(&self) {
        self.gate.send_replace(true);
    }

    pub(super) fn begin_storm(&self) {
        self.storm_began_ns.store(now_ns(), Ordering::Relaxed);
        self.storm.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of storms, and when the last one began.
    pub(super) fn storm(&self) -> (u64, u64) {
        (self.storm.load(Ordering::Relaxed), self.storm_began_ns.load(Ordering::Relaxed))
    }

    /// Records the first error, because it explains the later ones.
    pub(super) fn complain(&self, why: &str) {
        if !self.has_complained.swap(true, Ordering::Relaxed) {
            *self.complaint.lock() = Some(why.to_owned());
        }
    }

    pub(super) fn complaint(&self) -> Option<String> {
        self.complaint.lock().clone()
    }

    /// Returns the current version of the collection.
    pub(super) async fn version_now(&self, sender: &HttpRequestSender, path: &str) -> Result<u64, StreamOutcome> {
        let path = with(path, "limit=1");
        let mut answer = sender.get(&self.target, &RequestSpec::get(&path, "application/json")).await?;
        let (head, _) = answer.body.read(LIST_BYTES_MAX).await?;
        if !answer.status.is_success() {
            return Err(StreamOutcome::Refused(answer.status));
        }
        let version = FrameClassifier::new(false).list_version(&head);
        version.ok_or_else(|| StreamOutcome::Broken("a LIST without a version".to_owned()))
    }

    /// Runs one stream of a companion: reads it, or leaves it unread.
    pub(super) async fn read_aside(&self, sender: &HttpRequestSender, version: &mut u64, reads: bool) {
        let Some(FleetWatchKind { kind, recogniser }) = self.kinds.first() else { return };
        let path = with(&kind.path, &format!("watch=true&allowWatchBookmarks=true&resourceVersion={version}"));
        let Ok(mut answer) = sender.get(&self.target, &RequestSpec::get(&path, kind.encoding.of_watch())).await else {
            return;
        };
        if !answer.status.is_success() {
            self.complain(&format!("a companion was refused: {}", answer.status));
            *version = self.version_now(sender, &kind.path).await.unwrap_or(*version);
            return;
        }
        if !reads {
            let _unread = answer;
            return pending().await;
        }
        let framing = match (answer.body.is_of_messages(), kind.encoding.is_protobuf()) {
            (true, _) => StreamFraming::Messages,
            (false, true) => StreamFraming::Lengths,
            (false, false) => StreamFraming::Lines,
        };
        let mut frames = StreamFrameSplitter::new(framing);
        while let Some(Ok(chunk)) = answer.body.chunk().await {
            let fed = frames.feed(&chunk, |frame| *version = recogniser.version(frame).unwrap_or(*version));
            if fed.is_err() {
                return;
            }
        }
    }
}
