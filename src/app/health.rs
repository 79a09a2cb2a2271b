//! The `health` command: probes a running proxy, in images that have no shell and no curl.

use futures_util::future::BoxFuture;
use tokio::time::timeout;

use crate::config::HealthProbe;
use base::AdminPageAddress;

/// The maximum size of a response in bytes: more than the feeds of one process need.
const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// Sends one health probe. Returns the response as one line, and whether the proxy is healthy.
///
/// # Errors
/// There was no response within the timeout.
#[inline(never)]
pub fn send(probe: HealthProbe) -> BoxFuture<'static, Result<(String, bool), String>> {
    Box::pin(async move {
        let HealthProbe { address, path, timeout: max } = probe;
        let url = match &address {
            AdminPageAddress::Tcp(host) => format!("http://{host}{path}"),
            AdminPageAddress::Unix(socket) => format!("unix:{}{path}", socket.display()),
        };
        let response = timeout(max, address.read(&path, None, RESPONSE_BYTES_MAX)).await;
        let response = response.map_err(|_| format!("no response from {url} in time"))?;
        let (status, body) = response.map_err(|error| format!("cannot reach {url}: {error}"))?;
        let lines: Vec<_> = body.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Ok((format!("{url}: {} {}", status.as_u16(), lines.join("; ")), status.is_success()))
    })
}
