//! Upstream's own history of a resource, and the events that a watch must make of it.
//!
//! The history is read from upstream without the proxy, with a watch that sees everything. What others must be told of
//! it, with selectors and without, is for the judges of `fanoutctl verify` to say.

use std::collections::BTreeMap;

use base::now_ns;
use bytes::Bytes;
use demo::RunningUpstream;
use futures_util::future::join_all;
use tokio::time::timeout;
use verify::Promise;

use super::client::Client;
use super::event::Event;
use super::evidence::Evidence;
use super::watch::Watch;
use super::{PATIENCE, straight, until};

/// The objects of a resource at one version, and every change since.
pub struct History {
    client: Client,
    path: String,
    /// The version of the state that the history starts with.
    pub from: u64,
    start: BTreeMap<String, Event>,
    changes: Vec<Event>,
    /// When the state at first was known, and then each change.
    begun_ns: u64,
    learnt_ns: Vec<u64>,
    /// A watch that goes on, where there is a server that nothing is done to.
    open: Option<Watch>,
    /// What is tried, for when that fails.
    what: String,
}

/// What a watch that was told a change is judged by.
const TOLD: [Promise; 6] =
    [Promise::Ordered, Promise::Unique, Promise::Reliable, Promise::Filtered, Promise::Typed, Promise::TypedBytes];

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
        let (path, begun_ns) = (path.to_owned(), now_ns());
        Self {
            client,
            path,
            from,
            start,
            changes: Vec::new(),
            begun_ns,
            learnt_ns: Vec::new(),
            open: None,
            what: String::new(),
        }
    }

    /// Begins one that keeps its watch, so that it has what is forgotten later. The server is one that no fault is
    /// ordered of.
    pub async fn following(witness: &RunningUpstream, path: &str) -> Self {
        let history = Self::begin(witness, path).await;
        let open = history.client.watch(path).from(history.from).await;
        Self { open: Some(open), ..history }
    }

    /// Says what is tried, for when that fails.
    pub fn amid(&mut self, what: impl Into<String>) {
        self.what = what.into();
    }

    /// Reads on, up to a version that must belong to this resource, because the watch waits for it.
    pub async fn upto(&mut self, rv: u64) -> &mut Self {
        let known = self.changes.last().map_or(self.from, |event| event.rv);
        if known < rv
            && let Some(watch) = &self.open
        {
            watch.reached(rv).await;
            (self.changes, self.learnt_ns) = watch.told().0.into_iter().unzip();
        } else if known < rv {
            let watch = self.client.watch(&self.path).from(known).await;
            watch.reached(rv).await;
            self.changes.extend(watch.changes());
        }
        self.learnt_ns.resize(self.changes.len(), now_ns());
        self
    }

    /// Asserts that these watches are told all that concerns them up to a version, and stay open.
    pub async fn is_told_to(&mut self, watches: &[Watch], last: u64) {
        // The last change comes to those who select nothing. Whoever does not get it is judged as well.
        join_all(watches.iter().map(|watch| watch.reached_or_ended(last))).await;
        // Only then is upstream asked: what it is to answer the proxy with is not meant for this.
        self.upto(last).await.has_come_to(watches);
    }

    /// The same of watches that select, to which the last change may not come.
    pub async fn is_shown_to(&mut self, watches: &[Watch], last: u64) {
        let history = &*self.upto(last).await;
        let all_came = || async { !history.evidence().watches(watches).is_awaited() };
        let _ = timeout(PATIENCE, until(all_came)).await;
        history.has_come_to(watches);
    }

    #[track_caller]
    fn has_come_to(&self, watches: &[Watch]) {
        self.evidence().watches(watches).overdue().shows(&TOLD);
        assert!(watches.iter().all(Watch::is_open), "a watch of the same history has ended");
    }

    /// Asserts that no promise was broken to these watches by what is known, and that these promises were judged. That
    /// the last change came is for the test to see: nobody knows how long it may take.
    #[track_caller]
    pub fn judge<'a>(&self, watches: impl IntoIterator<Item = &'a Watch>, promises: &[Promise]) {
        self.evidence().watches(watches).shows(promises);
    }

    /// What is known, for what else was told to be set beside it.
    pub fn evidence(&self) -> Evidence {
        let mut evidence = Evidence::about(&self.path, self.from, self.begun_ns, &self.what);
        let mut state = self.start.clone();
        self.start.values().for_each(|event| evidence.truth(event, None, self.begun_ns));
        for (event, learnt_ns) in self.changes.iter().zip(&self.learnt_ns) {
            let before = state.get(&event.key).filter(|_| event.kind == "MODIFIED");
            let gone = before.map(|before| left(before, event.rv));
            evidence.truth(event, gone, *learnt_ns);
            apply(&mut state, event);
        }
        evidence
    }

    /// Every change.
    pub fn all(&self) -> Vec<Event> {
        self.changes.clone()
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
}

fn apply(state: &mut BTreeMap<String, Event>, event: &Event) {
    if event.kind == "DELETED" {
        state.remove(&event.key);
    } else {
        state.insert(event.key.clone(), Event { kind: "ADDED".to_owned(), ..event.clone() });
    }
}

/// The event that an object is gone, or out of a selection.
fn left(event: &Event, rv: u64) -> Event {
    Event { kind: "DELETED".to_owned(), rv, body: restamped(event, rv), ..event.clone() }
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
