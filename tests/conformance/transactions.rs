//! Events that are deleted in one transaction of etcd. Upstream sends one deletion for each, all with the same version
//! (W17).

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use http::Method;
use serde_json::{Value, json};

use crate::bed::{
    self, Http, Identity, Plan, Plane, Protocol, Proxy, RequestSpec, Target, eventually, log_line, version_of,
};
use crate::event_scenes;

/// The number of objects in each transaction (etcd's limit is 128 operations), and the number of transactions.
const OBJECTS: usize = 100;
const ROUNDS: usize = 10;
/// The number of concurrent creations.
const AT_ONCE: usize = 8;
/// The number of listed versions that are compared with the storage.
const COMPARED_MAX: usize = 150;
/// Longer than the proxy waits for the rest of a transaction.
const PAUSE: Duration = Duration::from_millis(500);
/// The maximum number of runs until a conclusive one. A slow apiserver ends streams. A difference in such a run is
/// inconclusive.
const RUNS_MAX: usize = 20;

/// A client of etcd, which bypasses the apiserver.
pub struct Storage {
    http: Http,
    prefix: String,
}

impl Storage {
    pub fn of(plane: &Plane, prefix: String) -> Self {
        let settings = std::fs::read(plane.dir.join("settings.json")).expect("the test bed writes it");
        let settings: Value = serde_json::from_slice(&settings).expect("JSON");
        let url = format!("http://127.0.0.1:{}", settings["etcdPort"]);
        let target = Target { url, ca: None, identity: Identity::anonymous() };
        Self { http: Http::new(target, Protocol::H1), prefix }
    }

    async fn fetch(&self, path: &str, body: &Value) -> Value {
        let request = RequestSpec::get(path).with(Method::POST, "application/json", body.to_string());
        let answer = self.http.fetch(request).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        answer.value()
    }

    /// All keys below the prefix, in base64.
    async fn all(&self) -> Vec<String> {
        let end = format!("{}0", self.prefix.strip_suffix('/').expect("a folder"));
        let range = json!({"key": encoded(&self.prefix), "range_end": encoded(&end)});
        let found = self.fetch("/v3/kv/range", &range).await;
        let text = |value: &Value| value.as_str().expect("base64").to_owned();
        found["kvs"].as_array().expect("some").iter().map(|kv| text(&kv["key"])).collect()
    }

    /// Deletes all objects with these names below the prefix in one transaction.
    pub async fn delete_together(&self, names: &[String]) {
        self.delete_all(&names.iter().map(|name| encoded(&format!("{}{name}", self.prefix))).collect::<Vec<_>>()).await;
    }

    /// Deletes all keys at one revision, and returns it.
    async fn delete_all(&self, keys: &[String]) -> u64 {
        let requests: Vec<_> = keys.iter().map(|key| json!({"request_delete_range": {"key": key}})).collect();
        let done = self.fetch("/v3/kv/txn", &json!({"success": requests})).await;
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

/// Lists continuously until it is stopped. Returns each version with the state that was sent for it.
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

/// Like [`lists`], with watch-lists.
async fn watch_lists(client: Http, path: String, stop: Arc<AtomicBool>) -> Vec<(u64, State)> {
    let mut seen = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0\
                     &allowWatchBookmarks=true";
        let mut watch = client.watch(RequestSpec::get(&format!("{path}?{query}"))).await;
        let mut events = watch.initial().await;
        let end = events.pop().expect("the mark");
        let state = events.iter().map(|event| (event.name().to_owned(), event.version())).collect();
        seen.push((end.version(), state));
    }
    seen
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_during_transactions_is_the_state_at_its_version() {
    let Some(bed) = bed::alone().await else { return };
    for run in 1..=RUNS_MAX {
        if amid_transactions(&bed, &bed.namespace("together").await).await {
            return;
        }
        log_line(&format!("run {run}: something differs, and the feed's stream was opened again"));
    }
    panic!("no run showed anything");
}

/// Creates the Events, a few at a time, and returns the last version.
async fn create_events(bed: &Plane, events: &str, namespace: &str) -> u64 {
    let direct = bed.direct();
    let created = stream::iter(0..OBJECTS)
        .map(async |n| version_of(&direct.create(events, event_scenes::event(namespace, &format!("e{n:03}"))).await));
    created.buffer_unordered(AT_ONCE).fold(0, async |last, version| last.max(version)).await
}

/// Compares lists during transactions with the storage. Returns `false` if something differs and the feed's stream was
/// reopened in between.
async fn amid_transactions(bed: &Plane, namespace: &str) -> bool {
    let proxy = Plan::tls().start(bed).await;
    let events = format!("/api/v1/namespaces/{namespace}/events");
    create_events(bed, &events, namespace).await;
    let first = proxy.client().version(&events).await;
    let any = format!("{events}?resourceVersion=0");
    eventually("the feed serves", async || proxy.client().get(&any).await.is_cached().then_some(())).await;
    eventually("its stream is open", async || (proxy.streams("events.v1").await == 1).then_some(())).await;
    let opened = streams_opened(&proxy).await;
    let storage = Storage::of(bed, format!("/registry/events/{namespace}/"));
    let stop = Arc::<AtomicBool>::default();
    let readers = [
        tokio::spawn(lists(proxy.client(), any, stop.clone())),
        tokio::spawn(lists(proxy.client(), events.clone(), stop.clone())),
        tokio::spawn(watch_lists(proxy.client(), events.clone(), stop.clone())),
    ];
    let (mut together, mut last) = (HashMap::new(), 0);
    for round in 0..ROUNDS {
        let all = storage.all().await;
        together.insert(storage.delete_all(&all).await, all.len());
        // In half of the rounds no Event follows for a while.
        if round % 2 == 0 {
            tokio::time::sleep(PAUSE).await;
        }
        last = create_events(bed, &events, namespace).await;
    }
    let current = proxy.client().json(&events).await;
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
        let exact = format!("{events}?resourceVersion={version}&resourceVersionMatch=Exact");
        let right = state_of(&bed.direct().json(&exact).await);
        if state != right && !is_one {
            proxy.assert_sound();
            return false;
        }
        assert_eq!(state, right, "the state returned for version {version}");
        amid += usize::from(together.contains_key(&(version + 1)) || together.contains_key(&version));
    }
    let counts = events_received(&proxy, &events, first, last).await;
    for (version, objects) in &together {
        if counts.get(version) != Some(objects) && !is_one {
            proxy.assert_sound();
            return false;
        }
        assert_eq!(counts.get(version), Some(objects), "events of {version}");
    }
    let compared = count.div_ceil(step);
    log_line(&format!(
        "{ROUNDS} transactions of {OBJECTS} objects: {count} lists and states, {compared} compared, {amid} of them \
         at a transaction's version or right before it"
    ));
    assert!(amid > 0, "some were read amid them");
    proxy.assert_sound();
    true
}

/// The number of events per version that a watch from `first` receives, up to `last`.
async fn events_received(proxy: &Proxy, events: &str, first: u64, last: u64) -> HashMap<u64, usize> {
    let mut watch = proxy.client().watch(RequestSpec::get(&format!("{events}?watch=1&resourceVersion={first}"))).await;
    let mut counts = HashMap::new();
    loop {
        let version = watch.change().await.version();
        *counts.entry(version).or_default() += 1;
        if version == last {
            return counts;
        }
    }
}

/// The number of watches that the proxy has opened upstream so far.
async fn streams_opened(proxy: &Proxy) -> i64 {
    proxy.metrics().await.sum("kube_fanout_upstream_streams_opened_total", &[("cause", "watch")])
}
