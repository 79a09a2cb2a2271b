//! Sends the same requests to both servers and expects the same bytes. The requests are drawn from a grammar with a
//! seed, and nothing is written during the comparison.
//!
//! The test compares status, headers and body, and streams event by event. Permitted differences are listed in
//! `differential/compare.rs` (headers) and `bed/normal.rs` (versions, bookmarks that only report progress). If the
//! answers differ, the test shrinks the request and prints it as a command. Each request is sent once;
//! `differential/verdict.rs` says which differences do not count, and how often they may occur. `make differential
//! SEEDS=5 REQUESTS=20000` runs more than `make test`.

pub mod compare;
pub mod grammar;
pub mod probe;
mod shrink;
mod tally;
pub mod verdict;
pub mod world;

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};

use crate::bed::{self, Pair, Plan, Seed, log_line, number};
use compare::Servers;
use grammar::Grammar;
use probe::Probe;
use tally::Tally;
use world::World;

/// The number of concurrent requests, each sent to both servers. Many wait for a second or more on purpose.
const AT_ONCE: u64 = 48;
/// The interval between reports of a long run.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// At least one request in this many must be answered from the cache, because otherwise upstream is compared with
/// itself. Normally it is one in three.
const CACHED_ONE_IN: u64 = 5;
/// The number of differences that are shrunk and printed. The others are only counted.
const SHOWN_MAX: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_requests_get_the_same_responses_as_direct() {
    let (seeds, count) = (number("DIFFERENTIAL_SEEDS", 1), number("DIFFERENTIAL_REQUESTS", 1500));
    let Some(bed) = bed::quiet_with("differential", "ShardedListAndWatch=true").await else { return };
    let seed =
        Seed::new("DIFFERENTIAL_SEED", |seed| format!("make differential SEED={seed} SEEDS={seeds} REQUESTS={count}"));
    // The proxy behaves like the apiserver here only with these settings, because every client of this port has the
    // proxy's own identity.
    let leave = "execOnLoopback: true\nallowedOrigins: [\"http://localhost\", \"https://elsewhere.example\"]\n";
    let pair = Pair::with(Plan::tls().config(leave), bed).await;
    let started = Instant::now();
    let world = World::make(&pair).await;
    let settled = pair.direct.version("/api/v1/namespaces").await;
    log_line(&format!("a world of {} resources after {:.1} s", world.resources.len(), started.elapsed().as_secs_f64()));
    let at_once = number("DIFFERENTIAL_AT_ONCE", AT_ONCE);
    let servers = Servers::of(&pair);
    let mut reports = Vec::new();
    for seed in seed.rounds().take(usize::try_from(seeds).expect("a small number")) {
        let mut grammar = Grammar::new(&world, seed);
        let probes: Vec<_> = (0..count).map(|_| grammar.draw()).collect();
        let tally = run(&servers, probes, usize::try_from(at_once).expect("small"), settled).await;
        log_line(&format!("seed {seed}: {tally}"));
        let of_seed = tally.counts.complaints(CACHED_ONE_IN).into_iter();
        let of_seed = of_seed.chain(tally.uncompared());
        let of_seed = of_seed.chain(tally.differences(&servers, settled, SHOWN_MAX).await);
        reports.extend(of_seed.map(|report| format!("seed {seed}: {report}")));
    }
    let now = pair.direct.version("/api/v1/namespaces").await;
    assert_eq!(now, settled, "a request has written something");
    assert!(reports.is_empty(), "{} reports:\n{}", reports.len(), reports.join("\n\n"));
}

async fn run(servers: &Servers, probes: Vec<Probe>, at_once: usize, settled: u64) -> Tally {
    let (count, mut tally, mut last_report) = (probes.len(), Tally::default(), Instant::now());
    let answers = stream::iter(probes).map(async |probe| {
        let compared = servers.compare(&probe, settled).await;
        (probe, compared)
    });
    let mut answers = answers.buffer_unordered(at_once);
    while let Some((probe, compared)) = answers.next().await {
        tally.count(probe, compared);
        if last_report.elapsed() > REPORT_EVERY {
            last_report = Instant::now();
            log_line(&format!("{tally} of {count}"));
        }
    }
    tally
}
