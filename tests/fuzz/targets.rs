//! Parsers of peers' input: no input panics, and parsed values keep the parser's guarantees.
//!
//! Each target accepts any bytes. `tests/fuzz.rs` passes the corpus and mutations of it, and libFuzzer (`fuzz/`, `make
//! fuzz`) its own inputs, so nothing here depends on either.

#[path = "targets/bodies.rs"]
mod bodies;
#[path = "targets/callers.rs"]
mod callers;
#[path = "targets/connections.rs"]
mod connections;
#[path = "targets/discovery.rs"]
mod discovery;
#[path = "targets/documents.rs"]
mod documents;
#[path = "targets/headers.rs"]
mod headers;
#[path = "targets/http2.rs"]
mod http2_codec;
#[path = "targets/queries.rs"]
mod queries;
#[path = "targets/streams.rs"]
mod streams;

use http::{HeaderMap, HeaderName, HeaderValue};

/// Name and function of a target.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. Each has a folder with its name in the corpus.
pub const TARGETS: [Target; 19] = [
    ("frames", streams::frames),
    ("events", streams::events),
    ("pages", streams::pages),
    ("bodies", bodies::bodies),
    ("statuses", documents::statuses),
    ("tokens", documents::tokens),
    ("authorities", documents::authorities),
    ("configurations", documents::configurations),
    ("selectors", queries::selectors),
    ("requests", queries::requests),
    ("headers", headers::headers),
    ("credentials", callers::credentials),
    ("certificates", callers::certificates),
    ("reviews", callers::reviews),
    ("policies", callers::policies),
    ("discovery", discovery::discovery),
    ("messages", connections::messages),
    ("connections", connections::connections),
    ("http2", http2_codec::connections),
];

/// The bytes as text, with invalid UTF-8 replaced.
fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// The first byte, which selects a variant, and the rest.
fn choice(input: &[u8]) -> (usize, &[u8]) {
    input.split_first().map_or((0, input), |(first, rest)| (usize::from(*first), rest))
}

/// Parses header lines, `NAME: VALUE` each; invalid ones are skipped.
fn head<'a>(lines: impl Iterator<Item = &'a [u8]>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) = (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(&line[colon + 1..]));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    headers
}

/// The target with this name, for a binary that has only one.
#[allow(dead_code, reason = "tests/fuzz.rs runs all of them")]
pub const fn named(name: &str) -> fn(&[u8]) {
    let mut at = 0;
    while at < TARGETS.len() {
        let (target, run) = TARGETS[at];
        if is_same(target.as_bytes(), name.as_bytes()) {
            return run;
        }
        at += 1;
    }
    panic!("FUZZ_TARGET names no target")
}

/// Byte equality in a const context.
#[allow(dead_code, reason = "tests/fuzz.rs runs all of them")]
const fn is_same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}
