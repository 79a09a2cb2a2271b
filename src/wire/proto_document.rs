//! The protobuf around objects: watch events, Unknown documents and Status.

use super::WireError;
use super::envelope::{
    EVENT_OBJECT, EVENT_TYPE, LENGTH_PREFIX, RAW_EXTENSION_RAW, UNKNOWN_CONTENT_ENCODING, UNKNOWN_CONTENT_TYPE,
    UNKNOWN_RAW, UNKNOWN_TAIL, UNKNOWN_TYPE_META,
};
use super::json_document::{ParsedStatus, ParsedStatusDetails};
use super::protobuf::{Fields, MAGIC, Value, map_entry, plain_field};
use kubeapi::EventType;

/// The parts of a protobuf document: `k8s\0` and Unknown.
pub(super) struct Document<'a> {
    pub(super) api_version: &'a str,
    pub(super) kind: &'a str,
    pub(super) raw: &'a [u8],
}

impl<'a> Document<'a> {
    /// Splits a whole protobuf document. All lengths are checked against the document.
    pub(super) fn split(document: &'a [u8]) -> Result<Self, WireError> {
        let unknown = document.strip_prefix(MAGIC).ok_or(WireError::WrongForm)?;
        let (mut type_meta, mut raw) = (None, None);
        let mut fields = Fields::new(unknown);
        while let Some(field) = fields.next()? {
            let bytes = field.bytes()?;
            let number = u8::try_from(field.number).unwrap_or(u8::MAX);
            let repeated = match number {
                UNKNOWN_TYPE_META => type_meta.replace(bytes).is_some(),
                UNKNOWN_RAW => raw.replace(bytes).is_some(),
                // Compressed content, or content other than protobuf, would be declared here.
                UNKNOWN_CONTENT_ENCODING | UNKNOWN_CONTENT_TYPE => !bytes.is_empty(),
                _ => true,
            };
            if repeated {
                return Err(WireError::Protobuf("not a plain Unknown document"));
            }
        }
        // The same message as a map entry: two strings, numbered 1 and 2.
        let (api_version, kind) = map_entry(type_meta.unwrap_or_default())?;
        if !is_plain_document(unknown) {
            return Err(WireError::Layout("an Unknown document in another order or length"));
        }
        // An absent raw is the empty message, which has no metadata.
        Ok(Self { api_version, kind, raw: raw.unwrap_or_default() })
    }
}

/// Splits a watch frame into its type and its document.
pub(super) fn split_event(frame: &[u8]) -> Result<(EventType, &[u8]), WireError> {
    let (prefix, message) = frame.split_first_chunk::<LENGTH_PREFIX>().ok_or(WireError::Truncated)?;
    let len = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
    if len > message.len() {
        return Err(if prefix.starts_with(b"{") { WireError::WrongForm } else { WireError::Truncated });
    }
    if len < message.len() {
        return Err(WireError::Protobuf("bytes after the watch event"));
    }
    let (mut event_type, mut object) = (None, None);
    let mut fields = Fields::new(message);
    while let Some(field) = fields.next()? {
        let repeated = match u8::try_from(field.number).unwrap_or(u8::MAX) {
            EVENT_TYPE => event_type.replace(field.bytes()?).is_some(),
            EVENT_OBJECT => object.replace(field.bytes()?).is_some(),
            _ => true,
        };
        if repeated {
            return Err(WireError::Protobuf("not a plain WatchEvent"));
        }
    }
    let event_type = event_type.and_then(|name| std::str::from_utf8(name).ok()).and_then(EventType::parse);
    let event_type = event_type.ok_or(WireError::UnknownEventType)?;
    let document = sole_field(object.unwrap_or_default(), RAW_EXTENSION_RAW)?;
    if !is_plain_event(message) {
        return Err(WireError::Layout("a watch event in another order or length"));
    }
    Ok((event_type, document))
}

/// Returns whether Unknown is encoded as the apiserver and this module encode it: each field once, in order, with
/// lengths of minimal size.
fn is_plain_document(unknown: &[u8]) -> bool {
    let plain = || {
        let (type_meta, rest) = plain_field(unknown, UNKNOWN_TYPE_META)?;
        let (_, kind) = plain_field(type_meta, 1)?;
        let (_, end) = plain_field(kind, 2)?;
        // An empty body is omitted.
        let tail = plain_field(rest, UNKNOWN_RAW).map_or(rest, |(_, tail)| tail);
        Some(end.is_empty() && tail == UNKNOWN_TAIL)
    };
    plain().unwrap_or(false)
}

/// Returns whether a `WatchEvent` is encoded in that way: each field once, in order, with lengths of minimal size.
fn is_plain_event(message: &[u8]) -> bool {
    let plain = || {
        let (_, rest) = plain_field(message, EVENT_TYPE)?;
        let (object, end) = plain_field(rest, EVENT_OBJECT)?;
        let (_, object_end) = plain_field(object, RAW_EXTENSION_RAW)?;
        Some(end.is_empty() && object_end.is_empty())
    };
    plain().unwrap_or(false)
}

/// Returns the payload of field `number`, which must be the only field of `message`.
fn sole_field(message: &[u8], number: u8) -> Result<&[u8], WireError> {
    let mut fields = Fields::new(message);
    match (fields.next()?, fields.next()?) {
        (Some(field), None) if field.number == u32::from(number) => field.bytes(),
        _ => Err(WireError::Protobuf("not a plain RawExtension")),
    }
}

/// Decodes a Status: message = 3, reason = 4, details = 5, code = 6; `StatusDetails`: `retryAfterSeconds` = 5.
pub(super) fn status(document: &[u8]) -> Result<ParsedStatus, WireError> {
    let mut status = ParsedStatus { code: 0, reason: String::new(), message: String::new(), details: None };
    let mut fields = Fields::new(Document::split(document)?.raw);
    while let Some(field) = fields.next()? {
        match (field.number, field.value) {
            (3, _) => field.text()?.clone_into(&mut status.message),
            (4, _) => field.text()?.clone_into(&mut status.reason),
            (5, _) => status.details = Some(status_details(field.bytes()?)?),
            (6, Value::Varint(code)) => status.code = code.cast_signed(),
            _ => {}
        }
    }
    Ok(status)
}

fn status_details(message: &[u8]) -> Result<ParsedStatusDetails, WireError> {
    let mut details = ParsedStatusDetails { retry_after_seconds: 0 };
    let mut fields = Fields::new(message);
    while let Some(field) = fields.next()? {
        if let (5, Value::Varint(seconds)) = (field.number, field.value) {
            details.retry_after_seconds = seconds.cast_signed();
        }
    }
    Ok(details)
}
