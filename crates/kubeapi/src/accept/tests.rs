use super::*;
use MediaType::{Json, Protobuf, Yaml};
use NegotiatedMediaType::{NotAcceptable, NotStreamable, Plain};
use proptest::prelude::*;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn converted(media: MediaType, target: ObjectConversion, version: MetaApiVersion) -> NegotiatedMediaType {
    NegotiatedMediaType::Converted { media, target, version }
}

/// The sort compares each clause with each in the worst case, so its input is bounded.
#[test]
fn accept_header_over_limit_is_rejected_before_sorting() {
    let clauses = |count: usize| vec!["*"; count].join(",");
    let long = |bytes: usize| format!("application/json;{}", "a".repeat(bytes - "application/json;".len()));
    for (accept, is_read) in [
        (clauses(64), true),
        (clauses(65), false),
        (long(4 << 10), true),
        (long((4 << 10) + 1), false),
        (format!("{}{}", "*,".repeat(15_000), "/b,".repeat(10_000)), false),
    ] {
        assert_eq!(check_accept_length(&accept).is_ok(), is_read, "{} bytes", accept.len());
        assert_eq!(super::clauses(&accept).is_empty(), !is_read, "{} bytes", accept.len());
    }
    let refused = check_accept_length(&clauses(65)).expect_err("it is too long");
    assert_eq!((refused.code, refused.reason.as_str()), (400, "BadRequest"));
}

#[test]
fn drop_parameter_of_the_chosen_clause_names_managed_fields() {
    let many = format!("application/json;drop={}metadata.managedFields", "a+".repeat(1_000));
    let too_long = format!("application/json;drop={}metadata.managedFields", "a+".repeat(10_000));
    let metadata = "as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    for (accept, drops) in [
        ("application/json;drop=metadata.managedFields", true),
        ("application/json; drop=metadata.managedFields ;q=0.5", true),
        ("application/vnd.kubernetes.protobuf;drop=metadata.managedFields,application/json", true),
        ("application/json;drop=spec+metadata.managedFields+", true),
        ("application/json;drop=metadata.managedFields+metadata.managedFields", true),
        (&format!("application/json;{metadata};drop=metadata.managedFields"), true),
        ("*/*;drop=metadata.managedFields", true),
        (&many, true),
        ("application/json", false),
        ("application/json;drop=", false),
        ("application/json;drop=metadata", false),
        ("application/json;drop=metadata.managedfields", false),
        ("application/json;drop=metadata.managedFields.manager", false),
        ("application/json;drop=metadata.managedFields,spec", true),
        ("application/json;drop=metadata.managedFields;drop=spec", false),
        ("application/json;fields=metadata.managedFields", false),
        // Another clause is chosen.
        ("application/json,application/yaml;drop=metadata.managedFields", false),
        ("text/html;drop=metadata.managedFields,application/json", false),
        (&too_long, false),
    ] {
        assert_eq!(drops_managed_fields(Some(accept), SupportedMediaTypes::BUILTIN), drops, "{accept:.80}");
    }
    assert!(!drops_managed_fields(None, SupportedMediaTypes::BUILTIN));
}

#[test]
fn best_supported_accept_clause_wins() {
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io";
    let old_table = "application/json;as=Table;v=v1beta1;g=meta.k8s.io";
    let partial = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    let kubectl = format!("{table},{old_table},application/json");
    for (accept, choice) in [
        ("", Plain(Json)),
        ("application/json", Plain(Json)),
        ("application/yaml", Plain(Yaml)),
        (PROTOBUF, Plain(Protobuf)),
        ("*/*", Plain(Json)),
        ("*", Plain(Json)),
        ("application/*", Plain(Json)),
        ("application/vnd.kubernetes.protobuf,application/json", Plain(Protobuf)),
        ("application/json;q=0.5,application/yaml;q=0.9", Plain(Yaml)),
        ("application/json;q=x,application/yaml;q=0.1", Plain(Yaml)),
        // A wildcard comes last whatever its quality.
        ("*/*,application/yaml;q=0.1", Plain(Yaml)),
        ("text/html, application/yaml", Plain(Yaml)),
        ("text/html", NotAcceptable),
        ("text/html,*/*;q=0.1", Plain(Json)),
        ("json", NotAcceptable),
        (",", NotAcceptable),
        ("application/json;charset=utf-8", Plain(Json)),
        ("application/json;stream=watch", Plain(Json)),
        ("application/json;stream=other,application/yaml", Plain(Yaml)),
        ("application/json;sv=v1", Plain(Json)),
        ("application/json;sv=v2", NotAcceptable),
        (&kubectl, converted(Json, ObjectConversion::Table, MetaApiVersion::V1)),
        (old_table, converted(Json, ObjectConversion::Table, MetaApiVersion::V1beta1)),
        (partial, converted(Protobuf, ObjectConversion::PartialObjectMetadata, MetaApiVersion::V1)),
        (
            "application/yaml;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
            converted(Yaml, ObjectConversion::PartialObjectMetadataList, MetaApiVersion::V1),
        ),
        ("application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1,application/json", Plain(Json)),
        ("application/*;as=Table;g=meta.k8s.io;v=v1", converted(Json, ObjectConversion::Table, MetaApiVersion::V1)),
        ("application/json;as=Table", NotAcceptable),
        ("application/json;as=Table;g=meta.k8s.io;v=v2,*/*", Plain(Json)),
        ("application/json;as=Foo;g=meta.k8s.io;v=v1", NotAcceptable),
        ("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json", Plain(Json)),
        ("application/cbor,application/json", Plain(Json)),
    ] {
        assert_eq!(negotiate(Some(accept), SupportedMediaTypes::BUILTIN), choice, "{accept}");
    }
    assert_eq!(negotiate(None, SupportedMediaTypes::BUILTIN), Plain(Json));
}

#[test]
fn cbor_is_preferred_if_ranked_first() {
    for (accept, preferred) in [
        ("application/cbor;q=1,application/json;q=0.9", true),
        ("application/json;q=0.9,application/cbor;q=1", true),
        ("application/cbor,*/*", true),
        ("text/html,application/cbor", true),
        ("application/cbor;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json", true),
        ("application/json,application/cbor", false),
        ("application/json;q=1,application/cbor;q=0.9", false),
        ("application/*;q=0.9,application/json", false),
        ("application/json;as=Story;g=meta.k8s.io;v=v1,application/cbor", true),
    ] {
        assert_eq!(prefers_cbor(Some(accept), SupportedMediaTypes::BUILTIN), preferred, "{accept}");
    }
    assert!(!prefers_cbor(None, SupportedMediaTypes::BUILTIN));
}

#[test]
fn custom_resources_use_protobuf_only_for_conversions() {
    for (accept, choice) in [
        (PROTOBUF, NotAcceptable),
        ("application/vnd.kubernetes.protobuf,application/json", Plain(Json)),
        (
            "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1",
            converted(Protobuf, ObjectConversion::PartialObjectMetadata, MetaApiVersion::V1),
        ),
        ("application/*", Plain(Json)),
    ] {
        assert_eq!(negotiate(Some(accept), SupportedMediaTypes::CUSTOM), choice, "{accept}");
    }
}

#[test]
fn watch_requires_a_streamable_media_type() {
    for (accept, choice) in [
        ("application/json", Plain(Json)),
        ("application/json;stream=watch", Plain(Json)),
        (PROTOBUF, Plain(Protobuf)),
        ("application/vnd.kubernetes.protobuf;stream=watch", Plain(Protobuf)),
        ("application/yaml", NotStreamable),
        ("application/yaml,application/json", NotStreamable),
        ("application/yaml;stream=watch,application/json", Plain(Json)),
        ("text/html", NotAcceptable),
    ] {
        assert_eq!(negotiate(Some(accept), SupportedMediaTypes::BUILTIN.for_watch()), choice, "{accept}");
    }
}

#[test]
fn error_responses_ignore_conversion_clauses() {
    for (accept, choice) in [
        ("application/json;as=Table;v=v1;g=meta.k8s.io", NotAcceptable),
        ("application/json;as=Table;v=v1;g=meta.k8s.io,application/json", Plain(Json)),
        (PROTOBUF, Plain(Protobuf)),
        ("application/yaml", Plain(Yaml)),
        ("application/json;sv=v1", NotAcceptable),
    ] {
        assert_eq!(negotiate(Some(accept), SupportedMediaTypes::ERROR), choice, "{accept}");
    }
}

#[test]
fn router_accepts_only_exact_types_or_the_full_wildcard() {
    for (accept, accepted) in [
        (None, true),
        (Some(""), true),
        (Some("*/*"), true),
        (Some("application/json"), true),
        (Some("text/html, application/yaml ;q=0.1"), true),
        (Some("application/json;as=Foo"), true),
        (Some("application/*"), false),
        (Some("*"), false),
        (Some("text/html"), false),
        (Some("text/html,"), false),
        (Some("application/cbor"), false),
    ] {
        assert_eq!(router_accepts(accept, SupportedMediaTypes::BUILTIN), accepted, "{accept:?}");
    }
}

#[test]
fn json_only_server_ignores_other_media_types() {
    let partial = "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
    for (accept, choice) in [
        ("application/vnd.kubernetes.protobuf,application/json", Plain(Json)),
        ("application/yaml,*/*", Plain(Json)),
        ("application/json;as=Table;v=v1;g=meta.k8s.io", converted(Json, ObjectConversion::Table, MetaApiVersion::V1)),
        (PROTOBUF, NotAcceptable),
        (partial, NotAcceptable),
        ("application/yaml", NotAcceptable),
    ] {
        assert_eq!(negotiate(Some(accept), SupportedMediaTypes::BUILTIN.in_json()), choice, "{accept}");
    }
    for (accept, accepted) in [("application/json", true), ("*/*", true), (PROTOBUF, false), ("application/*", false)] {
        assert_eq!(router_accepts(Some(accept), SupportedMediaTypes::BUILTIN.in_json()), accepted, "{accept}");
    }
}

#[test]
fn kind_matches_only_within_one_accept_clause() {
    let asks = |accept: Option<&str>| accepts_kind(accept, "APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2");
    let parameters = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    assert!(asks(Some(parameters)));
    assert!(asks(Some(&format!("application/json, {parameters};q=0.1"))));
    assert!(!asks(Some("application/json;g=apidiscovery.k8s.io;v=v2,application/json;as=APIGroupDiscoveryList")));
    assert!(!asks(Some("application/json")));
    assert!(!asks(None));
}

#[test]
fn browsers_and_curl_receive_indented_json() {
    let json = Some("application/json");
    for (query, agent, accept, indented) in [
        ("", None, None, false),
        ("", Some("kubectl/v1.36"), json, false),
        ("", Some("curl/8.0"), json, true),
        ("", Some("Wget/1"), json, true),
        ("", Some("Mozilla/5.0 (X11)"), json, true),
        ("pretty=true", Some("kubectl"), json, true),
        ("pretty=1", None, None, true),
        ("pretty=yes", Some("curl"), json, false),
        ("pretty=false", Some("curl"), json, false),
        ("pretty=", Some("curl"), json, true),
        ("%70retty=1", None, json, false),
        ("pretty=false", None, Some("application/json;pretty=1"), true),
        ("", None, Some("application/json;pretty=0"), false),
        ("", None, Some("application/yaml,application/json;pretty=1"), false),
    ] {
        let query = UrlQuery::parse(query);
        assert_eq!(
            pretty(&query, agent, accept, SupportedMediaTypes::BUILTIN),
            indented,
            "{query:?} {agent:?} {accept:?}"
        );
        assert!(!pretty(&query, agent, accept, SupportedMediaTypes::BUILTIN.for_watch()), "never a watch");
    }
}

proptest! {
    #[test]
    fn accept_negotiation_never_panics(
        accept in any::<String>(),
        likely in "(application/|json|yaml|\\*|/|;|,|=|q|as|0.5|stream| ){0,20}",
    ) {
        for accept in [accept, likely] {
            for types in [SupportedMediaTypes::BUILTIN, SupportedMediaTypes::CUSTOM, SupportedMediaTypes::ERROR, SupportedMediaTypes::BUILTIN.in_json()] {
                let _ = negotiate(Some(&accept), types);
                let _ = negotiate(Some(&accept), types.for_watch());
            }
            let _ = router_accepts(Some(&accept), SupportedMediaTypes::BUILTIN);
            let _ = accepts_kind(Some(&accept), "Table", "meta.k8s.io", "v1");
        }
    }
}

#[test]
fn discovery_accept_has_one_of_few_forms_or_none() {
    const V2: &str = aggregated!("v2");
    let v2beta1 = aggregated!("v2beta1");
    let client_go = format!("{V2},{v2beta1},application/json");
    let json = Some(JSON);
    for (accept, expected) in [
        (None, json),
        (Some(""), json),
        (Some("*/*"), json),
        (Some("application/json, */*"), json),
        (Some("*/*;q=0.1,application/json"), json),
        (Some("application/json,application/json;q=0.5"), json),
        (Some("application/json,text/html;q=0.5"), json),
        (Some(client_go.as_str()), Some(client_go.as_str())),
        (Some(&format!("{V2},{v2beta1},*/*")), Some(client_go.as_str())),
        (Some(&format!("{V2},{V2}")), None),
        (Some("application/json;as=APIGroupDiscoveryList;v=v2;g=apidiscovery.k8s.io"), Some(V2)),
        (Some(PROTOBUF), Some(PROTOBUF)),
        (Some(&format!("{PROTOBUF},*/*")), Some(&format!("{PROTOBUF},application/json"))),
        (Some(&format!("{v2beta1},{V2}")), None),
        (Some(&format!("{PROTOBUF},{V2},application/json")), None),
        (Some("application/json;as=APIGroupDiscoveryList;v=v3;g=apidiscovery.k8s.io"), None),
        (Some("application/json;as=Table;v=v1;g=meta.k8s.io"), None),
        (Some("application/json;x=1"), None),
        (Some("*"), None),
        (Some("application /json"), None),
        (Some("application/yaml"), None),
        (Some("text/html"), None),
        (Some(","), None),
    ] {
        assert_eq!(discovery_accept(accept), expected, "{accept:?}");
    }
}

#[test]
fn openapi_accept_is_the_media_type_of_the_answer() {
    const V2: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
    const V3: &str = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf";
    const OLD: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";
    let (json, quality) = (Some(JSON), format!("application/json;q=0.5,{OLD}"));
    for (accept, v2, v3) in [
        (None, json, json),
        (Some(""), json, json),
        (Some("*/*"), json, json),
        (Some("application/*"), json, json),
        (Some("text/html,application/json;q=0.1"), json, json),
        (Some("application/json;x=1"), json, json),
        (Some(V2), Some(V2), None),
        (Some(OLD), Some(V2), None),
        (Some(V3), None, Some(V3)),
        (Some(&format!("{OLD},*/*")), Some(V2), json),
        (Some(&format!("application/json,{OLD}")), json, json),
        (Some(&quality), Some(V2), json),
        (Some("*/json"), None, None),
        (Some("text/html"), None, None),
        (Some(","), None, None),
    ] {
        let ours = [OpenApiVersion::V2, OpenApiVersion::V3].map(|version| openapi_accept(accept, version));
        assert_eq!(ours, [v2, v3], "{accept:?}");
    }
}
