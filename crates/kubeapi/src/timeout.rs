use super::query::UrlQuery;

/// Whether Go's `time.ParseDuration` accepts the `timeout=` of the query, if it has one. The apiserver checks it before
/// anything else of a request that is not long-running (R-ORDER-1, R-TIMEOUT-2).
pub fn has_valid_timeout(query: &UrlQuery) -> bool {
    query.first("timeout").is_none_or(|text| text.is_empty() || is_duration(text))
}

/// The longest duration that is recognized. Go's maximum of 2^63 is a little more, which leaves room for rounding.
const NANOSECONDS_MAX: f64 = 9.2e18;

fn is_duration(text: &str) -> bool {
    let mut rest = text.strip_prefix(['-', '+']).unwrap_or(text);
    if matches!(rest, "" | "0") {
        return rest == "0";
    }
    let is_of_number = |c: char| c == '.' || c.is_ascii_digit();
    let mut sum = 0.0;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(rest.find(|c| !is_of_number(c)).unwrap_or(rest.len()));
        let (unit, after) = after.split_at(after.find(is_of_number).unwrap_or(after.len()));
        let (Ok(number), Some(unit)) = (number.parse::<f64>(), nanoseconds(unit)) else { return false };
        sum += number * unit;
        rest = after;
    }
    sum < NANOSECONDS_MAX
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parsing_arbitrary_durations_never_panics(text in any::<String>(), symbols in "([-+.0-9]|ns|us|µs|m|h|ä){0,12}") {
            let _ = (is_duration(&text), is_duration(&symbols));
            let _ = has_valid_timeout(&UrlQuery::parse(&format!("timeout={text}")));
        }
    }

    #[test]
    fn valid_go_durations_are_accepted() {
        for text in ["", "0", "-0", "+0", "30s", "1h30m", "1.5h", ".5s", "1.s", "-1s", "10us", "1\u{b5}s", "2540400h"] {
            let query = UrlQuery::parse(&format!("timeout={}", text.replace('+', "%2B")));
            assert!(has_valid_timeout(&query), "{text}");
        }
        assert!(has_valid_timeout(&UrlQuery::default()));
    }

    #[test]
    fn invalid_durations_are_refused() {
        let invalid = ["abc", "-", "-+1s", ".", ".s", "1.2.3s", "10", "1h2", "1d", "1s ", "00", "9999999h", "\u{e9}"];
        for text in invalid {
            let query = UrlQuery::parse(&format!("timeout={}", text.replace(' ', "%20").replace('+', "%2B")));
            assert!(!has_valid_timeout(&query), "{text}");
        }
    }
}
