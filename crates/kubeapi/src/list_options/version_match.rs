//! The matrices of R-GET-1, R-LIST-1 and R-WATCH-2 as functions: the meaning of a request's version parameters.

use super::super::{ContinueToken, ContinueVersion, ResourceVersion, UrlQuery};
use super::{EXACT, ListOptions, flag};

/// The required freshness of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResourceVersionMatch {
    /// No version is specified: the most recent state, consistent with every earlier write.
    Unset,
    /// `resourceVersion=0`: any state, however old.
    Any,
    /// The response has a state at this version or a later one.
    NotOlderThan(ResourceVersion),
    /// The response has the state at exactly this version.
    Exact(ResourceVersion),
}

/// The parameters of a LIST: one row of the matrix in R-LIST-1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPlan {
    pub version: ResourceVersionMatch,
    /// The maximum number of items in a page; `None` means all. A list at version `0` has no limit, because the
    /// apiserver's cache ignores it.
    pub limit: Option<u64>,
    /// The first key of the page; `None` is the beginning.
    pub start: Option<String>,
}

/// The start of a WATCH: one row of the matrix in R-WATCH-2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WatchStart {
    /// The watch starts with the first event after this version, without a state. A future version is not an error.
    After(ResourceVersion),
    /// The watch starts at the cache's current version, without its state.
    FromCached,
    /// The watch starts at the most recent version, without a state.
    FromCurrent,
    /// The watch starts with the whole state as `ADDED` events, then sends the events after it.
    State {
        /// The required freshness of the state; never [`ResourceVersionMatch::Exact`].
        at: ResourceVersionMatch,
        /// Whether the annotated bookmark follows the state.
        end_bookmark: bool,
    },
}

impl WatchStart {
    /// Whether synthetic `ADDED` events come first, and the bookmark with the annotation `k8s.io/initial-events-end`
    /// follows them.
    pub fn ends_with_bookmark(self) -> bool {
        matches!(self, Self::State { end_bookmark: true, .. })
    }
}

impl ResourceVersionMatch {
    /// Returns the required freshness of a GET of one object (R-GET-1, R-QUERY-3): never [`Self::Exact`]. `None` if the
    /// resourceVersion is not a number, or the query has the removed parameter `export`.
    pub fn of_get(query: &UrlQuery) -> Option<Self> {
        if flag(query, "export") == Some(true) {
            return None;
        }
        Self::at_least(query.first("resourceVersion").unwrap_or_default())
    }

    /// Parses a version as the minimum of a response; `None` if it is not a number.
    fn at_least(text: &str) -> Option<Self> {
        if text.is_empty() {
            return Some(Self::Unset);
        }
        // Like Go, accepts leading zeros, but no sign.
        Some(match text.parse().ok().filter(|_| !text.starts_with('+'))? {
            0 => Self::Any,
            version => Self::NotOlderThan(ResourceVersion(version)),
        })
    }
}

impl ListOptions {
    /// Returns the plan of a validated LIST. `None` if the resourceVersion is not a number, or if the continue token is
    /// invalid or combined with a version.
    pub fn list_plan(&self) -> Option<ListPlan> {
        let text = self.resource_version.as_str();
        let limit = u64::try_from(self.limit).ok().filter(|&limit| limit > 0 && text != "0");
        if !self.continue_token.is_empty() {
            let ContinueToken { version, start } = ContinueToken::decode(&self.continue_token)?;
            if !matches!(text, "" | "0") {
                return None;
            }
            let version = match version {
                ContinueVersion::Version(version) => ResourceVersionMatch::Exact(version),
                ContinueVersion::Latest => ResourceVersionMatch::Unset,
            };
            return Some(ListPlan { version, limit, start: Some(start) });
        }
        let version = match (self.resource_version_match.as_str(), ResourceVersionMatch::at_least(text)?) {
            (EXACT, ResourceVersionMatch::NotOlderThan(version)) => ResourceVersionMatch::Exact(version),
            // A page without a match parameter is of an exact version, as before that parameter existed.
            ("", ResourceVersionMatch::NotOlderThan(version)) if limit.is_some() => {
                ResourceVersionMatch::Exact(version)
            }
            (_, version) => version,
        };
        Some(ListPlan { version, limit, start: None })
    }

    /// Returns the start of a defaulted and validated WATCH; `None` if the resourceVersion is not a number.
    pub fn watch_start(&self) -> Option<WatchStart> {
        let end_bookmark = self.send_initial_events == Some(true) && self.allow_watch_bookmarks;
        let version = ResourceVersionMatch::at_least(&self.resource_version)?;
        Some(match (self.send_initial_events, version) {
            (Some(true), at) => WatchStart::State { at, end_bookmark },
            // Without sendInitialEvents, a missing version means any: the oldest form of watch.
            (None, ResourceVersionMatch::Unset | ResourceVersionMatch::Any) => {
                WatchStart::State { at: ResourceVersionMatch::Any, end_bookmark }
            }
            (Some(false), ResourceVersionMatch::Unset) => WatchStart::FromCurrent,
            (Some(false), ResourceVersionMatch::Any) => WatchStart::FromCached,
            (_, ResourceVersionMatch::NotOlderThan(version) | ResourceVersionMatch::Exact(version)) => {
                WatchStart::After(version)
            }
        })
    }
}
