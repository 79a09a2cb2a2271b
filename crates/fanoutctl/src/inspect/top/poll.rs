use serde_json::Value;
use tokio::time::Instant;

use super::rates::ProxyCounters;
use crate::inspect::explain::escaped;
use crate::inspect::status::ProxyStatus;
use crate::inspect::{InspectError, ProxyTarget};

/// The result of one poll of a proxy.
pub(super) struct ProxyPollResult {
    pub(super) status: ProxyStatus,
    pub(super) counters: ProxyCounters,
    pub(super) watches: OpenWatchesResult,
}

/// The watches of a proxy, if they were requested and the proxy shows them.
pub(super) enum OpenWatchesResult {
    NotAsked,
    /// The proxy refused the page with this status, because it shows clients only to authorized callers.
    Hidden(http::StatusCode),
    Shown {
        /// The number of open watches that match the query; `rows` may have fewer.
        total: u64,
        rows: Vec<Value>,
    },
}

/// A query for watches: filter, sort order and limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OpenWatchesQuery {
    pub(super) sort: &'static str,
    pub(super) is_up: bool,
    /// The text that the user, user agent or resource must contain.
    pub(super) text: String,
    pub(super) limit: usize,
}

impl ProxyPollResult {
    /// Polls a proxy, and its watches if there is a query.
    pub(super) async fn at(proxy: &ProxyTarget, query: Option<&OpenWatchesQuery>) -> Result<Self, InspectError> {
        let status = ProxyStatus::of(proxy).await?;
        let counters = ProxyCounters::of(&status.metrics, Instant::now());
        let watches = match query {
            None => OpenWatchesResult::NotAsked,
            Some(query) => match proxy.json(&query.path()).await? {
                Ok(page) => OpenWatchesResult::of(&page),
                Err(not) => OpenWatchesResult::Hidden(not.status),
            },
        };
        Ok(Self { status, counters, watches })
    }
}

impl OpenWatchesResult {
    pub(super) fn of(page: &Value) -> Self {
        let rows = page["watches"].as_array().cloned().unwrap_or_default();
        Self::Shown { total: page["total"].as_u64().unwrap_or(rows.len() as u64), rows }
    }
}

impl OpenWatchesQuery {
    fn path(&self) -> String {
        let Self { sort, is_up, text, limit } = self;
        let order = if *is_up { "up" } else { "down" };
        let text = if text.is_empty() { String::new() } else { format!("&text={}", escaped(text)) };
        format!("/debug/watches?limit={limit}&sort={sort}&order={order}{text}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_query_includes_sort_order_and_filter() {
        let mut query = OpenWatchesQuery { sort: "behind", is_up: false, text: String::new(), limit: 12 };
        assert_eq!(query.path(), "/debug/watches?limit=12&sort=behind&order=down");
        (query.sort, query.is_up, query.text) = ("agent", true, "a b".to_owned());
        assert_eq!(query.path(), "/debug/watches?limit=12&sort=agent&order=up&text=a%20b");
    }
}
