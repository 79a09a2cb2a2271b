use super::{log_line, number};

/// The seed of every run of `make test`.
const FIXED: u64 = 1;

/// The seed of a randomized test. Without the environment variable it is [`FIXED`], so that only a code change can make
/// the test fail; `make nightly` passes a new seed each time. The seed and the command that reproduces the run are
/// written to stderr at the start, and again if the test fails.
#[derive(Debug)]
pub struct Seed {
    first: u64,
    again: String,
}

impl Seed {
    /// Reads the seed from this environment variable; the default is [`FIXED`]. `again` returns the command that
    /// reproduces a seed.
    pub fn new(variable: &str, again: impl FnOnce(u64) -> String) -> Self {
        let first = number(variable, FIXED);
        let again = again(first);
        log_line(&format!("drawn with seed {first}: {again}"));
        Self { first, again }
    }

    /// An endless sequence of seeds, one for each round.
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
            log_line(&format!("to draw the same again: {}", self.again));
        }
    }
}
