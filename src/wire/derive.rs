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
mod refused;
mod scalar;
mod writer;

#[cfg(test)]
mod tests;

pub use facts::is_builtin_group_version;
pub use metadata::MetadataRenderer;
pub use refused::{TranscodeError, TranscodeRefusal};

use std::ops::RangeInclusive;

use facts::{MessageSchema, ReleaseSchema};
use writer::JsonBodyWriter;

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
    /// outside of [`minors`](Self::minors), and for kinds that are not built-in, such as custom resources. Releases
    /// differ in absent fields: a nil list without omitempty is `null`, and so was a zero `creationTimestamp` until
    /// 1.33.
    pub fn for_server(minor: u32, api_version: &str, kind: &str) -> Option<Self> {
        let facts = ReleaseSchema::of(minor)?;
        facts.kind(api_version, kind).map(|message| Self { facts, message })
    }

    /// Returns the minor releases that the table covers.
    pub fn minors() -> RangeInclusive<u32> {
        ReleaseSchema::minors()
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
