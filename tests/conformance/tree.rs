//! A tree of proxies: the apiserver sees only the proxies directly below it (docs/FORMS.md). `make tree` starts a
//! larger one.

mod idle;
mod planted;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use base::now_ns;
use futures_util::future::join_all;
use probe::ProgressLine;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::{interval, timeout};
use tokio_util::sync::CancellationToken;
use verify::{FaultRecord, HistoryRecord, RunCounts, VerifyOutcome};

use crate::bed::{self, PATIENCE, Plan, Plane, Proxy, RequestSpec, Target, Times, Watch, eventually, say, version_of};
use crate::failover::{self, AS_JSON, Scale};
use planted::{Grove, at_apiserver, cost_of};

const RESOURCE: &str = "configmaps.v1";
/// The number of writes per second, which all clients receive.
const RATE: u64 = 20;

/// The events of a watch: type, name, version and time of arrival.
type Told = Vec<(String, String, u64, Instant)>;

/// Reads a watch until a version has arrived.
fn follow(mut watch: Watch, last: tokio::sync::watch::Receiver<u64>) -> JoinHandle<Told> {
    tokio::spawn(async move {
        let (mut reported, mut last) = (Told::new(), last);
        loop {
            let newest = reported.last().map_or(0, |(_, _, version, _)| *version);
            if (1..=newest).contains(&*last.borrow()) {
                return reported;
            }
            tokio::select! {
                change = watch.change() => {
                    reported.push((change.kind.clone(), change.name().to_owned(), change.version(), Instant::now()));
                }
                // That version may have arrived already.
                Ok(()) = last.changed() => {}
            }
        }
    })
}

/// Writes at a steady rate. Returns the time at which each version was sent, and the last version.
async fn write(plane: &Plane, maps: &str, writes: u64, amid: impl AsyncFnOnce()) -> (HashMap<u64, Instant>, u64) {
    let (direct, mut beat) = (plane.direct(), interval(Duration::from_millis(1000 / RATE)));
    let (mut sent, mut last, mut amid) = (HashMap::new(), 0, Some(amid));
    for n in 0..writes {
        beat.tick().await;
        if n == writes / 2 {
            amid.take().expect("once")().await;
        }
        let began = Instant::now();
        let map = json!({"metadata": {"generateName": "m-"}, "data": {"n": n.to_string()}});
        last = version_of(&direct.create(maps, map).await);
        sent.insert(last, began);
    }
    (sent, last)
}

/// Opens a watch at each proxy and writes. Returns the events of each, and those of the apiserver.
async fn tell(
    plane: &Plane,
    maps: &str,
    at: &[Target],
    writes: u64,
    amid: impl AsyncFnOnce(),
) -> (Vec<Told>, Told, HashMap<u64, Instant>) {
    let version = plane.direct().version(maps).await;
    let ask = || RequestSpec::get(&format!("{maps}?watch=1&resourceVersion={version}"));
    let (says_last, last) = tokio::sync::watch::channel(0);
    let open = at.iter().map(|target| async {
        let client = bed::Http::new(target.clone(), bed::Protocol::H2);
        client.watch(ask()).await
    });
    let watches: Vec<_> = join_all(open).await.into_iter().map(|watch| follow(watch, last.clone())).collect();
    let direct = follow(plane.direct().watch(ask()).await, last.clone());
    let (sent, newest) = write(plane, maps, writes, amid).await;
    says_last.send_replace(newest);
    let all = timeout(PATIENCE, join_all(watches)).await.expect("everybody is told everything");
    let all = all.into_iter().map(|reported| reported.expect("no panic")).collect();
    (all, direct.await.expect("no panic"), sent)
}

fn times(reported: &[Told], sent: &HashMap<u64, Instant>) -> Times {
    let of = |(_, _, version, came): &(String, String, u64, Instant)| came.duration_since(sent[version]);
    Times::of(reported.iter().flatten().map(of).collect())
}

fn assert_all_are(reported: &[Told], expected: &Told) {
    let what = |reported: &Told| -> Vec<_> {
        reported.iter().map(|(kind, name, version, _)| (kind.clone(), name.clone(), *version)).collect()
    };
    let expected = what(expected);
    for (leaf, reported) in reported.iter().enumerate() {
        assert_eq!(what(reported), expected, "leaf {leaf}: each change once and in order");
    }
}

/// The number of complete lists that proxies have requested from the apiserver. Lists for proofs, which only compare
/// versions, are excluded.
fn lists(plane: &Plane) -> usize {
    let is_state =
        |uri: &str| !uri.contains("fieldSelector") && !uri.contains("limit=") && !uri.contains("NotOlderThan");
    let of_maps = |uri: &str| uri.split('?').next() == Some("/api/v1/configmaps");
    at_apiserver(plane).iter().filter(|seen| seen.verb == "list" && of_maps(&seen.uri) && is_state(&seen.uri)).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaves_share_two_zones_and_resume_when_one_is_killed() {
    let (number, writes) = (bed::number("TREE_LEAVES", 6), bed::number("TREE_WRITES", 20));
    let Some(bed) = bed::audited_with("tree", &AS_JSON).await else { return };
    let namespace = bed.namespace("tree").await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    let mut grove = Grove::zones(&bed, &Plan::delegated(&bed)).await;
    let zone = grove.zones[0].target();
    let before = bed.settled_watches("configmaps").await;
    let at_one: Vec<_> = (0..number).map(|_| zone.clone()).collect();
    let (reported, direct, sent) = tell(&bed, &maps, &at_one, writes, async || {}).await;
    assert_all_are(&reported, &direct);
    let one = times(&reported, &sent);
    say(&format!("one proxy, {number} watches: {one}"));
    let seen = at_apiserver(&bed).len();
    grove.plant(&bed, usize::try_from(number).expect("a small number")).await;
    let leaves: Vec<_> = grove.leaves.iter().map(Proxy::target).collect();
    let cpu_seconds = || grove.leaves.iter().map(Proxy::cpu_seconds).sum::<f64>();
    let cpu_before = cpu_seconds();
    let (reported, direct, sent) = tell(&bed, &maps, &leaves, writes, async || {
        let streams = eventually("the apiserver sees the streams of two proxies, and the test's own", async || {
            let streams = bed.open_watches("configmaps").await - before;
            (streams == 3).then_some(streams)
        });
        let streams = streams.await;
        say(&format!("{number} leaves behind two zones: {streams} streams at the apiserver, one is the test's own"));
    })
    .await;
    assert_all_are(&reported, &direct);
    let tree = times(&reported, &sent);
    say(&format!("{number} leaves behind two zones, a watch each: {tree}"));
    let deliveries = reported.iter().map(Vec::len).sum::<usize>();
    #[expect(clippy::cast_precision_loss, reason = "few")]
    let cpu_ms = (cpu_seconds() - cpu_before) * 1e3 / deliveries as f64;
    say(&format!("CPU of a leaf for a write that it hands to its one watch, with the watch opened: {cpu_ms:.2} ms"));
    let (mut by_path, all) = (HashMap::<String, usize>::new(), at_apiserver(&bed));
    for asked in &all[seen..] {
        *by_path.entry(format!("{} {}", asked.verb, asked.uri.split('?').next().unwrap_or_default())).or_default() += 1;
    }
    let mut by_path: Vec<_> = by_path.into_iter().filter(|(path, _)| !path.contains(&*namespace)).collect();
    by_path.sort();
    say(&format!("the apiserver was asked meanwhile, by both zones: {by_path:?}"));
    let memory: Vec<_> = grove.leaves.iter().map(|leaf| leaf.resident_bytes() >> 20).collect();
    say(&format!(
        "memory of a leaf: {} to {} MiB",
        memory.iter().min().unwrap_or(&0),
        memory.iter().max().unwrap_or(&0)
    ));
    let seconds = bed::number("TREE_SECONDS", 0);
    if seconds == 0 {
        a_zone_is_killed(&bed, &maps, &grove, &leaves, writes).await;
    } else {
        verify_judges_it(&bed, (&grove, &maps), &leaves, Duration::from_secs(seconds)).await;
    }
}

/// Informers move between two leaves and the apiserver, while one of the zones is killed. etcd is the reference for the
/// events that they receive.
async fn verify_judges_it(plane: &Plane, (grove, maps): (&Grove, &str), leaves: &[Target], duration: Duration) {
    let scale = Scale { informers: 100, duration, rate: 25, seed: fastrand::u64(..) };
    let out = plane.file("tree");
    let order = failover::order(plane, [leaves[0].clone(), leaves[1].clone()], &out, scale);
    let (progress, stop) = (ProgressLine::silent(), CancellationToken::new());
    let killing = async {
        let from_ns = now_ns();
        a_zone_is_killed(plane, maps, grove, leaves, duration.as_secs() * RATE / 2).await;
        let (name, to_ns) = ("the kill of a zone".to_owned(), now_ns());
        HistoryRecord::Fault(FaultRecord { name, from_ns, to_ns, hits: 1, waives: Vec::new() })
    };
    let (ran, killed) = tokio::join!(verify::run(&order, &progress, &stop), killing);
    let ran = ran.unwrap_or_else(|error| panic!("{error}"));
    let least = RunCounts { faults: 1, ..failover::least(scale) };
    let outcome = failover::judge(&out.join("records.jsonl"), &[killed], &ran.notes, &least);
    assert_eq!(outcome, VerifyOutcome::Passed, "the run is void");
}

async fn a_zone_is_killed(plane: &Plane, maps: &str, grove: &Grove, leaves: &[Target], writes: u64) {
    let lists_of_leaves = || async {
        let all = join_all(grove.leaves.iter().map(|leaf| cost_of(leaf, "requests_total", Some("list")))).await;
        all.into_iter().sum::<i64>()
    };
    let before = (lists(plane), lists_of_leaves().await);
    let (reported, direct, sent) = tell(plane, maps, leaves, writes, async || grove.zones[0].kill()).await;
    assert_all_are(&reported, &direct);
    eventually("the other zone has all leaves", async || {
        let streams = grove.zones[1].metrics().await.sum("kube_fanout_watches_open", &[("resource", RESOURCE)]);
        (streams >= i64::try_from(grove.leaves.len()).expect("few")).then_some(())
    })
    .await;
    let after = (lists(plane), lists_of_leaves().await);
    let (lost, slowest) = (0, times(&reported, &sent));
    say(&format!(
        "a zone was killed: {lost} lost, {slowest}; lists (apiserver's, leaves'): {before:?}, then {after:?}"
    ));
    assert_eq!(before, after, "nobody lists");
    for proxy in grove.leaves.iter().chain(&grove.zones[1..]) {
        proxy.assert_sound();
    }
}
