//! client-go informers see the same objects through the proxy as directly, with any kind of initial list and any
//! encoding.

use std::collections::BTreeMap;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::bed::{self, Outcome, Plan, log_line, version_of};

/// An informer's client: its kind, its initial list, its encoding, and its selector.
type Client = (&'static str, &'static str, &'static str, &'static [&'static str]);

const ALL: &[&str] = &[];
/// Patches flip this label, so that objects enter and leave the selection.
const LABEL: &[&str] = &["--label-selector", "color=red"];
const FIELD: &[&str] = &["--field-selector", "spec.nodeName=node-3"];

/// Dynamic clients always use JSON, and metadata clients always protobuf.
const CLIENTS: [Client; 14] = [
    ("typed", "on", "json", ALL),
    ("typed", "on", "protobuf", ALL),
    ("typed", "off", "json", ALL),
    ("typed", "off", "protobuf", ALL),
    ("typed", "on", "json", LABEL),
    ("typed", "off", "protobuf", LABEL),
    ("typed", "on", "protobuf", FIELD),
    ("typed", "off", "json", FIELD),
    ("dynamic", "on", "json", ALL),
    ("dynamic", "off", "json", LABEL),
    ("dynamic", "on", "json", FIELD),
    ("metadata", "on", "protobuf", LABEL),
    ("metadata", "off", "protobuf", FIELD),
    ("metadata", "off", "protobuf", ALL),
];

/// The events that each informer's handler received after its first list, in order.
fn events(outcome: &Outcome) -> BTreeMap<u64, Vec<String>> {
    let mut events: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for line in outcome.lines() {
        let informer = line["informer"].as_u64();
        if let (true, Some(informer)) = (line["kind"] == "event" && line["initial"] != true, informer) {
            let text = format!("{} {} {}", line["type"], line["key"], line["rv"]);
            events.entry(informer).or_default().push(text);
        }
    }
    events
}

fn stores(outcome: &Outcome) -> Vec<Value> {
    outcome.lines().filter(|line| line["kind"] == "store").map(|line| line["objects"].clone()).collect()
}

#[tokio::test]
async fn informers_get_the_same_store_and_events_as_direct() {
    let Some(bed) = bed::alone().await else { return };
    let proxy = Plan::tls().start(&bed).await;
    let namespace = bed.namespace("informers").await;
    let churn =
        |ops: &'static str| bed.drive("churn").args(["--namespace", &namespace, "--ops", ops, "--objects", "60"]);
    churn("100").start().finish().await;
    let until = bed.file("until");
    let start = async |(kind, watchlist, encoding, selects): Client, direct: bool, count: &str| {
        let ready = bed.file("ready");
        let run = bed.drive("informers").args(["--watchlist", watchlist, "--encoding", encoding, "--count", count]);
        let run = run.args(["--client", kind]);
        let run = run.args(["--namespace", &namespace, "--reference-server", bed.url()]).args(selects);
        let run = if direct { run } else { run.at(&proxy.target()) };
        let mut run = run.until(&until).file("--ready-file", &ready).start();
        run.awaits(&ready).await;
        run
    };
    let typed = |selects| ("typed", "on", "json", selects);
    let direct = join_all([ALL, LABEL, FIELD].map(async |selects| (selects, start(typed(selects), true, "1").await)));
    let direct = direct.await;
    let mut through = Vec::new();
    // A few at a time, because each is a process that takes a while to start.
    for some in CLIENTS.chunks(4) {
        through.extend(join_all(some.iter().map(async |client| (*client, start(*client, false, "3").await))).await);
    }
    churn("300").args(["--seed", "2"]).start().finish().await;
    // An object that all clients select shows each of them that it is up to date. Otherwise a bookmark would, up to a
    // minute later.
    let last = json!({
        "metadata": {"name": "last", "labels": {"color": "red"}},
        "spec": {"nodeName": "node-3", "containers": [{"name": "c", "image": "i"}]}
    });
    let last = bed.direct().create(&format!("/api/v1/namespaces/{namespace}/pods"), last).await;
    std::fs::write(&until, version_of(&last).to_string()).expect("a file");
    let mut expected = Vec::new();
    for (selects, run) in direct {
        expected.push((selects, run.finish().await));
    }
    for ((kind, watchlist, encoding, selects), run) in through {
        let outcome = run.finish().await;
        let summary = outcome.summary();
        let (_, reference) = expected.iter().find(|(other, _)| *other == selects).expect("one for each");
        let [store] = stores(reference).try_into().expect("one informer");
        let [reference_events] = events(reference).into_values().collect::<Vec<_>>().try_into().expect("one informer");
        assert_eq!(summary["reference"], "equal", "{summary}");
        let others = stores(&outcome);
        assert!(others.len() == 3 && others.iter().all(|other| *other == store), "{summary}");
        let others = events(&outcome);
        assert_eq!(others.len(), 3);
        assert!(
            others.values().all(|other| *other == reference_events),
            "{kind} {watchlist} {encoding} {selects:?}: the same"
        );
        let (lists, starts) = (&summary["lists"], &summary["watchlists"]);
        assert_eq!(lists, if watchlist == "on" { 0 } else { 3 }, "no informer fell back or relisted: {summary}");
        log_line(&format!(
            "{kind}, watchlist {watchlist}, {encoding}, {selects:?}: {} objects and {} events as direct; {lists} \
             lists, {starts} watch-lists",
            summary["objects"],
            reference_events.len()
        ));
    }
    assert_eq!(proxy.streams("pods.v1").await, 1, "one feed, whatever the form");
}
