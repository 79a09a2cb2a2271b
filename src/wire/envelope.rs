use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use super::protobuf::{self, field_len, put_field, put_header};
use super::{Encoding, JsonLayout, ListFrame, ListMeta, table};
use kubeapi::EventType;

/// How a feed's bodies become frames: its encoding, its shape and its kind's `TypeMeta`.
///
/// Cloning is cheap. Everything it writes is what the apiserver writes around the same body (R-JSON-3, R-PROTO-1),
/// in one allocation of exact size.
#[derive(Debug, Clone)]
pub struct Envelope {
    parts: Arc<Parts>,
}

#[derive(Debug)]
struct Parts {
    encoding: Encoding,
    shape: JsonLayout,
    api_version: String,
    kind: String,
    list_kind: String,
    /// Before an object's body outside lists. JSON: `{"kind":…,"apiVersion":…,` or nothing. Protobuf: `k8s\0` and the
    /// `TypeMeta` field of Unknown.
    object_head: Bytes,
}

impl Envelope {
    /// For objects of `kind` in `api_version` (`v1`, `apps/v1`), or for their rows. The list kind is `kind` followed by
    /// `List`, as it is for every built-in; see [`with_list_kind`](Self::with_list_kind).
    pub fn new(encoding: Encoding, api_version: &str, kind: &str, shape: JsonLayout) -> Self {
        let object_head = Bytes::from(object_head(encoding, shape, api_version, kind));
        let (api_version, list_kind, kind) = (api_version.to_owned(), format!("{kind}List"), kind.to_owned());
        Self { parts: Arc::new(Parts { encoding, shape, api_version, kind, list_kind, object_head }) }
    }

    /// An envelope for lists of another kind name: a CRD may choose its `listKind`, and upstream's LIST says it.
    #[must_use]
    pub fn with_list_kind(self, list_kind: &str) -> Self {
        let Parts { encoding, shape, ref api_version, ref kind, list_kind: _, ref object_head } = *self.parts;
        let (api_version, kind, object_head) = (api_version.clone(), kind.clone(), object_head.clone());
        Self {
            parts: Arc::new(Parts { encoding, shape, api_version, kind, list_kind: list_kind.to_owned(), object_head }),
        }
    }

    /// The encoding that it writes, and that bodies have.
    pub fn encoding(&self) -> Encoding {
        self.parts.encoding
    }

    /// How its JSON is laid out.
    pub fn shape(&self) -> JsonLayout {
        self.parts.shape
    }

    /// The group and version of the objects and of their list: `apps/v1`.
    pub fn api_version(&self) -> &str {
        &self.parts.api_version
    }

    /// The kind of one object: `Deployment`.
    pub fn kind(&self) -> &str {
        &self.parts.kind
    }

    /// A whole HTTP watch frame around `body` (the normal form of this envelope's encoding and shape): a JSON line with
    /// its newline, or a 4-byte big-endian length and a `WatchEvent` message. A body of 4 GiB does not fit, and no
    /// [`Object`](super::Object) has one.
    pub fn frame(&self, event_type: EventType, body: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(self.frame_len(event_type, body.len()));
        self.put_frame_head(event_type, body.len(), &mut out);
        out.put_slice(body);
        self.put_frame_tail(&mut out);
        debug_assert_eq!(out.len(), out.capacity());
        out.freeze()
    }

    /// Appends what comes before the body in a [`frame`](Self::frame). Only protobuf needs to know its length.
    pub fn put_frame_head(&self, event_type: EventType, body_len: usize, out: &mut impl BufMut) {
        match self.parts.encoding {
            Encoding::Json | Encoding::Table => {
                put_json_event(out, event_type);
                out.put_slice(&self.parts.object_head);
            }
            Encoding::Protobuf => {
                put_protobuf_event(out, event_type, self.object_len(body_len));
                out.put_slice(&self.parts.object_head);
                put_header(out, UNKNOWN_RAW, body_len);
            }
        }
    }

    /// Appends what comes behind the body.
    pub fn put_frame_tail(&self, out: &mut impl BufMut) {
        out.put_slice(match self.parts.encoding {
            Encoding::Json | Encoding::Table => JSON_EVENT_TAIL,
            Encoding::Protobuf => &UNKNOWN_TAIL,
        });
    }

    /// Bytes of [`frame`](Self::frame) for a body of `body_len` bytes.
    pub fn frame_len(&self, event_type: EventType, body_len: usize) -> usize {
        match self.parts.encoding {
            Encoding::Json | Encoding::Table => {
                json_event_head_len(event_type) + self.parts.object_head.len() + body_len + JSON_EVENT_TAIL.len()
            }
            Encoding::Protobuf => protobuf_event_len(event_type, self.object_len(body_len)),
        }
    }

    /// A GET answer: the JSON object and a newline, or `k8s\0` and Unknown.
    pub fn object(&self, body: &[u8]) -> Bytes {
        let mut out = BytesMut::with_capacity(self.object_len(body.len()));
        match self.parts.encoding {
            Encoding::Json | Encoding::Table => {
                out.put_slice(&self.parts.object_head);
                out.put_slice(body);
                out.put_u8(b'\n');
            }
            Encoding::Protobuf => self.put_protobuf_object(&mut out, body),
        }
        debug_assert_eq!(out.len(), out.capacity());
        out.freeze()
    }

    /// The pieces of [`object`](Self::object), of which the middle one is the body itself: whoever is slow to take it
    /// holds no copy of it.
    pub fn object_pieces(&self, body: Bytes) -> [Bytes; 3] {
        let head = &self.parts.object_head;
        match self.parts.encoding {
            Encoding::Json | Encoding::Table => [head.clone(), body, Bytes::from_static(b"\n")],
            Encoding::Protobuf => {
                let mut out = BytesMut::with_capacity(head.len() + field_len(body.len()) - body.len());
                out.put_slice(head);
                put_header(&mut out, UNKNOWN_RAW, body.len());
                debug_assert_eq!(out.len(), out.capacity());
                [out.freeze(), body, Bytes::from_static(&UNKNOWN_TAIL)]
            }
        }
    }

    /// The pieces of a LIST answer with this metadata. Lists of Tables are never written here: their cells would be as
    /// old as the rows.
    pub fn list(&self, meta: &ListMeta) -> ListFrame {
        let Parts { encoding, shape, api_version, list_kind, .. } = &*self.parts;
        match encoding {
            Encoding::Json | Encoding::Table => ListFrame::json(*shape, api_version, list_kind, meta),
            Encoding::Protobuf => ListFrame::protobuf(type_meta_head(api_version, list_kind), meta),
        }
    }

    /// An ERROR event around a Status that is encoded already: `status_json` without a final newline, `status_proto` as
    /// a whole document (`k8s\0` and Unknown). Only the one of this envelope's encoding is used.
    pub fn error_frame(&self, status_json: &[u8], status_proto: &[u8]) -> Bytes {
        let event_type = EventType::Error;
        let mut out = BytesMut::new();
        match self.parts.encoding {
            Encoding::Json | Encoding::Table => {
                out.reserve(json_event_head_len(event_type) + status_json.len() + JSON_EVENT_TAIL.len());
                put_json_event(&mut out, event_type);
                out.put_slice(status_json);
                out.put_slice(JSON_EVENT_TAIL);
            }
            Encoding::Protobuf => {
                out.reserve(protobuf_event_len(event_type, status_proto.len()));
                put_protobuf_event(&mut out, event_type, status_proto.len());
                out.put_slice(status_proto);
            }
        }
        out.freeze()
    }

    /// Bytes of a GET answer: in protobuf that is also the document inside a watch event.
    pub fn object_len(&self, body_len: usize) -> usize {
        let head = self.parts.object_head.len();
        match self.parts.encoding {
            Encoding::Json | Encoding::Table => head + body_len + 1,
            Encoding::Protobuf => head + field_len(body_len) + UNKNOWN_TAIL.len(),
        }
    }

    fn put_protobuf_object(&self, out: &mut BytesMut, body: &[u8]) {
        out.put_slice(&self.parts.object_head);
        put_field(out, UNKNOWN_RAW, body);
        out.put_slice(&UNKNOWN_TAIL);
    }
}

/// The websocket message that carries `frame`: JSON is the line itself, protobuf goes without its length prefix
/// (R-WS-2). Shares the frame's bytes.
pub fn websocket_payload(encoding: Encoding, frame: &Bytes) -> Bytes {
    match encoding {
        Encoding::Json | Encoding::Table => frame.clone(),
        Encoding::Protobuf => frame.slice(LENGTH_PREFIX.min(frame.len())..),
    }
}

fn object_head(encoding: Encoding, shape: JsonLayout, api_version: &str, kind: &str) -> Vec<u8> {
    match (encoding, shape) {
        (Encoding::Json, JsonLayout::Custom) => Vec::new(),
        (Encoding::Json, JsonLayout::BuiltIn) => {
            format!(r#"{{"kind":{},"apiVersion":{},"#, json_text(kind), json_text(api_version)).into_bytes()
        }
        (Encoding::Protobuf, _) => type_meta_head(api_version, kind),
        (Encoding::Table, _) => table::TYPE_META.into(),
    }
}

/// `k8s\0` and the `TypeMeta` field of Unknown: how every protobuf document begins.
pub(super) fn type_meta_head(api_version: &str, kind: &str) -> Vec<u8> {
    let mut out = protobuf::MAGIC.to_vec();
    put_header(&mut out, UNKNOWN_TYPE_META, field_len(api_version.len()) + field_len(kind.len()));
    put_field(&mut out, 1, api_version.as_bytes());
    put_field(&mut out, 2, kind.as_bytes());
    out
}

/// `text` as a JSON string. Names and tokens of the API need no escapes; whatever else comes must not break the JSON.
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

/// Length prefix and `WatchEvent` up to the document of `document_len` bytes that ends it.
fn put_protobuf_event(out: &mut impl BufMut, event_type: EventType, document_len: usize) {
    let len = protobuf_event_len(event_type, document_len) - LENGTH_PREFIX;
    // A body comes from a frame with a 32-bit length or is less than 4 GiB of a page: ~100 bytes more still are, or the
    // frame limit, which is far lower, has been given up.
    out.put_u32(u32::try_from(len).expect("a watch event is smaller than 4 GiB"));
    put_field(out, EVENT_TYPE, event_type.as_str().as_bytes());
    put_header(out, EVENT_OBJECT, field_len(document_len));
    put_header(out, RAW_EXTENSION_RAW, document_len);
}

fn protobuf_event_len(event_type: EventType, document_len: usize) -> usize {
    LENGTH_PREFIX + field_len(event_type.as_str().len()) + field_len(field_len(document_len))
}

pub(super) const LENGTH_PREFIX: usize = size_of::<u32>();

/// A JSON watch frame is these three, with the type and the object between them.
pub(super) const JSON_EVENT_HEAD: &[u8] = br#"{"type":""#;
pub(super) const JSON_EVENT_OBJECT: &[u8] = br#"","object":"#;
pub(super) const JSON_EVENT_TAIL: &[u8] = b"}\n";

/// `WatchEvent` and `RawExtension`.
pub(super) const EVENT_TYPE: u8 = 1;
pub(super) const EVENT_OBJECT: u8 = 2;
pub(super) const RAW_EXTENSION_RAW: u8 = 1;

/// Unknown: `TypeMeta`, raw, `contentEncoding`, `contentType`. The last two are always written, and empty.
pub(super) const UNKNOWN_TYPE_META: u8 = 1;
pub(super) const UNKNOWN_RAW: u8 = 2;
pub(super) const UNKNOWN_CONTENT_ENCODING: u8 = 3;
pub(super) const UNKNOWN_CONTENT_TYPE: u8 = 4;
pub(super) const UNKNOWN_TAIL: [u8; 4] =
    [protobuf::tag(UNKNOWN_CONTENT_ENCODING), 0, protobuf::tag(UNKNOWN_CONTENT_TYPE), 0];
