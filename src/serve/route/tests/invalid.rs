//! Queries that the apiserver refuses are forwarded, so that it answers them in its own words (R-ORDER-2, R-OPTIONS-1,
//! R-QUERY-4).

use super::fixture::{assert_routes, get};
use crate::serve::route::ForwardReason;

fn assert_invalid(uris: impl IntoIterator<Item = impl Into<String>>) {
    for uri in uris {
        let request = get(uri);
        assert_eq!(request.reason(), ForwardReason::Invalid, "{request:?}");
    }
}

#[test]
fn invalid_numbers_are_forwarded() {
    assert_invalid([
        "/api/v1/pods?limit=abc",
        "/api/v1/pods?limit=",
        "/api/v1/pods?limit=9223372036854775808",
        "/api/v1/pods?watch=1&timeoutSeconds=1.5",
        "/api/v1/pods?watch=1&timeoutSeconds=18446744073709551616",
        // Lists decode this parameter too, although it has no effect.
        "/api/v1/pods?timeoutSeconds=x",
    ]);
}

#[test]
fn invalid_timeouts_are_forwarded_except_of_watches() {
    assert_invalid([
        "/api/v1/pods?timeout=abc",
        "/api/v1/namespaces/a/pods/p?resourceVersion=0&timeout=5",
        "/api/v1/pods?timeout=1x&resourceVersion=0",
        "/api/v1/pods?timeout=30s&limit=abc",
        "/api/v1/pods?watch=1&timeout=x&limit=abc",
    ]);
    assert_routes(&[
        ("/api/v1/pods?timeout=30s&resourceVersion=0", "list json * any"),
        // A watch is long-running.
        ("/api/v1/pods?watch=1&timeout=x&resourceVersion=7", "watch json * >7"),
    ]);
}

#[test]
fn malformed_selectors_are_forwarded() {
    assert_invalid([
        "/api/v1/pods?labelSelector=a%20in",
        "/api/v1/pods?labelSelector=a%3Db%20c",
        "/api/v1/pods?labelSelector=a%20in%20(b,,)",
        "/api/v1/pods?watch=1&labelSelector=a%3D%3D%3Db",
        "/api/v1/pods?fieldSelector=foo",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Da%5Cb",
    ]);
}

#[test]
fn invalid_versions_are_forwarded() {
    for bad in ["abc", "-1", "%2B1", "1.0", "0x10", "18446744073709551616", "%201"] {
        let uris = ["/api/v1/pods?watch=1&", "/api/v1/pods?", "/api/v1/nodes/n?"];
        assert_invalid(uris.map(|uri| format!("{uri}resourceVersion={bad}")));
    }
}

#[test]
fn conflicting_list_options_are_forwarded() {
    assert_invalid([
        "/api/v1/pods?resourceVersionMatch=Exact",
        "/api/v1/pods?resourceVersionMatch=NotOlderThan&resourceVersion=7&continue=x",
        "/api/v1/pods?resourceVersionMatch=Foo&resourceVersion=7",
        "/api/v1/pods?resourceVersionMatch=Exact&resourceVersion=0",
        "/api/v1/pods?sendInitialEvents=true",
        "/api/v1/pods?sendInitialEvents=false",
        "/api/v1/pods?sendInitialEvents=true&resourceVersionMatch=Exact",
    ]);
}

#[test]
fn conflicting_watch_options_are_forwarded() {
    assert_invalid([
        "/api/v1/pods?watch=1&sendInitialEvents=true",
        "/api/v1/pods?watch=1&resourceVersionMatch=NotOlderThan&resourceVersion=7",
        // The default for version 0 sets a match, which then excludes the token.
        "/api/v1/pods?watch=1&resourceVersion=0&continue=x",
        "/api/v1/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=Exact",
    ]);
}

/// Without `watch=true`, the deprecated path is validated as a list.
#[test]
fn watch_path_without_watch_parameter_is_validated_as_list() {
    assert_invalid(["/api/v1/watch/pods?sendInitialEvents=true"]);
    let request = get("/api/v1/watch/pods?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    assert_eq!(request.summary(), "watch json * state current");
}

#[test]
fn invalid_continue_tokens_are_forwarded() {
    // "nonsense", "!", and {}
    assert_invalid(["bm9uc2Vuc2U", "%21", "e30"].map(|token| format!("/api/v1/pods?continue={token}")));
    // {"v":"meta.k8s.io/v1","rv":9,"start":"a/p\u0000"}
    let token = "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6OSwic3RhcnQiOiJhL3BcdTAwMDAifQ";
    assert_invalid([format!("/api/v1/pods?resourceVersion=7&continue={token}")]);
}

#[test]
fn watch_path_name_not_matching_selector_is_forwarded() {
    assert_invalid([
        "/api/v1/watch/namespaces/a/pods/p?fieldSelector=metadata.name%3Dq",
        "/api/v1/watch/namespaces/a/pods/p?fieldSelector=spec.nodeName%3Dn1",
        "/api/v1/watch/namespaces/a/pods/p?fieldSelector=metadata.name%21%3Dq",
        "/api/v1/watch/namespaces/a?fieldSelector=metadata.name%3Db",
    ]);
}

#[test]
fn export_parameter_is_forwarded() {
    assert_invalid([
        "/api/v1/namespaces/a/pods/p?export=true&resourceVersion=0",
        "/api/v1/namespaces/a/pods/p?export=1&resourceVersion=abc",
    ]);
}
