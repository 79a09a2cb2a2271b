//! The decision whether a sender may read a page, which the runtime that serves clients makes.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use http::header::{CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, StatusCode};
use tokio::time::timeout;

use super::{AdminResponse, JSON, answer};
use crate::net::ConnectionPeer;
use kubeapi::Status;

/// Decides by the connection, the path and the headers of a request whether its sender may read the page. Returns the
/// refusal if not, and `None` if the decision failed.
pub type PageAccessCheck =
    Arc<dyn Fn(&ConnectionPeer, &str, &HeaderMap) -> BoxFuture<'static, PageDecision> + Send + Sync>;
type PageDecision = Option<Result<(), Status>>;

/// The timeout for a decision. The runtime that makes it may be stuck.
const ACCESS_CHECK_MAX: Duration = Duration::from_secs(15);

/// Awaits a decision; a timeout counts as a refusal.
pub(super) async fn decide(decision: impl Future<Output = PageDecision>) -> Result<(), Status> {
    let late = || Status::service_unavailable("cannot authenticate or authorize: timed out");
    timeout(ACCESS_CHECK_MAX, decision).await.ok().flatten().unwrap_or_else(|| Err(late()))
}

/// Returns a refusal as the apiserver would write it.
pub(super) fn refused(why: &Status) -> AdminResponse {
    let code = StatusCode::from_u16(why.http_code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut refusal = answer(code, JSON, why.to_json());
    let headers = refusal.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if let Some(seconds) = why.retry_after_seconds() {
        headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
    refusal
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;

    /// The runtime that serves clients may be stuck, and then a scrape must fail.
    #[tokio::test(start_paused = true)]
    async fn missing_authorization_decision_returns_503() {
        let refusal = refused(&decide(pending()).await.expect_err("there is no decision"));
        assert_eq!(refusal.status(), StatusCode::SERVICE_UNAVAILABLE);
        let lost = decide(ready(None)).await.expect_err("the deciding task has panicked");
        assert_eq!(lost.http_code(), 503);
        assert_eq!(decide(ready(Some(Ok(())))).await, Ok(()));
    }
}
