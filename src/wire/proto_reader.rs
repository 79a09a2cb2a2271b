//! Decoder of protobuf: of watch events, Unknown documents and objects. An object takes a field walk that skips
//! everything that is not on the path of a selectable field, so its cost does not depend on the object's size.

use std::borrow::Cow;
use std::sync::Arc;

use super::WireError;
use super::bookmark::INITIAL_EVENTS_END;
use super::envelope::{
    EVENT_OBJECT, EVENT_TYPE, LENGTH_PREFIX, RAW_EXTENSION_RAW, UNKNOWN_RAW, UNKNOWN_TAIL, UNKNOWN_TYPE_META,
};
use super::json_reader::check_name;
use super::object::{DecodedObjectFields, ResourceVersionSpan, parse_resource_version, sort_labels};
use kubeapi::protobuf::{self, FieldReader, MAGIC, ProtobufFieldValue, map_entry, plain_field};
use kubeapi::{
    EventType, FieldValueKind, ObjectKey, ResourceVersion, SelectableAttributes, SelectableFieldSpec,
    SelectableFieldTable,
};

/// The parts of a protobuf document: `k8s\0` and Unknown.
pub(super) struct ProtobufDocument<'a> {
    pub(super) api_version: &'a str,
    pub(super) kind: &'a str,
    pub(super) raw: &'a [u8],
}

impl<'a> ProtobufDocument<'a> {
    /// Splits a whole protobuf document. All lengths are checked against the document.
    pub(super) fn split(document: &'a [u8]) -> Result<Self, WireError> {
        let unknown = document.strip_prefix(MAGIC).ok_or(WireError::WrongEncoding)?;
        let plain = || {
            let (type_meta, rest) = plain_field(unknown, UNKNOWN_TYPE_META)?;
            let (api_version, kind) = plain_field(type_meta, 1)?;
            let (kind, end) = plain_field(kind, 2)?;
            // An empty body is omitted. It has no metadata. Compressed content, or content other than protobuf, would
            // be declared in the tail.
            let (raw, tail) = plain_field(rest, UNKNOWN_RAW).unwrap_or((&[], rest));
            (end.is_empty() && tail == UNKNOWN_TAIL).then_some((api_version, kind, raw))
        };
        let (api_version, kind, raw) =
            plain().ok_or_else(|| not_plain(unknown, "an Unknown document in another order or length"))?;
        Ok(Self { api_version: protobuf::text(api_version)?, kind: protobuf::text(kind)?, raw })
    }
}

/// Splits a watch frame into its type and its document.
pub(super) fn split_event(frame: &[u8]) -> Result<(EventType, &[u8]), WireError> {
    let (prefix, message) = frame.split_first_chunk::<LENGTH_PREFIX>().ok_or(WireError::Truncated)?;
    let len = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
    if len > message.len() {
        return Err(if prefix.starts_with(b"{") { WireError::WrongEncoding } else { WireError::Truncated });
    }
    if len < message.len() {
        return Err(WireError::Protobuf("bytes after the watch event"));
    }
    let plain = || {
        let (event_type, rest) = plain_field(message, EVENT_TYPE)?;
        let (object, end) = plain_field(rest, EVENT_OBJECT)?;
        let (document, object_end) = plain_field(object, RAW_EXTENSION_RAW)?;
        (end.is_empty() && object_end.is_empty()).then_some((event_type, document))
    };
    let (event_type, document) =
        plain().ok_or_else(|| not_plain(message, "a watch event in another order or length"))?;
    let event_type = std::str::from_utf8(event_type).ok().and_then(EventType::parse);
    Ok((event_type.ok_or(WireError::UnknownEventType)?, document))
}

/// Returns the error for a message that is not encoded as the apiserver and this module encode it: each field once, in
/// order, with lengths of minimal size.
fn not_plain(message: &[u8], layout: &'static str) -> WireError {
    let mut fields = FieldReader::new(message);
    loop {
        match fields.next_field() {
            Ok(Some(_)) => {}
            Ok(None) => return WireError::Layout(layout),
            Err(error) => return error.into(),
        }
    }
}

/// The decoder of the objects of one feed, with its selectable fields.
pub(super) struct ProtoPaths(pub(super) Arc<SelectableFieldTable>);

impl ProtoPaths {
    /// Reads the metadata of `body`, which must come first, as Go writes it, and the selectable fields. Also returns
    /// whether the object closes the initial events.
    pub(super) fn read(&self, body: &[u8], named: bool) -> Result<(DecodedObjectFields, bool), WireError> {
        let (at, len) = protobuf::leading_message(body).ok_or(WireError::NoMetadata)?;
        let (mut name, mut namespace, mut uid, mut version) = ("", "", [].as_slice(), "");
        let (mut labels, mut initial_events_end) = (Vec::new(), false);
        let mut metadata = FieldReader::new(&body[at..at + len]);
        while let Some(field) = metadata.next_field()? {
            match field.number {
                META_NAME => name = field.text()?,
                META_NAMESPACE => namespace = field.text()?,
                META_UID => uid = field.bytes()?,
                META_RESOURCE_VERSION if !version.is_empty() => return Err(WireError::BadResourceVersion),
                META_RESOURCE_VERSION => version = field.text()?,
                META_LABELS => labels.push(map_entry(field.bytes()?)?),
                META_ANNOTATIONS => {
                    // Only bookmarks have it. A user's annotation may have any bytes as its value.
                    let (key, rest) = plain_field(field.bytes()?, 1).unwrap_or_default();
                    initial_events_end |= key == INITIAL_EVENTS_END.as_bytes()
                        && plain_field(rest, 2) == Some((b"true".as_slice(), [].as_slice()));
                }
                _ => {}
            }
        }
        check_name(named, namespace, name)?;
        let (rv, rv_at) = resource_version(body, version)?;
        // The top level has few fields, and this walk detects a truncated body.
        let mut fields = FieldReader::new(body);
        while let Some(field) = fields.next_field()? {
            if field.number == OBJECT_METADATA && field.start > 0 {
                return Err(WireError::Protobuf("object with two metadata fields"));
            }
        }
        let mut fields = Vec::with_capacity(self.0.fields.len());
        for field in &self.0.fields {
            fields.push(field_text(body, field)?);
        }
        sort_labels(&mut labels)?;
        let attributes = SelectableAttributes::new(&labels, &fields).with_uid(uid);
        let key = ObjectKey::new(namespace, name);
        Ok((DecodedObjectFields { key, rv, rv_at, attributes }, initial_events_end))
    }
}

/// Returns the text of a selectable field: the first alternative that is not empty, or the text for absence.
fn field_text<'a>(body: &'a [u8], field: &SelectableFieldSpec) -> Result<Cow<'a, str>, WireError> {
    for path in &field.proto {
        if let Some(value) = value_at(body, path)? {
            let text = render(field.kind, value)?;
            if !text.is_empty() {
                return Ok(text);
            }
        }
    }
    Ok(field.kind.absent_text().into())
}

/// Returns the value at the end of a path. Of a repeated field, only the first element counts.
fn value_at<'a>(message: &'a [u8], path: &[u32]) -> Result<Option<ProtobufFieldValue<'a>>, WireError> {
    let Some((number, rest)) = path.split_first() else { return Ok(None) };
    let (mut found, mut fields) = (None, FieldReader::new(message));
    while let Some(field) = fields.next_field()? {
        if field.number == *number {
            found.get_or_insert(field);
        }
    }
    match found {
        Some(field) if rest.is_empty() => Ok(Some(field.value)),
        Some(field) => value_at(field.bytes()?, rest),
        None => Ok(None),
    }
}

/// Returns the version whose digits are a part of `body`, and their position.
fn resource_version(body: &[u8], digits: &str) -> Result<(ResourceVersion, ResourceVersionSpan), WireError> {
    let rv = parse_resource_version(digits)?;
    let at = digits.as_ptr().addr() - body.as_ptr().addr();
    let len = u8::try_from(digits.len()).map_err(|_| WireError::BadResourceVersion)?;
    // Re-stamping rewrites the single length byte before the digits. That byte follows the tag; a longer encoding of
    // the same length would have a continuation byte in between.
    let header = at.checked_sub(2).and_then(|header| body.get(header..at));
    if header != Some(&[RESOURCE_VERSION_TAG, len]) {
        return Err(WireError::BadResourceVersion);
    }
    Ok((rv, ResourceVersionSpan { offset: u32::try_from(at).map_err(|_| WireError::BadResourceVersion)?, len }))
}

/// Returns a selectable field's text (R-FIELD-4). Go stores text from protobuf without checking that it is UTF-8. U+FFFD
/// replaces what is not, which no selector that is served here contains
/// ([`UrlQuery::is_lossless`](kubeapi::UrlQuery::is_lossless)).
fn render(kind: FieldValueKind, value: ProtobufFieldValue<'_>) -> Result<Cow<'_, str>, WireError> {
    Ok(match (kind, value) {
        (FieldValueKind::Text | FieldValueKind::Any, ProtobufFieldValue::Bytes(bytes)) => {
            String::from_utf8_lossy(bytes)
        }
        (FieldValueKind::Bool, ProtobufFieldValue::Varint(bit)) => if bit != 0 { "true" } else { "false" }.into(),
        (FieldValueKind::Integer | FieldValueKind::Any, ProtobufFieldValue::Varint(number)) => {
            number.cast_signed().to_string().into()
        }
        _ => return Err(WireError::Protobuf("selectable field of an unexpected type")),
    })
}

/// The field number of the metadata in every top-level kind.
const OBJECT_METADATA: u32 = 1;

/// The field numbers of `ObjectMeta`.
const META_NAME: u32 = 1;
const META_NAMESPACE: u32 = 3;
const META_UID: u32 = 5;
pub(super) const META_RESOURCE_VERSION: u32 = 6;
const META_LABELS: u32 = 11;
pub(super) const META_ANNOTATIONS: u32 = 12;
const RESOURCE_VERSION_TAG: u8 = protobuf::tag(6);
