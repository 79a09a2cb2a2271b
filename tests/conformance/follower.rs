//! A small client of one collection: it lists, watches, resumes from its last version, and relists after a 410. It
//! records what it receives, for the checkers of `fanoutctl verify`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::sleep;
use verify::{OperationId, ReadVerb, WatchEnding};

use crate::bed::{Event, Http, Protocol, RequestSpec, Target, Watch, version_of};
use crate::ledger::Ledger;

/// The client's backoff while no server listens.
const TRY_AGAIN: Duration = Duration::from_millis(50);

pub struct Follower {
    http: Http,
    ledger: Arc<Ledger>,
    /// The parameters of its selectors.
    selectors: String,
    /// The last event, after which it resumes.
    before: Option<OperationId>,
    at: Arc<AtomicU64>,
    pub lists: u32,
    pub resumed: u32,
    pub expired: u32,
    /// The headers with the reason for each forwarded watch.
    pub passed: Vec<String>,
    /// Counts the followers whose first watch has started.
    begun: Option<watch::Sender<usize>>,
    /// The follower disconnects after this many events, and stays away until this long after the proxy was killed.
    away: Option<(u32, watch::Receiver<bool>, Duration)>,
}

impl Follower {
    pub fn new(target: Target, protocol: Protocol, ledger: &Arc<Ledger>, begun: &watch::Sender<usize>) -> Self {
        let (http, ledger, begun) = (Http::new(target, protocol), ledger.clone(), Some(begun.clone()));
        Self {
            http,
            ledger,
            selectors: String::new(),
            before: None,
            at: Arc::default(),
            lists: 0,
            resumed: 0,
            expired: 0,
            passed: Vec::new(),
            begun,
            away: None,
        }
    }

    /// Makes the follower list and watch with these parameters.
    pub fn selecting(self, selectors: String) -> Self {
        Self { selectors, ..self }
    }

    /// Makes the follower disconnect after `events` events, and return `long` after the kill.
    pub fn away(self, events: u32, killed: watch::Receiver<bool>, long: Duration) -> Self {
        Self { away: Some((events, killed, long)), ..self }
    }

    /// The version from which it resumes; 0 before its first list.
    pub fn position(&self) -> Arc<AtomicU64> {
        self.at.clone()
    }

    fn at(&self) -> u64 {
        self.at.load(Ordering::Relaxed)
    }

    /// Follows until it has seen the version in `goal`, once that is set.
    pub async fn follow(mut self, mut goal: watch::Receiver<Option<u64>>) -> Self {
        let (mut target, mut events) = (None, 0);
        loop {
            if self.at() == 0 {
                self.list().await;
            }
            let (op, mut watch) = self.watch().await;
            self.before = Some(op);
            if let Some(begun) = self.begun.take() {
                begun.send_modify(|begun| *begun += 1);
            }
            let how = loop {
                if target.is_some_and(|target| self.at() >= target) {
                    self.ledger.over(op, WatchEnding::Left);
                    return self;
                }
                let event = tokio::select! {
                    event = watch.event() => event,
                    found = async { goal.wait_for(Option::is_some).await.map(|found| *found) }, if target.is_none() => {
                        target = found.expect("the test says how far");
                        continue;
                    }
                };
                let Some(event) = event else { break WatchEnding::Broken };
                self.ledger.record_event(op, &event);
                if !self.apply(&event) {
                    break WatchEnding::Left;
                }
                events += 1;
                if self.away.as_ref().is_some_and(|(last, ..)| events >= *last) {
                    break WatchEnding::Left;
                }
            };
            self.ledger.over(op, how);
            drop(watch);
            if let Some((_, mut killed, long)) = self.away.take() {
                killed.wait_for(|killed| *killed).await.expect("the test says when");
                sleep(long).await;
            }
            self.resumed += 1;
        }
    }

    async fn list(&mut self) {
        let (op, answer) = loop {
            let op = self.ledger.called(ReadVerb::List, &self.selectors, None);
            match self.http.try_get(&format!("{}?{}", self.ledger.path(), self.selectors)).await {
                Some(answer) if answer.status == 200 => break (op, answer),
                _ => sleep(TRY_AGAIN).await,
            }
        };
        let list = answer.value();
        self.ledger.listed(op, &list, answer.is_cached());
        self.before = Some(op);
        self.at.store(version_of(&list), Ordering::Relaxed);
        self.lists += 1;
    }

    async fn watch(&mut self) -> (OperationId, Watch) {
        let query = format!("watch=1&allowWatchBookmarks=true&resourceVersion={}&{}", self.at(), self.selectors);
        loop {
            let op = self.ledger.called(ReadVerb::Watch, &query, self.before);
            match self.http.try_send(RequestSpec::get(&format!("{}?{query}", self.ledger.path()))).await {
                Some(response) if response.status() == 200 => {
                    self.ledger.opened(op);
                    self.passed.extend(
                        response.headers().get("kube-fanout-reason").map(|why| format!("{why:?} at {}", self.at())),
                    );
                    return (op, Watch::new(response));
                }
                Some(response) => {
                    let status = response.status();
                    assert!(status.is_server_error() || status == 429, "{status}");
                    sleep(TRY_AGAIN).await;
                }
                None => sleep(TRY_AGAIN).await,
            }
        }
    }

    /// Applies an event. Returns `false` if the watch is over.
    fn apply(&mut self, event: &Event) -> bool {
        if event.kind == "ERROR" {
            assert_eq!(event.object["code"], 410, "{}", event.line);
            assert_eq!(event.object["reason"], "Expired");
            self.expired += 1;
            self.at.store(0, Ordering::Relaxed);
            return false;
        }
        self.at.fetch_max(event.version(), Ordering::Relaxed);
        true
    }
}
