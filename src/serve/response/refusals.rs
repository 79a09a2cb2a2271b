//! Refusals: responses to requests that are neither served nor forwarded.

use http::header::{EXPECT, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Request, Response, StatusCode, Version};

use crate::auth::{GrantError, RevokedPermission};
use crate::listing::LimitExceeded;
use crate::net::RequestBody;
use crate::serve::audit::AuditDecision;
use crate::serve::response::body::ResponseBody;
use crate::serve::response::context::{REFUSED_BY, ResponseContext};
use kubeapi::{AccessAttributes, RequestInfo, Status};

/// The `Retry-After` for a client when a concurrency limit is reached. Lists complete within seconds, and the apiserver
/// uses the same value.
pub(crate) const LIST_RETRY_SECONDS: u32 = 1;
/// The `Retry-After` for a client when upstream is unreachable.
const RETRY_AFTER_SECONDS: u32 = 1;

/// Returns the Status for a caller without permission, with the apiserver's text (R-STATUS-3, R-AUTHZ-3).
pub(crate) fn denied_status(error: &GrantError, user: &str, access: &AccessAttributes) -> Status {
    match error {
        GrantError::Unauthenticated => Status::unauthorized(),
        GrantError::Denied(reason) => Status::forbidden_access(user, access, reason),
        GrantError::TooManyNamespaces { .. } => Status::forbidden_access(user, access, &error.to_string()),
        GrantError::Unavailable(_) | GrantError::ReviewsForbidden(_) | GrantError::RulesUnknown { .. } => {
            unavailable(&error.to_string())
        }
        GrantError::TooMany { retry_after_seconds } => {
            Status::too_many_requests(error.to_string(), *retry_after_seconds)
        }
    }
}

/// Returns the Status for a revoked permission.
pub(crate) fn revoked(revoked: &RevokedPermission) -> Status {
    denied_status(&revoked.reason, &revoked.user.name, &revoked.access)
}

/// Returns a 503 Status with a `Retry-After`, so that the client retries.
pub(crate) fn unavailable(message: &str) -> Status {
    let mut status = Status::service_unavailable(message);
    status.set_retry_after(RETRY_AFTER_SECONDS);
    status
}

/// Returns the refusal of a request because too many requests are already waiting.
pub(crate) fn too_many_waiting(_: LimitExceeded) -> GrantError {
    GrantError::TooMany { retry_after_seconds: LIST_RETRY_SECONDS }
}

pub(crate) fn too_many(shed: LimitExceeded, retry_seconds: u32) -> Status {
    Status::too_many_requests(shed.to_string(), retry_seconds)
}

/// Whether an HTTP/1 request has an `Expect` header that no server can meet: only `100-continue` is defined (RFC 9110
/// §10.1.1). Go's server checks this before any handler, and for HTTP/1 only.
pub(crate) fn has_unsupported_expect(request: &Request<RequestBody>) -> bool {
    let expected = request.headers().get(EXPECT).map(|expected| expected.to_str().unwrap_or("?")).unwrap_or_default();
    let is_met = |expectation: &str| expectation.trim().eq_ignore_ascii_case("100-continue");
    request.version() < Version::HTTP_2 && !expected.is_empty() && !expected.split(',').any(is_met)
}

/// Returns the response to a caller without permission.
pub(crate) fn auth_refusal(
    context: &ResponseContext,
    user: &str,
    info: &RequestInfo,
    refused: &GrantError,
) -> Response<ResponseBody> {
    let mut response = context.status(&denied_status(refused, user, &AccessAttributes::from_request(info)));
    let decision = match refused {
        GrantError::Denied(reason) => AuditDecision::Denied(reason.clone()),
        GrantError::TooManyNamespaces { .. } => AuditDecision::Denied(refused.to_string().into()),
        _ => AuditDecision::Unknown,
    };
    response.extensions_mut().insert(decision);
    if response.status() == StatusCode::FORBIDDEN {
        let by = if matches!(refused, GrantError::TooManyNamespaces { .. }) { "proxy" } else { "apiserver" };
        response.headers_mut().insert(REFUSED_BY, HeaderValue::from_static(by));
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    response
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kubeapi::UrlQuery;

    use super::*;
    use crate::auth::GrantError::{Denied, ReviewsForbidden, TooMany, TooManyNamespaces, Unauthenticated, Unavailable};

    #[test]
    fn each_denial_reason_has_its_status() {
        let query = UrlQuery::parse("watch=1");
        let info = RequestInfo::parse("GET", "/api/v1/namespaces/t1/pods", &query).expect("a path");
        let denied = "pods is forbidden: User \"ada\" cannot watch resource \"pods\" in API group \"\" in the \
                      namespace \"t1\"";
        for (error, code, reason, retry, message) in [
            (Unauthenticated, 401, "Unauthorized", None, "Unauthorized".to_owned()),
            (Denied(Arc::from("")), 403, "Forbidden", None, denied.to_owned()),
            (Denied(Arc::from("no")), 403, "Forbidden", None, format!("{denied}: no")),
            (
                TooManyNamespaces { max: 7 },
                403,
                "Forbidden",
                None,
                format!("{denied}: {}", TooManyNamespaces { max: 7 }),
            ),
            (Unavailable("who you are".to_owned()), 503, "ServiceUnavailable", Some(1), "who you are".to_owned()),
            (
                ReviewsForbidden("the proxy's account may not create tokenreviews (RBAC)".to_owned()),
                503,
                "ServiceUnavailable",
                Some(1),
                "the proxy's account may not create tokenreviews (RBAC)".to_owned(),
            ),
            (
                TooMany { retry_after_seconds: 7 },
                429,
                "TooManyRequests",
                Some(7),
                TooMany { retry_after_seconds: 7 }.to_string(),
            ),
        ] {
            let reported = denied_status(&error, "ada", &AccessAttributes::from_request(&info));
            let parts =
                (reported.code, reported.reason.as_str(), reported.retry_after_seconds(), reported.message.as_str());
            assert_eq!(parts, (code, reason, retry, message.as_str()), "{error:?}");
        }
    }
}
