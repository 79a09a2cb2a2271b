//! Bodies without managed fields: exact, or as they are.

use bytes::Bytes;
use proptest::prelude::*;

use super::fixtures::{self, FEEDS, Pod};
use super::reader::change;
use crate::wire::{FrameEnvelope, ObjectRenderer, Representation, without_managed_fields};
use kubeapi::{EventType, MetaApiVersion};

fn reduced(body: &[u8]) -> Bytes {
    without_managed_fields(&Bytes::copy_from_slice(body)).into_owned()
}

#[test]
fn json_without_the_member_is_what_go_writes() {
    for (body, expected) in [
        (
            r#""metadata":{"name":"n","managedFields":[{"manager":"m"}]},"spec":{}}"#,
            r#""metadata":{"name":"n"},"spec":{}}"#,
        ),
        (r#""metadata":{"managedFields":[],"name":"n"}}"#, r#""metadata":{"name":"n"}}"#),
        (r#""metadata":{"managedFields":[{}]}}"#, r#""metadata":{}}"#),
        (r#""metadata":{"managedFields":null,"uid":"u"}}"#, r#""metadata":{"uid":"u"}}"#),
        (
            r#"{"apiVersion":"v1","kind":"K","metadata":{"labels":{},"managedFields":[{"a":"}],"}],"name":"n"},"spec":1}"#,
            r#"{"apiVersion":"v1","kind":"K","metadata":{"labels":{},"name":"n"},"spec":1}"#,
        ),
    ] {
        assert_eq!(reduced(body.as_bytes()), expected, "{body}");
    }
}

/// A name elsewhere is another field, and a layout that the apiserver does not write is not touched.
#[test]
fn other_json_stays_as_it_is() {
    for body in [
        r#""metadata":{"name":"n"},"spec":{}}"#,
        r#""metadata":{"name":"managedFields"}}"#,
        r#""metadata":{"annotations":{"managedFields":"x","\"managedFields\":[]":"y"}},"managedFields":[1]}"#,
        r#""metadata":{},"spec":{"template":{"metadata":{"managedFields":[1]}},"managedFields":[1]}}"#,
        r#"{"managedFields":[1],"metadata":{"name":"n"},"spec":{"metadata":{"managedFields":[1]}}}"#,
        r#""metadata":{"managedFields":[1],"managedFields":[2]}}"#,
        r#"{"metadata":{"managedFields":[1]},"metadata":{"managedFields":[1]}}"#,
        r#""metadata":{"name":"n", "managedFields":[1]}}"#,
        r#""metadata":{"name":"n","managedFields" :[1]}}"#,
        r#""metadata":{"name":"n","managedFields": [1]}}"#,
        r#""metadata":{"name":"n","managedFields":[1] }}"#,
        r#""metadata":{"name":"n","managedFi\u0065lds":[1]}}"#,
        r#""metadata":{"name":"n","managedFields":[1}}"#,
        r#""metadata":{"name":"n","managedFields":"#,
        r#""metadata":["managedFields"]}"#,
        r#""metadata":[[1]]}"#,
        r#""metadata":null}"#,
        r#"{"metadata":{"managedFields":[1]}}}"#,
        "{",
        "\"",
        "",
    ] {
        assert_eq!(reduced(body.as_bytes()), body, "{body}");
    }
}

fn message(parts: &[(u32, &[u8])]) -> Vec<u8> {
    parts.iter().flat_map(|(number, payload)| fixtures::bytes(*number, payload)).collect()
}

#[test]
fn protobuf_without_the_field_has_corrected_lengths() {
    let long = [7; 300];
    for (with, without) in [
        (vec![(1, &b"n"[..]), (17, b"m"), (17, b"")], vec![(1, &b"n"[..])]),
        (vec![(17, b"m")], vec![]),
        (vec![(1, b"n"), (17, b"m"), (12, &long), (17, &long), (15, b"z")], vec![(1, b"n"), (12, &long), (15, b"z")]),
    ] {
        let body = |metadata: &[(u32, &[u8])]| message(&[(1, &message(metadata)), (2, b"spec"), (17, b"not metadata")]);
        assert_eq!(reduced(&body(&with)), body(&without));
        assert_eq!(reduced(&body(&without)), body(&without));
    }
    for body in [&b"\x0a\x05\x8a\x01\x03ab"[..], b"\x0a\x02\x8a\x01\x12\x00", b"\x0a\x01\xff", b"\x12\x00", b"\x0a"] {
        assert_eq!(reduced(body), body, "a malformed body is not changed");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_never_mangled(mut body in prop::collection::vec(any::<u8>(), 0..200), at in 0..200_usize) {
        prop_assert!(reduced(&body).len() <= body.len());
        let valid = br#""metadata":{"name":"n","managedFields":[{"f":{}}],"uid":"u"},"spec":{}}"#;
        body.truncate(3);
        let at = at.min(valid.len());
        let foul = [&valid[..at], &body, &valid[at..]].concat();
        let without = reduced(&foul);
        if *without != *foul {
            let parsed = |body: &[u8]| serde_json::from_slice::<serde_json::Value>(&[b"{", body].concat());
            // Only the metadata is parsed, so an invalid rest stays invalid.
            prop_assert_eq!(parsed(&foul).is_ok(), parsed(&without).is_ok());
        }
    }
}

/// Clients of the full representation see every change, and those of the others what they do not leave out.
#[test]
fn state_is_unchanged_if_it_shows_only_another_version() {
    for (encoding, layout) in FEEDS {
        let envelope = FrameEnvelope::new(encoding, "v1", "Pod", layout);
        let full = ObjectRenderer::verbatim(&envelope);
        let metadata = Representation::Metadata(encoding, MetaApiVersion::V1);
        let metadata = ObjectRenderer::derived(metadata, &envelope, 37).expect("metadata of every kind");
        let object = |pod: &Pod| change(encoding, layout, pod, "ADDED").1;
        let before = Pod { rv: 99, ..Pod::default() };
        for (after, is_unchanged) in [
            (Pod { rv: 1_000, ..before.clone() }, [false, false, true, true]),
            (Pod { node: "node-8", rv: 100, ..before.clone() }, [false, false, false, true]),
            (Pod { labels: vec![("app", "web")], rv: 100, ..before.clone() }, [false; 4]),
        ] {
            let renderers = [
                full.clone(),
                metadata.clone(),
                full.clone().with_fields_of(full.representation().reduced()),
                metadata.clone().with_fields_of(metadata.representation().reduced()),
            ];
            let (before, after) = (object(&before), object(&after));
            let frames = renderers.map(|renderer| {
                let whole = renderer.frame(EventType::Modified, after.body()).expect("a frame");
                let frame = renderer.modified_frame(&before, &after).expect("a frame");
                assert!(frame.as_ref().is_none_or(|frame| *frame == whole), "{encoding}");
                frame
            });
            assert_eq!(frames.map(|frame| frame.is_none()), is_unchanged, "{encoding}");
        }
    }
}
