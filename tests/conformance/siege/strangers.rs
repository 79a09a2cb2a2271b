//! Attacks by unauthenticated clients: without a credential, or with a wrong one.

use super::attacks::{Attack, after_hello, question, withstand};
use super::handshakes::OTHER;
use super::{ATTACKERS, Field};
use crate::bed::Identity;
use crate::hostile::streams::{field, frame, head, head_of, literals};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;
/// The payload of a frame, and the number of frames in a header block of the largest accepted size.
const FRAME_BYTES: usize = 16 << 10;
const FRAMES: usize = 8;
/// The newest entry of the dynamic table as an indexed field (RFC 7541 §6.1).
const NEWEST: u8 = 0xbe;
const PODS: &str = "/api/v1/pods";
const HOPS: &str = "kube-fanout-hops";
/// The longest allowed chain of proxies.
const SIXTEEN: &str = "a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p";
/// The responses to requests that end their connection at once.
const ENDS_WITH_400: &[&str] = &["400", "goaway 0", "reset 7"];
const ENDS_WITH_508: &[&str] = &["508", "goaway 0", "reset 7"];
const ENDS_WITH_200: &[&str] = &["200", "goaway 0", "reset 7"];
/// A listener with a low connection limit, which one attacker reaches.
const FEW_PLACES: &str = "limits: {connections: 256}";
const MORE_THAN_PLACES: usize = 300;

/// An HTTP/1.1 request.
fn request(line: &str, fields: &str) -> Vec<u8> {
    format!("{line} HTTP/1.1\r\nhost: kube-fanout\r\n{fields}\r\n").into_bytes()
}

/// HTTP/2 requests, each with the header block for its number.
fn streams(count: u32, block: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    after_hello((0..count).map(|at| head_of(2 * at + 1, &block(at), true)))
}

/// A literal field that becomes the newest entry of the dynamic table (RFC 7541 §6.2.1).
fn remembered(name: &str, value: &str) -> Vec<u8> {
    let mut bytes = literals(&vec![field(name, value)]);
    bytes[0] = 0x40;
    bytes
}

/// Requests that repeat a large field by its index, with one byte each time.
fn repeated(count: u32, more: &[(&str, &str)], (name, value): (&str, &str), times: usize) -> Vec<u8> {
    let fields = literals(&question("GET", PODS, more));
    streams(count, |at| {
        let first = if at == 0 { remembered(name, value) } else { Vec::new() };
        let again = vec![NEWEST; times - usize::from(at == 0)];
        [fields.clone(), first, again].concat()
    })
}

fn unfinished_blocks() -> Attack {
    let part = [0; FRAME_BYTES];
    let frames = (0..FRAMES).map(|at| frame(if at == 0 { HEADERS } else { CONTINUATION }, 0, 1, &part));
    Attack {
        name: "unfinished header blocks",
        connections: 200,
        opening: after_hello(frames),
        promised: &["connections", "goaway 11"],
        ..Attack::http2()
    }
}

fn unfinished_heads() -> Attack {
    let opening = [request("GET /", "x-a: ")[..].strip_suffix(b"\r\n").expect("its end"), &vec![b'a'; 60_000]].concat();
    Attack { name: "unfinished heads", connections: 200, opening, promised: &["connections", "408"], ..Attack::http1() }
}

fn window_updates() -> Attack {
    Attack {
        name: "WINDOW_UPDATE on stream 0",
        opening: after_hello([]),
        again: frame(WINDOW_UPDATE, 0, 0, &1_u32.to_be_bytes()).repeat(5_000),
        promised: &["goaway 11"],
        ..Attack::http2()
    }
}

fn data_after_reset() -> Attack {
    let reset = [head(1, &question("GET", PODS, &[]), false), frame(RST_STREAM, 0, 1, &8_u32.to_be_bytes())];
    Attack {
        name: "DATA of a stream that is reset",
        opening: after_hello(reset),
        again: frame(DATA, 0, 1, &[0; FRAME_BYTES]).repeat(4),
        promised: &["goaway 11", "goaway 0", "reset 5"],
        ..Attack::http2()
    }
}

fn attacks() -> Vec<Attack> {
    let clauses = |of: [usize; 2]| ["*,".repeat(of[0]), "/b,".repeat(of[1])].concat();
    let attacks = vec![
        Attack {
            name: "Accept of 25,000 clauses",
            opening: request(&format!("GET {PODS}"), &format!("accept: {}\r\n", clauses([15_000, 10_000]))),
            promised: ENDS_WITH_400,
            ..Attack::http1()
        },
        Attack {
            name: "Accept by index",
            opening: repeated(100, &[], ("accept", &clauses([900, 600])), 1),
            promised: ENDS_WITH_400,
            ..Attack::http2()
        },
        Attack {
            name: "heads that repeat a field by index",
            connections: 200,
            opening: repeated(240, &[("authorization", "Bearer a-guess")], ("x-a", &"a".repeat(3_800)), 16),
            promised: &["401", "429", "503", "goaway 0", "reset 7"],
            ..Attack::http2()
        },
        Attack {
            name: "hops of a loop",
            opening: request(&format!("GET {PODS}"), &format!("{HOPS}: {SIXTEEN}\r\n")).repeat(100),
            promised: ENDS_WITH_508,
            ..Attack::http1()
        },
        Attack {
            name: "hops of a loop over HTTP/2",
            opening: streams(100, |_| literals(&question("GET", PODS, &[(HOPS, SIXTEEN)]))),
            promised: ENDS_WITH_508,
            ..Attack::http2()
        },
        Attack {
            name: "/livez of a proxy",
            opening: streams(100, |_| literals(&question("GET", "/livez", &[(HOPS, "a")]))),
            promised: ENDS_WITH_200,
            ..Attack::http2()
        },
        window_updates(),
        data_after_reset(),
        unfinished_blocks(),
        unfinished_heads(),
        Attack {
            name: "CONNECT",
            opening: request("CONNECT 10.0.0.1:443", "").repeat(100),
            promised: &["403", "429"],
            ..Attack::http1()
        },
        Attack {
            name: "CONNECT over HTTP/2",
            opening: streams(100, |_| literals(&question("CONNECT", "", &[]))),
            // Upstream refuses it like any unauthenticated request. The proxy forwards few at a time.
            promised: &["403", "429", "goaway 0", "reset 7"],
            ..Attack::http2()
        },
    ];
    // An unauthenticated client gets one response on each connection.
    attacks.into_iter().map(|attack| Attack { responses_max: 1, ..attack }).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn attacks_by_anonymous_clients_slow_no_other_client() {
    let Some(mut field) = Field::lay("").await else { return };
    withstand(&mut field, "", &vec![Identity::anonymous(); ATTACKERS], OTHER, attacks()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn new_client_connects_while_one_source_uses_all_connections() {
    let Some(mut field) = Field::lay("").await else { return };
    let silent = Attack { name: "silent connections", promised: &["connections"], ..Attack::http2() };
    let attacks = [silent, unfinished_blocks(), unfinished_heads()];
    let attacks = attacks.map(|attack| Attack { connections: MORE_THAN_PLACES, ..attack });
    withstand(&mut field, FEW_PLACES, &vec![Identity::anonymous(); ATTACKERS], OTHER, attacks.into()).await;
}
