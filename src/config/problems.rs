use std::fmt;

/// All problems of a configuration, in the order in which they were found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigProblems {
    /// Each problem, as its key and the reason, with its position in the file. Flags and combinations of settings have
    /// no position.
    found: Vec<(String, Option<TextPosition>)>,
}

/// A line and a column, both counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPosition {
    pub line: u64,
    pub column: u64,
}

impl ConfigProblems {
    pub(super) fn add(&mut self, problem: impl Into<String>) {
        self.found.push((problem.into(), None));
    }

    pub(super) fn add_at(&mut self, at: TextPosition, problem: impl Into<String>) {
        self.found.push((problem.into(), Some(at)));
    }

    /// Returns the value, or records a problem about `what`.
    pub(super) fn check<T, E: fmt::Display>(&mut self, what: &str, result: Result<T, E>) -> Option<T> {
        result.map_err(|error| self.add(format!("{what}: {error}"))).ok()
    }

    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Returns the messages, each of which begins with its key.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.found.iter().map(|(text, _)| text.as_str())
    }

    /// Returns the messages with their positions in the file.
    pub fn with_positions(&self) -> impl Iterator<Item = (&str, Option<TextPosition>)> {
        self.found.iter().map(|(text, at)| (text.as_str(), *at))
    }
}

impl fmt::Display for ConfigProblems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = self.found.len();
        write!(f, "the configuration has {count} problem{}", if count == 1 { "" } else { "s" })?;
        self.with_positions().try_for_each(|(text, at)| match at {
            Some(TextPosition { line, column }) => write!(f, "\n  - line {line}, column {column}: {text}"),
            None => write!(f, "\n  - {text}"),
        })
    }
}

impl std::error::Error for ConfigProblems {}
