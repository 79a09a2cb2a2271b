//! Continue tokens in the apiserver's own format, so that a list begun at the proxy can continue at the apiserver and
//! vice versa (R-CONTINUE-1).

#[cfg(test)]
mod tests;

use super::go_text::json_string;
use super::{ObjectKey, ResourceVersion};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::Deserialize;

const VERSION: &str = "meta.k8s.io/v1";

/// The version of the next page of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContinueVersion {
    /// The next page is at the version of the first page.
    Version(ResourceVersion),
    /// The next page is at the current version (`rv: -1`): the list continues after a token expired, at the price of
    /// consistency between pages.
    Latest,
}

/// The store from which upstream reads the pages of a list. It affects only the spelling of tokens: servers accept
/// both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ListPageSource {
    /// The pages come from etcd: keys start after the slash that ends the collection's prefix.
    #[default]
    FromStorage,
    /// The pages come from the watch cache: keys begin with that slash.
    FromCache,
}

impl ListPageSource {
    /// Returns the page store of a server of release `1.minor`. Since 1.34, servers keep snapshots of their watch
    /// caches for pages (KEP-4988).
    pub fn of_release(minor: Option<u32>, has_watch_cache: bool) -> Self {
        const FROM_CACHE_SINCE: u32 = 34;
        if has_watch_cache && minor >= Some(FROM_CACHE_SINCE) { Self::FromCache } else { Self::FromStorage }
    }
}

/// A position in a paginated list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ContinueToken {
    pub version: ContinueVersion,
    /// The first key that may be returned, relative to the request's collection: `NAME` in one namespace or at cluster
    /// scope, `NS/NAME` across namespaces. Usually it is the last returned key and a NUL byte, its direct successor in
    /// byte order. Compare as strings.
    pub start: String,
}

/// The members of a token's JSON. Others are refused, because Go matches names in any case: `RV` would set `rv`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ContinueTokenMembers {
    v: String,
    rv: i64,
    start: String,
}

impl ContinueToken {
    /// Creates the token for the page after `last`. `in_namespace` states whether the request's collection is one
    /// namespace, so that keys are relative to it.
    pub fn after(at: ContinueVersion, last: &ObjectKey, in_namespace: bool) -> Self {
        let relative = if in_namespace { last.name() } else { last.as_str() };
        Self { version: at, start: format!("{relative}\0") }
    }

    /// Encodes the token as base64url without padding, of JSON in the apiserver's member order.
    pub fn encode(&self, pages: ListPageSource) -> String {
        let version = match self.version {
            ContinueVersion::Version(version) => version.to_string(),
            ContinueVersion::Latest => "-1".to_owned(),
        };
        let start = match pages {
            ListPageSource::FromStorage if !self.start.is_empty() => json_string(&self.start),
            // An empty key, which no server accepts, is written as a slash.
            ListPageSource::FromStorage | ListPageSource::FromCache => json_string(&format!("/{}", self.start)),
        };
        BASE64_URL_SAFE_NO_PAD.encode(format!(r#"{{"v":"{VERSION}","rv":{version},"start":{start}}}"#))
    }

    /// Decodes a token of the proxy or the apiserver, in either spelling. `None` if the token is invalid, or is written
    /// in a way that only the apiserver accepts, such as with line breaks.
    pub fn decode(token: &str) -> Option<Self> {
        let json = BASE64_URL_SAFE_NO_PAD.decode(token).ok()?;
        // Serde would also read the members from an array.
        let members = json.starts_with(b"{").then(|| serde_json::from_slice(&json))?;
        let ContinueTokenMembers { v, rv, start } = members.ok()?;
        let version = match u64::try_from(rv) {
            Ok(0) => return None,
            Ok(version) => ContinueVersion::Version(ResourceVersion(version)),
            Err(_) => ContinueVersion::Latest,
        };
        let relative = start.strip_prefix('/').unwrap_or(&start);
        (v == VERSION && !start.is_empty() && is_clean(relative)).then(|| Self { version, start: relative.to_owned() })
    }
}

/// Whether Go's `path.Clean` leaves `/` and `relative` unchanged. A path that it would change could leave the
/// collection.
fn is_clean(relative: &str) -> bool {
    relative.is_empty() || relative.split('/').all(|step| !matches!(step, "" | "." | ".."))
}
