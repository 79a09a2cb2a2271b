//! The `health` command: probes a running proxy, in images that have no shell and no curl.

use std::fmt;

use futures_util::future::BoxFuture;
use http::StatusCode;
use tokio::time::timeout;

use crate::config::HealthProbe;
use base::PageAddress;

/// The response to a probe; its text is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProbeResponse {
    asked: String,
    status: StatusCode,
    said: String,
}

/// The reason that a health probe got no response.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("no response from {0} in time")]
    Timeout(String),
    #[error("cannot reach {asked}: {source}")]
    Failed { asked: String, source: Failure },
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The maximum size of a response in bytes: more than the feeds of one process need.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Sends one health probe.
///
/// # Errors
/// There was no response within the timeout.
#[inline(never)]
pub fn ask(question: HealthProbe) -> BoxFuture<'static, Result<ProbeResponse, ProbeError>> {
    Box::pin(async move {
        let HealthProbe { place, path, timeout: longest } = question;
        let asked = match &place {
            PageAddress::Tcp(host) => format!("http://{host}{path}"),
            PageAddress::Unix(socket) => format!("unix:{}{path}", socket.display()),
        };
        match timeout(longest, place.read(&path, None, ANSWER_BYTES_MAX)).await {
            Ok(Ok((status, said))) => Ok(ProbeResponse { asked, status, said }),
            Ok(Err(source)) => Err(ProbeError::Failed { asked, source }),
            Err(_) => Err(ProbeError::Timeout(asked)),
        }
    })
}

impl ProbeResponse {
    /// Whether the probed proxy is healthy.
    pub fn is_well(&self) -> bool {
        self.status.is_success()
    }
}

impl fmt::Display for ProbeResponse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said: Vec<_> = self.said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        write!(f, "{}: {} {}", self.asked, self.status.as_u16(), said.join("; "))
    }
}
