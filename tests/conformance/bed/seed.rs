use super::{number, say};

/// The seed of every run of `make test`.
const FIXED: u64 = 1;

/// The seed of a test that draws. Without a variable in the environment it is [`FIXED`], so that a change fails only
/// for what it changed; `make nightly` passes a new seed each time. It is written to stderr when the test begins, and
/// again when it fails, with the command that draws the same.
#[derive(Debug)]
pub struct Seed {
    first: u64,
    again: String,
}

impl Seed {
    /// Takes the seed from this environment variable, or the fixed one. `again` returns the command for a seed.
    pub fn new(variable: &str, again: impl FnOnce(u64) -> String) -> Self {
        let first = number(variable, FIXED);
        let again = again(first);
        say(&format!("drawn with seed {first}: {again}"));
        Self { first, again }
    }

    /// One seed for each round, without an end.
    pub fn rounds(&self) -> impl Iterator<Item = u64> {
        (0..).map(|round| self.first.wrapping_add(round))
    }

    pub fn first(&self) -> u64 {
        self.first
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            say(&format!("to draw the same again: {}", self.again));
        }
    }
}
