use super::*;
use crate::{ContinueToken, ContinueVersion, ListPageSource, ResourceVersion};
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
fn first_invalid_parameter_follows_the_apiservers_order() {
    for (query, message) in [
        ("limit=abc", r#"strconv.ParseInt: parsing "abc": invalid syntax"#),
        ("limit=", r#"strconv.ParseInt: parsing "": invalid syntax"#),
        ("limit=9223372036854775808", r#"strconv.ParseInt: parsing "9223372036854775808": value out of range"#),
        ("timeoutSeconds=1.5", r#"strconv.ParseInt: parsing "1.5": invalid syntax"#),
        ("limit=a&timeoutSeconds=b", r#"strconv.ParseInt: parsing "b": invalid syntax"#),
        ("labelSelector=a,&limit=a", r#"strconv.ParseInt: parsing "a": invalid syntax"#),
        ("fieldSelector=x&labelSelector=a,", "found '', expected: identifier after ','"),
        ("fieldSelector=x", "invalid selector: 'x'; can't understand 'x'"),
    ] {
        let refused = ListOptions::decode(&UrlQuery::parse(query)).expect_err("refused");
        assert_eq!((refused.code, refused.message.as_str()), (400, message), "{query}");
        assert_eq!(refused.details, None);
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

const UNLESS_VERSION: &str = "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided";
const WITH_CONTINUE: &str = "Forbidden: resourceVersionMatch is forbidden when continue is provided";
const LIST_VALUES: &str = r#"Unsupported value: "Foo": supported values: "Exact", "NotOlderThan", """#;
const EXACT_ZERO: &str = r#"Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0""#;
const LIST_EVENTS: &str = "Forbidden: sendInitialEvents is forbidden for list";
const NEEDS_MATCH: &str = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
const UNLESS_EVENTS: &str =
    "Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
const WATCH_VALUES: &str = r#"Unsupported value: "Exact": supported values: "NotOlderThan""#;

#[test]
fn conflicting_options_are_reported_together() {
    let version_match = "resourceVersionMatch";
    let events = "sendInitialEvents";
    let cases: [(&str, &[(&str, &str)]); 16] = [
        ("", &[]),
        ("resourceVersionMatch=Exact&resourceVersion=5&limit=5", &[]),
        ("resourceVersionMatch=NotOlderThan&resourceVersion=0", &[]),
        ("resourceVersionMatch=Exact", &[(version_match, UNLESS_VERSION)]),
        ("resourceVersionMatch=Exact&resourceVersion=5&continue=x", &[(version_match, WITH_CONTINUE)]),
        ("resourceVersionMatch=Foo&resourceVersion=5", &[(version_match, LIST_VALUES)]),
        ("resourceVersionMatch=Exact&resourceVersion=0", &[(version_match, EXACT_ZERO)]),
        ("sendInitialEvents=true", &[(events, LIST_EVENTS)]),
        (
            "sendInitialEvents=false&resourceVersionMatch=Foo&continue=x",
            &[
                (version_match, UNLESS_VERSION),
                (version_match, WITH_CONTINUE),
                (version_match, LIST_VALUES),
                (events, LIST_EVENTS),
            ],
        ),
        ("watch=1&sendInitialEvents=true", &[(version_match, NEEDS_MATCH)]),
        ("watch=1&resourceVersionMatch=NotOlderThan", &[(version_match, UNLESS_EVENTS)]),
        (
            "watch=1&sendInitialEvents=true&resourceVersionMatch=Exact",
            &[(version_match, NEEDS_MATCH), (version_match, WATCH_VALUES)],
        ),
        ("watch=1&resourceVersion=0&continue=x", &[(version_match, WITH_CONTINUE)]),
        ("watch=1&resourceVersion=5&continue=x", &[]),
        ("watch=1&limit=5", &[]),
        ("watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=5", &[]),
    ];
    for (query, problems) in cases {
        let options = options(query).defaulted();
        let refused = options.validate(options.watch).err();
        let problem_list = refused.and_then(|status| status.details).map(|it| it.causes).unwrap_or_default();
        let reported: Vec<_> =
            problem_list.iter().map(|cause| (cause.field.as_str(), cause.message.as_str())).collect();
        assert_eq!(reported, problems, "{query}");
    }
}

#[test]
fn watch_path_form_is_validated_as_a_list() {
    let options = options("sendInitialEvents=true").defaulted();
    let refused = options.validate(options.watch).expect_err("refused");
    let expected = format!("ListOptions.meta.k8s.io \"\" is invalid: sendInitialEvents: {LIST_EVENTS}");
    assert_eq!((refused.code, refused.message), (422, expected));
}

#[test]
fn single_and_multiple_errors_are_formatted_as_in_apiserver() {
    let refused = |query| options(query).validate(false).expect_err("refused").to_json();
    let one = concat!(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","#,
        r#""message":"ListOptions.meta.k8s.io \"\" is invalid: "#,
        r#"sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list","reason":"Invalid","#,
        r#""details":{"group":"meta.k8s.io","kind":"ListOptions","causes":[{"reason":"FieldValueForbidden","#,
        r#""message":"Forbidden: sendInitialEvents is forbidden for list","field":"sendInitialEvents"}]},"code":422}"#,
        "\n"
    );
    assert_eq!(String::from_utf8(refused("sendInitialEvents=1")).expect("text"), one);
    let several = String::from_utf8(refused("resourceVersionMatch=%3C")).expect("text");
    let message = concat!(
        r#""message":"ListOptions.meta.k8s.io \"\" is invalid: "#,
        "[resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided, ",
        r#"resourceVersionMatch: Unsupported value: \"\\u003c\": "#,
        r#"supported values: \"Exact\", \"NotOlderThan\", \"\"]""#,
    );
    assert!(several.contains(message), "{several}");
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
        options.validate(false).expect(row);
        assert_eq!(options.list_plan(), Ok(expected), "{row}");
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
        options.validate(options.watch).expect(row);
        assert_eq!(options.watch_start(), Ok(expected), "{row}");
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
        let options = GetOptions::decode(&UrlQuery::parse(query)).expect("decodes");
        assert_eq!(options.version_match(), Ok(version), "{query}");
    }
    assert!(GetOptions::decode(&UrlQuery::parse("export=false")).is_ok());
    let refused = GetOptions::decode(&UrlQuery::parse("export")).expect_err("refused");
    let text = "the export parameter, deprecated since v1.14, is no longer supported";
    assert_eq!((refused.code, refused.message.as_str()), (400, text));
}

#[test]
fn invalid_version_returns_400_for_list_and_500_otherwise() {
    let text = r#"resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax"#.to_owned();
    let bad = options("resourceVersion=abc");
    let list = bad.list_plan().expect_err("refused");
    assert_eq!((list.code, list.reason.as_str()), (400, "BadRequest"));
    assert_eq!(list.message, format!("invalid resource version: {text}"));
    let watch = bad.watch_start().expect_err("refused");
    let get = GetOptions { resource_version: "abc".to_owned() }.version_match().expect_err("refused");
    assert_eq!((watch.code, watch.reason.as_str(), &watch.message), (500, "", &text));
    assert_eq!(get, watch);
}

#[test]
fn continue_token_excludes_version_and_is_validated_first() {
    let token =
        ContinueToken { version: ContinueVersion::Latest, start: "a\0".to_owned() }.encode(ListPageSource::FromStorage);
    let refused = |query: &str| options(query).list_plan().expect_err("refused");
    let both = refused(&format!("continue={token}&resourceVersion=5"));
    assert_eq!(both.message, "specifying resource version is not allowed when using continue");
    assert_eq!(refused("continue=a&resourceVersion=abc").message, "invalid continue token");
}

proptest! {
    #[test]
    fn option_decoding_never_panics(
        raw in "(watch|limit|continue|resourceVersion(Match)?|(label|field)Selector|sendInitialEvents|[&=0-9E%,]){0,9}",
    ) {
        let _ = GetOptions::decode(&UrlQuery::parse(&raw)).map(|options| options.version_match().is_ok());
        if let Ok(options) = ListOptions::decode(&UrlQuery::parse(&raw)) {
            let options = options.defaulted();
            let _ = options.validate(options.watch);
            let _ = options.list_plan();
            let _ = options.watch_start();
        }
    }
}
