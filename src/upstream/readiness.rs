//! Sends readiness checks to the servers of upstream, if there are several and one may have failed.

use std::pin::pin;

use tokio::time::{Instant, timeout};

use super::endpoints::{EndpointNextStep, EndpointSelector, EndpointSwitch, UpstreamEndpoints};
use super::{UpstreamClient, UpstreamError};
use base::{random, sleep_until_opt};

/// The readiness endpoint, which an apiserver serves without reading any object.
const READYZ: &str = "/readyz";

impl UpstreamClient {
    /// Selects the server of upstream continuously; to be spawned once, if there are several.
    pub async fn select_servers(self) {
        let endpoints = self.endpoints().clone();
        endpoints.publish_current();
        let (servers, timings) = (endpoints.servers().len(), endpoints.times().clone());
        let mut selector = EndpointSelector::new(servers, timings, random::f64(), Instant::now());
        let mut failures = endpoints.failures();
        let mut reason = String::new();
        loop {
            match selector.next_step(Instant::now()) {
                EndpointNextStep::Check(at) => {
                    let mut checking = pin!(self.is_ready(at, &endpoints));
                    let result = loop {
                        tokio::select! {
                            result = &mut checking => break Some(result),
                            failed = UpstreamEndpoints::next_failure(&mut failures), if selector.is_failing_back() => {
                                selector.on_failure(failed, Instant::now());
                                if !selector.is_failing_back() {
                                    break None;
                                }
                            }
                        }
                    };
                    let Some(result) = result else { continue };
                    if let (Err(error), true) = (&result, at == selector.current()) {
                        reason.clone_from(error);
                    }
                    if let Some(switch) = selector.on_check_result(result.is_ok(), Instant::now()) {
                        endpoints.switch(switch);
                        let EndpointSwitch { from, to, cause } = switch;
                        let [from, to] = [from, to].map(|at| &endpoints.servers()[at]);
                        let (cause, reason) = (cause.as_str(), std::mem::take(&mut reason));
                        tracing::warn!(%from, %to, cause, reason, "switched to another upstream server");
                        // Wakes tasks that wait until upstream is reachable again.
                        self.record_response();
                    }
                }
                EndpointNextStep::Wait(due) => tokio::select! {
                    at = UpstreamEndpoints::next_failure(&mut failures) => selector.on_failure(at, Instant::now()),
                    () = sleep_until_opt(due) => {}
                },
            }
        }
    }

    /// Checks whether a server is ready, on a separate connection. The error says why the server is not.
    async fn is_ready(&self, at: usize, endpoints: &UpstreamEndpoints) -> Result<(), String> {
        let check_timeout = endpoints.times().check_timeout;
        let result = timeout(check_timeout, self.send_to_server(at, READYZ)).await;
        match result.unwrap_or(Err(UpstreamError::Timeout(check_timeout))) {
            Ok(code) if is_usable(code) => Ok(()),
            Ok(code) => Err(format!("{READYZ} returned {code}")),
            Err(error) => Err(error.for_callers()),
        }
    }
}

/// Whether a server with this response code can be used. That includes a server that is busy, or that denies access to
/// the endpoint.
fn is_usable(code: u16) -> bool {
    matches!(code, 200..=299 | 403 | 404 | 429)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_is_ready_unless_response_is_401_or_5xx() {
        for (code, expected) in
            [(200, true), (403, true), (404, true), (429, true), (401, false), (500, false), (503, false)]
        {
            assert_eq!(is_usable(code), expected, "{code}");
        }
    }
}
