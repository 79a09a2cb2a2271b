use std::collections::BTreeMap;

use super::history::History;
use super::operation::Operation;
use super::record::{AskedServer, EventKind, ReadVerb, RecordedStatus};

/// Requests of one kind that the judged server refused, where no promise says whether it may.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedRequests {
    pub verb: ReadVerb,
    pub code: u16,
    pub count: u64,
    /// What the first of them was told.
    pub message: String,
}

impl RefusedRequests {
    /// All of them, by verb and code. A client may cope with each, and yet not get what it asked for: promises are
    /// judged by answers alone.
    pub fn of(history: &History) -> Vec<Self> {
        let mut refused: BTreeMap<(&str, u16), Self> = BTreeMap::new();
        for op in history.operations.iter().filter(|op| op.server == AskedServer::Subject) {
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

/// The code and the words of an error that nothing is judged by: an object that is not there is an answer, and 410 and
/// versions of the future are `Expired`'s and `Future`'s.
fn refusal(op: &Operation) -> Option<(u16, &str)> {
    let head = op.answer.as_ref().filter(|answer| !(200..300).contains(&answer.code));
    let head = head.map(|answer| (answer.code, &answer.status));
    let is_error = op.events.iter().any(|told| told.kind == EventKind::Error);
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
