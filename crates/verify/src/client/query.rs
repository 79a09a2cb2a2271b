//! Builds queries as clients write them.

use std::fmt::Write as _;

/// A query text of `name=value` pairs, in the order in which they were added.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueryString(String);

impl QueryString {
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        if !self.0.is_empty() {
            self.0.push('&');
        }
        self.0.push_str(name);
        self.0.push('=');
        for byte in value.bytes() {
            if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
                self.0.push(char::from(byte));
            } else {
                // Writing to a String does not fail.
                let _ = write!(self.0, "%{byte:02X}");
            }
        }
        self
    }

    /// Adds a query parameter if it has a value.
    pub(crate) fn with_some(self, name: &str, value: Option<&str>) -> Self {
        match value {
            Some(value) if !value.is_empty() => self.with(name, value),
            _ => self,
        }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the path with the query appended.
    pub(crate) fn behind(&self, path: &str) -> String {
        if self.0.is_empty() { path.to_owned() } else { format!("{path}?{}", self.0) }
    }
}

#[test]
fn query_values_are_escaped_and_empty_ones_omitted() {
    let query = QueryString::default().with_some("a", None).with_some("b", Some("")).with("c", "x=y, z/é");
    assert_eq!(query.behind("/p"), "/p?c=x%3Dy%2C%20z%2F%C3%A9");
    assert_eq!(QueryString::default().behind("/p"), "/p");
    assert_eq!(QueryString::default().with("a", "1").with("b", "2").as_str(), "a=1&b=2");
}
