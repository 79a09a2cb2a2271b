//! GET and LIST requests that are answered from the cache: the object or collection, its version and its extent
//! (R-GET-1, R-LIST-1).

use super::fixture::{SHARD, assert_routes, get, pods_view};
use crate::serve::route::ReadRoute;
use kubeapi::{ContinueToken, ContinueVersion, ListPageSource, ObjectKey, ResourceVersion};

#[test]
fn get_with_version_is_served_with_minimum_version() {
    assert_routes(&[
        ("/api/v1/namespaces/a/pods/p?resourceVersion=0", "get json a/p any"),
        ("/api/v1/namespaces/a/pods/p/?resourceVersion=0", "get json a/p any"),
        ("/api/v1/namespaces/a/pods/p?resourceVersion=7", "get json a/p >=7"),
        ("/api/v1/namespaces/a/pods/p?resourceVersion=007", "get json a/p >=7"),
        ("/api/v1/nodes/n-1.example?resourceVersion=0", "get json n-1.example any"),
        ("/apis/apps/v1/namespaces/a/deployments/d?resourceVersion=0", "get json a/d any"),
        ("/apis/example.com/v1/namespaces/a/widgets/w?resourceVersion=3", "get json a/w >=3"),
        ("/apis/example.com/v1/planets/mars?resourceVersion=0", "get json mars any"),
    ]);
}

#[test]
fn get_without_version_is_forwarded() {
    assert_routes(&[
        ("/api/v1/namespaces/a/pods/p", "forward: consistent_get"),
        ("/api/v1/namespaces/a/pods/p?resourceVersion=", "forward: consistent_get"),
        ("/api/v1/namespaces/a/pods/p?resourceVersionMatch=Exact", "forward: consistent_get"),
        ("/api/v1/nodes/n?watch=1", "forward: consistent_get"),
        ("/api/v1/namespaces/a", "forward: consistent_get"),
        ("/apis/example.com/v1/planets/mars", "forward: consistent_get"),
    ]);
}

/// A GET reads only the version, and ignores parameters that apply to lists (R-QUERY-3, R-METHOD-2).
#[test]
fn get_ignores_list_parameters() {
    assert_routes(&[
        ("/api/v1/namespaces/a/pods/p?resourceVersion=7&resourceVersionMatch=Exact", "get json a/p >=7"),
        ("/api/v1/namespaces/a/pods/p?resourceVersion=0&watch=1", "get json a/p any"),
        ("/api/v1/namespaces/a/pods/p?resourceVersion=0&limit=abc&labelSelector=%2C%2C", "get json a/p any"),
        ("/api/v1/namespaces/a/pods/p?resourceVersion=0&fieldSelector=metadata.name%3Dq", "get json a/p any"),
        ("/api/v1/namespaces/a/pods/p?resourceVersion=0&continue=x&sendInitialEvents=1", "get json a/p any"),
        ("/api/v1/namespaces/a/pods/p?resourceVersion=0&export=0", "get json a/p any"),
        ("/api/v1/namespaces/a/pods/p?resourceVersion=0&resourceVersion=9", "get json a/p any"),
        ("/api/v1/namespaces/a/pods/p?resourceVersion=0&shardSelector=x", "get json a/p any"),
    ]);
}

/// A request for a Namespace has the Namespace's name as its namespace.
#[test]
fn get_of_namespace_uses_key_without_namespace() {
    assert_routes(&[
        ("/api/v1/namespaces/a?resourceVersion=0", "get json a any"),
        ("/api/v1/namespaces/a?resourceVersion=5&watch=1", "get json a >=5"),
        ("/api/v1/namespaces?resourceVersion=0", "list json * any"),
        ("/api/v1/namespaces?fieldSelector=metadata.name%3Da&resourceVersion=0", "list json */a any"),
    ]);
    let Ok(ReadRoute::Get(read)) = get("/api/v1/namespaces/a?resourceVersion=0").route() else { panic!("not a GET") };
    assert_eq!(read.key, ObjectKey::new("", "a"));
}

#[test]
fn list_version_semantics_match_apiserver_matrix() {
    assert_routes(&[
        ("/api/v1/pods", "list json * current"),
        ("/api/v1/pods?resourceVersion=", "list json * current"),
        ("/api/v1/pods?limit=2", "list json * current limit 2"),
        ("/api/v1/pods?resourceVersion=0", "list json * any"),
        ("/api/v1/pods?resourceVersion=0&limit=2", "list json * any"),
        ("/api/v1/pods?resourceVersion=0&limit=2&resourceVersionMatch=NotOlderThan", "list json * any"),
        ("/api/v1/pods?resourceVersion=7", "list json * >=7"),
        ("/api/v1/pods?resourceVersion=7&resourceVersionMatch=NotOlderThan", "list json * >=7"),
        ("/api/v1/pods?resourceVersion=7&resourceVersionMatch=NotOlderThan&limit=2", "list json * >=7 limit 2"),
        ("/api/v1/pods?resourceVersion=7&resourceVersionMatch=Exact", "list json * =7"),
        ("/api/v1/pods?resourceVersion=7&resourceVersionMatch=Exact&limit=2", "list json * =7 limit 2"),
        // Without a match parameter, a page has an exact version, as before that parameter existed.
        ("/api/v1/pods?resourceVersion=7&limit=2", "list json * =7 limit 2"),
        ("/api/v1/pods?resourceVersion=7&limit=0", "list json * >=7"),
        ("/api/v1/pods?resourceVersion=7&limit=-1", "list json * >=7"),
        ("/api/v1/pods?limit=-1", "list json * current"),
        ("/api/v1/pods?watch=0&timeoutSeconds=5&allowWatchBookmarks=1", "list json * current"),
    ]);
}

#[test]
fn continue_token_resumes_list_at_its_key_and_version() {
    let token = |start: &str| {
        let at = ContinueVersion::Version(ResourceVersion(9));
        ContinueToken { version: at, start: start.to_owned() }.encode(ListPageSource::FromStorage)
    };
    for (uri, expected) in [
        (format!("/api/v1/pods?limit=2&continue={}", token("a/p\0")), r#"list json * =9 limit 2 from "a/p\0""#),
        (format!("/api/v1/pods?continue={}", token("a/p\0")), r#"list json * =9 from "a/p\0""#),
        // Tokens of the apiserver's cache start with a slash.
        (format!("/api/v1/pods?limit=2&continue={}", token("/a/p\0")), r#"list json * =9 limit 2 from "a/p\0""#),
        (format!("/api/v1/namespaces/a/pods?continue={}", token("p\0")), r#"list json a =9 from "p\0""#),
        (format!("/api/v1/pods?resourceVersion=0&limit=2&continue={}", token("a/p")), r#"list json * =9 from "a/p""#),
    ] {
        assert_eq!(get(uri).summary(), expected);
    }
}

/// Keys in tokens are relative to the collection in the path, not to the one that a selector narrows it to.
#[test]
fn list_records_whether_path_has_namespace() {
    for (uri, in_namespace) in [
        ("/api/v1/namespaces/a/pods", true),
        ("/api/v1/pods", false),
        ("/api/v1/pods?fieldSelector=metadata.namespace%3Da", false),
        ("/api/v1/nodes", false),
        ("/api/v1/namespaces", false),
        ("/apis/example.com/v1/namespaces/a/widgets", true),
    ] {
        let Ok(ReadRoute::List(read)) = get(uri).route() else { panic!("{uri} is not a LIST") };
        assert_eq!(read.in_namespace, in_namespace, "{uri}");
    }
}

#[test]
fn view_combines_path_namespace_and_selectors() {
    for (uri, expected) in [
        ("/api/v1/pods", pods_view("", "", "")),
        ("/api/v1/pods/", pods_view("", "", "")),
        ("/api/v1/namespaces/a/pods", pods_view("a", "", "")),
        ("/api/v1/pods?labelSelector=app%3Dx%2Ctier%20in%20(b%2Ca)", pods_view("", "app=x,tier in (a,b)", "")),
        ("/api/v1/pods?labelSelector=app%3Dx&labelSelector=app%3Dy", pods_view("", "app=x", "")),
        ("/api/v1/pods?LabelSelector=app%3Dx", pods_view("", "", "")),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn1", pods_view("", "", "spec.nodeName=n1")),
        ("/api/v1/pods?fieldSelector=spec.host%3Dn1", pods_view("", "", "spec.nodeName=n1")),
        ("/api/v1/pods?fieldSelector=spec.nodeName%21%3D", pods_view("", "", "spec.nodeName!=")),
        ("/api/v1/pods?fieldSelector=metadata.namespace%3Da", pods_view("a", "", "metadata.namespace=a")),
        ("/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dp", pods_view("a", "", "metadata.name=p")),
        (
            "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dp%2Cstatus.phase%21%3DFailed&labelSelector=app",
            pods_view("a", "app", "metadata.name=p,status.phase!=Failed"),
        ),
        // Two different names are valid, but no object has both (R-FIELD-3).
        (
            "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dp%2Cmetadata.name%3Dq",
            pods_view("a", "", "metadata.name=p,metadata.name=q"),
        ),
    ] {
        assert_eq!(get(uri).view(), expected, "{uri}");
    }
}

#[test]
fn shard_is_a_part_of_the_selector() {
    for (uri, selected) in [
        (format!("/api/v1/pods?shardSelector={SHARD}&labelSelector=app"), true),
        (format!("/api/v1/pods?shardSelector={SHARD}&shardSelector=x&watch=1&resourceVersion=5"), true),
        (format!("/api/v1/watch/pods?shardSelector={SHARD}"), true),
        ("/api/v1/pods?shardSelector=".to_owned(), false),
        (format!("/api/v1/pods?shardselector={SHARD}"), false),
    ] {
        let shard = get(&uri).view().selector().shard.as_ref().map(ToString::to_string);
        assert_eq!(shard, selected.then(|| SHARD.replace('+', " ")), "{uri}");
    }
}

#[test]
fn custom_resource_selectors_accept_selectable_fields() {
    assert_routes(&[
        ("/apis/example.com/v1/widgets?fieldSelector=spec.color%3Dred", "list json * current"),
        ("/apis/example.com/v1/widgets?fieldSelector=metadata.name%3Dw", "list json */w current"),
        ("/apis/example.com/v1/namespaces/a/widgets?resourceVersion=0", "list json a any"),
        ("/apis/example.com/v1/planets?resourceVersion=5", "list json * >=5"),
    ]);
    let red = get("/apis/example.com/v1/widgets?fieldSelector=spec.color%3Dred").view();
    assert_eq!(red.selector().fields.required_field("spec.color"), Some("red"));
}

#[test]
fn unknown_query_parameters_are_ignored() {
    assert_routes(&[
        ("/api/v1/pods?foo=bar&resourceVersion=0", "list json * any"),
        ("/api/v1/pods?resourceversion=7", "list json * current"),
        ("/api/v1/pods?timeout=32s&resourceVersion=0", "list json * any"),
        ("/api/v1/pods?includeObject=None&resourceVersion=0", "list json * any"),
    ]);
}

/// Headers change the encoding of a response, but not the plan of a request.
#[test]
fn headers_change_only_the_encoding() {
    let plain = get("/api/v1/namespaces/a/pods?labelSelector=app&resourceVersion=7");
    assert_eq!(plain.summary(), "list json a[app] >=7");
    let kubelet = plain.accept("application/vnd.kubernetes.protobuf,application/json").agent("kubelet/v1.36.2");
    assert_eq!(kubelet.summary(), "list protobuf a[app] >=7");
}
