//! Shards of a collection (KEP-5866), from an upstream that does not know them: together they are the whole, and nothing
//! is in two of them.

use std::collections::BTreeMap;

use demo::{self, RunningDemoApiserver};
use futures_util::future::join_all;
use http::Method;

use crate::direct::{self, Answer, App, History, PODS, Protocol, assert_same};

const METADATA: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// Selectors of equal ranges of the hashes of a field.
fn shards(count: u128, field: &str) -> Vec<String> {
    let bound = |n: u128| format!("'{:#018x}'", (n << 64) / count);
    (0..count).map(|n| format!("shardRange(object.metadata.{field}, {}, {})", bound(n), bound(n + 1))).collect()
}

fn path(shard: &str, more: &str) -> String {
    format!("{PODS}?shardSelector={}{more}", shard.replace(' ', "%20"))
}

/// Reads the collection at a version, page by page. Every page shows the shard.
async fn listed(app: &App, shard: &str, more: &str) -> Vec<(String, u64)> {
    let (mut items, mut token) = (Vec::new(), String::new());
    loop {
        let page = app.get(&path(shard, &format!("{more}{token}"))).await;
        assert!(page.is_cached() && page.status == 200, "{}", page.text());
        // What the leaf forwards, the zone answers from its cache.
        assert_eq!(page.header("kube-fanout-reason"), None);
        let metadata = &page.json()["metadata"];
        assert_eq!(metadata["shardInfo"]["selector"], shard);
        assert!(metadata["remainingItemCount"].is_null(), "a selection is not counted");
        items.extend(page.items());
        let Some(next) = page.continue_token() else { return items };
        token = format!("&continue={next}");
    }
}

/// Keys and versions, each at most once.
fn united(parts: Vec<Vec<(String, u64)>>) -> Vec<(String, u64)> {
    let all: usize = parts.iter().map(Vec::len).sum();
    let united: BTreeMap<_, _> = parts.into_iter().flatten().collect();
    assert_eq!(united.len(), all, "an object is in two shards");
    united.into_iter().collect()
}

async fn zone_and_leaf(up: &RunningDemoApiserver) -> [App; 2] {
    let zone = direct::app(up).run().await;
    zone.discovered().await;
    let leaf = direct::in_front_of(&zone.url()).run().await;
    leaf.discovered().await;
    [zone, leaf]
}

fn sorted(list: &Answer) -> Vec<(String, u64)> {
    list.items().into_iter().collect::<BTreeMap<_, _>>().into_iter().collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_shards_are_the_whole_list() {
    let up = demo::upstream().pods(90).seed(43).remember_requests(true).run().await;
    let [zone, leaf] = zone_and_leaf(&up).await;
    for (labels, least) in [("", 90), ("&labelSelector=app%3Dfront", 1)] {
        let whole = sorted(&zone.get(&format!("{PODS}?resourceVersion=0{labels}")).await);
        assert!(whole.len() >= least, "{}", whole.len());
        for (app, members, field) in
            [(&zone, 1, "uid"), (&zone, 2, "uid"), (&zone, 10, "uid"), (&zone, 4, "namespace"), (&leaf, 3, "uid")]
        {
            for more in ["", "&limit=3", "&resourceVersion=0"] {
                let (shards, more) = (shards(members, field), format!("{labels}{more}"));
                let lists = shards.iter().map(|shard| listed(app, shard, &more));
                assert_eq!(united(join_all(lists).await), whole, "{members} of {field} {more}");
            }
        }
    }
    let [one, two, three] = &shards(3, "uid")[..] else { panic!("not three") };
    let both = listed(&zone, &format!("{two} || {three}"), "").await;
    assert_eq!(both.len() + listed(&zone, one, "").await.len(), 90);
    metadata_has_the_same_objects(&zone).await;
    assert_eq!(direct::proxy_queries(&up, PODS).iter().filter(|query| query.contains("shardSelector")).count(), 0);
}

/// Lists of metadata do not show the shard (R-SHARD-2).
async fn metadata_has_the_same_objects(app: &App) {
    let path = path(&shards(2, "uid")[1], "");
    let metadata = app.request(Method::GET, &path).header("accept", METADATA).send().await;
    assert!(metadata.is_cached());
    assert_eq!(metadata.items(), app.get(&path).await.items());
    assert!(metadata.json()["metadata"]["shardInfo"].is_null());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_of_shards_get_every_event_once_from_one_stream() {
    let up = demo::upstream().pods(40).seed(44).remember_requests(true).run().await;
    let [zone, leaf] = zone_and_leaf(&up).await;
    let mut history = History::begin(&up, PODS).await;
    let mut watches = Vec::new();
    for (members, app) in [(2, &zone), (10, &zone), (3, &leaf)] {
        for (n, shard) in shards(members, "uid").iter().chain(&shards(2, "namespace")).enumerate() {
            let watch = app.watch(PODS).query("shardSelector", shard).from(history.from).over(Protocol::ALL[n % 3]);
            watches.push(watch.await);
            watches.push(app.watch(PODS).query("shardSelector", shard).labels("app=front").from(history.from).await);
            watches.push(app.watch(PODS).query("shardSelector", shard).initial_events().await);
        }
    }
    let last = up.churn(300).await;
    history.assert_delivered_filtered(&watches, last).await;
    // The first ten of the zone's unlabelled watches of one set of shards, merged, are the watch of the collection.
    let ten = &watches[3 * 4..3 * 14];
    let mut events = Vec::new();
    for watch in ten.iter().step_by(3) {
        events.extend(watch.changes());
    }
    events.sort_by_key(|event| event.rv);
    assert_same("all shards", &events, &history.all());
    assert_eq!(up.counts().watches_open.of("pods"), 1);
    assert_eq!(direct::proxy_queries(&up, PODS).iter().filter(|query| query.contains("shardSelector")).count(), 0);
}

/// Upstream ignores the parameter, so its answer is the whole list without `shardInfo`.
#[tokio::test]
async fn shard_selector_that_is_not_understood_passes_through() {
    let up = demo::upstream().pods(5).seed(45).run().await;
    let app = direct::app(&up).run().await;
    let shard = &shards(2, "uid")[0];
    for text in [format!("({shard})"), shard.replace("uid", "name")] {
        let list = app.get(&path(&text, "")).await;
        assert!(!list.is_cached(), "{}", list.text());
        assert_eq!(list.header("kube-fanout-reason"), Some("invalid"));
        assert_eq!(list.items().len(), 5);
        assert!(list.json()["metadata"]["shardInfo"].is_null());
    }
}
