use bytes::{Bytes, BytesMut};

use super::fixtures::{FEEDS, Pod, bytes, number, reader, text, unknown};
use super::reader::{change, page_of};
use crate::wire::{FeedEncoding, FrameEnvelope, JsonLayout, ListMeta, WatchItem, websocket_payload};
use kubeapi::{EventType, ResourceVersion};

#[test]
fn watch_frames_are_reproduced_from_bodies() {
    for (encoding, shape) in FEEDS {
        let envelope = pods(encoding, shape);
        // Lengths on both sides of every varint boundary that an object reaches.
        for padding in [0, 1, 40, 60, 61, 62, 63, 64, 100, 127, 128, 16_000, 16_384, 17_000, 2_097_152] {
            for event_type in [EventType::Added, EventType::Modified, EventType::Deleted] {
                let pod = Pod { padding, ..Pod::default() };
                let (_, object, frame) = change(encoding, shape, &pod, event_type.as_str());
                assert_eq!(envelope.frame(event_type, object.body()), frame);
                assert_eq!(envelope.frame_len(event_type, object.body().len()), frame.len());
            }
        }
    }
}

#[test]
fn get_responses_are_reproduced_from_bodies() {
    for (encoding, shape) in FEEDS {
        let mut document = Pod::default().document(encoding, shape);
        if encoding == FeedEncoding::Json {
            document.push(b'\n');
        }
        let object = reader(encoding, shape).object(&document).expect("well-formed");
        let envelope = pods(encoding, shape);
        assert_eq!(envelope.object(object.body()), document);
        assert_eq!(envelope.object_len(object.body().len()), document.len());
        let pieces = envelope.object_pieces(object.body().clone());
        assert_eq!(pieces.concat(), document);
        assert_eq!(pieces[1].as_ptr(), object.body().as_ptr(), "it is not copied");
    }
}

#[test]
fn lists_are_reproduced_from_bodies() {
    for (encoding, shape) in FEEDS {
        for pods in [0, 1, 2, 300] {
            let pods: Vec<_> = (0..pods).map(|at| Pod { padding: 7 * at, ..Pod::default() }).collect();
            let page = page_of(encoding, shape, &pods);
            let list = reader(encoding, shape).list(&page).expect("well-formed");
            let meta = ListMeta {
                resource_version: list.resource_version,
                continue_token: list.continue_token,
                remaining: list.remaining.map(|count| i64::try_from(count).expect("few")),
                shard: None,
            };
            let bodies: Vec<_> = list.items.iter().map(|object| object.body().clone()).collect();
            assert_eq!(rendered(&pods_of(encoding, shape, &list.kind), &meta, &bodies), page);
        }
    }
}

#[test]
fn list_metadata_renders_like_the_apiserver() {
    let token = |token: &str, remaining| ListMeta {
        resource_version: ResourceVersion(7),
        continue_token: token.to_owned(),
        remaining,
        shard: None,
    };
    let shard = || ListMeta { shard: Some("s".to_owned()), ..token("abc", None) };
    for (shape, meta, text) in [
        (
            JsonLayout::BuiltIn,
            token("", None),
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}"#,
        ),
        (
            JsonLayout::BuiltIn,
            token("abc", Some(12)),
            concat!(
                r#"{"kind":"PodList","apiVersion":"v1","metadata":"#,
                r#"{"resourceVersion":"7","continue":"abc","remainingItemCount":12},"items":[]}"#
            ),
        ),
        (
            JsonLayout::BuiltIn,
            shard(),
            concat!(
                r#"{"kind":"PodList","apiVersion":"v1","metadata":"#,
                r#"{"resourceVersion":"7","continue":"abc","shardInfo":{"selector":"s"}},"items":[]}"#
            ),
        ),
        (
            JsonLayout::Custom,
            shard(),
            concat!(
                r#"{"apiVersion":"v1","items":[],"kind":"PodList","metadata":"#,
                r#"{"continue":"abc","resourceVersion":"7"}}"#
            ),
        ),
        (
            JsonLayout::Custom,
            token("", None),
            r#"{"apiVersion":"v1","items":[],"kind":"PodList","metadata":{"continue":"","resourceVersion":"7"}}"#,
        ),
        (
            JsonLayout::Custom,
            token("abc", Some(0)),
            concat!(
                r#"{"apiVersion":"v1","items":[],"kind":"PodList","metadata":"#,
                r#"{"continue":"abc","remainingItemCount":0,"resourceVersion":"7"}}"#
            ),
        ),
    ] {
        assert_eq!(rendered(&pods(FeedEncoding::Json, shape), &meta, &[]), format!("{text}\n").as_bytes());
    }
    let fields = [text(1, ""), text(2, "7"), text(3, "abc"), bytes(5, &text(1, "s"))];
    let list = unknown("v1", "PodList", &bytes(1, &fields.concat()));
    assert_eq!(rendered(&pods(FeedEncoding::Protobuf, JsonLayout::BuiltIn), &shard(), &[]), list);
}

#[test]
fn list_uses_the_list_kind_of_the_crd() {
    let envelope = pods_of(FeedEncoding::Json, JsonLayout::Custom, "PodCollection");
    let meta = ListMeta { resource_version: ResourceVersion(7), ..ListMeta::default() };
    let list = rendered(&envelope, &meta, &[]);
    assert!(list.windows(23).any(|window| window == br#""kind":"PodCollection","#.as_slice()));
}

#[test]
fn error_frame_carries_status_in_the_feed_encoding() {
    let json: &[u8] =
        br#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","reason":"Expired","code":410}"#;
    let protobuf =
        unknown("v1", "Status", &[bytes(1, &[]), text(2, "Failure"), text(4, "Expired"), number(6, 410)].concat());
    for (encoding, shape) in FEEDS {
        let frame = pods(encoding, shape).error_frame(json, &protobuf);
        let own = if encoding == FeedEncoding::Json { json } else { &protobuf };
        assert_eq!(frame, super::fixtures::event(encoding, "ERROR", own));
        let Ok(WatchItem::Error { status }) = reader(encoding, shape).watch_event(frame) else {
            panic!("not an error")
        };
        assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    }
}

#[test]
fn websocket_message_has_no_length_prefix() {
    for (encoding, shape) in FEEDS {
        let frame = Pod::default().event(encoding, shape, "ADDED");
        let skipped = if encoding == FeedEncoding::Json { 0 } else { 4 };
        assert_eq!(websocket_payload(encoding, &frame), frame[skipped..]);
        assert!(websocket_payload(encoding, &Bytes::new()).is_empty());
    }
}

#[test]
fn quotes_in_kind_names_are_escaped() {
    let envelope = FrameEnvelope::new(FeedEncoding::Json, "v1", "a\"b", JsonLayout::BuiltIn);
    let frame = envelope.frame(EventType::Added, br#""metadata":{}}"#);
    assert!(serde_json::from_slice::<serde_json::Value>(&frame).is_ok());
}

pub(super) fn pods(encoding: FeedEncoding, shape: JsonLayout) -> FrameEnvelope {
    FrameEnvelope::new(encoding, "v1", "Pod", shape)
}

fn pods_of(encoding: FeedEncoding, shape: JsonLayout, list_kind: &str) -> FrameEnvelope {
    pods(encoding, shape).with_list_kind(list_kind)
}

fn rendered(envelope: &FrameEnvelope, meta: &ListMeta, bodies: &[Bytes]) -> Vec<u8> {
    let list = envelope.list(meta);
    let items_len = bodies.iter().map(|body| list.item_len(body.len())).sum();
    let mut out = BytesMut::new();
    out.extend_from_slice(&list.head(bodies.len(), items_len));
    for (at, body) in bodies.iter().enumerate() {
        list.put_item(at == 0, body, &mut out);
    }
    out.extend_from_slice(&list.tail());
    assert_eq!(out.len(), list.content_length(bodies.len(), items_len));
    out.to_vec()
}

/// Builds a LIST response from R-JSON-3, R-JSON-4 and R-PROTO-2, without the code under test.
pub(super) fn list_by_hand(encoding: FeedEncoding, shape: JsonLayout, meta: &ListMeta, bodies: &[Vec<u8>]) -> Bytes {
    let ListMeta { resource_version: rv, continue_token: token, remaining, shard: _ } = meta;
    let remaining = remaining.expect("set in these tests");
    let joined = |brace: &str| {
        let item = |body: &Vec<u8>| format!("{brace}{}", String::from_utf8_lossy(body));
        bodies.iter().map(item).collect::<Vec<_>>().join(",")
    };
    match (encoding, shape) {
        (FeedEncoding::Json | FeedEncoding::Table, JsonLayout::BuiltIn) => {
            let (version, token) = (format!(r#""resourceVersion":"{rv}""#), format!(r#""continue":"{token}""#));
            let meta = format!(r#"{{{version},{token},"remainingItemCount":{remaining}}}"#);
            let items = joined("{");
            format!("{{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{meta},\"items\":[{items}]}}\n").into()
        }
        (FeedEncoding::Json | FeedEncoding::Table, JsonLayout::Custom) => {
            let (version, token) = (format!(r#""resourceVersion":"{rv}""#), format!(r#""continue":"{token}""#));
            let meta = format!(r#"{{{token},"remainingItemCount":{remaining},{version}}}"#);
            let items = joined("");
            format!("{{\"apiVersion\":\"v1\",\"items\":[{items}],\"kind\":\"PodList\",\"metadata\":{meta}}}\n").into()
        }
        (FeedEncoding::Protobuf, _) => {
            let remaining = number(4, remaining.cast_unsigned());
            let fields = [text(1, ""), text(2, &rv.to_string()), text(3, token), remaining];
            let items: Vec<_> = bodies.iter().map(|body| bytes(2, body)).collect();
            unknown("v1", "PodList", &[bytes(1, &fields.concat()), items.concat()].concat()).into()
        }
    }
}
