use std::sync::Arc;

use super::lane::{EventLane, PendingEventCount};
use super::shared::{FeedProgress, SharedFeedCache};
use super::view::CollectionView;
use kubeapi::ResourceVersion;
use tokio::sync::watch;

/// A read-only observer of a reader's lane. It keeps no event alive and never delays the reader.
#[derive(Debug, Clone)]
pub struct LaneObserver {
    shared: Arc<SharedFeedCache>,
    lane: Arc<EventLane>,
    view: Arc<CollectionView>,
}

impl LaneObserver {
    pub(super) fn new(shared: Arc<SharedFeedCache>, lane: Arc<EventLane>, view: Arc<CollectionView>) -> Self {
        Self { shared, lane, view }
    }

    /// Returns the view of the reader that is being followed.
    pub fn view(&self) -> &CollectionView {
        &self.view
    }

    /// Returns the number of events that the lane has from position `next` on.
    pub fn waiting(&self, next: u64) -> PendingEventCount {
        self.lane.waiting(next)
    }

    /// Returns the progress of the feed.
    pub fn progress(&self) -> FeedProgress {
        self.shared.progress()
    }

    /// Returns the resource as metrics name it.
    pub fn resource(&self) -> String {
        self.shared.gvr.to_string()
    }
}

/// Follows the progress of a feed.
#[derive(Debug)]
pub struct FeedProgressReceiver {
    shared: Arc<SharedFeedCache>,
    progress: watch::Receiver<FeedProgress>,
}

impl FeedProgressReceiver {
    pub(super) fn new(shared: &Arc<SharedFeedCache>) -> Self {
        Self { shared: shared.clone(), progress: shared.progress.subscribe() }
    }

    /// Returns the current progress. After this, [`changed`](Self::changed) waits for a different value.
    pub fn borrow_progress(&mut self) -> FeedProgress {
        *self.progress.borrow_and_update()
    }

    /// Completes when the feed's progress differs from that of the last [`borrow_progress`](Self::borrow_progress). It
    /// may never complete.
    pub async fn changed(&mut self) {
        // The sender lives as long as `shared`.
        let _ = self.progress.changed().await;
    }

    /// Completes when readers get a state at `rv` or later. It may never complete.
    pub async fn wait_served(&mut self, rv: ResourceVersion) {
        while self.borrow_progress().rv < rv && self.shared.timeline.read().served_version() < rv {
            self.changed().await;
        }
    }
}
