//! Upstream URLs of a feed: each contains the selector of its scope.

use crate::feeds::{FeedKey, FeedScope};
use crate::wire::FeedEncoding;
use kubeapi::{Gvr, ObjectKey};

fn key(resource: &str, scope: FeedScope) -> FeedKey {
    FeedKey { gvr: Gvr::new("", "v1", resource), scope, encoding: FeedEncoding::Json }
}

fn selected(field: &str, value: &str) -> FeedScope {
    FeedScope::Selected { field: field.into(), value: value.into() }
}

#[test]
fn scope_selector_is_in_every_upstream_request() {
    let (pod, node) = (ObjectKey::new("a", "p"), ObjectKey::new("", "n1"));
    for (key, object, expected) in [
        (
            key("pods", FeedScope::Cluster),
            &pod,
            [
                "/api/v1/pods",
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dp",
                "/api/v1/pods?fieldSelector=metadata.name%3DNOBODY",
            ],
        ),
        (
            key("pods", FeedScope::Namespace("a".into())),
            &pod,
            [
                "/api/v1/namespaces/a/pods",
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3Dp",
                "/api/v1/namespaces/a/pods?fieldSelector=metadata.name%3DNOBODY",
            ],
        ),
        (
            key("pods", selected("spec.nodeName", "n1")),
            &pod,
            [
                "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1",
                "/api/v1/namespaces/a/pods?fieldSelector=spec.nodeName%3Dn1,metadata.name%3Dp",
                "/api/v1/pods?fieldSelector=spec.nodeName%3Dn1,spec.nodeName%21%3Dn1",
            ],
        ),
        (
            key("nodes", selected("metadata.name", "n1")),
            &node,
            [
                "/api/v1/nodes?fieldSelector=metadata.name%3Dn1",
                "/api/v1/nodes?fieldSelector=metadata.name%3Dn1",
                "/api/v1/nodes?fieldSelector=metadata.name%3Dn1,metadata.name%21%3Dn1",
            ],
        ),
    ] {
        let urls = [key.url(""), key.url_of(object, ""), key.empty_list_url("")];
        assert_eq!(urls, expected, "{key}");
        let more = [key.url("limit=1"), key.url_of(object, "limit=1"), key.empty_list_url("limit=1")];
        let mark = |url: &str| if url.contains('?') { '&' } else { '?' };
        assert_eq!(more, expected.map(|url| format!("{url}{}limit=1", mark(url))), "{key}");
    }
}

#[test]
fn feed_key_formats_display_name_and_metric_labels() {
    for (scope, name, [namespace, selector]) in [
        (FeedScope::Cluster, "pods.v1 (json)", ["", ""]),
        (FeedScope::Namespace("a".into()), "pods.v1 in a (json)", ["a", ""]),
        (selected("spec.nodeName", "n1"), "pods.v1 with spec.nodeName=n1 (json)", ["", "spec.nodeName=n1"]),
    ] {
        let key = key("pods", scope);
        assert_eq!(key.to_string(), name);
        let labels = [("resource", "pods.v1"), ("namespace", namespace), ("selector", selector), ("form", "json")];
        assert_eq!(key.labels(), labels.map(|(label, value)| (label, value.to_owned())));
    }
}
