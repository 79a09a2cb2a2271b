//! Go's spelling of strings, numbers and errors, so that error texts equal the apiserver's, byte for byte.

use std::collections::HashSet;
use std::fmt::Write as _;

/// Formats `text` as Go's `%q` does: double quotes, Go escapes, non-printable characters as `\x`, `\u` or `\U`.
pub fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        match c {
            '"' => quoted.push_str("\\\""),
            '\\' => quoted.push_str("\\\\"),
            '\u{7}' => quoted.push_str("\\a"),
            '\u{8}' => quoted.push_str("\\b"),
            '\u{c}' => quoted.push_str("\\f"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            '\u{b}' => quoted.push_str("\\v"),
            _ if is_printable(c) => quoted.push(c),
            _ => push_code_point(&mut quoted, c),
        }
    }
    quoted.push('"');
    quoted
}

/// Formats `text` as a JSON string as Go's `encoding/json` does: see [`escape_json`].
pub(super) fn json_string(text: &str) -> String {
    escape_json(&serde_json::Value::from(text).to_string())
}

/// Escapes, in a complete JSON document, the characters that Go's `encoding/json` never writes unescaped.
///
/// None of them can occur outside strings, so the whole document is processed uniformly.
pub(super) fn escape_json(json: &str) -> String {
    let mut escaped = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' => escaped.push_str("\\u003c"),
            '>' => escaped.push_str("\\u003e"),
            '&' => escaped.push_str("\\u0026"),
            '\u{2028}' => escaped.push_str("\\u2028"),
            '\u{2029}' => escaped.push_str("\\u2029"),
            _ => escaped.push(c),
        }
    }
    escaped
}

/// The apiserver's `sanitizer`: prevents a message from being interpreted as HTML; quotes are kept.
pub(super) fn escape_html(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Joins errors as apimachinery's aggregate does: `a`, or `[a, b]`, without duplicates. `None` if there are no errors.
pub(super) fn aggregate(errors: &[String]) -> Option<String> {
    let mut seen = HashSet::with_capacity(errors.len());
    let distinct: Vec<&str> = errors.iter().map(String::as_str).filter(|error| seen.insert(*error)).collect();
    match distinct.as_slice() {
        [] => None,
        [only] => Some((*only).to_owned()),
        all => Some(format!("[{}]", all.join(", "))),
    }
}

/// Parses a number like Go's `strconv.ParseInt(text, 10, 64)`, with its error texts.
pub(super) fn parse_int(text: &str) -> Result<i64, String> {
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'+') => (false, &text[1..]),
        Some(b'-') => (true, &text[1..]),
        _ => (false, text),
    };
    let magnitude = magnitude(digits).map(i128::from);
    magnitude
        .and_then(|magnitude| i64::try_from(if negative { -magnitude } else { magnitude }).map_err(|_| OUT_OF_RANGE))
        .map_err(|why| format!("strconv.ParseInt: parsing {}: {why}", quote(text)))
}

/// Parses a number like Go's `strconv.ParseUint(text, 10, 64)`, with its error texts.
pub(super) fn parse_uint(text: &str) -> Result<u64, String> {
    magnitude(text).map_err(|why| format!("strconv.ParseUint: parsing {}: {why}", quote(text)))
}

const INVALID_SYNTAX: &str = "invalid syntax";
const OUT_OF_RANGE: &str = "value out of range";

/// Parses digits from the left, so the first problem, an invalid character or an overflow, is the one reported.
fn magnitude(digits: &str) -> Result<u64, &'static str> {
    if digits.is_empty() {
        return Err(INVALID_SYNTAX);
    }
    digits.bytes().try_fold(0_u64, |number, byte| {
        let digit = char::from(byte).to_digit(10).ok_or(INVALID_SYNTAX)?;
        number.checked_mul(10).and_then(|tens| tens.checked_add(u64::from(digit))).ok_or(OUT_OF_RANGE)
    })
}

/// Whether Go's `unicode.IsPrint` holds: for letters, marks, numbers, punctuation, symbols and the ASCII space.
///
/// The standard library uses the same table for `escape_debug`. The character is tested after another one, because at
/// the start of a string `escape_debug` also escapes combining marks, which Go prints.
fn is_printable(c: char) -> bool {
    if c.is_ascii() {
        return matches!(c, ' '..='~');
    }
    let mut pair = String::from("a");
    pair.push(c);
    pair.escape_debug().nth(1) == Some(c)
}

fn push_code_point(quoted: &mut String, c: char) {
    let code = u32::from(c);
    let written = match code {
        0..=0x7f => write!(quoted, "\\x{code:02x}"),
        0x80..=0xffff => write!(quoted, "\\u{code:04x}"),
        _ => write!(quoted, "\\U{code:08x}"),
    };
    written.expect("writing to a String cannot fail");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_are_quoted_as_in_go() {
        for (text, quoted) in [
            ("plain", r#""plain""#),
            ("", r#""""#),
            ("a\"b\\c", r#""a\"b\\c""#),
            ("\u{7}\u{8}\u{c}\n\r\t\u{b}", r#""\a\b\f\n\r\t\v""#),
            ("\0\u{1f}\u{7f}", r#""\x00\x1f\x7f""#),
            ("ä ☺", r#""ä ☺""#),
            ("\u{a0}\u{200b}\u{e000}", r#""\u00a0\u200b\ue000""#),
            ("\u{f0000}", r#""\U000f0000""#),
            ("e\u{301}", "\"e\u{301}\""),
            ("'", r#""'""#),
        ] {
            assert_eq!(quote(text), quoted, "{text:?}");
        }
    }

    #[test]
    fn json_strings_escape_html_and_line_separators() {
        assert_eq!(json_string("<a>&\u{2028}\u{2029}\"\n"), r#""\u003ca\u003e\u0026\u2028\u2029\"\n""#);
    }

    #[test]
    fn integers_are_parsed_as_in_go() {
        let refused = |text: &str, why: &str| Err(format!("strconv.ParseInt: parsing {text}: {why}"));
        for (text, parsed) in [
            ("0", Ok(0)),
            ("007", Ok(7)),
            ("+5", Ok(5)),
            ("-5", Ok(-5)),
            ("9223372036854775807", Ok(i64::MAX)),
            ("-9223372036854775808", Ok(i64::MIN)),
            ("", refused("\"\"", INVALID_SYNTAX)),
            ("-", refused("\"-\"", INVALID_SYNTAX)),
            ("abc", refused("\"abc\"", INVALID_SYNTAX)),
            ("1_000", refused("\"1_000\"", INVALID_SYNTAX)),
            ("٣", refused("\"٣\"", INVALID_SYNTAX)),
            ("9223372036854775808", refused("\"9223372036854775808\"", OUT_OF_RANGE)),
            ("9999999999999999999x", refused("\"9999999999999999999x\"", INVALID_SYNTAX)),
            ("99999999999999999999x", refused("\"99999999999999999999x\"", OUT_OF_RANGE)),
        ] {
            assert_eq!(parse_int(text), parsed, "{text}");
        }
        assert_eq!(parse_uint("18446744073709551615"), Ok(u64::MAX));
        assert_eq!(parse_uint("+1"), Err("strconv.ParseUint: parsing \"+1\": invalid syntax".to_owned()));
    }

    #[test]
    fn aggregate_brackets_errors_and_removes_duplicates() {
        let reported = |errors: &[&str]| aggregate(&errors.iter().map(|&error| error.to_owned()).collect::<Vec<_>>());
        assert_eq!(reported(&[]), None);
        assert_eq!(reported(&["a"]).as_deref(), Some("a"));
        assert_eq!(reported(&["a", "a"]).as_deref(), Some("a"));
        assert_eq!(reported(&["a", "b", "a"]).as_deref(), Some("[a, b]"));
        // A selector of 16 KiB can have thousands of errors, and is parsed before its sender is authenticated, so the
        // time must not grow quadratically.
        let many: Vec<_> = (0..300_000).map(|number| number.to_string()).collect();
        assert_eq!(aggregate(&many).map(|all| all.matches(", ").count()), Some(many.len() - 1));
    }
}
