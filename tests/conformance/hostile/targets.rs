//! Requests with unusual targets, and bytes that are hardly a request.

use fastrand::Rng;

use super::cases::{Case, Head, REVIEW, Wire, pick};
use crate::bed::Identity;

/// Paths that can be confused with others.
pub fn path(case: &mut Case, identity: &Identity, random: &mut Rng) {
    case.family = "paths";
    let path = pick(
        random,
        &[
            "/api/v1/namespaces/kube-system/secrets",
            "//api/v1/namespaces/kube-system/secrets",
            "/api//v1/namespaces/kube-system/secrets",
            "/api/v1/namespaces/t1/../kube-system/secrets",
            "/api/v1/namespaces/t1/%2e%2e/kube-system/secrets",
            "/api/v1/namespaces/t1%2f..%2fkube-system/secrets",
            "/api/v1/namespaces/kube-system%2fsecrets",
            "/api/v1/namespaces/kube-system/secrets/",
            "/api/v1/namespaces/kube-system/secrets;x=y",
            "/api/v1/namespaces/kube-system/secrets%00",
            "/api/v1/namespaces/kube-system/SECRETS",
            "/API/v1/namespaces/kube-system/secrets",
            "/api/v1/./nodes",
            "/api/v1/nodes/.",
            "/api/v1/nodes/..",
            "/api/v1/nodes%",
            "/api/v1/nodes%2",
            "/api/v1/nodes%zz",
            "/api/v1/n%6fdes",
            "/api\\v1\\nodes",
            "/api/v1/nodes%0d%0aX-Remote-User:%20admin",
            "/api/v1/watch/../nodes",
            "/api/v1/proxy/nodes/127.0.0.1:80",
            "/api/v1/nodes/127.0.0.1:80/proxy/",
            "/apis/../api/v1/nodes",
            "/../../etc/passwd",
            "/api/v1/nodes\u{fc}",
            "/api/v1/nodes\u{1}",
            "/api/v1/nodes\"<>",
        ],
    );
    let target = format!("{path}?mark={}a", case.mark);
    let more =
        pick(random, &["", "&watch=true", "&resourceVersion=0", "&fieldSelector=metadata.name%3Da", "&a=%", "&;="]);
    // Upstream's audit log escapes unescaped characters.
    case.target = (path.is_ascii() && !path.contains('\\')).then(|| format!("{target}{more}"));
    let head = Head::new(pick(random, &["GET", "GET", "HEAD", "POST", "DELETE"]), &format!("{target}{more}"), identity);
    case.bytes = head.spell("\r\n");
}

/// Request lines with a host, two hosts or none, and with invalid methods and versions.
pub fn form(case: &mut Case, identity: &Identity, random: &mut Rng) {
    case.family = "forms";
    let head = case.question(identity);
    let origin = head.target.clone();
    let head = match random.u32(..12) {
        0 => head.target(&format!("http://evil.example{origin}")),
        1 => head.target(&format!("https://127.0.0.1{origin}")),
        2 => head.target(&format!("https://admin:secret@127.0.0.1{origin}")),
        3 => head.target(&format!("//evil.example{origin}")),
        4 => head.method("CONNECT").target("127.0.0.1:443"),
        5 => head.method("CONNECT"),
        6 => head.method("OPTIONS").target("*"),
        7 => head.method(pick(random, &["post", "POST\t", "P(ST", "TRACE", "PRI", "X", "G\u{e4}T", ""])),
        8 => head.version(pick(random, &["HTTP/1.2", "HTTP/2.0", "HTTP/0.9", "HTTP/1.1 ", "http/1.1", ""])),
        9 => head.target(&format!("{origin} {origin}")),
        10 => head.target(&format!("{origin}#fragment")),
        _ => head.version(&format!("HTTP/1.1\nImpersonate-User: admin\nX: {}", case.mark)),
    };
    case.bytes = head.with_body(REVIEW);
    if random.u32(..8) == 0 {
        let first = pick(random, &["\r\n", "\r\n\r\n", "\n", " ", "\0", "\u{feff}"]);
        case.bytes = [first.as_bytes(), &case.bytes].concat();
    }
}

/// Bytes that are not a request.
pub fn noise(case: &mut Case, random: &mut Rng) {
    case.family = "noise";
    let mut some = |count: usize| (0..count).map(|_| random.u8(..)).collect::<Vec<_>>();
    let (long, short) = (some(4000), some(40));
    case.sound.clear();
    (case.wire, case.bytes) = match random.u32(..8) {
        0 => (Wire::Tcp, long),
        // The start of a TLS handshake, followed by other bytes.
        1 => (Wire::Tcp, [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(), &long].concat()),
        2 => (Wire::Tcp, [b"\x16\x03\x01\xff\xff".as_slice(), &short].concat()),
        3 => (Wire::Tcp, format!("GET /api/v1/nodes?mark={}s HTTP/1.1\r\nHost: x\r\n\r\n", case.mark).into_bytes()),
        4 => (Wire::Http1, long),
        5 => (Wire::Http1, format!("GET /api/v1/nodes?mark={}s\r\n", case.mark).into_bytes()),
        6 => (Wire::Http2, [super::streams::PREFACE, &long].concat()),
        _ => (Wire::Http1, [super::streams::PREFACE, &short].concat()),
    };
}
