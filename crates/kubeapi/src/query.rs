use std::ops::Range;

/// The maximum number of query parameters. With more parameters, the apiserver ignores all: Go's `net/url` refuses to
/// parse them.
pub const QUERY_PAIRS_MAX: usize = 10_000;

/// A URL's query as the apiserver parses it (R-QUERY-1): decoded pairs in order, of which only the first of each name
/// counts.
///
/// The rules are those of Go's `url.ParseQuery` with its errors ignored: `+` is a space, a pair with `;` or an invalid
/// escape is dropped, names are case-sensitive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UrlQuery {
    /// The original text, and after it the decoded names and values that have escapes.
    text: String,
    raw_bytes: usize,
    /// The ranges of names and values in `text`. A query of a few kilobytes can have thousands of pairs.
    pairs: Vec<(UrlQueryText, UrlQueryText)>,
}

type UrlQueryText = Range<u32>;

impl UrlQuery {
    /// Parses the query after the `?`. It never fails: pairs that the apiserver would drop are dropped.
    pub fn parse(raw: &str) -> Self {
        let mut query = Self { text: raw.to_owned(), raw_bytes: raw.len(), pairs: Vec::new() };
        let pairs = raw.split('&').count();
        if raw.is_empty() || pairs > QUERY_PAIRS_MAX {
            return query;
        }
        query.pairs.reserve_exact(pairs);
        let mut next = 0;
        for pair in raw.split('&') {
            let at = next;
            next += pair.len() + 1;
            if pair.is_empty() || pair.contains(';') {
                continue;
            }
            let equals = pair.find('=').unwrap_or(pair.len());
            let value = at + (equals + 1).min(pair.len())..at + pair.len();
            let (Some(name), Some(value)) = (query.decode(at..at + equals), query.decode(value)) else { continue };
            query.pairs.push((name, value));
        }
        query
    }

    /// Decodes the text at `at`, and returns its range; `None` if an escape is broken.
    fn decode(&mut self, at: Range<usize>) -> Option<UrlQueryText> {
        let raw = &self.text[at.clone()];
        let decoded = if memchr::memchr2(b'%', b'+', raw.as_bytes()).is_none() {
            at
        } else {
            let (text, _) = unescape(raw, true)?;
            let start = self.text.len();
            self.text.push_str(&text);
            start..self.text.len()
        };
        Some(decoded.start.try_into().ok()?..decoded.end.try_into().ok()?)
    }

    /// Returns the first value of the parameter `name`; `""` for a bare name.
    pub fn first(&self, name: &str) -> Option<&str> {
        self.pairs().find(|(candidate, _)| *candidate == name).map(|(_, value)| value)
    }

    /// Returns the original text of the query.
    pub fn raw(&self) -> &str {
        &self.text[..self.raw_bytes]
    }

    pub fn pairs(&self) -> impl Iterator<Item = (&str, &str)> {
        let text = |at: &UrlQueryText| &self.text[at.start as usize..at.end as usize];
        self.pairs.iter().map(move |(name, value)| (text(name), text(value)))
    }

    /// Whether the query has no valid parameter.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Whether all values are exact. A value that is not UTF-8 contains U+FFFD instead, as does the value of a field that
    /// is not UTF-8 in protobuf. Go compares the bytes of both, so only the apiserver can serve such a request.
    pub fn is_lossless(&self) -> bool {
        self.pairs.is_empty() || !self.text.contains(char::REPLACEMENT_CHARACTER)
    }
}

/// Percent-decodes like Go's `url.unescape`; `None` if Go reports an invalid escape. Also returns whether the text is
/// exact, because it may not be UTF-8.
pub fn unescape(text: &str, plus_is_space: bool) -> Option<(String, bool)> {
    if memchr::memchr2(b'%', b'+', text.as_bytes()).is_none() {
        return Some((text.to_owned(), true));
    }
    let (decoded, has_invalid) = unescape_bytes(text.as_bytes(), plus_is_space);
    if has_invalid {
        return None;
    }
    Some(match String::from_utf8(decoded) {
        Ok(text) => (text, true),
        Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), false),
    })
}

/// Resolves the valid escapes of a text. Invalid ones are kept, as some servers do. Also returns whether there are any.
pub(super) fn unescape_bytes(text: &[u8], plus_is_space: bool) -> (Vec<u8>, bool) {
    let digit = |at: usize| text.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let (mut unescaped, mut has_invalid, mut at) = (Vec::with_capacity(text.len()), false, 0);
    while let Some(byte) = text.get(at) {
        let escape = if *byte == b'%' { digit(at + 1).zip(digit(at + 2)) } else { None };
        let read = escape.and_then(|(high, low)| u8::try_from(high << 4 | low).ok());
        has_invalid |= *byte == b'%' && read.is_none();
        unescaped.push(read.unwrap_or(if plus_is_space && *byte == b'+' { b' ' } else { *byte }));
        at += if read.is_some() { 3 } else { 1 };
    }
    (unescaped, has_invalid)
}

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
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn query_decoding_matches_go_url_parse_query() {
        let cases: [(&str, &[(&str, &str)]); 12] = [
            ("", &[]),
            ("a=1&b=2", &[("a", "1"), ("b", "2")]),
            ("watch", &[("watch", "")]),
            ("watch=", &[("watch", "")]),
            ("=x", &[("", "x")]),
            ("a=b=c", &[("a", "b=c")]),
            ("a+b=c+d%2B", &[("a b", "c d+")]),
            ("labelSelector=app%3Dx%2Ctier+in+(a,b)", &[("labelSelector", "app=x,tier in (a,b)")]),
            ("a=1;b=2&c=3", &[("c", "3")]),
            ("a=%zz&b=%4&c=%41&d=%", &[("c", "A")]),
            ("&&a=1&&", &[("a", "1")]),
            ("%61=%62", &[("a", "b")]),
        ];
        for (raw, pairs) in cases {
            let parsed = UrlQuery::parse(raw);
            let got: Vec<(&str, &str)> = parsed.pairs().collect();
            assert_eq!(got, pairs, "{raw}");
        }
    }

    #[test]
    fn literal_text_is_stored_once() {
        let long = "x".repeat(60_000);
        let query = UrlQuery::parse(&format!("a={long}&b=c+d"));
        assert_eq!((query.first("a"), query.first("b")), (Some(&*long), Some("c d")));
        assert_eq!(query.text.len(), query.raw().len() + "c d".len());
    }

    /// A client can repeat a query of 4 KB with a few bytes of HPACK.
    #[test]
    fn query_memory_follows_its_text() {
        for pair in ["&a", "&+", "&%41"] {
            let raw = pair.repeat(1_800);
            let query = UrlQuery::parse(&raw);
            let bytes = query.text.capacity() + query.pairs.capacity() * size_of::<(UrlQueryText, UrlQueryText)>();
            assert!(query.pairs().count() == 1_800 && bytes <= 12 * raw.len(), "{pair}: {bytes} bytes");
        }
    }

    #[test]
    fn first_value_is_used_and_names_are_case_sensitive() {
        let query = UrlQuery::parse("watch=0&watch=1&Watch=2");
        assert_eq!(query.first("watch"), Some("0"));
        assert_eq!(query.first("Watch"), Some("2"));
        assert_eq!(query.first("WATCH"), None);
    }

    #[test]
    fn query_with_invalid_utf8_is_not_lossless() {
        assert!(UrlQuery::parse("a=%C3%A4").is_lossless());
        for replaced in ["a=%ff", "a=%EF%BF%BD", "a=\u{fffd}"] {
            assert!(!UrlQuery::parse(replaced).is_lossless(), "{replaced}");
        }
        assert!(UrlQuery::default().is_lossless());
    }

    #[test]
    fn query_with_too_many_pairs_parses_as_empty() {
        assert_eq!(UrlQuery::parse(&"a=1&".repeat(QUERY_PAIRS_MAX - 1)).first("a"), Some("1"));
        assert!(UrlQuery::parse(&"a=1&".repeat(QUERY_PAIRS_MAX)).is_empty());
    }

    proptest! {
        #[test]
        fn parsing_never_panics(raw in any::<String>()) {
            let query = UrlQuery::parse(&raw);
            prop_assert_eq!(query.raw(), raw.as_str());
        }
    }

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
