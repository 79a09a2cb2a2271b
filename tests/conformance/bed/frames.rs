use std::io::{Read, Write};
use std::process::{Command, Stdio};

use bytes::{Bytes, BytesMut};

/// The bytes of one watch event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// A line of JSON, with its newline.
    Json(Bytes),
    /// A `WatchEvent` in protobuf, including its four-byte length prefix.
    Protobuf(Bytes),
}

/// Splits the bytes of a watch into frames. Independent of the product's own code, so that the tests can judge that.
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

    /// Whether no partial frame is left, so that the stream ended between two events.
    pub fn is_empty(&self) -> bool {
        self.buffer.is_empty()
    }
}

/// Decompresses a gzip body with one or more members, like the program `gzip`. If that fails, appends a marker.
pub fn gunzip(body: &Bytes) -> Bytes {
    // A response to HEAD has the header and no body.
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
