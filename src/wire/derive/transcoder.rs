use std::ops::RangeInclusive;

use super::Refused;
use super::facts::{Facts, Message};
use super::writer::BodyWriter;

/// Writes the JSON of one kind's protobuf bodies, as a server of one release does.
///
/// Copying it is cheap. It costs nothing until its first use, when the table of that release is read.
#[derive(Clone, Copy)]
pub struct Transcoder {
    facts: &'static Facts,
    message: &'static Message,
}

impl Transcoder {
    /// For `kind` of `api_version` (`v1`, `apps/v1`) as the newest release in the table has it. `None` for what is not
    /// one of the API's own kinds, such as custom resources.
    ///
    /// Only for servers of that release: see [`for_server`](Self::for_server).
    pub fn for_kind(api_version: &str, kind: &str) -> Option<Self> {
        Self::with(Facts::newest(), api_version, kind)
    }

    /// The same as a server of release `1.minor` has it; `None` outside of [`minors`](Self::minors) too. What a release
    /// does not have, another may print: a nil list without omitempty is `null`, a zero `creationTimestamp` was until
    /// 1.33.
    pub fn for_server(minor: u32, api_version: &str, kind: &str) -> Option<Self> {
        Self::with(Facts::of(minor)?, api_version, kind)
    }

    /// The releases in the table.
    pub fn minors() -> RangeInclusive<u32> {
        Facts::minors()
    }

    fn with(facts: &'static Facts, api_version: &str, kind: &str) -> Option<Self> {
        facts.kind(api_version, kind).map(|message| Self { facts, message })
    }

    /// Appends the JSON body of the object whose protobuf body this is. When it is refused, `out` is as it was.
    pub fn json(&self, body: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        put_body(self.facts, self.message, body, false, out)
    }

    /// Writes the JSON of a bookmark, which is the zero value of its type except for its metadata: where it has no list
    /// there is none, also in kinds that keep an empty one apart.
    pub fn bookmark_json(&self, body: &[u8], out: &mut Vec<u8>) -> Result<(), Refused> {
        put_body(self.facts, self.message, body, true, out)
    }
}

/// The JSON body of one `message`, which is an object.
fn put_body(
    facts: &Facts,
    message: &Message,
    body: &[u8],
    of_zero_value: bool,
    out: &mut Vec<u8>,
) -> Result<(), Refused> {
    let start = out.len();
    let mut writer = BodyWriter::new(facts, body, out);
    writer.of_zero_value = of_zero_value;
    if let Err(why) = writer.fields(message, body) {
        let refused = Refused::new(writer.path(), why);
        out.truncate(start);
        return Err(refused);
    }
    out.push(b'}');
    Ok(())
}
