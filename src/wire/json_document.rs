//! The JSON around objects: event lines, `TypeMeta`, LIST pages and Status.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::WireError;
use super::envelope::{JSON_EVENT_HEAD, JSON_EVENT_OBJECT, JSON_EVENT_TAIL, json_text};
use kubeapi::EventType;

/// Splits an event line into its type and its object. The line must have the bytes that
/// [`Envelope::frame`](super::Envelope::frame) puts around them: another layout could not be reproduced from the body.
/// The object's reader checks that it is one JSON value.
pub(super) fn split_event(line: &[u8]) -> Result<(EventType, &[u8]), WireError> {
    const ODD: WireError = WireError::Layout("a watch line is not {\"type\":…,\"object\":…} and a newline");
    if line.first() != Some(&b'{') {
        return Err(WireError::WrongForm);
    }
    let rest = line.strip_prefix(JSON_EVENT_HEAD).ok_or(ODD)?;
    let name = &rest[..memchr::memchr(b'"', rest).ok_or(ODD)?];
    let rest = rest[name.len()..].strip_prefix(JSON_EVENT_OBJECT).ok_or(ODD)?;
    let object = rest.strip_suffix(JSON_EVENT_TAIL).ok_or(ODD)?;
    let event_type = std::str::from_utf8(name).ok().and_then(EventType::parse).ok_or(WireError::UnknownEventType)?;
    Ok((event_type, object))
}

/// Returns the length of the `TypeMeta` at the start of a built-in kind's object, which its body omits.
pub(super) fn type_meta_len(document: &str, kind: &str, api_version: &str) -> Result<usize, WireError> {
    let head = |document: &str| -> Option<usize> {
        let rest = document.strip_prefix(r#"{"kind":"#)?.strip_prefix(&*quoted(kind))?;
        let rest = rest.strip_prefix(r#","apiVersion":"#)?.strip_prefix(&*quoted(api_version))?;
        Some(document.len() - rest.strip_prefix(',')?.len())
    };
    head(document).ok_or(WireError::Layout("an object does not begin with kind and apiVersion"))
}

fn quoted(text: &str) -> Cow<'_, str> {
    json_text(text).into()
}

/// Converts JSON text to a `str`, so that it is validated once.
pub(super) fn utf8(bytes: &[u8]) -> Result<&str, WireError> {
    std::str::from_utf8(bytes).map_err(|_| WireError::NotUtf8)
}

/// A LIST page; its items are slices of the document.
#[derive(Deserialize)]
pub(super) struct ParsedPage<'a> {
    #[serde(borrow)]
    pub(super) kind: Cow<'a, str>,
    #[serde(borrow, rename = "apiVersion")]
    pub(super) api_version: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) metadata: PageMetadata<'a>,
    /// The items: `null` for an empty `PartialObjectMetadataList` (R-META-1). The member is required, so that an object
    /// is not mistaken for a list.
    #[serde(borrow)]
    pub(super) items: Items<'a>,
}

#[derive(Deserialize)]
pub(super) struct Items<'a>(#[serde(borrow)] pub(super) Option<Vec<&'a RawValue>>);

#[derive(Deserialize)]
pub(super) struct PageMetadata<'a> {
    #[serde(borrow, default, rename = "resourceVersion")]
    pub(super) resource_version: Cow<'a, str>,
    #[serde(default, rename = "continue")]
    pub(super) continue_token: String,
    #[serde(default, rename = "remainingItemCount")]
    pub(super) remaining: Option<i64>,
}

/// The parts of a Status that determine how the proxy reacts.
#[derive(Deserialize)]
pub(super) struct ParsedStatus {
    #[serde(default)]
    pub(super) code: i64,
    #[serde(default)]
    pub(super) reason: String,
    #[serde(default)]
    pub(super) message: String,
    #[serde(default)]
    pub(super) details: Option<ParsedStatusDetails>,
}

#[derive(Deserialize)]
pub(super) struct ParsedStatusDetails {
    #[serde(default, rename = "retryAfterSeconds")]
    pub(super) retry_after_seconds: i64,
}
