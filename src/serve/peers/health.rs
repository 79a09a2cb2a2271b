use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Method, Request, Response, StatusCode};

use crate::serve::activity::metrics::{self, AnsweredFrom};
use crate::serve::audit::ServedLocally;
use crate::serve::response::{ReplyBody, put_served};
use base::Ready;
use kubeapi::RequestInfo;

/// Returns the health of this proxy to a proxy below it, for which this proxy is the upstream. It needs no
/// authorization, because the response contains no data about any caller.
pub(crate) fn health<B>(request: &Request<B>, info: &RequestInfo, ready: &Ready) -> Option<Response<ReplyBody>> {
    if *request.method() != Method::GET || request.uri().query().is_some() || !info.is_canonical {
        return None;
    }
    let is_well = match info.path.as_str() {
        "/livez" | "/healthz" => true,
        "/readyz" => ready.is_ready(),
        _ => return None,
    };
    metrics::answered_proxy("health", AnsweredFrom::Memory);
    let failed = (StatusCode::SERVICE_UNAVAILABLE, "readyz check failed\n");
    let (status, text) = if is_well { (StatusCode::OK, "ok") } else { failed };
    let mut response = Response::new(ReplyBody::full(Bytes::from_static(text.as_bytes())));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    put_served(headers, None);
    response.extensions_mut().insert(ServedLocally { is_served: true, ..ServedLocally::default() });
    Some(response)
}
