//! The objects and recent events of one feed: a store, a ring, and the lanes that readers follow.
//!
//! ```text
//! CacheWriter::apply ──► FeedObjectStore (current objects)     ──► CacheReader::snapshot ─► LIST, GET, initial events
//!        one writer  ──► EventRing       (all events, bounded) ──► FeedCursor::pull ──────► WATCH
//!                    ──► EventLane       (the events of one namespace, name, field value or label)
//! ```
//!
//! **Invariants.** The type system allows one writer. The writer updates the state in one critical section, and
//! notifies readers after it. Readers pull: this layer has no queue per watch, so a slow reader loses its position and
//! delays no other reader. A position that has left the ring is [`PullResult::Expired`], never a silent gap. `rv`
//! is upstream's resourceVersion and `seq` is the feed's own dense index; they are never mixed. This layer has no async
//! I/O and no HTTP.

mod budget;
mod chunk_cache;
mod cursor;
mod derived_json;
mod event;
mod history_start;
mod lane;
mod lane_index;
mod metrics;
mod paging_snapshots;
mod pinned;
mod reader;
mod resume_marker;
mod ring;
mod shared;
mod snapshot;
mod staging;
mod store;
mod timeline;
mod view;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

pub use budget::{MemoryBudget, MemoryKind, MemoryUse, ReclaimableMemoryKind};
pub use chunk_cache::{ChunkCache, ChunkObjectEncoding, DeflatedChunk, EncodedChunkKey, FrameName, PlainChunk};
pub use cursor::{CursorStopReason, EventFilterDecision, FeedCursor, LaneObserver, PullResult, SnapshotWithPosition};
pub use event::{FeedEvent, watch_event_type};
pub use history_start::{BackfillMismatch, HistoryStart};
pub use lane::PendingEventCount;
pub use metrics::describe;
pub use pinned::{SnapshotPin, SnapshotPins};
pub use reader::{CacheReader, OpenedWatch, VersionTooOld, WatchStartPosition};
pub use resume_marker::ResumeMarker;
pub use ring::{BackfilledEvents, EventRingHeadroom};
pub use shared::{FeedEndReason, FeedProgress, FeedProgressReceiver, FeedState};
pub use snapshot::{FeedSnapshot, ObjectChunk, ObjectChunkBuilder};
pub use staging::{OverMemoryBudget, SnapshotStaging};
pub use timeline::{CacheStats, FeedStateId, ObjectChange, OutOfOrderChange};
pub use view::CollectionView;
pub use writer::CacheWriter;

use std::time::Duration;

use base::BackoffBounds;

/// The memory and history limits of feeds. The first bound that a ring reaches evicts its oldest events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheConfig {
    /// The memory of all feeds together, in bytes. Requests for a resource that does not fit are forwarded to upstream.
    pub memory_bytes_max: usize,
    /// The maximum size of the event frames in one ring, in bytes. A ring takes at most a quarter of
    /// `memory_bytes_max`.
    pub window_bytes_max: usize,
    /// The maximum number of events in one history ring.
    pub window_events_max: usize,
    /// The maximum age of the oldest event in a history ring.
    pub window_age_max: Duration,
    /// The number of events that a narrow lane retains. A reader that does not stall stays within them. The bound
    /// limits a lane's memory, because one event may be in as many lanes as there are selectors that match it.
    pub lane_events_max: usize,
    /// The number of snapshots kept for clients that page through a LIST.
    pub held_snapshots_max: usize,
    /// The age at which a paging snapshot is dropped, counted from the read of its first page.
    pub held_snapshot_age_max: Duration,
    /// The delays before a feed is retried after upstream denied the proxy's identity.
    pub refused: BackoffBounds,
    /// The time for which the counters of a feed stay readable after it has ended.
    pub counts_age_max: Duration,
}

impl Default for CacheConfig {
    /// Returns the defaults: 8 GiB of memory in all. Per feed, they are 256 MiB of events, 102 400 events (the
    /// apiserver's own largest ring, R-HISTORY-1), and 15 minutes.
    fn default() -> Self {
        Self {
            memory_bytes_max: 8 << 30,
            window_bytes_max: 256 << 20,
            window_events_max: 102_400,
            window_age_max: Duration::from_secs(15 * 60),
            lane_events_max: 256,
            held_snapshots_max: 64,
            held_snapshot_age_max: Duration::from_secs(5 * 60),
            refused: BackoffBounds::REFUSED,
            counts_age_max: Duration::from_secs(60),
        }
    }
}

/// The divisor of the memory that gives the largest size of one ring, so that history leaves room for derived bytes.
const WINDOW_PART: usize = 4;

impl CacheConfig {
    /// Returns the effective limit of event frames in one ring, in bytes.
    pub(crate) fn window_bytes(&self) -> usize {
        self.window_bytes_max.min(self.memory_bytes_max / WINDOW_PART)
    }

    /// Returns these memory limits and delays with the history limits of `to`.
    #[must_use]
    pub fn keeping(&self, to: &Self) -> Self {
        Self {
            window_bytes_max: to.window_bytes_max,
            window_events_max: to.window_events_max,
            window_age_max: to.window_age_max,
            held_snapshots_max: to.held_snapshots_max,
            held_snapshot_age_max: to.held_snapshot_age_max,
            ..self.clone()
        }
    }
}
