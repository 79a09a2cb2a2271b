//! A tree of proxies: the apiserver sees only the proxies directly below it (docs/FORMS.md). `make tree` starts a
//! larger one.

mod differences;
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

use crate::bed::{
    self, PATIENCE, Plan, Plane, Proxy, RequestSpec, Target, Times, Watch, eventually, log_line, version_of,
};
use crate::failover::{self, AS_JSON, Scale};
use planted::{Grove, at_apiserver, cost_of};

const RESOURCE: &str = "configmaps.v1";
/// The number of writes per second, which all clients receive.
const RATE: u64 = 20;

/// The events of a watch: type, name, version and time of arrival.
type ReceivedEvents = Vec<(String, String, u64, Instant)>;

/// Reads a watch until a version has arrived.
fn follow(mut watch: Watch, last: tokio::sync::watch::Receiver<u64>) -> JoinHandle<ReceivedEvents> {
    tokio::spawn(async move {
        let (mut events, mut last) = (ReceivedEvents::new(), last);
        loop {
            let newest = events.last().map_or(0, |(_, _, version, _)| *version);
            if (1..=newest).contains(&*last.borrow()) {
                return events;
            }
            tokio::select! {
                change = watch.change() => {
                    events.push((change.kind.clone(), change.name().to_owned(), change.version(), Instant::now()));
                }
                // That version may have arrived already.
                Ok(()) = last.changed() => {}
            }
        }
    })
}

/// Writes at a steady rate. Returns the time at which each version was sent, and the last version.
async fn write(plane: &Plane, maps: &str, writes: u64, halfway: impl AsyncFnOnce()) -> (HashMap<u64, Instant>, u64) {
    let (direct, mut beat) = (plane.direct(), interval(Duration::from_millis(1000 / RATE)));
    let (mut sent, mut last, mut halfway) = (HashMap::new(), 0, Some(halfway));
    let mut created = String::new();
    for n in 0..writes {
        beat.tick().await;
        if n == writes / 2 {
            halfway.take().expect("once")().await;
        }
        let began = Instant::now();
        let data = json!({"n": n.to_string()});
        let written = if n % 2 == 0 {
            direct.create(maps, json!({"metadata": {"generateName": "m-"}, "data": data})).await
        } else {
            direct.patch(&format!("{maps}/{created}"), json!({"data": data})).await
        };
        last = version_of(&written);
        created = written["metadata"]["name"].as_str().map(str::to_owned).expect("a name");
        sent.insert(last, began);
    }
    (sent, last)
}

/// Opens a watch at each proxy and writes. Returns the events of each, and those of the apiserver.
async fn watch_and_write(
    plane: &Plane,
    maps: &str,
    at: &[Target],
    writes: u64,
    halfway: impl AsyncFnOnce(),
) -> (Vec<ReceivedEvents>, ReceivedEvents, HashMap<u64, Instant>) {
    let version = plane.direct().version(maps).await;
    let request = || RequestSpec::get(&format!("{maps}?watch=1&resourceVersion={version}"));
    let (says_last, last) = tokio::sync::watch::channel(0);
    let open = at.iter().map(|target| async {
        let client = bed::Http::new(target.clone(), bed::Protocol::H2);
        client.watch(request()).await
    });
    let watches: Vec<_> = join_all(open).await.into_iter().map(|watch| follow(watch, last.clone())).collect();
    let direct = follow(plane.direct().watch(request()).await, last.clone());
    let (sent, newest) = write(plane, maps, writes, halfway).await;
    says_last.send_replace(newest);
    let all = timeout(PATIENCE, join_all(watches)).await.expect("every watch receives every event");
    let all = all.into_iter().map(|events| events.expect("no panic")).collect();
    (all, direct.await.expect("no panic"), sent)
}

fn times(received: &[ReceivedEvents], sent: &HashMap<u64, Instant>) -> Times {
    let of = |(_, _, version, came): &(String, String, u64, Instant)| came.duration_since(sent[version]);
    Times::of(received.iter().flatten().map(of).collect())
}

fn assert_all_are(received: &[ReceivedEvents], expected: &ReceivedEvents) {
    let what = |events: &ReceivedEvents| -> Vec<_> {
        events.iter().map(|(kind, name, version, _)| (kind.clone(), name.clone(), *version)).collect()
    };
    let expected = what(expected);
    for (leaf, events) in received.iter().enumerate() {
        assert_eq!(what(events), expected, "leaf {leaf}: each change once and in order");
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
    let (received, direct, sent) = watch_and_write(&bed, &maps, &at_one, writes, async || {}).await;
    assert_all_are(&received, &direct);
    let one = times(&received, &sent);
    log_line(&format!("one proxy, {number} watches: {one}"));
    let seen = at_apiserver(&bed).len();
    grove.plant(&bed, usize::try_from(number).expect("a small number")).await;
    let leaves: Vec<_> = grove.leaves.iter().map(Proxy::target).collect();
    let cpu_seconds = || grove.leaves.iter().map(Proxy::cpu_seconds).sum::<f64>();
    let cpu_before = cpu_seconds();
    let (received, direct, sent) = watch_and_write(&bed, &maps, &leaves, writes, async || {
        let streams = eventually("the apiserver sees the streams of two proxies, and the test's own", async || {
            let streams = bed.open_watches("configmaps").await - before;
            (streams == 3).then_some(streams)
        });
        let streams = streams.await;
        log_line(&format!(
            "{number} leaves behind two zones: {streams} streams at the apiserver, one is the test's own"
        ));
    })
    .await;
    assert_all_are(&received, &direct);
    let tree = times(&received, &sent);
    log_line(&format!("{number} leaves behind two zones, a watch each: {tree}"));
    assert_received_as_differences(&grove).await;
    let deliveries = received.iter().map(Vec::len).sum::<usize>();
    #[expect(clippy::cast_precision_loss, reason = "few")]
    let cpu_ms = (cpu_seconds() - cpu_before) * 1e3 / deliveries as f64;
    log_line(&format!(
        "CPU of a leaf for a write that it hands to its one watch, with the watch opened: {cpu_ms:.2} ms"
    ));
    let (mut by_path, all) = (HashMap::<String, usize>::new(), at_apiserver(&bed));
    for call in &all[seen..] {
        *by_path.entry(format!("{} {}", call.verb, call.uri.split('?').next().unwrap_or_default())).or_default() += 1;
    }
    let mut by_path: Vec<_> = by_path.into_iter().filter(|(path, _)| !path.contains(&*namespace)).collect();
    by_path.sort();
    log_line(&format!("requests of both zones to the apiserver during the run: {by_path:?}"));
    let memory: Vec<_> = grove.leaves.iter().map(|leaf| leaf.resident_bytes() >> 20).collect();
    log_line(&format!(
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

/// Checks that the leaves received protobuf events as differences, and that all of these could be applied.
async fn assert_received_as_differences(grove: &Grove) {
    for leaf in &grove.leaves {
        let metrics = leaf.metrics().await;
        let sum = |name: &str, label| metrics.sum(name, &[("resource", RESOURCE), label]);
        let received = |what| sum(&format!("kube_fanout_upstream_delta_{what}_total"), ("form", "protobuf"));
        let (bytes, plain) = (received("bytes"), received("plain_bytes"));
        log_line(&format!("a leaf received {bytes} bytes as differences, for events of {plain} bytes"));
        assert!(0 < bytes && bytes < plain);
        for reason in ["delta_malformed", "delta_unknown_base", "delta_wrong_digest"] {
            assert_eq!(sum("kube_fanout_upstream_failures_total", ("reason", reason)), 0, "{reason}");
        }
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
    let (received, direct, sent) = watch_and_write(plane, maps, leaves, writes, async || grove.zones[0].kill()).await;
    assert_all_are(&received, &direct);
    eventually("the other zone has all leaves", async || {
        let streams = grove.zones[1].metrics().await.sum("kube_fanout_watches_open", &[("resource", RESOURCE)]);
        (streams >= i64::try_from(grove.leaves.len()).expect("few")).then_some(())
    })
    .await;
    let after = (lists(plane), lists_of_leaves().await);
    let (lost, slowest) = (0, times(&received, &sent));
    log_line(&format!(
        "a zone was killed: {lost} lost, {slowest}; lists (apiserver's, leaves'): {before:?}, then {after:?}"
    ));
    assert_eq!(before, after, "no proxy lists");
    for proxy in grove.leaves.iter().chain(&grove.zones[1..]) {
        proxy.assert_sound();
    }
}
