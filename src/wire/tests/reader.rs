use bytes::Bytes;

use super::fixtures::{FEEDS, Pod, bytes, event, fields_of, keys, number, reader, text, unknown};
use crate::wire::{FeedEncoding, JsonLayout, ListMeta, ObjectReader, ObjectRevision, WatchItem, WireError};
use kubeapi::{EventType, ResourceVersion, SelectableFieldTable};

#[test]
fn watch_event_yields_key_version_labels_and_fields() {
    for (encoding, shape) in FEEDS {
        let (event_type, object, frame) = change(encoding, shape, &Pod::default(), "MODIFIED");
        assert_eq!(event_type, EventType::Modified);
        assert_eq!(object.key.as_str(), "default/web-1");
        assert_eq!(object.rv, ResourceVersion(4711));
        assert_eq!(object.encoding(), encoding);
        assert_eq!(object.attributes.label("app"), Some("web"));
        assert_eq!(object.attributes.label("tier"), Some("front"));
        assert_eq!(object.attributes.label("absent"), None);
        assert_eq!(fields_of(&object), ["node-7", "false", "10.0.0.1", "node-7", "0"]);
        assert_eq!(frame, Pod::default().event(encoding, shape, "MODIFIED"));
    }
}

#[test]
fn object_body_is_a_slice_of_its_frame() {
    for (encoding, shape) in FEEDS {
        let (_, object, frame) = change(encoding, shape, &Pod::default(), "ADDED");
        let range = frame.as_ptr_range();
        assert!(range.contains(&object.body().as_ptr()));
        assert_eq!(*object.body(), Pod::default().body(encoding, shape));
        assert!(object.size() >= frame.len(), "all of the frame is held");
    }
}

#[test]
fn list_items_have_the_same_bodies_as_watch_events() {
    for (encoding, shape) in FEEDS {
        let pods = [Pod::default(), Pod { name: "web-2", rv: 9, padding: 3000, ..Pod::default() }];
        let page = reader(encoding, shape).list(&page_of(encoding, shape, &pods)).expect("well-formed");
        assert_eq!(page.resource_version, ResourceVersion(5000));
        assert_eq!(page.continue_token, "token");
        assert_eq!((page.kind.as_str(), page.api_version.as_str()), ("PodList", "v1"));
        assert_eq!(keys(&page), ["default/web-1", "default/web-2"]);
        for (item, pod) in page.items.iter().zip(&pods) {
            let (_, watched, _) = change(encoding, shape, pod, "ADDED");
            assert_eq!(item.body(), watched.body());
            assert_eq!(item.attributes, watched.attributes);
            assert_eq!((&item.key, item.rv), (&watched.key, watched.rv));
            assert_eq!(
                item.with_resource_version(ResourceVersion(1)),
                watched.with_resource_version(ResourceVersion(1))
            );
            let body = item.body().clone();
            let got = reader(encoding, shape).object(&pod.document(encoding, shape)).expect("well-formed");
            assert_eq!(got.body(), &body);
        }
    }
}

#[test]
fn list_item_does_not_keep_its_page_alive() {
    for (encoding, shape) in FEEDS {
        let page = page_of(encoding, shape, &[Pod::default()]);
        let range = page.as_ptr_range();
        let items = reader(encoding, shape).list(&page).expect("well-formed").items;
        assert!(!range.contains(&items[0].body().as_ptr()));
    }
}

#[test]
fn absent_fields_use_fallbacks_and_defaults() {
    for (encoding, shape) in FEEDS {
        let pod = Pod { node: "", host_network: true, ips: vec![], labels: vec![], ..Pod::default() };
        let (_, object, _) = change(encoding, shape, &pod, "ADDED");
        assert_eq!(fields_of(&object), ["", "true", "", "Running", "0"]);
        assert_eq!(object.attributes.labels().len(), 0);
    }
}

#[test]
fn only_the_first_element_of_a_repeated_field_is_used() {
    for (encoding, shape) in FEEDS {
        let pod = Pod { ips: vec!["", "10.0.0.2"], ..Pod::default() };
        assert_eq!(fields_of(&change(encoding, shape, &pod, "ADDED").1)[2], "");
    }
}

#[test]
fn cluster_scoped_objects_have_keys_without_a_slash() {
    for (encoding, shape) in FEEDS {
        let pod = Pod { namespace: "", ..Pod::default() };
        assert_eq!(change(encoding, shape, &pod, "ADDED").1.key.as_str(), "web-1");
    }
}

#[test]
fn labels_are_sorted_and_duplicates_rejected() {
    for (encoding, shape) in FEEDS {
        let pod = Pod { labels: vec![("z", "1"), ("a", "2")], ..Pod::default() };
        let (_, object, _) = change(encoding, shape, &pod, "ADDED");
        assert_eq!(object.attributes.label("a"), Some("2"));
        assert_eq!(object.attributes.label("z"), Some("1"));
        let twice = Pod { labels: vec![("a", "1"), ("a", "2")], ..Pod::default() };
        assert!(matches!(watch(encoding, shape, &twice, "ADDED"), Err(WireError::Layout(_))));
    }
}

#[test]
fn escapes_in_values_are_decoded() {
    let (encoding, shape) = (FeedEncoding::Json, JsonLayout::BuiltIn);
    let pod = Pod { labels: vec![("a\\u003cb", "\\\"x\\\"")], node: "n\\u0026", ..Pod::default() };
    let (_, object, _) = change(encoding, shape, &pod, "ADDED");
    assert_eq!(object.attributes.label("a<b"), Some("\"x\""));
    assert_eq!(fields_of(&object)[0], "n&");
}

#[test]
fn bookmark_has_an_empty_key() {
    for (encoding, shape) in FEEDS {
        for end in [false, true] {
            let frame = bookmark(encoding, shape, end);
            let Ok(WatchItem::Bookmark { object, rv, initial_events_end }) = reader(encoding, shape).watch_event(frame)
            else {
                panic!("{encoding} {shape:?}: not a bookmark")
            };
            assert_eq!((rv, object.rv), (ResourceVersion(77), ResourceVersion(77)));
            assert_eq!(object.key.as_str(), "");
            assert_eq!(initial_events_end, end);
        }
    }
}

#[test]
fn uid_is_read_from_every_encoding() {
    for (encoding, shape) in FEEDS {
        let (_, object, _) = change(encoding, shape, &Pod::default(), "ADDED");
        assert_eq!(object.attributes.uid_hash(), kubeapi::shard_hash(b"u-1"), "{encoding}");
    }
}

#[test]
fn error_event_keeps_its_status() {
    let json = concat!(
        r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old resource version: "#,
        r#"1 (2)","reason":"Expired","details":{"retryAfterSeconds":3},"code":410}"#
    );
    let fields = [
        bytes(1, &[]),
        text(2, "Failure"),
        text(3, "too old resource version: 1 (2)"),
        text(4, "Expired"),
        bytes(5, &[text(1, ""), number(5, 3)].concat()),
        number(6, 410),
    ];
    let protobuf = unknown("v1", "Status", &fields.concat());
    for (encoding, shape) in FEEDS {
        let status = if encoding == FeedEncoding::Json { json.as_bytes() } else { &protobuf };
        // A reader that expects pods still accepts a Status here.
        let reader = reader(encoding, shape).with_kind("v1", "Pod");
        let Ok(WatchItem::Error { status }) = reader.watch_event(event(encoding, "ERROR", status)) else {
            panic!("{encoding}: not an error")
        };
        assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
        assert_eq!(status.message, "too old resource version: 1 (2)");
        assert_eq!(status.retry_after_seconds(), Some(3));
    }
}

#[test]
fn error_event_with_oversized_status_is_rejected() {
    let json = |causes: usize| {
        let causes = vec!["{}"; causes].join(",");
        format!(r#"{{"kind":"Status","apiVersion":"v1","details":{{"causes":[{causes}]}},"code":410}}"#).into_bytes()
    };
    let protobuf = |causes: usize| {
        let details = bytes(4, &[]).repeat(causes);
        unknown("v1", "Status", &[bytes(5, &details), number(6, 410)].concat())
    };
    for (encoding, shape) in FEEDS {
        let read = |causes: usize| {
            let status = if encoding == FeedEncoding::Json { json(causes) } else { protobuf(causes) };
            reader(encoding, shape).watch_event(event(encoding, "ERROR", &status))
        };
        let Ok(WatchItem::Error { status }) = read(1_000) else { panic!("{encoding}: not an error") };
        assert_eq!((status.code, status.details.clone().unwrap_or_default().causes.len()), (410, 1_000), "{encoding}");
        assert!(matches!(read(1 << 20), Err(WireError::FrameTooLarge { .. })), "{encoding}");
    }
}

#[test]
fn unexpected_kind_is_rejected() {
    for (encoding, shape) in FEEDS {
        let frame = Pod::default().event(encoding, shape, "ADDED");
        let read = |version, kind| reader(encoding, shape).with_kind(version, kind).watch_event(frame.clone());
        assert!(read("v1", "Pod").is_ok());
        assert!(matches!(read("v1", "Node"), Err(WireError::WrongKind)));
        assert!(matches!(read("v2", "Pod"), Err(WireError::WrongKind)));
    }
}

#[test]
fn null_items_are_read_as_an_empty_list() {
    let reader = reader(FeedEncoding::Json, JsonLayout::BuiltIn);
    for items in ["[]", "null"] {
        let page = format!(
            r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"8"}},"items":{items}}}{}"#,
            "\n"
        );
        let page = reader.list(&page.into()).expect("well-formed");
        assert_eq!((page.items.len(), page.resource_version), (0, ResourceVersion(8)));
    }
    let absent: &[u8] = br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"8"}}"#;
    assert!(matches!(reader.list(&Bytes::from_static(absent)), Err(WireError::Json(_))));
}

#[test]
fn custom_resource_fields_accept_any_scalar_type() {
    use kubeapi::{FieldValueKind, SelectableFieldSpec};
    let field = |key: &str| SelectableFieldSpec {
        key: format!("spec.{key}"),
        json: vec![vec!["spec".to_owned(), key.to_owned()]],
        proto: vec![],
        kind: FieldValueKind::Any,
    };
    let fields = ["text", "bool", "int", "big", "minus", "null", "object", "list", "absent"].map(field).into();
    let reader = ObjectReader::new(
        FeedEncoding::Json,
        JsonLayout::Custom,
        SelectableFieldTable { fields, ..SelectableFieldTable::default() }.into(),
    );
    let object = concat!(
        r#"{"apiVersion":"g/v1","kind":"Thing","metadata":{"name":"t","resourceVersion":"1"},"#,
        r#""spec":{"absent2":1,"big":18446744073709551615,"bool":true,"int":8,"list":[1],"minus":-3,"null":null,"#,
        r#""object":{"a":1},"text":"x"}}"#
    );
    let object = reader.object(object.as_bytes()).expect("well-formed");
    assert_eq!(fields_of(&object), ["x", "true", "8", "18446744073709551615", "-3", "", "", "", ""]);
}

pub(super) fn page_of(encoding: FeedEncoding, shape: JsonLayout, pods: &[Pod]) -> Bytes {
    let meta = ListMeta {
        resource_version: ResourceVersion(5000),
        continue_token: "token".to_owned(),
        remaining: Some(pods.len().try_into().expect("few")),
        shard: None,
    };
    let documents: Vec<_> = pods.iter().map(|pod| pod.body(encoding, shape)).collect();
    super::envelope::list_by_hand(encoding, shape, &meta, &documents)
}

pub(super) fn watch(
    encoding: FeedEncoding,
    shape: JsonLayout,
    pod: &Pod,
    event_type: &str,
) -> Result<WatchItem, WireError> {
    reader(encoding, shape).watch_event(pod.event(encoding, shape, event_type))
}

pub(super) fn change(
    encoding: FeedEncoding,
    shape: JsonLayout,
    pod: &Pod,
    event_type: &str,
) -> (EventType, ObjectRevision, Bytes) {
    match watch(encoding, shape, pod, event_type) {
        Ok(WatchItem::Change { event_type, object, frame }) => (event_type, object, frame),
        other => panic!("{encoding} {shape:?}: {other:?} is not a change"),
    }
}

pub(super) fn bookmark(encoding: FeedEncoding, shape: JsonLayout, end: bool) -> Bytes {
    let document = match (encoding, shape) {
        (FeedEncoding::Json | FeedEncoding::Table, JsonLayout::BuiltIn) => {
            let annotations = if end { r#","annotations":{"k8s.io/initial-events-end":"true"}"# } else { "" };
            let metadata = format!(r#"{{"resourceVersion":"77"{annotations}}}"#);
            let spec = r#""spec":{"containers":null},"status":{}"#;
            format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata},{spec}}}"#).into_bytes()
        }
        (FeedEncoding::Json | FeedEncoding::Table, JsonLayout::Custom) => {
            let annotations = if end { r#""annotations":{"k8s.io/initial-events-end":"true"},"# } else { "" };
            format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{{{annotations}"resourceVersion":"77"}}}}"#)
                .into_bytes()
        }
        (FeedEncoding::Protobuf, _) => {
            let mut metadata = vec![text(1, ""), text(6, "77"), number(7, 0), bytes(8, &[])];
            if end {
                metadata.push(super::fixtures::entry(12, "k8s.io/initial-events-end", "true"));
            }
            unknown("v1", "Pod", &[bytes(1, &metadata.concat()), bytes(2, &text(3, "")), bytes(3, &[])].concat())
        }
    };
    event(encoding, "BOOKMARK", &document)
}
