use super::open_watch::{SortBy, WatchEntry};
use super::recent::RecentRow;
use kubeapi::Query;

/// The filter, order and limit that the query of a debug page requests. `user`, `agent` and `resource` are substrings
/// of these columns. `text` is a case-insensitive substring of any of them. `limit` caps the number of rows. `sort` and
/// `order` apply to watches only.
#[derive(Debug, Clone)]
pub(super) struct Filter {
    user: Option<String>,
    agent: Option<String>,
    resource: Option<String>,
    text: Option<String>,
    pub(super) limit: usize,
    pub(super) sort: SortBy,
    /// Sorts in ascending order.
    pub(super) is_up: bool,
}

const LIMIT_DEFAULT: usize = 500;
const LIMIT_MAX: usize = 10_000;

impl Filter {
    pub(super) fn of(query: &Query) -> Self {
        let text = |name| query.first(name).filter(|text| !text.is_empty()).map(str::to_owned);
        let limit = query.first("limit").and_then(|limit| limit.parse().ok()).unwrap_or(LIMIT_DEFAULT);
        let sort = query.first("sort").map(SortBy::of).unwrap_or_default();
        let is_up = query.first("order").is_some_and(|order| order == "up");
        let [user, agent, resource, text] = ["user", "agent", "resource", "text"].map(text);
        let text = text.map(|text| text.to_lowercase());
        Self { user, agent, resource, text, limit: limit.min(LIMIT_MAX), sort, is_up }
    }

    pub(super) fn takes_watch(&self, watch: &WatchEntry) -> bool {
        if [&self.user, &self.agent, &self.resource, &self.text].iter().all(|part| part.is_none()) {
            return true;
        }
        let (user, agent) = watch.what.who.names();
        self.takes(user, agent, &watch.place())
    }

    pub(super) fn takes_recent(&self, row: &RecentRow) -> bool {
        self.takes(row.user.as_deref(), row.user_agent.as_deref(), &row.asked)
    }

    fn takes(&self, user: Option<&str>, agent: Option<&str>, resource: &str) -> bool {
        let holds = |part: &Option<String>, text: &str| part.as_deref().is_none_or(|part| text.contains(part));
        let (user, agent) = (user.unwrap_or_default(), agent.unwrap_or_default());
        holds(&self.user, user)
            && holds(&self.agent, agent)
            && holds(&self.resource, resource)
            && self
                .text
                .as_ref()
                .is_none_or(|part| [user, agent, resource].iter().any(|text| text.to_lowercase().contains(part)))
    }
}
