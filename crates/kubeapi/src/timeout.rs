use super::query::UrlQuery;
use super::status::Status;

/// Refuses a `timeout=` that Go's `time.ParseDuration` does not accept. The apiserver checks it before anything else of
/// a request that is not long-running (R-ORDER-1, R-TIMEOUT-2).
pub fn check_timeout(query: &UrlQuery) -> Result<(), Status> {
    let given = query.first("timeout").filter(|given| !given.is_empty());
    given
        .map_or(Ok(()), parse)
        .map_err(|why| Status::bad_request(format!("invalid timeout specified in the request URL - time: {why}")))
}

/// The largest magnitude of Go's durations, in nanoseconds.
const NANOSECONDS_MAX: f64 = 9_223_372_036_854_775_808.0;

fn parse(text: &str) -> Result<(), String> {
    let invalid = || format!("invalid duration {}", quote(text));
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if rest == "0" {
        return Ok(());
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut sum = 0.0;
    while !rest.is_empty() {
        let whole = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let fraction = rest[whole..]
            .strip_prefix('.')
            .map_or(0, |after| 1 + after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len()));
        let (number, after) = rest.split_at(whole + fraction);
        if !number.contains(|c: char| c.is_ascii_digit()) {
            return Err(invalid());
        }
        let (unit, after) = after.split_at(after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len()));
        if unit.is_empty() {
            return Err(format!("missing unit in duration {}", quote(text)));
        }
        let unknown = || format!("unknown unit {} in duration {}", quote(unit), quote(text));
        sum += number.parse::<f64>().map_err(|_| invalid())? * nanoseconds(unit).ok_or_else(unknown)?;
        if sum > NANOSECONDS_MAX || (sum == NANOSECONDS_MAX && !text.starts_with('-')) {
            return Err(invalid());
        }
        rest = after;
    }
    Ok(())
}

fn nanoseconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1.0,
        // The micro sign and the Greek letter.
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        _ => return None,
    })
}

/// Quotes like Go's package `time`: bytes that are not printable ASCII as `\x`.
fn quote(text: &str) -> String {
    let written = |byte: u8| match byte {
        b'"' | b'\\' => format!("\\{}", char::from(byte)),
        b' '..=b'~' | 0x7f => char::from(byte).to_string(),
        _ => format!("\\x{byte:02x}"),
    };
    format!("\"{}\"", text.bytes().map(written).collect::<String>())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parsing_arbitrary_durations_never_panics(text in any::<String>(), symbols in "([-+.0-9]|ns|us|µs|m|h|ä){0,12}") {
            let _ = (parse(&text), parse(&symbols));
            let _ = check_timeout(&UrlQuery::parse(&format!("timeout={text}")));
        }
    }

    #[test]
    fn valid_go_durations_are_accepted() {
        for text in ["", "0", "-0", "+0", "30s", "1h30m", "1.5h", ".5s", "1.s", "-1s", "10us", "1\u{b5}s", "2540400h"] {
            let query = UrlQuery::parse(&format!("timeout={}", text.replace('+', "%2B")));
            assert_eq!(check_timeout(&query).map_err(|status| status.message), Ok(()), "{text}");
        }
    }

    #[test]
    fn invalid_duration_returns_400_with_go_error_text() {
        let cases = [
            ("abc", r#"time: invalid duration "abc""#),
            ("-", r#"time: invalid duration "-""#),
            (".s", r#"time: invalid duration ".s""#),
            ("10", r#"time: missing unit in duration "10""#),
            ("1h2", r#"time: missing unit in duration "1h2""#),
            ("1d", r#"time: unknown unit "d" in duration "1d""#),
            ("1s ", r#"time: unknown unit "s " in duration "1s ""#),
            ("9999999h", r#"time: invalid duration "9999999h""#),
            ("\u{e9}", r#"time: invalid duration "\xc3\xa9""#),
        ];
        for (text, expected) in cases {
            let refused =
                check_timeout(&UrlQuery::parse(&format!("timeout={}", text.replace(' ', "%20")))).unwrap_err();
            assert_eq!(refused.message, format!("invalid timeout specified in the request URL - {expected}"));
            assert_eq!(refused.http_code(), 400, "{text}");
        }
    }
}
