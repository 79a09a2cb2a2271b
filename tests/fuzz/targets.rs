//! What peers send, read: no input panics, and what is read keeps what its reader promises.
//!
//! Each target takes any bytes. They are given to it by `tests/fuzz.rs`, from the corpus and changes of it, and by
//! libFuzzer (`fuzz/`, `make fuzz`), which is why nothing here knows of either.

#[path = "targets/bodies.rs"]
mod bodies;
#[path = "targets/documents.rs"]
mod documents;
#[path = "targets/headers.rs"]
mod headers;
#[path = "targets/queries.rs"]
mod queries;
#[path = "targets/streams.rs"]
mod streams;

/// A target, by its name.
pub type Target = (&'static str, fn(&[u8]));

/// All of them. Each has a folder of its name in the corpus.
pub const TARGETS: [Target; 11] = [
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
];

/// Text, as far as bytes are some.
fn text(bytes: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(bytes)
}

/// The first byte, which decides, and the rest.
fn choice(input: &[u8]) -> (usize, &[u8]) {
    input.split_first().map_or((0, input), |(first, rest)| (usize::from(*first), rest))
}

/// Runs one target, for a binary that is about no other.
#[allow(dead_code, reason = "tests/fuzz.rs runs all of them")]
pub fn run(name: &str, input: &[u8]) {
    let (_, target) = TARGETS.iter().find(|(target, _)| *target == name).expect("a target of that name");
    target(input);
}
