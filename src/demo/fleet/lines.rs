//! Watch frames by byte search: cutting a stream into lines, and finding the few things in a line that matter.

use bytes::BytesMut;
use memchr::memmem::Finder;

use super::super::pods::WRITTEN_AT;

/// A line longer than this is a broken stream.
const LINE_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Cuts chunks into lines; copies only what spans two chunks.
#[derive(Debug, Default)]
pub(super) struct Lines {
    partial: BytesMut,
}

#[derive(Debug)]
pub(super) struct TooLong;

impl Lines {
    pub(super) fn feed(&mut self, chunk: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), TooLong> {
        let mut rest = chunk;
        while let Some(at) = memchr::memchr(b'\n', rest) {
            let (line, after) = (&rest[..at], &rest[at + 1..]);
            if self.partial.is_empty() {
                each(line);
            } else {
                self.partial.extend_from_slice(line);
                each(&self.partial);
                self.partial.clear();
            }
            rest = after;
        }
        if self.partial.len() + rest.len() > LINE_BYTES_MAX {
            return Err(TooLong);
        }
        self.partial.extend_from_slice(rest);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Line {
    /// ADDED or MODIFIED: its time of writing means something.
    Fresh,
    Deleted,
    Bookmark {
        initial_end: bool,
    },
    Expired,
    Error,
    Unknown,
}

/// Searches that are prepared once.
#[derive(Clone, Debug)]
pub(super) struct Search {
    revision: Finder<'static>,
    written: Finder<'static>,
    initial_end: Finder<'static>,
    expired: Finder<'static>,
}

impl Search {
    pub(super) fn new() -> Self {
        let written = format!("\"{WRITTEN_AT}\":\"");
        Self {
            revision: Finder::new("\"resourceVersion\":\""),
            written: Finder::new(&written).into_owned(),
            initial_end: Finder::new("\"k8s.io/initial-events-end\":\"true\""),
            expired: Finder::new("\"code\":410"),
        }
    }

    pub(super) fn classify(&self, line: &[u8]) -> Line {
        let Some(rest) = line.strip_prefix(b"{\"type\":\"") else { return Line::Unknown };
        let is = |name: &[u8]| rest.strip_prefix(name).is_some_and(|rest| rest.starts_with(b"\""));
        if is(b"ADDED") || is(b"MODIFIED") {
            Line::Fresh
        } else if is(b"DELETED") {
            Line::Deleted
        } else if is(b"BOOKMARK") {
            Line::Bookmark { initial_end: self.initial_end.find(line).is_some() }
        } else if is(b"ERROR") {
            if self.expired.find(line).is_some() { Line::Expired } else { Line::Error }
        } else {
            Line::Unknown
        }
    }

    /// The first resourceVersion in the line; in what servers write, that is the object's own.
    pub(super) fn revision<'a>(&self, line: &'a [u8]) -> Option<&'a str> {
        let at = self.revision.find(line)? + self.revision.needle().len();
        let len = digits(&line[at..]);
        std::str::from_utf8(&line[at..at + len]).ok().filter(|digits| !digits.is_empty())
    }

    pub(super) fn written_at_ns(&self, line: &[u8]) -> Option<u64> {
        let at = self.written.find(line)? + self.written.needle().len();
        let len = digits(&line[at..]);
        std::str::from_utf8(&line[at..at + len]).ok()?.parse().ok()
    }
}

fn digits(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_out_whole_however_the_stream_is_cut() {
        let stream = b"one\n\nthree is longer\nrest";
        for cut in 0..stream.len() {
            let (mut lines, mut seen) = (Lines::default(), vec![]);
            for chunk in [&stream[..cut], &stream[cut..]] {
                lines.feed(chunk, |line| seen.push(line.to_vec())).unwrap();
            }
            assert_eq!(seen, [&b"one"[..], b"", b"three is longer"], "{cut}");
        }
    }

    #[test]
    fn what_matters_is_found_in_a_line() {
        let search = Search::new();
        let line = concat!(
            r#"{"type":"MODIFIED","object":{"metadata":{"resourceVersion":"42","#,
            r#""annotations":{"kube-fanout.io/written-at-ns":"777"}}}}"#
        )
        .as_bytes();
        assert_eq!(search.classify(line), Line::Fresh);
        assert_eq!((search.revision(line), search.written_at_ns(line)), (Some("42"), Some(777)));
        let end = br#"{"type":"BOOKMARK","object":{"metadata":{"annotations":{"k8s.io/initial-events-end":"true"}}}}"#;
        assert_eq!(search.classify(end), Line::Bookmark { initial_end: true });
        assert_eq!(search.classify(br#"{"type":"ERROR","object":{"code":410}}"#), Line::Expired);
        assert_eq!(search.classify(b"oops"), Line::Unknown);
    }
}
