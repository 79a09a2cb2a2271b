use crate::wire::FeedEncoding;

#[test]
fn content_type_maps_to_encoding() {
    for (value, encoding) in [
        ("application/json", Some(FeedEncoding::Json)),
        ("application/json; charset=utf-8", Some(FeedEncoding::Json)),
        ("Application/JSON", Some(FeedEncoding::Json)),
        ("application/json;stream=watch", Some(FeedEncoding::Json)),
        ("application/vnd.kubernetes.protobuf", Some(FeedEncoding::Protobuf)),
        ("application/vnd.kubernetes.protobuf;stream=watch", Some(FeedEncoding::Protobuf)),
        ("application/json;as=Table;v=v1;g=meta.k8s.io", None),
        ("application/json;v=v1;AS=PartialObjectMetadata", None),
        ("application/yaml", None),
        ("application/cbor", None),
        ("text/plain", None),
        ("", None),
    ] {
        assert_eq!(FeedEncoding::from_content_type(value), encoding, "{value:?}");
    }
}

#[test]
fn encoding_recognises_its_own_media_types() {
    for encoding in [FeedEncoding::Json, FeedEncoding::Protobuf] {
        assert_eq!(FeedEncoding::from_content_type(encoding.media_type()), Some(encoding));
        assert_eq!(FeedEncoding::from_content_type(encoding.watch_media_type()), Some(encoding));
        assert_eq!(encoding.to_string(), encoding.as_str());
    }
}
