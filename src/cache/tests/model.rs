//! What the cache must do, said so simply that reading it is the proof.
//!
//! The state is a map, the history a list that is never cut. `told` is `exp(w, a, b)` of reliability.md §1.1.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use super::fixture::{Pod, Seen, view};
use crate::cache::View;
use crate::kube::EventType::{self, Added, Deleted, Modified};

/// Current objects by key, in the apiserver's order: bytewise by `namespace/name`. With each its version.
pub(super) type State = BTreeMap<String, (Pod, u64)>;

/// One change: what was there, what is there now.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fact {
    pub(super) rv: u64,
    pub(super) before: Option<Pod>,
    pub(super) after: Option<Pod>,
}

/// What a watch wants to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    Everything,
    NamespaceA,
    NamespaceAByField,
    AppX,
    NotAppX,
    NoApp,
    AppXInB,
    TheOneInA,
    NameEverywhere,
    NodeOne,
    NodeOneAppXInA,
    NoNode,
    NotNodeOne,
    TwoNames,
}

/// Which part of the events a reader is led past: the narrowest lane that holds all it may see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lane {
    All,
    Namespace(&'static str),
    Object(&'static str, &'static str),
    Node(&'static str),
}

impl Fact {
    /// The object at any of the two sides; they differ in what may change only.
    pub(super) fn pod(&self) -> Pod {
        self.after.or(self.before).expect("a change is about something")
    }

    /// Storage change and selector to event (semantics.md §4.2): type, content, the change's own version.
    pub(super) fn told_to(&self, want: Want) -> Option<Seen> {
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
        let sides = [self.before, self.after];
        let mut sides = sides.iter().flatten();
        sides.any(|pod| match lane {
            Lane::All => true,
            Lane::Namespace(namespace) => pod.namespace == namespace,
            Lane::Object(namespace, name) => pod.namespace == namespace && pod.name == name,
            Lane::Node(node) => pod.node == node,
        })
    }
}

impl Want {
    pub(super) const ALL: [Self; 14] = [
        Self::Everything,
        Self::NamespaceA,
        Self::NamespaceAByField,
        Self::AppX,
        Self::NotAppX,
        Self::NoApp,
        Self::AppXInB,
        Self::TheOneInA,
        Self::NameEverywhere,
        Self::NodeOne,
        Self::NodeOneAppXInA,
        Self::NoNode,
        Self::NotNodeOne,
        Self::TwoNames,
    ];

    pub(super) fn matches(self, pod: &Pod) -> bool {
        match self {
            Self::Everything => true,
            Self::NamespaceA | Self::NamespaceAByField => pod.namespace == "a",
            Self::AppX => pod.app == "x",
            Self::NotAppX => pod.app != "x",
            Self::NoApp => pod.app.is_empty(),
            Self::AppXInB => pod.namespace == "b" && pod.app == "x",
            Self::TheOneInA => pod.namespace == "a" && pod.name == "p",
            Self::NameEverywhere => pod.name == "p",
            Self::NodeOne => pod.node == "n1",
            Self::NodeOneAppXInA => pod.namespace == "a" && pod.app == "x" && pod.node == "n1",
            Self::NoNode => pod.node.is_empty(),
            Self::NotNodeOne => pod.node != "n1",
            Self::TwoNames => false,
        }
    }

    /// The same, as a client writes it: namespace, labels, fields.
    pub(super) fn view(self) -> View {
        static VIEWS: LazyLock<Vec<View>> = LazyLock::new(|| Want::ALL.into_iter().map(Want::parsed).collect());
        VIEWS[Self::ALL.into_iter().position(|want| want == self).expect("one of all")].clone()
    }

    fn parsed(self) -> View {
        let (namespace, labels, fields) = match self {
            Self::Everything => ("", "", ""),
            Self::NamespaceA => ("a", "", ""),
            Self::NamespaceAByField => ("", "", "metadata.namespace=a"),
            Self::AppX => ("", "app=x", ""),
            Self::NotAppX => ("", "app!=x", ""),
            Self::NoApp => ("", "!app", ""),
            Self::AppXInB => ("b", "app in (x)", ""),
            Self::TheOneInA => ("a", "", "metadata.name=p"),
            Self::NameEverywhere => ("", "", "metadata.name=p"),
            Self::NodeOne => ("", "", "spec.nodeName=n1"),
            Self::NodeOneAppXInA => ("a", "app=x", "spec.nodeName=n1"),
            Self::NoNode => ("", "", "spec.nodeName="),
            Self::NotNodeOne => ("", "", "spec.nodeName!=n1"),
            Self::TwoNames => ("a", "", "metadata.name=p,metadata.name=q"),
        };
        view(namespace, labels, fields)
    }

    pub(super) fn lane(self) -> Lane {
        match self {
            Self::NamespaceA | Self::NamespaceAByField => Lane::Namespace("a"),
            Self::AppXInB => Lane::Namespace("b"),
            Self::TheOneInA | Self::TwoNames => Lane::Object("a", "p"),
            Self::NodeOne | Self::NodeOneAppXInA => Lane::Node("n1"),
            Self::NoNode => Lane::Node(""),
            Self::Everything | Self::AppX | Self::NotAppX | Self::NoApp | Self::NameEverywhere | Self::NotNodeOne => {
                Lane::All
            }
        }
    }
}

/// Everything that ever happened, since the last list.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    /// How often a new history began.
    pub(super) epoch: u32,
    /// The list that this history began with.
    pub(super) base: State,
    pub(super) base_rv: u64,
    pub(super) facts: Vec<Fact>,
    pub(super) now: State,
    /// Everything up to here has been told by upstream.
    pub(super) progress: u64,
    /// Events that the ring may hold.
    pub(super) ring: usize,
}

/// What becomes of a change that upstream reports.
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

    /// What a change of `pod` at `rv` is, by all that is known.
    pub(super) fn judge(&self, pod: &Pod, rv: u64) -> Verdict {
        let known = self.facts.iter().any(|fact| fact.rv == rv && fact.pod().key() == pod.key());
        let sibling = self.facts.last().is_some_and(|last| last.rv == rv) && rv == self.progress;
        match () {
            () if known => Verdict::Duplicate,
            () if rv > self.progress || sibling => Verdict::Fresh,
            // Older than the window: whether it was seen cannot be told any more.
            () if rv <= self.floor() => Verdict::Duplicate,
            () => Verdict::OutOfOrder,
        }
    }

    /// Takes in a change that is fresh. `last` is the content that a deletion reports.
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

    /// How many of the facts are no longer in the ring.
    pub(super) fn evicted(&self) -> usize {
        self.facts.len().saturating_sub(self.ring)
    }

    /// The oldest version that a watch may start from: nothing after it has been evicted.
    pub(super) fn floor(&self) -> u64 {
        self.evicted().checked_sub(1).map_or(self.base_rv, |last_gone| self.facts[last_gone].rv)
    }

    /// S(r).
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

    /// exp(w, a, b): what `want` is told of the facts from index `from` on that are later than `after`.
    pub(super) fn told(&self, want: Want, after: u64, from: usize) -> Vec<(usize, Seen)> {
        let facts = self.facts.iter().enumerate().skip(from).filter(|(_, fact)| fact.rv > after);
        facts.filter_map(|(index, fact)| Some((index, fact.told_to(want)?))).collect()
    }
}

/// What `want` sees of a state, in order.
pub(super) fn visible(state: &State, want: Want) -> Vec<(String, u64)> {
    let matching = state.iter().filter(|(_, (pod, _))| want.matches(pod));
    matching.map(|(key, (_, rv))| (key.clone(), *rv)).collect()
}
