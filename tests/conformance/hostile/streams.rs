//! HTTP/2 requests that are written frame by frame, because no library would send them.

use fastrand::Rng;

use super::cases::{Case, REVIEW, REVIEWS, Wire, pick};
use crate::bed::Identity;

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const FRAME_BYTES_MAX: usize = 16 << 10;

pub type Fields = Vec<(Vec<u8>, Vec<u8>)>;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The client preface and SETTINGS.
pub fn hello() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()
}

/// Header fields as literals that are never indexed (RFC 7541 §6.2.2).
pub fn literals(fields: &Fields) -> Vec<u8> {
    let text = |bytes: &[u8]| [integer(bytes.len()), bytes.to_vec()].concat();
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// Encodes an integer with a prefix of seven bits (RFC 7541 §5.1).
fn integer(value: usize) -> Vec<u8> {
    let (mut bytes, Some(mut rest)) = (vec![0x7f], value.checked_sub(127)) else {
        return vec![u8::try_from(value).expect("less than 127")];
    };
    while rest >= 128 {
        bytes.push(u8::try_from(rest % 128).expect("seven bits") | 0x80);
        rest /= 128;
    }
    bytes.push(u8::try_from(rest).expect("seven bits"));
    bytes
}

/// Encodes a head in as many frames as necessary.
pub fn head(stream: u32, fields: &Fields, end: bool) -> Vec<u8> {
    head_of(stream, &literals(fields), end)
}

/// Encodes a head with this header block in as many frames as necessary.
pub fn head_of(stream: u32, block: &[u8], end: bool) -> Vec<u8> {
    let (parts, mut bytes) = (block.chunks(FRAME_BYTES_MAX).collect::<Vec<_>>(), Vec::new());
    for (at, part) in parts.iter().enumerate() {
        let kind = if at == 0 { HEADERS } else { CONTINUATION };
        let ends_head = if at + 1 == parts.len() { END_HEADERS } else { 0 };
        let ends_stream = if end && at == 0 { END_STREAM } else { 0 };
        bytes.extend(frame(kind, ends_head | ends_stream, stream, part));
    }
    bytes
}

pub fn field(name: &str, value: &str) -> (Vec<u8>, Vec<u8>) {
    (name.as_bytes().to_vec(), value.as_bytes().to_vec())
}

fn question(case: &Case, identity: &Identity) -> Fields {
    let mut fields = vec![
        field(":method", "POST"),
        field(":scheme", "https"),
        field(":authority", "127.0.0.1"),
        field(":path", &format!("{REVIEWS}?mark={}a", case.mark)),
        field("content-type", "application/json"),
        field("accept", "application/json"),
    ];
    if !identity.token.is_empty() {
        fields.push(field("authorization", &format!("Bearer {}", identity.token)));
    }
    fields
}

const FIELDS: [(&str, &str); 30] = [
    ("impersonate-user", "admin"),
    ("Impersonate-User", "admin"),
    ("impersonate_user", "admin"),
    ("impersonate-group", "system:masters"),
    ("x-remote-user", "admin"),
    ("X-Remote-User", "admin"),
    ("x-remote-group", "system:masters"),
    ("connection", "impersonate-user"),
    ("connection", "close"),
    ("keep-alive", "1"),
    ("proxy-connection", "x-remote-user"),
    ("upgrade", "websocket"),
    ("transfer-encoding", "chunked"),
    ("te", "gzip"),
    ("te", "trailers"),
    ("host", "evil.example"),
    ("cookie", "a=b"),
    ("content-length", "0"),
    ("content-length", "5"),
    ("content-length", "100000"),
    ("content-length", "-1"),
    ("x-lines", "a\r\nx-remote-user: admin"),
    ("x-lines\r\nx-remote-user", "admin"),
    ("x-nul", "a\0b"),
    ("x space", "a"),
    ("x:colon", "a"),
    ("", "a"),
    ("expect", "100-continue"),
    ("authorization", "Basic YWRtaW46YWRtaW4="),
    ("x-long", ""),
];

/// Manipulates the pseudo-header fields.
fn pseudo(case: &Case, fields: &mut Fields, hidden: &str, random: &mut Rng) {
    let secrets = format!("/api/v1/namespaces/kube-system/secrets?mark={}s", case.mark);
    let at = random.usize(..fields.len());
    match random.u32(..14) {
        0 => fields.insert(at, field(":path", &secrets)),
        1 => fields.insert(at, field(":method", "GET")),
        2 => fields.push(field(":path", &secrets)),
        3 => drop(fields.remove(at)),
        4 => fields.insert(at, field(":protocol", "websocket")),
        5 => fields.insert(at, field(":unknown", "a")),
        6 => fields.insert(at, field(":status", "200")),
        7 => fields[3].1 = Vec::new(),
        8 => fields[3].1 = format!("{secrets} HTTP/1.1\r\nHost: a\r\n\r\n{hidden}").into_bytes(),
        9 => fields[3].1 = format!("https://evil.example{secrets}").into_bytes(),
        10 => fields[0].1 = format!("GET {secrets} HTTP/1.1\r\n\r\nPOST").into_bytes(),
        11 => fields[2].1 = b"127.0.0.1\r\nX-Remote-User: admin".to_vec(),
        12 => fields[1].1 = b"https://evil.example/".to_vec(),
        _ => fields.swap(at, 0),
    }
}

/// Draws HTTP/2 requests that mean something else in HTTP/1.1, or nothing.
pub fn draw(case: &mut Case, identity: &Identity, random: &mut Rng) {
    (case.family, case.wire) = ("streams", Wire::Http2);
    let hidden = case.hidden(identity);
    let mut fields = question(case, identity);
    let kind = random.u32(..8);
    match kind {
        0..=2 => {
            for _ in 0..random.usize(1..4) {
                let (name, value) = FIELDS[random.usize(..FIELDS.len())];
                let value = if name == "x-long" { "x".repeat(random.usize(1000..100_000)) } else { value.to_owned() };
                case.ambiguous |= name == "authorization" && !identity.token.is_empty();
                fields.insert(random.usize(4..=fields.len()), field(name, &value));
            }
        }
        3 | 4 => pseudo(case, &mut fields, &hidden, random),
        // The proxy forwards long requests over HTTP/1.1, where the excess of a too long body would be a request.
        5 => {
            fields[3] = field(":path", &format!("/api/v1/namespaces/t1/pods/none/exec?command=sh&mark={}a", case.mark));
            fields.push(field("content-length", pick(random, &["0", "1", "10000"])));
        }
        _ => {}
    }
    let mut bytes = [hello(), head(1, &fields, false)].concat();
    match kind {
        5 => bytes.extend(frame(DATA, END_STREAM, 1, hidden.as_bytes())),
        6 => {
            bytes.extend(frame(DATA, 0, 1, REVIEW.as_bytes()));
            let (name, value) = FIELDS[random.usize(..8)];
            bytes.extend(head(1, &vec![field(name, value), field(":path", "/"), field("authorization", "a")], true));
        }
        // On an invalid stream, or one of the server's.
        7 => {
            bytes.extend(frame(DATA, END_STREAM, 1, REVIEW.as_bytes()));
            bytes.extend(head([0, 1, 2, 3][random.usize(..4)], &fields, true));
        }
        _ => bytes.extend(frame(DATA, END_STREAM, 1, REVIEW.as_bytes())),
    }
    if kind == 7 {
        // Stream 3 is a request like the first with the same marker, which may arrive too.
        case.sound.push(format!("{}a", case.mark));
    }
    case.bytes = bytes;
}
