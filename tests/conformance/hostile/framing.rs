//! Requests whose end is ambiguous, so that two parsers may see it at different places (R-THREAT-3, R-THREAT-4).

use fastrand::Rng;

use super::cases::{Case, Head, REVIEW, pick};
use crate::bed::Identity;

/// A request with an unnecessary body, which is answered from the cache, forwarded or refused.
fn carrier(case: &Case, identity: &Identity, random: &mut Rng) -> Head {
    let path = pick(
        random,
        &[
            "/api/v1/nodes",
            "/api/v1/nodes?resourceVersion=0",
            "/api/v1/namespaces/t1/configmaps/none",
            "/api/v1/namespaces/t1/secrets",
            "/version",
            "/readyz",
        ],
    );
    let and = if path.contains('?') { '&' } else { '?' };
    let method = pick(random, &["GET", "GET", "POST", "HEAD", "DELETE", "OPTIONS", "PUT"]);
    // The method does no harm, because the caller has no permission for it.
    Head::new(method, &format!("{path}{and}mark={}a", case.mark), identity)
}

/// A second Content-Length, or an invalid one.
pub fn length(case: &mut Case, identity: &Identity, random: &mut Rng) {
    case.family = "content length";
    let hidden = case.hidden(identity);
    let (mut head, all) = (carrier(case, identity, random), hidden.len());
    let lengths: Vec<String> = match random.u32(..14) {
        0 => vec![all.to_string()],
        1 => vec!["0".to_owned(), all.to_string()],
        2 => vec![all.to_string(), "0".to_owned()],
        3 => vec![all.to_string(), all.to_string()],
        4 => vec![format!("{all}, {all}")],
        5 => vec![format!("{all}, 0")],
        6 => vec![format!("+{all}")],
        7 => vec![format!("-{all}")],
        8 => vec![format!("0x{all:x}")],
        9 => vec!["18446744073709551616".to_owned()],
        10 => vec![format!("{}", u64::MAX)],
        11 => vec![format!("{all} 0")],
        12 => vec![String::new()],
        _ => vec![format!("{all}e0")],
    };
    for length in lengths {
        let name = pick(random, &["Content-Length", "content-length", "CONTENT-LENGTH"]);
        head.insert(format!("{name}: {length}").into_bytes(), random);
    }
    case.bytes = [&head.spell("\r\n"), hidden.as_bytes()].concat();
}

/// Content-Length together with Transfer-Encoding, or an invalid coding.
pub fn coding(case: &mut Case, identity: &Identity, random: &mut Rng) {
    case.family = "transfer coding";
    let body = format!("0\r\n\r\n{}", case.hidden(identity));
    let mut head = carrier(case, identity, random);
    let coding = match random.u32(..16) {
        0..=2 => "Transfer-Encoding: chunked",
        3 => "Transfer-Encoding: chunked, identity",
        4 => "Transfer-Encoding: identity, chunked",
        5 => "Transfer-Encoding: xchunked",
        6 => "Transfer-Encoding: \tchunked",
        7 => "Transfer-Encoding: chunked ",
        8 => "Transfer-Encoding : chunked",
        9 => "Transfer-Encoding:\r\n chunked",
        10 => "Transfer-Encoding: CHUNKED",
        11 => "Transfer-Encoding: \"chunked\"",
        12 => "Transfer-Encoding: gzip, chunked",
        13 => "X: y\nTransfer-Encoding: chunked",
        14 => "Transfer_Encoding: chunked",
        _ => "Transfer-Encoding: chunked\r\nTransfer-Encoding: cow",
    };
    head.insert(coding.as_bytes().to_vec(), random);
    // A reader that uses the Content-Length sees one request. This line is always present.
    head.insert(format!("Content-Length: {}", body.len()).into_bytes(), random);
    if random.u32(..5) == 0 {
        head = head.version("HTTP/1.0");
        head.add("Connection: keep-alive");
    }
    case.bytes = [&head.spell("\r\n"), body.as_bytes()].concat();
}

/// Malformed or deceptive chunks.
pub fn chunks(case: &mut Case, identity: &Identity, random: &mut Rng) {
    case.family = "chunks";
    let hidden = case.hidden(identity);
    let all = hidden.len();
    let mut head = if random.bool() { case.question(identity) } else { carrier(case, identity, random) };
    head.insert(b"Transfer-Encoding: chunked".to_vec(), random);
    let body = match random.u32(..14) {
        0 => format!("{all:x}\r\n{hidden}\r\n0\r\n\r\n"),
        1 => format!("{all:x};ext=\"\r\n{hidden}\r\n0\r\n\r\n"),
        2 => format!("{all:x};a\nb\r\n{hidden}\r\n0\r\n\r\n"),
        3 => format!("{all:x}\n{hidden}\n0\n\n"),
        4 => format!("ffffffffffffffff1\r\n{hidden}"),
        5 => format!("1000000000000000{all:x}\r\n{hidden}\r\n0\r\n\r\n"),
        6 => format!("-{all:x}\r\n{hidden}\r\n0\r\n\r\n"),
        7 => format!("0x{all:x}\r\n{hidden}\r\n0\r\n\r\n"),
        8 => format!(" {all:x} \r\n{hidden}\r\n0\r\n\r\n"),
        9 => format!("{all:x}\r{hidden}\r\n0\r\n\r\n"),
        10 => format!("{all:x};{}\r\n{hidden}\r\n0\r\n\r\n", "e".repeat(random.usize(100..50_000))),
        11 => format!("0\r\nImpersonate-User: admin\r\nX-Remote-User: admin\r\nHost: x\r\n\r\n{hidden}"),
        12 => format!("{:x}\r\n{REVIEW}\r\n0\r\nAuthorization: Bearer x\r\nContent-Length: 9\r\n\r\n", REVIEW.len()),
        _ => format!("0\r\n{}\r\n\r\n{hidden}", "T: t\r\n".repeat(random.usize(10..5000))),
    };
    case.bytes = [&head.spell("\r\n"), body.as_bytes()].concat();
}

/// R-THREAT-3: bytes after an upgrade request, for the case that the upgrade fails.
pub fn upgrade(case: &mut Case, identity: &Identity, random: &mut Rng) {
    case.family = "upgrade";
    let path = pick(
        random,
        &[
            "/api/v1/namespaces/t1/pods/none/exec?command=sh&",
            "/api/v1/namespaces/t1/pods/none/portforward?",
            "/api/v1/namespaces/t1/configmaps?watch=true&",
            "/api/v1/namespaces/t1/secrets?watch=true&",
            "/version?",
        ],
    );
    let mut head = Head::new(pick(random, &["GET", "POST"]), &format!("{path}mark={}a", case.mark), identity);
    let protocol = pick(random, &["websocket", "SPDY/3.1", "h2c", "TLS/1.0", "websocket, SPDY/3.1", ""]);
    head.insert(format!("Upgrade: {protocol}").into_bytes(), random);
    head.insert(b"Connection: Upgrade".to_vec(), random);
    if random.bool() {
        head.add("Sec-WebSocket-Version: 13");
        head.add("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==");
        head.add("Origin: http://localhost");
    }
    if protocol == "h2c" {
        head.add("HTTP2-Settings: AAMAAABkAAQAAP__");
    }
    case.bytes = [&head.spell("\r\n"), case.hidden(identity).as_bytes()].concat();
}
