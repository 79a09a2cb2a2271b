//! The same requests to both servers: drawn from a grammar with a seed, over a world that nobody changes, answered
//! alike to the byte.
//!
//! Compared are status, headers and body, and streams event for event; what need not be alike is listed in
//! `differential/compare.rs` (headers) and `bed/normal.rs` (versions, bookmarks in between). A difference is made
//! smaller, and printed as something to type. `make differential SEEDS=5 REQUESTS=20000` runs more than `make test`.

pub mod compare;
pub mod grammar;
pub mod probe;
mod shrink;
mod tally;
pub mod world;

use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};

use crate::bed::{self, Pair, Plan, number, say};
use compare::{Compared, Servers};
use grammar::Grammar;
use probe::Probe;
use tally::Tally;
use world::World;

/// Requests under way at a time, each of them twice; many wait for a second or more on purpose.
const AT_ONCE: u64 = 48;
/// Between two reports of a long run.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// What two servers that are asked at different moments may say differently once, they do not say thrice: an age in a
/// Table, a watch that ends with the second in which it would have been told.
const TELLINGS_MAX: usize = 3;
/// Differences that are made smaller and printed; the others are counted.
const SHOWN_MAX: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_drawn_from_the_grammar_are_answered_alike() {
    let Some(bed) = bed::quiet("differential").await else { return };
    // Where it does as the apiserver by leave of the configuration only: whoever reaches the port is the proxy itself.
    let leave = "execOnLoopback: true\nallowedOrigins: [\"http://localhost\", \"https://elsewhere.example\"]\n";
    let pair = Pair::with(Plan::tls().config(leave), bed).await;
    let started = Instant::now();
    let world = World::make(&pair).await;
    let settled = pair.direct.version("/api/v1/namespaces").await;
    say(&format!("a world of {} resources after {:.1} s", world.resources.len(), started.elapsed().as_secs_f64()));
    let (first, seeds) = (number("DIFFERENTIAL_SEED", 1), number("DIFFERENTIAL_SEEDS", 1));
    let (count, at_once) = (number("DIFFERENTIAL_REQUESTS", 1500), number("DIFFERENTIAL_AT_ONCE", AT_ONCE));
    let servers = Servers::of(&pair);
    let mut reports = Vec::new();
    for seed in first..first + seeds {
        let mut grammar = Grammar::new(&world, seed);
        let probes: Vec<_> = (0..count).map(|_| grammar.draw()).collect();
        let tally = run(&servers, probes, usize::try_from(at_once).expect("small"), seed).await;
        reports.extend(tally.differences(&servers, SHOWN_MAX).await);
    }
    let now = pair.direct.version("/api/v1/namespaces").await;
    assert_eq!(now, settled, "a request has written something");
    assert!(reports.is_empty(), "{} differences:\n{}", reports.len(), reports.join("\n\n"));
}

async fn run(servers: &Servers, probes: Vec<Probe>, at_once: usize, seed: u64) -> Tally {
    let (count, mut tally, mut reported) = (probes.len(), Tally::default(), Instant::now());
    let mut answers = stream::iter(probes).map(|probe| told(servers, probe)).buffer_unordered(at_once);
    while let Some((probe, compared, tellings)) = answers.next().await {
        tally.count(probe, compared, tellings);
        if reported.elapsed() > REPORT_EVERY {
            reported = Instant::now();
            say(&format!("seed {seed}: {tally} of {count}"));
        }
    }
    say(&format!("seed {seed}: {tally}"));
    tally
}

/// Asks until both say the same, a few times; how often it took.
async fn told(servers: &Servers, probe: Probe) -> (Probe, Compared, usize) {
    let mut compared = servers.compare(&probe).await;
    let mut tellings = 1;
    while compared.differs() && tellings < TELLINGS_MAX {
        compared = servers.compare(&probe).await;
        tellings += 1;
    }
    (probe, compared, tellings)
}
