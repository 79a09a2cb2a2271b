use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::auth::Permit;
use crate::cache::{Chunk, OpenedWatch};
use crate::feeds::FeedHandle;
use crate::listing::ScanBudget;
use crate::serve::activity::metrics::WatchMetrics;
use crate::serve::limits::{ConcurrencyPermit, SlowReaderReaper};
use crate::wire::{Object, Renderer};
use base::{Cut, DrainWatch};

/// The parts of a new watch session.
pub(crate) struct Opening {
    pub(crate) permit: Permit,
    pub(crate) place: ConcurrencyPermit,
    pub(crate) feed: FeedHandle,
    pub(crate) renderer: Renderer,
    pub(crate) opened: OpenedWatch,
    /// For a partial view: the namespaces with something to show.
    pub(crate) namespaces: Vec<Arc<str>>,
    /// The shared chunks of the initial state, for a sink that can send several frames in one piece.
    pub(crate) chunks: Option<Arc<[Chunk]>>,
    /// The initial state of one object, as a row of a Table.
    pub(crate) row: Option<Object>,
    pub(crate) terms: WatchTerms,
    /// When the request arrived. The timeout counts from here, regardless of what the request has waited for
    /// (R-TIMEOUT-1).
    pub(crate) received: Instant,
    pub(crate) drain: DrainWatch,
    /// The scan budget per poll.
    pub(crate) scan_budget: ScanBudget,
    pub(crate) metrics: WatchMetrics,
    /// Ends the watch from outside if it is not polled.
    pub(crate) cut: Cut,
    pub(crate) slow_readers: SlowReaderReaper,
}

/// The terms that the client requested and the proxy's defaults.
pub(crate) struct WatchTerms {
    pub(crate) bookmarks: bool,
    pub(crate) end_bookmark: bool,
    pub(crate) timeout_seconds: Option<i64>,
    /// The minimum duration without a client timeout; the maximum is twice that.
    pub(crate) lasts_min: Duration,
    /// Whether the client is a downstream proxy, which caches the events.
    pub(crate) by_proxy: bool,
}
