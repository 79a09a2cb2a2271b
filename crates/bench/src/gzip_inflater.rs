use std::cell::RefCell;
use std::time::Duration;

use flate2::{Decompress, DecompressError, FlushDecompress, Status};

use super::process::thread_cpu;

/// The size of the buffer for decompressed bytes. All watches of a thread share it.
const BUFFER_BYTES: usize = 64 << 10;
/// The largest window of gzip, as a power of two.
const WINDOW_BITS: u8 = 15;

thread_local! {
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_BYTES].into());
}

/// A decompressor of a gzip stream with one or more members. It holds its window, but no decompressed bytes.
#[derive(Debug)]
pub(super) struct GzipInflater {
    member: Decompress,
    is_in_member: bool,
}

impl GzipInflater {
    pub(super) fn new() -> Self {
        Self { member: Decompress::new_gzip(WINDOW_BITS), is_in_member: false }
    }

    /// Calls `each` with all bytes that can be decompressed from the stream so far. Returns the CPU time that the
    /// decompression took, without `each`.
    pub(super) fn feed(&mut self, chunk: &[u8], mut each: impl FnMut(&[u8])) -> Result<Duration, DecompressError> {
        BUFFER.with_borrow_mut(|buffer| {
            let (mut rest, mut spent) = (chunk, Duration::ZERO);
            let mut is_full = false;
            while !rest.is_empty() || is_full {
                let (read, written, status) = self.step(rest, buffer, &mut spent)?;
                each(&buffer[..written]);
                rest = &rest[read..];
                is_full = written == buffer.len();
                self.is_in_member = status != Status::StreamEnd;
                if !self.is_in_member {
                    self.member = Decompress::new_gzip(WINDOW_BITS);
                    is_full = false;
                }
            }
            Ok(spent)
        })
    }

    /// Decompresses until the input is used or the buffer is full. Returns the bytes read and written.
    fn step(
        &mut self,
        input: &[u8],
        buffer: &mut [u8],
        spent: &mut Duration,
    ) -> Result<(usize, usize, Status), DecompressError> {
        let (read, written, began) = (self.member.total_in(), self.member.total_out(), thread_cpu());
        let status = self.member.decompress(input, buffer, FlushDecompress::Sync)?;
        *spent += thread_cpu().saturating_sub(began);
        let length = |now: u64, before: u64| usize::try_from(now - before).expect("at most a buffer");
        Ok((length(self.member.total_in(), read), length(self.member.total_out(), written), status))
    }

    /// Whether everything received so far consists of complete members.
    pub(super) fn is_whole(&self) -> bool {
        !self.is_in_member
    }
}

/// Counts the flushes in a gzip stream, which end with an empty stored block (RFC 1951 §3.2.4). Servers flush after each
/// event.
#[derive(Debug, Default)]
pub(super) struct FlushCounter {
    last: u32,
}

impl FlushCounter {
    const FLUSH: u32 = 0x0000_ffff;

    /// Returns the number of flushes that end in `chunk`.
    pub(super) fn feed(&mut self, chunk: &[u8]) -> u64 {
        let ends = |byte: &&u8| {
            self.last = self.last << 8 | u32::from(**byte);
            self.last == Self::FLUSH
        };
        chunk.iter().filter(ends).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::GzEncoder;

    use super::*;

    fn gzip(parts: &[&[u8]]) -> Vec<u8> {
        let mut member = GzEncoder::new(Vec::new(), Compression::fast());
        for part in parts {
            member.write_all(part).unwrap();
            member.flush().unwrap();
        }
        member.finish().unwrap()
    }

    /// Feeds the stream in chunks; returns the text, and whether the stream ended with a complete member.
    fn inflated(stream: &[u8], chunk_bytes: usize) -> Result<(Vec<u8>, bool), DecompressError> {
        let (mut inflater, mut text) = (GzipInflater::new(), Vec::new());
        for chunk in stream.chunks(chunk_bytes) {
            inflater.feed(chunk, |bytes| text.extend_from_slice(bytes))?;
        }
        Ok((text, inflater.is_whole()))
    }

    #[test]
    fn any_division_into_chunks_and_members_gives_the_same_text() {
        let large = vec![b'x'; 3 * BUFFER_BYTES];
        let members = [gzip(&[b"one\n", b"two\n"]), gzip(&[&large]), gzip(&[]), gzip(&[&large[..BUFFER_BYTES]])];
        let expected = [b"one\ntwo\n", &large[..], &large[..BUFFER_BYTES]].concat();
        let stream = members.concat();
        for chunk_bytes in [1, 7, stream.len()] {
            assert!(inflated(&stream, chunk_bytes).unwrap() == (expected.clone(), true), "{chunk_bytes}");
        }
    }

    #[test]
    fn each_flushed_part_is_available_before_the_next() {
        let mut member = GzEncoder::new(Vec::new(), Compression::fast());
        let mut inflater = GzipInflater::new();
        for part in [&b"first\n"[..], b"second\n"] {
            member.write_all(part).unwrap();
            member.flush().unwrap();
            let mut text = Vec::new();
            inflater.feed(&std::mem::take(member.get_mut()), |bytes| text.extend_from_slice(bytes)).unwrap();
            assert_eq!(text, part);
            assert!(!inflater.is_whole());
        }
    }

    #[test]
    fn flushes_are_counted_for_any_division_into_chunks() {
        let mut member = GzEncoder::new(Vec::new(), Compression::fast());
        for n in 0..100 {
            write!(member, "{{\"type\":\"MODIFIED\",\"object\":{n}}}").unwrap();
            member.flush().unwrap();
        }
        let stream = member.get_ref().clone();
        for chunk_bytes in [1, 7, stream.len()] {
            let mut flushes = FlushCounter::default();
            assert_eq!(stream.chunks(chunk_bytes).map(|chunk| flushes.feed(chunk)).sum::<u64>(), 100);
        }
    }

    #[test]
    fn damaged_and_incomplete_streams_are_recognised() {
        let stream = gzip(&[b"some text that has a checksum"]);
        let mut damaged = stream.clone();
        let checksum = damaged.len() - 8;
        damaged[checksum] ^= 1;
        assert!(inflated(&damaged, 4096).is_err());
        assert!(inflated(b"{\"type\":\"ADDED\"}", 4096).is_err());
        assert!(!inflated(&stream[..stream.len() - 1], 4096).unwrap().1);
        assert!(inflated(b"", 1).unwrap().1);
    }
}
