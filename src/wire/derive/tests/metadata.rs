use bytes::{Bytes, BytesMut};
use kubeapi::protobuf::put_field;

use super::super::{MetadataRenderer, TranscodeRefusal};

/// A custom resource as printed by an apiserver, keys sorted.
const CUSTOM: &str = concat!(
    r#"{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"annotations":{"a":"\u003c","b":""},"#,
    r#""creationTimestamp":"2024-02-29T23:59:59Z","finalizers":["x"],"generation":2,"labels":{"a":"1","b":"2"},"#,
    r#""managedFields":[{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:a":{}},"manager":"m","#,
    r#""operation":"Update","time":"1969-12-31T23:59:59Z"}],"#,
    r#""name":"n","#,
    r#""ownerReferences":[{"apiVersion":"v1","blockOwnerDeletion":false,"controller":true,"kind":"Node","#,
    r#""name":"o","uid":"u"}],"resourceVersion":"7","uid":"u1"},"spec":{"metadata":1}}"#,
);

const STRUCT_ORDER: &str = concat!(
    r#""metadata":{"name":"n","uid":"u1","resourceVersion":"7","generation":2,"#,
    r#""creationTimestamp":"2024-02-29T23:59:59Z","labels":{"a":"1","b":"2"},"#,
    r#""annotations":{"a":"\u003c","b":""},"ownerReferences":[{"apiVersion":"v1","kind":"Node","#,
    r#""name":"o","uid":"u","controller":true,"blockOwnerDeletion":false}],"finalizers":["x"],"#,
    r#""managedFields":[{"manager":"m","operation":"Update","apiVersion":"v1","time":"1969-12-31T23:59:59Z","#,
    r#""fieldsType":"FieldsV1","fieldsV1":{"f:a":{}}}]}}"#,
);

fn gadget() -> MetadataRenderer {
    MetadataRenderer::for_server(37, "example.com/v1", "Gadget")
}

#[test]
fn custom_resource_metadata_is_written_in_go_struct_order() {
    let mut json = Vec::new();
    gadget().json_from_json(CUSTOM.as_bytes(), &mut json).unwrap();
    assert_eq!(String::from_utf8(json).unwrap(), STRUCT_ORDER);
    // Its protobuf yields the same.
    let body = gadget().protobuf_from_json(CUSTOM.as_bytes()).unwrap();
    let mut json = Vec::new();
    gadget().json(&body, &mut json).unwrap();
    assert_eq!(String::from_utf8(json).unwrap(), STRUCT_ORDER);
    assert_eq!(gadget().protobuf(&body).unwrap(), body);
    // A built-in's body yields the same.
    let mut json = Vec::new();
    gadget().json_from_json(STRUCT_ORDER.as_bytes(), &mut json).unwrap();
    assert_eq!(String::from_utf8(json).unwrap(), STRUCT_ORDER);
}

#[test]
fn invalid_object_meta_is_rejected() {
    let rows = [
        r#"{"metadata":{"name":"n","more":1}}"#,
        r#"{"metadata":{"name":1}}"#,
        r#"{"metadata":{"name":"a","name":"b"}}"#,
        r#"{"metadata":{"creationTimestamp":"2024-01-01T00:00:00+01:00"}}"#,
        r#"{"metadata":{"creationTimestamp":"2023-02-29T00:00:00Z"}}"#,
        r#"{"metadata":{"creationTimestamp":"2023-02-28T24:00:00Z"}}"#,
        r#"{"metadata":{"creationTimestamp":"2023-02-28T00:00:00.5Z"}}"#,
        r#"{"metadata":{"creationTimestamp":"2023-02-2é00:00:00Z"}}"#,
        // Serde accepts an array for a struct.
        r#"[["n"]]"#,
        r#"{"metadata":["n"]}"#,
        r#"{"metadata":{"ownerReferences":[["v1","Node","o","u",true,true]]}}"#,
        r#"{"metadata":{"managedFields":[["m"]]}}"#,
        "{}",
        "",
    ];
    for json in rows {
        let refused = gadget().protobuf_from_json(json.as_bytes()).unwrap_err();
        assert!(matches!(refused.reason, TranscodeRefusal::Value(_)), "{json}: {refused}");
        assert_eq!(refused.path, "metadata");
    }
    let refused = gadget().protobuf(&Bytes::from_static(b"\x12\x00")).unwrap_err();
    assert_eq!(refused.to_string(), "the object: malformed: it does not begin with its metadata");
}

#[test]
fn metadata_omits_deprecated_conversion_annotations() {
    let json = |names: &[&str]| {
        let entries: Vec<_> = names.iter().map(|name| format!("{name:?}:\"1\"")).collect();
        format!(r#""metadata":{{"name":"n","annotations":{{{}}}}}}}"#, entries.join(","))
    };
    let [of_daemon_sets, of_deployments] =
        ["deprecated.daemonset.template.generation", "deprecated.deployment.rollback.to"];
    let with = json(&["a", of_daemon_sets, of_deployments, "z"]);
    let body = gadget().protobuf_from_json(with.as_bytes()).unwrap();
    let printed = |metadata: MetadataRenderer| {
        let (mut of_protobuf, mut of_json) = (Vec::new(), Vec::new());
        metadata.json(&body, &mut of_protobuf).unwrap();
        metadata.json_from_json(with.as_bytes(), &mut of_json).unwrap();
        assert_eq!(of_protobuf, of_json);
        assert_eq!(metadata.protobuf(&body).unwrap(), metadata.protobuf_from_json(with.as_bytes()).unwrap());
        String::from_utf8(of_json).unwrap()
    };
    assert_eq!(printed(gadget()), with);
    for minor in [35, 37] {
        let of = |kind| printed(MetadataRenderer::for_server(minor, "apps/v1", kind));
        assert_eq!(of("DaemonSet"), json(&["a", of_deployments, "z"]));
        assert_eq!(of("Deployment"), json(&["a", of_daemon_sets, "z"]));
    }
}

/// The apiserver does not check the values of annotations.
#[test]
fn annotation_that_is_not_utf8_is_kept() {
    let message = |fields: &[(u8, &[u8])]| {
        let mut out = BytesMut::new();
        for (number, payload) in fields {
            put_field(&mut out, *number, payload);
        }
        out.freeze()
    };
    let [kept, hidden] =
        ["a", "deprecated.daemonset.template.generation"].map(|key| message(&[(1, key.as_bytes()), (2, b"\xff")]));
    let body = |annotations: &[&[u8]]| {
        message(&[(1, &message(&annotations.iter().map(|entry| (12, *entry)).collect::<Vec<_>>()))])
    };
    let metadata = MetadataRenderer::for_server(37, "apps/v1", "DaemonSet");
    let written = metadata.protobuf(&body(&[&kept, &hidden])).unwrap();
    assert_eq!(written, body(&[&kept]));
}

#[test]
fn protobuf_metadata_is_a_slice_of_the_body() {
    let body = Bytes::from_static(b"\x0a\x03\x0a\x01n\x12\x00");
    let metadata = gadget().protobuf(&body).unwrap();
    assert_eq!(metadata, body.slice(..5));
    assert_eq!(metadata.as_ptr(), body.as_ptr(), "a copy");
}
