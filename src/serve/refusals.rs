//! Refusals: answers to requests that are neither served nor passed through.

use http::header::{HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};

use super::audit::Decision;
use super::body::ReplyBody;
use super::metrics;
use super::response_context::ResponseContext;
use super::statuses::not_granted;
use crate::auth::NotGranted;
use crate::kube::{Access, Query, RequestInfo, Status, Verb, check_timeout};

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
