//! What really happened: upstream's own history, and what a watch must make of it.
//!
//! Read from upstream without the proxy, with a watch that sees everything. What a selector makes of it is worked out
//! here from states before and after (R-EVENT-3), not asked of anybody.

use std::collections::BTreeMap;

use bytes::Bytes;
use kube_fanout::demo::RunningUpstream;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::client::{Answer, Client};
use super::event::Event;
use super::straight;

/// The objects of a resource at one version, and every change since.
pub struct History {
    client: Client,
    path: String,
    /// Version of the state that it starts with.
    pub from: u64,
    start: BTreeMap<String, Event>,
    changes: Vec<Event>,
}

impl History {
    /// Begins with the state of now.
    pub async fn begin(up: &RunningUpstream, path: &str) -> Self {
        let client = straight(up);
        let watch = client.watch(path).initial_events().await;
        watch.listed().await;
        // Once: changes may follow the initial events at any moment.
        let told = watch.events();
        let from = told.last().expect("a bookmark").rv;
        let mut start = BTreeMap::new();
        told.iter().filter(|event| !event.is_bookmark()).for_each(|event| apply(&mut start, event));
        Self { client, path: path.to_owned(), from, start, changes: Vec::new() }
    }

    /// Reads on, up to a version that is known to belong to this resource.
    pub async fn upto(&mut self, rv: u64) -> &mut Self {
        let known = self.changes.last().map_or(self.from, |event| event.rv);
        if known < rv {
            let watch = self.client.watch(&self.path).from(known).await;
            watch.reached(rv).await;
            self.changes.extend(watch.changes());
        }
        self
    }

    /// Reads on by exact lists, one per version: for when no watch may start where this history ends.
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

    /// The objects at a version as initial events, in key order.
    pub fn state_at(&self, rv: u64) -> Vec<Event> {
        self.map_at(rv).into_values().collect()
    }

    fn map_at(&self, rv: u64) -> BTreeMap<String, Event> {
        let mut state = self.start.clone();
        self.changes.iter().filter(|event| event.rv <= rv).for_each(|event| apply(&mut state, event));
        state
    }

    /// What a watch from the beginning that sees only what `matches` lets through is told.
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

/// The items of a list of pods, spelled as a watch shows them.
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

/// The last content, at the version of its end.
fn restamped(event: &Event, rv: u64) -> Bytes {
    let text = std::str::from_utf8(&event.body).expect("JSON is text");
    let old = format!(r#""resourceVersion":"{}""#, event.rv);
    Bytes::from(text.replacen(&old, &format!(r#""resourceVersion":"{rv}""#), 1))
}

/// The same events, byte for byte and in order. Says where they part.
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
