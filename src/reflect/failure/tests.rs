//! Tests the consequence of each upstream failure: every variant has its row.

use std::time::Duration;

use super::*;
use crate::upstream::Unsendable;
use crate::wire::Encoding;
use kubeapi::{EventType, ObjectKey, ResourceVersion, Status};

fn refused(code: i32) -> Error {
    Error::Refused(Box::new(Status { code, ..Status::default() }))
}

fn other_representation() -> Error {
    Error::OtherRepresentation { asked: "protobuf".to_owned(), answered: Some(Encoding::Json) }
}

/// The end of the feed that the error causes, or `None` if the step is retried.
fn end(error: Error) -> Option<FeedEnd> {
    match over(error) {
        StepFailure::Over(end) => Some(end),
        StepFailure::Upstream(_) => None,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn only_permanent_errors_end_a_feed() {
    for (error, expected) in [
        (Error::Unreachable("nobody listens".into()), None),
        (Error::Broken(Error::broken_off().await), None),
        (Error::Timeout(Duration::from_secs(1)), None),
        (Error::Credentials("expired".to_owned()), None),
        (Error::TooLarge(1), None),
        (refused(400), None),
        (refused(401), None),
        (refused(403), Some(FeedEnd::Forbidden)),
        (refused(404), Some(FeedEnd::Gone)),
        (refused(405), Some(FeedEnd::Gone)),
        (refused(406), Some(FeedEnd::NotOffered)),
        (refused(410), None),
        (refused(429), None),
        (refused(500), None),
        (other_representation(), Some(FeedEnd::NotOffered)),
        (Error::NotInitial(EventType::Modified), Some(FeedEnd::NotOffered)),
        (Error::EndlessPages, Some(FeedEnd::NotOffered)),
        (Error::InvalidRequest("no path".to_owned()), Some(FeedEnd::NotOffered)),
        (Error::OverBudget, Some(FeedEnd::OverBudget)),
        (Error::Wire(WireError::Truncated), None),
        (Error::Wire(WireError::OtherColumns), Some(FeedEnd::Outdated)),
        (Error::Wire(WireError::WrongForm), Some(FeedEnd::Unreadable)),
        (Error::Wire(WireError::BadResourceVersion), Some(FeedEnd::Unreadable)),
        // Errors of requests that no feed sends.
        (Error::Unsendable(Unsendable::Nested), None),
        (Error::OtherDocument("/version".to_owned()), None),
        (Error::HiddenDefinitions, None),
    ] {
        let told = error.to_string();
        assert_eq!(end(error), expected, "{told}");
    }
}

/// A certificate error, wrapped like the libraries wrap it.
fn untrusted() -> std::io::Error {
    std::io::Error::other(std::io::Error::other(rustls::Error::InvalidCertificate(rustls::CertificateError::Expired)))
}

#[tokio::test]
async fn each_error_maps_to_one_failure_kind() {
    use FailureKind as Kind;
    for (error, expected) in [
        (Error::Unreachable("nobody listens".into()), Kind::Unreachable),
        (Error::Unreachable(untrusted().into()), Kind::Untrusted),
        (Error::Broken(Error::broken_off().await), Kind::Broken),
        (Error::Timeout(Duration::from_secs(1)), Kind::Timeout),
        (Error::Credentials("expired".to_owned()), Kind::Credentials),
        (refused(503), Kind::Refused),
        (Error::Unsendable(Unsendable::Nested), Kind::Refused),
        (Error::OverBudget, Kind::OverBudget),
        (Error::TooLarge(1), Kind::Unreadable),
        (Error::Wire(WireError::Truncated), Kind::Unreadable),
        (other_representation(), Kind::Unreadable),
        (Error::NotInitial(EventType::Deleted), Kind::Unreadable),
        (Error::EndlessPages, Kind::Unreadable),
        (Error::InvalidRequest("no path".to_owned()), Kind::Unreadable),
        (Error::OtherDocument("/version".to_owned()), Kind::Unreadable),
        (Error::HiddenDefinitions, Kind::Unreadable),
    ] {
        let told = error.to_string();
        assert_eq!(StepFailure::Stream(StreamEnd::Failed(error)).kind(), expected, "{told}");
    }
    let (key, rv) = (ObjectKey::new("t1", "a"), ResourceVersion(1));
    let out_of_order = crate::cache::OutOfOrder { key, rv, progress: rv };
    for (failure, expected) in [
        (StepFailure::Over(FeedEnd::Gone), Kind::Over),
        (StepFailure::Stream(StreamEnd::Clean), Kind::Ended),
        (StepFailure::Stream(StreamEnd::Silent), Kind::Silent),
        (StepFailure::OutOfOrder(out_of_order), Kind::OutOfOrder),
        (StepFailure::Upstream(refused(500)), Kind::Refused),
    ] {
        assert_eq!(failure.kind(), expected, "{failure}");
    }
}

#[test]
fn failure_kinds_have_stable_labels_and_connection_flag() {
    use FailureKind as Kind;
    for (kind, is_connection, label) in [
        (Kind::Over, false, "feed_terminated"),
        (Kind::Ended, true, "closed_at_once"),
        (Kind::Silent, true, "idle_timeout"),
        (Kind::OutOfOrder, false, "out_of_order"),
        (Kind::Unreachable, true, "unreachable"),
        (Kind::Untrusted, true, "untrusted"),
        (Kind::Broken, true, "connection_lost"),
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
        (Error::NotInitial(EventType::Modified), false),
        (Error::Timeout(Duration::from_secs(1)), false),
    ] {
        assert_eq!(refuses_watch_list(&error), expected, "{error}");
    }
}
