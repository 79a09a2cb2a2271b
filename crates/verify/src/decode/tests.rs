use super::*;

/// Encodes a field of bytes.
fn put(number: u8, bytes: &[u8]) -> Vec<u8> {
    let len = u8::try_from(bytes.len()).expect("short");
    assert!(len < 0x80, "one byte of length");
    [&[number << 3 | 2, len][..], bytes].concat()
}

fn document(object: &[u8]) -> Vec<u8> {
    [b"k8s\0", &put(2, object)[..]].concat()
}

fn metadata(name: &str, version: &str) -> Vec<u8> {
    put(1, &[put(1, name.as_bytes()), put(3, b"ns"), put(6, version.as_bytes())].concat())
}

#[test]
fn event_decodes_equally_from_json_and_protobuf() {
    let json = br#"{"type":"MODIFIED","object":{"kind":"ConfigMap",
        "metadata":{"name":"a","namespace":"ns","resourceVersion":"7"},"data":{"k":"v"}}}"#;
    let object = [metadata("a", "7"), put(2, &[put(1, b"k"), put(2, b"v")].concat())].concat();
    let frame = [put(1, b"MODIFIED"), put(2, &put(1, &document(&object)))].concat();
    let (json, protobuf) = (
        event(RecordedEncoding::Json, json).expect("JSON"),
        event(RecordedEncoding::Protobuf, &frame).expect("protobuf"),
    );
    for read in [&json, &protobuf] {
        assert_eq!((read.kind, read.item.key.as_str(), read.item.version), (RecordedEventType::Modified, "ns/a", 7));
        assert!(read.item.bytes.is_some());
    }
    assert!(json.item.digest.is_some() && protobuf.item.digest.is_none());
    assert_eq!(protobuf.item.bytes, Some(ContentDigest::of_bytes(&document(&object))));
}

#[test]
fn initial_events_end_is_distinguished_from_plain_bookmark() {
    let annotated = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9",
        "annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
    let plain = br#"{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}"#;
    let entry = put(12, &[put(1, INITIAL_END.as_bytes()), put(2, b"true")].concat());
    let object = |entry: &[u8]| document(&put(1, &[&put(6, b"9")[..], entry].concat()));
    let frame = |entry: &[u8]| [put(1, b"BOOKMARK"), put(2, &put(1, &object(entry)))].concat();
    for (encoding, frame, initial_end) in [
        (RecordedEncoding::Json, annotated.to_vec(), true),
        (RecordedEncoding::Json, plain.to_vec(), false),
        (RecordedEncoding::Protobuf, frame(&entry), true),
        (RecordedEncoding::Protobuf, frame(&[]), false),
    ] {
        let read = event(encoding, &frame).expect("a bookmark");
        assert_eq!((read.kind, read.item.version, read.initial_end), (RecordedEventType::Bookmark, 9, initial_end));
    }
}

#[test]
fn list_decodes_with_continue_token_and_items_in_order() {
    let body = br#"{"kind":"ConfigMapList",
        "metadata":{"resourceVersion":"9","continue":"abc","remainingItemCount":4},
        "items":[{"metadata":{"name":"a","namespace":"ns","resourceVersion":"7"}},
                 {"metadata":{"name":"b","namespace":"ns","resourceVersion":"8"}}]}"#;
    let about = put(1, &[put(2, b"9"), put(3, b"abc"), vec![4 << 3, 4]].concat());
    let items = [("a", "7"), ("b", "8")].map(|(name, version)| put(2, &metadata(name, version)));
    let protobuf = document(&[about, items.concat()].concat());
    for (encoding, body) in [(RecordedEncoding::Json, &body[..]), (RecordedEncoding::Protobuf, &protobuf)] {
        let read = list(encoding, body).expect("a list");
        assert_eq!((read.version, read.token.as_deref(), read.remaining), (Some(9), Some("abc"), Some(4)));
        let items: Vec<_> = read.items.iter().map(|item| (item.key.as_str(), item.version)).collect();
        assert_eq!(items, [("ns/a", 7), ("ns/b", 8)]);
    }
    let empty = list(RecordedEncoding::Json, br#"{"metadata":{"resourceVersion":"3"},"items":null}"#).expect("a list");
    assert_eq!((empty.version, empty.items.len(), empty.token), (Some(3), 0, None));
}

#[test]
fn status_decodes_reason_and_first_cause_in_both_encodings() {
    let json = br#"{"kind":"Status","code":504,"reason":"Timeout","message":"Too large",
        "details":{"causes":[{"reason":"ResourceVersionTooLarge"}],"retryAfterSeconds":1}}"#;
    let details = [put(4, &put(1, b"ResourceVersionTooLarge")), vec![5 << 3, 1]].concat();
    let object = [put(3, b"Too large"), put(4, b"Timeout"), put(5, &details), vec![6 << 3, 0xf8, 0x03]].concat();
    for body in [&json[..], &document(&object)] {
        let (status, retry_after) = status(body);
        assert_eq!((status.code, status.reason.as_str(), retry_after), (504, "Timeout", 1));
        assert_eq!((status.message.as_str(), status.cause.as_str()), ("Too large", "ResourceVersionTooLarge"));
    }
    assert_eq!(status(b"teapot\n").0.message, "teapot");
}

#[test]
fn malformed_frame_is_not_decoded_as_event() {
    let none = [&b""[..], b"{}", br#"{"type":"ADDED","object":{}}"#, br#"{"type":"SHOUTED","object":{}}"#, b"\xff\xff"];
    for frame in none {
        assert_eq!(event(RecordedEncoding::Json, frame), None);
        assert_eq!(event(RecordedEncoding::Protobuf, frame), None);
    }
}
