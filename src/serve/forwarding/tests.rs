//! The responses to clients when upstream gave no response, with one row per failure.

use super::*;
use crate::serve::concurrency::ConcurrencyConfig;
use crate::upstream::Unsendable;
use crate::wire::WireError;
use kubeapi::EventType;

/// Returns the code, reason, retry delay and message.
fn told(status: &Status) -> (i32, &str, Option<u32>, &str) {
    (status.code, &status.reason, status.retry_after_seconds(), &status.message)
}

/// Checks the code and message of each failure, and that only a 503 has a retry delay.
fn assert_told(failures: Vec<(Error, i32, &str)>) {
    for (error, code, message) in failures {
        let reason = match code {
            403 => "Forbidden",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "Unknown",
        };
        assert_eq!(told(&unreachable(&error)), (code, reason, (code == 503).then_some(1), message));
        // A write that may have been applied has no retry delay.
        assert_eq!(told(&unknown(&error)), (502, "Unknown", None, message));
    }
}

#[tokio::test]
async fn where_upstream_fails_its_side_is_named() {
    let broken = Error::Broken(Error::broken_off().await);
    let broken_off = broken.to_string();
    assert_told(vec![
        (Error::Unreachable("refused".into()), 503, "upstream cannot be reached: refused"),
        (Error::Timeout(PATIENCE), 504, "upstream did not answer within 5s"),
        (broken, 502, &broken_off),
        // The reason is only logged.
        (Error::Credentials("/a/path".to_owned()), 503, "the proxy's own credentials for upstream cannot be used now"),
    ]);
}

#[test]
fn what_cannot_be_sent_is_no_failure_of_upstream() {
    let no_impersonator =
        "this proxy has no identity to pass requests of certificate holders on with (delegated.impersonator)";
    let nested = "this proxy impersonates already, and impersonation does not nest";
    let unencodable = "the user has a name or a group that no header can carry";
    assert_told(vec![
        (Error::Unsendable(Unsendable::Nested), 403, nested),
        (Error::Unsendable(Unsendable::NoImpersonator), 403, no_impersonator),
        (Error::Unsendable(Unsendable::UnencodableUser), 403, unencodable),
        (Error::Unaskable("a b: no".to_owned()), 502, "upstream cannot be asked: a b: no"),
    ]);
}

#[test]
fn what_is_found_in_answers_that_are_read_is_a_bad_gateway() {
    let version = Error::OtherDocument("/version".to_owned());
    let representation = Error::OtherRepresentation { asked: "json".to_owned(), answered: None };
    assert_told(vec![
        (version, 502, "upstream answered /version with another document"),
        (representation, 502, "upstream answered in another representation: asked for json, got None"),
        (Error::NotInitial(EventType::Deleted), 502, "upstream tells DELETED among the initial events"),
        (Error::EndlessPages, 502, "the pages of upstream's LIST do not end"),
        (Error::HiddenDefinitions, 502, "definitions of custom resources may not be read any more"),
        (Error::TooLarge(7), 502, "upstream's answer is larger than 7 bytes"),
        (Error::OverBudget, 502, "the memory that feeds may take is used up"),
        (Error::Wire(WireError::NoMetadata), 502, "upstream's answer does not decode: the object has no metadata"),
    ]);
}

#[test]
fn what_upstream_refuses_it_refuses_in_its_own_words() {
    let refused = Status::too_many_requests("later", 7);
    assert_eq!(unreachable(&Error::Refused(Box::new(refused.clone()))), refused);
}

#[test]
fn who_has_no_room_for_a_shared_answer_asks_alone() {
    let concurrency =
        ConcurrencyLimits::new(&ConcurrencyConfig { lists_bytes_max: 2 << 10, ..ConcurrencyConfig::default() });
    let answer = |bytes: usize| Response::new(Bytes::from(vec![0; bytes]));
    assert!(in_place(answer(1 << 10), &concurrency, None).is_ok());
    assert!(matches!(in_place(answer(64 << 10), &concurrency, None), Err(Unshared::TooLarge)));
}
