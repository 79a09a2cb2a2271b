use super::envelope::pods;
use super::fixtures::{FEEDS, bytes, entry, event, number, reader, text, unknown};
use super::reader::bookmark;
use crate::wire::{BookmarkTemplate, FeedEncoding, FrameEnvelope, JsonLayout, WatchItem, WireError};
use kubeapi::ResourceVersion;

#[test]
fn bookmark_template_reproduces_plain_and_initial_events_end() {
    for (encoding, shape) in FEEDS {
        for seen in [false, true] {
            let template = template(encoding, shape, bookmark(encoding, shape, seen));
            for end in [false, true] {
                assert_eq!(
                    template.frame(ResourceVersion(77), end),
                    bookmark(encoding, shape, end),
                    "{encoding} {seen} {end}"
                );
            }
        }
    }
}

#[test]
fn bookmark_template_accepts_any_version() {
    for (encoding, shape) in FEEDS {
        let template = template(encoding, shape, bookmark(encoding, shape, false));
        for rv in [1, 9, 100, 4_711_000, u64::MAX] {
            for end in [false, true] {
                let item = reader(encoding, shape).watch_event(template.frame(ResourceVersion(rv), end));
                let Ok(WatchItem::Bookmark { rv: read, initial_events_end, .. }) = item else { panic!("{item:?}") };
                assert_eq!((read.0, initial_events_end), (rv, end));
            }
        }
    }
}

#[test]
fn bookmark_template_keeps_fields_of_older_servers() {
    let json = |annotations: &str| {
        let metadata = format!(r#"{{"resourceVersion":"5","creationTimestamp":null{annotations}}}"#);
        let spec = r#""spec":{"containers":null},"status":{}"#;
        format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata},{spec}}}"#)
    };
    let ended = json(r#","annotations":{"k8s.io/initial-events-end":"true"}"#);
    assert_siblings(FeedEncoding::Json, JsonLayout::BuiltIn, json("").as_bytes(), ended.as_bytes());

    let json = |annotations: &str| {
        let metadata = format!(r#"{{{annotations}"creationTimestamp":null,"resourceVersion":"5"}}"#);
        format!(r#"{{"apiVersion":"v1","kind":"Pod","metadata":{metadata}}}"#)
    };
    let ended = json(r#""annotations":{"k8s.io/initial-events-end":"true"},"#);
    assert_siblings(FeedEncoding::Json, JsonLayout::Custom, json("").as_bytes(), ended.as_bytes());
}

/// The conversion of a `DaemonSet` always sets one.
#[test]
fn bookmark_template_keeps_other_annotations_in_order() {
    let json = |annotations: &str| {
        let metadata = format!(r#"{{"resourceVersion":"5","annotations":{{{annotations}}},"finalizers":[]}}"#);
        format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata}}}"#)
    };
    let (before, after, ours) =
        (r#""deprecated.daemonset":"0""#, r#""zone":"<b>\n""#, r#""k8s.io/initial-events-end":"true""#);
    let (plain, ended) = (json(&format!("{before},{after}")), json(&format!("{before},{ours},{after}")));
    assert_siblings(FeedEncoding::Json, JsonLayout::BuiltIn, plain.as_bytes(), ended.as_bytes());

    let protobuf = |ours: &[u8]| {
        let metadata = [&text(6, "5"), &number(7, 0), &entry(11, "zz", ""), &entry(12, "deprecated.daemonset", "0")];
        let metadata = [metadata.map(Vec::as_slice).concat(), ours.to_vec(), entry(12, "zone", "b"), text(14, "f")];
        unknown("v1", "Pod", &bytes(1, &metadata.concat()))
    };
    let ours = entry(12, "k8s.io/initial-events-end", "true");
    assert_siblings(FeedEncoding::Protobuf, JsonLayout::BuiltIn, &protobuf(&[]), &protobuf(&ours));
}

#[test]
fn initial_events_end_annotation_follows_go_field_order() {
    let json = |annotations: &str| {
        let before = r#""name":"","resourceVersion":"5","labels":{"a":"b"}"#;
        let after = r#""ownerReferences":[],"managedFields":null"#;
        format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{{before}{annotations},{after}}}}}"#)
    };
    let ended = json(r#","annotations":{"k8s.io/initial-events-end":"true"}"#);
    assert_siblings(FeedEncoding::Json, JsonLayout::BuiltIn, json("").as_bytes(), ended.as_bytes());
}

#[test]
fn minimal_bookmark_is_used_before_upstream_sends_one() {
    for (encoding, shape) in FEEDS {
        let template = BookmarkTemplate::minimal(&pods(encoding, shape));
        for end in [false, true] {
            let frame = template.frame(ResourceVersion(1234), end);
            let Ok(WatchItem::Bookmark { rv, initial_events_end, object }) = reader(encoding, shape).watch_event(frame)
            else {
                panic!("{encoding} {shape:?}: not a bookmark")
            };
            assert_eq!((rv.0, initial_events_end, object.key.as_str()), (1234, end, ""));
        }
    }
    let config_map = FrameEnvelope::new(FeedEncoding::Json, "v1", "ConfigMap", JsonLayout::BuiltIn);
    let frame = BookmarkTemplate::minimal(&config_map).frame(ResourceVersion(9), true);
    let metadata = r#"{"resourceVersion":"9","annotations":{"k8s.io/initial-events-end":"true"}}"#;
    let object = format!(r#"{{"kind":"ConfigMap","apiVersion":"v1","metadata":{metadata}}}"#);
    assert_eq!(frame, event(FeedEncoding::Json, "BOOKMARK", object.as_bytes()));
}

#[test]
fn bookmark_template_rejects_another_encoding() {
    let (json, protobuf) = ((FeedEncoding::Json, JsonLayout::BuiltIn), (FeedEncoding::Protobuf, JsonLayout::BuiltIn));
    for (from, to) in [(json, protobuf), (protobuf, json)] {
        let Ok(WatchItem::Bookmark { object, .. }) = reader(from.0, from.1).watch_event(bookmark(from.0, from.1, true))
        else {
            panic!("not a bookmark")
        };
        let refused = BookmarkTemplate::from_object(&pods(to.0, to.1), &object);
        assert!(matches!(refused, Err(WireError::WrongEncoding)));
    }
}

/// Checks that either of the two yields both.
fn assert_siblings(encoding: FeedEncoding, shape: JsonLayout, plain: &[u8], ended: &[u8]) {
    let (plain, ended) = (event(encoding, "BOOKMARK", plain), event(encoding, "BOOKMARK", ended));
    for seen in [&plain, &ended] {
        let template = template(encoding, shape, seen.clone());
        assert_eq!(template.frame(ResourceVersion(5), false), plain);
        assert_eq!(template.frame(ResourceVersion(5), true), ended);
    }
}

fn template(encoding: FeedEncoding, shape: JsonLayout, frame: bytes::Bytes) -> BookmarkTemplate {
    match reader(encoding, shape).watch_event(frame) {
        Ok(WatchItem::Bookmark { object, .. }) => {
            BookmarkTemplate::from_object(&pods(encoding, shape), &object).expect("well-formed")
        }
        other => panic!("{other:?} is not a bookmark"),
    }
}
