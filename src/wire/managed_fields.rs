//! Bodies without `metadata.managedFields`, for clients that do not read it (KEP-5958).
//!
//! The output is byte for byte what a server writes for the object without the field. A body that is not written as the
//! apiserver writes it stays as it is, because clients that leave a field out must ignore it.

use std::borrow::Cow;
use std::ops::Range;

use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use kubeapi::protobuf::{FieldReader, field_len, leading_message, put_header};

/// Returns a JSON or protobuf body in the normal form of [`wire`](super) without its managed fields.
pub(crate) fn without_managed_fields(body: &Bytes) -> Cow<'_, Bytes> {
    // JSON begins with `"metadata":` or `{`, and protobuf with a tag that is neither.
    let reduced = match body.first() {
        Some(b'"' | b'{') => json_member(body).map(|cut| [&body[..cut.start], &body[cut.end..]].concat().into()),
        _ => without_protobuf_field(body),
    };
    reduced.map_or(Cow::Borrowed(body), Cow::Owned)
}

#[derive(Deserialize)]
struct JsonObject<M> {
    metadata: M,
}

#[derive(Deserialize)]
struct JsonMetadata<'a> {
    #[serde(borrow, default, rename = "managedFields", deserialize_with = "some_value")]
    managed_fields: Option<&'a RawValue>,
}

/// Deserializes a value as it is written, also `null`.
fn some_value<'de, D: Deserializer<'de>>(value: D) -> Result<Option<&'de RawValue>, D::Error> {
    Deserialize::deserialize(value).map(Some)
}

/// Returns the metadata of a JSON body.
pub(super) fn json_metadata<'a, M: Deserialize<'a>>(body: &'a [u8]) -> Option<M> {
    let metadata = match body.strip_prefix(br#""metadata":"#) {
        Some(metadata) => M::deserialize(&mut serde_json::Deserializer::from_slice(metadata)),
        None => serde_json::from_slice(body).map(|JsonObject { metadata }| metadata),
    };
    metadata.ok()
}

/// Returns the bytes of the member and of its comma. `None` if there is no such member, or if it is written in another
/// layout than the apiserver's, which has no whitespace and no escapes in this name.
fn json_member(body: &[u8]) -> Option<Range<usize>> {
    let value = json_metadata::<JsonMetadata<'_>>(body)?.managed_fields?.get();
    let at = value.as_ptr().addr() - body.as_ptr().addr();
    let (start, end) = (at.checked_sub(NAME.len())?, at + value.len());
    if &body[start..at] != NAME {
        return None;
    }
    match (body.get(start.checked_sub(1)?)?, body.get(end)?) {
        (b',', b',' | b'}') => Some(start - 1..end),
        (b'{', b',') => Some(start..end + 1),
        (b'{', b'}') => Some(start..end),
        _ => None,
    }
}

const NAME: &[u8] = br#""managedFields":"#;

/// Returns the message without the managed fields of its metadata; `None` if it has none, or is malformed.
fn without_protobuf_field(body: &[u8]) -> Option<Bytes> {
    let (at, len) = leading_message(body)?;
    let (metadata, rest) = (&body[at..at + len], &body[at + len..]);
    let (mut kept, mut start) = (Vec::new(), 0);
    let mut fields = FieldReader::new(metadata);
    while let Some(field) = fields.next_field().ok()? {
        if field.number == MANAGED_FIELDS {
            kept.push(&metadata[start..field.start]);
            start = field.end;
        }
    }
    if start == 0 {
        return None;
    }
    kept.push(&metadata[start..]);
    let len = kept.iter().map(|part| part.len()).sum();
    let mut reduced = BytesMut::with_capacity(field_len(len) + rest.len());
    put_header(&mut reduced, 1, len);
    kept.into_iter().chain([rest]).for_each(|part| reduced.put_slice(part));
    Some(reduced.freeze())
}

/// The field number of `managedFields` in `ObjectMeta`.
const MANAGED_FIELDS: u32 = 17;
