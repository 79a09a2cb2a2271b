//! What a client is told when upstream gave no answer: every failure has its row.

use super::*;
use crate::kube::EventType;
use crate::serve::admission::AdmissionLimits;
use crate::wire::WireError;

/// Code, reason, when to try again, and the words.
fn told(status: &Status) -> (i32, &str, Option<u32>, &str) {
    (status.code, &status.reason, status.retry_after_seconds(), &status.message)
}

#[tokio::test]
async fn each_failure_of_upstream_has_its_status() {
    let broken = Error::Broken(Error::broken_off().await);
    let broken_off = broken.to_string();
    let other_representation = Error::OtherRepresentation { asked: "json".to_owned(), answered: None };
    for (error, code, reason, retry, message) in [
        (
            Error::Unreachable("refused".into()),
            503,
            "ServiceUnavailable",
            Some(1),
            "upstream cannot be reached: refused",
        ),
        (
            Error::Credentials("/a/path".to_owned()),
            503,
            "ServiceUnavailable",
            Some(1),
            "the proxy's own credentials for upstream cannot be used now",
        ),
        (Error::Timeout(PATIENCE), 504, "Timeout", None, "upstream did not answer within 5s"),
        (broken, 502, "Unknown", None, broken_off.as_str()),
        (
            Error::Unaskable("a b: invalid uri character".to_owned()),
            502,
            "Unknown",
            None,
            "upstream cannot be asked: a b: invalid uri character",
        ),
        // Of what is read here.
        (
            Error::OtherDocument("/version".to_owned()),
            502,
            "Unknown",
            None,
            "upstream answered /version with another document",
        ),
        (
            other_representation,
            502,
            "Unknown",
            None,
            "upstream answered in another representation: asked for json, got None",
        ),
        (
            Error::NotInitial(EventType::Deleted),
            502,
            "Unknown",
            None,
            "upstream tells DELETED among the initial events",
        ),
        (Error::EndlessPages, 502, "Unknown", None, "the pages of upstream's LIST do not end"),
        (Error::HiddenDefinitions, 502, "Unknown", None, "definitions of custom resources may not be read any more"),
        (Error::TooLarge(7), 502, "Unknown", None, "upstream's answer is larger than 7 bytes"),
        (Error::OverBudget, 502, "Unknown", None, "the memory that feeds may take is used up"),
        (
            Error::Wire(WireError::NoMetadata),
            502,
            "Unknown",
            None,
            "upstream's answer does not decode: the object has no metadata",
        ),
    ] {
        assert_eq!(told(&unreachable(&error)), (code, reason, retry, message));
        // Of a write that may have happened nobody is told to try again.
        assert_eq!(told(&unknown(&error)), (502, "Unknown", None, message));
    }
}

#[test]
fn what_upstream_refuses_it_refuses_in_its_own_words() {
    let refused = Status::too_many_requests("later", 7);
    assert_eq!(unreachable(&Error::Refused(Box::new(refused.clone()))), refused);
}

#[test]
fn who_has_no_room_for_a_shared_answer_asks_alone() {
    let admission = Admission::new(&AdmissionLimits { lists_bytes_max: 2 << 10, ..AdmissionLimits::default() });
    let answer = |bytes: usize| Response::new(Bytes::from(vec![0; bytes]));
    assert!(in_place(answer(1 << 10), &admission, None).is_ok());
    assert!(matches!(in_place(answer(64 << 10), &admission, None), Err(Unshared::TooLarge)));
}
