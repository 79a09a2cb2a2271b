//! Upstream's own history of a resource, and the events that a watch must make of it.
//!
//! The history is read from upstream without the proxy, with a watch that sees everything. The events of a watch with a
//! selector are not asked for: they are worked out here, from the objects before and after each change (R-EVENT-3).

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::join_all;
use kube_fanout::demo::RunningUpstream;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::client::{Answer, Client};
use super::event::Event;
use super::straight;
use super::watch::Watch;

/// The objects of a resource at one version, and every change since.
pub struct History {
    client: Client,
    path: String,
    /// The version of the state that the history starts with.
    pub from: u64,
    start: BTreeMap<String, Event>,
    changes: Vec<Event>,
}

impl History {
    /// Begins a history with the present state.
    pub async fn begin(up: &RunningUpstream, path: &str) -> Self {
        let client = straight(up);
        let watch = client.watch(path).initial_events().await;
        watch.listed().await;
        // The events are read once, because changes may follow the initial events at any moment.
        let told = watch.events();
        let from = told.last().expect("a bookmark").rv;
        let mut start = BTreeMap::new();
        told.iter().filter(|event| !event.is_bookmark()).for_each(|event| apply(&mut start, event));
        Self { client, path: path.to_owned(), from, start, changes: Vec::new() }
    }

    /// Reads on, up to a version that must belong to this resource, because the watch waits for it.
    pub async fn upto(&mut self, rv: u64) -> &mut Self {
        let known = self.changes.last().map_or(self.from, |event| event.rv);
        if known < rv {
            let watch = self.client.watch(&self.path).from(known).await;
            watch.reached(rv).await;
            self.changes.extend(watch.changes());
        }
        self
    }

    /// Asserts that these watches, which began where it does, are told all of it up to a version, and stay open.
    pub async fn is_told_to(&mut self, watches: &[Watch], last: u64) {
        join_all(watches.iter().map(|watch| watch.reached(last))).await;
        self.upto(last).await;
        for watch in watches {
            assert_same("a watch of the same history", &watch.events(), &self.all());
            assert!(watch.is_open());
        }
    }

    /// Reads on by exact lists, one per version, where upstream allows no watch from the end of this history.
    pub async fn dig_upto(&mut self, rv: u64) -> &mut Self {
        let mut known = self.changes.last().map_or(self.from, |event| event.rv);
        while known < rv {
            let before = self.map_at(known);
            known += 1;
            let path = format!("{}?resourceVersion={known}&resourceVersionMatch=Exact", self.path);
            let after = listed(&self.client.get(&path).await);
            let gone = before.values().filter(|event| !after.contains_key(&event.key)).map(|event| {
                let body = restamped(event, known);
                Event { kind: "DELETED".to_owned(), rv: known, body, ..event.clone() }
            });
            let come = after.values().filter(|event| event.rv == known).map(|event| {
                let kind = if before.contains_key(&event.key) { "MODIFIED" } else { "ADDED" };
                Event { kind: kind.to_owned(), ..event.clone() }
            });
            self.changes.extend(gone.chain(come));
        }
        self
    }

    /// Every change.
    pub fn all(&self) -> Vec<Event> {
        self.changes.clone()
    }

    /// Every change after a version.
    pub fn after(&self, rv: u64) -> Vec<Event> {
        self.changes.iter().filter(|event| event.rv > rv).cloned().collect()
    }

    /// The objects at a version, as initial events in the order of their keys.
    pub fn state_at(&self, rv: u64) -> Vec<Event> {
        self.map_at(rv).into_values().collect()
    }

    fn map_at(&self, rv: u64) -> BTreeMap<String, Event> {
        let mut state = self.start.clone();
        self.changes.iter().filter(|event| event.rv <= rv).for_each(|event| apply(&mut state, event));
        state
    }

    /// The events of a watch from the beginning of this history whose selector is `matches`.
    pub fn seen_by(&self, matches: impl Fn(&Value) -> bool) -> Vec<Event> {
        let mut state = self.start.clone();
        let mut seen = Vec::new();
        for event in &self.changes {
            let before = state.get(&event.key).cloned();
            apply(&mut state, event);
            let matched = before.as_ref().is_some_and(|before| matches(&before.object()));
            let current = state.get(&event.key).is_some_and(|current| matches(&current.object()));
            let (kind, body) = match (matched, current, before) {
                (false, true, _) => ("ADDED", event.body.clone()),
                (true, true, _) => ("MODIFIED", event.body.clone()),
                (true, false, Some(before)) => ("DELETED", restamped(&before, event.rv)),
                _ => continue,
            };
            seen.push(Event { kind: kind.to_owned(), body, ..event.clone() });
        }
        seen
    }
}

fn apply(state: &mut BTreeMap<String, Event>, event: &Event) {
    if event.kind == "DELETED" {
        state.remove(&event.key);
    } else {
        state.insert(event.key.clone(), Event { kind: "ADDED".to_owned(), ..event.clone() });
    }
}

/// The items of a list of pods as a watch writes them, by key.
fn listed(list: &Answer) -> BTreeMap<String, Event> {
    #[derive(Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        items: Vec<&'a RawValue>,
    }
    assert_eq!(list.status, 200, "{}", list.text());
    let List { items } = serde_json::from_slice(&list.body).expect("a list");
    let event = |item: &RawValue| {
        let rest = item.get().strip_prefix('{').expect("an object");
        let frame = format!("{{\"type\":\"ADDED\",\"object\":{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",{rest}}}\n");
        Event::parse(&Bytes::from(frame)).expect("a frame")
    };
    items.into_iter().map(event).map(|event| (event.key.clone(), event)).collect()
}

/// The last content of an object with the version of its deletion, as a DELETED event has it.
fn restamped(event: &Event, rv: u64) -> Bytes {
    let text = std::str::from_utf8(&event.body).expect("JSON is text");
    let old = format!(r#""resourceVersion":"{}""#, event.rv);
    Bytes::from(text.replacen(&old, &format!(r#""resourceVersion":"{rv}""#), 1))
}

/// Fails unless the events are the same, byte for byte and in order. The message shows where they first differ.
pub fn assert_same(who: &str, got: &[Event], expected: &[Event]) {
    let parted = got.iter().zip(expected).position(|(got, expected)| got != expected);
    let at = parted.unwrap_or(got.len().min(expected.len()));
    let (there, here) = (got.get(at), expected.get(at));
    if there == here {
        return;
    }
    let around = |events: &[Event]| format!("{:?}", &events[at.saturating_sub(2)..events.len().min(at + 3)]);
    let body = |event: Option<&Event>| event.map(|event| String::from_utf8_lossy(&event.body).into_owned());
    panic!(
        "{who}: differs at event {at} of {}\n     got {} events: {}\nexpected {} events: {}\n     \
         got {:?}\nexpected {:?}",
        expected.len(),
        got.len(),
        around(got),
        expected.len(),
        around(expected),
        body(there),
        body(here),
    );
}
