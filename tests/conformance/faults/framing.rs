//! Boundaries of the units of a stream: frames of HTTP/2 and of a `WebSocket`, heads and chunks of HTTP/1.1.

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Wire {
    H1,
    H2,
    Ws,
}

/// The direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// To the server.
    Up,
    /// To the client.
    Down,
}

/// The encoding of the event in a unit, if it has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cargo {
    Json,
    Protobuf,
    Other,
}

/// The content of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// The head of a request or a response.
    Head,
    /// A watch frame, from its first byte.
    Event,
    /// Other bytes of a body.
    Data,
    /// Protocol frames without payload of a body.
    Control,
}

/// One frame, head or chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// The number of bytes before the payload.
    pub header: usize,
    /// The total number of bytes.
    pub len: usize,
    pub class: Class,
}

impl Unit {
    /// The content of the unit, as far as it has arrived.
    pub fn cargo(&self, bytes: &[u8]) -> Cargo {
        match bytes.get(self.header..) {
            Some(carried) if self.class == Class::Event && carried.starts_with(EVENT) => Cargo::Json,
            Some([_, ..]) if self.class == Class::Event => Cargo::Protobuf,
            _ => Cargo::Other,
        }
    }
}

/// The next expected unit of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Preface,
    Frame,
    Head,
    Chunk,
    Body(usize),
    Message,
    /// Unknown bytes, which are forwarded as they come.
    Unknown,
}

/// Finds the units of one direction of a connection.
#[derive(Debug)]
pub struct Framing {
    direction: Direction,
    next: Next,
}

/// The connection preface of an HTTP/2 client (RFC 9113 §3.4).
const PREFACE: usize = 24;
/// The header of an HTTP/2 frame (RFC 9113 §4.1).
const FRAME_HEADER: usize = 9;
/// The start of a watch event in JSON.
pub const EVENT: &[u8] = br#"{"type":""#;

impl Framing {
    pub fn new(is_h2: bool, direction: Direction) -> Self {
        let next = match (is_h2, direction) {
            (true, Direction::Up) => Next::Preface,
            (true, Direction::Down) => Next::Frame,
            (false, _) => Next::Head,
        };
        Self { direction, next }
    }

    /// The current protocol: an HTTP/1.1 connection may become a WebSocket.
    pub fn wire(&self) -> Wire {
        match self.next {
            Next::Preface | Next::Frame => Wire::H2,
            Next::Message => Wire::Ws,
            Next::Head | Next::Chunk | Next::Body(_) | Next::Unknown => Wire::H1,
        }
    }

    /// The unit at the start of these bytes; `None` if more bytes are needed.
    pub fn unit(&mut self, bytes: &[u8]) -> Option<Unit> {
        match self.next {
            Next::Preface => {
                self.next = Next::Frame;
                Some(Unit { header: 0, len: PREFACE, class: Class::Control })
            }
            Next::Frame => self.frame(bytes),
            Next::Head => self.head(bytes),
            Next::Chunk => self.chunk(bytes),
            Next::Body(len) => {
                self.next = Next::Head;
                Some(Unit { header: 0, len, class: Class::Data })
            }
            Next::Message => self.message(bytes),
            Next::Unknown => (!bytes.is_empty()).then_some(Unit { header: 0, len: bytes.len(), class: Class::Control }),
        }
    }

    fn frame(&self, bytes: &[u8]) -> Option<Unit> {
        let (header, payload) = bytes.split_at_checked(FRAME_HEADER)?;
        let len = usize::try_from(u32::from_be_bytes([0, header[0], header[1], header[2]])).expect("24 bits");
        let class = match header[3] {
            0 if len > 0 => self.carried(payload, len),
            1 => Class::Head,
            _ => Class::Control,
        };
        Some(Unit { header: FRAME_HEADER, len: FRAME_HEADER + len, class })
    }

    fn head(&mut self, bytes: &[u8]) -> Option<Unit> {
        let len = find(bytes, b"\r\n\r\n")? + 4;
        let head = String::from_utf8_lossy(&bytes[..len]).to_ascii_lowercase();
        let value = |name: &str| head.lines().find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()));
        let status = head.strip_prefix("http/1.1 ").and_then(|rest| rest.get(..3));
        let length = value("content-length:").and_then(|length| length.parse::<usize>().ok()).unwrap_or(0);
        self.next = match status {
            Some("101") => Next::Message,
            Some("204" | "304") => Next::Head,
            // The client sends nothing more until the response, and disconnects if it is refused.
            None if value("upgrade:").is_some_and(|to| to == "websocket") => Next::Message,
            _ if value("transfer-encoding:").is_some_and(|coding| coding == "chunked") => Next::Chunk,
            _ if length > 0 => Next::Body(length),
            _ => Next::Head,
        };
        Some(Unit { header: 0, len, class: Class::Head })
    }

    fn chunk(&mut self, bytes: &[u8]) -> Option<Unit> {
        let header = find(bytes, b"\r\n")? + 2;
        let size = String::from_utf8_lossy(&bytes[..header - 2]).into_owned();
        let Ok(size) = usize::from_str_radix(&size, 16) else {
            self.next = Next::Unknown;
            return self.unit(bytes);
        };
        if size == 0 {
            let len = find(bytes, b"\r\n\r\n")? + 4;
            self.next = Next::Head;
            return Some(Unit { header, len, class: Class::Control });
        }
        Some(Unit { header, len: header + size + 2, class: self.carried(&bytes[header..], size) })
    }

    /// A frame (RFC 6455 §5.2).
    fn message(&self, bytes: &[u8]) -> Option<Unit> {
        let (opcode, length) = (bytes.first()? & 0x0f, bytes.get(1)?);
        let mask = if length & 0x80 == 0 { 0 } else { 4 };
        let (extended, payload) = match length & 0x7f {
            126 => (2, usize::from(u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?))),
            127 => (8, usize::try_from(u64::from_be_bytes(*bytes.get(2..)?.first_chunk()?)).ok()?),
            short => (0, usize::from(short)),
        };
        let header = 2 + extended + mask;
        let class = match (opcode, self.direction) {
            (1 | 2, Direction::Down) => Class::Event,
            (1 | 2, Direction::Up) => Class::Data,
            _ => Class::Control,
        };
        Some(Unit { header, len: header + payload, class })
    }

    /// Classifies the bytes of a body. In protobuf an event begins with its length.
    fn carried(&self, payload: &[u8], len: usize) -> Class {
        let fits = |length: u32| length > 0 && usize::try_from(length).is_ok_and(|length| length + 4 <= len);
        let counted = payload.first_chunk().is_some_and(|first| fits(u32::from_be_bytes(*first)));
        if self.direction == Direction::Down && (payload.starts_with(EVENT) || counted) {
            Class::Event
        } else {
            Class::Data
        }
    }
}

/// The position of one byte sequence in another.
fn find(bytes: &[u8], pattern: &[u8]) -> Option<usize> {
    bytes.windows(pattern.len()).position(|window| window == pattern)
}

/// Splits bytes into their units.
fn units(mut framing: Framing, bytes: &[u8]) -> Vec<(Class, usize)> {
    let (mut units, mut rest) = (Vec::new(), bytes);
    while let Some(unit) = framing.unit(rest).filter(|unit| unit.len <= rest.len()) {
        units.push((unit.class, unit.len));
        rest = &rest[unit.len..];
    }
    units
}

#[test]
fn http1_watch_chunks_are_distinguished_from_heads() {
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let event = r#"{"type":"ADDED","object":{}}"#;
    let bytes = format!("{head}{:x}\r\n{event}\r\n3\r\nabc\r\n0\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n", event.len());
    let found = units(Framing::new(false, Direction::Down), bytes.as_bytes());
    let expected = [(Class::Head, head.len()), (Class::Event, event.len() + 6), (Class::Data, 8)];
    assert_eq!(found, [&expected[..], &[(Class::Control, 5), (Class::Head, 27)]].concat());
}

#[test]
fn http2_frames_and_websocket_messages_are_split_by_length() {
    let data = [&[0, 0, 6, 0, 0, 0, 0, 0, 1][..], &[0, 0, 0, 2, 8, 1], &[0, 0, 0, 4, 1, 0, 0, 0, 0]].concat();
    let found = units(Framing::new(true, Direction::Down), &data);
    assert_eq!(found, [(Class::Event, 15), (Class::Control, 9)]);
    let upgraded =
        [b"HTTP/1.1 101 Switching Protocols\r\n\r\n".as_slice(), &[0x81, 2, b'{', b'}'], &[0x88, 0]].concat();
    let found = units(Framing::new(false, Direction::Down), &upgraded);
    assert_eq!(found, [(Class::Head, 36), (Class::Event, 4), (Class::Control, 2)]);
}
