use std::borrow::Cow;

use bytes::{BufMut, Bytes, BytesMut};
use memchr::memmem;

use super::envelope::json_text;
use super::json_reader::raw_metadata;
use super::proto_reader::{META_ANNOTATIONS, META_RESOURCE_VERSION};
use super::{FeedEncoding, FrameEnvelope, JsonLayout, ObjectRevision, WireError, json_reader, table};
use kubeapi::protobuf::{self, FieldReader, map_entry, put_field, put_header};
use kubeapi::{EventType, ResourceVersion};

/// A template made from the last upstream bookmark, whose version is replaced for each bookmark sent.
///
/// A bookmark is the zero-value object of its kind, whose encoding depends on the server (`"spec":{…}` with required
/// fields, `"creationTimestamp":null` before 1.34, a deprecated annotation of `DaemonSets`). So the template copies it
/// unchanged (R-BOOKMARK-2, R-BOOKMARK-4). It adds or removes the initial-events-end annotation as Go's encoder would.
#[derive(Debug, Clone)]
pub struct BookmarkTemplate {
    envelope: FrameEnvelope,
    plain: BookmarkBodyTemplate,
    initial_events_end: BookmarkBodyTemplate,
}

/// A body with a gap where the resourceVersion's digits are.
#[derive(Debug, Clone)]
struct BookmarkBodyTemplate {
    /// In JSON, the body up to the digits. In protobuf, the metadata fields before the resourceVersion.
    before: Vec<u8>,
    /// In JSON, the body after the digits; in a Table, up to the digits of the row's object. In protobuf, the metadata
    /// fields after the resourceVersion.
    after: Vec<u8>,
    /// In a Table, the body after the second digits. In protobuf, the body's fields after the metadata.
    rest: Vec<u8>,
}

impl BookmarkTemplate {
    /// Creates a template from a BOOKMARK's object in the envelope's encoding and shape, with or without the
    /// annotation.
    ///
    /// # Errors
    /// The object cannot be read, because it is not in the envelope's encoding and shape.
    pub fn from_object(envelope: &FrameEnvelope, object: &ObjectRevision) -> Result<Self, WireError> {
        let holes = |end| match envelope.encoding() {
            FeedEncoding::Json => BookmarkBodyTemplate::in_json(envelope.layout(), object.body(), end),
            FeedEncoding::Protobuf => BookmarkBodyTemplate::in_protobuf(object.body(), end),
            FeedEncoding::Table => BookmarkBodyTemplate::in_table(envelope.layout(), object.body(), end),
        };
        if object.encoding() != envelope.encoding() {
            return Err(WireError::WrongEncoding);
        }
        Ok(Self { envelope: envelope.clone(), plain: holes(false)?, initial_events_end: holes(true)? })
    }

    /// Creates a template with metadata only, for use until upstream has sent a bookmark. 1.34 and later send the same
    /// for kinds without required fields, and every decoder reads it as the zero value of the others.
    pub fn minimal(envelope: &FrameEnvelope) -> Self {
        let hole = |end| BookmarkBodyTemplate::minimal(envelope, end);
        Self { envelope: envelope.clone(), plain: hole(false), initial_events_end: hole(true) }
    }

    /// Returns a whole BOOKMARK frame at `rv`; see [`body`](Self::body).
    pub fn frame(&self, rv: ResourceVersion, initial_events_end: bool) -> Bytes {
        self.envelope.frame(EventType::Bookmark, &self.body(rv, initial_events_end))
    }

    /// Returns the body of a bookmark at `rv`. It has the annotation `"k8s.io/initial-events-end":"true"` if and only
    /// if it closes the initial events.
    pub fn body(&self, rv: ResourceVersion, initial_events_end: bool) -> Bytes {
        let BookmarkBodyTemplate { before, after, rest } =
            if initial_events_end { &self.initial_events_end } else { &self.plain };
        let [before, after, rest] = [before, after, rest].map(Vec::as_slice);
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(rv.0).as_bytes();
        match self.envelope.encoding() {
            FeedEncoding::Json => [before, digits, after].concat().into(),
            FeedEncoding::Table => [before, digits, after, digits, rest].concat().into(),
            FeedEncoding::Protobuf => {
                let metadata_len = before.len() + protobuf::field_len(digits.len()) + after.len();
                let mut out = BytesMut::with_capacity(metadata_len + rest.len() + HEADERS_MAX);
                put_header(&mut out, METADATA, metadata_len);
                out.put_slice(before);
                put_field(&mut out, RESOURCE_VERSION, digits);
                out.put_slice(after);
                out.put_slice(rest);
                out.freeze()
            }
        }
    }
}

impl BookmarkBodyTemplate {
    fn minimal(envelope: &FrameEnvelope, end: bool) -> Self {
        let (api_version, kind) = (json_text(envelope.api_version()), json_text(envelope.kind()));
        let hole = match (envelope.encoding(), envelope.layout()) {
            (FeedEncoding::Protobuf, _) => Self::in_protobuf(&MINIMAL_PROTOBUF, end),
            (FeedEncoding::Json, shape @ JsonLayout::BuiltIn) => Self::in_json(shape, MINIMAL_METADATA.as_bytes(), end),
            (FeedEncoding::Json, shape @ JsonLayout::Custom) => {
                let object = format!(r#"{{"apiVersion":{api_version},"kind":{kind},{MINIMAL_METADATA}"#);
                Self::in_json(shape, object.as_bytes(), end)
            }
            (FeedEncoding::Table, shape) => {
                let type_meta = match shape {
                    JsonLayout::BuiltIn => format!(r#""kind":{kind},"apiVersion":{api_version}"#),
                    JsonLayout::Custom => format!(r#""apiVersion":{api_version},"kind":{kind}"#),
                };
                let row = format!(r#"{{"cells":[],"object":{{{type_meta},{MINIMAL_METADATA}}}"#);
                let body = [table::VERSION, "1", table::ROWS, &row, table::TAIL].concat();
                Self::in_table(shape, body.as_bytes(), end)
            }
        };
        hole.expect("the minimal bodies are well-formed")
    }

    fn in_json(shape: JsonLayout, body: &[u8], end: bool) -> Result<Self, WireError> {
        let metadata = raw_metadata(body)?;
        let at = metadata.as_ptr().addr() - body.as_ptr().addr();

        let mut fields = members(metadata)?;
        let annotations = fields.iter().position(|(key, _)| key == "annotations").map(|at| fields.remove(at).1);
        let mut annotations = annotations.as_deref().map_or(Ok(Vec::new()), members)?;
        annotations.retain(|(key, _)| key != INITIAL_EVENTS_END);
        if end {
            let place = annotations.partition_point(|(key, _)| &**key < INITIAL_EVENTS_END);
            annotations.insert(place, (INITIAL_EVENTS_END.into(), r#""true""#.into()));
        }
        if !annotations.is_empty() {
            let is_after = |(key, _): &BookmarkMember<'_>| match shape {
                JsonLayout::BuiltIn => AFTER_ANNOTATIONS.contains(&&**key),
                JsonLayout::Custom => &**key >= "annotations",
            };
            let place = fields.iter().position(is_after).unwrap_or(fields.len());
            fields.insert(place, ("annotations".into(), format!("{{{}}}", joined(&annotations)).into()));
        }
        let version =
            fields.iter().position(|(key, _)| key == "resourceVersion").ok_or(WireError::BadResourceVersion)?;
        let (before, after) = (joined(&fields[..version]), joined(&fields[version + 1..]));
        let comma = |part: &str| if part.is_empty() { "" } else { "," };
        let head = format!("{{{before}{}\"resourceVersion\":\"", comma(&before));
        let tail = format!("\"{}{after}}}", comma(&after));
        let [head, tail] = [[&body[..at], head.as_bytes()], [tail.as_bytes(), &body[at + metadata.len()..]]];
        Ok(Self { before: head.concat(), after: tail.concat(), rest: Vec::new() })
    }

    fn in_table(shape: JsonLayout, body: &[u8], end: bool) -> Result<Self, WireError> {
        let object = table::object_of(body).ok_or(WireError::Layout("a bookmark that is not a Table with one row"))?;
        let version = table::version_and_rows(body).map_or(0, |(version, _)| version.len());
        let (before, between) = body[..object.start].split_at(table::VERSION.len());
        // The object's `TypeMeta` stays where it is.
        let inner = &body[object.clone()];
        let metadata_at = match shape {
            JsonLayout::BuiltIn => memmem::find(inner, br#""metadata":"#).ok_or(WireError::NoMetadata)?,
            JsonLayout::Custom => 0,
        };
        let inner = Self::in_json(shape, &inner[metadata_at..], end)?;
        let after = [&between[version..], &body[object.start..object.start + metadata_at], &inner.before].concat();
        Ok(Self { before: before.into(), after, rest: [&inner.after, &body[object.end..]].concat() })
    }

    fn in_protobuf(body: &[u8], end: bool) -> Result<Self, WireError> {
        let (at, len) = protobuf::leading_message(body).ok_or(WireError::NoMetadata)?;
        let metadata = &body[at..at + len];
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let (mut version_seen, mut pending) = (false, end);
        let mut fields = FieldReader::new(metadata);
        while let Some(field) = fields.next_field()? {
            let annotation = if field.number == META_ANNOTATIONS { Some(map_entry(field.bytes()?)?.0) } else { None };
            if field.number == META_RESOURCE_VERSION {
                version_seen = true;
                continue;
            }
            if annotation == Some(INITIAL_EVENTS_END) {
                continue;
            }
            // Fields are written by number and annotations by key: the annotation goes before the first one that sorts
            // after it.
            let place = (field.number, annotation.unwrap_or_default());
            if pending && place > (META_ANNOTATIONS, INITIAL_EVENTS_END) {
                put_initial_events_end(&mut after);
                pending = false;
            }
            let out = if version_seen { &mut after } else { &mut before };
            out.extend_from_slice(&metadata[field.start..field.end]);
        }
        if pending {
            put_initial_events_end(&mut after);
        }
        if !version_seen {
            return Err(WireError::BadResourceVersion);
        }
        Ok(Self { before, after, rest: body[at + len..].to_vec() })
    }
}

/// A key, and its value in JSON.
type BookmarkMember<'a> = (Cow<'a, str>, Cow<'a, str>);

/// Returns the members of a JSON object in their order, with values in their original spelling.
fn members(object: &str) -> Result<Vec<BookmarkMember<'_>>, WireError> {
    let members = json_reader::members(object)?;
    Ok(members.into_iter().map(|(key, value)| (key, value.get().into())).collect())
}

fn joined(members: &[BookmarkMember<'_>]) -> String {
    members.iter().map(|(key, value)| format!("{}:{value}", json_text(key))).collect::<Vec<_>>().join(",")
}

fn put_initial_events_end(out: &mut Vec<u8>) {
    let len = protobuf::field_len(INITIAL_EVENTS_END.len()) + protobuf::field_len("true".len());
    put_header(out, ANNOTATIONS, len);
    put_field(out, 1, INITIAL_EVENTS_END.as_bytes());
    put_field(out, 2, b"true");
}

/// The annotation of the bookmark that ends a streamed list's initial events, with the value `true`.
pub(super) const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The fields of `ObjectMeta` that are declared after `annotations`, including one that was removed in 1.24.
const AFTER_ANNOTATIONS: [&str; 4] = ["ownerReferences", "finalizers", "clusterName", "managedFields"];

/// The end of a minimal object, from its metadata on.
const MINIMAL_METADATA: &str = r#""metadata":{"resourceVersion":"1"}}"#;

/// A bookmark with the fields that Go always writes for an `ObjectMeta`: name, `generateName`, namespace, `selfLink`,
/// uid, resourceVersion, generation and an empty `creationTimestamp`.
const MINIMAL_PROTOBUF: [u8; 19] =
    [0x0a, 17, 0x0a, 0, 0x12, 0, 0x1a, 0, 0x22, 0, 0x2a, 0, 0x32, 1, b'1', 0x38, 0, 0x42, 0];

/// The field numbers as `u8`, the type that the writers take.
const METADATA: u8 = 1;
const RESOURCE_VERSION: u8 = 6;
const ANNOTATIONS: u8 = 12;

/// Maximum size of the tag and length that [`BookmarkTemplate::body`] adds.
const HEADERS_MAX: usize = 16;
