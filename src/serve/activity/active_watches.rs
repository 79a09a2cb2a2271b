//! The open watches and the recent events (ended watches, refusals, forwarded requests) shown on the debug pages. Only
//! authorized operators can read these pages. Object contents are never recorded.

mod filter;
mod open_watch;
mod recent;
mod request_source;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use serde::Serialize;
use tokio::time::Instant;

use kubeapi::Query;

use filter::Filter;
pub(crate) use open_watch::WatchDescription;
use open_watch::{WatchEntry, WatchRow, micros};
use recent::{RecentLog, RecentRow};
pub(crate) use request_source::RequestSource;
use request_source::shortened;

/// The registry of open watches and recent events. Clones share the same data.
#[derive(Debug, Clone)]
pub struct ActiveWatches(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    began: Instant,
    /// A sharded map, because watches open and end on all cores and listing them must not block the others.
    watches: DashMap<u64, Arc<WatchEntry>>,
    next: AtomicU64,
    ended: RecentLog,
    refused: RecentLog,
    passed: RecentLog,
}

/// The registration of an open watch. Dropping it removes the watch from the registry.
#[derive(Debug)]
pub(crate) struct ActiveWatch {
    of: ActiveWatches,
    id: u64,
    watch: Arc<WatchEntry>,
}

/// The response body of `/debug/watches`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct WatchesPage {
    /// The number of open watches that match the filter.
    total: usize,
    /// The number of matching watches beyond the limit, which are not in `watches`.
    left_out: usize,
    /// Sorted as the query requested.
    watches: Vec<WatchRow>,
}

/// The response body of `/debug/recent`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct RecentPage {
    ended: Vec<RecentRow>,
    refused: Vec<RecentRow>,
    passed_through: Vec<RecentRow>,
}

impl Default for ActiveWatches {
    fn default() -> Self {
        let [ended, refused, passed] = std::array::from_fn(|_| RecentLog::default());
        let (watches, next) = (DashMap::new(), AtomicU64::new(0));
        Self(Arc::new(Shared { began: Instant::now(), watches, next, ended, refused, passed }))
    }
}

impl ActiveWatches {
    /// Returns the debug page with this name as JSON, or `None` if there is no such page.
    pub fn page(&self, name: &str, query: &str) -> Option<Vec<u8>> {
        let filter = Filter::of(&Query::parse(query));
        let json = match name {
            "watches" => serde_json::to_vec(&self.watches(&filter)),
            "recent" => serde_json::to_vec(&self.recent(&filter)),
            _ => return None,
        };
        json.ok()
    }

    /// Builds rows only for the watches within the limit, because there may be a hundred thousand watches.
    fn watches(&self, filter: &Filter) -> WatchesPage {
        let (began, now) = (self.0.began, Instant::now());
        let asked_for = self.0.watches.iter().filter(|entry| filter.takes_watch(entry.value()));
        // Ties are sorted by age, oldest first, so that reloading the page keeps the order.
        let ranked =
            asked_for.map(|entry| (entry.value().rank(filter.sort, began, now), *entry.key(), entry.value().clone()));
        let mut found: Vec<_> = ranked.collect();
        found.sort_unstable_by(|(a, first, _), (b, second, _)| {
            let by_rank = if filter.is_up { a.cmp(b) } else { b.cmp(a) };
            by_rank.then(first.cmp(second))
        });
        let total = found.len();
        found.truncate(filter.limit);
        let watches: Vec<_> = found.iter().map(|(.., watch)| watch.row(began, now)).collect();
        WatchesPage { total, left_out: total - watches.len(), watches }
    }

    fn recent(&self, filter: &Filter) -> RecentPage {
        let shared = &self.0;
        let [ended, refused, passed_through] = [&shared.ended, &shared.refused, &shared.passed]
            .map(|recent| recent.rows(|row| filter.takes_recent(row), filter.limit));
        RecentPage { ended, refused, passed_through }
    }

    /// Registers an opened watch.
    pub(crate) fn opened(&self, watch: WatchDescription) -> ActiveWatch {
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let watch = Arc::new(WatchEntry::new(watch, self.0.began.elapsed()));
        self.0.watches.insert(id, watch.clone());
        ActiveWatch { of: self.clone(), id, watch }
    }

    /// Records an error response that the proxy generated.
    pub(crate) fn refused(&self, who: &RequestSource, (method, path): (&str, &str), (code, message): (u16, &str)) {
        self.0.refused.note(who, method, path, shortened(&format!("{code} {message}")));
    }

    /// Records a forwarded request.
    pub(crate) fn passed(&self, who: &RequestSource, (method, path): (&str, &str), reason: &str) {
        self.0.passed.note(who, method, path, reason.into());
    }
}

impl ActiveWatch {
    /// Records the last version sent, the position of the next event, and whether the watch is idle.
    pub(crate) fn told(&self, rv: u64, next: u64, is_parked: bool) {
        let asked = micros(self.of.0.began.elapsed()) << 1 | u64::from(is_parked);
        self.watch.told.store(rv, Ordering::Relaxed);
        self.watch.next.store(next, Ordering::Relaxed);
        self.watch.asked.store(asked, Ordering::Relaxed);
    }

    pub(crate) fn sent(&self, bytes: u64) {
        self.watch.bytes.store(self.watch.bytes.load(Ordering::Relaxed) + bytes, Ordering::Relaxed);
    }

    /// Records why the watch ended.
    pub(crate) fn ended(&self, reason: &'static str) {
        self.of.0.ended.note(&self.watch.what.who, "WATCH", &self.watch.place(), reason.into());
    }
}

impl Drop for ActiveWatch {
    fn drop(&mut self) {
        self.of.0.watches.remove(&self.id);
    }
}
