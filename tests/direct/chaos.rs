//! Informers behind the proxy while upstream has all kinds of faults, in an order that a seed decides. Each stream
//! keeps its promises by itself, and in the end every informer has the objects that upstream has (W1–W3, W5, F1, F6).

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use kube_fanout::demo::{self, RequestKind, RunningUpstream};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::direct::{self, Client, Ended, Event, PODS, Protocol, Watch, straight};

const INFORMERS: usize = 8;
const STEPS: usize = 50;
const SELECTORS: [&str; 4] = ["", "app!=worker", "", "app in (api,front)"];

type Mirror = BTreeMap<String, u64>;

/// What a client-go informer does: lists by watching, keeps a mirror, resumes where it was, lists again after a 410.
struct Informer {
    client: Client,
    protocol: Protocol,
    selector: &'static str,
    mirror: Mirror,
    /// The objects of a list that is under way.
    listing: Option<Mirror>,
    /// The last version it was told of.
    at: u64,
    /// What it did and was told, for when that turns out to be wrong.
    diary: Vec<String>,
}

impl Informer {
    fn new(client: &Client, number: usize) -> Self {
        let (selector, protocol) = (SELECTORS[number % 4], Protocol::ALL[number % 3]);
        let listing = Some(Mirror::new());
        Self { client: client.clone(), protocol, selector, mirror: Mirror::new(), listing, at: 0, diary: Vec::new() }
    }

    /// Until the goal is set and reached; what it then has.
    async fn run(mut self, goal: watch::Receiver<Option<u64>>) -> (&'static str, Mirror) {
        loop {
            let plan = self.client.watch(PODS).over(self.protocol).from(self.at);
            let plan = if self.listing.is_some() { plan.initial_events() } else { plan.bookmarks() };
            self.diary.push(format!("{} from {}", if self.listing.is_some() { "lists" } else { "resumes" }, self.at));
            let plan = if self.selector.is_empty() { plan } else { plan.labels(self.selector) };
            // Refused: an upstream that is down is no reason to give up.
            if let Ok(watch) = plan.open().await
                && self.follow(&watch, &goal).await
            {
                return (self.selector, self.mirror);
            }
            tokio::task::yield_now().await;
        }
    }

    /// Applies what comes; true when the goal is reached, false when the watch is over.
    async fn follow(&mut self, watch: &Watch, goal: &watch::Receiver<Option<u64>>) -> bool {
        let mut taken = 0;
        loop {
            watch.more_than(taken).await;
            let (ended, events) = (watch.end(), watch.events());
            events[taken..].iter().filter(|event| !event.is_error()).for_each(|event| self.apply(event));
            taken = events.len();
            if self.listing.is_none() && goal.borrow().is_some_and(|goal| self.at >= goal) {
                return true;
            }
            match ended {
                None => continue,
                Some(Ended::Expired) => self.listing = Some(Mirror::new()),
                // Too large: the proxy is behind, after an outage of its own.
                Some(Ended::Clean | Ended::Refused(504)) => {}
                Some(other) => panic!("{other:?}: {:?}", self.diary.last()),
            }
            self.listing.iter_mut().for_each(Mirror::clear);
            return false;
        }
    }

    fn apply(&mut self, event: &Event) {
        self.diary.push(event.to_string());
        let lately = &self.diary[self.diary.len().saturating_sub(12)..];
        match (event.kind.as_str(), &mut self.listing) {
            ("ADDED", Some(listing)) => {
                let known = listing.insert(event.key.clone(), event.rv);
                assert_eq!(known, None, "{event} twice among the initial events: {lately:?}");
                return;
            }
            ("BOOKMARK", Some(listing)) if event.ends_initial_events() => {
                self.mirror = std::mem::take(listing);
                self.listing = None;
                assert!(event.rv >= self.at, "a list that is too old: {lately:?}");
            }
            (_, Some(_)) => panic!("{event} among the initial events: {lately:?}"),
            ("BOOKMARK", None) => assert!(event.rv > self.at, "{event} after {}: {lately:?}", self.at),
            (kind, None) => {
                assert!(event.rv > self.at, "{event} after {}: {lately:?}", self.at);
                let known = match kind {
                    "DELETED" => self.mirror.remove(&event.key),
                    _ => self.mirror.insert(event.key.clone(), event.rv),
                };
                assert_eq!(known.is_some(), kind != "ADDED", "the mirror had {known:?}: {lately:?}");
            }
        }
        self.at = event.rv;
    }
}

/// One thing that goes wrong.
async fn misbehave(up: &RunningUpstream, rng: &mut Rng) {
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
        8 => faults.forget_window(),
        9 => faults.forget_history(),
        10 => faults.answer(RequestKind::Watch, rng.usize(1..4), [500, 503, 429, 504, 410][rng.usize(..5)], None),
        11 => faults.answer(RequestKind::List, 1, [500, 503, 410][rng.usize(..3)], None),
        outage => {
            faults.down().await;
            up.churn(rng.usize(..30)).await;
            match (outage, rng.bool()) {
                (12, true) => faults.forget_history(),
                (12, false) => faults.forget_window(),
                _ => {}
            }
            faults.up().await;
        }
    }
}

/// What a selector matches upstream. Ordered refusals may be left over.
async fn there(up: &RunningUpstream, selector: &str) -> Vec<(String, u64)> {
    let path = format!("{PODS}?labelSelector={}", selector.replace(' ', "%20"));
    for _ in 0..5 {
        let list = straight(up).get(&path).await;
        if list.status == 200 {
            return list.items();
        }
    }
    panic!("upstream does not list");
}

async fn survives(seed: u64) {
    let up = demo::upstream().pods(60).seed(seed).bookmark_period(Duration::from_millis(20)).run().await;
    let app = direct::app(&up).window_events(300).run().await;
    let (goal, reached) = watch::channel(None);
    let informers = (0..INFORMERS).map(|number| tokio::spawn(Informer::new(&app, number).run(reached.clone())));
    let informers: Vec<_> = informers.collect();
    app.until_feed("pods", "live", |feed| feed["state"] == "live").await;
    let mut rng = Rng::with_seed(seed);
    for _ in 0..STEPS {
        misbehave(&up, &mut rng).await;
        up.churn(rng.usize(..15)).await;
        // Not to synchronise with anything: faults are to meet the proxy in all its states.
        tokio::time::sleep(Duration::from_millis(rng.u64(..25))).await;
    }
    up.churn(1).await;
    // Behind everything, so that upstream has a bookmark to send for it.
    goal.send_replace(Some(up.put("nodes", serde_json::json!({"metadata": {"name": "last"}}))));
    let Ok(ends) = timeout(direct::PATIENCE, join_all(informers)).await else {
        let (feed, counts, last) = (app.feed("pods").await, up.counts(), up.requests().pop());
        panic!("seed {seed}: not in step at {:?}: {feed:?}; {counts:?}; {last:?}", goal.borrow());
    };
    for ended in ends {
        let (selector, mirror) = ended.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert_eq!(mirror.into_iter().collect::<Vec<_>>(), there(&up, selector).await, "seed {seed}: {selector:?}");
    }
}

/// Three seeds, or as many as `DIRECT_SEEDS` says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn informers_survive_any_mix_of_faults() {
    let seeds = std::env::var("DIRECT_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(3);
    for seed in 1..=seeds {
        survives(seed).await;
    }
}
