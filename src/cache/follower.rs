use std::sync::Arc;

use super::events_waiting::EventsWaiting;
use super::lane::Lane;
use super::progress::Progress;
use super::shared::Shared;
use super::view::View;

/// A reader's lane as an onlooker sees it. It keeps no event alive, and the reader does not wait for it.
#[derive(Debug, Clone)]
pub struct Follower {
    shared: Arc<Shared>,
    lane: Arc<Lane>,
    view: Arc<View>,
}

impl Follower {
    pub(super) fn new(shared: Arc<Shared>, lane: Arc<Lane>, view: Arc<View>) -> Self {
        Self { shared, lane, view }
    }

    /// What the reader sees.
    pub fn view(&self) -> &View {
        &self.view
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
