//! The `health` command: probes a running proxy, in images that have no shell and no curl.

use futures_util::future::BoxFuture;
use tokio::time::timeout;

use crate::config::HealthProbe;
use base::AdminPageAddress;

/// The maximum size of a response in bytes: more than the feeds of one process need.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Sends one health probe. Returns the response as one line, and whether the proxy is healthy.
///
/// # Errors
/// There was no response within the timeout.
#[inline(never)]
pub fn ask(question: HealthProbe) -> BoxFuture<'static, Result<(String, bool), String>> {
    Box::pin(async move {
        let HealthProbe { place, path, timeout: longest } = question;
        let asked = match &place {
            AdminPageAddress::Tcp(host) => format!("http://{host}{path}"),
            AdminPageAddress::Unix(socket) => format!("unix:{}{path}", socket.display()),
        };
        let answered = timeout(longest, place.read(&path, None, ANSWER_BYTES_MAX)).await;
        let answered = answered.map_err(|_| format!("no response from {asked} in time"))?;
        let (status, said) = answered.map_err(|error| format!("cannot reach {asked}: {error}"))?;
        let said: Vec<_> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        Ok((format!("{asked}: {} {}", status.as_u16(), said.join("; ")), status.is_success()))
    })
}
