#[cfg(test)]
mod tests;
mod version_match;
mod watch_timeout;

pub use version_match::{ListPlan, ResourceVersionMatch, WatchStart};

pub use watch_timeout::WatchTimeout;

use super::{FieldSelector, LabelSelector, SELECTOR_BYTES_MAX, UrlQuery};

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

    /// Whether both selectors are short enough to be parsed. The apiserver may accept longer ones.
    pub fn has_short_selectors(query: &UrlQuery) -> bool {
        let length = |name| query.first(name).map_or(0, str::len);
        ["labelSelector", "fieldSelector"].into_iter().all(|name| length(name) <= SELECTOR_BYTES_MAX)
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
}

const EXACT: &str = "Exact";
const NOT_OLDER_THAN: &str = "NotOlderThan";

/// Parses a boolean like the apiserver: only `0` and `false` are false; the empty value and any other text are true.
fn flag(query: &UrlQuery, name: &str) -> Option<bool> {
    query.first(name).map(|text| text != "0" && !text.eq_ignore_ascii_case("false"))
}
