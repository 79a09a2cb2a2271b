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

/// The parts of a new watch session.
pub(in super::super) struct Opening {
    pub(in super::super) permit: Permit,
    pub(in super::super) place: ConcurrencyPermit,
    pub(in super::super) feed: FeedHandle,
    pub(in super::super) renderer: Renderer,
    pub(in super::super) opened: OpenedWatch,
    /// For a partial view: the namespaces with something to show.
    pub(in super::super) namespaces: Vec<Arc<str>>,
    /// The shared chunks of the initial state, for a sink that can send several frames in one piece.
    pub(in super::super) chunks: Option<Arc<[Chunk]>>,
    /// The initial state of one object, as a row of a Table.
    pub(in super::super) row: Option<Object>,
    pub(in super::super) terms: WatchTerms,
    /// When the request arrived. The timeout counts from here, regardless of what the request has waited for
    /// (R-TIMEOUT-1).
    pub(in super::super) received: Instant,
    pub(in super::super) drain: DrainWatch,
    /// The scan budget per poll.
    pub(in super::super) scan_budget: ScanBudget,
    pub(in super::super) metrics: WatchMetrics,
    /// Ends the watch from outside if it is not polled.
    pub(in super::super) cut: Cut,
    pub(in super::super) slow_readers: SlowReaderReaper,
}

/// The terms that the client requested and the proxy's defaults.
pub(in super::super) struct WatchTerms {
    pub(in super::super) bookmarks: bool,
    pub(in super::super) end_bookmark: bool,
    pub(in super::super) timeout_seconds: Option<i64>,
    /// The minimum duration without a client timeout; the maximum is twice that.
    pub(in super::super) lasts_min: Duration,
    /// Whether the client is a downstream proxy, which caches the events.
    pub(in super::super) by_proxy: bool,
}
