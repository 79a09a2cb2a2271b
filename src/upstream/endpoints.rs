//! Several servers of one upstream, of which one is used at a time.
//!
//! [`selector`] decides which one. This module collects its inputs: senders of requests report failures and slow
//! responses, and a task sends readiness checks ([`super::readiness`]).

mod selector;
#[cfg(test)]
mod tests;

use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::time::sleep;

pub use self::selector::EndpointTimings;
pub(super) use self::selector::{EndpointNextStep, EndpointSelector, EndpointSwitch, EndpointSwitchCause};
use super::{ServerUrl, UpstreamError};
use tokio::sync::watch;

/// The configuration of upstream's servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UpstreamEndpointsConfig {
    /// The servers in the order of preference. If empty, the server that the credentials name is used.
    pub servers: Vec<ServerUrl>,
    pub times: EndpointTimings,
}

impl UpstreamEndpointsConfig {
    /// The maximum number of upstream servers.
    pub const SERVERS_MAX: usize = 8;
}

/// The servers of upstream, and the one in use. Clones share the state.
#[derive(Debug, Clone)]
pub struct UpstreamEndpoints {
    shared: Arc<UpstreamEndpointsState>,
}

#[derive(Debug)]
struct UpstreamEndpointsState {
    config: UpstreamEndpointsConfig,
    current: watch::Sender<usize>,
    /// The server from which the proxy last switched away because it had failed.
    failed_over: watch::Sender<Option<usize>>,
    /// The server in use on which a request failed last.
    failure_tx: watch::Sender<usize>,
    /// A receiver that has received no sign yet.
    failure_rx: watch::Receiver<usize>,
}

/// The origin of a request: the proxy or one of its callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpstreamRequestOrigin {
    /// The proxy itself: the request is a read, or a request that changes nothing.
    Proxy,
    /// A caller: the request may be anything.
    Caller,
}

impl UpstreamEndpoints {
    pub fn new(config: UpstreamEndpointsConfig) -> Self {
        let (current, failed_over, (failure_tx, failure_rx)) =
            (watch::Sender::new(0), watch::Sender::new(None), watch::channel(0));
        Self { shared: Arc::new(UpstreamEndpointsState { config, current, failed_over, failure_tx, failure_rx }) }
    }

    /// Whether upstream has several servers. With one server, no readiness check is ever sent.
    pub fn has_several(&self) -> bool {
        self.servers().len() > 1
    }

    pub(super) fn servers(&self) -> &[ServerUrl] {
        &self.shared.config.servers
    }

    pub(super) fn times(&self) -> &EndpointTimings {
        &self.shared.config.times
    }

    /// The index of the server in use.
    pub(super) fn current(&self) -> usize {
        *self.shared.current.borrow()
    }

    /// Switches to another server. Requests in progress on the previous one continue there. If the previous one has
    /// failed, the proxy's own pending requests to it end with an error.
    pub(super) fn switch(&self, switch: EndpointSwitch) {
        self.shared.current.send_replace(switch.to);
        if switch.cause == EndpointSwitchCause::Failed {
            self.shared.failed_over.send_replace(Some(switch.from));
        }
    }

    /// Completes at the next sign that the server in use may have failed. Returns that server.
    pub(super) async fn next_failure(failures: &mut watch::Receiver<usize>) -> usize {
        if failures.changed().await.is_err() {
            // This endpoint set owns the sender, so it outlives the receiver.
            std::future::pending::<()>().await;
        }
        *failures.borrow_and_update()
    }

    /// Returns a receiver of the signs of failure from now on, including the last one before.
    pub(super) fn failures(&self) -> watch::Receiver<usize> {
        self.shared.failure_rx.clone()
    }

    /// Waits for the response of a server. A failure or a slow response is a sign that the server may have failed. A
    /// request of the proxy is abandoned if its server has failed, so that it can be sent to the next one at once.
    pub(super) async fn watch_response<T>(
        &self,
        at: usize,
        origin: UpstreamRequestOrigin,
        mut response: Pin<&mut impl Future<Output = Result<T, UpstreamError>>>,
    ) -> Result<T, UpstreamError> {
        if !self.has_several() {
            return response.await;
        }
        let (mut failed_over, mut slow) = (pin!(self.failed_over(at)), pin!(sleep(self.times().slow)));
        let mut is_slow = false;
        let result = loop {
            tokio::select! {
                biased;
                result = &mut response => break result,
                () = &mut slow, if !is_slow => {
                    is_slow = true;
                    self.report_failure(at);
                }
                () = &mut failed_over, if origin == UpstreamRequestOrigin::Proxy => {
                    break Err(UpstreamError::Unreachable("another server is used now".into()));
                }
            }
        };
        if result.as_ref().is_err_and(|error| is_failure(error, origin)) {
            self.report_failure(at);
        }
        result
    }

    /// Reports a sign that a server may have failed.
    pub(super) fn report_failure(&self, at: usize) {
        if self.has_several() && at == self.current() {
            self.shared.failure_tx.send_replace(at);
        }
    }

    /// Completes when another server is used because the server `at` has failed.
    async fn failed_over(&self, at: usize) {
        let has_failed_over = |failed_over: &Option<usize>| *failed_over == Some(at) && self.current() != at;
        // This endpoint set owns the sender, so waiting cannot fail.
        let _ = self.shared.failed_over.subscribe().wait_for(has_failed_over).await;
    }
}

/// Whether an error may be the server's fault. A caller's request may also fail because of its body.
fn is_failure(error: &UpstreamError, origin: UpstreamRequestOrigin) -> bool {
    match error {
        UpstreamError::Unreachable(_) => origin == UpstreamRequestOrigin::Proxy || !error.may_be_processed(),
        UpstreamError::Timeout(_) | UpstreamError::ConnectionLost(_) => true,
        _ => false,
    }
}
