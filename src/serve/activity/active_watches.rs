//! The open watches and the recent events (ended watches, refusals, forwarded requests) of the debug pages. Only
//! authorized operators can read these pages. Object contents are never recorded.

mod recent;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use dashmap::DashMap;
use serde::Serialize;
use tokio::time::Instant;

use crate::cache::{LaneObserver, PendingEventCount};
use crate::serve::activity::WatchTransport;
use crate::wire::Representation;
use kubeapi::{Selector, UrlQuery};

pub(crate) use recent::UserAndAgent;
use recent::{RecentRequestLog, RecentRequestRow, truncated};

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
        let now = self.now();
        let matching = self.0.watches.iter().filter(|entry| filter.matches_watch(entry.value()));
        // Ties are sorted by age, oldest first, so that reloading the page keeps the order.
        let ranked = matching.map(|entry| (entry.value().rank(&filter.sort, now), *entry.key(), entry.value().clone()));
        let mut found: Vec<_> = ranked.collect();
        found.sort_unstable_by(|(a, first, _), (b, second, _)| {
            let by_rank = if filter.is_ascending { a.cmp(b) } else { b.cmp(a) };
            by_rank.then(first.cmp(second))
        });
        let total = found.len();
        found.truncate(filter.limit);
        let watches: Vec<_> = found.iter().map(|(.., watch)| watch.row(now)).collect();
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
        let opened = self.now();
        let [reported, next, bytes, polled] = std::array::from_fn(|_| AtomicU64::new(0));
        let watch =
            OpenWatchEntry { client, follower, representation, protocol, opened, reported, next, bytes, polled };
        let watch = Arc::new(watch);
        self.0.watches.insert(id, watch.clone());
        ActiveWatchGuard { registry: self.clone(), id, watch }
    }

    /// Returns the time in microseconds since the registry was created.
    fn now(&self) -> u64 {
        u64::try_from(self.0.created.elapsed().as_micros()).unwrap_or(u64::MAX >> 1)
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
        let polled = (self.registry.now() << 1) | u64::from(is_parked);
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
    sort: String,
    /// Whether the rows are sorted in ascending order.
    is_ascending: bool,
}

const LIMIT_DEFAULT: usize = 500;
const LIMIT_MAX: usize = 10_000;

impl DebugPageFilter {
    fn from_query(query: &UrlQuery) -> Self {
        let text = |name| query.first(name).filter(|text| !text.is_empty()).map(str::to_owned);
        let limit = query.first("limit").and_then(|limit| limit.parse().ok()).unwrap_or(LIMIT_DEFAULT);
        let sort = query.first("sort").unwrap_or_default().to_owned();
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

/// An open watch with the counters of the debug pages.
struct OpenWatchEntry {
    client: UserAndAgent,
    follower: LaneObserver,
    representation: Representation,
    protocol: WatchTransport,
    /// The time at which the watch opened, in microseconds since the registry was created.
    opened: u64,
    reported: AtomicU64,
    next: AtomicU64,
    /// Only the watch's own [`ActiveWatchGuard`] adds to it.
    bytes: AtomicU64,
    /// The time at which the client last polled for frames, in microseconds since the registry was created, shifted
    /// left by one bit. The lowest bit is set if the watch was idle then.
    polled: AtomicU64,
}

/// One row of `/debug/watches`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct DebugWatchRow {
    user: Option<String>,
    user_agent: Option<String>,
    resource: String,
    namespace: Option<String>,
    /// The kinds of selector: `none`, or of `labels`, `fields` and `shard` those that the watch has, joined by `and`.
    selectors: String,
    representation: &'static str,
    protocol: &'static str,
    open_seconds: u64,
    bytes_sent: u64,
    /// The last resourceVersion sent to the client.
    resource_version: String,
    /// The resourceVersion that the feed has reached.
    feed_resource_version: String,
    /// The number of events that match the watch and were not sent yet. If the cursor's position has expired, all
    /// events in the history count.
    events_behind: usize,
    /// Whether `events_behind` is a lower bound, because an exact count would read the whole history.
    events_behind_is_lower_bound: bool,
    /// The state of the watch. `idle`: no event is waiting. `sending`: events are waiting, and the client has read
    /// within the last second. `stalled`: events are waiting, and the client does not read.
    state: &'static str,
    /// The number of seconds that the watch has been idle, or its client has not read.
    state_seconds: u64,
}

/// The sort key of a watch: numbers or a text.
type WatchSortKey = (u64, u64, String);

/// The time without reading after which a watch with pending events is reported as stalled.
const SENDING_MAX: Duration = Duration::from_secs(1);

impl OpenWatchEntry {
    /// Returns which kinds of selector the watch uses, but not their values.
    fn selectors(&self) -> String {
        let Selector { labels, fields, shard } = self.follower.view().selector();
        let kinds = [("labels", labels.is_empty()), ("fields", fields.is_empty()), ("shard", shard.is_none())];
        let used: Vec<_> = kinds.into_iter().filter(|(_, is_unused)| !is_unused).map(|(kind, _)| kind).collect();
        if used.is_empty() { "none".to_owned() } else { used.join(" and ") }
    }

    /// Returns the watched resource and, if there is one, its namespace.
    fn resource_text(&self) -> String {
        let resource = self.follower.resource();
        match self.follower.view().namespace() {
            Some(namespace) => format!("{resource} in {namespace}"),
            None => resource,
        }
    }

    /// Returns the sort key of the watch for a column of `/debug/watches`. By default, that is the number of pending
    /// events. Ties are then sorted by the time since the last poll.
    fn rank(&self, column: &str, now: u64) -> WatchSortKey {
        let since_poll = u64::MAX - (self.polled.load(Ordering::Relaxed) >> 1);
        let (user, agent) = self.client.names();
        let number = |number, tie| (number, tie, String::new());
        let text = |text: Option<&str>| (0, 0, text.unwrap_or_default().to_owned());
        match column {
            "since" => number(since_poll, 0),
            "sent" => number(self.bytes.load(Ordering::Relaxed), 0),
            "open" => number(self.open_seconds(now), 0),
            "agent" => text(agent),
            "user" => text(user),
            "resource" => text(Some(&self.resource_text())),
            _ => number(self.pending().events as u64, since_poll),
        }
    }

    fn open_seconds(&self, now: u64) -> u64 {
        Duration::from_micros(now.saturating_sub(self.opened)).as_secs()
    }

    fn pending(&self) -> PendingEventCount {
        self.follower.waiting(self.next.load(Ordering::Relaxed))
    }

    /// Builds the debug row of the watch as of `now`, in microseconds since the registry was created.
    fn row(&self, now: u64) -> DebugWatchRow {
        let polled = self.polled.load(Ordering::Relaxed);
        let PendingEventCount { events: events_behind, is_lower_bound: events_behind_is_lower_bound } = self.pending();
        let since = Duration::from_micros(now.saturating_sub(polled >> 1));
        let state = if polled & 1 == 1 && events_behind == 0 {
            "idle"
        } else if since <= SENDING_MAX {
            "sending"
        } else {
            "stalled"
        };
        DebugWatchRow {
            user: self.client.user_name(),
            user_agent: self.client.agent.as_deref().map(str::to_owned),
            resource: self.follower.resource(),
            namespace: self.follower.view().namespace().map(str::to_owned),
            selectors: self.selectors(),
            representation: self.representation.as_str(),
            protocol: self.protocol.as_str(),
            open_seconds: self.open_seconds(now),
            bytes_sent: self.bytes.load(Ordering::Relaxed),
            resource_version: self.reported.load(Ordering::Relaxed).to_string(),
            feed_resource_version: self.follower.progress().rv.to_string(),
            events_behind,
            events_behind_is_lower_bound,
            state,
            state_seconds: since.as_secs(),
        }
    }
}

impl std::fmt::Debug for OpenWatchEntry {
    /// Formats the entry without the user, because only authorized operators may read it.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenWatchEntry").field("opened", &self.opened).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each open watch has one entry.
    #[test]
    fn watch_registry_entry_size_is_bounded() {
        assert!(size_of::<OpenWatchEntry>() <= 96, "{} bytes", size_of::<OpenWatchEntry>());
    }
}
