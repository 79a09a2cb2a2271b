//! Requests with headers that claim an identity.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fastrand::Rng;

use super::cases::{Case, Cast, REVIEW, pick};
use crate::bed::Identity;

const NAMES: [&str; 18] = [
    "Impersonate-User",
    "Impersonate-User",
    "Impersonate-Group",
    "Impersonate-Uid",
    "Impersonate-Extra-Scopes",
    "Impersonate-Extra-a%2fb",
    "Impersonate-Extra-authentication.kubernetes.io%2fcredential-id",
    "Impersonate-Extra-",
    "Impersonate-",
    "X-Remote-User",
    "X-Remote-Group",
    "X-Remote-Uid",
    "X-Remote-Extra-a%2Fb",
    "X-Remote-Extra-",
    "X-Forwarded-User",
    "X-Original-User",
    "Remote-User",
    "Forwarded",
];
const VALUES: [&str; 12] = [
    "admin",
    "system:admin",
    "system:masters",
    "impersonator",
    "proxy",
    "system:serviceaccount:kube-system:default",
    "bob",
    "mallory",
    "",
    " admin\t",
    "admin, bob",
    "\u{fc}",
];
const HOPS: [&str; 10] = [
    "close",
    "keep-alive",
    "Impersonate-User",
    "Impersonate-Group",
    "impersonate-uid",
    "X-Remote-User",
    "Authorization",
    "Host",
    "Content-Length",
    "Kube-Fanout-Hops",
];

/// A header name in an unusual spelling.
fn spelled(name: &str, random: &mut Rng) -> String {
    match random.u32(..8) {
        0 => name.to_lowercase(),
        1 => name.to_uppercase(),
        2 => name.replace('-', "_"),
        3 => name.replacen('-', "_", 1),
        4 => {
            name.chars().map(|c| if random.bool() { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() }).collect()
        }
        _ => name.to_owned(),
    }
}

fn claim(random: &mut Rng) -> Vec<u8> {
    let (name, value) = (spelled(pick(random, &NAMES), random), pick(random, &VALUES));
    let between = match random.u32(..24) {
        0 => " : ",
        1 => "\t:",
        2 => ":\t ",
        3 => ":\r\n ",
        4 => ":\n",
        5 => ": \r",
        6 => ":\0",
        7 => ":\u{b}",
        _ => ": ",
    };
    let before = if random.u32(..20) == 0 { " " } else { "" };
    format!("{before}{name}{between}{value}").into_bytes()
}

/// R-THREAT-2: claims another identity.
pub fn identity(case: &mut Case, identity: &Identity, random: &mut Rng) {
    case.family = "identity headers";
    let mut head = case.question(identity);
    for _ in 0..random.usize(1..4) {
        head.insert(claim(random), random);
    }
    case.bytes = head.with_body(REVIEW);
}

/// R-THREAT-1: tries to make a proxy drop its own identity headers.
pub fn hop_by_hop(case: &mut Case, identity: &Identity, random: &mut Rng) {
    case.family = "hop-by-hop headers";
    let mut head = case.question(identity);
    for _ in 0..random.usize(1..3) {
        let names: Vec<_> = (0..random.usize(1..4))
            .map(|_| {
                let (before, after) =
                    (pick(random, &["", " ", "\t"]), pick(random, &["", " ", ";q=1", ",", ",,", "\""]));
                format!("{before}{}{after}", spelled(pick(random, &HOPS), random))
            })
            .collect();
        let name = spelled(pick(random, &["Connection", "Connection", "Proxy-Connection", "Keep-Alive", "TE"]), random);
        head.insert(format!("{name}: {}", names.join(",")).into_bytes(), random);
    }
    if random.bool() {
        head.insert(claim(random), random);
    }
    case.bytes = head.with_body(REVIEW);
}

/// Two credentials, or a malformed one.
pub fn authorization(case: &mut Case, cast: &Cast, random: &mut Rng) {
    case.family = "authorization";
    let identity = &cast.callers[case.caller];
    let mut head = case.question(identity);
    let other = cast.others[random.usize(..cast.others.len())].clone();
    let encoded = URL_SAFE_NO_PAD.encode(&other);
    let own = head.lines.iter().position(|line| line.starts_with(b"Authorization"));
    match (random.u32(..6), own) {
        // The winning credential depends on the parser.
        (0, Some(_)) => {
            case.ambiguous = true;
            head.insert(format!("{}: Bearer {other}", spelled("Authorization", random)).into_bytes(), random);
        }
        (1, Some(_)) => {
            case.ambiguous = true;
            head.insert(b"authorization: Basic YWRtaW46YWRtaW4=".to_vec(), random);
        }
        (2, _) => {
            let protocol = format!("Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.{encoded}");
            // Without an upgrade this header is not a credential.
            head.insert(protocol.into_bytes(), random);
        }
        (3, Some(own)) => {
            let scheme = pick(random, &["bearer", "BEARER", "Bearer ", "Bearer\t", "Basic", "Token", "", " Bearer"]);
            head.lines[own] = format!("Authorization: {scheme} {} {other}", identity.token).into_bytes();
        }
        (4, Some(own)) => {
            let end = pick(random, &[" ", "\t", ",", ";", "\0", "\r", "\u{fc}", ", Bearer"]);
            head.lines[own] = format!("Authorization: Bearer {}{end}", identity.token).into_bytes();
        }
        _ => {
            let name = pick(random, &["Proxy-Authorization", "Authorization_", "X-Authorization", "Cookie", "Token"]);
            head.insert(format!("{name}: Bearer {other}").into_bytes(), random);
        }
    }
    case.bytes = head.with_body(REVIEW);
}

/// Lines that parsers interpret differently.
pub fn spelling(case: &mut Case, identity: &Identity, random: &mut Rng) {
    case.family = "spelling";
    let mut head = case.question(identity);
    let line: &[u8] = match random.u32(..12) {
        0 => b"Host: kubernetes.default.svc",
        1 => b"Host: 127.0.0.1\r\nHost: evil.example",
        2 => b": no name",
        3 => b"No colon",
        4 => b" folded: line",
        5 => b"X-Folded: a\r\n\tImpersonate-User: admin",
        6 => b"X-Bare: a\nImpersonate-User: admin",
        7 => b"X-Bare: a\rImpersonate-User: admin",
        8 => b"X-Nul: a\0b",
        9 => b"X-Bytes: \xff\xfe\x80",
        10 => b"Imperson\xc3\xa4te-User: admin",
        _ => b"Impersonate-User\xc2\xa0: admin",
    };
    head.insert(line.to_vec(), random);
    if random.u32(..6) == 0 {
        head.lines.retain(|line| !line.starts_with(b"Host"));
    }
    if random.u32(..3) > 0 {
        case.bytes = head.with_body(REVIEW);
        return;
    }
    head.add(&format!("Content-Length: {}", REVIEW.len()));
    let end = pick(random, &["\n", "\r\r\n", "\n\r", "\r"]);
    case.bytes = [&head.spell(end), REVIEW.as_bytes()].concat();
}

/// R-THREAT-12: far more headers than necessary.
pub fn bulk(case: &mut Case, identity: &Identity, random: &mut Rng) {
    case.family = "bulk";
    let mut head = case.question(identity);
    match random.u32(..5) {
        0 => head.insert(format!("X-Long: {}", "x".repeat(random.usize(30_000..200_000))).into_bytes(), random),
        1 => (0..random.usize(90..3000)).for_each(|at| head.add(&format!("X-{at}: {at}"))),
        2 => (0..random.usize(10..300)).for_each(|at| head.add(&format!("Impersonate-Extra-{at}: a"))),
        3 => head.target.extend(["&x=", &"y".repeat(random.usize(30_000..100_000))]),
        _ => head.insert(format!("{}: a", "N".repeat(random.usize(1000..80_000))).into_bytes(), random),
    }
    case.bytes = head.with_body(REVIEW);
}
