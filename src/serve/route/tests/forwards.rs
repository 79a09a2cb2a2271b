//! Forwarded requests, with every reason that the request alone can cause.

use super::fixture::{SHARD, TestRequest, get};
use crate::serve::route::ForwardReason;
use crate::serve::{CacheCoverage, SensitiveKind};
use kubeapi::{ContinueToken, ContinueVersion, ListPageSource, SELECTOR_BYTES_MAX};

fn assert_reason(reason: ForwardReason, requests: impl IntoIterator<Item = TestRequest>) {
    for request in requests {
        assert_eq!(request.reason(), reason, "{request:?}");
    }
}

#[test]
fn non_resource_paths_are_forwarded() {
    let paths = ["/", "/healthz", "/livez/ping", "/version", "/metrics", "/api", "/api/v1", "/apis", "/apis/apps/v1"];
    let documents = ["/openapi/v2", "/openapi/v3/apis/apps/v1", "/.well-known/openid-configuration"];
    for path in paths.into_iter().chain(documents) {
        assert_reason(ForwardReason::NonResource, [get(path), get(path).method("POST"), get(path).method("HEAD")]);
    }
}

#[test]
fn writes_are_forwarded() {
    for (method, uri) in [
        ("POST", "/api/v1/namespaces/a/pods"),
        ("PUT", "/api/v1/namespaces/a/pods/p"),
        ("PATCH", "/api/v1/namespaces/a/pods/p"),
        ("DELETE", "/api/v1/namespaces/a/pods/p"),
        ("DELETE", "/api/v1/namespaces/a/pods?labelSelector=app"),
        ("POST", "/api/v1/namespaces/a/pods/p/exec?command=ls"),
        ("POST", "/apis/example.com/v1/namespaces/a/widgets"),
    ] {
        assert_reason(ForwardReason::Verb, [get(uri).method(method)]);
    }
}

/// Built-in resources answer HEAD and OPTIONS with 405, custom ones do not (R-METHOD-1).
#[test]
fn reads_with_methods_other_than_get_are_forwarded() {
    for method in ["HEAD", "OPTIONS", "TRACE", "FETCH"] {
        let uris = ["/api/v1/pods?resourceVersion=0", "/api/v1/nodes/n?resourceVersion=0", "/api/v1/pods?watch=1"];
        assert_reason(ForwardReason::Verb, uris.map(|uri| get(uri).method(method)));
    }
    assert_reason(ForwardReason::Verb, [get("/api/v1/watch/pods").method("POST"), get("/api/v1/proxy/nodes/n/x")]);
}

/// The apiserver has no watch cache of events, so the cache's rules do not apply to them (R-EVENT-4).
#[test]
fn event_reads_with_storage_semantics_are_forwarded() {
    for uri in [
        "/api/v1/events?resourceVersion=0&limit=5",
        "/apis/events.k8s.io/v1/namespaces/a/events?resourceVersion=0&limit=5",
    ] {
        assert_reason(ForwardReason::UnsupportedParameter, [get(uri)]);
    }
    for uri in [
        "/api/v1/namespaces/a/events/e?resourceVersion=abc",
        "/apis/events.k8s.io/v1/namespaces/a/events/e?resourceVersion=-1",
    ] {
        assert_reason(ForwardReason::Invalid, [get(uri)]);
    }
}

#[test]
fn invalid_request_with_yaml_error_is_forwarded() {
    let accept = "application/yaml;q=0.5,\
                  application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io";
    assert_reason(ForwardReason::Representation, [get("/api/v1/pods?limit=x").accept(accept)]);
}

#[test]
fn subresources_are_forwarded() {
    let uris = [
        "/api/v1/namespaces/a/pods/p/log?follow=true",
        "/api/v1/namespaces/a/pods/p/exec?command=ls",
        "/api/v1/namespaces/a/pods/p/status?resourceVersion=0",
        "/apis/apps/v1/namespaces/a/deployments/d/scale?resourceVersion=0",
        "/api/v1/nodes/n/proxy/metrics",
        "/api/v1/namespaces/a/status?resourceVersion=0",
        "/api/v1/namespaces/a/finalize?resourceVersion=0",
        "/api/v1/watch/namespaces/a/pods/p/log",
    ];
    assert_reason(ForwardReason::Subresource, uris.map(get));
}

#[test]
fn non_canonical_paths_are_forwarded() {
    let uris = [
        "//api/v1/pods?resourceVersion=0",
        "/api/v1/namespaces//pods?resourceVersion=0",
        "/api/v1/namespaces/a//pods?resourceVersion=0",
        "/api/v1/pods//?resourceVersion=0",
        "/api/v1/namespaces/a/pods/%70?resourceVersion=0",
        "/api/v1/namespaces/a/pods/a%2Fb?resourceVersion=0",
        "/api/v1/namespaces/A/pods?resourceVersion=0",
        "/api/v1/namespaces/a/pods/..?resourceVersion=0",
        "/api/v1/namespaces/a_b/pods?resourceVersion=0",
    ];
    assert_reason(ForwardReason::AmbiguousUrl, uris.map(get));
}

/// Go keeps bytes that are not UTF-8; here they could not even be compared.
#[test]
fn non_utf8_queries_are_forwarded() {
    let uris = ["/api/v1/pods?labelSelector=%ff&resourceVersion=0", "/api/v1/pods?%fe=1"];
    assert_reason(ForwardReason::AmbiguousUrl, uris.map(get));
}

#[test]
fn path_with_wrong_namespace_scope_is_forwarded() {
    let uris = [
        "/api/v1/pods/p?resourceVersion=0",
        "/api/v1/watch/pods/p?resourceVersion=0",
        "/apis/example.com/v1/widgets/w?resourceVersion=0",
        "/api/v1/namespaces/a/nodes?resourceVersion=0",
        "/api/v1/namespaces/a/nodes/n?resourceVersion=0",
        "/api/v1/namespaces/a/nodes?watch=1&resourceVersion=5",
        "/apis/example.com/v1/namespaces/a/planets?resourceVersion=0",
        // No such resource exists inside a namespace.
        "/api/v1/namespaces/a/namespaces?resourceVersion=0",
        "/api/v1/namespaces/a/namespaces/b?resourceVersion=0",
        "/api/v1/namespaces/a/namespaces/a?resourceVersion=0",
    ];
    assert_reason(ForwardReason::AmbiguousUrl, uris.map(get));
}

#[test]
fn resources_unknown_to_discovery_are_forwarded() {
    let uris = [
        "/api/v1/foos?resourceVersion=0",
        "/api/v2/pods?resourceVersion=0",
        "/apis/apps/v9/deployments?resourceVersion=0",
        "/apis/example.com/v2/widgets?watch=1",
        "/apis/unknown.example/v1/things",
    ];
    assert_reason(ForwardReason::Unknown, uris.map(get));
}

/// Another server defines the meaning of their versions.
#[test]
fn aggregated_resources_are_forwarded() {
    let uris = [
        "/apis/metrics.k8s.io/v1beta1/pods?resourceVersion=0",
        "/apis/metrics.k8s.io/v1beta1/namespaces/a/pods/p?resourceVersion=0",
        "/apis/metrics.k8s.io/v1beta1/pods?watch=1",
        // The proxy does not reject these requests either.
        "/apis/metrics.k8s.io/v1beta1/pods?limit=abc",
    ];
    assert_reason(ForwardReason::Aggregated, uris.map(get));
}

#[test]
fn unwatchable_resources_are_forwarded() {
    let uris = ["/api/v1/componentstatuses?resourceVersion=0", "/api/v1/componentstatuses?watch=1"];
    assert_reason(ForwardReason::NotWatchable, uris.map(get));
}

/// Upstream writes the error, or ignores the parameter (R-SHARD-1).
#[test]
fn shard_selector_that_is_not_understood_is_forwarded() {
    let uris = [
        "/api/v1/pods?shardSelector=x&resourceVersion=0".to_owned(),
        "/api/v1/pods?watch=1&shardSelector=x&resourceVersion=5".to_owned(),
        "/api/v1/pods?shardSelector=+&resourceVersion=0".to_owned(),
        format!("/api/v1/pods?shardSelector=({SHARD})&resourceVersion=0"),
    ];
    assert_reason(ForwardReason::Invalid, uris.map(get));
}

/// The rows of such a list come from upstream, which may ignore the parameter.
#[test]
fn table_list_of_a_shard_is_forwarded() {
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let list = || get(format!("/api/v1/pods?shardSelector={SHARD}")).accept(table);
    assert_reason(ForwardReason::Table, [list(), list().filtered()]);
}

/// Only upstream can decide whether a caller may impersonate a user.
#[test]
fn impersonated_reads_are_forwarded() {
    let uris = ["/api/v1/pods?resourceVersion=0", "/api/v1/nodes/n?resourceVersion=0", "/api/v1/pods?watch=1"];
    assert_reason(ForwardReason::Impersonation, uris.map(|uri| get(uri).impersonating()));
    assert_reason(ForwardReason::NonResource, [get("/version").impersonating()]);
}

/// A later release may have the field, or a definition that has just changed or that the proxy may not read. So
/// upstream decides. Requests without such a field are answered.
#[test]
fn selector_on_unknown_field_is_forwarded() {
    let secrets = "/apis/hidden.example/v1/secrets?resourceVersion=0";
    let unknown = [
        "/apis/hidden.example/v1/secrets?resourceVersion=0&fieldSelector=spec.size%3D1",
        "/apis/example.com/v1/widgets?watch=1&fieldSelector=spec.size%3D1",
        "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.pool.name%3Da",
        "/api/v1/pods?fieldSelector=foo%3Dbar",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dn,foo%3Dbar&resourceVersion=0",
        "/api/v1/watch/namespaces/a/pods/p?fieldSelector=foo%3Dbar",
        "/api/v1/nodes?watch=1&fieldSelector=metadata.namespace%3Da",
    ];
    assert_reason(ForwardReason::UnsupportedParameter, unknown.map(get));
    for (selector, expected) in [
        ("", "list json * any"),
        ("&labelSelector=app", "list json *[app] any"),
        ("&fieldSelector=metadata.name%3Ds", "list json */s any"),
    ] {
        assert_eq!(get(format!("{secrets}{selector}")).summary(), expected);
    }
}

/// Evaluating the selector would cost CPU for each later event, and upstream has no limit of its own.
#[test]
fn selector_above_size_limit_is_forwarded() {
    let text = |bytes| "a".repeat(bytes);
    for parameter in ["labelSelector=", "watch=1&labelSelector=", "fieldSelector=metadata.name%3D", "shardSelector="] {
        let uri = |bytes: usize| format!("/api/v1/pods?resourceVersion=0&{parameter}{}", text(bytes));
        assert_reason(ForwardReason::ExpensiveSelector, [get(uri(SELECTOR_BYTES_MAX + 1))]);
    }
    // Upstream's own errors, which come first.
    assert_reason(
        ForwardReason::ExpensiveSelector,
        [get(format!("/api/v1/pods?limit=x&labelSelector={}", text(17 << 10)))],
    );
    let longest =
        format!("/api/v1/pods?resourceVersion=0&labelSelector={}", vec!["a"; SELECTOR_BYTES_MAX / 2].join(","));
    assert_eq!(get(longest).summary(), "list json *[a] any");
}

/// The token in the response to an expired token: `rv: -1`, which continues at the current version.
#[test]
fn continue_token_at_latest_version_is_forwarded() {
    let token = ContinueToken { version: ContinueVersion::Latest, start: "a/p\0".to_owned() }
        .encode(ListPageSource::FromStorage);
    let uris = [
        format!("/api/v1/pods?limit=1&continue={token}"),
        format!("/api/v1/pods?limit=1&continue={token}&resourceVersion=0"),
        format!("/api/v1/namespaces/a/pods?continue={token}"),
    ];
    assert_reason(ForwardReason::Continue, uris.map(get));
}

#[test]
fn resources_not_in_configured_list_are_forwarded() {
    let pods = CacheCoverage { resources: vec!["pods".to_owned()], ..CacheCoverage::default() };
    let uris = ["/api/v1/configmaps?watch=1", "/api/v1/nodes/n?resourceVersion=0", "/apis/apps/v1/deployments?limit=x"];
    assert_reason(ForwardReason::NotInResources, uris.map(|uri| get(uri).covered_by(&pods)));
    assert_eq!(get("/api/v1/pods?resourceVersion=0").covered_by(&pods).summary(), "list json * any");
}

#[test]
fn sensitive_resources_are_forwarded_unless_enabled() {
    let central = CacheCoverage { authorizes: true, ..CacheCoverage::default() };
    let node = CacheCoverage { node: Some("n7".into()), ..CacheCoverage::default() };
    let secrets = ["/api/v1/secrets?resourceVersion=0", "/api/v1/namespaces/a/secrets/s?resourceVersion=0"];
    let maps = "/api/v1/namespaces/a/configmaps?fieldSelector=metadata.name%3Dc&watch=1";
    for coverage in [&central, &node] {
        assert_reason(ForwardReason::Sensitive, secrets.map(|uri| get(uri).covered_by(coverage)));
    }
    assert_reason(ForwardReason::Sensitive, [get(maps).covered_by(&node)]);
    let named = CacheCoverage { sensitive: SensitiveKind::ALL.to_vec(), ..node };
    for (coverage, uri) in
        [(&central, maps), (&named, maps), (&named, secrets[0]), (&CacheCoverage::default(), secrets[0])]
    {
        get(uri).covered_by(coverage).representation();
    }
}

/// Upstream authorizes before it validates, so the proxy does not reject such a request either.
#[test]
fn requests_beyond_own_node_are_forwarded() {
    let node = CacheCoverage { node: Some("n7".into()), ..CacheCoverage::default() };
    let uris = [
        "/api/v1/pods?resourceVersion=0",
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dn8&watch=1",
        "/api/v1/pods?fieldSelector=spec.host%3Dn7&watch=1",
        "/api/v1/watch/pods?fieldSelector=spec.nodeName%3Dn7",
        "/api/v1/pods?limit=x",
        "/api/v1/namespaces/a/pods/p?resourceVersion=0",
        "/api/v1/nodes?watch=1",
        "/api/v1/nodes/n8?resourceVersion=0",
        // The end of each page depends on pods that are not cached.
        "/api/v1/pods?fieldSelector=spec.nodeName%3Dn7&resourceVersion=5&resourceVersionMatch=Exact&limit=2",
    ];
    assert_reason(ForwardReason::OutOfScope, uris.map(|uri| get(uri).covered_by(&node)));
    for (uri, expected) in [
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn7&resourceVersion=0", "list json * any"),
        ("/api/v1/namespaces/a/pods?fieldSelector=spec.nodeName%3Dn7&limit=2", "list json a current limit 2"),
        ("/api/v1/pods?fieldSelector=spec.nodeName%3Dn7&watch=1&resourceVersion=7", "watch json * >7"),
        ("/api/v1/nodes/n7?resourceVersion=0", "get json n7 any"),
        ("/api/v1/nodes?fieldSelector=metadata.name%3Dn7&watch=1&resourceVersion=7", "watch json */n7 >7"),
        ("/api/v1/watch/nodes/n7?resourceVersion=7", "watch json */n7 >7"),
        ("/apis/apps/v1/deployments?resourceVersion=0", "list json * any"),
    ] {
        assert_eq!(get(uri).covered_by(&node).summary(), expected, "{uri}");
    }
}

/// The first reason in the order of checks is counted.
#[test]
fn first_forward_reason_in_check_order_is_reported() {
    for (request, reason) in [
        (get("/api/v1/namespaces/A/pods").method("POST"), ForwardReason::Verb),
        (get("/api/v1/namespaces/a/pods").method("POST").impersonating(), ForwardReason::Verb),
        (get("/api/v1/namespaces/A/pods").impersonating(), ForwardReason::Impersonation),
        (get("/api/v1/namespaces/A/pods/p/log"), ForwardReason::AmbiguousUrl),
        (get("/api/v1/namespaces/a/foos/f/log"), ForwardReason::Subresource),
        (get("/api/v1/componentstatuses?shardSelector=x"), ForwardReason::NotWatchable),
        (get("/api/v1/namespaces/a/nodes?shardSelector=x"), ForwardReason::AmbiguousUrl),
        (get("/api/v1/pods?shardSelector=x").accept("text/plain"), ForwardReason::NotAcceptable),
        (get("/api/v1/namespaces/a/pods/p").accept("application/yaml"), ForwardReason::Representation),
    ] {
        assert_eq!(request.reason(), reason, "{request:?}");
    }
}

#[test]
fn forward_reasons_have_unique_labels() {
    let reasons = [
        ForwardReason::NonResource,
        ForwardReason::Verb,
        ForwardReason::Subresource,
        ForwardReason::AmbiguousUrl,
        ForwardReason::Impersonation,
        ForwardReason::Anonymous,
        ForwardReason::PermissionMismatch,
        ForwardReason::Unknown,
        ForwardReason::Aggregated,
        ForwardReason::NotWatchable,
        ForwardReason::Representation,
        ForwardReason::Table,
        ForwardReason::TooOld,
        ForwardReason::NotDerivable,
        ForwardReason::Invalid,
        ForwardReason::NotAcceptable,
        ForwardReason::UnsupportedParameter,
        ForwardReason::ConsistentGet,
        ForwardReason::ExactVersion,
        ForwardReason::Continue,
        ForwardReason::NotCached,
        ForwardReason::Syncing,
        ForwardReason::Forbidden,
        ForwardReason::NotInResources,
        ForwardReason::Sensitive,
        ForwardReason::OutOfScope,
        ForwardReason::Unavailable,
        ForwardReason::OverBudget,
        ForwardReason::NoProof,
        ForwardReason::ExpensiveSelector,
    ];
    let mut labels = reasons.map(ForwardReason::as_str).to_vec();
    assert!(
        labels.iter().all(|label| label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')),
        "{labels:?}"
    );
    labels.sort_unstable();
    labels.dedup();
    assert_eq!(labels.len(), reasons.len());
}
