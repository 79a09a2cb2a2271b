//! The matrices of R-GET-1, R-LIST-1 and R-WATCH-2: the meaning of a request's parameters.

use std::time::Duration;

use super::{
    ContinueToken, ContinueVersion, FieldSelector, LabelSelector, ResourceVersion, SELECTOR_BYTES_MAX, UrlQuery,
};

/// The query parameters of a LIST or WATCH, decoded (R-QUERY-2).
///
/// A handler calls [`decode`](Self::decode), [`defaulted`](Self::defaulted), [`is_valid`](Self::is_valid), the fields'
/// [`compile`](FieldSelector::compile), then [`list_plan`](Self::list_plan) or [`watch_start`](Self::watch_start).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    pub labels: LabelSelector,
    /// The field selector, with the keys that the client sent.
    pub fields: FieldSelector,
    pub watch: bool,
    pub allow_watch_bookmarks: bool,
    /// The resourceVersion, unparsed, because its meaning depends on the verb.
    pub resource_version: String,
    pub resource_version_match: String,
    /// The parameter `timeoutSeconds`, which is used only for watches: see [`WatchTimeout`].
    pub timeout_seconds: Option<i64>,
    /// The maximum number of objects of a page; zero and negative values mean unlimited.
    pub limit: i64,
    pub continue_token: String,
    /// The parameter `sendInitialEvents`; `None` if it is absent, which differs from false.
    pub send_initial_events: Option<bool>,
}

impl ListOptions {
    /// Decodes the query parameters; `None` if a number or a selector is invalid.
    pub fn decode(query: &UrlQuery) -> Option<Self> {
        let text = |name| query.first(name).unwrap_or_default();
        let integer = |name| query.first(name).map(str::parse).transpose().ok();
        Some(Self {
            labels: LabelSelector::parse(text("labelSelector"))?,
            fields: FieldSelector::parse(text("fieldSelector"))?,
            watch: flag(query, "watch").unwrap_or(false),
            allow_watch_bookmarks: flag(query, "allowWatchBookmarks").unwrap_or(false),
            resource_version: text("resourceVersion").to_owned(),
            resource_version_match: text("resourceVersionMatch").to_owned(),
            timeout_seconds: integer("timeoutSeconds")?,
            limit: integer("limit")?.unwrap_or(0),
            continue_token: text("continue").to_owned(),
            send_initial_events: flag(query, "sendInitialEvents"),
        })
    }

    /// Whether all selectors are short enough to be parsed. The apiserver may accept longer ones.
    pub fn has_short_selectors(query: &UrlQuery) -> bool {
        let length = |name| query.first(name).map_or(0, str::len);
        ["labelSelector", "fieldSelector", "shardSelector"].into_iter().all(|name| length(name) <= SELECTOR_BYTES_MAX)
    }

    /// Applies the server's default (R-WATCH-1): a watch without parameters about its start gets the initial events.
    /// The `/watch/` path form is excluded, because its options lack `watch=true`. Servers with the feature gate
    /// `WatchList` disabled have no such default.
    #[must_use]
    pub fn defaulted(self) -> Self {
        let has_no_start = self.send_initial_events.is_none() && self.resource_version_match.is_empty();
        if self.watch && has_no_start && matches!(self.resource_version.as_str(), "" | "0") {
            let resource_version_match = NOT_OLDER_THAN.to_owned();
            return Self { send_initial_events: Some(true), resource_version_match, ..self };
        }
        self
    }

    /// Whether the options do not exclude each other (R-OPTIONS-1). `as_watch` is the `watch` parameter, not the verb:
    /// the `/watch/` path form without `watch=true` is validated as a list.
    pub fn is_valid(&self, as_watch: bool) -> bool {
        let has_events = self.send_initial_events.is_some();
        let continues = !self.continue_token.is_empty();
        let version = self.resource_version.as_str();
        match (self.resource_version_match.as_str(), as_watch) {
            ("", _) => !has_events,
            (NOT_OLDER_THAN, true) => has_events && !continues,
            (NOT_OLDER_THAN, false) => !has_events && !continues && !version.is_empty(),
            (EXACT, false) => !has_events && !continues && !matches!(version, "" | "0"),
            _ => false,
        }
    }

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

/// The requested duration of a watch (R-TIMEOUT-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatchTimeout {
    /// The client set no timeout, or 0, so the server chooses one.
    Unset,
    /// The watch ends at once, because its timeout has elapsed.
    Elapsed,
    After(Duration),
}

const NANOSECONDS: i64 = 1_000_000_000;

impl WatchTimeout {
    /// Interprets `timeoutSeconds` like the apiserver, which counts nanoseconds in 64 bits. A large number overflows
    /// and may mean any duration.
    pub fn of(timeout_seconds: Option<i64>) -> Self {
        match u64::try_from(timeout_seconds.unwrap_or(0).wrapping_mul(NANOSECONDS)) {
            Ok(0) => Self::Unset,
            Ok(nanoseconds) => Self::After(Duration::from_nanos(nanoseconds)),
            Err(_) => Self::Elapsed,
        }
    }

    /// Returns the requested duration, at most `max`; `max` if none was requested.
    pub fn capped(self, max: Duration) -> Duration {
        match self {
            Self::After(length) => length.min(max),
            Self::Unset | Self::Elapsed => max,
        }
    }
}

const EXACT: &str = "Exact";
const NOT_OLDER_THAN: &str = "NotOlderThan";

/// Parses a boolean like the apiserver: only `0` and `false` are false; the empty value and any other text are true.
fn flag(query: &UrlQuery, name: &str) -> Option<bool> {
    query.first(name).map(|text| text != "0" && !text.eq_ignore_ascii_case("false"))
}

#[cfg(test)]
mod tests;
