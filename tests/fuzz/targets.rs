//! What peers send, read: no input panics, and what is read keeps what its reader promises.
//!
//! Each target takes any bytes. They are given to it by `tests/fuzz.rs`, from the corpus and changes of it, and by
//! libFuzzer (`fuzz/`, `make fuzz`), which is why nothing here knows of either.

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
#[path = "targets/queries.rs"]
mod queries;
#[path = "targets/streams.rs"]
mod streams;

use http::{HeaderMap, HeaderName, HeaderValue};

/// A target, by its name.
pub type Target = (&'static str, fn(&[u8]));

/// All of them. Each has a folder of its name in the corpus.
pub const TARGETS: [Target; 18] = [
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
];

/// Text, as far as bytes are some.
fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// The first byte, which decides, and the rest.
fn choice(input: &[u8]) -> (usize, &[u8]) {
    input.split_first().map_or((0, input), |(first, rest)| (usize::from(*first), rest))
}

/// Lines of a head, `NAME: VALUE` each; what is none is left out.
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

/// The target of a name, for a binary that is about no other.
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

/// Whether both are the same, where the compiler asks.
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
