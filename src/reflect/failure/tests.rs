//! Tests the consequence of each upstream failure: every variant has its row.

use std::time::Duration;

use super::*;
use crate::upstream::UnsendableRequest;
use crate::wire::{DeltaError, FeedEncoding};
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
        ReflectorStepError::Stream(_) => None,
        other @ ReflectorStepError::OutOfOrder(_) => panic!("{other:?}"),
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
    for (error, label, is_connection) in [
        (UpstreamError::Unreachable("connection refused".into()), "unreachable", true),
        (UpstreamError::Unreachable(untrusted().into()), "untrusted", true),
        (UpstreamError::ConnectionLost(UpstreamError::broken_off().await), "connection_lost", true),
        (UpstreamError::Timeout(Duration::from_secs(1)), "timeout", true),
        (UpstreamError::Credentials("expired".to_owned()), "credentials", false),
        (refused(503), "refused", false),
        (UpstreamError::Unsendable(UnsendableRequest::Nested), "refused", false),
        (UpstreamError::OverBudget, "over_budget", false),
        (UpstreamError::TooLarge(1), "unreadable", false),
        (UpstreamError::Wire(WireError::Truncated), "unreadable", false),
        (UpstreamError::Wire(WireError::Delta(DeltaError::WrongDigest)), "delta_wrong_digest", true),
        (other_representation(), "unreadable", false),
        (UpstreamError::NotInitial(EventType::Deleted), "unreadable", false),
        (UpstreamError::EndlessPages, "unreadable", false),
        (UpstreamError::InvalidRequest("no path".to_owned()), "unreadable", false),
        (UpstreamError::OtherDocument("/version".to_owned()), "unreadable", false),
        (UpstreamError::HiddenDefinitions, "unreadable", false),
    ] {
        let failure = ReflectorStepError::Stream(WatchStreamEnd::Failed(error));
        assert_eq!((failure.as_str(), failure.is_connection()), (label, is_connection), "{failure}");
        assert_eq!(failure.is_unreadable(), label == "unreadable");
    }
    let (key, rv) = (ObjectKey::new("t1", "a"), ResourceVersion(1));
    let out_of_order = crate::cache::OutOfOrderChange { key, rv, progress: rv };
    for (failure, label, is_connection) in [
        (ReflectorStepError::FeedTerminated(FeedEndReason::Gone), "feed_terminated", false),
        (ReflectorStepError::Stream(WatchStreamEnd::Closed), "closed_at_once", true),
        (ReflectorStepError::Stream(WatchStreamEnd::IdleTimeout), "idle_timeout", true),
        (ReflectorStepError::OutOfOrder(out_of_order), "out_of_order", false),
        (refused(500).into(), "refused", false),
    ] {
        assert_eq!((failure.as_str(), failure.is_connection()), (label, is_connection), "{failure}");
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
