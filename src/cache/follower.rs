use std::sync::Arc;

use super::events_waiting::EventsWaiting;
use super::lane::Lane;
use super::progress::Progress;
use super::shared::Shared;
use super::view::View;

/// A read-only observer of a reader's lane. It keeps no event alive and never delays the reader.
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

    /// Returns the view of the reader that is being followed.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns the number of events that the lane has from position `next` on.
    pub fn waiting(&self, next: u64) -> EventsWaiting {
        self.lane.waiting(next)
    }

    /// Returns the progress of the feed.
    pub fn progress(&self) -> Progress {
        self.shared.progress()
    }

    /// Returns the resource as metrics name it.
    pub fn resource(&self) -> String {
        self.shared.gvr.to_string()
    }
}
