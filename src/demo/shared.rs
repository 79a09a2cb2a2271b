//! The state that all parts of one running upstream share.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Method, Uri};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::counts::Counter;
use super::reviews::ReviewAnswers;
use super::store::ObjectStore;
use super::switches::Switches;

/// Requests that are remembered for tests to look at.
const SEEN_MAX: usize = 4096;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct ReceivedRequest {
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
    seen: Mutex<VecDeque<ReceivedRequest>>,
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

    pub(crate) fn remember(&self, method: &Method, uri: &Uri, headers: &HeaderMap) {
        if !self.settings.remember_requests {
            return;
        }
        let mut seen = self.seen.lock();
        if seen.len() == SEEN_MAX {
            seen.pop_front();
        }
        seen.push_back(ReceivedRequest { method: method.clone(), uri: uri.clone(), headers: headers.clone() });
    }

    pub(crate) fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().iter().cloned().collect()
    }
}
