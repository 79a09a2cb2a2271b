//! Input of a broken or malicious upstream. All of it causes errors, and none a panic.

use bytes::Bytes;
use proptest::prelude::*;

use super::fixtures::{FEEDS, Pod, bytes, entry, event, length_prefixed, pod_fields, reader, text, unknown};
use super::reader::page_of;
use crate::wire::bookmark::INITIAL_EVENTS_END;
use crate::wire::{BookmarkTemplate, FeedEncoding, FrameSplitter, JsonLayout, WatchItem, WireError};
use kubeapi::{FieldSelector, ResourceVersion};

type Check = fn(&WireError) -> bool;

#[test]
fn invalid_json_object_is_rejected() {
    let json: Check = |error| matches!(error, WireError::Json(_));
    let layout: Check = |error| matches!(error, WireError::Layout(_));
    let version: Check = |error| matches!(error, WireError::BadResourceVersion);
    let name: Check = |error| matches!(error, WireError::BadName);
    for (metadata, rest, check) in [
        (r#"{"name":"a","resourceVersion":"1"}"#, r#","x":NaN"#, json),
        (r#"{"name":"a","resourceVersion":"1"}"#, r#","x":01"#, json),
        (r#"{"name":"a","resourceVersion":"1"}"#, r#","x":"\q""#, json),
        (r#"{"name":"a","resourceVersion":"1"}"#, r#","x":tru"#, json),
        (r#"{"name":"a","resourceVersion":"1"}"#, r#","x""#, json),
        (r#"{"name":"a","resourceVersion":"1"}"#, ",", json),
        (r#"{"name":"a","resourceVersion":"1"}"#, r#"} {"a":1"#, json),
        (r#"{"name":"a","resourceVersion":"1"}"#, r#","metadata":{"name":"b"}"#, json),
        (r#"{"name":"a","resourceVersion":"1"}"#, r#","kind":"Pod""#, json),
        (r#"{"name":"a","resourceVersion":"1"}"#, r#","apiVersion":"v2""#, json),
        (r#"{"name":"a","resourceVersion":"1","resourceVersion":"2"}"#, "", json),
        (r#"{"name":"a","name":"b","resourceVersion":"1"}"#, "", json),
        (r#"{"name":"a","resourceVersion":"1"}"#, r#","spec":{"nodeName":"a"},"spec":{"nodeName":"b"}"#, json),
        (r#"{"name":"a","resourceVersion":"1"}"#, r#","spec":{"nodeName":"a","nodeName":"b"}"#, json),
        (r#"{"name":7,"resourceVersion":"1"}"#, "", json),
        (r#"{"name":"a","resourceVersion":1}"#, "", json),
        (r#"{"name":"a","resourceVersion":"1","labels":{"a":1}}"#, "", json),
        (r#"{"name":"a","resourceVersion":"1","labels":{"a":"1","a":"2"}}"#, "", layout),
        ("{\"name\":\"a\",\n\"resourceVersion\":\"1\"}", "", layout),
        (r#"{"name":"a"}"#, "", version),
        (r#"{"name":"a","resourceVersion":""}"#, "", version),
        (r#"{"name":"a","resourceVersion":"0"}"#, "", version),
        (r#"{"name":"a","resourceVersion":"01"}"#, "", version),
        (r#"{"name":"a","resourceVersion":"-1"}"#, "", version),
        (r#"{"name":"a","resourceVersion":"1.5"}"#, "", version),
        (r#"{"name":"a","resourceVersion":"abc"}"#, "", version),
        (r#"{"name":"a","resourceVersion":"18446744073709551616"}"#, "", version),
        (r#"{"name":"a","resourceVersion":"\u0031"}"#, "", version),
        (r#"{"name":"a","resourceVersion":null}"#, "", version),
        (r#"{"resourceVersion":"1"}"#, "", name),
        (r#"{"name":"","resourceVersion":"1"}"#, "", name),
        (r#"{"name":null,"resourceVersion":"1"}"#, "", name),
        (r#"{"name":"a/b","resourceVersion":"1"}"#, "", name),
        (r#"{"name":"a","namespace":"b/c","resourceVersion":"1"}"#, "", name),
        ("null", "", name),
        ("[]", "", name),
        ("7", "", name),
    ] {
        let object = format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata}{rest}}}"#);
        let reader = reader(FeedEncoding::Json, JsonLayout::BuiltIn);
        for refused in [
            reader.watch_event(event(FeedEncoding::Json, "ADDED", object.as_bytes())).err(),
            reader.object(object.as_bytes()).err(),
        ] {
            let error = refused.unwrap_or_else(|| panic!("accepted {object}"));
            assert!(check(&error), "{error:?} for {object}");
        }
        let page = pod_list(&format!(r#"{{"metadata":{metadata}{rest}}}"#));
        assert!(reader.list(&page).is_err(), "accepted {page:?}");
    }
}

#[test]
fn json_frame_with_unexpected_layout_is_rejected() {
    let good = Pod::default().document(FeedEncoding::Json, JsonLayout::BuiltIn);
    let good = String::from_utf8(good).expect("UTF-8");
    let reader = reader(FeedEncoding::Json, JsonLayout::BuiltIn);
    let line = |object: &str| format!("{{\"type\":\"ADDED\",\"object\":{object}}}\n");
    let metadata = r#""metadata":{"name":"a","resourceVersion":"1"}"#;
    let layout: Check = |error| matches!(error, WireError::Layout(_));
    let wrong_encoding: Check = |error| matches!(error, WireError::WrongEncoding);
    for (line, check) in [
        (format!("{{\"type\":\"ADDED\",\"object\":{good}}}"), layout),
        (format!("{{\"type\":\"ADDED\",\"object\": {good}}}\n"), layout),
        (format!("{{ \"type\":\"ADDED\",\"object\":{good}}}\n"), layout),
        (format!("{{\"object\":{good},\"type\":\"ADDED\"}}\n"), layout),
        (format!("{{\"type\":\"ADDED\",\"object\":{good}}}\n\n"), layout),
        (format!("{{\"type\":\"ADDED\",\"object\":[{good}]}}\n"), layout),
        ("{\"type\":\"ADDED\",\"object\":}\n".to_owned(), layout),
        ("{\"type\":\"ADDED\n".to_owned(), layout),
        (format!("{{\"type\":\"added\",\"object\":{good}}}\n"), |error| matches!(error, WireError::UnknownEventType)),
        (format!("{{\"type\":\"\",\"object\":{good}}}\n"), |error| matches!(error, WireError::UnknownEventType)),
        (format!("{{\"type\":\"ADDED\",\"object\":{good},\"x\":1}}\n"), |error| matches!(error, WireError::Json(_))),
        (line(&format!(r#"{{"apiVersion":"v1","kind":"Pod",{metadata}}}"#)), layout),
        (line(&format!("{{{metadata}}}")), layout),
        ("\n".to_owned(), wrong_encoding),
        (String::new(), wrong_encoding),
        ("k8s\0".to_owned(), wrong_encoding),
    ] {
        let error = reader.watch_event(line.clone().into()).expect_err(&line);
        assert!(check(&error), "{error:?} for {line:?}");
    }
}

#[test]
fn list_items_with_type_meta_are_rejected_for_builtin_kinds() {
    let typed = pod_list(r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"1"}}"#);
    let bare = pod_list(r#"{"metadata":{"name":"a","resourceVersion":"1"}}"#);
    for (shape, good, bad) in [(JsonLayout::BuiltIn, &bare, &typed), (JsonLayout::Custom, &typed, &bare)] {
        assert!(reader(FeedEncoding::Json, shape).list(good).is_ok());
        assert!(matches!(reader(FeedEncoding::Json, shape).list(bad), Err(WireError::Layout(_))));
    }
}

#[test]
fn invalid_utf8_is_rejected_at_any_position() {
    let reader = reader(FeedEncoding::Json, JsonLayout::BuiltIn);
    let good = Pod::default().event(FeedEncoding::Json, JsonLayout::BuiltIn, "ADDED");
    // Also in skipped values: the annotation and the phase.
    for place in [b"web-1".as_slice(), b"ppp", b"Running", b"containers"] {
        let at = good.windows(place.len()).position(|window| window == place).expect("in the fixture");
        let mut bad = good.to_vec();
        bad[at] = 0xff;
        assert!(matches!(reader.watch_event(bad.into()), Err(WireError::NotUtf8)), "{place:?}");
    }
    let page = page_of(FeedEncoding::Json, JsonLayout::BuiltIn, &[Pod::default()]);
    let at = page.windows(3).position(|window| window == b"ppp").expect("in the fixture");
    let mut bad = page.to_vec();
    bad[at] = 0xff;
    assert!(matches!(reader.list(&bad.into()), Err(WireError::NotUtf8)));
}

#[test]
fn json_nesting_is_limited_to_the_go_decoder_limit() {
    let reader = reader(FeedEncoding::Json, JsonLayout::BuiltIn);
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
        let nested = |levels: usize| {
            let inner = if open == "[" { String::new() } else { "1".to_owned() };
            let value = format!("{}{inner}{}", open.repeat(levels), close.repeat(levels));
            let metadata = r#"{"name":"a","resourceVersion":"1"}"#;
            format!(r#"{{"kind":"Pod","apiVersion":"v1","metadata":{metadata},"x":{value},"y":"[[{{\"[\\"}}"#)
        };
        let read = |levels| reader.object(nested(levels).as_bytes());
        read(200).expect("deeper than serde_json's own limit");
        read(9_999).expect("Go's limit, with the object around it");
        assert!(matches!(read(10_000), Err(WireError::TooDeep)));
        assert!(matches!(read(1_000_000), Err(WireError::TooDeep)));
        // On a path that is read instead of skipped, it is refused early.
        let path = format!(
            r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"a","resourceVersion":"1","labels":{}}}}}"#,
            open.repeat(1_000_000)
        );
        assert!(reader.object(path.as_bytes()).is_err());
    }
}

#[test]
fn invalid_protobuf_object_is_rejected() {
    let version: Check = |error| matches!(error, WireError::BadResourceVersion);
    let name: Check = |error| matches!(error, WireError::BadName);
    let malformed: Check = |error| matches!(error, WireError::Protobuf(_));
    let truncated: Check = |error| matches!(error, WireError::Truncated);
    let none: Check = |error| matches!(error, WireError::NoMetadata);
    let metadata = |fields: &[Vec<u8>]| bytes(1, &fields.concat());
    let good = metadata(&[text(1, "a"), text(6, "1")]);
    let with = |field: &[u8]| [good.clone(), field.to_vec()].concat();
    for (body, check) in [
        (vec![], none),
        (text(2, "spec first"), none),
        ([text(2, ""), good.clone()].concat(), none),
        (vec![0x08, 1], none),
        (vec![0x0a, 0xff, 0xff, 0xff, 0xff, 0x03], none),
        (with(&good), malformed),
        ([good.clone(), text(2, ""), good.clone()].concat(), malformed),
        (metadata(&[text(6, "1")]), name),
        (metadata(&[text(1, ""), text(6, "1")]), name),
        (metadata(&[text(1, "a/b"), text(6, "1")]), name),
        (metadata(&[text(1, "a"), text(3, "b/c"), text(6, "1")]), name),
        (metadata(&[text(1, "a")]), version),
        (metadata(&[text(1, "a"), text(6, "")]), version),
        (metadata(&[text(1, "a"), text(6, "0")]), version),
        (metadata(&[text(1, "a"), text(6, "007")]), version),
        (metadata(&[text(1, "a"), text(6, "x")]), version),
        (metadata(&[text(1, "a"), text(6, "1"), text(6, "2")]), version),
        // A tag or a length in more bytes than needed: legal, but not Go's, and not re-stampable in place.
        (metadata(&[text(1, "a"), vec![0x32, 0x81, 0x00, b'1']]), version),
        (metadata(&[text(1, "a"), vec![0xb2, 0x00, 0x01, b'1']]), version),
        (metadata(&[vec![0x0a, 1, 0xff], text(6, "1")]), malformed),
        (metadata(&[vec![0x08, 1], text(6, "1")]), malformed),
        (metadata(&[text(1, "a"), text(6, "1"), entry(11, "k", "v"), bytes(11, &text(3, ""))]), malformed),
        (with(&[0x00]), malformed),
        (with(&[0x13]), malformed),
        (with(&[0x17]), malformed),
        (with(&[0x12, 5, 0]), truncated),
        (with(&[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]), truncated),
        (with(&[0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02]), malformed),
        (with(&[0x12]), truncated),
        (with(&[0x80]), truncated),
        (with(&[0x11, 1, 2]), truncated),
        (with(&[0x15, 1, 2]), truncated),
        (with(&bytes(2, &bytes(11, b"true"))), malformed),
        (with(&bytes(2, &[0x50, 1])), malformed),
        (with(&[0x10, 1]), malformed),
    ] {
        let frame = event(FeedEncoding::Protobuf, "ADDED", &unknown("v1", "Pod", &body));
        let error = reader(FeedEncoding::Protobuf, JsonLayout::BuiltIn).watch_event(frame).expect_err("a broken body");
        assert!(check(&error), "{error:?} for {body:02x?}");
    }
}

/// Go's decoder takes any bytes as text, and the apiserver validates few fields, so a user can store such an object. It
/// must not end the feed of everybody.
#[test]
fn protobuf_text_that_is_not_utf8_is_kept() {
    let annotations =
        ["note", INITIAL_EVENTS_END].map(|key| bytes(12, &[text(1, key), bytes(2, &[0xff; 27])].concat()));
    let body = [
        bytes(1, &[text(1, "a"), text(6, "1"), annotations.concat()].concat()),
        bytes(2, &bytes(10, b"node-\xff\xfe")),
    ]
    .concat();
    let frame = event(FeedEncoding::Protobuf, "ADDED", &unknown("v1", "Pod", &body));
    let item = reader(FeedEncoding::Protobuf, JsonLayout::BuiltIn).watch_event(frame).expect("legal");
    let WatchItem::Change { object, .. } = item else { panic!("{item:?} is not a change") };
    assert_eq!(object.body(), &body);
    let selects = |selector: &str| {
        let parsed = FieldSelector::parse(selector).expect("a selector").compile(&pod_fields()).expect("a key");
        parsed.matches(&object.key, &object.attributes)
    };
    assert!(selects("spec.nodeName!=node-"));
    assert!(!selects("spec.nodeName=node-"));
}

#[test]
fn invalid_protobuf_envelope_is_rejected() {
    let reader = reader(FeedEncoding::Protobuf, JsonLayout::BuiltIn);
    let body = Pod::default().body(FeedEncoding::Protobuf, JsonLayout::BuiltIn);
    let document = unknown("v1", "Pod", &body);
    let good = event(FeedEncoding::Protobuf, "ADDED", &document);
    let malformed: Check = |error| matches!(error, WireError::Protobuf(_));
    let layout: Check = |error| matches!(error, WireError::Layout(_));
    let wrong_encoding: Check = |error| matches!(error, WireError::WrongEncoding);
    let object = |document: &[u8]| bytes(2, &bytes(1, document));
    let gzipped = [b"k8s\0".to_vec(), bytes(2, &body), text(3, "gzip")].concat();
    let json_inside = [b"k8s\0".to_vec(), bytes(2, b"{}"), text(4, "application/json")].concat();
    for (frame, check) in [
        (length_prefixed(&[text(1, "ADDED"), object(&document), text(3, "")].concat()), layout),
        (length_prefixed(&[text(1, "ADDED"), text(1, "ADDED"), object(&document)].concat()), layout),
        (length_prefixed(&[text(1, "ADDED"), object(&document), object(&document)].concat()), layout),
        (length_prefixed(&[text(1, "ADDED"), bytes(2, &[])].concat()), layout),
        (length_prefixed(&text(1, "ADDED")), layout),
        (event(FeedEncoding::Protobuf, "ADDED", &gzipped), layout),
        (event(FeedEncoding::Protobuf, "ADDED", &json_inside), layout),
        (event(FeedEncoding::Protobuf, "ADDED", &body), wrong_encoding),
        (event(FeedEncoding::Protobuf, "ADDED", b"{}"), wrong_encoding),
        (Pod::default().event(FeedEncoding::Json, JsonLayout::BuiltIn, "ADDED"), wrong_encoding),
        (event(FeedEncoding::Protobuf, "NEW", &document), |error| matches!(error, WireError::UnknownEventType)),
        (length_prefixed(&object(&document)), layout),
        ([good.as_ref(), b"x"].concat().into(), malformed),
        (good.slice(..good.len() - 1), |error| matches!(error, WireError::Truncated)),
        (Bytes::new(), |error| matches!(error, WireError::Truncated)),
    ] {
        let error = reader.watch_event(frame.clone()).expect_err("a broken envelope");
        assert!(check(&error), "{error:?} for {frame:?}");
    }
}

#[test]
fn non_canonical_protobuf_envelope_is_rejected() {
    let reader = reader(FeedEncoding::Protobuf, JsonLayout::BuiltIn);
    let body = Pod::default().body(FeedEncoding::Protobuf, JsonLayout::BuiltIn);
    let (magic, raw) = (b"k8s\0".to_vec(), bytes(2, &body));
    let (api_version, kind) = (text(1, "v1"), text(2, "Pod"));
    let type_meta = bytes(1, &[api_version.clone(), kind.clone()].concat());
    let backwards = bytes(1, &[kind, api_version.clone()].concat());
    let twice = bytes(1, &[text(1, ""), api_version, text(2, "Pod")].concat());
    let tail = [text(3, ""), text(4, "")].concat();
    // One byte more than its length needs.
    let long = [vec![0x1a, 0x80, 0], text(4, "")].concat();
    for parts in [
        [&type_meta, &raw, &[text(4, ""), text(4, "")].concat()],
        [&type_meta, &raw, &[text(4, ""), text(3, "")].concat()],
        [&type_meta, &raw, &text(3, "")],
        [&type_meta, &raw, &Vec::new()],
        [&type_meta, &raw, &long],
        [&raw, &type_meta, &tail],
        [&backwards, &raw, &tail],
        [&twice, &raw, &tail],
    ] {
        let document = [magic.as_slice(), parts[0], parts[1], parts[2]].concat();
        for error in [
            reader.watch_event(event(FeedEncoding::Protobuf, "ADDED", &document)).expect_err("another layout"),
            reader.object(&document).expect_err("another layout"),
        ] {
            assert!(matches!(error, WireError::Layout(_)), "{error:?} for {document:02x?}");
        }
    }
    let document = [magic, type_meta, raw, tail].concat();
    reader.object(&document).expect("the apiserver's");
    let turned = length_prefixed(&[bytes(2, &bytes(1, &document)), text(1, "ADDED")].concat());
    assert!(matches!(reader.watch_event(turned), Err(WireError::Layout(_))));
}

#[test]
fn list_in_the_wrong_encoding_is_rejected() {
    let json = page_of(FeedEncoding::Json, JsonLayout::BuiltIn, &[Pod::default()]);
    let protobuf = page_of(FeedEncoding::Protobuf, JsonLayout::BuiltIn, &[Pod::default()]);
    assert!(matches!(reader(FeedEncoding::Protobuf, JsonLayout::BuiltIn).list(&json), Err(WireError::WrongEncoding)));
    assert!(matches!(reader(FeedEncoding::Json, JsonLayout::BuiltIn).list(&protobuf), Err(WireError::WrongEncoding)));
}

#[test]
fn truncated_list_or_frame_is_rejected() {
    for (encoding, shape) in FEEDS {
        let reader = reader(encoding, shape);
        let page = page_of(encoding, shape, &[Pod::default(), Pod { name: "b", ..Pod::default() }]);
        // The newline is not part of the JSON document.
        let whole = page.len() - usize::from(encoding == FeedEncoding::Json);
        for end in 0..whole {
            let cut = reader.list(&page.slice(..end));
            // Unknown's trailing empty fields are redundant: without them it is a whole document.
            let tail = encoding == FeedEncoding::Protobuf && (end == whole - 2 || end == whole - 4);
            assert!(cut.is_err() || tail, "{encoding} {shape:?} cut at {end} of {whole}");
        }
        let frame = Pod::default().event(encoding, shape, "ADDED");
        for end in 0..frame.len() {
            assert!(reader.watch_event(frame.slice(..end)).is_err(), "{encoding} {shape:?} cut at {end}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn arbitrary_bytes_never_panic(feed in 0..FEEDS.len(), junk in prop::collection::vec(any::<u8>(), 0..300)) {
        let (encoding, shape) = FEEDS[feed];
        read_everything(encoding, shape, &junk);
        for event_type in ["ADDED", "BOOKMARK", "ERROR"] {
            read_everything(encoding, shape, &event(encoding, event_type, &junk));
            read_everything(encoding, shape, &event(encoding, event_type, &unknown("v1", "Pod", &junk)));
        }
    }

    #[test]
    fn damaged_input_never_panics(
        feed in 0..FEEDS.len(),
        kind in 0..3,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
    ) {
        let (encoding, shape) = FEEDS[feed];
        let mut bytes = match kind {
            0 => Pod::default().event(encoding, shape, "MODIFIED").to_vec(),
            1 => super::reader::bookmark(encoding, shape, true).to_vec(),
            _ => page_of(encoding, shape, &[Pod::default(), Pod::default()]).to_vec(),
        };
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        read_everything(encoding, shape, &bytes);
    }
}

fn pod_list(item: &str) -> Bytes {
    let metadata = r#"{"resourceVersion":"1"}"#;
    format!(r#"{{"kind":"PodList","apiVersion":"v1","metadata":{metadata},"items":[{item}]}}"#).into()
}

/// Decodes `bytes` in every possible way, and uses the accepted results.
fn read_everything(encoding: FeedEncoding, shape: JsonLayout, bytes: &[u8]) {
    let bytes = Bytes::copy_from_slice(bytes);
    let reader = reader(encoding, shape);
    let mut splitter = FrameSplitter::new(encoding, 1 << 16);
    splitter.push(&bytes);
    while let Ok(Some(_)) = splitter.next_frame() {}
    let mut objects = Vec::new();
    objects.extend(reader.object(&bytes));
    objects.extend(reader.list(&bytes).into_iter().flat_map(|page| page.items));
    match reader.watch_event(bytes) {
        Ok(WatchItem::Change { object, .. }) => objects.push(object),
        Ok(WatchItem::Bookmark { object, .. }) => {
            if let Ok(template) = BookmarkTemplate::from_object(&super::envelope::pods(encoding, shape), &object) {
                template.frame(ResourceVersion(5), true);
            }
            objects.push(object);
        }
        Ok(WatchItem::Error { .. }) | Err(_) => {}
    }
    for object in objects {
        object.with_resource_version(ResourceVersion(u64::MAX));
        object.size();
    }
}
