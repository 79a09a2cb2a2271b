//! The metadata of objects: extracted from protobuf, and converted from JSON to protobuf as Go's generated encoder
//! writes it. A metadata client of custom resources prefers this encoding (R-DERIVE-9).
//!
//! The metadata of custom resources has passed through the apiserver's own `ObjectMeta`, so its JSON contains no other
//! fields. JSON with other fields is refused.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use k8s_openapi::jiff::civil::DateTime;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::facts::{FieldCardinality, MessageSchema, ProtobufFieldSchema, ReleaseSchema, SchemaValueType};
use super::scalar::ZERO_TIME;
use super::writer::JsonBodyWriter;
use super::{TranscodeError, TranscodeRefusal};
use crate::wire::json_reader::{BorrowedJsonText, members, raw_metadata};
use kubeapi::protobuf::{FieldReader, leading_message, plain_field, put_field, put_varint};

/// Derives `PartialObjectMetadata` from the bodies of one kind: their metadata only.
///
/// It works for every kind, built-in or custom. The output is a body of kind `PartialObjectMetadata` in
/// `meta.k8s.io/v1` or `v1beta1`, which are identical.
#[derive(Clone, Copy)]
pub struct MetadataRenderer {
    facts: &'static ReleaseSchema,
    /// The annotations that an object has and its metadata in upstream's responses does not.
    hidden: &'static [&'static str],
}

impl MetadataRenderer {
    /// Creates a renderer for bodies of `kind` in `api_version`, for a server of release `1.minor`. Because
    /// `ObjectMeta` has rarely changed, releases outside the table use the rules of the nearest one in it.
    pub fn for_server(minor: u32, api_version: &str, kind: &str) -> Self {
        let minors = ReleaseSchema::minors();
        let nearest = minor.clamp(*minors.start(), *minors.end());
        let facts = ReleaseSchema::of(nearest).unwrap_or_else(ReleaseSchema::newest);
        Self { facts, hidden: hidden_annotations(api_version, kind) }
    }

    /// Returns the metadata as protobuf from a protobuf body. It is a slice of the body, unless an annotation must be
    /// removed.
    pub fn protobuf(&self, body: &Bytes) -> Result<Bytes, TranscodeError> {
        let (at, len) = leading_message(body).ok_or_else(no_metadata)?;
        let metadata = &body[at..at + len];
        match self.without_hidden(metadata).map_err(in_metadata)? {
            Some(metadata) => Ok(as_body(&metadata)),
            None => Ok(body.slice(..at + len)),
        }
    }

    /// Appends the metadata as JSON from a protobuf body. If the body is refused, `out` is unchanged.
    pub fn json(&self, body: &[u8], out: &mut Vec<u8>) -> Result<(), TranscodeError> {
        let (at, len) = leading_message(body).ok_or_else(no_metadata)?;
        let metadata = &body[at..at + len];
        match self.without_hidden(metadata).map_err(in_metadata)? {
            Some(metadata) => self.put_json(&metadata, out),
            None => self.put_json(metadata, out),
        }
    }

    /// Returns protobuf from a JSON body of either [`JsonLayout`](crate::wire::JsonLayout).
    pub fn protobuf_from_json(&self, body: &[u8]) -> Result<Bytes, TranscodeError> {
        self.read_json(body).map(|metadata| as_body(&metadata))
    }

    /// Appends JSON from a JSON body of either shape, in the order of the Go struct, which the keys of custom resources
    /// do not have. If it is refused, `out` is unchanged.
    pub fn json_from_json(&self, body: &[u8], out: &mut Vec<u8>) -> Result<(), TranscodeError> {
        let metadata = self.read_json(body)?;
        self.put_json(&metadata, out)
    }

    /// Returns the `ObjectMeta` message of a JSON body, as the server's encoder writes it.
    fn read_json(&self, body: &[u8]) -> Result<Vec<u8>, TranscodeError> {
        let metadata = object_meta(self.facts, body).map_err(in_metadata)?;
        Ok(self.without_hidden(&metadata).map_err(in_metadata)?.unwrap_or(metadata))
    }

    fn put_json(&self, metadata: &[u8], out: &mut Vec<u8>) -> Result<(), TranscodeError> {
        let start = out.len();
        out.extend_from_slice(br#""metadata":{"#);
        let mut writer = JsonBodyWriter::new(self.facts, metadata, out);
        if let Err(why) = writer.fields(self.facts.object_meta(), metadata) {
            let path: Vec<_> = writer.path().iter().copied().chain([METADATA]).collect();
            out.truncate(start);
            return Err(TranscodeError::new(&path, why));
        }
        out.extend_from_slice(b"}}");
        Ok(())
    }

    /// Returns the `ObjectMeta` message without the hidden annotations; `None` if it has none of those.
    fn without_hidden(&self, metadata: &[u8]) -> Result<Option<Vec<u8>>, TranscodeRefusal> {
        if self.hidden.is_empty() {
            return Ok(None);
        }
        let mut kept = Vec::with_capacity(metadata.len());
        let mut fields = FieldReader::new(metadata);
        while let Some(field) = fields.next_field()? {
            let is_hidden = field.number == ANNOTATIONS && {
                let (key, _) = plain_field(field.bytes()?, 1).unwrap_or_default();
                self.hidden.iter().any(|hidden| hidden.as_bytes() == key)
            };
            if !is_hidden {
                kept.extend_from_slice(&metadata[field.start..field.end]);
            }
        }
        Ok((kept.len() < metadata.len()).then_some(kept))
    }
}

/// Returns the metadata of a JSON body as a protobuf message. The body is a whole custom resource, or a built-in object
/// without its `TypeMeta`.
pub(super) fn object_meta(facts: &ReleaseSchema, body: &[u8]) -> Result<Vec<u8>, TranscodeRefusal> {
    let metadata = raw_metadata(body).map_err(|_| OTHER)?;
    let mut out = Vec::with_capacity(body.len() / 2);
    put_object(&mut out, facts, facts.object_meta(), metadata)?;
    Ok(out)
}

/// Appends a JSON object as a message. Go's encoder writes every field that is not a pointer, list or map, even if it is
/// empty.
fn put_object(
    out: &mut Vec<u8>,
    facts: &ReleaseSchema,
    message: &MessageSchema,
    json: &str,
) -> Result<(), TranscodeRefusal> {
    let mut values = vec![None; message.fields.len()];
    for (name, value) in members(json).map_err(|_| OTHER)? {
        let index = message.fields.iter().position(|field| field.name == name).ok_or(OTHER)?;
        if values[index].replace(value.get()).is_some() {
            return Err(OTHER);
        }
    }
    let mut fields: Vec<_> = message.fields.iter().zip(values).collect();
    fields.sort_by_key(|(field, _)| field.number);
    for (field, json) in fields {
        if field.arity != FieldCardinality::One && matches!(json, None | Some("null")) {
            continue;
        }
        match (field.arity, json) {
            (FieldCardinality::Many, Some(json)) => {
                for item in read::<Vec<&RawValue>>(json)? {
                    put_value(out, facts, field, Some(item.get()))?;
                }
            }
            (FieldCardinality::Map, Some(json)) => {
                for (key, value) in read::<BTreeMap<BorrowedJsonText<'_>, BorrowedJsonText<'_>>>(json)? {
                    let mut entry = Vec::new();
                    put_bytes(&mut entry, 1, key.0.as_bytes());
                    put_bytes(&mut entry, 2, value.0.as_bytes());
                    put_bytes(out, field.number, &entry);
                }
            }
            (FieldCardinality::Embedded, _) => return Err(OTHER),
            _ => put_value(out, facts, field, json)?,
        }
    }
    Ok(())
}

/// Appends one value of a field. An absent value is the zero value.
fn put_value(
    out: &mut Vec<u8>,
    facts: &ReleaseSchema,
    field: &ProtobufFieldSchema,
    json: Option<&str>,
) -> Result<(), TranscodeRefusal> {
    let mut message = Vec::new();
    match (field.kind, json) {
        (SchemaValueType::Int64, _) => {
            put_int(out, field.number, json.map_or(Ok(0), read)?);
            return Ok(());
        }
        (SchemaValueType::Bool, Some(json)) => {
            put_int(out, field.number, i64::from(read::<bool>(json)?));
            return Ok(());
        }
        (SchemaValueType::Text, Some(json)) => {
            message.extend_from_slice(read::<BorrowedJsonText<'_>>(json)?.0.as_bytes());
        }
        // The zero time is an empty message.
        (SchemaValueType::Text, None) | (SchemaValueType::Time, None | Some("null")) => {}
        (SchemaValueType::Time, Some(json)) => {
            put_int(&mut message, 1, unix_seconds(&read::<BorrowedJsonText<'_>>(json)?.0)?);
            put_int(&mut message, 2, 0);
        }
        // The server's text is compact and HTML-safe in JSON and in protobuf.
        (SchemaValueType::Raw, Some(json)) => put_bytes(&mut message, 1, json.as_bytes()),
        (SchemaValueType::Message(id), Some(json)) => put_object(&mut message, facts, facts.message(id), json)?,
        _ => return Err(OTHER),
    }
    put_bytes(out, field.number, &message);
    Ok(())
}

fn read<'a, T: Deserialize<'a>>(json: &'a str) -> Result<T, TranscodeRefusal> {
    serde_json::from_str(json).map_err(|_| OTHER)
}

fn put_int(out: &mut Vec<u8>, number: usize, value: i64) {
    put_varint(out, (number as u64) << 3);
    put_varint(out, value.cast_unsigned());
}

fn put_bytes(out: &mut Vec<u8>, number: usize, bytes: &[u8]) {
    put_varint(out, (number as u64) << 3 | 2);
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Returns the seconds since 1970 of `2006-01-02T15:04:05Z`, the only format that the apiserver prints.
fn unix_seconds(text: &str) -> Result<i64, TranscodeRefusal> {
    let time = text.strip_suffix('Z').and_then(|time| time.parse::<DateTime>().ok());
    let time = time.filter(|time| time.subsec_nanosecond() == 0 && format!("{time}Z") == text);
    let seconds = time.map(|time| time.duration_since(DateTime::constant(1970, 1, 1, 0, 0, 0, 0)).as_secs());
    let seconds = seconds.filter(|seconds| *seconds >= ZERO_TIME);
    seconds.ok_or(TranscodeRefusal::Value("not a time as the apiserver prints it"))
}

/// Returns the annotations that upstream's conversion adds to the objects of one version, after it has derived their
/// metadata (R-DERIVE-8; pkg/apis/{apps,autoscaling}/v1/conversion.go).
fn hidden_annotations(api_version: &str, kind: &str) -> &'static [&'static str] {
    match (api_version, kind) {
        ("apps/v1", "DaemonSet") => &["deprecated.daemonset.template.generation"],
        ("apps/v1", "Deployment") => &["deprecated.deployment.rollback.to"],
        ("autoscaling/v1", "HorizontalPodAutoscaler") => &[
            "autoscaling.alpha.kubernetes.io/behavior",
            "autoscaling.alpha.kubernetes.io/conditions",
            "autoscaling.alpha.kubernetes.io/current-metrics",
            "autoscaling.alpha.kubernetes.io/metrics",
        ],
        _ => &[],
    }
}

/// Returns a message with `metadata` as its only field.
fn as_body(metadata: &[u8]) -> Bytes {
    let mut body = BytesMut::with_capacity(metadata.len() + LENGTH_MAX);
    put_field(&mut body, 1, metadata);
    body.freeze()
}

fn no_metadata() -> TranscodeError {
    TranscodeError::new(&[], TranscodeRefusal::Malformed("it does not begin with its metadata"))
}

fn in_metadata(why: TranscodeRefusal) -> TranscodeError {
    TranscodeError::new(&[METADATA], why)
}

const OTHER: TranscodeRefusal = TranscodeRefusal::Value("not metadata as the apiserver prints it");
const METADATA: &str = "metadata";
/// The field number of `annotations` in `ObjectMeta`.
const ANNOTATIONS: u32 = 12;
/// The maximum size of a tag and a length.
const LENGTH_MAX: usize = 11;
