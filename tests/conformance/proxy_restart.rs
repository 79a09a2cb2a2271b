//! The proxy is killed with SIGKILL. Clients come back to the next one, at once or half a minute later, and go on where
//! they were (F9).

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::bed::{self, Ask, Event, Http, Plan, Plane, Protocol, Proxy, Target, Watch, say, version_of, within};

const MAPS: &str = "/api/v1/configmaps";
/// A client's back-off, while nobody listens.
const TRY_AGAIN: Duration = Duration::from_millis(50);
/// How long the last of those that were away stay away behind the kill.
const AWAY_MAX: Duration = Duration::from_secs(25);
/// Those that are away when the proxy is killed, each from a version of its own.
const AWAY: u32 = 30;

/// A client as small as can be: lists, watches, resumes from its version, and lists again when it is told 410.
struct Follower {
    http: Http,
    state: BTreeMap<String, u64>,
    at: u64,
    lists: u32,
    resumed: u32,
    expired: u32,
    back_in_time: u32,
    /// It goes after so many events, until the proxy was killed and so long behind that.
    away: Option<(u32, watch::Receiver<bool>, Duration)>,
}

impl Follower {
    fn new(target: Target) -> Self {
        let http = Http::new(target, Protocol::H1);
        Self { http, state: BTreeMap::new(), at: 0, lists: 0, resumed: 0, expired: 0, back_in_time: 0, away: None }
    }

    /// One that goes after so many events, and comes back so long after the kill.
    fn away(self, events: u32, killed: watch::Receiver<bool>, long: Duration) -> Self {
        Self { away: Some((events, killed, long)), ..self }
    }

    /// Follows until it has seen `goal`, once there is one.
    async fn follow(mut self, mut goal: watch::Receiver<Option<u64>>) -> Self {
        let (mut target, mut events) = (None, 0);
        loop {
            if self.at == 0 {
                self.list().await;
            }
            let mut watch = self.watch().await;
            loop {
                if target.is_some_and(|target| self.at >= target) {
                    return self;
                }
                let event = tokio::select! {
                    event = watch.event() => event,
                    found = async { goal.wait_for(Option::is_some).await.map(|found| *found) }, if target.is_none() => {
                        target = found.expect("the test says how far");
                        continue;
                    }
                };
                let Some(event) = event else { break };
                if !self.apply(&event) {
                    break;
                }
                events += 1;
                if self.away.as_ref().is_some_and(|(last, ..)| events >= *last) {
                    break;
                }
            }
            drop(watch);
            if let Some((_, mut killed, long)) = self.away.take() {
                killed.wait_for(|killed| *killed).await.expect("the test says when");
                sleep(long).await;
            }
            self.resumed += 1;
        }
    }

    async fn list(&mut self) {
        let list = loop {
            match self.http.try_get(MAPS).await {
                Some(answer) if answer.status == 200 => break answer.value(),
                _ => sleep(TRY_AGAIN).await,
            }
        };
        self.at = version_of(&list);
        self.lists += 1;
        let items = list["items"].as_array().expect("items");
        self.state = items.iter().map(|item| (key(item), version_of(item))).collect();
    }

    async fn watch(&self) -> Watch {
        let path = format!("{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion={}", self.at);
        loop {
            match self.http.try_send(Ask::get(&path)).await {
                Some(response) if response.status() == 200 => return Watch::new(response),
                Some(response) => assert!(response.status().is_server_error(), "{}", response.status()),
                None => sleep(TRY_AGAIN).await,
            }
        }
    }

    /// Takes an event in; false when the watch is over.
    fn apply(&mut self, event: &Event) -> bool {
        if event.kind == "ERROR" {
            assert_eq!(event.object["code"], 410, "{}", event.line);
            assert_eq!(event.object["reason"], "Expired");
            self.expired += 1;
            self.at = 0;
            return false;
        }
        let version = event.version();
        self.back_in_time += u32::from(version < self.at);
        self.at = self.at.max(version);
        match event.kind.as_str() {
            "DELETED" => drop(self.state.remove(&key(&event.object))),
            "BOOKMARK" => {}
            _ => drop(self.state.insert(key(&event.object), version)),
        }
        true
    }
}

fn key(object: &Value) -> String {
    let name = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", name("namespace"), name("name"))
}

async fn truth(plane: &Plane) -> BTreeMap<String, u64> {
    let list = plane.direct().json(MAPS).await;
    list["items"].as_array().expect("items").iter().map(|item| (key(item), version_of(item))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_of_a_killed_proxy_go_on_where_they_were_also_half_a_minute_later() {
    let Some(bed) = bed::alone().await else { return };
    let address = bed::free_address();
    let first = Plan::plain().listen(&address).start(&bed).await;
    let target = first.target();
    let until = bed.file("until");
    let mut informers = Vec::new();
    for watchlist in ["on", "off"] {
        let ready = bed.file("ready");
        let run =
            bed.drive("informers").at(&target).args(["--resource", "configmaps", "--count", "10", "--conns", "2"]);
        let run = run.args(["--watchlist", watchlist, "--reference-server", bed.url()]);
        let mut run = run.until(&until).file("--ready-file", &ready).start();
        run.awaits(&ready).await;
        informers.push((watchlist, run));
    }
    let (goal, goals) = watch::channel(None);
    let (kill, killed) = watch::channel(false);
    let away = (0..AWAY).map(|n| {
        // Those that have gone first come in the middle, so that the oldest version is asked for late.
        let long = AWAY_MAX.mul_f64(f64::from((n + AWAY / 2) % AWAY) / f64::from(AWAY));
        Follower::new(target.clone()).away(5 + 4 * n, killed.clone(), long)
    });
    let staying = (0..20).map(|_| Follower::new(target.clone()));
    let followers: Vec<_> = staying.chain(away).map(|follower| tokio::spawn(follower.follow(goals.clone()))).collect();
    let churn = bed.drive("churn").args(["--resource", "configmaps", "--namespace", "killed", "--ops", "800"]);
    let churn = churn.args(["--rate", "100", "--objects", "30"]).start();
    churn.wrote(150).await;
    first.kill();
    kill.send_replace(true);
    churn.wrote(250).await;
    let second = Plan::plain().listen(&address).start(&bed).await;
    let versions = churn.finish().await.versions();
    let last = *versions.last().expect("it wrote");
    std::fs::write(&until, last.to_string()).expect("a file");
    goal.send(Some(last)).expect("followers follow");
    let expected = truth(&bed).await;
    for (watchlist, run) in informers {
        let summary = run.finish().await.summary();
        assert_eq!(summary["reference"], "equal", "{summary}");
        assert_eq!(summary["distinct_stores"], 1, "{summary}");
        assert_eq!(summary["regressions"], 0, "{summary}");
        say(&format!("10 client-go informers, watchlist {watchlist}: {summary}"));
    }
    let followers: Vec<_> = within("the followers are there", join_all(followers))
        .await
        .into_iter()
        .map(|done| done.expect("no panic"))
        .collect();
    for follower in &followers {
        assert_eq!(follower.state, expected);
        assert_eq!(follower.back_in_time, 0);
        assert!(follower.resumed >= 1, "the kill was noticed");
    }
    let sum = |of: fn(&Follower) -> u32| followers.iter().map(of).sum::<u32>();
    say(&format!(
        "{} raw watches: {} resumes, {} times 410, {} lists, all with the state of a direct list ({} objects)",
        followers.len(),
        sum(|f| f.resumed),
        sum(|f| f.expired),
        sum(|f| f.lists),
        expected.len()
    ));
    assert_eq!(sum(|f| f.expired), 0, "nothing was forgotten");
    assert_eq!(sum(|f| f.lists), sum(|_| 1), "and nobody lists again");
    assert_eq!(second.streams("configmaps.v1").await, 1, "one, whatever the form");
    cost_a_few_watches(&second).await;
}

/// What those who came back cost upstream besides the stream.
async fn cost_a_few_watches(second: &Proxy) {
    let questions = second.metrics().await;
    let of_maps = |question| {
        let labels = [("resource", "configmaps.v1"), ("question", question)];
        questions.sum("kube_fanout_upstream_questions_total", &labels)
    };
    say(&format!("upstream: {} watches for what was before", of_maps("prehistory")));
    assert_eq!(of_maps("relist"), 0);
    assert!(of_maps("initial") <= 1, "one list, or the state of a client's version");
    assert!((1..=16).contains(&of_maps("prehistory")), "{}", of_maps("prehistory"));
}
