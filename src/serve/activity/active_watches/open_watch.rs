use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use super::user_and_agent::UserAndAgent;
use crate::cache::{LaneObserver, PendingEventCount};
use crate::serve::activity::WatchTransport;
use crate::wire::Representation;

/// An open watch with the counters of the debug pages.
pub(crate) struct OpenWatchEntry {
    pub(super) client: UserAndAgent,
    follower: LaneObserver,
    representation: Representation,
    protocol: WatchTransport,
    /// The time at which the watch opened, in microseconds since the registry was created.
    opened: u64,
    pub(super) reported: AtomicU64,
    pub(super) next: AtomicU64,
    /// Only the watch's own [`ActiveWatchGuard`](super::ActiveWatchGuard) adds to it.
    pub(super) bytes: AtomicU64,
    /// The time at which the client last polled for frames, in microseconds since the registry was created, shifted
    /// left by one bit. The lowest bit is set if the watch was idle then.
    pub(super) polled: AtomicU64,
}

/// One row of `/debug/watches`.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DebugWatchRow {
    user: Option<String>,
    user_agent: Option<String>,
    resource: String,
    namespace: Option<String>,
    /// The kinds of selector: `none`, `labels`, `fields` or `labels and fields`.
    selectors: &'static str,
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

/// The sort column of `/debug/watches`. An unknown name selects `EventsBehind`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum WatchSortColumn {
    #[default]
    EventsBehind,
    StateAge,
    Sent,
    Age,
    Agent,
    User,
    Resource,
}

/// The sort key of a watch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WatchSortKey {
    Number(u64, u64),
    Text(String),
}

/// The time without reading after which a watch with pending events is reported as stalled.
const SENDING_MAX: Duration = Duration::from_secs(1);

impl WatchSortColumn {
    pub(super) fn from_name(name: &str) -> Self {
        match name {
            "since" => Self::StateAge,
            "sent" => Self::Sent,
            "open" => Self::Age,
            "agent" => Self::Agent,
            "user" => Self::User,
            "resource" => Self::Resource,
            _ => Self::EventsBehind,
        }
    }
}

impl OpenWatchEntry {
    /// Creates an entry for a watch that opens at `opened`, relative to the creation of the registry.
    pub(super) fn new(
        client: UserAndAgent,
        follower: LaneObserver,
        representation: Representation,
        protocol: WatchTransport,
        opened: Duration,
    ) -> Self {
        let [reported, next, bytes, polled] = std::array::from_fn(|_| AtomicU64::new(0));
        Self { client, follower, representation, protocol, opened: micros(opened), reported, next, bytes, polled }
    }

    /// Returns which kinds of selector the watch uses, but not their values.
    fn selectors(&self) -> &'static str {
        let selector = self.follower.view().selector();
        match (selector.labels.is_empty(), selector.fields.is_empty()) {
            (true, true) => "none",
            (false, true) => "labels",
            (true, false) => "fields",
            (false, false) => "labels and fields",
        }
    }

    /// Returns the watched resource and, if there is one, its namespace.
    pub(super) fn resource_text(&self) -> String {
        let resource = self.follower.resource();
        match self.follower.view().namespace() {
            Some(namespace) => format!("{resource} in {namespace}"),
            None => resource,
        }
    }

    /// Returns the sort key of the watch. With [`WatchSortColumn::EventsBehind`], ties are sorted by the time since the
    /// last poll.
    pub(super) fn rank(&self, by: WatchSortColumn, created: Instant, now: Instant) -> WatchSortKey {
        let since_poll = u64::MAX - (self.polled.load(Ordering::Relaxed) >> 1);
        let (user, agent) = self.client.names();
        let text = |text: Option<&str>| WatchSortKey::Text(text.unwrap_or_default().to_owned());
        match by {
            WatchSortColumn::EventsBehind => WatchSortKey::Number(self.pending().events as u64, since_poll),
            WatchSortColumn::StateAge => WatchSortKey::Number(since_poll, 0),
            WatchSortColumn::Sent => WatchSortKey::Number(self.bytes.load(Ordering::Relaxed), 0),
            WatchSortColumn::Age => WatchSortKey::Number(self.open_for(created, now).as_secs(), 0),
            WatchSortColumn::Agent => text(agent),
            WatchSortColumn::User => text(user),
            WatchSortColumn::Resource => WatchSortKey::Text(self.resource_text()),
        }
    }

    fn open_for(&self, created: Instant, now: Instant) -> Duration {
        now.saturating_duration_since(created + Duration::from_micros(self.opened))
    }

    fn pending(&self) -> PendingEventCount {
        self.follower.waiting(self.next.load(Ordering::Relaxed))
    }

    /// Builds the debug row of the watch as of `now`. `created` is when the registry was created.
    pub(super) fn row(&self, created: Instant, now: Instant) -> DebugWatchRow {
        let polled = self.polled.load(Ordering::Relaxed);
        let PendingEventCount { events: events_behind, is_lower_bound: events_behind_is_lower_bound } = self.pending();
        let since = now.saturating_duration_since(created + Duration::from_micros(polled >> 1));
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
            open_seconds: self.open_for(created, now).as_secs(),
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

pub(super) fn micros(at: Duration) -> u64 {
    u64::try_from(at.as_micros()).unwrap_or(u64::MAX >> 1)
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
