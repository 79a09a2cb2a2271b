//! Upstream's own history of a resource, and the events that a watch must receive.
//!
//! The history is read from upstream without the proxy, by a watch without selectors. The checkers of `fanoutctl
//! verify` decide which events other watches must receive, with and without selectors.

use std::collections::BTreeMap;

use base::now_ns;
use bytes::Bytes;
use demo::RunningDemoApiserver;
use futures_util::future::join_all;
use tokio::time::timeout;
use verify::ApiserverGuarantee;

use super::client::Client;
use super::event::Event;
use super::evidence::Evidence;
use super::watch::Watch;
use super::{PATIENCE, until, upstream_client};

/// The objects of a resource at one version, and every change since.
pub struct History {
    client: Client,
    path: String,
    /// The version of the initial state.
    pub from: u64,
    start: BTreeMap<String, Event>,
    changes: Vec<Event>,
    /// When the initial state was known, and then each change.
    begun_ns: u64,
    learnt_ns: Vec<u64>,
    /// A watch that stays open, on a server that has no faults.
    open: Option<Watch>,
    /// Description of the scenario, for failure messages.
    what: String,
}

/// The promises that apply to a watch that received a change.
const DELIVERY_GUARANTEES: [ApiserverGuarantee; 6] = [
    ApiserverGuarantee::Ordered,
    ApiserverGuarantee::Unique,
    ApiserverGuarantee::Reliable,
    ApiserverGuarantee::Filtered,
    ApiserverGuarantee::Typed,
    ApiserverGuarantee::TypedBytes,
];

impl History {
    /// Starts a history with the current state.
    pub async fn begin(up: &RunningDemoApiserver, path: &str) -> Self {
        let client = upstream_client(up);
        let watch = client.watch(path).initial_events().await;
        watch.listed().await;
        // The events are read once, because changes may follow the initial events at any moment.
        let initial = watch.events();
        let from = initial.last().expect("a bookmark").rv;
        let mut start = BTreeMap::new();
        initial.iter().filter(|event| !event.is_bookmark()).for_each(|event| apply(&mut start, event));
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

    /// Starts a history that keeps its watch open, so that it also has changes that upstream forgets later. The server
    /// must have no faults.
    pub async fn following(witness: &RunningDemoApiserver, path: &str) -> Self {
        let history = Self::begin(witness, path).await;
        let open = history.client.watch(path).from(history.from).await;
        Self { open: Some(open), ..history }
    }

    /// Sets the description of the scenario, for failure messages.
    pub fn describe(&mut self, what: impl Into<String>) {
        self.what = what.into();
    }

    /// Reads up to a version. The version must belong to this resource, because the watch waits for it.
    pub async fn read_to(&mut self, rv: u64) -> &mut Self {
        let known = self.changes.last().map_or(self.from, |event| event.rv);
        if known < rv
            && let Some(watch) = &self.open
        {
            watch.reached(rv).await;
            (self.changes, self.learnt_ns) = watch.timed_events().0.into_iter().unzip();
        } else if known < rv {
            let watch = self.client.watch(&self.path).from(known).await;
            watch.reached(rv).await;
            self.changes.extend(watch.changes());
        }
        self.learnt_ns.resize(self.changes.len(), now_ns());
        self
    }

    /// Asserts that these watches receive all their events up to a version, and stay open.
    pub async fn assert_delivered(&mut self, watches: &[Watch], last: u64) {
        // The last change reaches watches without selectors. A watch that does not receive it is judged as well.
        join_all(watches.iter().map(|watch| watch.reached_or_ended(last))).await;
        // Upstream is read only afterwards, because its scripted responses are meant for the proxy.
        self.read_to(last).await.assert_judged_and_open(watches);
    }

    /// The same for watches with selectors, which may not match the last change.
    pub async fn assert_delivered_filtered(&mut self, watches: &[Watch], last: u64) {
        let history = &*self.read_to(last).await;
        let all_came = || async { !history.evidence().watches(watches).is_awaited() };
        let _ = timeout(PATIENCE, until(all_came)).await;
        history.assert_judged_and_open(watches);
    }

    #[track_caller]
    fn assert_judged_and_open(&self, watches: &[Watch]) {
        self.evidence().watches(watches).overdue().shows(&DELIVERY_GUARANTEES);
        assert!(watches.iter().all(Watch::is_open), "a watch of the same history has ended");
    }

    /// Asserts that the known history shows no broken promise to these watches, and that these promises were judged.
    /// The test itself must check that the last change arrived, because the history has no time limit for it.
    #[track_caller]
    pub fn judge<'a>(&self, watches: impl IntoIterator<Item = &'a Watch>, promises: &[ApiserverGuarantee]) {
        self.evidence().watches(watches).shows(promises);
    }

    /// The known history, to which a test adds other responses.
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

    /// The objects at a version, as initial events ordered by key.
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

/// The event for an object that was deleted or left a selection.
fn left(event: &Event, rv: u64) -> Event {
    Event { kind: "DELETED".to_owned(), rv, body: restamped(event, rv), ..event.clone() }
}

/// The last content of an object with the version of its deletion, as in a DELETED event.
fn restamped(event: &Event, rv: u64) -> Bytes {
    let text = std::str::from_utf8(&event.body).expect("JSON is text");
    let old = format!(r#""resourceVersion":"{}""#, event.rv);
    Bytes::from(text.replacen(&old, &format!(r#""resourceVersion":"{rv}""#), 1))
}

/// Fails unless the events are the same, byte for byte and in order. The message shows the first difference.
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

/// A Table without the ages of its rows (`7s`, `2m3s`), which differ from one second to the next.
pub fn without_ages(table: &str) -> String {
    let is_age = |cell: &&str| {
        cell.ends_with(['s', 'm', 'h', 'd'])
            && cell.split(['s', 'm', 'h', 'd']).all(|n| n.bytes().all(|b| b.is_ascii_digit()))
    };
    table.split('"').filter(|cell| !is_age(cell)).collect::<Vec<_>>().join("\"")
}
