use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::auth::Permit;
use crate::cache::{Chunk, OpenedWatch};
use crate::feeds::FeedHandle;
use crate::listing::ScanBudget;
use crate::serve::concurrency::ConcurrencyPermit;
use crate::serve::metrics::WatchMetrics;
use crate::serve::slow_readers::SlowReaderReaper;
use crate::wire::{Object, Renderer};
use base::{Cut, DrainWatch};

/// Everything that a watch is made of.
pub(in super::super) struct Opening {
    pub(in super::super) permit: Permit,
    pub(in super::super) place: ConcurrencyPermit,
    pub(in super::super) feed: FeedHandle,
    pub(in super::super) renderer: Renderer,
    pub(in super::super) opened: OpenedWatch,
    /// For a watch that may not show all: the namespaces with something to show.
    pub(in super::super) namespaces: Vec<Arc<str>>,
    /// The chunks of the state that the watch begins with, for a sink that takes several frames in one.
    pub(in super::super) chunks: Option<Arc<[Chunk]>>,
    /// The state of one object, as a row of a Table.
    pub(in super::super) row: Option<Object>,
    pub(in super::super) terms: WatchTerms,
    /// When the request came. Its time counts from then, whatever it waited for (R-TIMEOUT-1).
    pub(in super::super) received: Instant,
    pub(in super::super) drain: DrainWatch,
    /// The work that may be done in one poll.
    pub(in super::super) looks: ScanBudget,
    pub(in super::super) metrics: WatchMetrics,
    /// Ends the watch when it is not polled.
    pub(in super::super) cut: Cut,
    pub(in super::super) overdue: SlowReaderReaper,
}

/// What the client asked for.
pub(in super::super) struct WatchTerms {
    pub(in super::super) bookmarks: bool,
    pub(in super::super) end_bookmark: bool,
    pub(in super::super) timeout_seconds: Option<i64>,
    /// How long the watch lasts, up to twice, if the client does not say it.
    pub(in super::super) lasts_min: Duration,
    /// Another proxy takes over what it is told.
    pub(in super::super) by_proxy: bool,
}
