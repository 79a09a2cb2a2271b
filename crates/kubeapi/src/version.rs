use std::fmt;
use std::str::FromStr;

/// A resourceVersion: assigned by upstream, comparable within one resource (KEP-5504), never invented by the proxy.
///
/// It is a `u64`, as the apiserver parses it. A server whose versions are not decimal numbers is never cached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct ResourceVersion(pub u64);

/// The error for a text that is not a decimal `u64` without sign or leading zero.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("resourceVersion {0:?} is not a decimal number")]
pub struct ResourceVersionError(String);

impl FromStr for ResourceVersion {
    type Err = ResourceVersionError;

    fn from_str(text: &str) -> Result<Self, ResourceVersionError> {
        let canonical = text.bytes().all(|b| b.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
        match text.parse() {
            Ok(number) if canonical => Ok(Self(number)),
            _ => Err(ResourceVersionError(text.to_owned())),
        }
    }
}

impl fmt::Display for ResourceVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}
