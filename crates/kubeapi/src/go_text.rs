//! Go's spelling of strings, so that error texts equal the apiserver's, byte for byte.

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
}
