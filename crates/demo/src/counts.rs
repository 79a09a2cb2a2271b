//! Counts the requests to the upstream, for tests and the view.

use std::collections::BTreeMap;

use std::sync::Arc;

use parking_lot::Mutex;

use super::kinds::KINDS;
use tokio::sync::watch;

/// A count for each resource, by its plural name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CountPerResource(BTreeMap<&'static str, u64>);

impl CountPerResource {
    pub fn of(&self, plural: &str) -> u64 {
        self.0.get(plural).copied().unwrap_or(0)
    }

    pub fn total(&self) -> u64 {
        self.0.values().sum()
    }

    fn up(&mut self, kind: usize) {
        *self.0.entry(KINDS[kind].plural).or_default() += 1;
    }

    fn down(&mut self, kind: usize) {
        if let Some(number) = self.0.get_mut(KINDS[kind].plural) {
            *number = number.saturating_sub(1);
        }
    }
}

/// Counts of requests since the start. Only `watches_open` also decreases.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    pub gets: CountPerResource,
    pub lists: CountPerResource,
    /// The number of watches that begin with the initial objects, because of the client's request or the server's
    /// default.
    pub watch_lists: CountPerResource,
    pub watches_open: CountPerResource,
    pub watches_opened: CountPerResource,
    pub writes: CountPerResource,
    /// The number of all requests, including discovery and health.
    pub requests: u64,
    pub connections: u64,
}

/// The live counts, shared by all connections.
#[derive(Clone, Debug, Default)]
pub(crate) struct LiveRequestCounts(Arc<LiveRequestCountsInner>);

#[derive(Debug, Default)]
struct LiveRequestCountsInner {
    counts: Mutex<RequestCounts>,
    changed: watch::Sender<()>,
}

impl LiveRequestCounts {
    pub(crate) fn read(&self) -> RequestCounts {
        self.0.counts.lock().clone()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<()> {
        self.0.changed.subscribe()
    }

    pub(crate) fn note(&self, change: impl FnOnce(&mut RequestCounts)) {
        change(&mut self.0.counts.lock());
        self.0.changed.send_replace(());
    }

    pub(crate) fn add(&self, tally: fn(&mut RequestCounts) -> &mut CountPerResource, kind: usize) {
        self.note(|counts| tally(counts).up(kind));
    }

    /// Counts a watch as open until the guard is dropped.
    pub(crate) fn open_watch(&self, kind: usize) -> OpenWatchCountGuard {
        self.note(|counts| {
            counts.watches_open.up(kind);
            counts.watches_opened.up(kind);
        });
        OpenWatchCountGuard { counter: self.clone(), kind }
    }
}

#[derive(Debug)]
pub(crate) struct OpenWatchCountGuard {
    counter: LiveRequestCounts,
    kind: usize,
}

impl Drop for OpenWatchCountGuard {
    fn drop(&mut self) {
        self.counter.note(|counts| counts.watches_open.down(self.kind));
    }
}
