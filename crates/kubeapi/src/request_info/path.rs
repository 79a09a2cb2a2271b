//! The path of a request as Go's `net/url` and the apiserver's `splitPath` parse it.

use super::super::query::unescape;

pub(super) struct Path {
    raw: String,
    decoded: String,
}

impl Path {
    /// Parses a path; `None` for an invalid escape. Escapes are resolved before the path is split, so `%2F` separates
    /// segments.
    pub(super) fn parse(raw: &str) -> Option<Self> {
        Some(Self { raw: raw.to_owned(), decoded: unescape(raw, false)?.into_text() })
    }

    pub(super) fn raw(&self) -> &str {
        &self.raw
    }

    pub(super) fn decoded(&self) -> &str {
        &self.decoded
    }

    /// Returns the path segments. Slashes at both ends are ignored, however many; empty segments inside are kept.
    pub(super) fn segments(&self) -> Vec<&str> {
        match self.decoded.trim_matches('/') {
            "" => Vec::new(),
            path => path.split('/').collect(),
        }
    }

    /// Whether the path is canonical, as defined for [`RequestInfo::is_canonical`](super::RequestInfo::is_canonical). A
    /// colon is allowed, because names of RBAC objects contain it.
    pub(super) fn is_canonical(&self) -> bool {
        let Some(path) = self.raw.strip_prefix('/') else { return false };
        let path = path.strip_suffix('/').unwrap_or(path);
        path.split('/').all(|segment| {
            let bytes = segment.as_bytes();
            bytes.iter().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b':'))
                && bytes.iter().any(|&byte| byte != b'.')
        })
    }
}
