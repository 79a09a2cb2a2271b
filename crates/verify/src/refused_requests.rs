use std::collections::BTreeMap;

use super::history::RunHistory;
use super::operation::RecordedOperation;
use super::record::{ReadVerb, RecordedEventType, RecordedStatus, RequestServerRole};

/// Requests of one kind that the judged server refused, without a promise about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRequests {
    pub verb: ReadVerb,
    pub code: u16,
    pub count: u64,
    /// The message of the first refusal.
    pub message: String,
}

impl RefusedRequests {
    /// Collects all refused requests, by verb and code. A client may handle each and still not get its data. No
    /// guarantee covers this, because guarantees are judged by successful responses only.
    pub fn of(history: &RunHistory) -> Vec<Self> {
        let mut refused: BTreeMap<(&str, u16), Self> = BTreeMap::new();
        for op in history.operations.iter().filter(|op| op.server == RequestServerRole::Subject) {
            let Some((code, message)) = refusal(op) else { continue };
            let (verb, message) = (op.verb, message.to_owned());
            refused.entry((name(verb), code)).or_insert(Self { verb, code, count: 0, message }).count += 1;
        }
        refused.into_values().collect()
    }
}

impl std::fmt::Display for RefusedRequests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { verb, code, count, message } = self;
        write!(f, "{count} {} refused with {code}: {message}", name(*verb))
    }
}

/// Returns the code and message of an error that no promise covers. A 404 for a missing object is an ordinary response,
/// and `Expired` and `Future` cover 410 and future versions.
fn refusal(op: &RecordedOperation) -> Option<(u16, &str)> {
    let head = op.answer.as_ref().filter(|answer| !(200..300).contains(&answer.code));
    let head = head.map(|answer| (answer.code, &answer.status));
    let is_error = op.events.iter().any(|received| received.kind == RecordedEventType::Error);
    let event = op.errors.first().filter(|_| is_error);
    let event = event.map(|status| (status.code, status));
    let (code, status) = head.or(event)?;
    let is_absent = op.verb == ReadVerb::Get && code == 404;
    (!is_absent && code != 410 && !is_of_the_future(status)).then_some((code, &status.message))
}

pub(super) fn is_of_the_future(status: &RecordedStatus) -> bool {
    status.cause == "ResourceVersionTooLarge" || status.message.contains("Too large resource version")
}

fn name(verb: ReadVerb) -> &'static str {
    match verb {
        ReadVerb::Get => "GETs",
        ReadVerb::List => "lists",
        ReadVerb::Watch => "watches",
    }
}
