use std::fmt;

/// Everything that is wrong with a configuration, in the order it was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Problems {
    found: Vec<String>,
}

impl Problems {
    pub(super) fn add(&mut self, problem: impl Into<String>) {
        self.found.push(problem.into());
    }

    /// The value, or a problem about `what`.
    pub(super) fn check<T, E: fmt::Display>(&mut self, what: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(format!("{what}: {error}"))).ok()
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.found.iter().map(String::as_str)
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.found.len();
        write!(f, "the configuration has {count} problem{}", if count == 1 { "" } else { "s" })?;
        self.found.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))
    }
}

impl std::error::Error for Problems {}
