//! Faults on the wire: bytes in flight are cut, delayed, lost or corrupted at every offset of real frames. The faults
//! are both in front of a real apiserver and in front of the proxy's clients. The checkers of `fanoutctl verify` find
//! no broken promise, and every feed recovers. `make faults` runs longer.

mod canary;
pub mod framing;
mod noise;
mod plan;
mod pump;
mod relay;
mod tally;

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufReader, Write as _};
use std::path::Path;
use std::time::Duration;

use base::now_ns;
use probe::{ProgressLine, TargetCredentials};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use verify::{
    ApiserverGuarantee, ClientTransport, EtcdOptions, FaultRecord, HistoryRecord, RecordedEncoding, RunCounts,
    RunHistory, RunVerdict, VerdictRequirements, VerifyOptions, VerifyOutcome, excerpt,
};

use crate::bed::{self, ALLOWANCE, Plan, Plane, Proxy, Seed, Target, eventually, log_line};
use canary::Canaries;
use noise::Noise;
use plan::Side;
use relay::{Latest, Relay};

/// The longest backoff of a feed (docs/CONFIG.md, "Fixed limits").
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// The length of a phase with faults and of the phase without faults after it, which is long enough to detect late
/// events.
const ARMED: Duration = Duration::from_secs(10);
const CALM: Duration = Duration::from_secs(14);
/// The length of a run with one round, as in `make test`. Its faults are at its start.
const SHORT: Duration = Duration::from_secs(8);
const SHORT_ARMED: Duration = Duration::from_secs(4);
/// The maximum number of short runs. A busy machine may need several until every fault has occurred and enough was
/// written and checked.
const SHORT_RUNS_MAX: usize = 3;
/// The polling interval for faults that took effect.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The longest delay of a change while nothing is broken.
const ON_TIME: Duration = Duration::from_secs(4);
/// The number of events that clients have received when a run has started.
const BEGUN: usize = 200;

const BUILT_IN: &str = "configmaps";
const CUSTOM: &str = "samples.verify.kube-fanout.io";

/// The promises that must have been checked, because otherwise the run is inconclusive.
const JUDGED: [ApiserverGuarantee; 15] = [
    ApiserverGuarantee::Ordered,
    ApiserverGuarantee::Unique,
    ApiserverGuarantee::Reliable,
    ApiserverGuarantee::Resumable,
    ApiserverGuarantee::Filtered,
    ApiserverGuarantee::Typed,
    ApiserverGuarantee::Bookmarkable,
    ApiserverGuarantee::InitialEvents,
    ApiserverGuarantee::ListSnapshot,
    ApiserverGuarantee::Continuity,
    ApiserverGuarantee::NotOlderThan,
    ApiserverGuarantee::Exact,
    ApiserverGuarantee::Consistent,
    ApiserverGuarantee::Monotone,
    ApiserverGuarantee::TypedBytes,
];

/// A proxy with relays on both sides.
struct Stage<'a> {
    plane: &'a Plane,
    /// Between the proxy and the apiserver, between checked clients and the proxy, and between unchecked clients and
    /// the proxy.
    relays: [Relay; 3],
    proxy: Proxy,
    seed: u64,
    duration: Duration,
    /// Whether configmaps are stored as JSON, so that etcd shows them.
    stores_json: bool,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guarantees_hold_when_traffic_is_cut_stalled_or_corrupted() {
    let seconds = bed::number("FAULTS_SECONDS", 0);
    let seed = Seed::new("FAULTS_SEED", |seed| format!("make faults SECONDS={} SEED={seed}", seconds.max(60)));
    if seconds == 0 {
        let Some(bed) = bed::shared().await else { return };
        Stage::set(&bed, seed.first(), SHORT, false).await.play(SHORT_ARMED).await;
    } else {
        let json = ["--storage-media-type=application/json"];
        let Some(bed) = bed::own_with("faults", &json).await else { return };
        Stage::set(&bed, seed.first(), Duration::from_secs(seconds), true).await.play(ARMED).await;
    }
}

impl<'a> Stage<'a> {
    async fn set(plane: &'a Plane, seed: u64, duration: Duration, stores_json: bool) -> Self {
        let dir = plane.file("faults");
        fs::create_dir_all(&dir).expect("a directory");
        let latest = Latest::default();
        let upstream = Relay::start(Side::Upstream, plane.target(), seed, &latest, &dir).await;
        let kubeconfig = dir.join("relay.kubeconfig");
        fs::write(&kubeconfig, upstream.target(&plane.user("admin")).kubeconfig()).expect("a file");
        // In every other run the proxy also sends TokenReviews and SubjectAccessReviews through the faults.
        let plan = if seed.is_multiple_of(2) { Plan::tls() } else { Plan::delegated(plane) };
        let proxy = plan.upstream(&kubeconfig).start(plane).await;
        let downstream = Relay::start(Side::Downstream, proxy.target(), seed, &latest, &dir).await;
        let spoilt = Relay::start(Side::Spoilt, proxy.target(), seed, &latest, &dir).await;
        Self { plane, relays: [upstream, downstream, spoilt], proxy, seed, duration, stores_json }
    }

    async fn play(&self, armed: Duration) {
        let runs_max = if self.duration == SHORT { SHORT_RUNS_MAX } else { 1 };
        let mut lacks = Vec::new();
        for seed in (self.seed..).take(runs_max) {
            lacks = self.run(armed, seed).await;
            lacks.extend(self.lacks());
            if lacks.is_empty() {
                break;
            }
            log_line(&format!("the run is void: {lacks:?}"));
        }
        assert!(lacks.is_empty(), "the run is void: {lacks:?}");
        self.proxy.assert_sound();
    }

    /// Panics if a promise was broken. Returns the counts that were too low for a conclusive run.
    async fn run(&self, armed: Duration, seed: u64) -> Vec<String> {
        let out = [BUILT_IN, CUSTOM].map(|resource| self.plane.file(&format!("faults-{resource}")));
        let runs = [BUILT_IN, CUSTOM].into_iter().zip(&out).map(|(resource, out)| self.verify(seed, resource, out));
        let noise = Noise::start(&self.relays[2].target(&self.plane.user("admin")), self.seed);
        let (notes, faults) = tokio::join!(futures_util::future::join_all(runs), self.break_things(armed));
        drop(noise);
        self.relays.iter().for_each(|relay| log_line(&relay.tally().to_string()));
        let least = RunCounts { events: 200, writes: 50, resumes: 10, faults: 10, ..RunCounts::default() };
        let requirements = VerdictRequirements { least, judged: JUDGED.into() };
        let mut lacks = Vec::new();
        for (out, notes) in out.iter().zip(notes) {
            lacks.extend(judge(&out.join("records.jsonl"), &faults, &notes, &requirements));
        }
        lacks
    }

    /// Runs clients and writers. Returns the notes that are not about promises.
    async fn verify(&self, seed: u64, resource: &str, out: &Path) -> Vec<String> {
        let plane = self.plane;
        let subject = self.relays[1].target(&plane.user("admin"));
        let etcd = EtcdOptions { url: plane.etcd_url(), ..EtcdOptions::default() };
        let order = VerifyOptions {
            etcd: (resource == CUSTOM || self.stores_json).then_some(etcd),
            direct: Some(plane.url().to_owned()),
            clients: 16,
            rate: 40.0,
            duration: self.duration,
            seed,
            patience: ON_TIME,
            ..order(plane, &subject, resource, out)
        };
        let ran = verify::run(&order, &ProgressLine::silent(), &CancellationToken::new()).await;
        ran.unwrap_or_else(|error| panic!("{resource}: {error}")).notes
    }

    /// Arms the relays from time to time. Each record has the time of a fault phase, which ends when all feeds are up
    /// to date again.
    async fn break_things(&self, armed: Duration) -> Vec<FaultRecord> {
        let earlier = self.relays[1].events();
        let begun = || (self.relays[1].events() > earlier + BEGUN).then_some(());
        eventually("clients and writers are at work", async || begun()).await;
        let canaries = Canaries::new(self.plane, &self.proxy).await;
        let (over, mut faults) = (Instant::now() + self.duration.saturating_sub(armed / 3), Vec::new());
        while Instant::now() + armed < over {
            let (from_ns, before) = (now_ns(), self.hits());
            self.relays.iter().for_each(Relay::arm);
            sleep(armed).await;
            // A busy machine may need longer until every fault has occurred.
            let lacks = async || {
                while self.lacks().is_some() {
                    sleep(LOOK_AGAIN).await;
                }
            };
            let _ = timeout(armed, lacks()).await;
            for relay in &self.relays {
                relay.disarm().await;
            }
            let away = canaries.known().await;
            log_line(&format!("all was known {:.1} s after the last fault", away.as_secs_f64()));
            assert!(away < LONGEST_WAIT + ALLOWANCE, "feeds were without their streams for {away:?}");
            let (to_ns, hits) = (now_ns() + 1_000_000_000, self.hits() - before);
            faults.push(FaultRecord { name: "relays".to_owned(), from_ns, to_ns, hits, waives: Vec::new() });
            sleep(CALM.min(over.saturating_duration_since(Instant::now()))).await;
        }
        faults
    }

    fn hits(&self) -> u64 {
        self.relays.iter().map(|relay| relay.tally().all()).sum()
    }

    /// A fault that occurred too rarely for a conclusive run.
    fn lacks(&self) -> Option<String> {
        let seconds = self.duration.as_secs();
        let (of_kind_min, at_place_min) = (1 + seconds / 60, seconds / 300);
        let mut lacks = self.relays.iter().filter_map(|relay| Some((relay.lacks(of_kind_min, at_place_min)?, relay)));
        lacks.next().map(|(lack, relay)| format!("{lack}: {}", relay.tally()))
    }
}

/// A run against the tested server that causes no faults itself. The caller sets the duration, the seed and the
/// amounts.
pub fn order(plane: &Plane, subject: &Target, resource: &str, out: &Path) -> VerifyOptions {
    let kubeconfig = out.with_extension("kubeconfig");
    fs::write(&kubeconfig, plane.target().kubeconfig()).expect("a file");
    let (kubeconfig, ca) = (Some(kubeconfig), subject.ca.clone());
    VerifyOptions {
        url: subject.url.clone(),
        also: Vec::new(),
        informers: false,
        share: 1,
        credentials: TargetCredentials { kubeconfig, ca, ..TargetCredentials::default() },
        etcd: None,
        direct: None,
        resource: resource.to_owned(),
        clients: 0,
        writers: 4,
        rate: 0.0,
        objects: 40,
        namespaces: 4,
        duration: Duration::ZERO,
        seed: 0,
        faults: Vec::new(),
        fault_every: (Duration::ZERO, Duration::ZERO),
        window: Duration::from_secs(75),
        patience: Duration::ZERO,
        events_min: 0,
        transports: vec![ClientTransport::H1, ClientTransport::H2, ClientTransport::Ws],
        encodings: vec![RecordedEncoding::Json, RecordedEncoding::Metadata, RecordedEncoding::Protobuf],
        record_bytes_max: 1 << 30,
        out: out.to_owned(),
        keep: false,
        command: String::new(),
    }
}

/// Checks a record together with the faults during its time. Panics if a promise was broken. Returns the counts that
/// were too low.
fn judge(record: &Path, faults: &[FaultRecord], notes: &[String], requirements: &VerdictRequirements) -> Vec<String> {
    let (verdict, mut text) = verdict(record, faults, requirements);
    for note in notes {
        let _ = writeln!(text, "note: {note}");
    }
    assert_ne!(verdict.outcome(), VerifyOutcome::Violated, "{}\n{text}", record.display());
    let is_void = verdict.outcome() == VerifyOutcome::Inconclusive;
    text.lines().filter(|line| is_void || line.contains(" events, ")).for_each(log_line);
    verdict.lacks
}

/// The verdict for a record, with its text.
pub fn verdict(record: &Path, faults: &[FaultRecord], requirements: &VerdictRequirements) -> (RunVerdict, String) {
    let mut file = File::options().append(true).open(record).expect("a record");
    for fault in faults {
        let line = serde_json::to_string(&HistoryRecord::Fault(fault.clone())).expect("it is JSON");
        writeln!(file, "{line}").expect("a line");
    }
    let open = || BufReader::new(File::open(record).expect("a record"));
    let history = RunHistory::read(open()).unwrap_or_else(|error| panic!("{}: {error}", record.display()));
    let verdict = RunVerdict::of(&history, requirements);
    let lines = verdict.first().map(|first| first.lines.clone()).unwrap_or_default();
    let text = verdict.text(&excerpt(open(), &lines).expect("a record"));
    (verdict, text)
}
