use crate::wire::Encoding;

#[test]
fn content_type_maps_to_encoding() {
    for (value, encoding) in [
        ("application/json", Some(Encoding::Json)),
        ("application/json; charset=utf-8", Some(Encoding::Json)),
        ("Application/JSON", Some(Encoding::Json)),
        ("application/json;stream=watch", Some(Encoding::Json)),
        ("application/vnd.kubernetes.protobuf", Some(Encoding::Protobuf)),
        ("application/vnd.kubernetes.protobuf;stream=watch", Some(Encoding::Protobuf)),
        ("application/json;as=Table;v=v1;g=meta.k8s.io", None),
        ("application/json;v=v1;AS=PartialObjectMetadata", None),
        ("application/yaml", None),
        ("application/cbor", None),
        ("text/plain", None),
        ("", None),
    ] {
        assert_eq!(Encoding::from_content_type(value), encoding, "{value:?}");
    }
}

#[test]
fn encoding_recognises_its_own_media_types() {
    for encoding in [Encoding::Json, Encoding::Protobuf] {
        assert_eq!(Encoding::from_content_type(encoding.media_type()), Some(encoding));
        assert_eq!(Encoding::from_content_type(encoding.watch_media_type()), Some(encoding));
        assert_eq!(encoding.to_string(), encoding.as_str());
    }
}
