use std::sync::Arc;

use super::events_waiting::EventsWaiting;
use super::lane::Lane;
use super::progress::Progress;
use super::shared::Shared;

/// A reader's lane as an onlooker sees it. It keeps no event alive, and the reader does not wait for it.
#[derive(Debug, Clone)]
pub struct Follower {
    shared: Arc<Shared>,
    lane: Arc<Lane>,
}

impl Follower {
    pub(super) fn new(shared: Arc<Shared>, lane: Arc<Lane>) -> Self {
        Self { shared, lane }
    }

    /// How many events the lane has from position `next` on.
    pub fn waiting(&self, next: u64) -> EventsWaiting {
        self.lane.waiting(next)
    }

    /// How far the feed is.
    pub fn progress(&self) -> Progress {
        self.shared.progress()
    }

    /// The resource, as metrics name it.
    pub fn resource(&self) -> String {
        self.shared.gvr.to_string()
    }
}
