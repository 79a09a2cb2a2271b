//! The last steps for every response: write the audit record, count refusals, and add the debug page entry.

use http::{Response, StatusCode};

use crate::serve::activity::{ActiveWatches, RequestSource, metrics};
use crate::serve::audit::ServedLocally;
use crate::serve::response::body::ReplyBody;
use crate::serve::response::context::{REASON, ResponseContext};
use crate::serve::response::statuses::unavailable;

/// Writes the audit record of the response. Returns the response, or a refusal if a required record cannot be written.
pub(crate) fn record(context: &ResponseContext, response: Response<ReplyBody>) -> Response<ReplyBody> {
    match &context.record {
        Some(record) if !record.answered(&response) => {
            metrics::records("refused", 1);
            context.status(&unavailable("the audit log queue is full, and this read must be audited; try again"))
        }
        _ => response,
    }
}

/// Counts an error response that the proxy generated.
pub(crate) fn count(response: &Response<ReplyBody>) {
    if let Some(ServedLocally { status: Some(status), .. }) = response.extensions().get() {
        metrics::refused(status.http_code());
    }
}

/// Adds a refusal, or a forwarded read, to the recent events of the debug pages. `asked` is the method and the path.
pub(crate) fn show(
    active_watches: &ActiveWatches,
    response: &Response<ReplyBody>,
    who: &RequestSource,
    asked: (&str, &str),
) {
    if let Some(ServedLocally { status: Some(status), .. }) = response.extensions().get() {
        if response.status() != StatusCode::NOT_FOUND {
            active_watches.refused(who, asked, (status.http_code(), &status.message));
        }
    } else if let Some(reason) = response.headers().get(REASON).and_then(|reason| reason.to_str().ok())
        && ["GET", "HEAD"].contains(&asked.0)
    {
        active_watches.passed(who, asked, reason);
    }
}
