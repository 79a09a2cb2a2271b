use std::collections::VecDeque;

use tokio::time::Instant;

use super::{Config, Snapshot};
use crate::kube::ResourceVersion;

/// Snapshots kept for clients that are paging through a LIST, newest use last; bounded by count and age.
///
/// Structural sharing makes one cost about what has changed since.
#[derive(Debug, Default)]
pub(super) struct Held {
    snapshots: VecDeque<(Snapshot, Instant)>,
}

impl Held {
    pub(super) fn keep(&mut self, snapshot: Snapshot, now: Instant, config: &Config) {
        self.snapshots
            .retain(|(held, used)| held.rv != snapshot.rv && now.duration_since(*used) < config.held_snapshot_age_max);
        while self.snapshots.len() >= config.held_snapshots_max {
            self.snapshots.pop_front();
        }
        self.snapshots.push_back((snapshot, now));
    }

    pub(super) fn find(&mut self, rv: ResourceVersion, now: Instant, config: &Config) -> Option<Snapshot> {
        self.snapshots.retain(|(_, used)| now.duration_since(*used) < config.held_snapshot_age_max);
        let at = self.snapshots.iter().position(|(held, _)| held.rv == rv)?;
        let (snapshot, _) = self.snapshots.remove(at)?;
        self.snapshots.push_back((snapshot.clone(), now));
        Some(snapshot)
    }

    pub(super) fn clear(&mut self) {
        self.snapshots.clear();
    }
}
