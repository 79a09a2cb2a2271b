//! A reference model of the cache that is simple enough to verify by reading.
//!
//! The state is a map, and the history a list that is never truncated. `told` is `exp(w, a, b)` of R-EVENT-3.

use std::collections::BTreeMap;

use super::fixture::{Pod, Seen};
use super::want::{Lane, Want};
use kubeapi::EventType::{self, Added, Deleted, Modified};

/// Current objects with their versions, by key in the apiserver's order: bytewise by `namespace/name`.
pub(super) type State = BTreeMap<String, (Pod, u64)>;

/// One change: the object before and after it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fact {
    pub(super) rv: u64,
    pub(super) before: Option<Pod>,
    pub(super) after: Option<Pod>,
}

impl Fact {
    /// Returns the object on either side; the sides only differ in mutable attributes.
    pub(super) fn pod(&self) -> Pod {
        self.after.or(self.before).expect("a change is about something")
    }

    /// Returns the event for a storage change and a selector (R-EVENT-2): type, content, and the change's own version.
    pub(super) fn reported_to(&self, want: Want) -> Option<Seen> {
        let before = self.before.filter(|pod| want.matches(pod));
        let after = self.after.filter(|pod| want.matches(pod));
        let (event_type, pod) = match (before, after) {
            (None, Some(now)) => (Added, now),
            (Some(_), Some(now)) => (Modified, now),
            (Some(was), None) => (Deleted, was),
            (None, None) => return None,
        };
        Some(Seen { event_type, rv: self.rv, pod })
    }

    pub(super) fn concerns(&self, lane: Lane) -> bool {
        [self.before, self.after].iter().flatten().any(|pod| lane.has(pod))
    }
}

/// The whole history since the last list.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    /// Number of histories started.
    pub(super) epoch: u32,
    /// The list that this history started with.
    pub(super) base: State,
    pub(super) base_rv: u64,
    pub(super) facts: Vec<Fact>,
    pub(super) now: State,
    /// Version up to which upstream has delivered everything.
    pub(super) progress: u64,
    /// Events that the ring may hold.
    pub(super) ring: usize,
}

/// Expected result of a change that upstream reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Fresh,
    Duplicate,
    OutOfOrder,
}

impl Model {
    pub(super) fn new(ring: usize) -> Self {
        Self { ring, ..Self::default() }
    }

    pub(super) fn replace(&mut self, rv: u64, list: State) {
        self.epoch += 1;
        self.facts.clear();
        (self.base_rv, self.progress) = (rv, rv);
        (self.base, self.now) = (list.clone(), list);
    }

    /// Returns the expected result of a change of `pod` at `rv`.
    pub(super) fn judge(&self, pod: &Pod, rv: u64) -> Verdict {
        let known = self.facts.iter().any(|fact| fact.rv == rv && fact.pod().key() == pod.key());
        let sibling = self.facts.last().is_some_and(|last| last.rv == rv) && rv == self.progress;
        match () {
            () if known => Verdict::Duplicate,
            () if rv > self.progress || sibling => Verdict::Fresh,
            // Older than the window, so it is unknown whether it was a duplicate.
            () if rv <= self.floor() => Verdict::Duplicate,
            () => Verdict::OutOfOrder,
        }
    }

    /// Applies a new change. `last` is the content that a deletion reports.
    pub(super) fn apply(&mut self, event_type: EventType, pod: Pod, rv: u64) -> Fact {
        let before = self.now.get(&pod.key()).map(|(pod, _)| *pod);
        let fact = if event_type == Deleted {
            self.now.remove(&pod.key());
            Fact { rv, before: before.or(Some(pod)), after: None }
        } else {
            self.now.insert(pod.key(), (pod, rv));
            Fact { rv, before, after: Some(pod) }
        };
        self.facts.push(fact);
        self.progress = self.progress.max(rv);
        fact
    }

    /// Returns the number of changes that are no longer in the ring.
    pub(super) fn evicted(&self) -> usize {
        self.facts.len().saturating_sub(self.ring)
    }

    /// Returns the oldest version that a watch may start from: no later event has been evicted.
    pub(super) fn floor(&self) -> u64 {
        self.evicted().checked_sub(1).map_or(self.base_rv, |last_gone| self.facts[last_gone].rv)
    }

    /// S(r): returns the state at a version.
    pub(super) fn state_at(&self, rv: u64) -> State {
        let mut state = self.base.clone();
        for fact in self.facts.iter().take_while(|fact| fact.rv <= rv) {
            match fact.after {
                Some(pod) => state.insert(pod.key(), (pod, fact.rv)),
                None => state.remove(&fact.pod().key()),
            };
        }
        state
    }

    /// exp(w, a, b): returns the events for `want` from index `from` on that are later than `after`.
    pub(super) fn reported(&self, want: Want, after: u64, from: usize) -> Vec<(usize, Seen)> {
        let facts = self.facts.iter().enumerate().skip(from).filter(|(_, fact)| fact.rv > after);
        facts.filter_map(|(index, fact)| Some((index, fact.reported_to(want)?))).collect()
    }
}

/// Returns the objects of a state that `want` sees, in order.
pub(super) fn visible(state: &State, want: Want) -> Vec<(String, u64)> {
    let matching = state.iter().filter(|(_, (pod, _))| want.matches(pod));
    matching.map(|(key, (_, rv))| (key.clone(), *rv)).collect()
}
