//! Tests the consequence of each upstream failure: every variant has its row.

use std::time::Duration;

use super::*;
use crate::upstream::UnsendableRequest;
use crate::wire::FeedEncoding;
use kubeapi::{EventType, ObjectKey, ResourceVersion, Status};

fn refused(code: i32) -> UpstreamError {
    UpstreamError::Refused(Box::new(Status { code, ..Status::default() }))
}

fn other_representation() -> UpstreamError {
    UpstreamError::OtherRepresentation { requested: "protobuf".to_owned(), answered: Some(FeedEncoding::Json) }
}

/// The end of the feed that the error causes, or `None` if the step is retried.
fn end(error: UpstreamError) -> Option<FeedEndReason> {
    match classify(error) {
        ReflectorStepError::FeedTerminated(end) => Some(end),
        ReflectorStepError::Upstream(_) => None,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn only_permanent_errors_end_a_feed() {
    for (error, expected) in [
        (UpstreamError::Unreachable("connection refused".into()), None),
        (UpstreamError::ConnectionLost(UpstreamError::broken_off().await), None),
        (UpstreamError::Timeout(Duration::from_secs(1)), None),
        (UpstreamError::Credentials("expired".to_owned()), None),
        (UpstreamError::TooLarge(1), None),
        (refused(400), None),
        (refused(401), None),
        (refused(403), Some(FeedEndReason::Forbidden)),
        (refused(404), Some(FeedEndReason::Gone)),
        (refused(405), Some(FeedEndReason::Gone)),
        (refused(406), Some(FeedEndReason::NotOffered)),
        (refused(410), None),
        (refused(429), None),
        (refused(500), None),
        (other_representation(), Some(FeedEndReason::NotOffered)),
        (UpstreamError::NotInitial(EventType::Modified), Some(FeedEndReason::NotOffered)),
        (UpstreamError::EndlessPages, Some(FeedEndReason::NotOffered)),
        (UpstreamError::InvalidRequest("no path".to_owned()), Some(FeedEndReason::NotOffered)),
        (UpstreamError::OverBudget, Some(FeedEndReason::OverBudget)),
        (UpstreamError::Wire(WireError::Truncated), None),
        (UpstreamError::Wire(WireError::Delta(DeltaError::Malformed)), None),
        (UpstreamError::Wire(WireError::OtherColumns), Some(FeedEndReason::Outdated)),
        (UpstreamError::Wire(WireError::WrongEncoding), Some(FeedEndReason::Unreadable)),
        (UpstreamError::Wire(WireError::BadResourceVersion), Some(FeedEndReason::Unreadable)),
        // Errors of requests that no feed sends.
        (UpstreamError::Unsendable(UnsendableRequest::Nested), None),
        (UpstreamError::OtherDocument("/version".to_owned()), None),
        (UpstreamError::HiddenDefinitions, None),
    ] {
        let reported = error.to_string();
        assert_eq!(end(error), expected, "{reported}");
    }
}

/// A certificate error, wrapped like the libraries wrap it.
fn untrusted() -> std::io::Error {
    std::io::Error::other(std::io::Error::other(rustls::Error::InvalidCertificate(rustls::CertificateError::Expired)))
}

#[tokio::test]
async fn each_error_maps_to_one_failure_kind() {
    use ReflectorFailureKind as Kind;
    for (error, expected) in [
        (UpstreamError::Unreachable("connection refused".into()), Kind::Unreachable),
        (UpstreamError::Unreachable(untrusted().into()), Kind::Untrusted),
        (UpstreamError::ConnectionLost(UpstreamError::broken_off().await), Kind::ConnectionLost),
        (UpstreamError::Timeout(Duration::from_secs(1)), Kind::Timeout),
        (UpstreamError::Credentials("expired".to_owned()), Kind::Credentials),
        (refused(503), Kind::Refused),
        (UpstreamError::Unsendable(UnsendableRequest::Nested), Kind::Refused),
        (UpstreamError::OverBudget, Kind::OverBudget),
        (UpstreamError::TooLarge(1), Kind::Unreadable),
        (UpstreamError::Wire(WireError::Truncated), Kind::Unreadable),
        (UpstreamError::Wire(WireError::Delta(DeltaError::WrongDigest)), Kind::Delta(DeltaError::WrongDigest)),
        (other_representation(), Kind::Unreadable),
        (UpstreamError::NotInitial(EventType::Deleted), Kind::Unreadable),
        (UpstreamError::EndlessPages, Kind::Unreadable),
        (UpstreamError::InvalidRequest("no path".to_owned()), Kind::Unreadable),
        (UpstreamError::OtherDocument("/version".to_owned()), Kind::Unreadable),
        (UpstreamError::HiddenDefinitions, Kind::Unreadable),
    ] {
        let reported = error.to_string();
        assert_eq!(ReflectorStepError::Stream(WatchStreamEnd::Failed(error)).kind(), expected, "{reported}");
    }
    let (key, rv) = (ObjectKey::new("t1", "a"), ResourceVersion(1));
    let out_of_order = crate::cache::OutOfOrderChange { key, rv, progress: rv };
    for (failure, expected) in [
        (ReflectorStepError::FeedTerminated(FeedEndReason::Gone), Kind::FeedTerminated),
        (ReflectorStepError::Stream(WatchStreamEnd::Closed), Kind::ClosedAtOnce),
        (ReflectorStepError::Stream(WatchStreamEnd::IdleTimeout), Kind::IdleTimeout),
        (ReflectorStepError::OutOfOrder(out_of_order), Kind::OutOfOrder),
        (ReflectorStepError::Upstream(refused(500)), Kind::Refused),
    ] {
        assert_eq!(failure.kind(), expected, "{failure}");
    }
}

#[test]
fn failure_kinds_have_stable_labels_and_connection_flag() {
    use ReflectorFailureKind as Kind;
    for (kind, is_connection, label) in [
        (Kind::FeedTerminated, false, "feed_terminated"),
        (Kind::ClosedAtOnce, true, "closed_at_once"),
        (Kind::IdleTimeout, true, "idle_timeout"),
        (Kind::OutOfOrder, false, "out_of_order"),
        (Kind::Unreachable, true, "unreachable"),
        (Kind::Untrusted, true, "untrusted"),
        (Kind::ConnectionLost, true, "connection_lost"),
        (Kind::Timeout, true, "timeout"),
        (Kind::Credentials, false, "credentials"),
        (Kind::Refused, false, "refused"),
        (Kind::OverBudget, false, "over_budget"),
        (Kind::Unreadable, false, "unreadable"),
    ] {
        assert_eq!((kind.is_connection(), kind.as_str()), (is_connection, label));
    }
}

#[test]
fn only_watch_list_rejection_falls_back_to_paged_lists() {
    for (error, expected) in [
        (refused(400), true),
        (refused(422), true),
        (refused(403), false),
        (refused(410), false),
        (refused(429), false),
        (refused(504), false),
        (other_representation(), false),
        (UpstreamError::NotInitial(EventType::Modified), false),
        (UpstreamError::Timeout(Duration::from_secs(1)), false),
    ] {
        assert_eq!(refuses_watch_list(&error), expected, "{error}");
    }
}
