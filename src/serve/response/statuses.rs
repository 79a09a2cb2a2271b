//! The Statuses of refusals.

use crate::auth::{NotGranted, Revoked};
use crate::listing::OverLimit;
use kubeapi::{Access, Status};

/// The `Retry-After` for a client when a concurrency limit is reached. Lists complete within seconds, and the apiserver
/// uses the same value.
pub(crate) const LIST_RETRY_SECONDS: u32 = 1;
/// The `Retry-After` for a client when upstream is unreachable.
const RETRY_AFTER_SECONDS: u32 = 1;

/// Returns the Status for a caller without permission, with the apiserver's text (R-STATUS-3, R-AUTHZ-3).
pub(crate) fn not_granted(why: &NotGranted, user: &str, access: &Access) -> Status {
    match why {
        NotGranted::Unauthenticated => Status::unauthorized(),
        NotGranted::Denied(reason) => Status::forbidden_access(user, access, reason),
        NotGranted::Unavailable(_) | NotGranted::ReviewsForbidden(_) => unavailable(&why.to_string()),
        NotGranted::TooMany { retry_after_seconds } => Status::too_many_requests(why.to_string(), *retry_after_seconds),
    }
}

/// Returns the Status for a revoked permission.
pub(crate) fn revoked(revoked: &Revoked) -> Status {
    not_granted(&revoked.why, &revoked.user.name, &revoked.access)
}

/// Returns a 503 Status with a `Retry-After`, so that the client retries.
pub(crate) fn unavailable(message: &str) -> Status {
    let mut status = Status::service_unavailable(message);
    status.set_retry_after(RETRY_AFTER_SECONDS);
    status
}

/// Returns the refusal of a request because too many requests are already waiting.
pub(crate) fn too_many_wait(_: OverLimit) -> NotGranted {
    NotGranted::TooMany { retry_after_seconds: LIST_RETRY_SECONDS }
}

pub(crate) fn too_many(shed: OverLimit, retry_seconds: u32) -> Status {
    Status::too_many_requests(shed.to_string(), retry_seconds)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::auth::NotGranted::{Denied, ReviewsForbidden, TooMany, Unauthenticated, Unavailable};
    use kubeapi::{Query, RequestInfo};

    #[test]
    fn each_denial_reason_has_its_status() {
        let query = Query::parse("watch=1");
        let info = RequestInfo::parse("GET", "/api/v1/namespaces/t1/pods", &query).expect("a path");
        let denied = "pods is forbidden: User \"ada\" cannot watch resource \"pods\" in API group \"\" in the \
                      namespace \"t1\"";
        for (why, code, reason, retry, message) in [
            (Unauthenticated, 401, "Unauthorized", None, "Unauthorized".to_owned()),
            (Denied(Arc::from("")), 403, "Forbidden", None, denied.to_owned()),
            (Denied(Arc::from("no")), 403, "Forbidden", None, format!("{denied}: no")),
            (Unavailable("who you are".to_owned()), 503, "ServiceUnavailable", Some(1), "who you are".to_owned()),
            (
                ReviewsForbidden("tokenreviews"),
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
            let told = not_granted(&why, "ada", &Access::of(&info));
            let parts = (told.code, told.reason.as_str(), told.retry_after_seconds(), told.message.as_str());
            assert_eq!(parts, (code, reason, retry, message.as_str()), "{why:?}");
        }
    }
}
