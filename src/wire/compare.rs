use memchr::memmem;

use super::FeedEncoding;
use super::proto_reader::ProtobufDocument;
use kubeapi::protobuf::leading_message;

/// Returns whether two LIST responses in the built-in layout are equal except for their own metadata: version, continue
/// token and remaining count. Returns false if either is not such a document.
pub fn same_items(encoding: FeedEncoding, ours: &[u8], theirs: &[u8]) -> bool {
    match encoding {
        FeedEncoding::Json | FeedEncoding::Table => {
            without_json_metadata(ours).is_some_and(|ours| without_json_metadata(theirs) == Some(ours))
        }
        FeedEncoding::Protobuf => {
            without_protobuf_metadata(ours).is_some_and(|ours| without_protobuf_metadata(theirs) == Some(ours))
        }
    }
}

/// Returns the bytes before the metadata, and those after it.
fn without_json_metadata(document: &[u8]) -> Option<[&[u8]; 2]> {
    let at = memmem::find(document, br#","metadata":{"#)?;
    // Versions, base64 tokens and numbers contain no quotation mark.
    let items = memmem::find(&document[at..], br#"},"items":"#)?;
    Some([&document[..at], &document[at + items..]])
}

fn without_protobuf_metadata(document: &[u8]) -> Option<[&[u8]; 3]> {
    let ProtobufDocument { api_version, kind, raw } = ProtobufDocument::split(document).ok()?;
    let (at, len) = leading_message(raw)?;
    Some([api_version.as_bytes(), kind.as_bytes(), &raw[at + len..]])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{FrameEnvelope, JsonLayout, ListMeta};
    use kubeapi::ResourceVersion;

    fn list(encoding: FeedEncoding, kind: &str, rv: u64, token: &str, bodies: &[&[u8]]) -> Vec<u8> {
        let meta = ListMeta {
            resource_version: ResourceVersion(rv),
            continue_token: token.to_owned(),
            remaining: (!token.is_empty()).then_some(7),
        };
        let frame = FrameEnvelope::new(encoding, "v1", kind, JsonLayout::BuiltIn).list(&meta);
        let mut out = frame.head(bodies.len(), bodies.iter().map(|body| frame.item_len(body.len())).sum()).to_vec();
        for (index, body) in bodies.iter().enumerate() {
            frame.put_item(index == 0, body, &mut out);
        }
        out.extend_from_slice(&frame.tail());
        out
    }

    #[test]
    fn list_comparison_ignores_list_metadata() {
        for (encoding, bodies) in [
            (
                FeedEncoding::Json,
                [br#""metadata":{"name":"a"}}"#.as_slice(), br#""metadata":{},"items":[1]}"#.as_slice()],
            ),
            (FeedEncoding::Protobuf, [b"\x0a\x03\x0a\x01a".as_slice(), b"\x0a\x00\x12\x00".as_slice()]),
        ] {
            let ours = list(encoding, "Pod", 1, "", &bodies);
            assert!(same_items(encoding, &ours, &list(encoding, "Pod", 22_222, "abc", &bodies)), "{encoding}");
            assert!(!same_items(encoding, &ours, &list(encoding, "Node", 1, "", &bodies)), "{encoding}: another kind");
            assert!(!same_items(encoding, &ours, &list(encoding, "Pod", 1, "", &bodies[..1])), "{encoding}: fewer");
            assert!(
                !same_items(encoding, &ours, &list(encoding, "Pod", 1, "", &[bodies[1], bodies[0]])),
                "{encoding}: order"
            );
            assert!(
                same_items(encoding, &list(encoding, "Pod", 1, "", &[]), &list(encoding, "Pod", 2, "", &[])),
                "{encoding}: none"
            );
            assert!(!same_items(encoding, b"", b""), "{encoding}: nothing is no list");
        }
    }
}
