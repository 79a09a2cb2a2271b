use super::*;
use crate::ListPageSource;
use proptest::prelude::*;

fn options(query: &str) -> ListOptions {
    ListOptions::decode(&UrlQuery::parse(query)).expect("decodes")
}

fn exact(version: u64) -> ResourceVersionMatch {
    ResourceVersionMatch::Exact(ResourceVersion(version))
}

fn not_older_than(version: u64) -> ResourceVersionMatch {
    ResourceVersionMatch::NotOlderThan(ResourceVersion(version))
}

#[test]
fn flag_is_false_only_for_0_and_false() {
    for (text, value) in [
        ("", None),
        ("watch", Some(true)),
        ("watch=", Some(true)),
        ("watch=1", Some(true)),
        ("watch=no", Some(true)),
        ("watch=0", Some(false)),
        ("watch=false", Some(false)),
        ("watch=FALSE", Some(false)),
        ("watch=00", Some(true)),
        ("watch=0&watch=1", Some(false)),
    ] {
        assert_eq!(flag(&UrlQuery::parse(text), "watch"), value, "{text}");
    }
    assert_eq!(options("sendInitialEvents=0").send_initial_events, Some(false));
    assert_eq!(options("").send_initial_events, None);
}

#[test]
fn invalid_numbers_and_selectors_are_not_decoded() {
    for query in [
        "limit=abc",
        "limit=",
        "limit=-",
        "limit=1_000",
        "limit=%D9%A3",
        "limit=9223372036854775808",
        "timeoutSeconds=1.5",
        "timeoutSeconds=18446744073709551616",
        "labelSelector=a,",
        "fieldSelector=x",
    ] {
        assert_eq!(ListOptions::decode(&UrlQuery::parse(query)), None, "{query}");
    }
    for (text, limit) in [("007", 7), ("%2B5", 5), ("9223372036854775807", i64::MAX)] {
        assert_eq!(options(&format!("limit={text}")).limit, limit, "{text}");
    }
}

#[test]
fn negative_limits_and_timeouts_are_accepted() {
    let options = options("limit=-1&timeoutSeconds=-5");
    assert_eq!((options.limit, options.timeout_seconds), (-1, Some(-5)));
    assert_eq!(options.list_plan().expect("valid").limit, None);
}

#[test]
fn watch_without_start_version_defaults_to_initial_events() {
    for (query, defaulted) in [
        ("watch=1", true),
        ("watch=1&resourceVersion=", true),
        ("watch=1&resourceVersion=0", true),
        ("watch=1&resourceVersion=5", false),
        ("watch=1&resourceVersion=00", false),
        ("watch=1&sendInitialEvents=false", false),
        ("watch=1&resourceVersionMatch=NotOlderThan", false),
        ("", false),
        ("watch=0&resourceVersion=0", false),
    ] {
        let options = options(query);
        let expected = if defaulted {
            ListOptions {
                send_initial_events: Some(true),
                resource_version_match: "NotOlderThan".to_owned(),
                ..options.clone()
            }
        } else {
            options.clone()
        };
        assert_eq!(options.defaulted(), expected, "{query}");
    }
}

#[test]
fn conflicting_options_are_invalid() {
    for (query, is_valid) in [
        ("", true),
        ("resourceVersionMatch=Exact&resourceVersion=5&limit=5", true),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=0", true),
        ("resourceVersionMatch=Exact", false),
        ("resourceVersionMatch=NotOlderThan", false),
        ("resourceVersionMatch=Exact&resourceVersion=5&continue=x", false),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=5&continue=x", false),
        ("resourceVersionMatch=Foo&resourceVersion=5", false),
        ("resourceVersionMatch=Exact&resourceVersion=0", false),
        ("sendInitialEvents=true", false),
        ("sendInitialEvents=false&resourceVersion=5&resourceVersionMatch=Exact", false),
        ("sendInitialEvents=false&resourceVersion=5&resourceVersionMatch=NotOlderThan", false),
        ("watch=1&sendInitialEvents=true", false),
        ("watch=1&resourceVersionMatch=NotOlderThan", false),
        ("watch=1&sendInitialEvents=true&resourceVersionMatch=Exact", false),
        ("watch=1&sendInitialEvents=true&resourceVersionMatch=Foo", false),
        ("watch=1&resourceVersion=0&continue=x", false),
        ("watch=1&resourceVersion=5&continue=x", true),
        ("watch=1&limit=5", true),
        ("watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=5", true),
    ] {
        let options = options(query).defaulted();
        assert_eq!(options.is_valid(options.watch), is_valid, "{query}");
    }
    // The path form of a watch is validated as a list.
    let from_path = options("sendInitialEvents=true&resourceVersionMatch=NotOlderThan").defaulted();
    assert!(from_path.is_valid(true) && !from_path.is_valid(from_path.watch));
}

#[test]
fn list_options_map_to_the_documented_list_plan() {
    let snapshot = ContinueToken { version: ContinueVersion::Version(ResourceVersion(7)), start: "ns/a\0".to_owned() }
        .encode(ListPageSource::FromStorage);
    let latest = ContinueToken { version: ContinueVersion::Latest, start: "ns/a\0".to_owned() }
        .encode(ListPageSource::FromStorage);
    let plan = |version, limit, start: Option<&str>| ListPlan { version, limit, start: start.map(str::to_owned) };
    for (row, query, expected) in [
        (
            "continue at a version is that snapshot",
            format!("continue={snapshot}&limit=2"),
            plan(exact(7), Some(2), Some("ns/a\0")),
        ),
        (
            "continue with version 0 is the same, unlimited",
            format!("continue={snapshot}&limit=2&resourceVersion=0"),
            plan(exact(7), None, Some("ns/a\0")),
        ),
        (
            "continue at -1 is the most recent from the key on",
            format!("continue={latest}&limit=2"),
            plan(ResourceVersionMatch::Unset, Some(2), Some("ns/a\0")),
        ),
        ("exactly N", "resourceVersionMatch=Exact&resourceVersion=5&limit=2".to_owned(), plan(exact(5), Some(2), None)),
        (
            "not older than N",
            "resourceVersionMatch=NotOlderThan&resourceVersion=5".to_owned(),
            plan(not_older_than(5), None, None),
        ),
        (
            "not older than N, a page",
            "resourceVersionMatch=NotOlderThan&resourceVersion=5&limit=2".to_owned(),
            plan(not_older_than(5), Some(2), None),
        ),
        (
            "not older than 0 ignores the limit",
            "resourceVersionMatch=NotOlderThan&resourceVersion=0&limit=2".to_owned(),
            plan(ResourceVersionMatch::Any, None, None),
        ),
        ("no parameter means the most recent state", String::new(), plan(ResourceVersionMatch::Unset, None, None)),
        ("no version, a page", "limit=2".to_owned(), plan(ResourceVersionMatch::Unset, Some(2), None)),
        ("0 is any, unlimited", "resourceVersion=0&limit=2".to_owned(), plan(ResourceVersionMatch::Any, None, None)),
        ("N without limit is not older than N", "resourceVersion=5".to_owned(), plan(not_older_than(5), None, None)),
        ("N with limit is exactly N", "resourceVersion=5&limit=2".to_owned(), plan(exact(5), Some(2), None)),
        (
            "N with a limit that is none is not older than N",
            "resourceVersion=5&limit=-1".to_owned(),
            plan(not_older_than(5), None, None),
        ),
    ] {
        let options = options(&query);
        assert!(options.is_valid(false), "{row}");
        assert_eq!(options.list_plan(), Some(expected), "{row}");
    }
}

#[test]
fn watch_options_map_to_the_documented_watch_start() {
    let state = |at, end_bookmark| WatchStart::State { at, end_bookmark };
    for (row, query, expected) in [
        ("no start", "watch=1", state(ResourceVersionMatch::Unset, false)),
        ("no start, with bookmarks", "watch=1&allowWatchBookmarks=1", state(ResourceVersionMatch::Unset, true)),
        ("0", "watch=1&resourceVersion=0", state(ResourceVersionMatch::Any, false)),
        (
            "0, with bookmarks",
            "watch=1&resourceVersion=0&allowWatchBookmarks=1",
            state(ResourceVersionMatch::Any, true),
        ),
        ("N", "watch=1&resourceVersion=5", WatchStart::After(ResourceVersion(5))),
        ("N, with bookmarks", "watch=1&resourceVersion=5&allowWatchBookmarks=1", WatchStart::After(ResourceVersion(5))),
        ("path form", "", state(ResourceVersionMatch::Any, false)),
        (
            "path form at 0, with bookmarks",
            "resourceVersion=0&allowWatchBookmarks=1",
            state(ResourceVersionMatch::Any, false),
        ),
        ("path form at N", "resourceVersion=5", WatchStart::After(ResourceVersion(5))),
        (
            "events declined",
            "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan",
            WatchStart::FromCurrent,
        ),
        (
            "events declined at 0",
            "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=0",
            WatchStart::FromCached,
        ),
        (
            "events declined at N",
            "watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=5",
            WatchStart::After(ResourceVersion(5)),
        ),
        (
            "initial events requested",
            "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
            state(ResourceVersionMatch::Unset, true),
        ),
        (
            "initial events requested at 0",
            "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=0",
            state(ResourceVersionMatch::Any, false),
        ),
        (
            "initial events requested at N are the whole state",
            "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=5&allowWatchBookmarks=1",
            state(not_older_than(5), true),
        ),
    ] {
        let options = options(query).defaulted();
        assert!(options.is_valid(options.watch), "{row}");
        assert_eq!(options.watch_start(), Some(expected), "{row}");
    }
}

#[test]
fn watch_start_reports_initial_events_and_end_bookmark() {
    for (start, bookmark) in [
        (WatchStart::After(ResourceVersion(5)), false),
        (WatchStart::FromCached, false),
        (WatchStart::FromCurrent, false),
        (WatchStart::State { at: ResourceVersionMatch::Any, end_bookmark: false }, false),
        (WatchStart::State { at: ResourceVersionMatch::Any, end_bookmark: true }, true),
    ] {
        assert_eq!(start.ends_with_bookmark(), bookmark, "{start:?}");
    }
}

#[test]
fn get_treats_resource_version_as_a_minimum() {
    for (query, version) in [
        ("", ResourceVersionMatch::Unset),
        ("resourceVersion=0", ResourceVersionMatch::Any),
        ("resourceVersion=5", not_older_than(5)),
        ("resourceVersion=5&resourceVersionMatch=Exact", not_older_than(5)),
    ] {
        assert_eq!(ResourceVersionMatch::of_get(&UrlQuery::parse(query)), Some(version), "{query}");
    }
    assert!(ResourceVersionMatch::of_get(&UrlQuery::parse("export=false")).is_some());
    assert_eq!(ResourceVersionMatch::of_get(&UrlQuery::parse("export")), None);
}

#[test]
fn versions_that_are_not_numbers_are_refused() {
    for version in ["abc", "-1", "%2B1", "1.0", "0x10", "18446744073709551616", "%201"] {
        let query = format!("resourceVersion={version}");
        let options = options(&query);
        assert_eq!((options.list_plan(), options.watch_start()), (None, None), "{version}");
        assert_eq!(ResourceVersionMatch::of_get(&UrlQuery::parse(&query)), None, "{version}");
    }
}

#[test]
fn continue_token_excludes_version() {
    let token =
        ContinueToken { version: ContinueVersion::Latest, start: "a\0".to_owned() }.encode(ListPageSource::FromStorage);
    assert!(options(&format!("continue={token}")).list_plan().is_some());
    for query in [format!("continue={token}&resourceVersion=5"), "continue=a".to_owned()] {
        assert_eq!(options(&query).list_plan(), None, "{query}");
    }
}

proptest! {
    #[test]
    fn option_decoding_never_panics(
        raw in "(watch|limit|continue|resourceVersion(Match)?|(label|field)Selector|sendInitialEvents|[&=0-9E%,]){0,9}",
    ) {
        let _ = ResourceVersionMatch::of_get(&UrlQuery::parse(&raw));
        if let Some(options) = ListOptions::decode(&UrlQuery::parse(&raw)) {
            let options = options.defaulted();
            let _ = options.is_valid(options.watch);
            let _ = options.list_plan();
            let _ = options.watch_start();
        }
    }
}

/// As Go computes `time.Duration(seconds) * time.Second`.
#[test]
fn timeout_seconds_overflow_as_in_go() {
    for (seconds, expected) in [
        (None, WatchTimeout::Unset),
        (Some(0), WatchTimeout::Unset),
        (Some(300), WatchTimeout::After(Duration::from_secs(300))),
        (Some(-1), WatchTimeout::Elapsed),
        (Some(9_223_372_036), WatchTimeout::After(Duration::from_secs(9_223_372_036))),
        (Some(9_223_372_037), WatchTimeout::Elapsed),
        (Some(18_446_744_073), WatchTimeout::Elapsed),
        (Some(18_446_744_074), WatchTimeout::After(Duration::from_nanos(290_448_384))),
        (Some(99_999_999_999), WatchTimeout::After(Duration::from_nanos(7_766_279_630_452_241_920))),
        (Some(i64::MAX), WatchTimeout::Elapsed),
        (Some(i64::MIN), WatchTimeout::Unset),
        (Some(1 << 55), WatchTimeout::Unset),
    ] {
        assert_eq!(WatchTimeout::of(seconds), expected, "{seconds:?}");
    }
}
