//! Formats delivered and expected events for people.

use super::digest::ContentDigest;
use super::history::RunHistory;
use super::operation::ReceivedItem;
use super::record::{RecordedEncoding, RecordedEventType};
use super::truth::{GroundTruthChange, ResourceGroundTruth};
use super::view::ExpectedEvent;

/// Formats an event: `MODIFIED a/x at 7`, `BOOKMARK at 7`.
pub(super) fn received(history: &RunHistory, received: &ReceivedItem) -> String {
    let kind = received.kind.as_str();
    match received.kind {
        RecordedEventType::Error => kind.to_owned(),
        RecordedEventType::Bookmark if received.initial_end => {
            format!("the BOOKMARK at {} that ends the initial events", received.version)
        }
        RecordedEventType::Bookmark => format!("{kind} at {}", received.version),
        _ => format!("{kind} {} at {}", history.key(received.key), received.version),
    }
}

/// The same for an expected event.
pub(super) fn expected(history: &RunHistory, truth: &ResourceGroundTruth, expected: &ExpectedEvent) -> String {
    let key = history.key(truth.changes[expected.change as usize].key);
    format!("{} {key} at {}", expected.kind.as_str(), expected.version)
}

/// Formats a change, such as `the change MODIFIED a/x at 7`.
pub(super) fn change(history: &RunHistory, change: &GroundTruthChange) -> String {
    format!("the change {} {} at {}", change.kind.as_str(), history.key(change.key), change.version)
}

pub(super) fn content(digest: Option<ContentDigest>) -> String {
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
