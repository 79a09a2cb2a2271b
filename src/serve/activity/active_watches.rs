//! The open watches and the recent events (ended watches, refusals, forwarded requests) of the debug pages. Only
//! authorized operators can read these pages. Object contents are never recorded.

mod open_watch;
mod recent;
mod user_and_agent;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use serde::Serialize;
use tokio::time::Instant;

use crate::cache::LaneObserver;
use crate::serve::activity::WatchTransport;
use crate::wire::Representation;
use kubeapi::UrlQuery;

use open_watch::{DebugWatchRow, OpenWatchEntry, WatchSortColumn, micros};
use recent::{RecentRequestLog, RecentRequestRow};
pub(crate) use user_and_agent::UserAndAgent;
use user_and_agent::truncated;

/// The registry of open watches and recent events. Clones share the same data.
#[derive(Debug, Clone)]
pub struct ActiveWatches(Arc<ActiveWatchesState>);

#[derive(Debug)]
struct ActiveWatchesState {
    created: Instant,
    /// The open watches, in a sharded map, because watches open and end on all cores and listing them must not block
    /// the others.
    watches: DashMap<u64, Arc<OpenWatchEntry>>,
    next: AtomicU64,
    ended: RecentRequestLog,
    refused: RecentRequestLog,
    forwarded: RecentRequestLog,
}

/// The registration of an open watch. Dropping it removes the watch from the registry.
#[derive(Debug)]
pub(crate) struct ActiveWatchGuard {
    registry: ActiveWatches,
    id: u64,
    watch: Arc<OpenWatchEntry>,
}

/// The response body of `/debug/watches`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WatchesPage {
    /// The number of open watches that match the filter.
    total: usize,
    /// The number of matching watches beyond the limit, which are not in `watches`.
    omitted: usize,
    /// The open watches, sorted as the query requested.
    watches: Vec<DebugWatchRow>,
}

/// The response body of `/debug/recent`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RecentRequestsPage {
    ended: Vec<RecentRequestRow>,
    refused: Vec<RecentRequestRow>,
    forwarded: Vec<RecentRequestRow>,
}

impl Default for ActiveWatches {
    fn default() -> Self {
        let [ended, refused, forwarded] = std::array::from_fn(|_| RecentRequestLog::default());
        let (watches, next) = (DashMap::new(), AtomicU64::new(0));
        Self(Arc::new(ActiveWatchesState { created: Instant::now(), watches, next, ended, refused, forwarded }))
    }
}

impl ActiveWatches {
    /// Returns the debug page with the name `name` as JSON, or `None` if there is no such page.
    pub fn page(&self, name: &str, query: &str) -> Option<Vec<u8>> {
        let filter = DebugPageFilter::from_query(&UrlQuery::parse(query));
        let json = match name {
            "watches" => serde_json::to_vec(&self.watches(&filter)),
            "recent" => serde_json::to_vec(&self.recent(&filter)),
            _ => return None,
        };
        json.ok()
    }

    /// Builds rows only for the watches within the limit, because there may be a hundred thousand watches.
    fn watches(&self, filter: &DebugPageFilter) -> WatchesPage {
        let (created, now) = (self.0.created, Instant::now());
        let matching = self.0.watches.iter().filter(|entry| filter.matches_watch(entry.value()));
        // Ties are sorted by age, oldest first, so that reloading the page keeps the order.
        let ranked =
            matching.map(|entry| (entry.value().rank(filter.sort, created, now), *entry.key(), entry.value().clone()));
        let mut found: Vec<_> = ranked.collect();
        found.sort_unstable_by(|(a, first, _), (b, second, _)| {
            let by_rank = if filter.is_ascending { a.cmp(b) } else { b.cmp(a) };
            by_rank.then(first.cmp(second))
        });
        let total = found.len();
        found.truncate(filter.limit);
        let watches: Vec<_> = found.iter().map(|(.., watch)| watch.row(created, now)).collect();
        WatchesPage { total, omitted: total - watches.len(), watches }
    }

    fn recent(&self, filter: &DebugPageFilter) -> RecentRequestsPage {
        let shared = &self.0;
        let [ended, refused, forwarded] = [&shared.ended, &shared.refused, &shared.forwarded]
            .map(|recent| recent.rows(|row| filter.matches_recent(row), filter.limit));
        RecentRequestsPage { ended, refused, forwarded }
    }

    /// Registers an opened watch for the debug pages.
    pub(crate) fn opened(
        &self,
        client: UserAndAgent,
        follower: LaneObserver,
        representation: Representation,
        protocol: WatchTransport,
    ) -> ActiveWatchGuard {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let watch = Arc::new(OpenWatchEntry::new(client, follower, representation, protocol, self.0.created.elapsed()));
        self.0.watches.insert(id, watch.clone());
        ActiveWatchGuard { registry: self.clone(), id, watch }
    }

    /// Records an error response that the proxy generated.
    pub(crate) fn refused(&self, client: &UserAndAgent, (method, path): (&str, &str), (code, message): (u16, &str)) {
        self.0.refused.record(client, method, path, truncated(&format!("{code} {message}")));
    }

    /// Records a forwarded request for the debug pages.
    pub(crate) fn forwarded(&self, client: &UserAndAgent, (method, path): (&str, &str), reason: &str) {
        self.0.forwarded.record(client, method, path, reason.into());
    }
}

impl ActiveWatchGuard {
    /// Records the last version sent, the position of the next event, and whether the watch is idle.
    pub(crate) fn reported(&self, rv: u64, next: u64, is_parked: bool) {
        let polled = (micros(self.registry.0.created.elapsed()) << 1) | u64::from(is_parked);
        self.watch.reported.store(rv, Ordering::Relaxed);
        self.watch.next.store(next, Ordering::Relaxed);
        self.watch.polled.store(polled, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.watch.bytes.store(self.watch.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Records why the watch ended.
    pub(crate) fn ended(&self, reason: &'static str) {
        self.registry.0.ended.record(&self.watch.client, "WATCH", &self.watch.resource_text(), reason.into());
    }
}

impl Drop for ActiveWatchGuard {
    fn drop(&mut self) {
        self.registry.0.watches.remove(&self.id);
    }
}

/// The filter, order and limit that the query of a debug page requests. `user`, `agent` and `resource` are substrings
/// of these columns. `text` is a case-insensitive substring of any of them. `limit` caps the number of rows. `sort` and
/// `order` apply to watches only.
#[derive(Debug, Clone)]
struct DebugPageFilter {
    user: Option<String>,
    agent: Option<String>,
    resource: Option<String>,
    text: Option<String>,
    limit: usize,
    sort: WatchSortColumn,
    /// Whether the rows are sorted in ascending order.
    is_ascending: bool,
}

const LIMIT_DEFAULT: usize = 500;
const LIMIT_MAX: usize = 10_000;

impl DebugPageFilter {
    fn from_query(query: &UrlQuery) -> Self {
        let text = |name| query.first(name).filter(|text| !text.is_empty()).map(str::to_owned);
        let limit = query.first("limit").and_then(|limit| limit.parse().ok()).unwrap_or(LIMIT_DEFAULT);
        let sort = query.first("sort").map(WatchSortColumn::from_name).unwrap_or_default();
        let is_ascending = query.first("order").is_some_and(|order| order == "up");
        let [user, agent, resource, text] = ["user", "agent", "resource", "text"].map(text);
        let text = text.map(|text| text.to_lowercase());
        Self { user, agent, resource, text, limit: limit.min(LIMIT_MAX), sort, is_ascending }
    }

    fn matches_watch(&self, watch: &OpenWatchEntry) -> bool {
        if [&self.user, &self.agent, &self.resource, &self.text].iter().all(|part| part.is_none()) {
            return true;
        }
        let (user, agent) = watch.client.names();
        self.matches(user, agent, &watch.resource_text())
    }

    fn matches_recent(&self, row: &RecentRequestRow) -> bool {
        self.matches(row.user.as_deref(), row.user_agent.as_deref(), &row.request)
    }

    fn matches(&self, user: Option<&str>, agent: Option<&str>, resource: &str) -> bool {
        let contains = |part: &Option<String>, text: &str| part.as_deref().is_none_or(|part| text.contains(part));
        let (user, agent) = (user.unwrap_or_default(), agent.unwrap_or_default());
        contains(&self.user, user)
            && contains(&self.agent, agent)
            && contains(&self.resource, resource)
            && self
                .text
                .as_ref()
                .is_none_or(|part| [user, agent, resource].iter().any(|text| text.to_lowercase().contains(part)))
    }
}
