//! Refusals: answers to requests that are neither served nor passed through.

use http::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};

use super::audit::Decision;
use super::body::ReplyBody;
use super::metrics;
use super::response_context::ResponseContext;
use crate::auth::NotGranted;
use crate::kube::{Query, RequestInfo, Status, Verb, check_timeout};
use crate::listing::Shed;
use crate::upstream::{set_retry_after, status_from_code};

/// When a client may try again for whom there is no place. Lists are over within seconds; the apiserver says the same.
pub(super) const LIST_RETRY_SECONDS: u32 = 1;
/// When a client may try again because upstream is gone and nothing can be proven.
const RETRY_AFTER_SECONDS: u32 = 1;
pub(super) fn forbid(context: &ResponseContext, why: &str) -> Response<ReplyBody> {
    metrics::refused(403);
    context.status(&status_from_code(403, why))
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
        _ => refused.status(user, info),
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

/// A 503 that the client should repeat.
pub(super) fn unavailable(message: &str) -> Status {
    let mut status = Status::service_unavailable(message);
    set_retry_after(&mut status, RETRY_AFTER_SECONDS);
    status
}

pub(super) fn too_many(shed: Shed, retry_seconds: u32) -> Status {
    Status::too_many_requests(shed.to_string(), retry_seconds)
}
