//! The path of a request as Go's `net/url` and the apiserver's `splitPath` read it.

use super::super::query::unescape;

pub(super) struct Path {
    raw: String,
    decoded: String,
}

impl Path {
    /// `None` for an escape that is none. Escapes are undone before the path is split: `%2F` separates segments.
    pub(super) fn parse(raw: &str) -> Option<Self> {
        Some(Self { raw: raw.to_owned(), decoded: unescape(raw, false)?.into_text() })
    }

    pub(super) fn raw(&self) -> &str {
        &self.raw
    }

    pub(super) fn decoded(&self) -> &str {
        &self.decoded
    }

    /// Slashes at both ends do not count, however many; empty segments inside do.
    pub(super) fn segments(&self) -> Vec<&str> {
        match self.decoded.trim_matches('/') {
            "" => Vec::new(),
            path => path.split('/').collect(),
        }
    }

    /// See [`RequestInfo::is_canonical`](super::RequestInfo::is_canonical). A colon is allowed: names of RBAC objects
    /// have it.
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
