use super::*;

fn put(number: u8, payload: &[u8]) -> Vec<u8> {
    assert!(payload.len() < 128 * 128);
    let mut out = vec![number << 3 | 2];
    if payload.len() >= 128 {
        out.push(u8::try_from(payload.len() & 0x7f).unwrap() | 0x80);
        out.push(u8::try_from(payload.len() >> 7).unwrap());
    } else {
        out.push(u8::try_from(payload.len()).unwrap());
    }
    out.extend_from_slice(payload);
    out
}

/// Returns a pod with the annotation, padded. Its managed fields name the annotation before it occurs.
fn pod() -> Vec<u8> {
    let entry = [put(1, WRITE_TIME.as_bytes()), put(2, b"777")].concat();
    let meta = [
        put(1, b"a-pod"),
        put(3, b"a-namespace"),
        put(5, b"uid"),
        put(6, b"42"),
        vec![7 << 3, 3],
        put(12, &[put(1, b"other"), put(2, &[b'x'; 300])].concat()),
        put(12, &entry),
        put(17, format!("f:{WRITE_TIME}").as_bytes()),
    ];
    [put(1, &meta.concat()), put(2, b"spec")].concat()
}

/// Returns a watch event in `application/vnd.kubernetes.protobuf`, without its length prefix: a `WatchEvent` with the
/// object as `k8s\0` and a `runtime.Unknown`.
fn protobuf(kind: &str, body: &[u8]) -> Vec<u8> {
    let type_meta = [put(1, b"v1"), put(2, b"Pod")].concat();
    let unknown = [&b"k8s\0"[..], &put(1, &type_meta), &put(2, body), &put(3, b""), &put(4, b"")].concat();
    [put(1, kind.as_bytes()), put(2, &put(1, &unknown))].concat()
}

#[test]
fn json_line_yields_event_type_version_and_write_time() {
    let search = FrameClassifier::new(false);
    let line = concat!(
        r#"{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"42","#,
        r#""annotations":{"kube-fanout.io/written-at-ns":"777"}}}}"#
    )
    .as_bytes();
    assert_eq!(search.classify(line), ClassifiedFrame::Written);
    assert_eq!((search.version(line), search.written_at_ns(line)), (Some(42), Some(777)));
    assert_eq!(search.classify(br#"{"type":"DELETED","object":{}}"#), ClassifiedFrame::Deleted);
    let end = br#"{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
    assert_eq!(search.classify(end), ClassifiedFrame::Bookmark { initial_end: true });
    assert_eq!(search.classify(br#"{"type":"ERROR","object":{"code":410}}"#), ClassifiedFrame::Expired);
    assert_eq!(search.classify(br#"{"type":"ERROR","object":{"code":500}}"#), ClassifiedFrame::Error);
    assert_eq!(search.classify(b"oops"), ClassifiedFrame::Unknown);
    let list = br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"99"},"items":["#;
    assert_eq!(search.list_version(list), Some(99));
}

#[test]
fn table_row_yields_event_type_version_and_write_time() {
    let row = r#"{"cells":["a"],"object":{"metadata":{"resourceVersion":"42","annotations":{"KEY":"777"}}}}"#;
    let row = row.replace("KEY", WRITE_TIME);
    let line = format!(
        r#"{{"type":"ADDED","object":{{"kind":"Table","metadata":{{"resourceVersion":"42"}},"rows":[{row}]}}}}"#
    );
    let search = FrameClassifier::new(false);
    assert_eq!(search.classify(line.as_bytes()), ClassifiedFrame::Written);
    assert_eq!((search.version(line.as_bytes()), search.written_at_ns(line.as_bytes())), (Some(42), Some(777)));
}

#[test]
fn protobuf_frame_yields_event_type_version_and_write_time() {
    let search = FrameClassifier::new(true);
    let frame = protobuf("MODIFIED", &pod());
    assert_eq!(search.classify(&frame), ClassifiedFrame::Written);
    assert_eq!((search.version(&frame), search.written_at_ns(&frame)), (Some(42), Some(777)));
    assert_eq!(search.classify(&protobuf("DELETED", &pod())), ClassifiedFrame::Deleted);
    let entry = [put(1, b"k8s.io/initial-events-end"), put(2, b"true")].concat();
    let bookmark = protobuf("BOOKMARK", &put(1, &[put(6, b"43"), put(12, &entry)].concat()));
    assert_eq!(search.classify(&bookmark), ClassifiedFrame::Bookmark { initial_end: true });
    assert_eq!(search.version(&bookmark), Some(43));
    let gone = protobuf("ERROR", &[put(4, b"Expired"), vec![6 << 3, 0x9a, 0x03]].concat());
    assert_eq!(search.classify(&gone), ClassifiedFrame::Expired);
}

#[test]
fn protobuf_list_version_is_found_in_the_first_bytes() {
    let items: Vec<u8> = (0..20).flat_map(|_| put(2, &pod())).collect();
    let list = [put(1, &[put(1, b""), put(2, b"99")].concat()), items].concat();
    let whole = [&b"k8s\0"[..], &put(1, b"type"), &put(2, &list)].concat();
    assert_eq!(FrameClassifier::new(true).list_version(&whole[..128]), Some(99));
}

#[test]
fn truncated_frames_never_panic() {
    let frame = protobuf("ADDED", &pod());
    for is_protobuf in [true, false] {
        let search = FrameClassifier::new(is_protobuf);
        for cut in 0..frame.len() {
            let bytes = &frame[..cut];
            let _ = (search.classify(bytes), search.version(bytes), search.written_at_ns(bytes));
            let bytes = &frame[cut..];
            let _ = (search.classify(bytes), search.version(bytes), search.list_version(bytes));
        }
    }
}
