//! A [`Status`] in protobuf: the `k8s\0` magic, a `runtime.Unknown` around it, and `meta/v1.Status` inside.
//!
//! Field numbers: apimachinery `pkg/runtime/generated.proto` and `pkg/apis/meta/v1/generated.proto`. Like the
//! apiserver's generated code, the encoder writes every scalar field, including empty ones.

use super::{Status, StatusCause, StatusDetails, StatusMetadata};

const MAGIC: &[u8] = b"k8s\0";

pub(super) fn encode(status: &Status) -> Vec<u8> {
    let mut type_meta = Vec::new();
    put_bytes(&mut type_meta, 1, status.api_version.as_bytes());
    put_bytes(&mut type_meta, 2, status.kind.as_bytes());
    let mut document = MAGIC.to_vec();
    put_bytes(&mut document, 1, &type_meta);
    put_bytes(&mut document, 2, &status_message(status));
    put_bytes(&mut document, 3, b""); // contentEncoding
    put_bytes(&mut document, 4, b""); // contentType
    document
}

fn status_message(status: &Status) -> Vec<u8> {
    let Status { kind: _, api_version: _, metadata, status, message, reason, details, code } = status;
    let mut bytes = Vec::with_capacity(message.len() + 64);
    put_bytes(&mut bytes, 1, &metadata_message(metadata));
    put_bytes(&mut bytes, 2, status.as_bytes());
    put_bytes(&mut bytes, 3, message.as_bytes());
    put_bytes(&mut bytes, 4, reason.as_bytes());
    if let Some(details) = details {
        put_bytes(&mut bytes, 5, &details_message(details));
    }
    put_integer(&mut bytes, 6, i64::from(*code));
    bytes
}

fn metadata_message(metadata: &StatusMetadata) -> Vec<u8> {
    let StatusMetadata { resource_version, continue_token, remaining_item_count } = metadata;
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, 1, b""); // selfLink, removed in 1.20
    put_bytes(&mut bytes, 2, resource_version.as_bytes());
    put_bytes(&mut bytes, 3, continue_token.as_bytes());
    if let Some(count) = remaining_item_count {
        put_integer(&mut bytes, 4, *count);
    }
    bytes
}

fn details_message(details: &StatusDetails) -> Vec<u8> {
    let StatusDetails { name, group, kind, uid, causes, retry_after_seconds } = details;
    let mut bytes = Vec::new();
    put_bytes(&mut bytes, 1, name.as_bytes());
    put_bytes(&mut bytes, 2, group.as_bytes());
    put_bytes(&mut bytes, 3, kind.as_bytes());
    for StatusCause { reason, message, field } in causes {
        let mut cause = Vec::new();
        put_bytes(&mut cause, 1, reason.as_bytes());
        put_bytes(&mut cause, 2, message.as_bytes());
        put_bytes(&mut cause, 3, field.as_bytes());
        put_bytes(&mut bytes, 4, &cause);
    }
    put_integer(&mut bytes, 5, i64::from(*retry_after_seconds));
    put_bytes(&mut bytes, 6, uid.as_bytes());
    bytes
}

fn put_bytes(into: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    into.push((field << 3) | 2);
    put_varint(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}

/// Writes a number. Negative ones take ten bytes, as in protobuf's `int32` and `int64`.
fn put_integer(into: &mut Vec<u8>, field: u8, number: i64) {
    into.push(field << 3);
    put_varint(into, number.cast_unsigned());
}

fn put_varint(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    into.push(number.to_le_bytes()[0]);
}

type Decoded<T> = Result<T, &'static str>;

pub(super) fn decode(document: &[u8]) -> Decoded<Status> {
    let mut unknown = Message(document.strip_prefix(MAGIC).ok_or("missing magic prefix k8s\\0")?);
    let mut status = Status::default();
    let (mut kind, mut api_version) = (String::new(), String::new());
    while let Some((field, value)) = unknown.next_field()? {
        match field {
            1 => {
                let mut type_meta = Message(value.bytes()?);
                while let Some((field, value)) = type_meta.next_field()? {
                    match field {
                        1 => api_version = value.text()?,
                        2 => kind = value.text()?,
                        _ => {}
                    }
                }
            }
            2 => status = read_status(value.bytes()?)?,
            _ => {}
        }
    }
    Ok(Status { kind, api_version, ..status })
}

fn read_status(bytes: &[u8]) -> Decoded<Status> {
    let mut message = Message(bytes);
    let mut status = Status::default();
    while let Some((field, value)) = message.next_field()? {
        match field {
            1 => status.metadata = read_metadata(value.bytes()?)?,
            2 => status.status = value.text()?,
            3 => status.message = value.text()?,
            4 => status.reason = value.text()?,
            5 => status.details = Some(read_details(value.bytes()?)?),
            6 => status.code = value.int32()?,
            _ => {}
        }
    }
    Ok(status)
}

fn read_metadata(bytes: &[u8]) -> Decoded<StatusMetadata> {
    let mut message = Message(bytes);
    let mut metadata = StatusMetadata::default();
    while let Some((field, value)) = message.next_field()? {
        match field {
            2 => metadata.resource_version = value.text()?,
            3 => metadata.continue_token = value.text()?,
            4 => metadata.remaining_item_count = Some(value.int64()?),
            _ => {}
        }
    }
    Ok(metadata)
}

fn read_details(bytes: &[u8]) -> Decoded<StatusDetails> {
    let mut message = Message(bytes);
    let mut details = StatusDetails::default();
    while let Some((field, value)) = message.next_field()? {
        match field {
            1 => details.name = value.text()?,
            2 => details.group = value.text()?,
            3 => details.kind = value.text()?,
            4 => details.causes.push(read_cause(value.bytes()?)?),
            5 => details.retry_after_seconds = value.int32()?,
            6 => details.uid = value.text()?,
            _ => {}
        }
    }
    Ok(details)
}

fn read_cause(bytes: &[u8]) -> Decoded<StatusCause> {
    let mut message = Message(bytes);
    let mut cause = StatusCause::default();
    while let Some((field, value)) = message.next_field()? {
        match field {
            1 => cause.reason = value.text()?,
            2 => cause.message = value.text()?,
            3 => cause.field = value.text()?,
            _ => {}
        }
    }
    Ok(cause)
}

/// The unread rest of one protobuf message.
struct Message<'a>(&'a [u8]);

enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A fixed-width number, which no known field uses.
    Fixed,
}

impl<'a> Message<'a> {
    fn next_field(&mut self) -> Decoded<Option<(u64, Value<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let value = match tag & 7 {
            0 => Value::Varint(self.varint()?),
            1 => self.take(8).map(|_| Value::Fixed)?,
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| "a length exceeds the document")?;
                Value::Bytes(self.take(length)?)
            }
            5 => self.take(4).map(|_| Value::Fixed)?,
            _ => return Err("unknown wire type"),
        };
        Ok(Some((tag >> 3, value)))
    }

    fn varint(&mut self) -> Decoded<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1)?[0];
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err("varint too long")
    }

    fn take(&mut self, length: usize) -> Decoded<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or("truncated document")?;
        self.0 = rest;
        Ok(taken)
    }
}

impl<'a> Value<'a> {
    fn bytes(&self) -> Decoded<&'a [u8]> {
        match *self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err("expected bytes, found a number"),
        }
    }

    fn text(&self) -> Decoded<String> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }

    fn int64(&self) -> Decoded<i64> {
        match *self {
            Self::Varint(number) => Ok(number.cast_signed()),
            _ => Err("expected a number, found bytes"),
        }
    }

    fn int32(&self) -> Decoded<i32> {
        i32::try_from(self.int64()?).map_err(|_| "number out of range")
    }
}
