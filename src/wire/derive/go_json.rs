//! The output formats of Go's `encoding/json` and `strconv`: text, numbers and JSON inside JSON.

use super::TranscodeRefusal;

/// Writes `text` as a JSON string, HTML-safe: `< > &` and U+2028/9 escaped, invalid UTF-8 replaced byte by byte
/// (R-JSON-1).
pub(in crate::wire) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    let mut rest = text;
    loop {
        let (plain, special) = rest.split_at(plain_len(rest));
        out.extend_from_slice(plain);
        if special.is_empty() {
            break;
        }
        rest = &special[put_special(out, special)..];
    }
    out.push(b'"');
}

/// Returns the length of the prefix of `text` that needs no escapes in a JSON string.
#[inline]
fn plain_len(text: &[u8]) -> usize {
    // Without branches inside a chunk, so that it compiles to vector instructions.
    let any_special = |chunk: &[u8]| chunk.iter().fold(0, |found, byte| found | special(*byte)) != 0;
    let (chunks, _) = text.as_chunks::<CHUNK>();
    let start = CHUNK * chunks.iter().position(|chunk| any_special(chunk)).unwrap_or(chunks.len());
    text[start..].iter().position(|byte| special(*byte) != 0).map_or(text.len(), |at| start + at)
}

/// Returns a nonzero value for bytes that may need an escape in a JSON string.
#[inline]
fn special(byte: u8) -> u8 {
    u8::from(!(b' '..0x80).contains(&byte)) | u8::from(byte == b'"') | u8::from(byte == b'\\') | html(byte)
}

#[inline]
fn html(byte: u8) -> u8 {
    u8::from(byte == b'<') | u8::from(byte == b'>') | u8::from(byte == b'&')
}

/// Writes the first character of `text`, which may need an escape. Returns its length.
fn put_special(out: &mut Vec<u8>, text: &[u8]) -> usize {
    let byte = text[0];
    if byte < 0x80 {
        put_escaped(out, byte);
        return 1;
    }
    let len = utf8_len(text);
    match &text[..len.max(1)] {
        [_] => out.extend_from_slice(br"\ufffd"),
        line_end @ [0xe2, 0x80, 0xa8 | 0xa9] => put_line_end(out, line_end),
        character => out.extend_from_slice(character),
    }
    len.max(1)
}

/// Writes a JSON escape as Go does. Go has short escapes for `\b` and `\f` since 1.22, which is older than every minor
/// of the table.
fn put_escaped(out: &mut Vec<u8>, byte: u8) {
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x0c => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        _ => {
            put_hex(out, byte);
            return;
        }
    };
    out.extend_from_slice(&[b'\\', short]);
}

fn put_hex(out: &mut Vec<u8>, byte: u8) {
    let hex = |digit: u8| b"0123456789abcdef"[usize::from(digit)];
    out.extend_from_slice(&[b'\\', b'u', b'0', b'0', hex(byte >> 4), hex(byte & 15)]);
}

/// Writes the JSON escape of U+2028 or U+2029.
fn put_line_end(out: &mut Vec<u8>, character: &[u8]) {
    out.extend_from_slice(if character[2] == 0xa8 { br"\u2028" } else { br"\u2029" });
}

/// Returns the length of the first character of `text`, whose first byte must be ≥ 0x80; 0 if it is not UTF-8.
fn utf8_len(text: &[u8]) -> usize {
    let len = match text[0] {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return 0,
    };
    if text.get(..len).is_some_and(|character| std::str::from_utf8(character).is_ok()) { len } else { 0 }
}

/// Writes JSON inside JSON, as Go's `compact` does with the output of a `MarshalJSON`: no white space, HTML-safe.
///
/// # Errors
/// The text is not JSON, or is nested deeper than `serde_json` allows (127 levels; Go allows 10,000).
pub(super) fn put_compact(out: &mut Vec<u8>, json: &[u8]) -> Result<(), TranscodeRefusal> {
    serde_json::from_slice::<serde::de::IgnoredAny>(json)
        .map_err(|_| TranscodeRefusal::Value("not JSON, or nested too deeply"))?;
    let changes = |byte: u8| u8::from(byte <= b' ') | u8::from(byte == 0xe2) | html(byte);
    if json.iter().fold(0, |found, byte| found | changes(*byte)) == 0 {
        out.extend_from_slice(json);
        return Ok(());
    }
    let (mut at, mut in_text) = (0, false);
    while let Some(&byte) = json.get(at) {
        match byte {
            b'<' | b'>' | b'&' => put_hex(out, byte),
            // This byte occurs in strings only.
            0xe2 if matches!(json.get(at + 1..at + 3), Some([0x80, 0xa8 | 0xa9])) => {
                put_line_end(out, &json[at..]);
                at += 2;
            }
            b' ' | b'\t' | b'\n' | b'\r' if !in_text => {}
            b'\\' => {
                out.push(byte);
                at += 1;
                out.extend(json.get(at));
            }
            _ => {
                in_text ^= byte == b'"';
                out.push(byte);
            }
        }
        at += 1;
    }
    Ok(())
}

pub(super) fn put_int(out: &mut Vec<u8>, value: impl itoa::Integer) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

/// Writes `value`, which must be less than 10^`width`, with leading zeros.
pub(super) fn put_padded(out: &mut Vec<u8>, value: u64, width: u32) {
    for place in (0..width).rev() {
        out.push(digit(value / 10_u64.pow(place) % 10));
    }
}

fn digit(value: u64) -> u8 {
    b'0' + u8::try_from(value).expect("less than 10")
}

/// Writes the shortest digits that parse back to `value`, with an exponent if it is small or large, as ECMAScript does.
pub(in crate::wire) fn put_double(out: &mut Vec<u8>, value: f64) -> Result<(), TranscodeRefusal> {
    if !value.is_finite() {
        return Err(TranscodeRefusal::Value("not a number that JSON has"));
    }
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-6..1e21).contains(&magnitude) {
        out.extend_from_slice(value.to_string().as_bytes());
        return Ok(());
    }
    let text = format!("{value:e}");
    // Go writes the sign of every exponent; Rust only that of negative ones.
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let sign = if exponent.starts_with('-') { "" } else { "+" };
    out.extend_from_slice(format!("{mantissa}e{sign}{exponent}").as_bytes());
    Ok(())
}

/// Writes `time.Duration.String` in quotes: `"1h0m5.5s"`, `"1.5µs"`.
pub(super) fn put_duration(out: &mut Vec<u8>, nanoseconds: i64) {
    let magnitude = nanoseconds.unsigned_abs();
    out.push(b'"');
    if nanoseconds < 0 {
        out.push(b'-');
    }
    let (places, unit) = match magnitude {
        0 => (9, "s"),
        1..1_000 => (0, "ns"),
        1_000..1_000_000 => (3, "µs"),
        1_000_000..SECOND => (6, "ms"),
        _ => (9, "s"),
    };
    let mut whole = magnitude / 10_u64.pow(places);
    if magnitude >= 3_600 * SECOND {
        put_int(out, whole / 3_600);
        out.push(b'h');
    }
    if magnitude >= 60 * SECOND {
        put_int(out, whole / 60 % 60);
        out.push(b'm');
        whole %= 60;
    }
    put_int(out, whole);
    put_fraction(out, magnitude % 10_u64.pow(places), places);
    out.extend_from_slice(unit.as_bytes());
    out.push(b'"');
}

/// Writes `.` and the digits of `value` / 10^`places` without trailing zeros; nothing for 0.
fn put_fraction(out: &mut Vec<u8>, value: u64, places: u32) {
    if value == 0 {
        return;
    }
    out.push(b'.');
    let (mut value, mut places) = (value, places);
    while value % 10 == 0 {
        value /= 10;
        places -= 1;
    }
    put_padded(out, value, places);
}

/// The number of bytes that are checked together.
const CHUNK: usize = 32;
const SECOND: u64 = 1_000_000_000;
