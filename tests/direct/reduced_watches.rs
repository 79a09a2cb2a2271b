//! Watches without `metadata.managedFields` beside full ones of the same selection. What they receive follows from what
//! the full ones receive.

use std::collections::BTreeMap;

use demo::RunningDemoApiserver;
use futures_util::future::join_all;
use kube_fanout::serve::WatchCompression;
use serde_json::{Value, json};

use crate::direct::{self, Client, Event, PODS, Protocol, Watch, WatchPlan, eventually};
use crate::named_objects::{MAPS, ada, allow, put_binding};
use crate::reduced::{DROPS, DROPS_OF_METADATA, gzip_watch, managed};

const JSON: &str = "application/json";
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const MANAGERS: [&str; 3] = ["a", "b", "c"];
const PODS_OF_TEST: [&str; 3] = ["p0", "p1", "p2"];
/// Label and field selectors, and the last object that they select. Metadata does not show a phase.
const SELECTIONS: [(&str, &str, &str); 7] = [
    ("", "", "end-x"),
    ("app=x", "", "end-x"),
    ("app!=x", "", "end-y"),
    ("app in (x,y)", "", "end-x"),
    ("", "spec.nodeName=n1", "end-y"),
    ("", "status.phase=Running", "end-y"),
    ("", "metadata.name!=p0", "end-x"),
];

/// Metadata that a manager wrote, with these other members.
fn metadata(namespace: &str, name: &str, manager: &str, others: &Value) -> Value {
    let mut metadata: Value = serde_json::from_str(&format!("{{\"n\":0{}}}", managed(manager))).expect("an object");
    let members = metadata.as_object_mut().expect("an object");
    members.remove("n");
    members.extend(others.as_object().expect("an object").clone());
    members.extend([("name".to_owned(), json!(name)), ("namespace".to_owned(), json!(namespace))]);
    metadata
}

fn put_pod(up: &RunningDemoApiserver, name: &str, [app, node, phase, manager]: [&str; 4]) -> u64 {
    let metadata = metadata("default", name, manager, &json!({"labels": {"app": app}}));
    up.put("pods", json!({"metadata": metadata, "spec": {"nodeName": node}, "status": {"phase": phase}}))
}

/// Changes one pod at random. Each third write changes nothing but the managed fields.
fn change(up: &RunningDemoApiserver, random: &mut fastrand::Rng, pods: &mut [[&'static str; 4]; 3]) -> u64 {
    let at = random.usize(..3);
    let name = PODS_OF_TEST[at];
    match random.u32(..10) {
        0..=3 => pods[at][3] = MANAGERS[random.usize(..3)],
        4 | 5 => pods[at][0] = ["x", "y", "z"][random.usize(..3)],
        6 => pods[at][1] = ["n1", "n2"][random.usize(..2)],
        7 | 8 => pods[at][2] = ["Running", "Failed"][random.usize(..2)],
        _ => _ = up.delete("pods", "default", name),
    }
    put_pod(up, name, pods[at])
}

/// Returns an event's object without the managed fields.
fn without_field(event: &Event) -> String {
    let text = String::from_utf8(event.body.to_vec()).expect("text");
    MANAGERS.iter().fold(text, |text, manager| text.replace(&managed(manager), ""))
}

/// Returns an event as it is written.
fn frame(kind: &str, object: &str) -> String {
    format!("{{\"type\":\"{kind}\",\"object\":{object}}}\n")
}

/// What a watch receives if its client leaves the field out. `full` are the changes that the full watch receives.
fn reduced(full: &[Event]) -> Vec<(u64, String)> {
    let (mut shown, mut sent) = (BTreeMap::new(), Vec::new());
    for event in full {
        let object = without_field(event);
        let state = object.replace(&format!("\"resourceVersion\":\"{}\"", event.rv), "");
        let before = shown.insert(event.key.clone(), state.clone());
        if event.kind != "MODIFIED" || before != Some(state) {
            sent.push((event.rv, frame(&event.kind, &object)));
        }
    }
    sent
}

/// The state at a version, as initial events. `full` are all changes.
fn state(full: &[Event], at: u64) -> Vec<String> {
    let mut objects = BTreeMap::new();
    for event in full.iter().take_while(|event| event.rv <= at) {
        objects.remove(&event.key);
        if event.kind != "DELETED" {
            objects.insert(event.key.clone(), frame("ADDED", &without_field(event)));
        }
    }
    objects.into_values().collect()
}

fn frames(watch: &Watch) -> Vec<String> {
    let text = |event: &Event| frame(&event.kind, std::str::from_utf8(&event.body).expect("text"));
    watch.changes().iter().map(text).collect()
}

/// The watches of one selection in one representation.
struct Selected {
    selection: (&'static str, &'static str, &'static str),
    drops: &'static str,
    full: Watch,
    open: Vec<Watch>,
    with_state: Vec<Watch>,
}

impl Selected {
    fn plan(&self, client: &Client) -> WatchPlan {
        let (labels, fields, _) = self.selection;
        client.watch(PODS).labels(labels).fields(fields).accept(self.drops)
    }

    async fn until_end(&self, watch: &Watch) {
        let last = format!("default/{}", self.selection.2);
        watch.until("the last object", |events| events.iter().any(|event| event.key == last)).await;
    }

    /// Compares all watches with the full one. Returns how many events were not sent to an open one.
    async fn compare(&self, clients: &[Client], start: u64, versions: &[u64]) -> usize {
        let what = format!("{:?} as {}", self.selection, self.drops);
        self.until_end(&self.full).await;
        let full = self.full.changes();
        let expected = reduced(&full);
        let after = |rv: u64| -> Vec<String> {
            expected.iter().filter(|(at, _)| *at > rv).map(|(_, frame)| frame.clone()).collect()
        };
        for watch in &self.open {
            self.until_end(watch).await;
            assert_eq!(frames(watch), after(start), "{what}");
        }
        for watch in &self.with_state {
            self.until_end(watch).await;
            let listed = watch.bookmarks().into_iter().find(Event::ends_initial_events).expect("a bookmark").rv;
            assert_eq!(
                frames(watch),
                [state(&full, listed), after(listed)].concat(),
                "{what} with the state at {listed}"
            );
        }
        for (number, from) in versions.iter().enumerate().step_by(5) {
            let watch = self.plan(&clients[number % clients.len()]).from(*from).await;
            self.until_end(&watch).await;
            assert_eq!(frames(&watch), after(*from), "{what} from {from}");
        }
        full.len() - expected.len()
    }
}

/// An event that enters or leaves the selection is always sent. A watch that resumes at any version, also among events
/// that were not sent, receives what an open one does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reduced_watches_receive_the_visible_part_of_full_ones() {
    let up = demo::upstream().pods(0).run().await;
    let plan = direct::app(&up).preload("pods");
    let app = plan.with(|config| config.serve.compress_watches = WatchCompression::All).run().await;
    let start = put_pod(&up, "start", ["z", "n3", "Failed", "a"]);
    app.reached("pods", start).await;
    let clients = Protocol::ALL.map(|protocol| app.over(protocol));
    let mut all = Vec::new();
    for selection in SELECTIONS {
        for (accept, drops) in [(JSON, DROPS), (METADATA, DROPS_OF_METADATA)] {
            let full = app.watch(PODS).labels(selection.0).fields(selection.1).accept(accept).from(start).await;
            let mut selected = Selected { selection, drops, full, open: Vec::new(), with_state: Vec::new() };
            for client in &clients {
                let watch = selected.plan(client).from(start).await;
                selected.open.push(watch);
            }
            all.push(selected);
        }
    }
    let (mut random, mut pods) = (fastrand::Rng::with_seed(7), [["x", "n1", "Running", "a"]; 3]);
    let mut versions = vec![up.delete("pods", "default", "start")];
    versions.extend((0..40).map(|_| change(&up, &mut random, &mut pods)));
    for selected in &mut all {
        for client in &clients {
            let watch = selected.plan(client).initial_events().await;
            selected.with_state.push(watch);
            versions.push(change(&up, &mut random, &mut pods));
        }
    }
    versions.extend((0..20).map(|_| change(&up, &mut random, &mut pods)));
    put_pod(&up, "end-y", ["y", "n1", "Running", "a"]);
    put_pod(&up, "end-x", ["x", "n2", "Failed", "a"]);
    for selected in &all {
        let unsent = selected.compare(&clients, start, &versions).await;
        assert!(unsent > 5, "{unsent} events show nothing");
    }
    // Compressed watches receive the same events.
    let compressed = all.iter().map(async |Selected { selection: (labels, fields, _), full, .. }| {
        let [labels, fields] = [labels, fields].map(|selector| selector.replace('=', "%3D").replace(' ', "%20"));
        let query = format!("labelSelector={labels}&fieldSelector={fields}&resourceVersion={start}");
        let expected: String = reduced(&full.changes()).into_iter().map(|(_, frame)| frame).collect();
        for client in &clients[..2] {
            let mut watch = gzip_watch(client, &format!("{PODS}?watch=true&{query}")).await;
            watch.until("the last event", |text| text.len() >= expected.len()).await;
            assert!(watch.text == expected.as_bytes(), "{query}");
        }
    });
    join_all(compressed.step_by(2)).await;
}

fn put_map(up: &RunningDemoApiserver, namespace: &str, name: &str, note: &str, manager: &str) -> u64 {
    let metadata = metadata(namespace, name, manager, &json!({"annotations": {"note": note}}));
    up.put("configmaps", json!({"metadata": metadata}))
}

/// The objects that a client has after these events, with their notes.
fn held(events: &[Event]) -> BTreeMap<String, String> {
    let mut objects = BTreeMap::new();
    for event in events.iter().filter(|event| !event.is_bookmark()) {
        objects.remove(&event.key);
        if event.kind != "DELETED" {
            objects.insert(event.key.clone(), note(&event.object()));
        }
    }
    objects
}

fn note(object: &Value) -> String {
    object["metadata"]["annotations"]["note"].to_string()
}

/// Rules hide and show objects while others change. A client without the field always gets to hold the same objects.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reduced_filtered_watch_shows_what_the_full_one_shows() {
    let (up, app, ada) = ada().await;
    let mut watches = Vec::new();
    for accept in [JSON, DROPS] {
        for protocol in Protocol::ALL {
            watches.push(ada.watch(MAPS).initial_events().accept(accept).over(protocol).await);
        }
    }
    let mut random = fastrand::Rng::with_seed(11);
    for round in 0..30 {
        for _ in 0..4 {
            let (namespace, name) = (["a", "b"][random.usize(..2)], ["x", "y"][random.usize(..2)]);
            match random.u32(..12) {
                0..=5 => _ = put_map(&up, namespace, name, "same", MANAGERS[random.usize(..3)]),
                6 => _ = put_map(&up, namespace, name, &round.to_string(), "a"),
                7 => _ = up.delete("configmaps", namespace, name),
                8 => allow(&up, namespace, &["x"]),
                9 => allow(&up, namespace, &["x", "y"]),
                10 => _ = up.delete("rolebindings", namespace, "named"),
                _ => put_binding(&up, namespace),
            }
        }
        // Every watch has the objects of a list. What was hidden or shown in between may have been seen or not.
        let rv = put_map(&up, "b", "last", "", "a");
        app.reached("configmaps", rv).await;
        let same = || async {
            let list = ada.get(MAPS).await;
            let items = list.json()["items"].as_array().cloned().unwrap_or_default();
            let keys = list.items().into_iter().map(|(key, _)| key);
            let expected: BTreeMap<_, _> = keys.zip(items.iter().map(note)).collect();
            watches.iter().all(|watch| held(&watch.events()) == expected)
        };
        eventually("every watch shows the list", same).await;
    }
    let counts =
        [&watches[..3], &watches[3..]].map(|group| group.iter().map(|watch| watch.changes().len()).sum::<usize>());
    assert!(counts[1] < counts[0], "{counts:?}");
}
