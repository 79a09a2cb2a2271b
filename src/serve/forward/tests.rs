//! The responses to clients when upstream gave no response, with one row per failure.

use super::*;
use crate::serve::limits::ConcurrencyConfig;
use crate::upstream::UnsendableRequest;
use crate::wire::WireError;
use kubeapi::EventType;

/// Returns the code, reason, retry delay and message.
fn reported(status: &Status) -> (i32, &str, Option<u32>, &str) {
    (status.code, &status.reason, status.retry_after_seconds(), &status.message)
}

/// Checks the code and message of each failure, and that only a 503 has a retry delay.
fn assert_reported(failures: Vec<(UpstreamError, i32, &str)>) {
    for (error, code, message) in failures {
        let reason = match code {
            403 => "Forbidden",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "Unknown",
        };
        assert_eq!(reported(&unreachable(&error)), (code, reason, (code == 503).then_some(1), message));
        // A write that may have been applied has no retry delay.
        assert_eq!(reported(&maybe_applied(&error)), (502, "Unknown", None, message));
    }
}

#[tokio::test]
async fn upstream_failure_returns_gateway_error() {
    let broken = UpstreamError::ConnectionLost(UpstreamError::broken_off().await);
    let broken_off = broken.to_string();
    assert_reported(vec![
        (UpstreamError::Unreachable("refused".into()), 503, "upstream cannot be reached: refused"),
        (UpstreamError::Timeout(HEAD_TIMEOUT_SLACK), 504, "upstream did not respond within 5s"),
        (broken, 502, &broken_off),
        // Its reason is for the log.
        (UpstreamError::Credentials("/a/path".to_owned()), 503, "the proxy cannot load its upstream credentials"),
    ]);
}

#[test]
fn unsendable_request_is_refused_by_the_proxy() {
    let no_impersonator = "requests with client certificates cannot be forwarded: set delegated.impersonator";
    let nested = "the proxy's own credentials already impersonate a user, and impersonation cannot be nested";
    let unencodable = "cannot impersonate the user: its name or a group has characters that HTTP headers do not allow";
    assert_reported(vec![
        (UpstreamError::Unsendable(UnsendableRequest::Nested), 403, nested),
        (UpstreamError::Unsendable(UnsendableRequest::NoImpersonator), 403, no_impersonator),
        (UpstreamError::Unsendable(UnsendableRequest::UnencodableUser), 403, unencodable),
        (UpstreamError::InvalidRequest("a b: no".to_owned()), 502, "cannot build the upstream request: a b: no"),
    ]);
}

#[test]
fn unusable_upstream_response_returns_502() {
    let version = UpstreamError::OtherDocument("/version".to_owned());
    let representation = UpstreamError::OtherRepresentation { requested: "json".to_owned(), answered: None };
    assert_reported(vec![
        (version, 502, "upstream returned an unexpected document for /version"),
        (representation, 502, "upstream returned an unknown content type, but json was requested"),
        (
            UpstreamError::NotInitial(EventType::Deleted),
            502,
            "upstream sent DELETED among the initial events of a watch (expected ADDED)",
        ),
        (
            UpstreamError::EndlessPages,
            502,
            "upstream's paginated list does not end: it repeats a continue token or sends empty pages",
        ),
        (
            UpstreamError::HiddenDefinitions,
            502,
            "the proxy's account may no longer list customresourcedefinitions (RBAC)",
        ),
        (UpstreamError::TooLarge(7), 502, "upstream's response is larger than 7 bytes"),
        (UpstreamError::OverBudget, 502, "the memory budget for feeds is used up; raise feeds.memoryMebibytes"),
        (
            UpstreamError::Wire(WireError::NoMetadata),
            502,
            "cannot decode upstream's response: the object has no metadata",
        ),
    ]);
}

#[test]
fn upstream_refusal_status_is_returned_unchanged() {
    let refused = Status::too_many_requests("later", 7);
    assert_eq!(unreachable(&UpstreamError::Refused(Box::new(refused.clone()))), refused);
}

#[test]
fn shared_response_above_list_budget_is_not_shared() {
    let concurrency =
        ConcurrencyLimits::new(&ConcurrencyConfig { lists_bytes_max: 2 << 10, ..ConcurrencyConfig::default() });
    let body = |bytes: usize| Bytes::from(vec![0; bytes]);
    assert!(permit_for(&body(1 << 10), &concurrency, None).is_ok());
    assert!(matches!(permit_for(&body(64 << 10), &concurrency, None), Err(CoalesceError::TooLarge)));
}
