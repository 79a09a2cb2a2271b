//! GETs of the most recent state, of one object and of many, while all of them are written: what they cost the
//! apiserver, how long they take, and that none is older than its request. `make gets` asks for longer.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::json;
use tokio::time::interval;

use crate::bed::{self, Ask, Http, Plan, Plane, Protocol, Times, eventually, say, version_of};

const OBJECTS: usize = 100;
const CLIENTS: usize = 48;
const WRITERS: usize = 2;
const WRITE_EVERY: Duration = Duration::from_millis(40);
/// Proofs are not shared where they make GETs wait for longer than this, as on a slow machine.
const SHARED_WAIT_MAX: Duration = Duration::from_millis(15);

/// Objects, and the newest version of each that somebody was told of.
struct Objects {
    namespace: String,
    acknowledged: Vec<AtomicU64>,
}

/// What came of many GETs.
struct Gets {
    times: Vec<Duration>,
    from_memory: usize,
    /// What the apiserver was asked about the resource meanwhile.
    asked: i64,
}

impl Objects {
    async fn create(plane: &Plane) -> Self {
        let namespace = plane.namespace("gets").await;
        let collection = format!("/api/v1/namespaces/{namespace}/configmaps");
        let mut acknowledged = Vec::new();
        for number in 0..OBJECTS {
            let map = json!({"metadata": {"name": format!("m{number}")}, "data": {"text": "a".repeat(800)}});
            acknowledged.push(AtomicU64::new(version_of(&plane.direct().create(&collection, map).await)));
        }
        Self { namespace, acknowledged }
    }

    fn path(&self, number: usize) -> String {
        format!("/api/v1/namespaces/{}/configmaps/m{number}", self.namespace)
    }

    async fn write(&self, plane: &Plane) {
        let (direct, mut ticks) = (plane.direct(), interval(WRITE_EVERY));
        loop {
            ticks.tick().await;
            let number = fastrand::usize(..OBJECTS);
            let patch = json!({"metadata": {"annotations": {"round": fastrand::u64(..).to_string()}}});
            let written = version_of(&direct.patch(&self.path(number), patch).await);
            self.acknowledged[number].fetch_max(written, Ordering::SeqCst);
        }
    }

    /// Reads the first objects, so many times a second, for so long. None may be older than what was known before.
    async fn read(&self, plane: &Plane, clients: &[Http], of: usize, (rate, time): (u32, Duration)) -> Gets {
        let (before, from_memory) = (asked(plane).await, AtomicUsize::new(0));
        let every = Duration::from_secs(1) * u32::try_from(CLIENTS).expect("few") / rate;
        let client = async |client: &Http| {
            let (mut ticks, mut times, end) = (interval(every), Vec::new(), Instant::now() + time);
            while Instant::now() < end {
                ticks.tick().await;
                let number = fastrand::usize(..of);
                let (least, sent) = (self.acknowledged[number].load(Ordering::SeqCst), Instant::now());
                let answer = client.get(&self.path(number)).await;
                times.push(sent.elapsed());
                assert_eq!(answer.status, 200, "{}", answer.text());
                let version = version_of(&answer.value());
                assert!(version >= least, "m{number} at {version}, which was at {least} before it was asked for");
                from_memory.fetch_add(usize::from(answer.is_cached()), Ordering::Relaxed);
            }
            times
        };
        let reading = join_all((0..CLIENTS).map(|number| client(&clients[number % clients.len()])));
        let writing = join_all((0..WRITERS).map(|_| self.write(plane)));
        let times = tokio::select! {
            times = reading => times.concat(),
            _ = writing => unreachable!("they go on"),
        };
        Gets { times, from_memory: from_memory.into_inner(), asked: asked(plane).await - before }
    }
}

/// Requests for configmaps that the apiserver has answered, but for writes.
async fn asked(plane: &Plane) -> i64 {
    let metrics = plane.metrics().await;
    let of = |verb| metrics.sum("apiserver_request_total", &[("resource", "configmaps"), ("verb", verb)]);
    of("GET") + of("LIST") + of("WATCH")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_gets_share_proofs_and_none_is_old() {
    let seconds = bed::number("GETS_SECONDS", 0);
    let rate = u32::try_from(bed::number("GETS_RATE", if seconds > 0 { 2000 } else { 1000 })).expect("a rate");
    let Some(bed) = bed::alone().await else { return };
    let proxy = if seconds > 0 { Plan::delegated(&bed) } else { Plan::tls() }.start(&bed).await;
    let objects = Objects::create(&bed).await;
    // Somebody watches, so there is a feed.
    let watch = proxy.client().watch(Ask::get("/api/v1/configmaps?watch=true&resourceVersion=0")).await;
    let is_held = async || proxy.client().get("/api/v1/configmaps?resourceVersion=0").await.is_cached().then_some(());
    eventually("configmaps are held", is_held).await;
    let time = Duration::from_secs(seconds.max(3));
    let (mut in_all, mut is_fast) = (0, true);
    for (name, target) in [("directly", bed.target()), ("through the proxy", proxy.target())] {
        if seconds == 0 && name == "directly" {
            continue;
        }
        let target = target.by(&bed.user("admin"));
        let clients: Vec<_> = (0..8).map(|_| Http::new(target.clone(), Protocol::H2)).collect();
        for (whose, of) in [("of one object", 1), ("of a hundred objects", OBJECTS)] {
            let gets = objects.read(&bed, &clients, of, (rate, time)).await;
            let (all, per_second) = (gets.times.len(), gets.times.len() as u64 / time.as_secs());
            let Gets { from_memory, asked, times } = gets;
            let times = Times::of(times);
            say(&format!(
                "{name}, {whose}: {all} GETs, {per_second}/s, {from_memory} from memory; the apiserver was asked \
                 {asked} times; {times}"
            ));
            if name == "directly" {
                continue;
            }
            in_all += from_memory;
            is_fast &= per_second >= 500 && times.at(50) < SHARED_WAIT_MAX;
            let is_spared = 2 * asked < i64::try_from(all).expect("not many");
            assert!(seconds < 10 || is_spared, "{asked} questions for {all} GETs");
        }
    }
    // A machine that does other things may not let so many ask, and for a while it may not pay to share.
    assert!(in_all > 0 || !is_fast, "not one was answered from memory");
    drop(watch);
    proxy.assert_sound();
}
