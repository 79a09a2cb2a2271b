use memchr::memchr;

/// The maximum length in bytes of a frame that is accepted. A longer one is an error, because the stream must be
/// broken.
const FRAME_BYTES_MAX: usize = 32 << 20;
/// The size of the length prefix of each protobuf frame.
const PREFIX: usize = 4;

/// The way in which a stream is divided into frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamFraming {
    /// Each frame of the watch ends with a newline.
    Lines,
    /// Each frame of the watch begins with its length in four bytes, big-endian.
    Lengths,
    /// Each message of the watch is one frame.
    Messages,
}

/// A splitter from chunks to frames. It copies only frames that span two chunks.
#[derive(Debug)]
pub struct StreamFrameSplitter {
    framing: StreamFraming,
    partial: Vec<u8>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct FrameTooLongError;

impl StreamFrameSplitter {
    pub fn new(framing: StreamFraming) -> Self {
        Self { framing, partial: Vec::new() }
    }

    /// Calls `each` with every complete frame, without its delimiter.
    pub fn feed(&mut self, chunk: &[u8], each: impl FnMut(&[u8])) -> Result<(), FrameTooLongError> {
        match self.framing {
            StreamFraming::Lines => self.lines(chunk, each),
            StreamFraming::Lengths => self.lengths(chunk, each),
            StreamFraming::Messages => {
                let mut each = each;
                each(chunk);
                Ok(())
            }
        }
    }

    /// Whether everything received so far consists of complete frames.
    pub fn is_whole(&self) -> bool {
        self.partial.is_empty()
    }

    fn lines(&mut self, chunk: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), FrameTooLongError> {
        let mut rest = chunk;
        while let Some(at) = memchr(b'\n', rest) {
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
        self.keep(rest)
    }

    fn lengths(&mut self, chunk: &[u8], mut each: impl FnMut(&[u8])) -> Result<(), FrameTooLongError> {
        let mut rest = chunk;
        while !self.partial.is_empty() {
            // First completes the length prefix, then the frame.
            let needed = match length(&self.partial)? {
                None => PREFIX,
                Some(len) if self.partial.len() == PREFIX + len => {
                    each(&self.partial[PREFIX..]);
                    self.partial.clear();
                    break;
                }
                Some(len) => PREFIX + len,
            };
            if rest.is_empty() {
                return Ok(());
            }
            let (taken, after) = rest.split_at((needed - self.partial.len()).min(rest.len()));
            self.partial.extend_from_slice(taken);
            rest = after;
        }
        while let Some(len) = length(rest)?.filter(|len| PREFIX + len <= rest.len()) {
            each(&rest[PREFIX..PREFIX + len]);
            rest = &rest[PREFIX + len..];
        }
        self.keep(rest)
    }

    fn keep(&mut self, rest: &[u8]) -> Result<(), FrameTooLongError> {
        if self.partial.len() + rest.len() > FRAME_BYTES_MAX {
            return Err(FrameTooLongError);
        }
        self.partial.extend_from_slice(rest);
        Ok(())
    }
}

/// Decodes the length prefix; `None` if fewer than four bytes are there.
fn length(bytes: &[u8]) -> Result<Option<usize>, FrameTooLongError> {
    let Some(prefix) = bytes.first_chunk::<PREFIX>() else { return Ok(None) };
    let len = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
    if len > FRAME_BYTES_MAX { Err(FrameTooLongError) } else { Ok(Some(len)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the frames of a stream that arrives as one chunk of `first` bytes and then chunks of `size` bytes.
    fn cut(framing: StreamFraming, stream: &[u8], first: usize, size: usize) -> Vec<Vec<u8>> {
        let (mut frames, mut seen) = (StreamFrameSplitter::new(framing), vec![]);
        let (head, tail) = stream.split_at(first);
        for chunk in std::iter::once(head).chain(tail.chunks(size)) {
            frames.feed(chunk, |frame| seen.push(frame.to_vec())).unwrap();
        }
        seen
    }

    #[test]
    fn frames_are_reassembled_from_any_chunking() {
        let frames = [&b"one"[..], b"", b"three is longer"];
        let lines: Vec<u8> = frames.iter().flat_map(|frame| [frame, &b"\n"[..]].concat()).collect();
        let sized = |frame: &&[u8]| [&u32::try_from(frame.len()).unwrap().to_be_bytes()[..], frame].concat();
        let lengths: Vec<u8> = frames.iter().flat_map(sized).collect();
        for (framing, stream) in [(StreamFraming::Lines, &lines), (StreamFraming::Lengths, &lengths)] {
            for first in 0..stream.len() {
                for size in [1, 2, 3, 7, 100] {
                    assert_eq!(cut(framing, stream, first, size), frames, "{framing:?} {first} {size}");
                }
            }
        }
        assert_eq!(cut(StreamFraming::Messages, b"whole", 5, 1), [b"whole"]);
    }

    #[test]
    fn partial_frame_is_reported_as_incomplete() {
        let mut frames = StreamFrameSplitter::new(StreamFraming::Lines);
        for (chunk, is_whole) in [("one\nt", false), ("wo\n", true)] {
            frames.feed(chunk.as_bytes(), |_| ()).unwrap();
            assert_eq!(frames.is_whole(), is_whole, "{chunk:?}");
        }
    }

    #[test]
    fn oversized_length_prefix_is_rejected() {
        assert_eq!(StreamFrameSplitter::new(StreamFraming::Lengths).feed(&[0xff; 5], |_| ()), Err(FrameTooLongError));
    }
}
