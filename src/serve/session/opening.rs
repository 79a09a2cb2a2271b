use std::sync::Arc;

use crate::auth::Permit;
use crate::base::{Cut, DrainWatch};
use crate::cache::{Chunk, OpenedWatch};
use crate::feeds::FeedHandle;
use crate::listing::Looks;
use crate::serve::admission::AdmissionPlace;
use crate::serve::metrics::WatchMetrics;
use crate::serve::overdue::Overdue;
use crate::wire::{Object, Renderer};

/// Everything that a watch is made of.
pub(in super::super) struct Opening {
    pub(in super::super) permit: Permit,
    pub(in super::super) place: AdmissionPlace,
    pub(in super::super) feed: FeedHandle,
    pub(in super::super) renderer: Renderer,
    pub(in super::super) opened: OpenedWatch,
    /// Those with something to show, of a watch that may not show all.
    pub(in super::super) namespaces: Vec<Arc<str>>,
    /// Of the state that the watch begins with, for a sink that takes several frames in one.
    pub(in super::super) chunks: Option<Arc<[Chunk]>>,
    /// A state of one object, as a Table has it.
    pub(in super::super) row: Option<Object>,
    pub(in super::super) terms: WatchTerms,
    pub(in super::super) drain: DrainWatch,
    /// How much is looked at in one go.
    pub(in super::super) looks: Looks,
    pub(in super::super) metrics: WatchMetrics,
    /// By which it is ended when it is not polled.
    pub(in super::super) cut: Cut,
    pub(in super::super) overdue: Overdue,
}

/// What the client asked for.
pub(in super::super) struct WatchTerms {
    pub(in super::super) bookmarks: bool,
    pub(in super::super) end_bookmark: bool,
    pub(in super::super) timeout_seconds: Option<i64>,
}
