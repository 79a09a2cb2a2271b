//! Formats delivered and expected events for people.

use super::digest::Digest;
use super::history::History;
use super::operation::ReceivedItem;
use super::record::{EventKind, RecordedEncoding};
use super::truth::{ResourceTruth, TrueChange};
use super::view::ExpectedEvent;

/// Formats an event: `MODIFIED a/x at 7`, `BOOKMARK at 7`.
pub(super) fn told(history: &History, told: &ReceivedItem) -> String {
    let kind = told.kind.as_str();
    match told.kind {
        EventKind::Error => kind.to_owned(),
        EventKind::Bookmark if told.initial_end => {
            format!("the BOOKMARK at {} that ends the initial events", told.version)
        }
        EventKind::Bookmark => format!("{kind} at {}", told.version),
        _ => format!("{kind} {} at {}", history.key(told.key), told.version),
    }
}

/// The same for an expected event.
pub(super) fn expected(history: &History, truth: &ResourceTruth, expected: &ExpectedEvent) -> String {
    let key = history.key(truth.changes[expected.change as usize].key);
    format!("{} {key} at {}", expected.kind.as_str(), expected.version)
}

/// Formats a change, such as `the change MODIFIED a/x at 7`.
pub(super) fn change(history: &History, change: &TrueChange) -> String {
    format!("the change {} {} at {}", change.kind.as_str(), history.key(change.key), change.version)
}

pub(super) fn content(digest: Option<Digest>) -> String {
    digest.map_or_else(|| "with unknown content".to_owned(), |digest| format!("with content {digest}"))
}

pub(super) fn encoding(encoding: RecordedEncoding) -> &'static str {
    match encoding {
        RecordedEncoding::Json => "JSON",
        RecordedEncoding::Protobuf => "protobuf",
        RecordedEncoding::Metadata => "metadata in JSON",
        RecordedEncoding::MetadataProtobuf => "metadata in protobuf",
        RecordedEncoding::Table => "Table",
    }
}
