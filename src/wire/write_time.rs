//! The time of a write, as the apiserver records it in the object.

use serde::Deserialize;

use super::derive::unix_seconds;
use super::managed_fields::json_metadata;
use kubeapi::protobuf::{FieldReader, ProtobufError, ProtobufFieldValue, leading_message};

/// Returns the newest time in `metadata.managedFields`, in seconds since 1970: that of the latest write that changed a
/// field. `None` if the object has none, or not in the apiserver's layout.
pub(crate) fn last_write(body: &[u8]) -> Option<i64> {
    match body.first() {
        Some(b'"' | b'{') => json_metadata::<JsonMetadata<'_>>(body)?.last_write(),
        _ => protobuf_last_write(body).ok()?,
    }
}

#[derive(Deserialize)]
struct JsonMetadata<'a> {
    #[serde(borrow, default, rename = "managedFields")]
    managed_fields: Vec<JsonManagedFields<'a>>,
}

#[derive(Deserialize)]
struct JsonManagedFields<'a> {
    time: Option<&'a str>,
}

impl JsonMetadata<'_> {
    fn last_write(&self) -> Option<i64> {
        self.managed_fields.iter().filter_map(|entry| unix_seconds(entry.time?).ok()).max()
    }
}

/// The field numbers of `managedFields` in `ObjectMeta`, of `time` in `ManagedFieldsEntry`, and of `seconds` in `Time`.
const PATH: [u32; 3] = [17, 4, 1];

fn protobuf_last_write(body: &[u8]) -> Result<Option<i64>, ProtobufError> {
    let Some((at, len)) = leading_message(body) else { return Ok(None) };
    newest(&body[at..at + len], &PATH)
}

/// Returns the largest number at the end of `path`.
fn newest(message: &[u8], path: &[u32]) -> Result<Option<i64>, ProtobufError> {
    let Some((number, rest)) = path.split_first() else { return Ok(None) };
    let (mut fields, mut newest_of_all) = (FieldReader::new(message), None);
    while let Some(field) = fields.next_field()? {
        if field.number == *number {
            let found = match field.value {
                ProtobufFieldValue::Varint(seconds) if rest.is_empty() => Some(seconds.cast_signed()),
                ProtobufFieldValue::Bytes(inner) => newest(inner, rest)?,
                ProtobufFieldValue::Varint(_) | ProtobufFieldValue::Fixed => None,
            };
            newest_of_all = newest_of_all.max(found);
        }
    }
    Ok(newest_of_all)
}
