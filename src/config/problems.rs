use std::fmt;

/// All problems of a configuration, in the order in which they were found. Each begins with its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigProblems(Vec<String>);

impl ConfigProblems {
    pub(super) fn add(&mut self, problem: impl Into<String>) {
        self.0.push(problem.into());
    }

    /// Returns the value, or records a problem about `what`.
    pub(super) fn check<T, E: fmt::Display>(&mut self, what: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(format!("{what}: {error}"))).ok()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.0.len();
        write!(f, "the configuration has {count} problem{}", if count == 1 { "" } else { "s" })?;
        self.iter().try_for_each(|problem| write!(f, "\n  - {problem}"))
    }
}

impl std::error::Error for ConfigProblems {}
