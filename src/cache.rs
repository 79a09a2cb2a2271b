//! One feed's objects and recent events: a store, a ring, and the lanes that readers follow.
//!
//! ```text
//! CacheWriter::apply ──► Store (current objects)          ──► CacheReader::snapshot ─► LIST, GET, initial events
//!        one writer  ──► Ring  (all events, bounded)      ──► Cursor::pull ──────────► WATCH
//!                    ──► Lane  (a namespace, a name, a field, a label: the same events, fewer of them)
//! ```
//!
//! **Invariants.** One writer, by type. State first, notify second, in one critical section. Readers pull: nothing here
//! has a queue per watch, so a slow reader costs its position and nobody else's time. A position that left the ring is
//! [`Pull::Expired`], never a silent gap. `rv` is upstream's; `seq` is our own dense index; they are never mixed.
//! No async I/O and no HTTP in this layer.

mod backfilled_events;
mod beginning;
mod budget;
mod change;
mod chunk_cache;
mod chunk_format;
mod chunks;
mod confirmed;
mod cursor;
mod derived_json;
mod event;
mod events_waiting;
mod follower;
mod lane;
mod lane_index;
mod lane_key;
mod lanes;
mod lifecycle;
mod outgrown;
mod paging_snapshots;
mod pinned;
mod progress;
mod progress_follower;
mod reader;
mod resume_marker;
mod ring;
mod shared;
mod single_flight;
mod snapshot;
mod staging;
mod state_mark;
mod states;
mod stats;
mod store;
mod timeline;
mod transaction;
mod version_waiters;
mod view;
mod wakes;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

pub use backfilled_events::{BackfillMismatch, BackfilledEvents, MissingPrevious, RingRoom};
pub use beginning::Beginning;
pub use budget::{Budget, Gone, MemoryKind, MemoryUse};
pub use change::{Applied, Change, OutOfOrder};
pub use chunk_cache::{ChunkCache, DeflatedChunk, PlainChunk};
pub use chunk_format::{ChunkFormat, ChunkPart};
pub use chunks::{Chunk, Chunker};
pub use cursor::{Cursor, FilteredEvent, Mark, Pull, Stop};
pub use event::{Event, seen_as};
pub use events_waiting::EventsWaiting;
pub use follower::Follower;
pub use lifecycle::{FeedEnd, FeedState};
pub use pinned::{Pin, PinTerms, Pins};
pub use progress::{Progress, Settling};
pub use progress_follower::ProgressFollower;
pub use reader::{CacheReader, OpenedWatch, Start, TooOld};
pub use resume_marker::ResumeMarker;
pub use snapshot::Snapshot;
pub use staging::{OverBudget, Staging};
pub use state_mark::StateMark;
pub use stats::CacheStats;
pub use transaction::REST_FOLLOWS_WITHIN;
pub use view::View;
pub use writer::CacheWriter;

use std::time::Duration;

use base::Waits;

/// How much history a feed keeps. Whichever bound is reached first evicts the oldest events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheConfig {
    /// The memory of all feeds together. A resource that does not fit passes through.
    pub memory_bytes_max: usize,
    /// The bytes of event frames in one ring; a ring takes a quarter of the memory at most.
    pub window_bytes_max: usize,
    /// Events in the ring.
    pub window_events_max: usize,
    /// Age of the oldest event.
    pub window_age_max: Duration,
    /// Events that a narrow lane holds: what its readers fall behind by while they do not stall. It bounds what a lane
    /// costs, for an event may be in as many lanes as there are selectors that match it.
    pub lane_events_max: usize,
    /// Snapshots held for clients that are paging through a LIST.
    pub held_snapshots_max: usize,
    /// How long such a snapshot is kept after its first page was read.
    pub held_snapshot_age_max: Duration,
    /// When a feed is tried again that our identity may not read.
    pub refused: Waits,
    /// How long the counts of a feed can be read after it has ended.
    pub counts_age_max: Duration,
}

impl Default for CacheConfig {
    /// Eight GiB in all; a quarter GiB of events a feed, the apiserver's own largest ring (102 400 events,
    /// R-HISTORY-1), fifteen minutes.
    fn default() -> Self {
        Self {
            memory_bytes_max: 8 << 30,
            window_bytes_max: 256 << 20,
            window_events_max: 102_400,
            window_age_max: Duration::from_secs(15 * 60),
            lane_events_max: 256,
            held_snapshots_max: 64,
            held_snapshot_age_max: Duration::from_secs(5 * 60),
            refused: Waits::REFUSED,
            counts_age_max: Duration::from_secs(60),
        }
    }
}

/// The largest part of the memory that one ring may take, so that history leaves room for derived bytes.
const WINDOW_PART: usize = 4;

impl CacheConfig {
    /// The bytes of event frames that one ring may really hold.
    pub(crate) fn window_bytes(&self) -> usize {
        self.window_bytes_max.min(self.memory_bytes_max / WINDOW_PART)
    }

    /// The same memory and the same pace, with as much history as `to` says.
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
