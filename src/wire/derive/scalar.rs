//! API types whose JSON is one value with its own format (R-DERIVE-7). Each function takes the value's protobuf message
//! and writes its JSON.

use super::TranscodeRefusal;
use super::go_json::{put_compact, put_duration, put_int, put_padded, put_text};
use kubeapi::protobuf::{FieldReader, ProtobufFieldValue, RawField};

/// Writes a `metav1.Time`, RFC 3339 in UTC without fractions, or a `metav1.MicroTime`, always with six decimals. The
/// zero time, which is an empty message, is `null`.
pub(super) fn put_time(out: &mut Vec<u8>, message: &[u8], micro: bool) -> Result<(), TranscodeRefusal> {
    match MetaTimestamp::read(message)? {
        Some(time) if time.seconds != ZERO_TIME || micro && time.nanoseconds >= 1_000 => time.put(out, micro),
        _ => put_null(out),
    }
    Ok(())
}

/// Returns whether a `metav1.Time` is zero, for omitzero.
pub(super) fn is_zero_time(message: &[u8]) -> Result<bool, TranscodeRefusal> {
    Ok(MetaTimestamp::read(message)?.is_none_or(|time| time.seconds == ZERO_TIME))
}

/// Writes a `metav1.Duration`: nanoseconds, in Go's format.
pub(super) fn put_duration_message(out: &mut Vec<u8>, message: &[u8]) -> Result<(), TranscodeRefusal> {
    let mut nanoseconds = None;
    for_each(message, |field| match (field.number, field.value) {
        (1, ProtobufFieldValue::Varint(value)) => once(&mut nanoseconds, value.cast_signed()),
        _ => Err(unknown(field)),
    })?;
    put_duration(out, nanoseconds.ok_or(INCOMPLETE)?);
    Ok(())
}

/// Writes a `resource.Quantity`, which is canonical text in protobuf too.
pub(super) fn put_quantity(out: &mut Vec<u8>, message: &[u8]) -> Result<(), TranscodeRefusal> {
    let text = sole_bytes(message)?.ok_or(INCOMPLETE)?;
    let canonical = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+');
    if text.is_empty() || !text.iter().all(canonical) {
        return Err(TranscodeRefusal::Value("not a quantity"));
    }
    out.push(b'"');
    out.extend_from_slice(text);
    out.push(b'"');
    Ok(())
}

/// Writes an `intstr.IntOrString`: its type selects the number or the string.
pub(super) fn put_int_or_string(out: &mut Vec<u8>, message: &[u8]) -> Result<(), TranscodeRefusal> {
    let (mut which, mut number, mut text) = (None, None, None);
    for_each(message, |field| match (field.number, field.value) {
        (1, ProtobufFieldValue::Varint(value)) => once(&mut which, value),
        (2, ProtobufFieldValue::Varint(value)) => once(&mut number, value),
        (3, ProtobufFieldValue::Bytes(value)) => once(&mut text, value),
        _ => Err(unknown(field)),
    })?;
    match (which, number, text) {
        (Some(0), Some(number), Some(_)) => put_int(out, i64::from(int32(number)?)),
        (Some(1), Some(_), Some(text)) => put_text(out, text),
        _ => return Err(TranscodeRefusal::Value("neither a number nor a string")),
    }
    Ok(())
}

/// Writes a `RawExtension`, `FieldsV1` or `JSON` of apiextensions: the JSON compacted; none is `null`. CBOR, protobuf
/// and empty text are not JSON, and are refused.
pub(super) fn put_raw(out: &mut Vec<u8>, message: &[u8]) -> Result<(), TranscodeRefusal> {
    match sole_bytes(message)? {
        Some(json) => put_compact(out, json),
        None => {
            put_null(out);
            Ok(())
        }
    }
}

/// Writes a list of strings in a message of its own, such as `ExtraValue`.
pub(super) fn put_strings(out: &mut Vec<u8>, message: &[u8]) -> Result<(), TranscodeRefusal> {
    out.push(b'[');
    let mut first = true;
    for_each(message, |field| match (field.number, field.value) {
        (1, ProtobufFieldValue::Bytes(text)) => {
            if !std::mem::take(&mut first) {
                out.push(b',');
            }
            put_text(out, text);
            Ok(())
        }
        _ => Err(unknown(field)),
    })?;
    out.push(b']');
    Ok(())
}

pub(super) fn put_null(out: &mut Vec<u8>) {
    out.extend_from_slice(b"null");
}

/// Converts the varint of an `int32`, which is sign-extended on the wire. The encoder never writes more bits.
#[inline]
pub(super) fn int32(varint: u64) -> Result<i32, TranscodeRefusal> {
    i32::try_from(varint.cast_signed()).map_err(|_| TranscodeRefusal::Value("not a 32-bit number"))
}

/// Calls `take` with every field of `message` in order.
pub(super) fn for_each<'a>(
    message: &'a [u8],
    mut take: impl FnMut(RawField<'a>) -> Result<(), TranscodeRefusal>,
) -> Result<(), TranscodeRefusal> {
    let mut fields = FieldReader::new(message);
    while let Some(field) = fields.next_field()? {
        take(field)?;
    }
    Ok(())
}

/// Stores the value of a singular field, which the encoder writes at most once.
pub(super) fn once<T>(slot: &mut Option<T>, value: T) -> Result<(), TranscodeRefusal> {
    if slot.replace(value).is_some() { Err(REPEATED) } else { Ok(()) }
}

/// Returns the reason for a field that the message's type does not have, or has with another wire type.
pub(super) fn unknown(field: RawField<'_>) -> TranscodeRefusal {
    TranscodeRefusal::UnknownField(field.number)
}

/// Returns the payload of field 1 of a message that has no other field.
fn sole_bytes(message: &[u8]) -> Result<Option<&[u8]>, TranscodeRefusal> {
    let mut bytes = None;
    for_each(message, |field| match (field.number, field.value) {
        (1, ProtobufFieldValue::Bytes(value)) => once(&mut bytes, value),
        _ => Err(unknown(field)),
    })?;
    Ok(bytes)
}

/// A `metav1.Timestamp`, which is the wire format of both time types.
struct MetaTimestamp {
    seconds: i64,
    nanoseconds: u64,
}

impl MetaTimestamp {
    /// Parses a time; returns `None` for the empty message.
    fn read(message: &[u8]) -> Result<Option<Self>, TranscodeRefusal> {
        let (mut seconds, mut nanoseconds) = (None, None);
        for_each(message, |field| match (field.number, field.value) {
            (1, ProtobufFieldValue::Varint(value)) => once(&mut seconds, value.cast_signed()),
            (2, ProtobufFieldValue::Varint(value)) => once(&mut nanoseconds, value),
            _ => Err(unknown(field)),
        })?;
        match (seconds, nanoseconds) {
            (None, None) => Ok(None),
            (Some(seconds), Some(nanoseconds @ 0..1_000_000_000)) => Ok(Some(Self { seconds, nanoseconds })),
            _ => Err(TranscodeRefusal::Value("not a time")),
        }
    }

    fn put(&self, out: &mut Vec<u8>, micro: bool) {
        let seconds = self.seconds.cast_unsigned().wrapping_add(UNIX_FROM_FIRST);
        let (days, time) = (seconds / DAY, seconds % DAY);
        let (years, month, day) = civil(days);
        let year = FIRST_YEAR + years.cast_signed() - 1;
        out.push(b'"');
        if year < 0 {
            out.push(b'-');
        }
        // Clients choose the times of objects, and no Go parser rejects a five-digit year in protobuf.
        let year = year.unsigned_abs();
        put_padded(out, year, year.checked_ilog10().map_or(4, |last| 4.max(last + 1)));
        out.push(b'-');
        let parts = [(month, 2, b'-'), (day, 2, b'T'), (time / 3_600, 2, b':'), (time / 60 % 60, 2, b':')];
        for (value, width, after) in parts {
            put_padded(out, value, width);
            out.push(after);
        }
        put_padded(out, time % 60, 2);
        if micro {
            out.push(b'.');
            put_padded(out, self.nanoseconds / 1_000, 6);
        }
        out.extend_from_slice(b"Z\"");
    }
}

/// Returns year, month and day of a number of days since January 1 of a year 1. It counts years that begin in March, so
/// that the leap day is the last.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 306;
    let (era, day) = (days / ERA, days % ERA);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (era * 400 + year + next, month, day)
}

pub(super) const REPEATED: TranscodeRefusal = TranscodeRefusal::Malformed("a singular field twice");
const INCOMPLETE: TranscodeRefusal = TranscodeRefusal::Malformed("without a field that the encoder always writes");
const DAY: u64 = 86_400;
/// The number of days in 400 years.
const ERA: u64 = 146_097;
/// Go's zero time, 0001-01-01, in Unix time.
pub(super) const ZERO_TIME: i64 = -62_135_596_800;
/// The first year of Go's calendar: a year 1 of the cycle of 400 years.
const FIRST_YEAR: i64 = -292_277_022_399;
/// The number of seconds from the beginning of that year to 1970. Go also adds them modulo 2^64.
const UNIX_FROM_FIRST: u64 = 9_223_372_028_715_321_600;
