//! Renewal of bodies that upstream now encodes differently at unchanged versions.

use std::sync::Arc;

use super::CacheWriter;
use crate::wire::Object;

/// The number of objects that are replaced between two yields to readers.
const RENEWED_AT_A_TIME: usize = 256;

impl CacheWriter {
    /// Replaces objects that are held under the same key at the same version, and returns how many had different bytes.
    /// A server of another release writes other bytes; that is no event and no new version.
    ///
    /// Snapshots of paging clients are dropped, because their continue tokens would lead to bodies of the old server;
    /// upstream still accepts those tokens. Readers can no longer get bytes derived from the old bodies.
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
