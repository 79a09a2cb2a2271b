use std::future::pending;
use std::sync::Arc;

use super::progress::Progress;
use super::shared::Shared;
use kubeapi::ResourceVersion;
use tokio::sync::watch;

/// Follows the progress of a feed.
#[derive(Debug)]
pub struct ProgressFollower {
    shared: Arc<Shared>,
    progress: watch::Receiver<Progress>,
}

impl ProgressFollower {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        Self { shared: shared.clone(), progress: shared.progress.subscribe() }
    }

    /// Returns the current progress. After this, [`changed`](Self::changed) waits for a different value.
    pub fn look(&mut self) -> Progress {
        *self.progress.borrow_and_update()
    }

    /// Completes when the feed's progress differs from that of the last [`look`](Self::look). It may never complete.
    pub async fn changed(&mut self) {
        if self.progress.changed().await.is_err() {
            // The writer is gone, so the caller's deadline decides.
            pending::<()>().await;
        }
    }

    /// Completes when readers get a state at `rv` or later. It may never complete.
    pub async fn show(&mut self, rv: ResourceVersion) {
        while self.look().rv < rv && self.shared.timeline.read().shown_at() < rv {
            self.changed().await;
        }
    }

    /// Completes when everything up to `rv` has been applied. It may never complete.
    pub async fn reach(&mut self, rv: ResourceVersion) {
        while self.look().rv < rv {
            self.changed().await;
        }
    }
}
