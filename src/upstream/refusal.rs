use crate::kube::{Status, StatusDetails};

/// The Status for an answer that carries only a code and some text.
///
/// The reason is the one that belongs to the code (apimachinery's `NewGenericServerResponse`), so that callers need
/// only look at Statuses.
pub fn status_from_code(code: u16, text: &str) -> Status {
    let reason = match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        405 => "MethodNotAllowed",
        406 => "NotAcceptable",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "Unknown",
    };
    Status {
        kind: "Status".to_owned(),
        api_version: "v1".to_owned(),
        status: "Failure".to_owned(),
        message: text.to_owned(),
        reason: reason.to_owned(),
        code: i32::from(code),
        ..Status::default()
    }
}

/// Puts a `Retry-After` that came as a header where a Status keeps it.
pub fn set_retry_after(status: &mut Status, seconds: u32) {
    let details = status.details.get_or_insert_with(StatusDetails::default);
    details.retry_after_seconds = i32::try_from(seconds).unwrap_or(i32::MAX);
}
