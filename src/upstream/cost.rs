use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kubeapi::Gvr;

/// What upstream is asked for. Whoever sends a request names its cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// The state of a feed, in pages or streamed.
    List,
    /// What happens to a feed's objects.
    Watch,
    /// Whether a feed is current: a position, versions, the events since.
    Proof,
    /// What happened while no stream was open, or before a feed's first list.
    Past,
    /// Whether what is derived is what upstream writes.
    Comparison,
    /// Whether what a feed holds is what upstream has.
    SelfCheck,
    /// Which resources there are, and of which release upstream is.
    Discovery,
    /// Definitions of custom resources and `APIServices`: their feeds, or lists where there are none.
    Definitions,
    /// Roles and bindings: their feeds.
    Rbac,
    /// What a user may do who asks for something (`SubjectAccessReview`).
    AccessReview,
    /// Whether an open watch may go on (`SubjectAccessReview`).
    LeaseReview,
    /// Whose a token is (`TokenReview`).
    TokenReview,
    /// Who we are (`SelfSubjectReview`), and whether we may create reviews (`SelfSubjectAccessReview`).
    SelfReview,
    /// Whether one of several servers is ready, when another may have failed.
    Readiness,
    /// What callers ask and upstream answers.
    PassedThrough,
}

/// What requests for one cause have cost since the process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cost {
    /// Those that were sent, answered or not.
    pub requests: u64,
    /// Answers that are open for long: watches, followed logs, tunnels.
    pub streams_opened: u64,
    pub streams_open: u64,
    /// The bytes of answers' bodies as they came: compressed where upstream compresses, without headers, the framing
    /// of HTTP, TLS, and what goes through tunnels.
    pub body_bytes: u64,
}

/// Counts what requests cost upstream. Cloning shares.
#[derive(Debug, Clone, Default)]
pub struct CostLedger {
    accounts: Arc<[Account; Cause::ALL.len()]>,
}

#[derive(Debug, Default)]
struct Account {
    requests: AtomicU64,
    streams_opened: AtomicU64,
    streams_open: AtomicU64,
    body_bytes: AtomicU64,
}

/// Counts one request and its answer. Its stream, if it is one, counts as open until this is dropped.
#[derive(Debug)]
pub(super) struct CostCounter {
    costs: CostLedger,
    cause: Cause,
    is_stream: bool,
    is_open: bool,
}

impl Cause {
    pub const ALL: [Self; 15] = [
        Self::List,
        Self::Watch,
        Self::Proof,
        Self::Past,
        Self::Comparison,
        Self::SelfCheck,
        Self::Discovery,
        Self::Definitions,
        Self::Rbac,
        Self::AccessReview,
        Self::LeaseReview,
        Self::TokenReview,
        Self::SelfReview,
        Self::Readiness,
        Self::PassedThrough,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::List => "list",
            Self::Watch => "watch",
            Self::Proof => "proof",
            Self::Past => "past",
            Self::Comparison => "comparison",
            Self::SelfCheck => "self_check",
            Self::Discovery => "discovery",
            Self::Definitions => "definitions",
            Self::Rbac => "rbac",
            Self::AccessReview => "access_review",
            Self::LeaseReview => "lease_review",
            Self::TokenReview => "token_review",
            Self::SelfReview => "self_review",
            Self::Readiness => "readiness",
            Self::PassedThrough => "passed_through",
        }
    }

    /// The cause for a feed of this resource: lists and watches of what the proxy itself reads have their own.
    #[must_use]
    pub fn of(self, gvr: &Gvr) -> Self {
        match (self, &*gvr.group, &*gvr.resource) {
            (Self::List | Self::Watch, "rbac.authorization.k8s.io", _) => Self::Rbac,
            (Self::List | Self::Watch, "apiextensions.k8s.io", "customresourcedefinitions")
            | (Self::List | Self::Watch, "apiregistration.k8s.io", "apiservices") => Self::Definitions,
            (cause, ..) => cause,
        }
    }

    /// A streamed list is a watch from its first byte on.
    fn of_stream(self) -> Self {
        if self == Self::List { Self::Watch } else { self }
    }
}

impl CostLedger {
    /// Every cause with its cost.
    pub fn all(&self) -> impl Iterator<Item = (Cause, Cost)> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Cause::ALL.into_iter().map(move |cause| {
            let Account { requests, streams_opened, streams_open, body_bytes } = self.account(cause);
            let (requests, body_bytes) = (read(requests), read(body_bytes));
            let (streams_opened, streams_open) = (read(streams_opened), read(streams_open));
            (cause, Cost { requests, streams_opened, streams_open, body_bytes })
        })
    }

    pub(super) fn counter(&self, cause: Cause, is_stream: bool) -> CostCounter {
        CostCounter { costs: self.clone(), cause, is_stream, is_open: false }
    }

    fn account(&self, cause: Cause) -> &Account {
        &self.accounts[cause as usize]
    }
}

impl CostCounter {
    /// One for the same request, which is sent once more.
    pub(super) fn again(&self) -> Self {
        Self { costs: self.costs.clone(), is_open: false, ..*self }
    }

    pub(super) fn sent(&self) {
        self.account().requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that the answer has begun.
    pub(super) fn answered(&mut self, is_success: bool) {
        if self.is_stream && is_success {
            self.is_open = true;
            let account = self.account_of_stream();
            account.streams_opened.fetch_add(1, Ordering::Relaxed);
            account.streams_open.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn received(&self, bytes: usize) {
        self.account().body_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Notes that the state which the stream began with is whole: what follows are events.
    pub(super) fn is_listed(&mut self) {
        self.cause = self.cause.of_stream();
    }

    fn account(&self) -> &Account {
        self.costs.account(self.cause)
    }

    fn account_of_stream(&self) -> &Account {
        self.costs.account(self.cause.of_stream())
    }
}

impl Drop for CostCounter {
    fn drop(&mut self) {
        if self.is_open {
            self.account_of_stream().streams_open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost_of(costs: &CostLedger, of: Cause) -> Cost {
        costs.all().find(|(cause, _)| *cause == of).expect("every cause").1
    }

    #[test]
    fn every_cause_has_an_account_and_a_word_of_its_own() {
        let costs = CostLedger::default();
        for (n, cause) in Cause::ALL.into_iter().enumerate() {
            let counter = costs.counter(cause, false);
            (0..=n).for_each(|_| counter.sent());
        }
        let counted: Vec<_> = costs.all().map(|(_, cost)| cost.requests).collect();
        assert_eq!(counted, (1..=Cause::ALL.len() as u64).collect::<Vec<_>>());
        let words: std::collections::BTreeSet<_> = Cause::ALL.into_iter().map(Cause::as_str).collect();
        assert_eq!(words.len(), Cause::ALL.len());
    }

    #[test]
    fn a_streamed_list_is_a_request_for_a_list_and_a_stream_of_events() {
        let costs = CostLedger::default();
        let mut counter = costs.counter(Cause::List, true);
        counter.sent();
        counter.answered(true);
        counter.received(70);
        counter.is_listed();
        counter.received(5);
        let watch = Cost { requests: 0, streams_opened: 1, streams_open: 1, body_bytes: 5 };
        assert_eq!(cost_of(&costs, Cause::List), Cost { requests: 1, body_bytes: 70, ..Cost::default() });
        assert_eq!(cost_of(&costs, Cause::Watch), watch);
        drop(counter);
        assert_eq!(cost_of(&costs, Cause::Watch), Cost { streams_open: 0, ..watch });
    }

    #[test]
    fn a_stream_that_was_refused_was_not_opened() {
        let costs = CostLedger::default();
        let mut counter = costs.counter(Cause::Rbac, true);
        counter.sent();
        counter.answered(false);
        drop(counter);
        assert_eq!(cost_of(&costs, Cause::Rbac), Cost { requests: 1, ..Cost::default() });
    }
}
