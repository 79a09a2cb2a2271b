use bytes::Bytes;
use memchr::memchr;

use super::delta::{delta_len, is_delta};
use super::{DeltaError, FeedEncoding, WireError};

/// Splits a byte stream into watch frames, resumable at any byte.
///
/// Callers push received bytes, then take frames until there are none. Memory follows the bytes that have arrived,
/// never a length that a peer claims. The buffer holds at most one unfinished frame plus the last chunk pushed.
#[derive(Debug)]
pub struct FrameSplitter {
    encoding: FeedEncoding,
    frame_bytes_max: usize,
    buffer: Vec<u8>,
    /// The start of the first frame that was not taken yet.
    start: usize,
    /// The offset before which JSON has no newline, so that a frame that arrives in many small chunks is searched once.
    scanned: usize,
    /// Whether the stream may contain [differences](super::delta).
    deltas: bool,
}

impl FrameSplitter {
    /// Creates a splitter. `frame_bytes_max` bounds one frame, including its newline or length prefix.
    pub fn new(encoding: FeedEncoding, frame_bytes_max: usize) -> Self {
        Self { encoding, frame_bytes_max, buffer: Vec::new(), start: 0, scanned: 0, deltas: false }
    }

    /// Returns this splitter for a stream that may contain [differences](super::delta).
    #[must_use]
    pub fn with_deltas(self) -> Self {
        Self { deltas: true, ..self }
    }

    /// Appends the next bytes of the stream. Callers must call [`next_frame`](Self::next_frame) until it returns `None`
    /// before pushing again: only then is the size limit enforced and the space of taken frames reused.
    pub fn push(&mut self, chunk: &[u8]) {
        if self.start == self.buffer.len() {
            // The buffer is drained. An unusually large frame must not keep its space for the rest of a day-long watch.
            if self.buffer.capacity() > IDLE_CAPACITY_MAX {
                self.buffer = Vec::new();
            }
            self.buffer.clear();
        } else {
            self.buffer.drain(..self.start);
        }
        self.scanned -= self.start;
        self.start = 0;
        self.buffer.extend_from_slice(chunk);
    }

    /// Returns the next whole frame, verbatim (JSON with its newline, protobuf with its length prefix), in a separate
    /// allocation of exact size. `None` until more bytes are pushed. A difference is returned as received.
    ///
    /// # Errors
    /// [`WireError::FrameTooLarge`] as soon as it is certain; the splitter then stays in that state.
    pub fn next_frame(&mut self) -> Result<Option<Bytes>, WireError> {
        let (max, rest) = (self.frame_bytes_max, &self.buffer[self.start..]);
        let end = match self.encoding {
            _ if self.deltas && is_delta(rest) => {
                let Some(len) = delta_len(rest)? else { return Ok(None) };
                if len > max {
                    return Err(DeltaError::Malformed.into());
                }
                if len > rest.len() {
                    return Ok(None);
                }
                self.start + len
            }
            FeedEncoding::Json | FeedEncoding::Table => {
                let Some(at) = memchr(b'\n', &self.buffer[self.scanned..]) else {
                    self.scanned = self.buffer.len();
                    return if rest.len() >= max { Err(WireError::FrameTooLarge { max }) } else { Ok(None) };
                };
                self.scanned + at + 1
            }
            FeedEncoding::Protobuf => {
                let Some((prefix, body)) = rest.split_first_chunk() else { return Ok(None) };
                let len = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
                if len > max.saturating_sub(prefix.len()) {
                    return Err(WireError::FrameTooLarge { max });
                }
                if len > body.len() {
                    return Ok(None);
                }
                self.start + prefix.len() + len
            }
        };
        if end - self.start > max {
            return Err(WireError::FrameTooLarge { max });
        }
        let frame = Bytes::copy_from_slice(&self.buffer[self.start..end]);
        self.start = end;
        self.scanned = end;
        Ok(Some(frame))
    }

    /// Checks that the stream may end here.
    ///
    /// # Errors
    /// [`WireError::Truncated`] if a frame is incomplete: the stream was interrupted, not closed.
    pub fn finish(&self) -> Result<(), WireError> {
        if self.start == self.buffer.len() { Ok(()) } else { Err(WireError::Truncated) }
    }
}

/// The capacity kept between frames, in bytes. Read buffers are 16–64 KiB and most objects are smaller.
const IDLE_CAPACITY_MAX: usize = 256 * 1024;
