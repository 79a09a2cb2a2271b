//! A minimal protobuf codec: a cursor over one message's fields, and the few writers that envelopes need. It has no
//! schema; its callers define the field numbers.

use bytes::BufMut;

/// The prefix of every top-level protobuf document (R-PROTO-1).
pub const MAGIC: &[u8; 4] = b"k8s\0";

/// Why bytes are not a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProtobufError {
    #[error("the data ends in the middle of a field")]
    Truncated,
    #[error("{0}")]
    Malformed(&'static str),
}

/// A cursor over the fields of one message.
pub struct FieldReader<'a> {
    message: &'a [u8],
    at: usize,
}

/// One protobuf field as it is on the wire.
#[derive(Clone, Copy)]
pub struct RawField<'a> {
    pub number: u32,
    pub value: ProtobufFieldValue<'a>,
    /// The offset of the field's tag in the message.
    pub start: usize,
    /// The offset of the field's end in the message.
    pub end: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtobufFieldValue<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// A `fixed32` or `fixed64`, which is skipped, because no field that is read has these types.
    Fixed,
}

impl<'a> FieldReader<'a> {
    #[inline]
    pub fn new(message: &'a [u8]) -> Self {
        Self { message, at: 0 }
    }

    /// Returns the next field; `None` at the end. Lengths are checked against the message before they are used.
    #[inline]
    pub fn next_field(&mut self) -> Result<Option<RawField<'a>>, ProtobufError> {
        if self.at == self.message.len() {
            return Ok(None);
        }
        let start = self.at;
        let tag = self.varint()?;
        let Ok(number @ 1..=FIELD_NUMBER_MAX) = u32::try_from(tag >> 3) else {
            return Err(ProtobufError::Malformed("impossible field number"));
        };
        let value = match tag & 7 {
            0 => ProtobufFieldValue::Varint(self.varint()?),
            1 => self.take(8).map(|_| ProtobufFieldValue::Fixed)?,
            2 => {
                let len = self.varint()?;
                ProtobufFieldValue::Bytes(self.take(len)?)
            }
            5 => self.take(4).map(|_| ProtobufFieldValue::Fixed)?,
            _ => return Err(ProtobufError::Malformed("wire type that the apiserver does not use")),
        };
        Ok(Some(RawField { number, value, start, end: self.at }))
    }

    #[inline]
    fn take(&mut self, len: u64) -> Result<&'a [u8], ProtobufError> {
        let rest = &self.message[self.at..];
        match usize::try_from(len) {
            Ok(len) if len <= rest.len() => {
                self.at += len;
                Ok(&rest[..len])
            }
            _ => Err(ProtobufError::Truncated),
        }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, ProtobufError> {
        let (value, len) = varint(&self.message[self.at..])?;
        self.at += len;
        Ok(value)
    }
}

impl<'a> RawField<'a> {
    #[inline]
    pub fn bytes(&self) -> Result<&'a [u8], ProtobufError> {
        match self.value {
            ProtobufFieldValue::Bytes(bytes) => Ok(bytes),
            _ => Err(ProtobufError::Malformed("wire type differs from the API's")),
        }
    }

    #[inline]
    pub fn text(&self) -> Result<&'a str, ProtobufError> {
        text(self.bytes()?)
    }

    /// Returns the value as a count; `None` if it is negative or not a number.
    pub fn count(&self) -> Option<u64> {
        match self.value {
            ProtobufFieldValue::Varint(count) => i64::try_from(count).ok()?.try_into().ok(),
            ProtobufFieldValue::Bytes(_) | ProtobufFieldValue::Fixed => None,
        }
    }
}

#[inline]
pub fn text(bytes: &[u8]) -> Result<&str, ProtobufError> {
    std::str::from_utf8(bytes).map_err(|_| ProtobufError::Malformed("text is not UTF-8"))
}

/// Returns the payload (offset, length) of field 1, if `message` starts with it and it is length-delimited.
#[inline]
pub fn leading_message(message: &[u8]) -> Option<(usize, usize)> {
    if *message.first()? != tag(1) {
        return None;
    }
    let (len, width) = varint(&message[1..]).ok()?;
    let len = usize::try_from(len).ok()?;
    let at = 1 + width;
    (len <= message.len() - at).then_some((at, len))
}

/// Returns the payload of the field `number` (below 16) at the start of `message`, and the rest. `None` if the message
/// starts with another field, or with an encoding that [`put_field`] would not produce.
#[inline]
pub fn plain_field(message: &[u8], number: u8) -> Option<(&[u8], &[u8])> {
    let (first, rest) = message.split_first()?;
    if *first != tag(number) {
        return None;
    }
    let (len, width) = varint(rest).ok()?;
    if width != varint_len(len) {
        return None;
    }
    rest[width..].split_at_checked(usize::try_from(len).ok()?)
}

/// Returns one `map<string, string>` entry; an absent key or value is `""`.
#[inline]
pub fn map_entry(entry: &[u8]) -> Result<(&str, &str), ProtobufError> {
    let (mut key, mut value) = ("", "");
    let mut fields = FieldReader::new(entry);
    while let Some(field) = fields.next_field()? {
        match field.number {
            1 => key = field.text()?,
            2 => value = field.text()?,
            _ => return Err(ProtobufError::Malformed("map entry with a third field")),
        }
    }
    Ok((key, value))
}

/// Reads one varint: its value and its width.
#[inline]
pub fn varint(bytes: &[u8]) -> Result<(u64, usize), ProtobufError> {
    match bytes.first() {
        Some(&byte) if byte < 0x80 => Ok((u64::from(byte), 1)),
        _ => long_varint(bytes),
    }
}

fn long_varint(bytes: &[u8]) -> Result<(u64, usize), ProtobufError> {
    let mut value = 0_u64;
    for (at, &byte) in bytes.iter().take(10).enumerate() {
        // The tenth byte can only hold the last of 64 bits.
        if at == 9 && byte > 1 {
            return Err(ProtobufError::Malformed("varint of more than 64 bits"));
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            return Ok((value, at + 1));
        }
    }
    // A tenth byte always returns above, so this is a truncated varint.
    Err(ProtobufError::Truncated)
}

/// Returns the tag byte of a length-delimited field; `number` < 16.
#[inline]
pub const fn tag(number: u8) -> u8 {
    number << 3 | 2
}

/// Returns the number of bytes that [`put_varint`] writes.
#[inline]
pub fn varint_len(value: u64) -> usize {
    ((64 - (value | 1).leading_zeros()) as usize).div_ceil(7)
}

pub fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    out.put_u8(value.to_le_bytes()[0]);
}

/// Returns the size of a length-delimited field (number < 16) with a payload of `len` bytes.
#[inline]
pub fn field_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

/// Writes the tag and length of a length-delimited field; the caller writes the payload.
pub fn put_header(out: &mut impl BufMut, number: u8, len: usize) {
    out.put_u8(tag(number));
    put_varint(out, len as u64);
}

pub fn put_field(out: &mut impl BufMut, number: u8, payload: &[u8]) {
    put_header(out, number, payload.len());
    out.put_slice(payload);
}

/// Writes a number (number < 16). Negative ones take ten bytes, as in protobuf's `int32` and `int64`.
pub fn put_int(out: &mut impl BufMut, number: u8, value: i64) {
    out.put_u8(number << 3);
    put_varint(out, value.cast_unsigned());
}

const FIELD_NUMBER_MAX: u32 = (1 << 29) - 1;
