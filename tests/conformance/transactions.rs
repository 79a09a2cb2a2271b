//! Objects that change in one transaction of etcd. Upstream sends an event for each, all with one version (W17).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::Method;
use serde_json::{Value, json};

use crate::bed::{self, Ask, Http, Identity, Plan, Plane, Protocol, Proxy, Target, eventually, say, version_of};

/// Objects of each transaction (etcd takes 128 operations), and how many transactions there are.
const OBJECTS: usize = 100;
const ROUNDS: usize = 30;
/// Listed versions that are compared with the storage.
const COMPARED_MAX: usize = 150;
/// Runs until one shows something. A stream that begins amid a transaction is never told the rest of it (R-WATCH-4),
/// whoever follows it, and an apiserver ends streams when it is slow. What differs then shows nothing.
const RUNS_MAX: usize = 20;

/// The storage, asked without the apiserver.
struct Storage {
    http: Http,
    prefix: String,
}

impl Storage {
    fn of(plane: &Plane, prefix: String) -> Self {
        let settings = std::fs::read(plane.dir.join("settings.json")).expect("the test bed writes it");
        let settings: Value = serde_json::from_slice(&settings).expect("JSON");
        let url = format!("http://127.0.0.1:{}", settings["etcdPort"]);
        let target = Target { url, ca: None, identity: Identity::anonymous() };
        Self { http: Http::new(target, Protocol::H1), prefix }
    }

    async fn ask(&self, path: &str, question: &Value) -> Value {
        let ask = Ask::get(path).with(Method::POST, "application/json", question.to_string());
        let answer = self.http.ask(ask).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.value()
    }

    /// Everything below the prefix: keys and values, as the storage spells them.
    async fn all(&self) -> Vec<(String, String)> {
        let end = format!("{}0", self.prefix.strip_suffix('/').expect("a folder"));
        let range = json!({"key": encoded(&self.prefix), "range_end": encoded(&end)});
        let found = self.ask("/v3/kv/range", &range).await;
        let text = |value: &Value| value.as_str().expect("base64").to_owned();
        found["kvs"].as_array().expect("some").iter().map(|kv| (text(&kv["key"]), text(&kv["value"]))).collect()
    }

    /// Does it all at one revision, which is returned.
    async fn transact(&self, requests: Vec<Value>) -> u64 {
        let done = self.ask("/v3/kv/txn", &json!({"success": requests})).await;
        done["header"]["revision"].as_str().and_then(|revision| revision.parse().ok()).expect("a revision")
    }
}

fn encoded(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}

/// Versions by name.
type State = BTreeMap<String, u64>;

fn state_of(list: &Value) -> State {
    let items = list["items"].as_array().expect("a list");
    items.iter().map(|item| (item["metadata"]["name"].as_str().expect("a name").to_owned(), version_of(item))).collect()
}

/// Lists, as fast as they come, until it is told to stop: each version, and what it is said to be the state of.
async fn lists(client: Http, path: String, stop: Arc<AtomicBool>) -> Vec<(u64, State)> {
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let answer = client.get(&path).await;
        let list = answer.value();
        if answer.is_cached() && seen.last().is_none_or(|(version, _)| *version != version_of(&list)) {
            seen.push((version_of(&list), state_of(&list)));
        }
    }
    seen
}

/// The same by watch-lists.
async fn watch_lists(client: Http, path: String, stop: Arc<AtomicBool>) -> Vec<(u64, State)> {
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0\
                     &allowWatchBookmarks=true";
        let mut watch = client.watch(Ask::get(&format!("{path}?{query}"))).await;
        let mut events = watch.initial().await;
        let end = events.pop().expect("the mark");
        let state = events.iter().map(|event| (event.name().to_owned(), event.version())).collect();
        seen.push((end.version(), state));
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_listed_amid_transactions_is_the_state_of_its_version() {
    let Some(bed) = bed::own("transactions").await else { return };
    for run in 1..=RUNS_MAX {
        if amid_transactions(&bed, &bed.namespace("together").await).await {
            return;
        }
        say(&format!("run {run}: something differs, and the feed's stream was opened again"));
    }
    panic!("no run showed anything");
}

async fn create_objects(bed: &Plane, maps: &str) {
    for n in 0..OBJECTS {
        let map = json!({"metadata": {"name": format!("m{n:03}")}, "data": {"k": "0"}});
        bed.direct().create(maps, map).await;
    }
}

/// Compares what is listed amid transactions with the storage. Returns `false` if something differs and the feed's
/// stream was opened again meanwhile.
async fn amid_transactions(bed: &Plane, namespace: &str) -> bool {
    let proxy = Plan::tls().start(bed).await;
    let maps = format!("/api/v1/namespaces/{namespace}/configmaps");
    create_objects(bed, &maps).await;
    let first = proxy.client().version(&maps).await;
    let any = format!("{maps}?resourceVersion=0");
    eventually("the feed serves", async || proxy.client().get(&any).await.is_cached().then_some(())).await;
    eventually("its stream is open", async || (proxy.streams("configmaps.v1").await == 1).then_some(())).await;
    let opened = streams_opened(&proxy).await;
    let storage = Storage::of(bed, format!("/registry/configmaps/{namespace}/"));
    let stop = Arc::<AtomicBool>::default();
    let readers = [
        tokio::spawn(lists(proxy.client(), any, stop.clone())),
        tokio::spawn(lists(proxy.client(), maps.clone(), stop.clone())),
        tokio::spawn(watch_lists(proxy.client(), maps.clone(), stop.clone())),
    ];
    let mut together = HashMap::new();
    for round in 0..ROUNDS {
        let all = storage.all().await;
        let again = all.iter().map(|(key, value)| json!({"request_put": {"key": key, "value": value}}));
        // What is gone for good is gone in one go as well.
        let goes = |n: usize| round == ROUNDS - 1 && n.is_multiple_of(2);
        let delete = |n: usize| json!({"request_delete_range": {"key": all[n].0}});
        let requests = again.enumerate().map(|(n, put)| if goes(n) { delete(n) } else { put });
        together.insert(storage.transact(requests.collect()).await, all.len());
        // Something alone in between.
        let patch = json!({"data": {"k": round.to_string()}});
        bed.direct().patch(&format!("{maps}/m001"), patch).await;
    }
    let last = version_of(&bed.direct().patch(&format!("{maps}/m001"), json!({"data": {"k": "last"}})).await);
    let current = proxy.client().json(&maps).await;
    assert!(version_of(&current) >= last);
    stop.store(true, Ordering::Relaxed);
    let mut seen = Vec::new();
    for reader in readers {
        seen.extend(reader.await.expect("no panic"));
    }
    let is_one = streams_opened(&proxy).await == opened;
    let (count, step) = (seen.len(), seen.len().div_ceil(COMPARED_MAX));
    let mut amid = 0;
    for (version, state) in seen.into_iter().step_by(step) {
        let exact = format!("{maps}?resourceVersion={version}&resourceVersionMatch=Exact");
        let right = state_of(&bed.direct().json(&exact).await);
        if state != right && !is_one {
            proxy.assert_sound();
            return false;
        }
        assert_eq!(state, right, "said to be the state of {version}");
        amid += usize::from(together.contains_key(&(version + 1)) || together.contains_key(&version));
    }
    let told = events_told(&proxy, &maps, first, last).await;
    for (version, objects) in &together {
        if told.get(version) != Some(objects) && !is_one {
            proxy.assert_sound();
            return false;
        }
        assert_eq!(told.get(version), Some(objects), "events of {version}");
    }
    let compared = count.div_ceil(step);
    say(&format!(
        "{ROUNDS} transactions of {OBJECTS} objects: {count} lists and states, {compared} compared, {amid} of them \
         at a transaction's version or right before it"
    ));
    assert!(amid > 0, "some were read amid them");
    proxy.assert_sound();
    true
}

/// How many events of each version a watch is told that begins behind `first`, up to `last`.
async fn events_told(proxy: &Proxy, maps: &str, first: u64, last: u64) -> HashMap<u64, usize> {
    let mut watch = proxy.client().watch(Ask::get(&format!("{maps}?watch=1&resourceVersion={first}"))).await;
    let mut told = HashMap::new();
    loop {
        let version = watch.change().await.version();
        *told.entry(version).or_default() += 1;
        if version == last {
            return told;
        }
    }
}

/// How many watches the proxy has opened upstream so far.
async fn streams_opened(proxy: &Proxy) -> i64 {
    proxy.metrics().await.sum("kube_fanout_upstream_streams_opened_total", &[("cause", "watch")])
}
