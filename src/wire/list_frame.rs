use std::ops::Add;

use bytes::{BufMut, Bytes, BytesMut};
use memchr::memmem;

use super::envelope::{UNKNOWN_RAW, UNKNOWN_TAIL, json_text};
use super::proto_reader::ProtobufDocument;
use super::{FeedEncoding, JsonLayout, table};
use kubeapi::protobuf::{field_len, leading_message, put_field, put_header, put_varint, tag, varint_len};
use kubeapi::{MetaApiVersion, ResourceVersion};

/// The list metadata of a LIST response.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListMeta {
    pub resource_version: ResourceVersion,
    /// The token of the next page; empty on the last page.
    pub continue_token: String,
    /// The number of remaining objects; written if set. The apiserver sets it only together with a continue token, and
    /// not for selections.
    pub remaining: Option<i64>,
    /// The shard selector of the request, as the apiserver writes it. Lists of custom resources do not show it
    /// (R-SHARD-2).
    pub shard: Option<String>,
}

/// The pieces of a LIST response: [`head`](Self::head), [`put_item`](Self::put_item) for each body,
/// [`tail`](Self::tail).
///
/// Pieces allow a large list to be written in chunks without a second copy. A protobuf head contains the length of all
/// items, so callers sum [`item_len`](Self::item_len) over them first.
#[derive(Debug, Clone)]
pub struct ListFrame {
    layout: ListFrameLayout,
    head: Bytes,
    tail: Bytes,
}

#[derive(Debug, Clone)]
enum ListFrameLayout {
    /// The prefix of each item: `{` before bodies of a built-in kind, which omit it, or nothing.
    Json { item_prefix: &'static [u8] },
    /// The protobuf list metadata. `head` is the document up to Unknown's raw field.
    Protobuf { list_meta: Bytes },
}

/// The total length of some bodies as items of any list, for its head.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ListItemLengths {
    /// The number of bodies in the list.
    pub items: usize,
    /// The number of bytes of the bodies alone.
    pub bytes: usize,
    /// The number of bytes of the bodies as fields of a protobuf message.
    fields: usize,
}

impl ListItemLengths {
    /// Adds the size of one body to the list.
    pub fn add(&mut self, body_len: usize) {
        *self = *self + Self { items: 1, bytes: body_len, fields: field_len(body_len) };
    }
}

impl Add for ListItemLengths {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let Self { items, bytes, fields } = other;
        Self { items: self.items + items, bytes: self.bytes + bytes, fields: self.fields + fields }
    }
}

impl ListFrame {
    pub(super) fn json(shape: JsonLayout, api_version: &str, list_kind: &str, meta: &ListMeta) -> Self {
        let (kind, api_version) = (json_text(list_kind), json_text(api_version));
        let ListMeta { resource_version, continue_token, remaining, shard } = meta;
        let token = json_text(continue_token);
        let remaining = remaining.map(|count| format!(r#","remainingItemCount":{count}"#)).unwrap_or_default();
        let (head, tail, item_prefix) = match shape {
            JsonLayout::BuiltIn => {
                let token = if continue_token.is_empty() { String::new() } else { format!(r#","continue":{token}"#) };
                let shard = shard.as_deref().map(|text| format!(r#","shardInfo":{{"selector":{}}}"#, json_text(text)));
                let shard = shard.unwrap_or_default();
                let meta = format!(r#"{{"resourceVersion":"{resource_version}"{token}{remaining}{shard}}}"#);
                let head = format!(r#"{{"kind":{kind},"apiVersion":{api_version},"metadata":{meta},"items":["#);
                (head, "]}\n".to_owned(), b"{".as_slice())
            }
            JsonLayout::Custom => {
                let meta = format!(r#"{{"continue":{token}{remaining},"resourceVersion":"{resource_version}"}}"#);
                let head = format!(r#"{{"apiVersion":{api_version},"items":["#);
                (head, format!("],\"kind\":{kind},\"metadata\":{meta}}}\n"), b"".as_slice())
            }
        };
        Self { layout: ListFrameLayout::Json { item_prefix }, head: head.into(), tail: tail.into() }
    }

    /// Returns the frame of a JSON list of `PartialObjectMetadata`. Its items have a kind, unlike in other lists of
    /// built-in kinds (R-META-1), and an empty list has `null` items.
    pub(super) fn metadata(version: MetaApiVersion, meta: &ListMeta, items: usize) -> Self {
        let frame = Self::json(JsonLayout::BuiltIn, version.group_version(), "PartialObjectMetadataList", meta);
        if items == 0 {
            let head = frame.head.strip_suffix(b"[").unwrap_or(&frame.head);
            return Self { head: [head, b"null"].concat().into(), tail: Bytes::from_static(b"}\n"), ..frame };
        }
        let item_prefix = match version {
            MetaApiVersion::V1 => METADATA_V1_ITEM,
            MetaApiVersion::V1beta1 => METADATA_V1BETA1_ITEM,
        };
        Self { layout: ListFrameLayout::Json { item_prefix }, ..frame }
    }

    /// Returns the frame of a Table with these columns.
    pub(super) fn table(meta: &ListMeta, columns: &str) -> Self {
        let head = format!("{}{}", table::TYPE_META, table::head(meta, columns));
        Self {
            layout: ListFrameLayout::Json { item_prefix: b"" },
            head: head.into(),
            tail: Bytes::from_static(b"]}\n"),
        }
    }

    /// Returns the frame of a protobuf list. `head` is the document up to Unknown's raw field: magic and `TypeMeta`.
    pub(super) fn protobuf(head: Vec<u8>, meta: &ListMeta) -> Self {
        let ListMeta { resource_version, continue_token, remaining, shard } = meta;
        let mut fields = BytesMut::new();
        put_field(&mut fields, LIST_META_SELF_LINK, b"");
        put_field(&mut fields, LIST_META_RESOURCE_VERSION, resource_version.to_string().as_bytes());
        put_field(&mut fields, LIST_META_CONTINUE, continue_token.as_bytes());
        if let Some(count) = remaining {
            fields.put_u8(LIST_META_REMAINING << 3);
            put_varint(&mut fields, count.cast_unsigned());
        }
        if let Some(selector) = shard {
            put_header(&mut fields, LIST_META_SHARD_INFO, field_len(selector.len()));
            put_field(&mut fields, SHARD_INFO_SELECTOR, selector.as_bytes());
        }
        let mut list_meta = BytesMut::new();
        put_field(&mut list_meta, LIST_METADATA, &fields);
        let layout = ListFrameLayout::Protobuf { list_meta: list_meta.freeze() };
        Self { layout, head: head.into(), tail: Bytes::from_static(&UNKNOWN_TAIL) }
    }

    /// Returns the bytes that an item with a body of `body_len` bytes adds, including its prefix and one separator.
    pub fn item_len(&self, body_len: usize) -> usize {
        match self.layout {
            ListFrameLayout::Json { item_prefix } => SEPARATOR + item_prefix.len() + body_len,
            ListFrameLayout::Protobuf { .. } => field_len(body_len),
        }
    }

    /// Returns the sum of the [`item_len`](Self::item_len) of all items.
    pub fn items_len(&self, lengths: ListItemLengths) -> usize {
        match self.layout {
            ListFrameLayout::Json { item_prefix } => lengths.items * (SEPARATOR + item_prefix.len()) + lengths.bytes,
            ListFrameLayout::Protobuf { .. } => lengths.fields,
        }
    }

    /// Returns the bytes before the first of `items` items whose [`item_len`](Self::item_len)s sum up to `items_len`.
    pub fn head(&self, items: usize, items_len: usize) -> Bytes {
        let ListFrameLayout::Protobuf { list_meta } = &self.layout else { return self.head.clone() };
        debug_assert!(items > 0 || items_len == 0);
        let raw_len = list_meta.len() + items_len;
        let mut out = BytesMut::with_capacity(self.head.len() + 1 + varint_len(raw_len as u64) + list_meta.len());
        out.put_slice(&self.head);
        put_header(&mut out, UNKNOWN_RAW, raw_len);
        out.put_slice(list_meta);
        out.freeze()
    }

    /// Appends one item; `first` states that it is the first one.
    pub fn put_item(&self, first: bool, body: &[u8], out: &mut impl BufMut) {
        self.put_item_head(first, body.len(), out);
        out.put_slice(body);
    }

    /// Appends the bytes before an item's body.
    pub fn put_item_head(&self, first: bool, body_len: usize, out: &mut impl BufMut) {
        match self.layout {
            ListFrameLayout::Json { item_prefix } => {
                if !first {
                    out.put_u8(b',');
                }
                out.put_slice(item_prefix);
            }
            ListFrameLayout::Protobuf { .. } => put_header(out, LIST_ITEMS, body_len),
        }
    }

    /// Returns the bytes after the last item.
    pub fn tail(&self) -> Bytes {
        self.tail.clone()
    }

    /// Returns the length of the whole response; arguments as for [`head`](Self::head).
    pub fn content_length(&self, items: usize, items_len: usize) -> usize {
        match &self.layout {
            // Each item_len includes a separator, and the first item has none.
            ListFrameLayout::Json { .. } => self.head.len() + items_len - SEPARATOR.min(items) + self.tail.len(),
            ListFrameLayout::Protobuf { list_meta } => {
                self.head.len() + field_len(list_meta.len() + items_len) + self.tail.len()
            }
        }
    }
}

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

/// The bytes before the metadata of each item in a JSON list of `PartialObjectMetadata`.
const METADATA_V1_ITEM: &[u8] = br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","#;
const METADATA_V1BETA1_ITEM: &[u8] = br#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1","#;

/// The length of the comma between JSON items.
const SEPARATOR: usize = 1;

/// The field numbers of every list message, and of `ListMeta`.
pub(super) const LIST_METADATA: u8 = 1;
pub(super) const LIST_ITEMS: u8 = 2;
const LIST_META_SELF_LINK: u8 = 1;
pub(super) const LIST_META_RESOURCE_VERSION: u8 = 2;
pub(super) const LIST_META_CONTINUE: u8 = 3;
pub(super) const LIST_META_REMAINING: u8 = 4;
const LIST_META_SHARD_INFO: u8 = 5;
const SHARD_INFO_SELECTOR: u8 = 1;
const _: () = assert!(tag(LIST_ITEMS) == 0x12, "what the apiserver's streaming encoder hardcodes");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::FrameEnvelope;

    fn list(encoding: FeedEncoding, kind: &str, rv: u64, token: &str, bodies: &[&[u8]]) -> Vec<u8> {
        let meta = ListMeta {
            resource_version: ResourceVersion(rv),
            continue_token: token.to_owned(),
            remaining: (!token.is_empty()).then_some(7),
            shard: None,
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
