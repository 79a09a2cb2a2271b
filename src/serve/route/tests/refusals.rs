//! Requests that are rejected exactly as upstream would reject them: with the same code, reason and message
//! (R-OPTIONS-1, R-QUERY-4).

use super::fixture::{TestRequest, assert_routes, get};
use crate::serve::route::ReadRoute;
use kubeapi::{Status, StatusCause};

fn refused(request: &TestRequest) -> Status {
    match request.route() {
        Ok(ReadRoute::Refuse(status)) => *status,
        _ => panic!("{request:?} is not refused: {}", request.summary()),
    }
}

#[test]
fn invalid_numeric_parameters_return_400() {
    assert_routes(&[
        ("/api/v1/pods?limit=abc", r#"400 BadRequest: strconv.ParseInt: parsing "abc": invalid syntax"#),
        ("/api/v1/pods?limit=", r#"400 BadRequest: strconv.ParseInt: parsing "": invalid syntax"#),
        (
            "/api/v1/pods?watch=1&timeoutSeconds=1.5",
            r#"400 BadRequest: strconv.ParseInt: parsing "1.5": invalid syntax"#,
        ),
        (
            "/api/v1/pods?limit=9223372036854775808",
            r#"400 BadRequest: strconv.ParseInt: parsing "9223372036854775808": value out of range"#,
        ),
        (
            "/api/v1/pods?watch=1&timeoutSeconds=18446744073709551616",
            r#"400 BadRequest: strconv.ParseInt: parsing "18446744073709551616": value out of range"#,
        ),
        // Lists decode this parameter too, although it has no effect.
        ("/api/v1/pods?timeoutSeconds=x", r#"400 BadRequest: strconv.ParseInt: parsing "x": invalid syntax"#),
    ]);
}

#[test]
fn invalid_timeouts_return_400() {
    let message = |text: &str| format!("400 BadRequest: invalid timeout specified in the request URL - time: {text}");
    assert_routes(&[
        ("/api/v1/pods?timeout=abc", &*message(r#"invalid duration "abc""#)),
        ("/api/v1/namespaces/a/pods/p?resourceVersion=0&timeout=5", &message(r#"missing unit in duration "5""#)),
        // The timeout is checked first.
        ("/api/v1/pods?timeout=1x&limit=abc", &message(r#"unknown unit "x" in duration "1x""#)),
        ("/api/v1/pods?timeout=30s&limit=abc", r#"400 BadRequest: strconv.ParseInt: parsing "abc": invalid syntax"#),
        // A watch is long-running.
        (
            "/api/v1/pods?watch=1&timeout=x&limit=abc",
            r#"400 BadRequest: strconv.ParseInt: parsing "abc": invalid syntax"#,
        ),
    ]);
}

#[test]
fn malformed_label_selectors_return_400() {
    assert_routes(&[
        ("/api/v1/pods?labelSelector=a%20in", "400 BadRequest: unable to parse requirement: found '' expected: '('"),
        ("/api/v1/pods?labelSelector=a%3Db%20c", "400 BadRequest: found 'c', expected: ',' or 'end of string'"),
        (
            "/api/v1/pods?watch=1&labelSelector=a%3D%3D%3Db",
            "400 BadRequest: unable to parse requirement: found '=', expected: identifier",
        ),
    ]);
}

#[test]
fn malformed_field_selectors_return_400() {
    assert_routes(&[
        ("/api/v1/pods?fieldSelector=foo", "400 BadRequest: invalid selector: 'foo'; can't understand 'foo'"),
        (
            "/api/v1/pods?fieldSelector=spec.nodeName%3Da%5Cb",
            r"400 BadRequest: invalid field selector: invalid escape sequence: \b",
        ),
    ]);
}

/// For a list, this is a client error. For GET and WATCH, the apiserver does not map the error and returns 500 without
/// a reason.
#[test]
fn invalid_versions_return_400_for_list_and_500_otherwise() {
    let text = r#"resourceVersion: Invalid value: "abc": strconv.ParseUint: parsing "abc": invalid syntax"#;
    let list = get("/api/v1/pods?resourceVersion=abc");
    assert_eq!(list.summary(), format!("400 BadRequest: invalid resource version: {text}"));
    for uri in ["/api/v1/pods?watch=1&resourceVersion=abc", "/api/v1/namespaces/a/pods/p?resourceVersion=abc"] {
        assert_eq!(get(uri).summary(), format!("500 : {text}"), "{uri}");
    }
    for bad in ["-1", "%2B1", "1.0", "0x10", "18446744073709551616", "%201"] {
        for (uri, code) in [("/api/v1/pods?watch=1&", 500), ("/api/v1/pods?", 400), ("/api/v1/nodes/n?", 500)] {
            assert_eq!(refused(&get(format!("{uri}resourceVersion={bad}"))).code, code, "{uri} {bad}");
        }
    }
}

const INVALID: &str = r#"422 Invalid: ListOptions.meta.k8s.io "" is invalid: "#;
const MATCH: &str = "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden";

#[test]
fn conflicting_list_options_return_422() {
    let for_list = "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list";
    for (query, expected) in [
        ("resourceVersionMatch=Exact", format!("{MATCH} unless resourceVersion is provided")),
        (
            "resourceVersionMatch=NotOlderThan&resourceVersion=7&continue=x",
            format!("{MATCH} when continue is provided"),
        ),
        (
            "resourceVersionMatch=Foo&resourceVersion=7",
            r#"resourceVersionMatch: Unsupported value: "Foo": supported values: "Exact", "NotOlderThan", """#
                .to_owned(),
        ),
        (
            "resourceVersionMatch=Exact&resourceVersion=0",
            r#"resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0""#
                .to_owned(),
        ),
        ("sendInitialEvents=true", for_list.to_owned()),
        ("sendInitialEvents=false", for_list.to_owned()),
        (
            "sendInitialEvents=true&resourceVersionMatch=Exact",
            format!("[{MATCH} unless resourceVersion is provided, {for_list}]"),
        ),
    ] {
        assert_eq!(get(format!("/api/v1/pods?{query}")).summary(), format!("{INVALID}{expected}"), "{query}");
    }
}

#[test]
fn conflicting_watch_options_return_422() {
    let requires = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
    for (query, expected) in [
        ("sendInitialEvents=true", format!("resourceVersionMatch: Forbidden: {requires}")),
        (
            "resourceVersionMatch=NotOlderThan&resourceVersion=7",
            format!("{MATCH} for watch unless sendInitialEvents is provided"),
        ),
        // The default for version 0 sets a match, which then excludes the token.
        ("resourceVersion=0&continue=x", format!("{MATCH} when continue is provided")),
    ] {
        assert_eq!(get(format!("/api/v1/pods?watch=1&{query}")).summary(), format!("{INVALID}{expected}"), "{query}");
    }
    let both = refused(&get("/api/v1/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=Exact"));
    let causes: Vec<_> = both.details.expect("causes").causes.into_iter().map(|cause| cause.message).collect();
    let unsupported = r#"Unsupported value: "Exact": supported values: "NotOlderThan""#;
    assert_eq!(causes, [format!("Forbidden: {requires}"), unsupported.to_owned()]);
}

/// Without `watch=true`, the deprecated path is validated as a list.
#[test]
fn watch_path_without_watch_parameter_is_validated_as_list() {
    let summary = get("/api/v1/watch/pods?sendInitialEvents=true").summary();
    assert_eq!(summary, format!("{INVALID}sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"));
    let request = get("/api/v1/watch/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    assert_eq!(request.summary(), "watch json * state current");
}

#[test]
fn continue_token_beside_a_version_returns_400() {
    // {"v":"meta.k8s.io/v1","rv":9,"start":"a/p\u0000"}
    let token = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6OSwic3RhcnQiOiJhL3BcdTAwMDAifQ";
    assert_eq!(
        get(format!("/api/v1/pods?resourceVersion=7&continue={token}")).summary(),
        "400 BadRequest: specifying resource version is not allowed when using continue"
    );
}

#[test]
fn watch_path_name_not_matching_selector_returns_400() {
    let text = "400 BadRequest: fieldSelector metadata.name doesn't match requested name";
    assert_routes(&[
        ("/api/v1/watch/namespaces/a/pods/p?fieldSelector=metadata.name%3Dq", text),
        ("/api/v1/watch/namespaces/a/pods/p?fieldSelector=spec.nodeName%3Dn1", text),
        ("/api/v1/watch/namespaces/a/pods/p?fieldSelector=metadata.name%21%3Dq", text),
        ("/api/v1/watch/namespaces/a?fieldSelector=metadata.name%3Db", text),
    ]);
}

#[test]
fn export_parameter_returns_400() {
    let text = "400 BadRequest: the export parameter, deprecated since v1.14, is no longer supported";
    assert_routes(&[
        ("/api/v1/namespaces/a/pods/p?export=true&resourceVersion=0", text),
        ("/api/v1/namespaces/a/pods/p?export=1&resourceVersion=abc", text),
    ]);
}

/// The order of checks decides which of two errors is reported (R-ORDER-2): decoding, validation, fields, name.
#[test]
fn first_error_in_apiserver_check_order_is_reported() {
    for (uri, code, begins) in [
        ("/api/v1/pods?limit=x&labelSelector=a%20in", 400, "strconv.ParseInt"),
        ("/api/v1/pods?timeoutSeconds=x&limit=y", 400, r#"strconv.ParseInt: parsing "x""#),
        ("/api/v1/pods?labelSelector=a%20in&fieldSelector=foo", 400, "unable to parse requirement"),
        ("/api/v1/pods?labelSelector=a%20in&sendInitialEvents=1", 400, "unable to parse requirement"),
        ("/api/v1/pods?sendInitialEvents=1&fieldSelector=foo%3Dbar", 422, "ListOptions.meta.k8s.io"),
        ("/api/v1/watch/namespaces/a/pods/p?fieldSelector=metadata.name%3Dq&resourceVersion=x", 400, "fieldSelector"),
        ("/api/v1/pods?watch=1&continue=%21&resourceVersion=abc", 500, "resourceVersion"),
    ] {
        let status = refused(&get(uri));
        assert_eq!(status.code, code, "{uri}");
        assert!(status.message.starts_with(begins), "{uri}: {}", status.message);
    }
}

#[test]
fn invalid_options_return_422_with_causes() {
    let status = refused(&get("/api/v1/pods?resourceVersionMatch=Exact"));
    let details = status.details.expect("details");
    assert_eq!((details.group.as_str(), details.kind.as_str()), ("meta.k8s.io", "ListOptions"));
    let cause = StatusCause {
        reason: "FieldValueForbidden".to_owned(),
        message: "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided".to_owned(),
        field: "resourceVersionMatch".to_owned(),
    };
    assert_eq!(details.causes, [cause]);
}
