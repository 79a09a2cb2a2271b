//! The state that all parts of one running upstream share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, StatusCode, Uri};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::counts::Counter;
use super::reviews::ReviewAnswers;
use super::store::ObjectStore;
use super::switches::Switches;
use base::now_ns;
use tokio::sync::watch;

/// Requests that are remembered for tests to look at.
const SEEN_MAX: usize = 4096;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
    /// When it arrived, in the time of `base::now_ns`.
    pub at_ns: u64,
    /// What the head of its answer said, once there is one.
    pub status: Option<u16>,
    pub method: Method,
    pub uri: Uri,
    pub headers: HeaderMap,
}

#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) bookmark_period: Duration,
    /// How long a read waits for a revision that does not exist yet.
    pub(crate) future_wait: Duration,
    pub(crate) streams_max: u32,
    pub(crate) remember_requests: bool,
}

#[derive(Debug)]
pub(crate) struct DemoState {
    /// Several servers may have one storage.
    pub(crate) store: Arc<ObjectStore>,
    pub(crate) settings: Settings,
    pub(crate) faults: Switches,
    pub(crate) reviews: ReviewAnswers,
    pub(crate) counts: Counter,
    pub(crate) tasks: TaskTracker,
    pub(crate) stopping: CancellationToken,
    /// `listening` says whether the accept loop should listen, `bound` whether it does.
    pub(crate) listening: watch::Sender<bool>,
    pub(crate) bound: watch::Sender<bool>,
    /// The generation of connections. When it rises, all connections that are open reset themselves.
    pub(crate) connections: watch::Sender<u64>,
    seen: Mutex<Seen>,
}

/// The last requests, and how many were before them.
#[derive(Debug, Default)]
struct Seen {
    forgotten: usize,
    requests: VecDeque<ReceivedRequest>,
}

impl DemoState {
    pub(crate) fn new(store: Arc<ObjectStore>, settings: Settings) -> Self {
        Self {
            store,
            settings,
            faults: Switches::new(),
            reviews: ReviewAnswers::default(),
            counts: Counter::default(),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
            listening: watch::Sender::new(true),
            bound: watch::Sender::new(false),
            connections: watch::Sender::new(0),
            seen: Mutex::default(),
        }
    }

    /// Remembers a request; the number tells it apart.
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

    /// Notes the answer to the request with this number, if it is still remembered.
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
