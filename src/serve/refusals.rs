//! Refusals: answers to requests that are neither served nor passed through.

use http::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};

use super::audit::Decision;
use super::body::ReplyBody;
use super::metrics;
use super::response_context::ResponseContext;
use crate::auth::{NotGranted, Revoked};
use crate::kube::{Access, Query, RequestInfo, Status, Verb, check_timeout};
use crate::listing::Shed;

/// When a client may try again for whom there is no place. Lists are over within seconds; the apiserver says the same.
pub(super) const LIST_RETRY_SECONDS: u32 = 1;
/// When a client may try again because upstream is gone.
const RETRY_AFTER_SECONDS: u32 = 1;

pub(super) fn forbid(context: &ResponseContext, why: &str) -> Response<ReplyBody> {
    metrics::refused(403);
    context.status(&Status::from_code(403, why))
}

/// The answer to a caller that gets nothing. A bad `timeout` comes first, whoever sends it (R-ORDER-1).
pub(super) fn turned_away(
    context: &ResponseContext,
    user: &str,
    info: &RequestInfo,
    query: &Query,
    refused: &NotGranted,
) -> Response<ReplyBody> {
    let long_running = matches!(info.verb, Verb::Watch | Verb::Proxy);
    let status = match check_timeout(query) {
        Err(status) if !long_running => status,
        _ => not_granted(refused, user, &Access::of(info)),
    };
    metrics::refused(status.http_code());
    let mut response = context.status(&status);
    if let NotGranted::Denied(reason) = refused {
        response.extensions_mut().insert(Decision::Denied(reason.clone()));
    }
    if response.status() == StatusCode::FORBIDDEN {
        response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    }
    response
}

/// The Status for a caller that gets nothing, in the apiserver's words (R-STATUS-3, R-AUTHZ-3).
pub(super) fn not_granted(why: &NotGranted, user: &str, access: &Access) -> Status {
    match why {
        NotGranted::Unauthenticated => Status::unauthorized(),
        NotGranted::Denied(reason) => Status::forbidden_access(user, access, reason),
        NotGranted::Unavailable(_) | NotGranted::Disowned => unavailable(&why.to_string()),
        NotGranted::TooMany { retry_after_seconds } => Status::too_many_requests(why.to_string(), *retry_after_seconds),
    }
}

/// The Status for a permission that has ended.
pub(super) fn revoked(revoked: &Revoked) -> Status {
    not_granted(&revoked.why, &revoked.user.name, &revoked.access)
}

/// A 503 that the client should repeat.
pub(super) fn unavailable(message: &str) -> Status {
    let mut status = Status::service_unavailable(message);
    status.set_retry_after(RETRY_AFTER_SECONDS);
    status
}

pub(super) fn too_many(shed: Shed, retry_seconds: u32) -> Status {
    Status::too_many_requests(shed.to_string(), retry_seconds)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::auth::NotGranted::{Denied, Disowned, TooMany, Unauthenticated, Unavailable};

    #[test]
    fn each_reason_to_give_nothing_has_its_status() {
        let query = Query::parse("watch=1");
        let info = RequestInfo::parse("GET", "/api/v1/namespaces/t1/pods", &query).expect("a path");
        let denied = "pods is forbidden: User \"ada\" cannot watch resource \"pods\" in API group \"\" in the \
                      namespace \"t1\"";
        for (why, code, reason, retry, message) in [
            (Unauthenticated, 401, "Unauthorized", None, "Unauthorized".to_owned()),
            (Denied(Arc::from("")), 403, "Forbidden", None, denied.to_owned()),
            (Denied(Arc::from("no")), 403, "Forbidden", None, format!("{denied}: no")),
            (Unavailable("who you are".to_owned()), 503, "ServiceUnavailable", Some(1), "who you are".to_owned()),
            (Disowned, 503, "ServiceUnavailable", Some(1), Disowned.to_string()),
            (
                TooMany { retry_after_seconds: 7 },
                429,
                "TooManyRequests",
                Some(7),
                TooMany { retry_after_seconds: 7 }.to_string(),
            ),
        ] {
            let told = not_granted(&why, "ada", &Access::of(&info));
            let parts = (told.code, told.reason.as_str(), told.retry_after_seconds(), told.message.as_str());
            assert_eq!(parts, (code, reason, retry, message.as_str()), "{why:?}");
        }
    }
}
