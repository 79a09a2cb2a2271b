//! The encoding of responses, and the representations that only upstream can write (R-ACCEPT-1, R-ACCEPT-4,
//! R-CLIENT-5).

use super::fixture::get;
use crate::serve::route::{ForwardReason, ReadRoute};
use crate::wire::{FeedEncoding, IncludeObjectPolicy, Representation};
use kubeapi::MetaApiVersion;

const POD: &str = "/api/v1/namespaces/a/pods/p?resourceVersion=0";
const PODS: &str = "/api/v1/pods?resourceVersion=0";
const POD_WATCH: &str = "/api/v1/pods?watch=1&resourceVersion=5";
const WIDGETS: &str = "/apis/example.com/v1/widgets?resourceVersion=0";
const WIDGET_WATCH: &str = "/apis/example.com/v1/widgets?watch=1&resourceVersion=5";

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";
const PROTOBUF_FIRST: &str = "application/vnd.kubernetes.protobuf,application/json";
/// The Accept header of `kubectl get`.
const KUBECTL: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,\
                       application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";

#[test]
fn accept_negotiation_matches_apiserver() {
    for (client, accept, encoding) in [
        ("an empty header", "", FeedEncoding::Json),
        ("kubelet and controllers", PROTOBUF_FIRST, FeedEncoding::Protobuf),
        ("dynamic client, Python, kube-rs", "application/json", FeedEncoding::Json),
        ("controller-runtime", "application/json, */*", FeedEncoding::Json),
        ("JavaScript", "*/*", FeedEncoding::Json),
        ("protobuf only", PROTOBUF, FeedEncoding::Protobuf),
        ("JSON first", "application/json,application/vnd.kubernetes.protobuf", FeedEncoding::Json),
        ("by quality", "application/json;q=0.5,application/vnd.kubernetes.protobuf;q=0.9", FeedEncoding::Protobuf),
        ("JSON before CBOR", "application/json,application/cbor;q=0.9", FeedEncoding::Json),
        (
            "a Table in protobuf, which there is not",
            "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,application/json",
            FeedEncoding::Json,
        ),
        ("an unknown conversion", "application/json;as=Story;g=meta.k8s.io;v=v1,application/json", FeedEncoding::Json),
    ] {
        for uri in [POD, PODS, POD_WATCH] {
            assert_eq!(get(uri).accept(accept).encoding(), encoding, "{client}: {uri}");
        }
    }
    assert_eq!([POD, PODS, POD_WATCH].map(|uri| get(uri).encoding()), [FeedEncoding::Json; 3], "no header at all");
    assert_eq!(get(POD_WATCH).accept("application/json;stream=watch").encoding(), FeedEncoding::Json);
    assert_eq!(
        get(POD_WATCH).accept("application/vnd.kubernetes.protobuf;stream=watch").encoding(),
        FeedEncoding::Protobuf
    );
}

#[test]
fn managed_fields_are_left_out_for_clients_that_drop_them() {
    let (reduced, version) = (|encoding| Representation::Reduced(encoding, None), MetaApiVersion::V1);
    let asks = "application/json;drop=metadata.managedFields";
    for (uri, accept, full) in [
        (POD, asks, Representation::Object(FeedEncoding::Json)),
        (PODS, asks, Representation::Object(FeedEncoding::Json)),
        (POD_WATCH, asks, Representation::Object(FeedEncoding::Json)),
        (WIDGETS, asks, Representation::Object(FeedEncoding::Json)),
        (
            PODS,
            "application/vnd.kubernetes.protobuf;drop=metadata.managedFields,application/json",
            Representation::Object(FeedEncoding::Protobuf),
        ),
        (
            POD_WATCH,
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1;drop=metadata.managedFields",
            Representation::Metadata(FeedEncoding::Json, version),
        ),
    ] {
        assert_eq!(get(uri).accept(accept).representation(), full.reduced(), "{uri}");
        assert_eq!(full.reduced().full(), full);
    }
    // The configuration names clients that do not ask.
    for (accept, encoding) in [("application/json", FeedEncoding::Json), (PROTOBUF_FIRST, FeedEncoding::Protobuf)] {
        assert_eq!(get(PODS).accept(accept).reduced().representation(), reduced(encoding));
    }
    // Upstream leaves no fields out of a Table.
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io;drop=metadata.managedFields";
    assert_eq!(get(POD_WATCH).accept(table).representation(), Representation::Table(IncludeObjectPolicy::Metadata));
}

/// Custom resources have no protobuf. A client that prefers it receives JSON, and one that accepts nothing else
/// receives a 406 from upstream.
#[test]
fn custom_resources_are_served_as_json_only() {
    for uri in [WIDGETS, WIDGET_WATCH] {
        for accept in [PROTOBUF_FIRST, "application/json", "*/*", "application/*"] {
            assert_eq!(get(uri).accept(accept).encoding(), FeedEncoding::Json, "{accept}: {uri}");
        }
        assert_eq!(get(uri).accept(PROTOBUF).reason(), ForwardReason::NotAcceptable, "{uri}");
    }
}

/// The metadata client requests a `PartialObjectMetadataList` for a list, and PartialObjectMetadata for an object or a
/// watch.
#[test]
fn partial_object_metadata_is_derived_from_cache() {
    for (one, list, metadata) in [
        (
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json",
            Representation::Metadata(FeedEncoding::Protobuf, MetaApiVersion::V1),
        ),
        (
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            Representation::Metadata(FeedEncoding::Json, MetaApiVersion::V1),
        ),
        (
            "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1beta1",
            "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1beta1",
            Representation::Metadata(FeedEncoding::Json, MetaApiVersion::V1beta1),
        ),
    ] {
        for uri in [POD, POD_WATCH, WIDGET_WATCH] {
            assert_eq!(get(uri).accept(one).representation(), metadata, "{one}: {uri}");
            assert_eq!(get(uri).accept(list).reason(), ForwardReason::Representation, "{list}: {uri}");
        }
        for uri in [PODS, WIDGETS] {
            assert_eq!(get(uri).accept(list).representation(), metadata, "{list}: {uri}");
            assert_eq!(get(uri).accept(one).reason(), ForwardReason::Representation, "{one}: {uri}");
        }
    }
}

#[test]
fn table_reads_are_forwarded_and_table_watches_shared() {
    for uri in [POD, PODS, WIDGETS] {
        assert_eq!(get(uri).accept(KUBECTL).reason(), ForwardReason::Table, "{uri}");
    }
    for uri in [POD_WATCH, WIDGET_WATCH] {
        for (include, expected) in [
            ("", IncludeObjectPolicy::Metadata),
            ("&includeObject=", IncludeObjectPolicy::Metadata),
            ("&includeObject=Metadata", IncludeObjectPolicy::Metadata),
            ("&includeObject=None", IncludeObjectPolicy::None),
            ("&includeObject=Object", IncludeObjectPolicy::Object),
        ] {
            let request = get(format!("{uri}{include}")).accept(KUBECTL);
            assert_eq!(request.representation(), Representation::Table(expected), "{request:?}");
        }
        // Upstream handles unknown values.
        assert_eq!(get(format!("{uri}&includeObject=All")).accept(KUBECTL).reason(), ForwardReason::Table, "{uri}");
        let older = "application/json;as=Table;v=v1beta1;g=meta.k8s.io";
        assert_eq!(get(uri).accept(older).reason(), ForwardReason::Table, "{uri}");
    }
}

#[test]
fn tables_with_known_columns_are_printed_unless_a_definition_has_just_changed() {
    let planets = "/apis/example.com/v1/planets";
    for uri in [planets, "/apis/example.com/v1/planets?limit=500", "/apis/example.com/v1/planets/p?resourceVersion=0"] {
        let request = get(uri).accept(KUBECTL);
        assert_eq!(request.representation(), Representation::Printed(IncludeObjectPolicy::Metadata), "{uri}");
        assert_eq!(request.after_change().reason(), ForwardReason::Table, "{uri}");
    }
    assert_eq!(get(format!("{planets}?includeObject=All")).accept(KUBECTL).reason(), ForwardReason::Table);
    assert_eq!(get(format!("{planets}/p")).accept(KUBECTL).reason(), ForwardReason::ConsistentGet);
    assert_eq!(get(planets).accept(KUBECTL).agent("curl/8").reason(), ForwardReason::Representation);
    let watch = get(format!("{planets}?watch=1&resourceVersion=5")).accept(KUBECTL);
    assert_eq!(watch.representation(), Representation::Table(IncludeObjectPolicy::Metadata));
}

/// No response of upstream has its bytes: upstream would deny the collection.
#[test]
fn filtered_list_may_be_a_table_and_is_never_indented() {
    let browser = |uri: &str| get(uri).agent("Mozilla/5.0");
    for uri in ["/api/v1/pods", "/api/v1/namespaces"] {
        assert_eq!(browser(uri).reason(), ForwardReason::Representation, "{uri}");
        assert_eq!(browser(uri).filtered().encoding(), FeedEncoding::Json, "{uri}");
    }
    for (include, expected) in [("", IncludeObjectPolicy::Metadata), ("?includeObject=None", IncludeObjectPolicy::None)]
    {
        let request = get(format!("/api/v1/namespaces{include}")).accept(KUBECTL).filtered();
        assert_eq!(request.representation(), Representation::Table(expected), "{request:?}");
    }
    for uri in
        ["/api/v1/pods?includeObject=All", "/api/v1/namespaces/a/pods/p?resourceVersion=0", "/api/v1/pods?watch=1"]
    {
        assert_eq!(get(uri).accept(KUBECTL).filtered().reason(), ForwardReason::Table, "{uri}");
    }
    assert_eq!(get("/api/v1/pods").accept("application/yaml").filtered().reason(), ForwardReason::Representation);
}

/// Cells are as of when they were printed. That is correct for later events, but not for an initial state.
#[test]
fn table_watch_with_initial_state_is_forwarded_except_one_object() {
    for (uri, ours) in [
        // `kubectl get pod p --watch`
        ("/api/v1/namespaces/a/pods?watch=1&fieldSelector=metadata.name%3Dp&resourceVersion=0", true),
        ("/api/v1/nodes?watch=1&fieldSelector=metadata.name%3Dn", true),
        ("/api/v1/nodes?watch=1&fieldSelector=metadata.name%3Dn&allowWatchBookmarks=1", false),
        ("/api/v1/pods?watch=1&fieldSelector=metadata.name%3Dp&resourceVersion=0", false),
    ] {
        let request = get(uri).accept(KUBECTL);
        assert_eq!(matches!(request.route(), Ok(ReadRoute::Watch(_))), ours, "{request:?}: {}", request.summary());
    }
    for (query, ours) in [
        ("resourceVersion=5", true),
        ("resourceVersion=5&allowWatchBookmarks=1&timeoutSeconds=9&labelSelector=a%3Db", true),
        ("resourceVersion=5&sendInitialEvents=false&resourceVersionMatch=NotOlderThan", true),
        ("", false),
        ("resourceVersion=0", false),
        ("sendInitialEvents=false&resourceVersionMatch=NotOlderThan", false),
        ("sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion=5&allowWatchBookmarks=1", false),
    ] {
        let request = get(format!("/api/v1/pods?watch=1&{query}")).accept(KUBECTL);
        assert_eq!(matches!(request.route(), Ok(ReadRoute::Watch(_))), ours, "{request:?}: {}", request.summary());
        assert!(ours || request.reason() == ForwardReason::Table, "{request:?}");
    }
}

#[test]
fn yaml_is_forwarded_upstream() {
    for uri in [POD, PODS, WIDGETS] {
        assert_eq!(get(uri).accept("application/yaml").reason(), ForwardReason::Representation, "{uri}");
    }
}

#[test]
fn pretty_json_is_forwarded_upstream() {
    for (request, indented) in [
        (get("/api/v1/pods?resourceVersion=0&pretty=1"), true),
        (get("/api/v1/pods?resourceVersion=0&pretty=true"), true),
        (get(PODS).accept("application/json;pretty=1"), true),
        (get(PODS).agent("curl/8.5.0"), true),
        (get(PODS).agent("Wget/1.21"), true),
        (get(PODS).agent("Mozilla/5.0 (X11)"), true),
        (get(POD).agent("curl/8.5.0"), true),
        (get(WIDGETS).agent("curl/8.5.0"), true),
        (get("/api/v1/pods?resourceVersion=0&pretty=false").agent("curl/8.5.0"), false),
        (get("/api/v1/pods?resourceVersion=0&pretty=yes").agent("curl/8.5.0"), false),
        (get(PODS).agent("kubectl/v1.36.2"), false),
        (get(PODS).agent("Go-http-client/2.0"), false),
        // Only JSON is indented, and never in a watch.
        (get("/api/v1/pods?resourceVersion=0&pretty=1").accept(PROTOBUF), false),
        (get("/api/v1/pods?watch=1&resourceVersion=5&pretty=1"), false),
        (get(POD_WATCH).agent("curl/8.5.0"), false),
    ] {
        let summary = request.summary();
        assert_eq!(summary == "forward: representation", indented, "{request:?}: {summary}");
    }
}

/// Only upstream knows whether it writes CBOR.
#[test]
fn cbor_preference_is_forwarded_upstream() {
    for uri in [POD, PODS, POD_WATCH, WIDGETS, WIDGET_WATCH] {
        let request = get(uri).accept("application/cbor;q=1,application/json;q=0.9");
        assert_eq!(request.reason(), ForwardReason::Representation, "{uri}");
    }
}

#[test]
fn unsupported_media_types_are_forwarded_as_not_acceptable() {
    for accept in ["text/plain", "application/xml", "application/cbor", "json", "application/json;stream=other"] {
        for uri in [POD, PODS, POD_WATCH, WIDGETS, WIDGET_WATCH] {
            assert_eq!(get(uri).accept(accept).reason(), ForwardReason::NotAcceptable, "{accept}: {uri}");
        }
    }
    // A watch cannot be YAML.
    for uri in [POD_WATCH, WIDGET_WATCH] {
        assert_eq!(get(uri).accept("application/yaml").reason(), ForwardReason::NotAcceptable, "{uri}");
    }
}

/// The router of built-in resources accepts `*/*` as a wildcard, but matches `application/*` with none of its types.
#[test]
fn accept_application_wildcard_is_not_acceptable_for_builtins() {
    for uri in [POD, PODS, POD_WATCH] {
        assert_eq!(get(uri).accept("application/*").reason(), ForwardReason::NotAcceptable, "{uri}");
        assert_eq!(get(uri).accept("application/*,application/json").encoding(), FeedEncoding::Json, "{uri}");
    }
}

/// Negotiation comes before the parameters (R-ORDER-2), so upstream reports errors in the parameters.
#[test]
fn negotiation_forward_precedes_parameter_validation() {
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    assert_eq!(get("/api/v1/pods?limit=abc").accept(table).reason(), ForwardReason::Table);
    assert_eq!(get("/api/v1/pods?labelSelector=a%20in").accept("text/plain").reason(), ForwardReason::NotAcceptable);
}
