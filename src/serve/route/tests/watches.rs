//! WATCH requests: the start, the initial events and the duration (R-WATCH-2, R-TIMEOUT-1, R-PATH-4).

use super::fixture::{assert_routes, get, pods_view};
use crate::serve::route::ReadRoute;

#[test]
fn watch_start_semantics_match_apiserver_matrix() {
    assert_routes(&[
        // Without `sendInitialEvents`, a watch with a version resumes, and one without a version receives the state
        // first.
        ("/api/v1/pods?watch=1&resourceVersion=7", "watch json * >7"),
        ("/api/v1/pods?watch=1&resourceVersion=0", "watch json * state any"),
        ("/api/v1/pods?watch=1", "watch json * state current"),
        ("/api/v1/pods?watch=1&resourceVersion=", "watch json * state current"),
        // A client that accepts bookmarks receives the annotated bookmark, even without requesting initial events.
        ("/api/v1/pods?watch=1&allowWatchBookmarks=true", "watch json * state current end bookmarks"),
        ("/api/v1/pods?watch=1&resourceVersion=0&allowWatchBookmarks=1", "watch json * state any end bookmarks"),
        ("/api/v1/pods?watch=1&resourceVersion=7&allowWatchBookmarks=1", "watch json * >7 bookmarks"),
        // No initial state is requested.
        ("/api/v1/pods?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", "watch json * from current"),
        (
            "/api/v1/pods?watch=1&sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion=0",
            "watch json * from cached",
        ),
        (
            "/api/v1/pods?watch=1&sendInitialEvents=0&resourceVersionMatch=NotOlderThan&resourceVersion=7",
            "watch json * >7",
        ),
    ]);
}

#[test]
fn watch_list_gets_initial_state_and_end_bookmark() {
    for (query, expected) in [
        ("sendInitialEvents=true&allowWatchBookmarks=true", "watch json * state current end bookmarks"),
        ("sendInitialEvents=1&resourceVersion=0&allowWatchBookmarks=1", "watch json * state any end bookmarks"),
        ("sendInitialEvents=&resourceVersion=7&allowWatchBookmarks=", "watch json * state >=7 end bookmarks"),
        // Without bookmarks, the end of the state is not marked.
        ("sendInitialEvents=true&resourceVersion=7", "watch json * state >=7"),
        ("sendInitialEvents=true&resourceVersion=7&allowWatchBookmarks=0", "watch json * state >=7"),
    ] {
        let request = get(format!("/api/v1/pods?watch=1&resourceVersionMatch=NotOlderThan&{query}"));
        assert_eq!(request.summary(), expected, "{query}");
    }
}

#[test]
fn watch_parameter_is_false_only_for_zero_or_false() {
    for (value, watches) in [
        ("watch=1", true),
        ("watch=true", true),
        ("watch=", true),
        ("watch", true),
        ("watch=yes", true),
        ("watch=00", true),
        ("watch=0", false),
        ("watch=FALSE", false),
        ("Watch=1", false),
        ("watch=0&watch=1", false),
    ] {
        let route = get(format!("/api/v1/pods?resourceVersion=7&{value}")).route();
        assert_eq!(matches!(route, Ok(ReadRoute::Watch(_))), watches, "{value}");
    }
}

#[test]
fn watch_uses_timeout_seconds_and_ignores_timeout() {
    assert_routes(&[
        ("/api/v1/pods?watch=1&resourceVersion=7&timeoutSeconds=300", "watch json * >7 for 300 s"),
        ("/api/v1/pods?watch=1&resourceVersion=7&timeoutSeconds=0", "watch json * >7 for 0 s"),
        ("/api/v1/pods?watch=1&resourceVersion=7&timeoutSeconds=-1", "watch json * >7 for -1 s"),
        // The typed client adds this parameter, which applies only to requests that are not long-running.
        ("/api/v1/pods?watch=1&resourceVersion=7&timeout=7m0s", "watch json * >7"),
        ("/api/v1/pods?watch=1&resourceVersion=7&timeout=abc&limit=5", "watch json * >7"),
    ]);
}

/// On the deprecated path, the verb is always `watch`. Without `watch=true`, the options are those of a list.
#[test]
fn deprecated_watch_path_uses_list_options() {
    assert_routes(&[
        ("/api/v1/watch/pods", "watch json * state any"),
        ("/api/v1/watch/pods?resourceVersion=0", "watch json * state any"),
        ("/api/v1/watch/pods?allowWatchBookmarks=1", "watch json * state any bookmarks"),
        ("/api/v1/watch/pods?resourceVersion=7", "watch json * >7"),
        ("/api/v1/watch/pods?watch=false&resourceVersion=7", "watch json * >7"),
        ("/api/v1/watch/pods?watch=true", "watch json * state current"),
        ("/api/v1/watch/pods?watch=1&allowWatchBookmarks=1&resourceVersion=0", "watch json * state any end bookmarks"),
        ("/api/v1/watch/namespaces/a/pods?resourceVersion=7", "watch json a >7"),
        ("/api/v1/watch/namespaces/a/pods/p?resourceVersion=7", "watch json a/p >7"),
        ("/api/v1/watch/nodes/n?resourceVersion=7", "watch json */n >7"),
        ("/apis/example.com/v1/watch/namespaces/a/widgets/w?resourceVersion=7", "watch json a/w >7"),
        ("/apis/example.com/v1/watch/planets?resourceVersion=7", "watch json * >7"),
    ]);
}

/// The path addresses the Namespace itself, not its content.
#[test]
fn deprecated_watch_path_of_namespace_watches_namespace_object() {
    assert_routes(&[
        ("/api/v1/watch/namespaces/a?resourceVersion=7", "watch json */a >7"),
        ("/api/v1/watch/namespaces?resourceVersion=7", "watch json * >7"),
    ]);
}

#[test]
fn watch_path_name_becomes_name_selector() {
    for uri in [
        "/api/v1/watch/namespaces/a/pods/p?resourceVersion=7",
        "/api/v1/watch/namespaces/a/pods/p?resourceVersion=7&fieldSelector=metadata.name%3Dp",
        "/api/v1/namespaces/a/pods?watch=1&resourceVersion=7&fieldSelector=metadata.name%3Dp",
    ] {
        assert_eq!(get(uri).view(), pods_view("a", "", "metadata.name=p"), "{uri}");
    }
    let uri = "/api/v1/watch/namespaces/a/pods/p?fieldSelector=metadata.name%3Dp%2Cspec.nodeName%3Dn1";
    assert_eq!(get(uri).view(), pods_view("a", "", "metadata.name=p,spec.nodeName=n1"));
}

/// Requests as kubelet, informers and kubectl send them (R-CLIENT-6).
#[test]
fn kubelet_informer_and_kubectl_requests_are_served() {
    let reflector = "allowWatchBookmarks=true&timeout=7m44s&timeoutSeconds=464&watch=true";
    let watch_list = "resourceVersionMatch=NotOlderThan&sendInitialEvents=true";
    for (uri, expected) in [
        (
            format!("/api/v1/pods?fieldSelector=spec.nodeName%3Dn-1&resourceVersion=4711&{reflector}"),
            "watch protobuf * >4711 bookmarks for 464 s",
        ),
        (
            format!("/api/v1/nodes?fieldSelector=metadata.name%3Dn-1&{watch_list}&{reflector}"),
            "watch protobuf */n-1 state current end bookmarks for 464 s",
        ),
        (
            format!("/api/v1/namespaces/a/configmaps?fieldSelector=metadata.name%3Dc&resourceVersion=99&{reflector}"),
            "watch protobuf a/c >99 bookmarks for 464 s",
        ),
        ("/apis/apps/v1/deployments?limit=500&resourceVersion=0".to_owned(), "list protobuf * any"),
    ] {
        let request = get(uri).accept("application/vnd.kubernetes.protobuf,application/json").agent("kubelet/v1.36.2");
        assert_eq!(request.summary(), expected, "{request:?}");
    }
    let kubectl = get("/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dp&resourceVersion=0&watch=true");
    assert_eq!(kubectl.accept("application/json").agent("kubectl/v1.36.2").summary(), "watch json a/p state any");
}
