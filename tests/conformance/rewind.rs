//! etcd is restored from a backup while clients watch through the proxy. Their watches end with 410, the proxy serves
//! no lost write afterwards, and the clients reach the restored state (F3, L6).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::bed::{self, Http, Plan, Plane, Proxy, RequestSpec, Watch, eventually, log_line, version_of};

const MAPS: &str = "/api/v1/configmaps";
const DEFAULT_MAPS: &str = "/api/v1/namespaces/default/configmaps";
const INFORMERS: usize = 5;
/// The polling interval.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

type State = BTreeMap<String, u64>;

fn key(object: &Value) -> String {
    let of = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", of("namespace"), of("name"))
}

fn state(list: &Value) -> State {
    let items = list["items"].as_array().expect("items");
    items.iter().map(|object| (key(object), version_of(object))).collect()
}

/// The observations of the clients.
#[derive(Default)]
struct Seen {
    /// The store of each informer.
    stores: Vec<State>,
    /// The time at which its watch ended with a 410.
    ended: Vec<Option<Instant>>,
    /// Each answer at `resourceVersion=0`: the time of the request, its version, and whether it contains a lost write.
    answers: Vec<(Instant, u64, bool)>,
}

type Shared = Arc<parking_lot::Mutex<Seen>>;

/// Lists, watches from there, and relists after a 410.
async fn informer(client: Http, number: usize, seen: Shared) {
    loop {
        let Some(list) = client.try_get(MAPS).await.filter(|list| list.status == 200) else {
            tokio::time::sleep(LOOK_AGAIN).await;
            continue;
        };
        let version = list.value()["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
        seen.lock().stores[number] = state(&list.value());
        let path = format!("{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion={version}");
        // While upstream starts, a forwarded request fails.
        let Some(response) = client.try_send(RequestSpec::get(&path)).await.filter(|response| response.status() == 200)
        else {
            tokio::time::sleep(LOOK_AGAIN).await;
            continue;
        };
        let mut watch = Watch::new(response);
        // A watch that does not end lasts until the end of the test.
        while let Ok(Some(event)) = tokio::time::timeout(bed::PATIENCE, watch.event()).await {
            let mut seen = seen.lock();
            match event.kind.as_str() {
                "BOOKMARK" => {}
                "ERROR" => {
                    assert_eq!(event.object["code"], 410, "{}", event.line);
                    seen.ended[number] = Some(Instant::now());
                }
                "DELETED" => drop(seen.stores[number].remove(&key(&event.object))),
                _ => drop(seen.stores[number].insert(key(&event.object), version_of(&event.object))),
            }
        }
    }
}

/// Reads at `resourceVersion=0` repeatedly.
async fn reader(client: Http, seen: Shared, over: Arc<AtomicBool>) {
    while !over.load(Ordering::Relaxed) {
        let started = Instant::now();
        if let Some(list) = client.try_get(&format!("{MAPS}?resourceVersion=0")).await
            && list.status == 200
            && list.is_cached()
        {
            let list = list.value();
            let version = list["metadata"]["resourceVersion"].as_str().expect("a version");
            let lost = state(&list).keys().any(|key| key.contains("lost"));
            seen.lock().answers.push((started, version.parse().expect("a number"), lost));
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
}

async fn map(plane: &Plane, name: &str) -> u64 {
    version_of(&plane.direct().create(DEFAULT_MAPS, json!({"metadata": {"name": name}})).await)
}

struct Clients {
    seen: Shared,
    over: Arc<AtomicBool>,
    reader: JoinHandle<()>,
    informers: Vec<JoinHandle<()>>,
}

impl Clients {
    fn of(proxy: &Proxy) -> Self {
        let seen = Seen { stores: vec![State::new(); INFORMERS], ended: vec![None; INFORMERS], answers: Vec::new() };
        let (seen, over) = (Shared::new(seen.into()), Arc::<AtomicBool>::default());
        let informers = (0..INFORMERS).map(|n| tokio::spawn(informer(proxy.client(), n, seen.clone()))).collect();
        let reader = tokio::spawn(reader(proxy.client(), seen.clone(), over.clone()));
        Self { seen, over, reader, informers }
    }

    /// Waits until every informer has the same state as the apiserver.
    async fn converge(&self, plane: &Plane) {
        eventually("the informers hold what the apiserver does", async || {
            let truth = state(&plane.direct().json(MAPS).await);
            self.seen.lock().stores.iter().all(|store| *store == truth).then_some(())
        })
        .await;
    }

    async fn stop(self) -> Shared {
        self.over.store(true, Ordering::Relaxed);
        self.reader.await.expect("the reader lives");
        for informer in self.informers {
            assert!(!informer.is_finished(), "an informer has failed");
            informer.abort();
        }
        self.seen
    }
}

/// Panics if an answer contains a lost write although it was requested after the first watch had ended, or follows an
/// answer without it.
fn assert_nothing_old(seen: &Seen, after: Instant) {
    let first = seen.ended.iter().flatten().min().expect("the watches ended");
    let late: Vec<_> = seen.answers.iter().filter(|(at, ..)| at >= first).collect();
    assert!(!late.is_empty() && late.iter().all(|(.., lost)| !lost), "served after the watches had ended");
    let restored = seen.answers.iter().position(|(at, _, lost)| *at > after && !lost).expect("it was read");
    assert!(seen.answers[restored..].iter().all(|(.., lost)| !lost), "the old state returned");
    let versions = seen.answers[restored..].iter().map(|(_, version, _)| *version);
    assert!(versions.is_sorted(), "versions of the restored history go forward");
}

/// Additional changes of the storage while the proxy receives nothing.
#[derive(Clone, Copy, PartialEq)]
enum Meanwhile {
    Nothing,
    /// The storage reaches a later version than before.
    Passes,
}

async fn restored_under_clients(name: &str, meanwhile: Meanwhile) {
    let Some(bed) = bed::own(name).await else { return };
    for n in 0..20 {
        map(&bed, &format!("kept-{n}")).await;
    }
    let backup = bed.backup().await;
    let proxy = Plan::tls().start(&bed).await;
    let clients = Clients::of(&proxy);
    // Another feed, with hardly any changes.
    let secrets = proxy.client().version("/api/v1/secrets").await;
    let mut quiet =
        proxy.client().watch(RequestSpec::get(&format!("/api/v1/secrets?watch=1&resourceVersion={secrets}"))).await;
    clients.converge(&bed).await;
    for n in 0..10 {
        map(&bed, &format!("lost-{n}")).await;
    }
    let secret = json!({"metadata": {"name": "lost"}});
    bed.direct().create("/api/v1/namespaces/default/secrets", secret).await;
    assert_eq!(quiet.change().await.name(), "lost");
    bed.direct().patch(&format!("{DEFAULT_MAPS}/kept-0"), json!({"data": {"k": "lost"}})).await;
    bed.direct().delete(&format!("{DEFAULT_MAPS}/kept-1")).await;
    clients.converge(&bed).await;
    let reached = bed.direct().version(MAPS).await;
    if meanwhile == Meanwhile::Passes {
        proxy.stop();
    }
    let away = Instant::now();
    bed.restore(&backup).await;
    let restored = bed.direct().version(MAPS).await;
    assert!(restored < reached, "it went back: {restored} {reached}");
    let mut new = 0;
    while meanwhile == Meanwhile::Passes && map(&bed, &format!("new-{new}")).await <= reached + 5 {
        new += 1;
    }
    let back = Instant::now();
    proxy.go_on();
    eventually("every watch has ended", async || clients.seen.lock().ended.iter().all(Option::is_some).then_some(()))
        .await;
    let (events, _) = bed::within("the end of a quiet watch", quiet.rest()).await;
    assert_eq!(events.last().map(|event| event.object["code"].clone()), Some(json!(410)));
    let others = back.elapsed();
    clients.converge(&bed).await;
    map(&bed, "after").await;
    clients.converge(&bed).await;
    eventually("the restored state is read", async || {
        let seen = clients.seen.lock();
        let ended = seen.ended.iter().flatten().min().copied().max(Some(back));
        seen.answers.iter().any(|(at, _, lost)| Some(*at) > ended && !lost).then_some(())
    })
    .await;
    let seen = clients.stop().await;
    let (last, answers) = {
        let seen = seen.lock();
        assert_nothing_old(&seen, back);
        (seen.ended.iter().flatten().max().copied().expect("they ended"), seen.answers.len())
    };
    log_line(&format!(
        "at {reached}, restored to {restored}: watches ended {:.1} s after the apiserver was back, those of a quiet \
         resource after {:.1} s; {answers} answers at resourceVersion=0",
        last.saturating_duration_since(back).as_secs_f64(),
        others.as_secs_f64(),
    ));
    report(&proxy, away.elapsed()).await;
}

/// Reports the amount of requests and log lines since the apiserver was stopped.
async fn report(proxy: &Proxy, time: Duration) {
    let metrics = proxy.metrics().await;
    let rewound =
        |resource| metrics.sum("kube_fanout_history_gaps_total", &[("outcome", "rewound"), ("resource", resource)]);
    assert_eq!([rewound("configmaps.v1"), rewound("secrets.v1")], [1, 1]);
    let feeds = metrics.sum("kube_fanout_history_gaps_total", &[("outcome", "rewound")]);
    let (doubt, initial, position) = (
        proxy.feed_requests("mismatch").await,
        proxy.feed_requests("initial").await,
        proxy.feed_requests("position").await,
    );
    let log = proxy.log();
    let rolled_back = log.lines().filter(|line| line.contains("rolled back")).count();
    log_line(&format!(
        "{feeds} feeds went back; upstream requests: mismatch {doubt}, initial {initial}, position {position}; log: {rolled_back}"
    ));
    assert_eq!(i64::try_from(rolled_back).expect("few"), feeds, "a line a feed");
    let behind = log.lines().filter(|line| line.contains("upstream is behind the cache")).count();
    log_line(&format!("upstream was found behind the cache {behind} times"));
    // The longer it takes, the more often it is found.
    let behind_max = 20 + usize::try_from(time.as_secs()).expect("minutes");
    assert!(behind <= behind_max, "{behind} lines, {behind_max} at most; is one logged for each proof?");
    let maps =
        metrics.sum("kube_fanout_feed_requests_total", &[("purpose", "mismatch"), ("resource", "configmaps.v1")]);
    assert!(maps <= 1, "{maps} lists because of a mismatch");
    proxy.assert_sound();
}

#[tokio::test]
async fn etcd_restore_ends_watches_and_lost_state_is_not_served() {
    restored_under_clients("rewind", Meanwhile::Nothing).await;
}

#[tokio::test]
async fn etcd_restore_is_detected_after_versions_pass_the_cached_one() {
    restored_under_clients("rewind-passed", Meanwhile::Passes).await;
}
