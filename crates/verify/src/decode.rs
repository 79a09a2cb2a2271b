//! Decodes responses and events into their recorded values: keys, versions, digests. From JSON it reads everything,
//! from protobuf only the metadata and the bytes.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use super::protobuf::{ProtobufField, bytes, fields, number, object, text};
use crate::ContentDigest;
use crate::record::{RecordedEncoding, RecordedEventType, RecordedItem, RecordedStatus};

/// A list, or a page of one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DecodedList {
    pub(crate) version: Option<u64>,
    pub(crate) items: Vec<RecordedItem>,
    pub(crate) token: Option<String>,
    pub(crate) remaining: Option<u64>,
}

/// An event of a watch, without its time.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DecodedEvent {
    pub(crate) kind: RecordedEventType,
    pub(crate) item: RecordedItem,
    pub(crate) initial_end: bool,
    pub(crate) status: RecordedStatus,
}

const INITIAL_END: &str = "k8s.io/initial-events-end";

#[derive(Deserialize)]
struct JsonList<'a> {
    #[serde(default)]
    metadata: ListMetadata,
    #[serde(borrow, default)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ListMetadata {
    resource_version: String,
    #[serde(rename = "continue")]
    token: String,
    remaining_item_count: Option<u64>,
}

#[derive(Deserialize)]
struct JsonEvent<'a> {
    #[serde(rename = "type")]
    kind: &'a str,
    #[serde(borrow)]
    object: &'a RawValue,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct JsonStatus {
    code: u16,
    reason: String,
    message: String,
    details: Option<JsonDetails>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct JsonDetails {
    causes: Vec<JsonCause>,
    retry_after_seconds: u64,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonCause {
    reason: String,
}

/// Returns the encoding of a response to a request for the encoding `requested`; `None` if it cannot be decoded.
pub(crate) fn encoding_of(content_type: &str, requested: RecordedEncoding) -> Option<RecordedEncoding> {
    let partial = matches!(requested, RecordedEncoding::Metadata | RecordedEncoding::MetadataProtobuf);
    match (content_type.split(';').next()?.trim(), partial) {
        ("application/json", true) => Some(RecordedEncoding::Metadata),
        ("application/json", false) => Some(RecordedEncoding::Json),
        ("application/vnd.kubernetes.protobuf", true) => Some(RecordedEncoding::MetadataProtobuf),
        ("application/vnd.kubernetes.protobuf", false) => Some(RecordedEncoding::Protobuf),
        _ => None,
    }
}

/// Whether an encoding is protobuf, whose watch frames have a length prefix.
pub(crate) fn is_protobuf(encoding: RecordedEncoding) -> bool {
    matches!(encoding, RecordedEncoding::Protobuf | RecordedEncoding::MetadataProtobuf)
}

/// Decodes a list; `None` if it is malformed.
pub(crate) fn list(encoding: RecordedEncoding, body: &[u8]) -> Option<DecodedList> {
    if is_protobuf(encoding) { protobuf_list(object(body)?) } else { json_list(body) }
}

fn json_list(body: &[u8]) -> Option<DecodedList> {
    let JsonList { metadata, items } = serde_json::from_slice(body).ok()?;
    let items = items.unwrap_or_default().into_iter().map(|item| json_item(item.get()));
    Some(DecodedList {
        version: metadata.resource_version.parse().ok(),
        items: items.collect::<Option<_>>()?,
        token: Some(metadata.token).filter(|token| !token.is_empty()),
        remaining: metadata.remaining_item_count,
    })
}

fn protobuf_list(list: &[u8]) -> Option<DecodedList> {
    let mut read = DecodedList::default();
    for field in fields(list) {
        match field? {
            (1, ProtobufField::Bytes(metadata)) => {
                read.version = text(metadata, 2).and_then(|version| version.parse().ok());
                read.token = text(metadata, 3).filter(|token| !token.is_empty()).map(str::to_owned);
                read.remaining = number(metadata, 4);
            }
            (2, ProtobufField::Bytes(item)) => read.items.push(protobuf_item(item)?),
            _ => {}
        }
    }
    Some(read)
}

/// Decodes a response that is one object.
pub(crate) fn item(encoding: RecordedEncoding, body: &[u8]) -> Option<RecordedItem> {
    if is_protobuf(encoding) {
        let item = protobuf_item(object(body)?)?;
        return Some(RecordedItem { bytes: Some(ContentDigest::of_bytes(body)), ..item });
    }
    json_item(std::str::from_utf8(body).ok()?.trim_end())
}

fn json_item(text: &str) -> Option<RecordedItem> {
    let value: Value = serde_json::from_str(text).ok()?;
    let (key, version) = key_and_version(&value)?;
    let (digest, bytes) = (Some(ContentDigest::of_object(&value)), Some(ContentDigest::of_bytes(text.as_bytes())));
    Some(RecordedItem { key, version, digest, bytes })
}

/// Returns `namespace/name` and the version of an object.
pub(crate) fn key_and_version(object: &Value) -> Option<(String, u64)> {
    let metadata = &object["metadata"];
    let key = key(metadata["namespace"].as_str().unwrap_or_default(), metadata["name"].as_str()?);
    Some((key, metadata["resourceVersion"].as_str()?.parse().ok()?))
}

fn key(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// Decodes an object without its envelope. In every type, the metadata is the first field.
fn protobuf_item(object: &[u8]) -> Option<RecordedItem> {
    let metadata = bytes(object, 1)?;
    let (name, namespace) = (text(metadata, 1)?, text(metadata, 3).unwrap_or_default());
    let version = text(metadata, 6)?.parse().ok()?;
    Some(RecordedItem {
        key: key(namespace, name),
        version,
        digest: None,
        bytes: Some(ContentDigest::of_bytes(object)),
    })
}

/// Decodes an event of a watch; `None` if it is malformed.
pub(crate) fn event(encoding: RecordedEncoding, frame: &[u8]) -> Option<DecodedEvent> {
    if is_protobuf(encoding) { protobuf_event(frame) } else { json_event(frame) }
}

fn kind_of(kind: &str) -> Option<RecordedEventType> {
    Some(match kind {
        "ADDED" => RecordedEventType::Added,
        "MODIFIED" => RecordedEventType::Modified,
        "DELETED" => RecordedEventType::Deleted,
        "BOOKMARK" => RecordedEventType::Bookmark,
        "ERROR" => RecordedEventType::Error,
        _ => return None,
    })
}

fn json_event(frame: &[u8]) -> Option<DecodedEvent> {
    let JsonEvent { kind, object } = serde_json::from_slice(frame).ok()?;
    let kind = kind_of(kind)?;
    match kind {
        RecordedEventType::Error => {
            let (status, _) = status(object.get().as_bytes());
            Some(DecodedEvent { kind, status, ..DecodedEvent::default() })
        }
        RecordedEventType::Bookmark => {
            let value: Value = serde_json::from_str(object.get()).ok()?;
            let metadata = &value["metadata"];
            let initial_end = metadata["annotations"][INITIAL_END] == "true";
            let version = metadata["resourceVersion"].as_str()?.parse().ok()?;
            Some(DecodedEvent {
                kind,
                item: RecordedItem { version, ..RecordedItem::default() },
                initial_end,
                ..DecodedEvent::default()
            })
        }
        _ => Some(DecodedEvent { kind, item: json_item(object.get())?, ..DecodedEvent::default() }),
    }
}

/// Decodes a `WatchEvent`: the type, and the object in a `RawExtension`.
fn protobuf_event(frame: &[u8]) -> Option<DecodedEvent> {
    let kind = kind_of(text(frame, 1)?)?;
    let document = bytes(bytes(frame, 2)?, 1)?;
    let object = object(document)?;
    match kind {
        RecordedEventType::Error => {
            Some(DecodedEvent { kind, status: protobuf_status(object).0, ..DecodedEvent::default() })
        }
        RecordedEventType::Bookmark => {
            let metadata = bytes(object, 1)?;
            let annotated = |field| matches!(field, Some((12, ProtobufField::Bytes(entry))) if is_initial_end(entry));
            let item = RecordedItem { version: text(metadata, 6)?.parse().ok()?, ..RecordedItem::default() };
            Some(DecodedEvent { kind, item, initial_end: fields(metadata).any(annotated), ..DecodedEvent::default() })
        }
        _ => {
            let item = RecordedItem { bytes: Some(ContentDigest::of_bytes(document)), ..protobuf_item(object)? };
            Some(DecodedEvent { kind, item, ..DecodedEvent::default() })
        }
    }
}

fn is_initial_end(entry: &[u8]) -> bool {
    text(entry, 1) == Some(INITIAL_END) && text(entry, 2) == Some("true")
}

/// Decodes a refusal, and its retry delay in seconds. If the body is not a Status, its beginning becomes the message.
pub(crate) fn status(body: &[u8]) -> (RecordedStatus, u64) {
    if let Some(object) = object(body) {
        return protobuf_status(object);
    }
    let Ok(JsonStatus { code, reason, message, details }) = serde_json::from_slice(body) else {
        let message = String::from_utf8_lossy(&body[..body.len().min(200)]).trim().to_owned();
        return (RecordedStatus { message, ..RecordedStatus::default() }, 0);
    };
    let details = details.unwrap_or_default();
    let cause = details.causes.into_iter().next().map(|cause| cause.reason).unwrap_or_default();
    (RecordedStatus { code, reason, message, cause }, details.retry_after_seconds)
}

fn protobuf_status(status: &[u8]) -> (RecordedStatus, u64) {
    let of = |field_number| text(status, field_number).unwrap_or_default().to_owned();
    let details = bytes(status, 5).unwrap_or_default();
    let cause = bytes(details, 4).and_then(|cause| text(cause, 1)).unwrap_or_default().to_owned();
    let code = number(status, 6).and_then(|code| u16::try_from(code).ok()).unwrap_or_default();
    let retry_after = number(details, 5).unwrap_or_default();
    (RecordedStatus { code, reason: of(4), message: of(3), cause }, retry_after)
}

/// Returns the Accept header for an encoding.
pub(crate) fn accept(encoding: RecordedEncoding, is_list: bool, is_watch: bool) -> &'static str {
    const AS: [&str; 4] = [
        "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
        "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
    ];
    match encoding {
        RecordedEncoding::Protobuf if is_watch => "application/vnd.kubernetes.protobuf;stream=watch",
        RecordedEncoding::Protobuf => "application/vnd.kubernetes.protobuf",
        RecordedEncoding::Metadata => AS[usize::from(is_list)],
        RecordedEncoding::MetadataProtobuf => AS[2 + usize::from(is_list)],
        RecordedEncoding::Json | RecordedEncoding::Table => "application/json",
    }
}

#[cfg(test)]
mod tests;
