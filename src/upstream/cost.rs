use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kubeapi::Gvr;

base::labelled_enum! {
    /// The purpose of an upstream request. Every request names its cause.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum UpstreamRequestCause {
        /// Requests that load the state of a feed, in pages or streamed.
        List = "list",
        /// Watches the objects of a feed.
        Watch = "watch",
        /// Proves that a feed is current: a position, versions, recent events.
        Proof = "proof",
        /// Reads past changes: of a gap in the stream, or from before a feed's first list.
        Past = "history",
        /// Requests that compare converted objects with upstream's encoding.
        Comparison = "representation_check",
        /// Compares the contents of a feed with upstream.
        SelfCheck = "self_check",
        /// Discovers the resources and the release of upstream.
        Discovery = "discovery",
        /// Reads the definitions of custom resources and `APIServices`, by feeds or lists.
        Definitions = "definitions",
        /// Follows RBAC roles and bindings.
        Rbac = "rbac",
        /// Checks the permissions of a user for a request (`SubjectAccessReview`).
        AccessReview = "access_review",
        /// Checks whether an open watch may continue (`SubjectAccessReview`).
        LeaseReview = "lease_review",
        /// Compares an access decision of this proxy with upstream's (`SubjectAccessReview`, lists of RBAC objects).
        DecisionCheck = "decision_check",
        /// Authenticates a token (`TokenReview`).
        TokenReview = "token_review",
        /// Reads what verifies tokens: the cluster's keys, and the metadata of objects that tokens are bound to.
        Identity = "identity",
        /// Finds the proxy's own identity (`SelfSubjectReview`) and permissions (`SelfSubjectAccessReview`).
        SelfReview = "self_review",
        /// Checks whether one of several servers is ready, when another may have failed.
        Readiness = "readiness",
        /// Callers' requests that are forwarded.
        Forwarded = "forwarded",
    }
}

/// The cost of requests with one cause since the process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UpstreamCost<N = u64> {
    /// The number of requests that were sent, with or without a response.
    pub requests: N,
    /// The number of opened streams: watches, followed logs, tunnels.
    pub streams_opened: N,
    pub streams_open: N,
    /// The number of bytes of response bodies as received: compressed if upstream compresses. Headers, HTTP framing,
    /// TLS and tunnelled bytes are not included.
    pub body_bytes: N,
    /// The number of reviews that this proxy answered without a request.
    pub answered_here: N,
}

/// Counts the cost of requests for upstream. Clones share the counters.
#[derive(Debug, Clone, Default)]
pub struct UpstreamCostTotals {
    accounts: Arc<[UpstreamCost<AtomicU64>; UpstreamRequestCause::ALL.len()]>,
}

/// Counts one request and its response. If the response is a stream, it counts as open until the counter is dropped.
#[derive(Debug)]
pub(super) struct UpstreamCostCounter {
    costs: UpstreamCostTotals,
    cause: UpstreamRequestCause,
    is_stream: bool,
    is_open: bool,
}

impl UpstreamRequestCause {
    /// Returns the cause for a feed of a resource. Lists and watches of resources that the proxy itself uses have
    /// separate causes.
    #[must_use]
    pub fn of(self, gvr: &Gvr) -> Self {
        match (self, &*gvr.group, &*gvr.resource) {
            (Self::List | Self::Watch, "rbac.authorization.k8s.io", _) => Self::Rbac,
            (Self::List | Self::Watch, "apiextensions.k8s.io", "customresourcedefinitions")
            | (Self::List | Self::Watch, "apiregistration.k8s.io", "apiservices") => Self::Definitions,
            (cause, ..) => cause,
        }
    }

    /// Returns the cause of a stream: a streamed list counts as a watch from its first byte.
    fn of_stream(self) -> Self {
        if self == Self::List { Self::Watch } else { self }
    }
}

impl UpstreamCostTotals {
    /// Iterates over every cause with its cost.
    pub fn all(&self) -> impl Iterator<Item = (UpstreamRequestCause, UpstreamCost)> {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        UpstreamRequestCause::ALL.into_iter().map(move |cause| {
            let UpstreamCost { requests, streams_opened, streams_open, body_bytes, answered_here } =
                self.account(cause);
            let (requests, body_bytes, answered_here) = (read(requests), read(body_bytes), read(answered_here));
            let (streams_opened, streams_open) = (read(streams_opened), read(streams_open));
            (cause, UpstreamCost { requests, streams_opened, streams_open, body_bytes, answered_here })
        })
    }

    /// Counts a review that this proxy answered without a request.
    pub(super) fn answered_here(&self, cause: UpstreamRequestCause) {
        self.account(cause).answered_here.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn counter(&self, cause: UpstreamRequestCause, is_stream: bool) -> UpstreamCostCounter {
        UpstreamCostCounter { costs: self.clone(), cause, is_stream, is_open: false }
    }

    fn account(&self, cause: UpstreamRequestCause) -> &UpstreamCost<AtomicU64> {
        &self.accounts[cause as usize]
    }
}

impl UpstreamCostCounter {
    /// Returns a counter for the same request when it is retried.
    pub(super) fn for_retry(&self) -> Self {
        Self { costs: self.costs.clone(), is_open: false, ..*self }
    }

    pub(super) fn sent(&self) {
        self.costs.account(self.cause).requests.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the response to the request has begun.
    pub(super) fn response_started(&mut self, is_success: bool) {
        if self.is_stream && is_success {
            self.is_open = true;
            let account = self.account_of_stream();
            account.streams_opened.fetch_add(1, Ordering::Relaxed);
            account.streams_open.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn received(&self, bytes: usize) {
        self.costs.account(self.cause).body_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Records that the initial state of the stream is complete: events follow.
    pub(super) fn mark_listed(&mut self) {
        self.cause = self.cause.of_stream();
    }

    fn account_of_stream(&self) -> &UpstreamCost<AtomicU64> {
        self.costs.account(self.cause.of_stream())
    }
}

impl Drop for UpstreamCostCounter {
    fn drop(&mut self) {
        if self.is_open {
            self.account_of_stream().streams_open.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost_of(costs: &UpstreamCostTotals, of: UpstreamRequestCause) -> UpstreamCost {
        costs.all().find(|(cause, _)| *cause == of).expect("every cause").1
    }

    #[test]
    fn each_cost_cause_has_own_counter_and_label() {
        let costs = UpstreamCostTotals::default();
        for (n, cause) in UpstreamRequestCause::ALL.into_iter().enumerate() {
            let counter = costs.counter(cause, false);
            (0..=n).for_each(|_| counter.sent());
        }
        let counted: Vec<_> = costs.all().map(|(_, cost)| cost.requests).collect();
        assert_eq!(counted, (1..=UpstreamRequestCause::ALL.len() as u64).collect::<Vec<_>>());
        let names: std::collections::BTreeSet<_> =
            UpstreamRequestCause::ALL.into_iter().map(UpstreamRequestCause::as_str).collect();
        assert_eq!(names.len(), UpstreamRequestCause::ALL.len());
    }

    #[test]
    fn streamed_list_is_counted_as_list_request_and_watch_stream() {
        let costs = UpstreamCostTotals::default();
        let mut counter = costs.counter(UpstreamRequestCause::List, true);
        counter.sent();
        counter.response_started(true);
        counter.received(70);
        counter.mark_listed();
        counter.received(5);
        let watch = UpstreamCost { requests: 0, streams_opened: 1, streams_open: 1, body_bytes: 5, answered_here: 0 };
        assert_eq!(
            cost_of(&costs, UpstreamRequestCause::List),
            UpstreamCost { requests: 1, body_bytes: 70, ..UpstreamCost::default() }
        );
        assert_eq!(cost_of(&costs, UpstreamRequestCause::Watch), watch);
        drop(counter);
        assert_eq!(cost_of(&costs, UpstreamRequestCause::Watch), UpstreamCost { streams_open: 0, ..watch });
    }

    #[test]
    fn refused_stream_is_counted_as_request_only() {
        let costs = UpstreamCostTotals::default();
        let mut counter = costs.counter(UpstreamRequestCause::Rbac, true);
        counter.sent();
        counter.response_started(false);
        drop(counter);
        assert_eq!(
            cost_of(&costs, UpstreamRequestCause::Rbac),
            UpstreamCost { requests: 1, ..UpstreamCost::default() }
        );
    }
}
