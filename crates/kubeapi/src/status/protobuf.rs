//! A [`Status`] in protobuf: the `k8s\0` magic, a `runtime.Unknown` around it, and `meta/v1.Status` inside.
//!
//! Field numbers: apimachinery `pkg/runtime/generated.proto` and `pkg/apis/meta/v1/generated.proto`. Like the
//! apiserver's generated code, the encoder writes every scalar field, including empty ones.

use super::super::protobuf::{FieldReader, MAGIC, ProtobufError, ProtobufFieldValue, RawField, put_field, put_int};
use super::{Status, StatusCause, StatusDetails, StatusMetadata};

pub(super) fn encode(status: &Status) -> Vec<u8> {
    let mut type_meta = Vec::new();
    put_field(&mut type_meta, 1, status.api_version.as_bytes());
    put_field(&mut type_meta, 2, status.kind.as_bytes());
    let mut document = MAGIC.to_vec();
    put_field(&mut document, 1, &type_meta);
    put_field(&mut document, 2, &status_message(status));
    put_field(&mut document, 3, b""); // contentEncoding
    put_field(&mut document, 4, b""); // contentType
    document
}

fn status_message(status: &Status) -> Vec<u8> {
    let Status { kind: _, api_version: _, metadata, status, message, reason, details, code } = status;
    let mut bytes = Vec::with_capacity(message.len() + 64);
    put_field(&mut bytes, 1, &metadata_message(metadata));
    put_field(&mut bytes, 2, status.as_bytes());
    put_field(&mut bytes, 3, message.as_bytes());
    put_field(&mut bytes, 4, reason.as_bytes());
    if let Some(details) = details {
        put_field(&mut bytes, 5, &details_message(details));
    }
    put_int(&mut bytes, 6, i64::from(*code));
    bytes
}

fn metadata_message(metadata: &StatusMetadata) -> Vec<u8> {
    let StatusMetadata { resource_version, continue_token, remaining_item_count } = metadata;
    let mut bytes = Vec::new();
    put_field(&mut bytes, 1, b""); // selfLink, removed in 1.20
    put_field(&mut bytes, 2, resource_version.as_bytes());
    put_field(&mut bytes, 3, continue_token.as_bytes());
    if let Some(count) = remaining_item_count {
        put_int(&mut bytes, 4, *count);
    }
    bytes
}

fn details_message(details: &StatusDetails) -> Vec<u8> {
    let StatusDetails { name, group, kind, uid, causes, retry_after_seconds } = details;
    let mut bytes = Vec::new();
    put_field(&mut bytes, 1, name.as_bytes());
    put_field(&mut bytes, 2, group.as_bytes());
    put_field(&mut bytes, 3, kind.as_bytes());
    for StatusCause { reason, message, field } in causes {
        let mut cause = Vec::new();
        put_field(&mut cause, 1, reason.as_bytes());
        put_field(&mut cause, 2, message.as_bytes());
        put_field(&mut cause, 3, field.as_bytes());
        put_field(&mut bytes, 4, &cause);
    }
    put_int(&mut bytes, 5, i64::from(*retry_after_seconds));
    put_field(&mut bytes, 6, uid.as_bytes());
    bytes
}

type StatusDecodeResult<T> = Result<T, ProtobufError>;

pub(super) fn decode(document: &[u8]) -> StatusDecodeResult<Status> {
    let unknown = document.strip_prefix(MAGIC).ok_or(ProtobufError::Malformed("missing magic prefix k8s\\0"))?;
    let mut unknown = FieldReader::new(unknown);
    let mut status = Status::default();
    let (mut kind, mut api_version) = (String::new(), String::new());
    while let Some(field) = unknown.next_field()? {
        match field.number {
            1 => {
                let mut type_meta = FieldReader::new(field.bytes()?);
                while let Some(field) = type_meta.next_field()? {
                    match field.number {
                        1 => api_version = text(field)?,
                        2 => kind = text(field)?,
                        _ => {}
                    }
                }
            }
            2 => status = read_status(field.bytes()?)?,
            _ => {}
        }
    }
    Ok(Status { kind, api_version, ..status })
}

fn read_status(bytes: &[u8]) -> StatusDecodeResult<Status> {
    let mut message = FieldReader::new(bytes);
    let mut status = Status::default();
    while let Some(field) = message.next_field()? {
        match field.number {
            1 => status.metadata = read_metadata(field.bytes()?)?,
            2 => status.status = text(field)?,
            3 => status.message = text(field)?,
            4 => status.reason = text(field)?,
            5 => status.details = Some(read_details(field.bytes()?)?),
            6 => status.code = int32(field)?,
            _ => {}
        }
    }
    Ok(status)
}

fn read_metadata(bytes: &[u8]) -> StatusDecodeResult<StatusMetadata> {
    let mut message = FieldReader::new(bytes);
    let mut metadata = StatusMetadata::default();
    while let Some(field) = message.next_field()? {
        match field.number {
            2 => metadata.resource_version = text(field)?,
            3 => metadata.continue_token = text(field)?,
            4 => metadata.remaining_item_count = Some(int64(field)?),
            _ => {}
        }
    }
    Ok(metadata)
}

fn read_details(bytes: &[u8]) -> StatusDecodeResult<StatusDetails> {
    let mut message = FieldReader::new(bytes);
    let mut details = StatusDetails::default();
    while let Some(field) = message.next_field()? {
        match field.number {
            1 => details.name = text(field)?,
            2 => details.group = text(field)?,
            3 => details.kind = text(field)?,
            4 => details.causes.push(read_cause(field.bytes()?)?),
            5 => details.retry_after_seconds = int32(field)?,
            6 => details.uid = text(field)?,
            _ => {}
        }
    }
    Ok(details)
}

fn read_cause(bytes: &[u8]) -> StatusDecodeResult<StatusCause> {
    let mut message = FieldReader::new(bytes);
    let mut cause = StatusCause::default();
    while let Some(field) = message.next_field()? {
        match field.number {
            1 => cause.reason = text(field)?,
            2 => cause.message = text(field)?,
            3 => cause.field = text(field)?,
            _ => {}
        }
    }
    Ok(cause)
}

fn text(field: RawField<'_>) -> StatusDecodeResult<String> {
    Ok(String::from_utf8_lossy(field.bytes()?).into_owned())
}

fn int64(field: RawField<'_>) -> StatusDecodeResult<i64> {
    match field.value {
        ProtobufFieldValue::Varint(number) => Ok(number.cast_signed()),
        ProtobufFieldValue::Bytes(_) | ProtobufFieldValue::Fixed => {
            Err(ProtobufError::Malformed("expected a number, found bytes"))
        }
    }
}

fn int32(field: RawField<'_>) -> StatusDecodeResult<i32> {
    i32::try_from(int64(field)?).map_err(|_| ProtobufError::Malformed("number out of range"))
}
