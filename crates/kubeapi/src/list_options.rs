#[cfg(test)]
mod tests;
mod validate;
mod version_match;
mod watch_timeout;

pub use version_match::{ListPlan, ResourceVersionMatch, WatchStart};

pub use watch_timeout::WatchTimeout;

use super::go_text::parse_int;
use super::{FieldSelector, LabelSelector, SELECTOR_BYTES_MAX, Status, UrlQuery};

/// The query parameters of a LIST or WATCH, decoded (R-QUERY-2).
///
/// A handler calls [`decode`](Self::decode) (400), [`defaulted`](Self::defaulted), [`validate`](Self::validate) (422),
/// then the fields' [`compile`](FieldSelector::compile) (400), then [`list_plan`](Self::list_plan) or
/// [`watch_start`](Self::watch_start).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOptions {
    pub labels: LabelSelector,
    /// The field selector, with the keys that the client sent.
    pub fields: FieldSelector,
    pub watch: bool,
    pub allow_watch_bookmarks: bool,
    /// The resourceVersion, unparsed, because the refusal of an invalid one depends on the verb (R-QUERY-4).
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
    /// Decodes the query parameters.
    ///
    /// # Errors
    /// A 400 with the first problem that the apiserver would find: integers before selectors, labels before fields.
    pub fn decode(query: &UrlQuery) -> Result<Self, Status> {
        let text = |name| query.first(name).unwrap_or_default();
        let integer = |name| query.first(name).map(parse_int).transpose().map_err(Status::bad_request);
        let timeout_seconds = integer("timeoutSeconds")?;
        let limit = integer("limit")?.unwrap_or(0);
        Ok(Self {
            labels: LabelSelector::parse(text("labelSelector"))?,
            fields: FieldSelector::parse(text("fieldSelector"))?,
            watch: flag(query, "watch").unwrap_or(false),
            allow_watch_bookmarks: flag(query, "allowWatchBookmarks").unwrap_or(false),
            resource_version: text("resourceVersion").to_owned(),
            resource_version_match: text("resourceVersionMatch").to_owned(),
            timeout_seconds,
            limit,
            continue_token: text("continue").to_owned(),
            send_initial_events: flag(query, "sendInitialEvents"),
        })
    }

    /// Whether both selectors are short enough to be parsed. [`decode`](Self::decode) refuses longer ones, although the
    /// apiserver may accept them.
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
}

/// The query parameters of a GET of one object: only the version is used, the match is ignored (R-QUERY-3).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GetOptions {
    pub resource_version: String,
}

impl GetOptions {
    /// Decodes the query parameters.
    ///
    /// # Errors
    /// 400 for `export`, which was removed.
    pub fn decode(query: &UrlQuery) -> Result<Self, Status> {
        if flag(query, "export") == Some(true) {
            let gone = "the export parameter, deprecated since v1.14, is no longer supported";
            return Err(Status::bad_request(gone));
        }
        Ok(Self { resource_version: query.first("resourceVersion").unwrap_or_default().to_owned() })
    }

    /// Returns the required freshness of the object (R-GET-1): never [`ResourceVersionMatch::Exact`].
    ///
    /// # Errors
    /// A 500 if the resourceVersion is not a number.
    pub fn version_match(&self) -> Result<ResourceVersionMatch, Status> {
        version_match::get_version(&self.resource_version)
    }
}

const EXACT: &str = "Exact";
const NOT_OLDER_THAN: &str = "NotOlderThan";

/// Parses a boolean like the apiserver: only `0` and `false` are false; the empty value and any other text are true.
fn flag(query: &UrlQuery, name: &str) -> Option<bool> {
    query.first(name).map(|text| text != "0" && !text.eq_ignore_ascii_case("false"))
}
