use bytes::{Bytes, BytesMut};

use super::custom_metadata::ObjectMeta;
use super::facts::ReleaseSchema;
use super::writer::JsonBodyWriter;
use super::{TranscodeError, TranscodeRefusal};
use kubeapi::protobuf::{FieldReader, leading_message, plain_field, put_field};

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
        let mut metadata = ObjectMeta::read(body).map_err(in_metadata)?;
        metadata.remove_annotations(self.hidden);
        let mut out = Vec::with_capacity(body.len() / 2);
        metadata.put_protobuf(&mut out).map_err(in_metadata)?;
        Ok(out)
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

const METADATA: &str = "metadata";
/// The field number of `annotations` in `ObjectMeta`.
const ANNOTATIONS: u32 = 12;
/// The maximum size of a tag and a length.
const LENGTH_MAX: usize = 11;
