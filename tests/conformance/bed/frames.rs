use bytes::{Bytes, BytesMut};

/// One event of a watch, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A line of JSON, with its end.
    Json(Bytes),
    /// A `WatchEvent` in protobuf, with its length in front.
    Protobuf(Bytes),
}

/// Takes a watch apart. Written for these tests: what they judge must not be judged by its own code.
pub struct Unframed {
    protobuf: bool,
    buffer: BytesMut,
}

impl Unframed {
    pub fn new(content_type: &str) -> Self {
        Self { protobuf: content_type.starts_with("application/vnd.kubernetes.protobuf"), buffer: BytesMut::new() }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    pub fn next(&mut self) -> Option<Frame> {
        if self.protobuf {
            let length = u32::from_be_bytes(self.buffer.get(..4)?.try_into().expect("four bytes"));
            let whole = 4 + usize::try_from(length).expect("a length");
            (self.buffer.len() >= whole).then(|| Frame::Protobuf(self.buffer.split_to(whole).freeze()))
        } else {
            let end = self.buffer.iter().position(|byte| *byte == b'\n')?;
            Some(Frame::Json(self.buffer.split_to(end + 1).freeze()))
        }
    }

    /// Nothing is left over: the stream ended between two events.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}
