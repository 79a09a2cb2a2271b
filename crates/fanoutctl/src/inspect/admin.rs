use std::time::Duration;

use http::StatusCode;
use serde_json::Value;
use tokio::time::timeout;

use super::InspectError;
use base::AdminPageAddress;

/// The admin address of a running proxy, and the token for its pages.
#[derive(Clone)]
pub struct ProxyTarget {
    /// The name of the proxy in the output.
    pub name: String,
    pub place: AdminPageAddress,
    /// The bearer token, for pages that show clients.
    pub token: Option<String>,
}

/// The text of a page, or the proxy's refusal.
pub(super) type AdminPageResult = Result<String, AdminPageRefusal>;

/// The response of a proxy that refuses a page.
#[derive(Debug, Clone)]
pub(super) struct AdminPageRefusal {
    pub(super) status: StatusCode,
    pub(super) why: String,
}

/// The maximum size of a page in bytes. Rows of ten thousand watches fit.
const PAGE_BYTES_MAX: usize = 64 << 20;
/// The timeout for reading one page of a proxy.
const PAGE_MAX: Duration = Duration::from_secs(15);

impl ProxyTarget {
    /// Reads the page at a path.
    pub(super) async fn page(&self, path: &str) -> Result<AdminPageResult, InspectError> {
        let asking = self.place.read(path, self.token.as_deref(), PAGE_BYTES_MAX);
        match timeout(PAGE_MAX, asking).await {
            // A proxy that is not ready lists the failed checks.
            Ok(Ok((status, text)))
                if status.is_success() || status == StatusCode::SERVICE_UNAVAILABLE && path == "/readyz" =>
            {
                Ok(Ok(text))
            }
            Ok(Ok((status, text))) => {
                // The refusal is a Status or a text.
                let refusal: Value = serde_json::from_str(&text).unwrap_or_default();
                let why = refusal["message"].as_str().unwrap_or(text.trim()).to_owned();
                Ok(Err(AdminPageRefusal { status, why }))
            }
            Ok(Err(why)) => Err(InspectError::of(&self.name, why)),
            Err(_) => Err(InspectError::of(&self.name, "timeout")),
        }
    }

    /// Reads the page at a path and parses it as JSON.
    pub(super) async fn json(&self, path: &str) -> Result<Result<Value, AdminPageRefusal>, InspectError> {
        let text = match self.page(path).await? {
            Ok(text) => text,
            Err(not) => return Ok(Err(not)),
        };
        let what = format!("{} {path}", self.name);
        serde_json::from_str(&text).map(Ok).map_err(|error| InspectError::of(&what, error))
    }
}
