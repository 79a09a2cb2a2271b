//! Resource versions belong to the cluster, not to one server (F5). Informers move from a proxy to the apiserver and to
//! a proxy of another tier, while each of the three is killed and restarted. They lose nothing, receive nothing twice
//! and never relist. `make failover` runs longer.

mod tiers;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Write as _};
use std::path::Path;
use std::time::Duration;

use futures_util::future::join_all;
use probe::{ProgressLine, TargetCredentials};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use verify::{
    AdditionalServer, ApiserverGuarantee, ClientTransport, EtcdOptions, HistoryRecord, RecordedEncoding,
    RequestServerRole, RunCounts, RunHistory, RunVerdict, VerdictRequirements, VerifyOptions, VerifyOutcome, excerpt,
};

use crate::bed::{self, Http, NO_PROOF, Plane, Proxy, RequestSpec, Seed, Target, Watch, eventually, log_line, within};
use tiers::{APISERVER, LEAF, Tiers, ZONE, name};

/// Stores configmaps as JSON, so that etcd's gateway shows them.
pub const AS_JSON: [&str; 1] = ["--storage-media-type=application/json"];
const MAPS: &str = "/api/v1/configmaps";
/// A run of this length, as in `make test`, kills each of the three once.
const SHORT: Duration = Duration::from_secs(9);
/// The maximum number of short runs. On a slow machine a run may be inconclusive; a broken promise fails at once.
const SHORT_RUNS_MAX: usize = 3;
/// The time between full recovery from one kill and the next kill, in a short and in a long run. By then every client
/// has received a later event.
const BETWEEN_SHORT: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(900));
const BETWEEN: (Duration, Duration) = (Duration::from_secs(4), Duration::from_secs(10));
/// The end of a long run, in which nothing is killed.
const CALM: Duration = Duration::from_secs(8);
/// The longest delay of a change while nothing is broken, in a short run and in a long run with many informers.
const ON_TIME_SHORT: Duration = Duration::from_secs(8);
const ON_TIME: Duration = Duration::from_secs(10);
/// The number of informers that share a connection.
const SHARE: u32 = 25;

/// The promises that must have been checked, because otherwise the run is inconclusive.
const JUDGED: [ApiserverGuarantee; 8] = [
    ApiserverGuarantee::Ordered,
    ApiserverGuarantee::Unique,
    ApiserverGuarantee::Reliable,
    ApiserverGuarantee::Resumable,
    ApiserverGuarantee::Bookmarkable,
    ApiserverGuarantee::Continuity,
    ApiserverGuarantee::TypedBytes,
    ApiserverGuarantee::BeginsOnce,
];

/// The size of a run.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub informers: u32,
    pub duration: Duration,
    /// Writes per second.
    pub rate: u32,
    pub seed: u64,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn informers_resume_across_tiers_without_loss_or_relist() {
    let small = |name: &str, usual| u32::try_from(bed::number(name, usual)).expect("a small number");
    let (informers, rate) = (small("FAILOVER_INFORMERS", 60), small("FAILOVER_RATE", 25));
    let seconds = bed::number("FAILOVER_SECONDS", 0);
    let seed = Seed::new("FAILOVER_SEED", |seed| {
        format!("make failover INFORMERS={informers} SECONDS={} RATE={rate} SEED={seed}", seconds.max(60))
    });
    let Some(bed) = bed::own_with("failover", &AS_JSON).await else { return };
    let duration = if seconds == 0 { SHORT } else { Duration::from_secs(seconds) };
    let runs_max = if duration == SHORT { SHORT_RUNS_MAX } else { 1 };
    let (mut tiers, mut outcome) = (Tiers::start(&bed).await, VerifyOutcome::Inconclusive);
    for seed in seed.rounds().take(runs_max) {
        outcome = run(&bed, &mut tiers, Scale { informers, duration, rate, seed }).await;
        if outcome != VerifyOutcome::Inconclusive {
            break;
        }
    }
    assert_eq!(outcome, VerifyOutcome::Passed, "no run says anything");
    tiers.assert_sound();
}

/// Runs informers while each of the three is killed, and checks what they received.
async fn run(plane: &Plane, tiers: &mut Tiers<'_>, scale: Scale) -> VerifyOutcome {
    // Faults of earlier runs are over, but the history that servers lost remains lost.
    tiers.records.retain(|record| matches!(record, HistoryRecord::Window(_)));
    let out = plane.file("failover");
    let order = order(plane, [tiers.leaf.proxy().target(), tiers.zone.proxy().target()], &out, scale);
    let (progress, stop) = (ProgressLine::silent(), CancellationToken::new());
    let running = Box::pin(verify::run(&order, &progress, &stop));
    let (ran, kills) = tokio::join!(running, kill(tiers, scale));
    let notes = ran.unwrap_or_else(|error| panic!("{error}")).notes;
    for (victim, times) in &kills {
        log_line(&format!("{} was killed {times} times", name(*victim)));
    }
    assert_eq!(kills.len(), 3, "the run is void: not each of them was killed");
    judge(&out.join("records.jsonl"), &tiers.records, &notes, &least(scale))
}

/// Informers that move between two proxies and the apiserver.
pub fn order(plane: &Plane, [first, second]: [Target; 2], out: &Path, scale: Scale) -> VerifyOptions {
    let Scale { informers, duration, rate, seed } = scale;
    let credentials =
        TargetCredentials { kubeconfig: Some(plane.kubeconfig()), ca: first.ca, ..TargetCredentials::default() };
    VerifyOptions {
        url: first.url,
        also: vec![
            AdditionalServer { url: second.url, ca: second.ca },
            AdditionalServer { url: plane.url().to_owned(), ca: Some(plane.ca()) },
        ],
        informers: true,
        share: SHARE,
        credentials,
        etcd: Some(EtcdOptions { url: plane.etcd_url(), ..EtcdOptions::default() }),
        direct: Some(plane.url().to_owned()),
        resource: "configmaps".to_owned(),
        clients: informers,
        writers: 4,
        rate: f64::from(rate),
        objects: 40,
        namespaces: 4,
        duration,
        seed,
        faults: Vec::new(),
        fault_every: (Duration::ZERO, Duration::ZERO),
        window: Duration::from_secs(75),
        patience: if duration == SHORT { ON_TIME_SHORT } else { ON_TIME },
        events_min: 0,
        transports: [[ClientTransport::H2; 14].as_slice(), &[ClientTransport::H1, ClientTransport::Ws]].concat(),
        encodings: vec![RecordedEncoding::Json, RecordedEncoding::Metadata, RecordedEncoding::Protobuf],
        record_bytes_max: 4 << 30,
        out: out.to_owned(),
        keep: false,
        command: String::new(),
    }
}

/// Kills one server after the other, in rounds of all three. Their order and times are drawn.
async fn kill(tiers: &mut Tiers<'_>, scale: Scale) -> BTreeMap<RequestServerRole, u32> {
    let Scale { informers, duration, seed, .. } = scale;
    let mut rng = fastrand::Rng::with_seed(seed);
    let begun = Instant::now();
    for (what, tier) in [("the leaf", &tiers.leaf), ("the zone's proxy", &tiers.zone)] {
        eventually(&format!("informers are at {what}"), async || {
            let watches = tier.proxy().metrics().await.sum("kube_fanout_watches_open", &[]);
            (watches > i64::from(informers) / 6).then_some(())
        })
        .await;
    }
    tiers.begin().await;
    let mut kills = BTreeMap::new();
    let (is_short, over) = (duration == SHORT, begun + duration.saturating_sub(CALM));
    let (least, most) = if is_short { BETWEEN_SHORT } else { BETWEEN };
    loop {
        let mut round = [LEAF, ZONE, APISERVER];
        // A proxy that starts after the apiserver cannot know what that has forgotten, and in a short run some clients
        // may have received nothing since. There the apiserver is killed last.
        rng.shuffle(if is_short { &mut round[..2] } else { &mut round });
        for victim in round {
            sleep(least + most.saturating_sub(least).mul_f64(rng.f64())).await;
            if !is_short && Instant::now() > over {
                return kills;
            }
            tiers.kill(victim, &mut rng).await;
            *kills.entry(victim).or_default() += 1;
        }
        if is_short {
            return kills;
        }
    }
}

/// The minimum counts, below which a run is void. Writes: a third, or a sixth of a short run, which restarts may take
/// up. Events: one per second and informer at the usual write rate. Hops: one in half a minute.
pub fn least(scale: Scale) -> RunCounts {
    let (seconds, clients) = (scale.duration.as_secs(), u64::from(scale.informers));
    let writes = u64::from(scale.rate) * seconds / if scale.duration == SHORT { 6 } else { 3 };
    RunCounts {
        writes,
        events: clients * seconds * u64::from(scale.rate) / 25,
        hops: clients * seconds / 30,
        resumes: clients,
        faults: 3,
        ..RunCounts::default()
    }
}

/// Checks a record together with the kills during its time. Panics if a promise was broken. Otherwise all were kept, or
/// the run is void.
#[must_use]
pub fn judge(record: &Path, kills: &[HistoryRecord], notes: &[String], least: &RunCounts) -> VerifyOutcome {
    let mut file = File::options().append(true).open(record).expect("a record");
    for line in kills {
        writeln!(file, "{}", serde_json::to_string(line).expect("it is JSON")).expect("a line");
    }
    let open = || BufReader::new(File::open(record).expect("a record"));
    let history = RunHistory::read(open()).unwrap_or_else(|error| panic!("{}: {error}", record.display()));
    let verdict = RunVerdict::of(&history, &VerdictRequirements { least: *least, judged: JUDGED.into() });
    drop(history);
    let lines = verdict.first().map(|first| first.lines.clone()).unwrap_or_default();
    let text = verdict.text(&excerpt(open(), &lines).expect("a record"));
    text.lines().for_each(log_line);
    log_line(&format!("{} clients resumed from a state", verdict.hops.clients));
    notes.iter().for_each(|note| log_line(&format!("note: {note}")));
    assert_ne!(verdict.outcome(), VerifyOutcome::Violated, "{}", record.display());
    verdict.outcome()
}

/// The number of watches at the leaf. One watch at the apiserver serves as the reference.
const WATCHES: usize = 20;
/// The collection that is read at the leaf after each write.
const OWN: &str = "/api/v1/namespaces/default/configmaps";

/// The changes of a watch up to a version, each as type, name and version.
async fn changes(mut watch: Watch, last: u64) -> Vec<(String, String, u64)> {
    let mut all = Vec::new();
    loop {
        let change = watch.change().await;
        let version = change.version();
        all.push((change.kind.clone(), change.name().to_owned(), version));
        if version >= last {
            return all;
        }
    }
}

/// The number of lists that a proxy has sent upstream to fill its feeds.
async fn list_requests(proxy: &Proxy) -> i64 {
    proxy.metrics().await.sum("kube_fanout_upstream_requests_total", &[("cause", "list")])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaf_resumes_without_relist_and_reads_fresh_after_zone_kill() {
    let Some(bed) = bed::alone().await else { return };
    let mut tiers = Tiers::start(&bed).await;
    let version = bed.direct().version(MAPS).await;
    let request = || RequestSpec::get(&format!("{MAPS}?watch=1&resourceVersion={version}"));
    let leaf: Http = tiers.leaf.proxy().client();
    let watches = join_all((0..WATCHES).map(|_| leaf.watch(request()))).await;
    let direct = bed.direct().watch(request()).await;
    let churn = bed.drive("churn").args(["--resource", "configmaps", "--namespace", "tiers", "--ops", "500"]);
    let churn = churn.args(["--rate", "100", "--objects", "30"]).start();
    churn.wrote(100).await;
    let began = list_requests(tiers.leaf.proxy()).await;
    tiers.zone.kill();
    churn.wrote(200).await;
    tiers.zone.start_again(&bed).await;
    let last = *churn.finish().await.versions().last().expect("it wrote");
    let received = within("all watches have it", join_all(watches.into_iter().map(|watch| changes(watch, last)))).await;
    let expected = within("the apiserver has it", changes(direct, last)).await;
    assert!(received.iter().all(|changes| *changes == expected), "each change once and in order");
    let (leaf_lists, zone_lists) = (list_requests(tiers.leaf.proxy()).await, list_requests(tiers.zone.proxy()).await);
    log_line(&format!(
        "{} changes in each of {WATCHES} watches; {began} lists of the leaf, then {}; {zone_lists} of the next zone",
        expected.len(),
        leaf_lists - began
    ));
    assert!(began >= 1, "the leaf has requested a state from the zone");
    assert_eq!(leaf_lists, began, "and resumes where it was");
    assert_eq!(zone_lists, 1, "a state for each feed");
    let gaps = tiers.leaf.proxy().metrics().await;
    assert_eq!(gaps.sum("kube_fanout_history_gaps_total", &[]), 0);
    proofs_are_answered_by_the_zone(&bed, &tiers).await;
    tiers.assert_sound();
}

/// Reads at the leaf without a version return the latest write, and the zone forwards nothing for them.
async fn proofs_are_answered_by_the_zone(plane: &Plane, tiers: &Tiers<'_>) {
    const READS: usize = 50;
    // On a machine that stalls, a proof may occasionally be late.
    const LATE_MAX: i64 = 2;
    // The zone may forward the leaf's proof request, a second one after it, and the read itself.
    const PASSED_ON_EACH: i64 = 3;
    let (leaf, zone) = (tiers.leaf.proxy(), tiers.zone.proxy());
    // The proxy probes each encoding only once.
    leaf.client().version(OWN).await;
    let ((before, unproven), positions) = (passed_on(zone).await, leaf.feed_requests("position").await);
    let mut late = 0;
    for n in 0..READS {
        let patch = serde_json::json!({"data": {"n": n.to_string()}});
        let written = bed::version_of(&plane.direct().patch(&format!("{OWN}/failover-probe"), patch).await);
        while !is_proven_in_time(leaf, n, written).await {
            late += 1;
            assert!(late <= LATE_MAX, "{late} of {READS} reads could not be proven in time");
        }
    }
    let proofs = leaf.feed_requests("position").await - positions;
    let (after, passed) = passed_on(zone).await;
    let passed = passed - unproven;
    log_line(&format!(
        "{READS} reads after a write at the leaf: {proofs} position requests to the zone, {late} too late, {passed} forwarded"
    ));
    assert_eq!(after, before);
    assert!(passed <= late * PASSED_ON_EACH, "{passed} questions passed on for {late} reads that were late");
}

/// Reads at the leaf what was written. `false` if the leaf forwarded the read because no proof arrived in time. In that
/// case it must report the reason and must have waited.
async fn is_proven_in_time(leaf: &Proxy, n: usize, written: u64) -> bool {
    let started = Instant::now();
    let list = leaf.client().get(OWN).await;
    let took = started.elapsed();
    let items = list.value()["items"].as_array().expect("items").clone();
    let read = items.iter().find(|item| item["metadata"]["name"] == "failover-probe").expect("it is there");
    assert_eq!(read["data"]["n"], n.to_string(), "{written} was written before");
    let is_late = list.is_unproven(took);
    assert!(is_late || list.is_cached(), "after {took:.1?}: {}", list.text());
    !is_late
}

/// The number of requests that a proxy has forwarded, and the number of those without a proof. Samples for verifying
/// derived encodings are excluded: they name a version that soon expires, and there are only a few per encoding,
/// however many clients read it.
async fn passed_on(proxy: &Proxy) -> (Vec<(String, i64)>, i64) {
    const SAMPLES_MAX: i64 = 5;
    let (mut others, mut samples, mut unproven) = (Vec::new(), 0, 0);
    for (labels, count) in proxy.forwarded().await {
        if labels.contains("exact_version") {
            samples += count;
        } else if labels.contains(NO_PROOF) {
            unproven += count;
        } else {
            others.push((labels, count));
        }
    }
    assert!(samples <= SAMPLES_MAX, "{samples} samples");
    (others, unproven)
}
