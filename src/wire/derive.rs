//! Other representations of the same objects, without another upstream watch: JSON from protobuf, and
//! `PartialObjectMetadata` from either.
//!
//! A [`ProtobufJsonTranscoder`] writes the JSON body that the apiserver would have written for an object whose protobuf
//! body is held. A [`MetadataRenderer`] extracts the metadata from a body. Both take and return bodies in the normal
//! form of [`wire`](super), so the same [`FrameEnvelope`](super::FrameEnvelope)s and [`ListFrame`](super::ListFrame)s
//! wrap their output.
//!
//! **Exact or refused.** The output is byte for byte that of the server, or there is none. An unknown field number, a
//! wire type other than the table's, or a raw value that JSON cannot express is [`TranscodeError`]. The caller then
//! fetches that representation from upstream, because a client that writes back an incomplete object deletes fields.
//! The rules are R-DERIVE-5 to R-DERIVE-9, cited where they are implemented. Their table is generated from the API's Go
//! types ([`facts`]).
//!
//! This module cannot detect a server whose release differs from its reported one. Callers compare samples with the
//! server's own output (W15).

mod custom_metadata;
mod facts;
mod go_json;
mod metadata;
mod scalar;
mod writer;

#[cfg(test)]
mod tests;

pub(super) use custom_metadata::unix_seconds;
pub use facts::is_builtin_group_version;
pub(super) use go_json::{put_double, put_text};
pub use metadata::MetadataRenderer;

use facts::{MessageSchema, ReleaseSchema};
use kubeapi::protobuf::ProtobufError;
use writer::JsonBodyWriter;

/// Whether the release `1.minor` is in the table, so that its output is known.
pub(super) fn is_known_release(minor: u32) -> bool {
    ReleaseSchema::of(minor).is_some()
}

/// Converts the protobuf bodies of one kind to JSON, as a server of one release does.
///
/// Copies are cheap. The table of a release is parsed at its first use.
#[derive(Clone, Copy)]
pub struct ProtobufJsonTranscoder {
    facts: &'static ReleaseSchema,
    message: &'static MessageSchema,
}

impl ProtobufJsonTranscoder {
    /// Returns the transcoder of `kind` in `api_version` (`v1`, `apps/v1`) for a server of release `1.minor`. `None`
    /// for releases outside of the table, and for kinds that are not built-in, such as custom resources. Releases
    /// differ in absent fields: a nil list without omitempty is `null`, and so was a zero `creationTimestamp` until
    /// 1.33.
    pub fn for_server(minor: u32, api_version: &str, kind: &str) -> Option<Self> {
        let facts = ReleaseSchema::of(minor)?;
        facts.kind(api_version, kind).map(|message| Self { facts, message })
    }

    /// Appends the JSON body of an object to `out`, from its protobuf body. If the body is refused, `out` is unchanged.
    pub fn json(&self, body: &[u8], out: &mut Vec<u8>) -> Result<(), TranscodeError> {
        self.put_body(body, false, out)
    }

    /// Appends the JSON of a bookmark, which is the zero value of its type except for its metadata. An absent list is
    /// nil, also in kinds that distinguish it from an empty one.
    pub fn bookmark_json(&self, body: &[u8], out: &mut Vec<u8>) -> Result<(), TranscodeError> {
        self.put_body(body, true, out)
    }

    fn put_body(&self, body: &[u8], of_zero_value: bool, out: &mut Vec<u8>) -> Result<(), TranscodeError> {
        let start = out.len();
        let mut writer = JsonBodyWriter::new(self.facts, body, out);
        writer.of_zero_value = of_zero_value;
        if let Err(why) = writer.fields(self.message, body) {
            let refused = TranscodeError::new(writer.path(), why);
            out.truncate(start);
            return Err(refused);
        }
        out.push(b'}');
        Ok(())
    }
}

/// A body that cannot be written in another encoding, with the field that prevents it. Nothing of the body was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{}: {reason}", if path.is_empty() { "the object" } else { "" }, path)]
pub struct TranscodeError {
    /// The path of JSON names from the object down, such as `spec.containers.ports`; empty for the object itself.
    pub path: String,
    pub reason: TranscodeRefusal,
}

/// The reason that a field cannot be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TranscodeRefusal {
    /// The field does not exist in the server's release: the server is a newer one, or a fork.
    #[error("unknown protobuf field number {0}")]
    UnknownField(u32),
    /// The data is not a message, or not one that the apiserver's encoder writes.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// The data is well-formed, but not a value of the field's type.
    #[error("invalid value: {0}")]
    Value(&'static str),
    /// The field is absent on the wire. Kinds that are stored as JSON keep `[]` apart from `null`, and protobuf does
    /// not.
    #[error("an empty list cannot be told apart from a missing one in protobuf")]
    NilOrEmpty,
    /// Messages or JSON values are nested deeper than any that an apiserver serves.
    #[error("values are nested too deeply")]
    TooDeep,
    /// The JSON would be much larger than that of any valid body of the same size.
    #[error("the JSON form exceeds the limit of {0} bytes")]
    TooLarge(usize),
}

impl TranscodeError {
    /// Creates a refusal. `path` is ordered from the innermost field outwards.
    pub(super) fn new(path: &[&'static str], why: TranscodeRefusal) -> Self {
        let names: Vec<_> = path.iter().rev().copied().collect();
        Self { path: names.join("."), reason: why }
    }
}

impl From<ProtobufError> for TranscodeRefusal {
    fn from(error: ProtobufError) -> Self {
        Self::Malformed(match error {
            ProtobufError::Malformed(what) => what,
            ProtobufError::Truncated => "truncated field",
        })
    }
}
