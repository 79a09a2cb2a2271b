//! Several servers of one upstream, of which one is used at a time.
//!
//! [`selector`] decides which one. This module collects its inputs: senders of requests report failures and slow
//! responses, and a task sends readiness checks ([`super::readiness`]).

mod selector;
#[cfg(test)]
mod tests;

use std::fmt;
use std::pin::{Pin, pin};
use std::str::FromStr;
use std::sync::Arc;

use http::Uri;
use http::uri::Scheme;
use tokio::time::sleep;

pub use self::selector::EndpointTimings;
pub(super) use self::selector::{EndpointNextStep, EndpointSelector, EndpointSwitch, EndpointSwitchCause};
use super::{UpstreamError, metrics};
use crate::net::is_loopback;
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
        metrics::server_switched(switch.cause.as_str());
        self.publish_current();
    }

    /// Sets the metric of the server in use. With a single server there is none.
    pub(super) fn publish_current(&self) {
        for (at, server) in self.servers().iter().enumerate() {
            metrics::server_current(server.to_string(), at == self.current());
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

/// The address of one server of upstream in the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerUrl(Uri);

/// The reason that a text is not a server address.
#[derive(Debug, thiserror::Error)]
pub enum ServerUrlError {
    #[error("{0:?} is not a server URL (expected, for example, https://10.0.0.1:6443)")]
    Invalid(String),
    #[error(
        "{0} does not use TLS: credentials and objects would be sent in clear text; use an https:// URL (http:// is \
         allowed for loopback addresses only)"
    )]
    Plaintext(Uri),
}

impl ServerUrl {
    pub(super) fn uri(&self) -> &Uri {
        &self.0
    }
}

impl FromStr for ServerUrl {
    type Err = ServerUrlError;

    fn from_str(text: &str) -> Result<Self, ServerUrlError> {
        let invalid = || ServerUrlError::Invalid(text.to_owned());
        let uri: Uri = text.parse().map_err(|_| invalid())?;
        let authority = uri.authority().filter(|authority| !authority.host().is_empty()).ok_or_else(invalid)?;
        let is_http = matches!(uri.scheme_str(), Some("https" | "http"));
        // The part before an `@` would be logged, and would not be sent.
        if !is_http || authority.as_str().contains('@') || uri.query().is_some() {
            return Err(invalid());
        }
        if is_private(&uri) { Ok(Self(uri)) } else { Err(ServerUrlError::Plaintext(uri)) }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_string().trim_end_matches('/'))
    }
}

/// Whether the traffic to a server is protected: by TLS, or because it does not leave this machine.
pub(super) fn is_private(server: &Uri) -> bool {
    let host = server.host().unwrap_or_default();
    let address = host.trim_start_matches('[').trim_end_matches(']').parse();
    let is_local = host.eq_ignore_ascii_case("localhost") || address.is_ok_and(is_loopback);
    server.scheme() == Some(&Scheme::HTTPS) || is_local
}
