use std::io::{Read, Write};
use std::process::{Command, Stdio};

use bytes::{Bytes, BytesMut};

/// One event of a watch, in the bytes that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A line of JSON, with its newline.
    Json(Bytes),
    /// A `WatchEvent` in protobuf, with the four bytes of its length in front.
    Protobuf(Bytes),
}

/// Splits the bytes of a watch into frames. The product has code for this, which tests must not use to judge it.
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

    /// Whether nothing is left over. Then the stream ended between two events.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// The content of a compressed body, members one after the other, as the program `gzip` reads it. If that fails, a mark
/// that says so is appended.
pub fn gunzip(body: &Bytes) -> Bytes {
    // The answer to a HEAD has the header and no body.
    if body.is_empty() {
        return Bytes::new();
    }
    let mut command = Command::new("gzip");
    let mut child = command
        .arg("-dc")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("there is gzip");
    let (mut input, body) = (child.stdin.take().expect("piped"), body.clone());
    let writer = std::thread::spawn(move || input.write_all(&body));
    let mut whole = Vec::new();
    child.stdout.take().expect("piped").read_to_end(&mut whole).expect("readable");
    writer.join().expect("it does not panic").expect("gzip reads it all");
    if !child.wait().expect("it is our child").success() {
        whole.extend_from_slice(b"and then it is cut off");
    }
    whole.into()
}
