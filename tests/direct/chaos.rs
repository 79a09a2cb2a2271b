//! Informers of the proxy while upstream has all kinds of faults, in an order drawn from a seed. Each stream keeps its
//! promises. Each informer holds the right state at every version that it receives, up to the last one (W1–W5, W9, W11,
//! L2, F1, F6).

use std::time::Duration;

use base::now_ns;
use demo::{self, RequestKind, RunningDemoApiserver};
use fastrand::Rng;
use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::timeout;
use verify::ApiserverGuarantee;

use crate::direct::{self, Client, Ended, History, PODS, Protocol, Watch};

const INFORMERS: usize = 8;
const STEPS: usize = 50;
const SELECTORS: [&str; 4] = ["", "app!=worker", "", "app in (api,front)"];

/// A client-go informer: lists by watching, resumes from its last version, and relists after a 410.
struct Informer {
    client: Client,
    protocol: Protocol,
    selector: &'static str,
    /// The informer has no state yet, or lost it.
    lists: bool,
    /// The last version that it received.
    at: u64,
    /// Its watches, each with whether it resumed the previous one.
    watches: Vec<(Watch, bool)>,
}

impl Informer {
    fn new(client: &Client, number: usize) -> Self {
        let (selector, protocol) = (SELECTORS[number % 4], Protocol::ALL[number % 3]);
        Self { client: client.clone(), protocol, selector, lists: true, at: 0, watches: Vec::new() }
    }

    /// Runs until the goal is set and reached. Returns its watches.
    async fn run(mut self, goal: watch::Receiver<Option<u64>>) -> Vec<(Watch, bool)> {
        loop {
            let resumes = !self.lists;
            let plan = self.client.watch(PODS).over(self.protocol).from(self.at);
            let plan = if resumes { plan.bookmarks() } else { plan.initial_events() };
            let plan = if self.selector.is_empty() { plan } else { plan.labels(self.selector) };
            // A refused watch is retried, because upstream may be down.
            if let Ok(watch) = plan.open().await {
                let is_there = self.follow(&watch, &goal).await;
                self.watches.push((watch, resumes));
                if is_there {
                    return self.watches;
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Reads events. Returns true if the goal is reached, false if the watch ended.
    async fn follow(&mut self, watch: &Watch, goal: &watch::Receiver<Option<u64>>) -> bool {
        let mut taken = 0;
        loop {
            watch.more_than(taken).await;
            let (ended, events) = (watch.end(), watch.events());
            for event in events[taken..].iter().filter(|event| !event.is_error()) {
                self.lists &= !event.ends_initial_events();
                self.at = if self.lists { self.at } else { event.rv };
            }
            taken = events.len();
            if !self.lists && goal.borrow().is_some_and(|goal| self.at >= goal) {
                return true;
            }
            match ended {
                None => continue,
                Some(Ended::Expired) => self.lists = true,
                // 504 "Too large resource version": the proxy lags after an outage of its own.
                Some(Ended::Clean | Ended::Refused(504)) => {}
                Some(other) => panic!("{other:?}: {:?}", events.last()),
            }
            return false;
        }
    }
}

/// Injects one fault. Before history is forgotten, the checkers record it.
async fn misbehave(up: &RunningDemoApiserver, rng: &mut Rng, history: &mut History) {
    let faults = up.faults().only("pods");
    match rng.u8(0..14) {
        0 => faults.end_watches(),
        1 => faults.reset_watches(),
        2 => faults.drop_connections(),
        3 => faults.send_malformed(),
        4 => faults.duplicate_event(),
        5 => faults.regress_revision(),
        6 => faults.break_frame(rng.usize(..3000)),
        7 => faults.tear_frame(rng.usize(..3000)),
        8 => {
            history.read_to(up.revision()).await;
            faults.forget_window();
        }
        9 => {
            history.read_to(up.revision()).await;
            faults.forget_history();
        }
        10 => faults.answer(RequestKind::Watch, rng.usize(1..4), [500, 503, 429, 504, 410][rng.usize(..5)], None),
        11 => faults.answer(RequestKind::List, 1, [500, 503, 410][rng.usize(..3)], None),
        outage => {
            faults.down().await;
            up.churn(rng.usize(..30)).await;
            history.read_to(up.revision()).await;
            match (outage, rng.bool()) {
                (12, true) => faults.forget_history(),
                (12, false) => faults.forget_window(),
                _ => {}
            }
            faults.up().await;
        }
    }
}

async fn survives(seed: u64) {
    let up = demo::upstream().pods(60).seed(seed).bookmark_period(Duration::from_millis(20)).run().await;
    let witness = up.beside();
    let mut history = History::following(&witness, PODS).await;
    history.describe(format!("seed {seed}"));
    let (app, since) = (direct::app(&up).window_events(300).run().await, now_ns());
    let (goal, reached) = watch::channel(None);
    let informers = (0..INFORMERS).map(|number| tokio::spawn(Informer::new(&app, number).run(reached.clone())));
    let informers: Vec<_> = informers.collect();
    app.until_feed("pods", "live", |feed| feed["state"] == "live").await;
    let mut rng = Rng::with_seed(seed);
    for _ in 0..STEPS {
        misbehave(&up, &mut rng, &mut history).await;
        up.churn(rng.usize(..15)).await;
        // Random pauses, so that faults meet the proxy in all its states.
        tokio::time::sleep(Duration::from_millis(rng.u64(..25))).await;
    }
    let last = up.churn(1).await;
    history.read_to(last).await;
    // The last write, so that upstream has a bookmark to send for it.
    goal.send_replace(Some(up.put("nodes", serde_json::json!({"metadata": {"name": "last"}}))));
    let Ok(ends) = timeout(direct::PATIENCE, join_all(informers)).await else {
        let (feed, counts, last) = (app.feed("pods").await, up.counts(), up.requests().pop());
        panic!("seed {seed}: not in step at {:?}: {feed:?}; {counts:?}; {last:?}", goal.borrow());
    };
    for watches in ends {
        let mut evidence = history.evidence();
        let mut before = None;
        for (watch, resumes) in &watches.unwrap_or_else(|error| panic!("seed {seed}: {error}")) {
            before = Some(evidence.resumed(watch, before.filter(|_| *resumes)));
        }
        // The proxy may forget versions that upstream has forgotten or reported as expired.
        evidence.broken("all kinds of faults", since, &[ApiserverGuarantee::Expired]);
        evidence.shows(&[ApiserverGuarantee::InitialEvents, ApiserverGuarantee::Continuity]);
    }
}

/// Three seeds, or as many as `DIRECT_SEEDS` sets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn informers_stay_consistent_under_random_upstream_faults() {
    let seeds = std::env::var("DIRECT_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    for seed in 1..=seeds {
        survives(seed).await;
    }
}
