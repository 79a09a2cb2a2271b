//! Objects in protobuf, and their derived forms.

use bytes::Bytes;
use kube_fanout::wire::{MetadataRenderer, ProtobufJsonTranscoder};
use serde::de::IgnoredAny;

use super::choice;

const KINDS: [(&str, &str); 8] = [
    ("v1", "Pod"),
    ("v1", "ConfigMap"),
    ("v1", "Event"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("coordination.k8s.io/v1", "Lease"),
    ("resource.k8s.io/v1", "ResourceSlice"),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
];

/// Derived output is valid JSON, and a refused object leaves no partial output.
pub fn bodies(input: &[u8]) {
    let (first, body) = choice(input);
    let (api_version, kind) = KINDS[first % KINDS.len()];
    let transcoder = ProtobufJsonTranscoder::for_server(37, api_version, kind).expect("it is in the table");
    let metadata = MetadataRenderer::for_server(37, api_version, kind);
    let body = Bytes::copy_from_slice(body);
    check(|out| transcoder.json(&body, out).is_ok());
    check(|out| transcoder.bookmark_json(&body, out).is_ok());
    check(|out| metadata.json(&body, out).is_ok());
    let _ = metadata.protobuf(&body);
    // The same bytes as a custom resource in JSON.
    if let Ok(derived) = metadata.protobuf_from_json(&body) {
        check(|out| metadata.json(&derived, out).is_ok());
    }
    check(|out| metadata.json_from_json(&body, out).is_ok());
}

fn check(write: impl Fn(&mut Vec<u8>) -> bool) {
    let mut out = b"{".to_vec();
    if write(&mut out) {
        assert!(is_json(&out), "{}", out.escape_ascii());
    } else {
        assert_eq!(out, b"{", "a refused body leaves no output");
    }
}

/// Nesting beyond the limit of `serde_json` counts as valid.
fn is_json(text: &[u8]) -> bool {
    match serde_json::from_slice::<IgnoredAny>(text) {
        Ok(_) => true,
        Err(error) => error.to_string().contains("recursion"),
    }
}
