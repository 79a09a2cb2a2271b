//! The state that all parts of one running upstream share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode, Uri};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::counts::LiveRequestCounts;
use super::fault_switches::FaultSwitches;
use super::reviews::ReviewResponses;
use super::store::ObjectStore;
use base::now_ns;
use tokio::sync::watch;

/// The number of requests that are recorded for tests.
const SEEN_MAX: usize = 4096;

/// A request as the demo upstream received it.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// The time at which the request was received, from `base::now_ns`.
    pub at_ns: u64,
    /// The status of the response, once it is known.
    pub status: Option<u16>,
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
}

#[derive(Clone, Debug)]
pub(crate) struct DemoSettings {
    pub(crate) bookmark_period: Duration,
    /// How long a read waits for a revision that does not exist yet.
    pub(crate) future_wait: Duration,
    pub(crate) streams_max: u32,
    pub(crate) remember_requests: bool,
}

#[derive(Debug)]
pub(crate) struct DemoState {
    /// The storage, which several servers may share.
    pub(crate) store: Arc<ObjectStore>,
    pub(crate) settings: DemoSettings,
    pub(crate) faults: FaultSwitches,
    pub(crate) reviews: ReviewResponses,
    pub(crate) counts: LiveRequestCounts,
    pub(crate) tasks: TaskTracker,
    pub(crate) stopping: CancellationToken,
    /// Whether the accept loop should listen; `bound` is whether it does.
    pub(crate) listening: watch::Sender<bool>,
    pub(crate) bound: watch::Sender<bool>,
    /// The generation of connections. When it increases, all open connections reset themselves.
    pub(crate) connections: watch::Sender<u64>,
    seen: Mutex<RequestLog>,
}

/// The most recent requests, and how many preceded them.
#[derive(Debug, Default)]
struct RequestLog {
    forgotten: usize,
    requests: VecDeque<ReceivedRequest>,
}

impl DemoState {
    pub(crate) fn new(store: Arc<ObjectStore>, settings: DemoSettings) -> Self {
        Self {
            store,
            settings,
            faults: FaultSwitches::new(),
            reviews: ReviewResponses::default(),
            counts: LiveRequestCounts::default(),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            listening: watch::Sender::new(true),
            bound: watch::Sender::new(false),
            connections: watch::Sender::new(0),
            seen: Mutex::default(),
        }
    }

    /// Records a request; returns the number that identifies it.
    pub(crate) fn remember(&self, method: &Method, uri: &Uri, headers: &HeaderMap) -> usize {
        if !self.settings.remember_requests {
            return 0;
        }
        let (method, uri, headers) = (method.clone(), uri.clone(), headers.clone());
        let mut seen = self.seen.lock();
        if seen.requests.len() == SEEN_MAX {
            seen.requests.pop_front();
            seen.forgotten += 1;
        }
        seen.requests.push_back(ReceivedRequest { at_ns: now_ns(), status: None, method, uri, headers });
        seen.forgotten + seen.requests.len()
    }

    /// Records the response to the request with the number `number`, if the request is still recorded.
    pub(crate) fn answered(&self, number: usize, status: StatusCode) {
        let mut seen = self.seen.lock();
        let place = number.checked_sub(seen.forgotten + 1);
        if let Some(request) = place.and_then(|place| seen.requests.get_mut(place)) {
            request.status = Some(status.as_u16());
        }
    }

    pub(crate) fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().requests.iter().cloned().collect()
    }
}
