use std::ops::RangeInclusive;

use super::TranscodeError;
use super::facts::{Message, TypeSchema};
use super::writer::BodyWriter;

/// Converts the protobuf bodies of one kind to JSON, as a server of one release does.
///
/// Copies are cheap. The table of a release is parsed at its first use.
#[derive(Clone, Copy)]
pub struct Transcoder {
    facts: &'static TypeSchema,
    message: &'static Message,
}

impl Transcoder {
    /// Returns the transcoder of `kind` in `api_version` (`v1`, `apps/v1`) for the newest release in the table. `None`
    /// for kinds that are not built-in, such as custom resources.
    ///
    /// Valid only for servers of that release: see [`for_server`](Self::for_server).
    pub fn for_kind(api_version: &str, kind: &str) -> Option<Self> {
        Self::with(TypeSchema::newest(), api_version, kind)
    }

    /// Returns the transcoder for a server of release `1.minor`; also `None` outside of [`minors`](Self::minors).
    /// Releases differ in absent fields: a nil list without omitempty is `null`, and so was a zero `creationTimestamp`
    /// until 1.33.
    pub fn for_server(minor: u32, api_version: &str, kind: &str) -> Option<Self> {
        Self::with(TypeSchema::of(minor)?, api_version, kind)
    }

    /// Returns the minor releases that the table covers.
    pub fn minors() -> RangeInclusive<u32> {
        TypeSchema::minors()
    }

    fn with(facts: &'static TypeSchema, api_version: &str, kind: &str) -> Option<Self> {
        facts.kind(api_version, kind).map(|message| Self { facts, message })
    }

    /// Appends the JSON body of an object to `out`, from its protobuf body. If the body is refused, `out` is unchanged.
    pub fn json(&self, body: &[u8], out: &mut Vec<u8>) -> Result<(), TranscodeError> {
        put_body(self.facts, self.message, body, false, out)
    }

    /// Appends the JSON of a bookmark, which is the zero value of its type except for its metadata. An absent list is
    /// nil, also in kinds that distinguish it from an empty one.
    pub fn bookmark_json(&self, body: &[u8], out: &mut Vec<u8>) -> Result<(), TranscodeError> {
        put_body(self.facts, self.message, body, true, out)
    }
}

/// Appends the JSON body of one `message`, which must be an object.
fn put_body(
    facts: &TypeSchema,
    message: &Message,
    body: &[u8],
    of_zero_value: bool,
    out: &mut Vec<u8>,
) -> Result<(), TranscodeError> {
    let start = out.len();
    let mut writer = BodyWriter::new(facts, body, out);
    writer.of_zero_value = of_zero_value;
    if let Err(why) = writer.fields(message, body) {
        let refused = TranscodeError::new(writer.path(), why);
        out.truncate(start);
        return Err(refused);
    }
    out.push(b'}');
    Ok(())
}
