//! Query parameters: decoding, defaulting and validation as the apiserver does them, in its order.

use super::status::DemoStatus;

/// The parameters as they came, first value of each only.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query(Vec<(String, String)>);

impl Query {
    pub(crate) fn parse(text: &str) -> Self {
        let mut pairs: Vec<(String, String)> = vec![];
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let key = unescape(key, true);
            if pairs.iter().all(|(known, _)| *known != key) {
                pairs.push((key, unescape(value, true)));
            }
        }
        Self(pairs)
    }

    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self, key: &str) -> &str {
        self.get(key).unwrap_or_default()
    }

    /// Absent or, in the server's loose way, anything but `0` and `false`.
    fn flag(&self, key: &str) -> Option<bool> {
        self.get(key).map(|value| value != "0" && !value.eq_ignore_ascii_case("false"))
    }

    fn integer(&self, key: &str) -> Result<i64, DemoStatus> {
        match self.get(key) {
            None | Some("") => Ok(0),
            Some(text) => text
                .parse()
                .map_err(|_| DemoStatus::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))),
        }
    }

    pub(crate) fn is_watch(&self) -> bool {
        self.flag("watch").unwrap_or(false)
    }
}

/// Percent-decoding; a plus is a space in queries only. Broken escapes stay as they are.
pub(crate) fn unescape(text: &str, plus_is_space: bool) -> String {
    let digit = |byte: Option<&u8>| byte.and_then(|byte| char::from(*byte).to_digit(16));
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let escape = (byte == b'%').then(|| Some((digit(bytes.get(at + 1))?, digit(bytes.get(at + 2))?))).flatten();
        match (byte, escape) {
            (_, Some((high, low))) => {
                out.push(u8::try_from(high * 16 + low).unwrap_or(b'?'));
                at += 2;
            }
            (b'+', _) if plus_is_space => out.push(b' '),
            _ => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8_lossy(&out).into_owned()
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Match {
    Unset,
    Exact,
    NotOlderThan,
}

/// `ListOptions` after defaulting and validation. `rv` is still text: its errors differ between LIST and WATCH.
#[derive(Clone, Debug)]
pub(crate) struct ListOptions {
    pub(crate) watch: bool,
    pub(crate) rv: String,
    pub(crate) rv_match: Match,
    pub(crate) limit: usize,
    pub(crate) next: String,
    pub(crate) bookmarks: bool,
    pub(crate) initial_events: Option<bool>,
    pub(crate) timeout_seconds: i64,
}

impl ListOptions {
    /// `forced` is the deprecated `/watch/` form of the path, which is validated as a list unless `watch` is set too.
    pub(crate) fn read(query: &Query, forced: bool) -> Result<Self, DemoStatus> {
        let watch = query.is_watch();
        let (mut initial_events, mut rv_match) = (query.flag("sendInitialEvents"), query.text("resourceVersionMatch"));
        let (limit, timeout_seconds) = (query.integer("limit")?, query.integer("timeoutSeconds")?);
        let (rv, next) = (query.text("resourceVersion"), query.text("continue"));
        if watch && initial_events.is_none() && rv_match.is_empty() && matches!(rv, "" | "0") {
            (initial_events, rv_match) = (Some(true), "NotOlderThan");
        }
        let problems = if watch {
            watch_problems(rv_match, next, initial_events)
        } else {
            list_problems(rv_match, rv, next, initial_events)
        };
        if !problems.is_empty() {
            return Err(DemoStatus::invalid_options(&problems));
        }
        Ok(Self {
            watch: watch || forced,
            rv: rv.to_owned(),
            rv_match: match rv_match {
                "Exact" => Match::Exact,
                "NotOlderThan" => Match::NotOlderThan,
                _ => Match::Unset,
            },
            limit: usize::try_from(limit).unwrap_or(0),
            next: next.to_owned(),
            bookmarks: query.flag("allowWatchBookmarks").unwrap_or(false),
            initial_events,
            timeout_seconds,
        })
    }
}

type Problem = (&'static str, &'static str, String);

const MATCH: &str = "resourceVersionMatch";

fn forbidden(field: &'static str, text: &str) -> Problem {
    ("FieldValueForbidden", field, format!("Forbidden: {text}"))
}

fn unsupported(value: &str, supported: &str) -> Problem {
    ("FieldValueNotSupported", MATCH, format!("Unsupported value: {value:?}: supported values: {supported}"))
}

fn watch_problems(rv_match: &str, next: &str, initial_events: Option<bool>) -> Vec<Problem> {
    let mut problems = vec![];
    if !rv_match.is_empty() && !next.is_empty() {
        problems.push(forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
    } else if initial_events.is_some() && rv_match != "NotOlderThan" {
        problems.push(forbidden(MATCH, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"));
        if !rv_match.is_empty() {
            problems.push(unsupported(rv_match, r#""NotOlderThan""#));
        }
    } else if initial_events.is_none() && !rv_match.is_empty() {
        problems
            .push(forbidden(MATCH, "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"));
    }
    problems
}

fn list_problems(rv_match: &str, rv: &str, next: &str, initial_events: Option<bool>) -> Vec<Problem> {
    let mut problems = vec![];
    if !rv_match.is_empty() {
        if rv.is_empty() {
            problems.push(forbidden(MATCH, "resourceVersionMatch is forbidden unless resourceVersion is provided"));
        }
        if !next.is_empty() {
            problems.push(forbidden(MATCH, "resourceVersionMatch is forbidden when continue is provided"));
        }
        if !matches!(rv_match, "Exact" | "NotOlderThan") {
            problems.push(unsupported(rv_match, r#""Exact", "NotOlderThan", """#));
        }
        if rv_match == "Exact" && rv == "0" {
            problems.push(forbidden(MATCH, r#"resourceVersionMatch "exact" is forbidden for resourceVersion "0""#));
        }
    }
    if initial_events.is_some() {
        problems.push(forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list"));
    }
    problems
}

/// The text of a resourceVersion that is not a number; the caller knows which code it goes with.
pub(crate) fn parse_rv(text: &str) -> Result<u64, String> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| {
        format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(query: &str) -> Result<ListOptions, DemoStatus> {
        ListOptions::read(&Query::parse(query), false)
    }

    #[test]
    fn booleans_are_loose_and_only_first_values_count() {
        assert!(read("watch=").unwrap().watch);
        assert!(read("watch=no").unwrap().watch);
        assert!(!read("watch=False").unwrap().watch);
        assert_eq!(read("limit=1&limit=5").unwrap().limit, 1);
        assert_eq!(read("limit=-1").unwrap().limit, 0);
        assert_eq!(Query::parse("labelSelector=a%20in%20(b,c)+").text("labelSelector"), "a in (b,c) ");
    }

    #[test]
    fn watches_without_a_version_ask_for_initial_events() {
        assert_eq!(read("watch=1&resourceVersion=0").unwrap().initial_events, Some(true));
        assert_eq!(read("watch=1&resourceVersion=7").unwrap().initial_events, None);
        assert!(
            read("watch=1&resourceVersion=0&continue=x").unwrap_err().message.contains("when continue is provided")
        );
    }

    #[test]
    fn invalid_combinations_are_422_with_the_servers_words() {
        for (query, text) in [
            ("resourceVersionMatch=Exact", "resourceVersionMatch is forbidden unless resourceVersion is provided"),
            ("resourceVersion=0&resourceVersionMatch=Exact", r#""exact" is forbidden for resourceVersion "0""#),
            ("sendInitialEvents=true", "sendInitialEvents is forbidden for list"),
            ("watch=1&sendInitialEvents=true", "requires setting resourceVersionMatch to NotOlderThan"),
            ("watch=1&resourceVersion=5&resourceVersionMatch=NotOlderThan", "forbidden for watch unless"),
            ("resourceVersion=5&resourceVersionMatch=Foo", r#"supported values: "Exact", "NotOlderThan", """#),
        ] {
            let status = read(query).unwrap_err();
            assert_eq!(status.code, 422, "{query}");
            assert!(status.message.contains(text), "{query}: {}", status.message);
        }
        assert_eq!(read("limit=abc").unwrap_err().message, r#"strconv.ParseInt: parsing "abc": invalid syntax"#);
    }
}
