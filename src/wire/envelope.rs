use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::{FeedEncoding, JsonLayout, ListFrame, ListMeta, table};
use kubeapi::EventType;
use kubeapi::protobuf::{self, field_len, put_field, put_header};

/// Wraps a feed's bodies in frames: its encoding, its shape and its kind's `TypeMeta`.
///
/// Clones are cheap. It writes the same bytes around a body as the apiserver does (R-JSON-3, R-PROTO-1), in one
/// allocation of exact size.
#[derive(Debug, Clone)]
pub struct FrameEnvelope {
    parts: Arc<FrameEnvelopeParts>,
}

#[derive(Debug, Clone)]
struct FrameEnvelopeParts {
    encoding: FeedEncoding,
    layout: JsonLayout,
    api_version: String,
    kind: String,
    list_kind: String,
    /// The bytes before an object's body outside lists. In JSON, that is `{"kind":…,"apiVersion":…,` or nothing. In
    /// protobuf, it is `k8s\0` and the `TypeMeta` field of Unknown.
    object_head: Bytes,
}

impl FrameEnvelope {
    /// Creates the envelope for objects of `kind` in `api_version` (`v1`, `apps/v1`), or for their rows. The list kind
    /// is `kind` followed by `List`, as for every built-in; see [`with_list_kind`](Self::with_list_kind).
    pub fn new(encoding: FeedEncoding, api_version: &str, kind: &str, shape: JsonLayout) -> Self {
        let object_head = Bytes::from(object_head(encoding, shape, api_version, kind));
        let (api_version, list_kind, kind) = (api_version.to_owned(), format!("{kind}List"), kind.to_owned());
        Self {
            parts: Arc::new(FrameEnvelopeParts { encoding, layout: shape, api_version, kind, list_kind, object_head }),
        }
    }

    /// Returns this envelope with another list kind: a CRD may choose its `listKind`, and upstream's LIST contains it.
    #[must_use]
    pub fn with_list_kind(self, list_kind: &str) -> Self {
        let mut parts = Arc::unwrap_or_clone(self.parts);
        list_kind.clone_into(&mut parts.list_kind);
        Self { parts: Arc::new(parts) }
    }

    /// Returns the encoding of the envelope's output and of the bodies.
    pub fn encoding(&self) -> FeedEncoding {
        self.parts.encoding
    }

    /// Returns the layout of the envelope's JSON.
    pub fn layout(&self) -> JsonLayout {
        self.parts.layout
    }

    /// Returns the group and version of the objects and of their list, such as `apps/v1`.
    pub fn api_version(&self) -> &str {
        &self.parts.api_version
    }

    /// Returns the kind of one object, such as `Deployment`.
    pub fn kind(&self) -> &str {
        &self.parts.kind
    }

    /// Returns a whole HTTP watch frame around `body`: a JSON line with its newline, or a 4-byte big-endian length and
    /// a `WatchEvent` message. The body must be in the normal form of this encoding and shape. It must be smaller than
    /// 4 GiB, as that of every [`ObjectRevision`](super::ObjectRevision) is.
    pub fn frame(&self, event_type: EventType, body: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(self.frame_len(event_type, body.len()));
        self.put_frame_head(event_type, body.len(), &mut out);
        out.put_slice(body);
        self.put_frame_tail(&mut out);
        debug_assert_eq!(out.len(), out.capacity());
        out.freeze()
    }

    /// Appends the part of a [`frame`](Self::frame) before the body. Only protobuf needs the length of the body.
    pub fn put_frame_head(&self, event_type: EventType, body_len: usize, out: &mut impl BufMut) {
        match self.parts.encoding {
            FeedEncoding::Json | FeedEncoding::Table => {
                put_json_event(out, event_type);
                out.put_slice(&self.parts.object_head);
            }
            FeedEncoding::Protobuf => {
                put_protobuf_event(out, event_type, self.object_len(body_len));
                out.put_slice(&self.parts.object_head);
                put_header(out, UNKNOWN_RAW, body_len);
            }
        }
    }

    /// Appends the part of a [`frame`](Self::frame) after the body.
    pub fn put_frame_tail(&self, out: &mut impl BufMut) {
        out.put_slice(match self.parts.encoding {
            FeedEncoding::Json | FeedEncoding::Table => JSON_EVENT_TAIL,
            FeedEncoding::Protobuf => &UNKNOWN_TAIL,
        });
    }

    /// Returns the length of a [`frame`](Self::frame) for a body of `body_len` bytes.
    pub fn frame_len(&self, event_type: EventType, body_len: usize) -> usize {
        match self.parts.encoding {
            FeedEncoding::Json | FeedEncoding::Table => {
                json_event_head_len(event_type) + self.parts.object_head.len() + body_len + JSON_EVENT_TAIL.len()
            }
            FeedEncoding::Protobuf => protobuf_event_len(event_type, self.object_len(body_len)),
        }
    }

    /// Returns a GET response: the JSON object and a newline, or `k8s\0` and Unknown.
    pub fn object(&self, body: &[u8]) -> Bytes {
        let [head, tail] = self.around_object(body.len());
        [&head, body, &tail].concat().into()
    }

    /// Returns the pieces of [`object`](Self::object). The middle one is the body itself, so a slow client holds no
    /// copy of it.
    pub fn object_pieces(&self, body: Bytes) -> [Bytes; 3] {
        let [head, tail] = self.around_object(body.len());
        [head, body, tail]
    }

    fn around_object(&self, body_len: usize) -> [Bytes; 2] {
        let head = &self.parts.object_head;
        match self.parts.encoding {
            FeedEncoding::Json | FeedEncoding::Table => [head.clone(), Bytes::from_static(b"\n")],
            FeedEncoding::Protobuf => {
                let mut out = BytesMut::with_capacity(head.len() + field_len(body_len) - body_len);
                out.put_slice(head);
                put_header(&mut out, UNKNOWN_RAW, body_len);
                debug_assert_eq!(out.len(), out.capacity());
                [out.freeze(), Bytes::from_static(&UNKNOWN_TAIL)]
            }
        }
    }

    /// Returns the pieces of a LIST response with this metadata. It does not support Tables, because their cells would
    /// be outdated.
    pub fn list(&self, meta: &ListMeta) -> ListFrame {
        let FrameEnvelopeParts { encoding, layout: shape, api_version, list_kind, .. } = &*self.parts;
        match encoding {
            FeedEncoding::Json | FeedEncoding::Table => ListFrame::json(*shape, api_version, list_kind, meta),
            FeedEncoding::Protobuf => ListFrame::protobuf(type_meta_head(api_version, list_kind), meta),
        }
    }

    /// Returns an ERROR event around an encoded Status: `status_json` without a final newline, `status_proto` as a
    /// whole document (`k8s\0` and Unknown). It uses only the one in this envelope's encoding.
    pub fn error_frame(&self, status_json: &[u8], status_proto: &[u8]) -> Bytes {
        let mut out = Vec::new();
        match self.parts.encoding {
            FeedEncoding::Json | FeedEncoding::Table => {
                put_json_event(&mut out, EventType::Error);
                out.extend_from_slice(status_json);
                out.extend_from_slice(JSON_EVENT_TAIL);
            }
            FeedEncoding::Protobuf => {
                put_protobuf_event(&mut out, EventType::Error, status_proto.len());
                out.extend_from_slice(status_proto);
            }
        }
        out.into()
    }

    /// Returns the length of a GET response; in protobuf that is also the document inside a watch event.
    pub fn object_len(&self, body_len: usize) -> usize {
        let head = self.parts.object_head.len();
        match self.parts.encoding {
            FeedEncoding::Json | FeedEncoding::Table => head + body_len + 1,
            FeedEncoding::Protobuf => head + field_len(body_len) + UNKNOWN_TAIL.len(),
        }
    }
}

/// Returns the websocket message for `frame`: JSON is the line itself, protobuf omits the length prefix (R-WS-2). It
/// shares the frame's bytes.
pub fn websocket_payload(encoding: FeedEncoding, frame: &Bytes) -> Bytes {
    match encoding {
        FeedEncoding::Json | FeedEncoding::Table => frame.clone(),
        FeedEncoding::Protobuf => frame.slice(LENGTH_PREFIX.min(frame.len())..),
    }
}

fn object_head(encoding: FeedEncoding, shape: JsonLayout, api_version: &str, kind: &str) -> Vec<u8> {
    match (encoding, shape) {
        (FeedEncoding::Json, JsonLayout::Custom) => Vec::new(),
        (FeedEncoding::Json, JsonLayout::BuiltIn) => {
            format!(r#"{{"kind":{},"apiVersion":{},"#, json_text(kind), json_text(api_version)).into_bytes()
        }
        (FeedEncoding::Protobuf, _) => type_meta_head(api_version, kind),
        (FeedEncoding::Table, _) => table::TYPE_META.into(),
    }
}

/// Returns the start of every protobuf document: `k8s\0` and the `TypeMeta` field of Unknown.
pub(super) fn type_meta_head(api_version: &str, kind: &str) -> Vec<u8> {
    let mut out = protobuf::MAGIC.to_vec();
    put_header(&mut out, UNKNOWN_TYPE_META, field_len(api_version.len()) + field_len(kind.len()));
    put_field(&mut out, 1, api_version.as_bytes());
    put_field(&mut out, 2, kind.as_bytes());
    out
}

/// Returns `text` as a JSON string. API names and tokens need no escapes; other text must not break the JSON.
pub(super) fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

fn put_json_event(out: &mut impl BufMut, event_type: EventType) {
    out.put_slice(JSON_EVENT_HEAD);
    out.put_slice(event_type.as_str().as_bytes());
    out.put_slice(JSON_EVENT_OBJECT);
}

fn json_event_head_len(event_type: EventType) -> usize {
    JSON_EVENT_HEAD.len() + event_type.as_str().len() + JSON_EVENT_OBJECT.len()
}

/// Writes the length prefix and the `WatchEvent` up to its document, which has `document_len` bytes and ends it.
fn put_protobuf_event(out: &mut impl BufMut, event_type: EventType, document_len: usize) {
    let len = protobuf_event_len(event_type, document_len) - LENGTH_PREFIX;
    // A body comes from a frame with a 32-bit length or from a page and is smaller than 4 GiB. The frame limit is far
    // lower, so ~100 bytes more still fit.
    out.put_u32(u32::try_from(len).expect("a watch event is smaller than 4 GiB"));
    put_field(out, EVENT_TYPE, event_type.as_str().as_bytes());
    put_header(out, EVENT_OBJECT, field_len(document_len));
    put_header(out, RAW_EXTENSION_RAW, document_len);
}

fn protobuf_event_len(event_type: EventType, document_len: usize) -> usize {
    LENGTH_PREFIX + field_len(event_type.as_str().len()) + field_len(field_len(document_len))
}

pub(super) const LENGTH_PREFIX: usize = size_of::<u32>();

/// The three constant parts of a JSON watch frame, with the type and the object between them.
pub(super) const JSON_EVENT_HEAD: &[u8] = br#"{"type":""#;
pub(super) const JSON_EVENT_OBJECT: &[u8] = br#"","object":"#;
pub(super) const JSON_EVENT_TAIL: &[u8] = b"}\n";

/// The field numbers of `WatchEvent` and `RawExtension`.
pub(super) const EVENT_TYPE: u8 = 1;
pub(super) const EVENT_OBJECT: u8 = 2;
pub(super) const RAW_EXTENSION_RAW: u8 = 1;

/// The field numbers of Unknown: `TypeMeta`, raw, `contentEncoding`, `contentType`. The last two are always written,
/// and empty.
pub(super) const UNKNOWN_TYPE_META: u8 = 1;
pub(super) const UNKNOWN_RAW: u8 = 2;
const UNKNOWN_CONTENT_ENCODING: u8 = 3;
const UNKNOWN_CONTENT_TYPE: u8 = 4;
pub(super) const UNKNOWN_TAIL: [u8; 4] =
    [protobuf::tag(UNKNOWN_CONTENT_ENCODING), 0, protobuf::tag(UNKNOWN_CONTENT_TYPE), 0];
