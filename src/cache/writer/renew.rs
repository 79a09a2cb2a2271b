//! Bodies that upstream writes otherwise now, at versions that are the same.

use std::sync::Arc;

use super::CacheWriter;
use crate::wire::Object;

/// Objects that are exchanged before readers get their turn.
const RENEWED_AT_A_TIME: usize = 256;

impl CacheWriter {
    /// Puts objects in the place of those that are held under the same key at the same version, and says how many were
    /// others: a server of another release writes other bytes. That is no event and no new version.
    ///
    /// States that somebody pages through go, for their tokens would lead on to what the old server wrote; upstream
    /// knows those tokens. Whatever was made of the old bodies is found by nobody from here on.
    pub async fn renew(&mut self, objects: Vec<Arc<Object>>) -> usize {
        let mut renewed = 0;
        let mut objects = objects.into_iter().peekable();
        while objects.peek().is_some() {
            let some: Vec<_> = objects.by_ref().take(RENEWED_AT_A_TIME).collect();
            let gone = {
                let mut timeline = self.shared.timeline.write();
                timeline.forget_kept();
                timeline.store.renew(some)
            };
            renewed += gone.len();
            drop(gone);
            tokio::task::yield_now().await;
        }
        if renewed > 0 {
            self.shared.paging.lock().clear();
            self.shared.chunks.clear();
            self.enforce_budget();
        }
        renewed
    }
}
