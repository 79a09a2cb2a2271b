use super::*;
use proptest::prelude::*;

fn parse(method: &str, uri: &str) -> RequestInfo {
    let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
    RequestInfo::parse(method, path, &UrlQuery::parse(query)).expect("parses")
}

/// `verb group/version namespace resource/subresource name`, `-` for empty.
fn summary(method: &str, uri: &str) -> String {
    let info = parse(method, uri);
    if !info.is_resource {
        return format!("{} {}", info.verb, info.path);
    }
    let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let resource = if info.subresource.is_empty() {
        info.resource.clone()
    } else {
        format!("{}/{}", info.resource, info.subresource)
    };
    let (verb, group, version) = (dash(info.verb.as_str()), dash(&info.group), &info.version);
    format!("{verb} {group}/{version} {} {} {}", dash(&info.namespace), dash(&resource), dash(&info.name))
}

#[test]
fn paths_are_parsed_like_the_apiserver() {
    for (uri, expected) in [
        ("/api/v1/pods", "list -/v1 - pods -"),
        ("/api/v1/pods/", "list -/v1 - pods -"),
        ("/apis/apps/v1/deployments", "list apps/v1 - deployments -"),
        ("/api/v1/namespaces/ns/pods", "list -/v1 ns pods -"),
        ("/api/v1/namespaces/ns/pods/", "list -/v1 ns pods -"),
        ("/api/v1/namespaces/ns/pods/p", "get -/v1 ns pods p"),
        ("/api/v1/namespaces/ns/pods/p/log", "get -/v1 ns pods/log p"),
        ("/api/v1/namespaces/ns/pods/p/proxy/a/b", "get -/v1 ns pods/proxy p"),
        ("/apis/apps/v1/namespaces/ns/deployments/d/scale", "get apps/v1 ns deployments/scale d"),
        ("/api/v1/nodes/n", "get -/v1 - nodes n"),
        ("/api/v1/namespaces", "list -/v1 - namespaces -"),
        ("/api/v1/namespaces/ns", "get -/v1 ns namespaces ns"),
        ("/api/v1/namespaces/ns/status", "get -/v1 ns namespaces/status ns"),
        ("/api/v1/namespaces/ns/finalize", "get -/v1 ns namespaces/finalize ns"),
        ("/api/v1/namespaces//pods", "list -/v1 - pods -"),
        ("/api/v1/namespaces/ns//pods", "get -/v1 ns - pods"),
        ("/api/v1/watch/pods", "watch -/v1 - pods -"),
        ("/api/v1/watch/namespaces/ns/pods", "watch -/v1 ns pods -"),
        ("/api/v1/watch/namespaces/ns/pods/p", "watch -/v1 ns pods p"),
        ("/api/v1/watch/namespaces/ns", "watch -/v1 ns namespaces ns"),
        ("/api/v1/proxy/nodes/n/x", "proxy -/v1 - nodes n"),
        ("/api/v1/namespaces/ns/pods/a%2Fb", "get -/v1 ns pods/b a"),
        ("/api/v1/namespaces/ns/pods/%61+b", "get -/v1 ns pods a+b"),
        ("//api/v1/pods", "list -/v1 - pods -"),
        ("/", "get /"),
        ("/api", "get /api"),
        ("/api/v1", "get /api/v1"),
        ("/apis/apps/v1", "get /apis/apps/v1"),
        ("/healthz/ping/x", "get /healthz/ping/x"),
        ("/openapi/v3/apis", "get /openapi/v3/apis"),
    ] {
        assert_eq!(summary("GET", uri), expected, "{uri}");
    }
}

#[test]
fn method_determines_verb_unless_the_path_does() {
    for (method, uri, verb) in [
        ("GET", "/api/v1/pods", "list"),
        ("HEAD", "/api/v1/pods", "list"),
        ("HEAD", "/api/v1/nodes/n", "get"),
        ("POST", "/api/v1/namespaces/ns/pods", "create"),
        ("PUT", "/api/v1/nodes/n", "update"),
        ("PATCH", "/api/v1/nodes/n", "patch"),
        ("DELETE", "/api/v1/nodes/n", "delete"),
        ("DELETE", "/api/v1/nodes", "deletecollection"),
        ("OPTIONS", "/api/v1/nodes", ""),
        ("get", "/api/v1/nodes", ""),
        ("POST", "/api/v1/watch/nodes", "watch"),
        ("GET", "/version", "get"),
        ("HEAD", "/version", "head"),
        ("POST", "/version", "post"),
        ("DELETE", "/version", "delete"),
    ] {
        assert_eq!(parse(method, uri).verb.as_str(), verb, "{method} {uri}");
    }
    assert_eq!(parse("GET", "/version").verb, RequestVerb::Get);
}

#[test]
fn watch_parameter_turns_list_into_watch() {
    for (query, verb) in [
        ("watch=1", "watch"),
        ("watch=", "watch"),
        ("watch", "watch"),
        ("watch=false", "list"),
        ("watch=0&watch=1", "list"),
        ("Watch=1", "list"),
        ("limit=x", "list"),
        ("limit=x&watch=1", "watch"),
        ("limit=x&watch=FALSE", "list"),
        ("labelSelector=a,&watch=true", "watch"),
    ] {
        assert_eq!(parse("GET", &format!("/api/v1/pods?{query}")).verb.as_str(), verb, "{query}");
    }
    let object = parse("GET", "/api/v1/nodes/n?watch=1");
    assert_eq!(object.verb, RequestVerb::Get, "ignored on an object's path");
}

#[test]
fn name_in_field_selector_becomes_the_request_name() {
    for (query, name) in [
        ("fieldSelector=metadata.name%3Dx", "x"),
        ("fieldSelector=metadata.name==x,spec.nodeName=n&watch=1", "x"),
        ("fieldSelector=metadata.name!=x", ""),
        ("fieldSelector=metadata.name=..", ""),
        ("fieldSelector=metadata.name=a%2Fb", ""),
        ("fieldSelector=metadata.name=a%25", ""),
        ("fieldSelector=metadata.name=x&limit=y", ""),
    ] {
        assert_eq!(parse("GET", &format!("/api/v1/namespaces/ns/pods?{query}")).name, name, "{query}");
    }
    let deleted = parse("DELETE", "/api/v1/namespaces/ns/pods?fieldSelector=metadata.name=x");
    assert_eq!((deleted.verb, deleted.name.as_str()), (RequestVerb::DeleteCollection, ""));
}

#[test]
fn authorization_uses_raw_selectors_except_in_watch_paths() {
    let query = "fieldSelector=spec.host%3Dn&labelSelector=a,&fieldSelector=ignored";
    for (method, path, seen) in [
        ("GET", "/api/v1/pods", true),
        ("DELETE", "/api/v1/namespaces/ns/pods", true),
        ("GET", "/api/v1/watch/pods", false),
        ("GET", "/api/v1/namespaces/ns/pods/p", false),
        ("POST", "/api/v1/namespaces/ns/pods", false),
    ] {
        let info = parse(method, &format!("{path}?{query}"));
        assert_eq!(info.field_selector.as_deref(), seen.then_some("spec.host=n"), "{method} {path}");
        assert_eq!(info.label_selector.as_deref(), seen.then_some("a,"), "{method} {path}");
        assert_eq!(info.watch_via_path, path.contains("/watch/"));
    }
    assert_eq!(parse("GET", "/api/v1/pods").field_selector, None);
}

#[test]
fn path_verb_without_resource_is_rejected() {
    for (uri, text) in [
        (
            "/api/v1/watch",
            "Internal Server Error: \"/api/v1/watch\": failed to create RequestInfo: unable to determine kind and \
             namespace from url, /api/v1/watch",
        ),
        (
            "/apis/apps/v1/proxy/?a=<b>&c",
            "Internal Server Error: \"/apis/apps/v1/proxy/?a=&lt;b&gt;&amp;c\": failed to create RequestInfo: unable \
             to determine kind and namespace from url, /apis/apps/v1/proxy/?a=&lt;b&gt;&amp;c",
        ),
    ] {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        let refused = RequestInfo::parse("GET", path, &UrlQuery::parse(query)).expect_err("refused");
        assert_eq!(refused, RequestInfoError::NoResource(text.to_owned()));
        assert_eq!(refused.to_string(), text);
    }
}

#[test]
fn invalid_escape_in_path_is_rejected() {
    for path in ["/api/v1/pods/%", "/api/v1/pods/%4", "/%zz"] {
        assert_eq!(RequestInfo::parse("GET", path, &UrlQuery::default()), Err(RequestInfoError::BadEscape), "{path}");
    }
}

#[test]
fn only_plain_lowercase_paths_are_canonical() {
    for (path, canonical) in [
        ("/api/v1/pods", true),
        ("/api/v1/pods/", true),
        ("/apis/rbac.authorization.k8s.io/v1/clusterroles/system:node", true),
        ("/api/v1/namespaces/t1-a/configmaps/kube-root-ca.crt", true),
        ("/api/v1/pods//", false),
        ("//api/v1/pods", false),
        ("/api/v1/namespaces//pods", false),
        ("/api/v1/pods/%61", false),
        ("/api/v1/pods/a%2Fb", false),
        ("/api/v1/./pods", false),
        ("/api/v1/pods/..", false),
        ("/api/v1/Pods", false),
        ("/api/v1/pods/a_b", false),
        ("/api/v1/pods/ä", false),
        ("/", false),
        ("", false),
        ("api/v1/pods", false),
    ] {
        let info = RequestInfo::parse("GET", path, &UrlQuery::default()).expect("parses");
        assert_eq!(info.is_canonical, canonical, "{path}");
    }
}

proptest! {
    #[test]
    fn request_parsing_never_panics(
        method in "[A-Z]{0,7}",
        path in "(/|api|apis|v1|watch|proxy|namespaces|status|%2F|%|[a-z.ä]){0,12}",
        query in any::<String>(),
    ) {
        let info = RequestInfo::parse(&method, &path, &UrlQuery::parse(&query)).ok();
        let _ = (targets_workload(&path, info.as_ref()), targets_workload(&query, None));
    }

    #[test]
    fn canonical_paths_equal_their_decoded_form(path in "(/[a-zA-Z%0-9.:/]{0,4}){0,6}") {
        if let Ok(info) = RequestInfo::parse("GET", &path, &UrlQuery::default()) && info.is_canonical {
            prop_assert_eq!(info.path, path);
        }
    }
}

fn reaches(method: &str, path: &str) -> bool {
    let info = RequestInfo::parse(method, path, &UrlQuery::default());
    targets_workload(path, info.as_ref().ok())
}

const METHODS: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get"];

#[test]
fn exec_port_forward_and_proxy_paths_reach_inside() {
    for path in [
        "/api/v1/namespaces/d/pods/p/exec",
        "/api/v1/namespaces/d/pods/p/exec/",
        "/api/v1/namespaces/d/pods/p/attach",
        "/api/v1/namespaces/d/pods/p/portforward",
        "/api/v1/namespaces/d/pods/p/proxy",
        "/api/v1/namespaces/d/pods/p/proxy/",
        "/api/v1/namespaces/d/pods/https:p:8443/proxy/a/b",
        "/api/v1/namespaces/d/services/s/proxy",
        "/api/v1/namespaces/d/services/http:s:web/proxy/metrics",
        "/api/v1/nodes/n/proxy",
        "/api/v1/nodes/n:10250/proxy/run/d/p/c",
        "/api/v1/nodes/n/proxy/metrics/cadvisor",
        "/api/v1/proxy/nodes/n",
        "/api/v1/proxy/namespaces/d/pods/p/a/b",
        "/api/v1/proxy/namespaces/d/services/s",
        "/apis/apps/v1/proxy/x",
        "/api/v1/watch/namespaces/d/pods/p/exec",
        "/apis/subresources.kubevirt.io/v1/namespaces/d/virtualmachineinstances/v/portforward",
        "/apis/cluster.karmada.io/v1alpha1/clusters/c/proxy/api/v1/secrets",
    ] {
        for method in METHODS {
            assert!(reaches(method, path), "{method} {path}");
        }
    }
}

#[test]
fn encoded_or_irregular_paths_still_reach_inside() {
    for path in [
        "/api/v1/namespaces/d/pods/p%2Fexec",
        "/api/v1/namespaces/d/pods/p/%65xec",
        "/api/v1/namespaces/d/pods/p/%2565xec",
        "/api/v1/namespaces/d/pods/p%252Fexec",
        "/api/v1/namespaces/d/pods/p%25252Fexec",
        "/api/v1/namespaces/d/pods/p%2525252525252Fexec",
        "/api/v1/namespaces/d/pods/p//exec",
        "//api/v1/namespaces/d/pods/p/exec",
        "/api//v1/namespaces/d/pods/p/exec",
        "/api/v1//namespaces/d/pods/p/exec",
        "/api/v1/./namespaces/d/pods/p/exec",
        "/api/v1/namespaces/d/pods/p/log/../exec",
        "/version/../api/v1/namespaces/d/pods/p/exec",
        "/version/%2e%2e/api/v1/nodes/n/proxy",
        "/api/v1/namespaces/d/pods/p/Exec",
        "/API/v1/namespaces/d/pods/p/EXEC",
        "/api/v1/namespaces/d/pods/p/exec;a=b",
        "/api/v1/namespaces/d/pods/p/exec%3Ba",
        "/api/v1/namespaces/d/pods/p/exec%00",
        "/api/v1/namespaces/d/pods/p/exec%00.txt",
        "/api/v1/namespaces/d/pods/p/exec%3Fcommand=sh",
        "/api/v1/namespaces/d/pods/p%252Fproxy/%25zz",
        "/api/v1/namespaces/d/pods/p%252Fexec/%",
        "/api/v1/namespaces/d/pods/p/exec%20",
        "/api/v1/namespaces/d/pods/p/%09exec",
        "/api/v1/namespaces/d/pods/p\\exec",
        "/api/v1/namespaces/d/pods/p%5Cexec",
        "/api/v1//proxy/nodes/n",
        "/api/v1/proxy//nodes/n",
        "/api/v1/%70roxy/nodes/n",
        "/api/v1%252Fnodes%252Fn%252Fproxy/watch",
        "/apis/a/v1%252Fnamespaces%252Fd%252Fpods%252Fp%252Fproxy/watch",
        "api/v1/nodes/n/proxy",
    ] {
        for method in METHODS {
            assert!(reaches(method, path), "{method} {path}");
        }
    }
}

#[test]
fn paths_of_api_objects_do_not_reach_inside() {
    for path in [
        "/",
        "/api",
        "/version",
        "/api/v1/proxy",
        "/api/v1/watch",
        "/api/v1/pods",
        "/api/v1/nodes/n",
        "/api/v1/nodes/proxy",
        "/api/v1/namespaces/proxy",
        "/api/v1/namespaces/proxy/pods",
        "/api/v1/namespaces/exec/pods/exec",
        "/api/v1/namespaces/d/pods/exec",
        "/api/v1/namespaces/d/services/proxy",
        "/api/v1/namespaces/d/endpoints/proxy/",
        "/api/v1/namespaces/d/pods/p/log",
        "/api/v1/namespaces/d/pods/p/log/exec",
        "/api/v1/namespaces/d/pods/p/eviction",
        "/api/v1/namespaces/d/pods/p/binding",
        "/api/v1/watch/namespaces/proxy/pods",
        "/apis/apps/v1/namespaces/d/deployments/proxy/scale",
        "/api/v1/namespaces/d/pods/kube-proxy-a%2Bb",
        "/api/v1/namespaces/d/pods/Proxy-1",
        "/api/v1/namespaces/d/configmaps/a%20b",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/system%3Aproxy",
        "//api/v1/pods",
        "/api/v1/pods/%",
        "",
    ] {
        for method in METHODS {
            assert!(!reaches(method, path), "{method} {path}");
        }
    }
}
