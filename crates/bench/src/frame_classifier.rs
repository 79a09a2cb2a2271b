//! Finds the few needed values in a frame with byte searches and a walk over a handful of fields. It does not parse
//! frames and does not allocate.

use memchr::memmem::Finder;

use kubeapi::WRITE_TIME;

/// The type of a watch frame, as recognised from its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClassifiedFrame {
    /// The event is ADDED or MODIFIED. It may contain its write time.
    Written,
    /// The event is DELETED. A write time in it belongs to an earlier write.
    Deleted,
    Bookmark {
        initial_end: bool,
    },
    /// The requested resourceVersion is no longer available (410).
    Expired,
    Error,
    Unknown,
}

/// Prepared byte searches that recognise watch frames.
#[derive(Clone, Debug)]
pub(super) struct FrameClassifier {
    is_protobuf: bool,
    version: Finder<'static>,
    written: Finder<'static>,
    initial_end: Finder<'static>,
    expired: Finder<'static>,
}

impl FrameClassifier {
    pub(super) fn new(is_protobuf: bool) -> Self {
        let (written, initial_end, expired) = if is_protobuf {
            // The key of a map's entry, and the tag of its value. The code of a Status is its sixth field.
            (format!("{WRITE_TIME}\x12"), "k8s.io/initial-events-end\x12", &b"\x30\x9a\x03"[..])
        } else {
            (format!("\"{WRITE_TIME}\":\""), "\"k8s.io/initial-events-end\":\"true\"", &b"\"code\":410"[..])
        };
        Self {
            is_protobuf,
            version: Finder::new("\"resourceVersion\":\""),
            written: Finder::new(written.as_bytes()).into_owned(),
            initial_end: Finder::new(initial_end).into_owned(),
            expired: Finder::new(expired).into_owned(),
        }
    }

    pub(super) fn classify(&self, frame: &[u8]) -> ClassifiedFrame {
        let kind = if self.is_protobuf { field(frame, 1) } else { json_type(frame) };
        match kind {
            Some(b"ADDED" | b"MODIFIED") => ClassifiedFrame::Written,
            Some(b"DELETED") => ClassifiedFrame::Deleted,
            Some(b"BOOKMARK") => ClassifiedFrame::Bookmark { initial_end: self.initial_end.find(frame).is_some() },
            Some(b"ERROR") if self.expired.find(frame).is_some() => ClassifiedFrame::Expired,
            Some(b"ERROR") => ClassifiedFrame::Error,
            _ => ClassifiedFrame::Unknown,
        }
    }

    /// Returns the object's own resourceVersion in a frame.
    pub(super) fn version(&self, frame: &[u8]) -> Option<u64> {
        if !self.is_protobuf {
            // The first one in the output of servers is the object's.
            return number(&frame[self.version.find(frame)? + self.version.needle().len()..]);
        }
        // The path is WatchEvent.object, RawExtension.raw, Unknown.raw (after the magic), Pod.metadata,
        // ObjectMeta.resourceVersion.
        let unknown = field(field(frame, 2)?, 1)?.strip_prefix(b"k8s\0")?;
        number(field(field(field(unknown, 2)?, 1)?, 6)?)
    }

    /// Returns the scheduled time of the event's write, by the generator's clock.
    pub(super) fn written_at_ns(&self, frame: &[u8]) -> Option<u64> {
        let at = self.written.find(frame)? + self.written.needle().len();
        // In protobuf, one byte with the value's length comes in between.
        number(frame.get(at + usize::from(self.is_protobuf)..)?)
    }

    /// Returns the version of a LIST, from its first bytes.
    pub(super) fn list_version(&self, head: &[u8]) -> Option<u64> {
        if !self.is_protobuf {
            return number(&head[self.version.find(head)? + self.version.needle().len()..]);
        }
        // Unknown.raw is longer than the stored head, so only its beginning is walked.
        let list = field(head.strip_prefix(b"k8s\0")?, 2)?;
        number(field(field(list, 1)?, 2)?)
    }
}

/// Returns the `type` of a JSON watch event.
fn json_type(frame: &[u8]) -> Option<&[u8]> {
    let rest = frame.strip_prefix(b"{\"type\":\"")?;
    Some(&rest[..memchr::memchr(b'"', rest)?])
}

/// Parses the digits at the beginning of `bytes`.
fn number(bytes: &[u8]) -> Option<u64> {
    let digits = bytes.iter().take_while(|byte| byte.is_ascii_digit()).take(20);
    let add = |sum: Option<u64>, byte: &u8| sum?.checked_mul(10)?.checked_add(u64::from(byte - b'0'));
    bytes.first().filter(|byte| byte.is_ascii_digit())?;
    digits.fold(Some(0), add)
}

/// Returns the bytes of a length-delimited field of a message, as far as they are present.
fn field(mut message: &[u8], field_number: u64) -> Option<&[u8]> {
    while !message.is_empty() {
        let (tag, rest) = varint(message)?;
        let (len, rest) = match tag & 7 {
            0 => (0, varint(rest)?.1),
            1 => (8, rest),
            2 => varint(rest).map(|(len, rest)| (usize::try_from(len).unwrap_or(usize::MAX), rest))?,
            5 => (4, rest),
            _ => return None,
        };
        if tag == field_number << 3 | 2 {
            return Some(&rest[..len.min(rest.len())]);
        }
        message = rest.get(len..)?;
    }
    None
}

fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (at, byte) in bytes.iter().enumerate().take(10) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((value, &bytes[at + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests;
