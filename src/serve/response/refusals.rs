//! Refusals: responses to requests that are neither served nor forwarded.

use http::header::{EXPECT, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Request, Response, StatusCode, Version};

use crate::auth::NotGranted;
use crate::net::RequestBody;
use crate::serve::audit::Decision;
use crate::serve::response::body::ReplyBody;
use crate::serve::response::context::{REFUSED_BY, ResponseContext};
use crate::serve::response::statuses::not_granted;
use kubeapi::{Access, Query, RequestInfo, Status, Verb, check_timeout};

pub(crate) fn forbid(context: &ResponseContext, why: &str) -> Response<ReplyBody> {
    context.status(&Status::from_code(403, why))
}

/// Whether an HTTP/1 request has an `Expect` header that no server can meet: only `100-continue` is defined (RFC 9110
/// §10.1.1). Go's server checks this before any handler, and for HTTP/1 only.
pub(crate) fn expects_the_impossible(request: &Request<RequestBody>) -> bool {
    let expected = request.headers().get(EXPECT).map(|expected| expected.to_str().unwrap_or("?")).unwrap_or_default();
    let is_met = |expectation: &str| expectation.trim().eq_ignore_ascii_case("100-continue");
    request.version() < Version::HTTP_2 && !expected.is_empty() && !expected.split(',').any(is_met)
}

/// Returns the error for a bad `timeout=`, which takes precedence over authentication and impersonation (R-ORDER-1).
/// Long-running requests have no timeout (R-TIMEOUT-2).
pub(crate) fn bad_timeout(info: &RequestInfo, query: &Query) -> Option<Status> {
    const LONG_RUNNING: [&str; 5] = ["attach", "exec", "proxy", "log", "portforward"];
    let is_long_running =
        matches!(info.verb, Verb::Watch | Verb::Proxy) || LONG_RUNNING.contains(&info.subresource.as_str());
    check_timeout(query).err().filter(|_| !is_long_running)
}

/// Returns the response to a caller without permission. A bad `timeout` takes precedence for every caller (R-ORDER-1).
pub(crate) fn turned_away(
    context: &ResponseContext,
    user: &str,
    info: &RequestInfo,
    query: &Query,
    refused: &NotGranted,
) -> Response<ReplyBody> {
    let status = bad_timeout(info, query).unwrap_or_else(|| not_granted(refused, user, &Access::of(info)));
    let mut response = context.status(&status);
    if let NotGranted::Denied(reason) = refused {
        response.extensions_mut().insert(Decision::Denied(reason.clone()));
        if response.status() == StatusCode::FORBIDDEN {
            response.headers_mut().insert(REFUSED_BY, HeaderValue::from_static("apiserver"));
        }
    }
    if response.status() == StatusCode::FORBIDDEN {
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_timeout_is_reported_first_unless_long_running() {
        for (path, comes_first) in [
            ("/api/v1/pods", true),
            ("/api/v1/namespaces/a/pods/p", true),
            ("/api/v1/namespaces/a/pods/p/status", true),
            ("/version", true),
            ("/api/v1/pods?watch=1", false),
            ("/api/v1/namespaces/a/pods/p/log", false),
            ("/api/v1/namespaces/a/pods/p/exec", false),
            ("/api/v1/namespaces/a/services/s/proxy/x", false),
        ] {
            for (timeout, is_bad) in [("abc", true), ("1s", false), ("", false)] {
                let (path, query) = path.split_once('?').unwrap_or((path, ""));
                let query = Query::parse(&format!("{query}&timeout={timeout}"));
                let info = RequestInfo::parse("GET", path, &query).expect("well-formed");
                assert_eq!(bad_timeout(&info, &query).is_some(), is_bad && comes_first, "{path} {timeout}");
            }
        }
    }
}
