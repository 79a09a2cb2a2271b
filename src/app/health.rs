//! The `health` command: probes a running proxy, in images that have no shell and no curl.

use std::fmt;

use futures_util::future::BoxFuture;
use http::StatusCode;
use tokio::time::timeout;

use crate::config::HealthQuestion;
use base::PagePlace;

/// The response to a probe; its text is one line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthAnswer {
    asked: String,
    status: StatusCode,
    said: String,
}

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum NoHealthAnswer {
    #[error("no response from {0} in time")]
    Late(String),
    #[error("cannot reach {asked}: {source}")]
    Failed { asked: String, source: Failure },
}

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Maximum size of a response; more than the feeds of one process take.
const ANSWER_BYTES_MAX: usize = 1 << 20;

/// Sends one probe.
///
/// # Errors
/// There was no response within the timeout.
#[inline(never)]
pub fn ask(question: HealthQuestion) -> BoxFuture<'static, Result<HealthAnswer, NoHealthAnswer>> {
    Box::pin(async move {
        let HealthQuestion { place, path, timeout: longest } = question;
        let asked = match &place {
            PagePlace::Tcp(host) => format!("http://{host}{path}"),
            PagePlace::Unix(socket) => format!("unix:{}{path}", socket.display()),
        };
        match timeout(longest, place.read(&path, None, ANSWER_BYTES_MAX)).await {
            Ok(Ok((status, said))) => Ok(HealthAnswer { asked, status, said }),
            Ok(Err(source)) => Err(NoHealthAnswer::Failed { asked, source }),
            Err(_) => Err(NoHealthAnswer::Late(asked)),
        }
    })
}

impl HealthAnswer {
    /// Whether the proxy is healthy.
    pub fn is_well(&self) -> bool {
        self.status.is_success()
    }
}

impl fmt::Display for HealthAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said: Vec<_> = self.said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        write!(f, "{}: {} {}", self.asked, self.status.as_u16(), said.join("; "))
    }
}
