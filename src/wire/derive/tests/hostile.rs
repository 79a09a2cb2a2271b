//! Arbitrary bytes cause no panic, and all output is JSON.

use bytes::Bytes;
use proptest::prelude::*;

use super::super::{MetadataRenderer, ProtobufJsonTranscoder};

const KINDS: [(&str, &str); 8] = [
    ("v1", "Pod"),
    ("v1", "Secret"),
    ("v1", "Event"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("coordination.k8s.io/v1", "Lease"),
    ("resource.k8s.io/v1", "ResourceSlice"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
];

/// Returns bodies of the corpus with their kinds.
fn bodies() -> Vec<(String, String, Vec<u8>)> {
    let lines = include_str!("pairs.txt").lines().filter(|line| line.starts_with("37\t"));
    let bodies = lines.map(|line| {
        let mut columns = line.split('\t').skip(1).map(str::to_owned);
        let (api_version, kind) = (columns.next().unwrap(), columns.next().unwrap());
        let body = super::pairs::unhex(&columns.next().unwrap());
        (api_version, kind, body)
    });
    bodies.collect()
}

fn check(api_version: &str, kind: &str, body: &[u8]) {
    let transcoder = ProtobufJsonTranscoder::for_server(37, api_version, kind).unwrap();
    let metadata = MetadataRenderer::for_server(37, api_version, kind);
    let mut out = b"{".to_vec();
    if transcoder.json(body, &mut out).is_ok() {
        // Bodies nested deeper than serde_json's limit are rare enough to ignore here.
        assert!(serde_json::from_slice::<serde::de::IgnoredAny>(&out).is_ok(), "{}", out.escape_ascii());
    } else {
        assert_eq!(out, b"{");
    }
    let body = Bytes::copy_from_slice(body);
    let mut out = b"{".to_vec();
    if metadata.json(&body, &mut out).is_ok() {
        assert!(serde_json::from_slice::<serde::de::IgnoredAny>(&out).is_ok(), "{}", out.escape_ascii());
    }
    drop(metadata.protobuf(&body));
    drop(metadata.protobuf_from_json(&body));
}

proptest! {
    #[test]
    fn transcoder_never_panics_on_arbitrary_bytes(kind in 0..KINDS.len(), body in prop::collection::vec(any::<u8>(), 0..200)) {
        let (api_version, kind) = KINDS[kind];
        check(api_version, kind, &body);
    }

    #[test]
    fn transcoder_never_panics_on_damaged_bodies(
        pick in any::<prop::sample::Index>(),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let bodies = bodies();
        let (api_version, kind, body) = &bodies[pick.index(bodies.len())];
        let mut body = body.clone();
        prop_assume!(!body.is_empty());
        for (at, byte) in damage {
            let at = at.index(body.len());
            body[at] = byte;
        }
        if let Some(cut) = cut {
            body.truncate(cut.index(body.len()));
        }
        check(api_version, kind, &body);
    }
}
