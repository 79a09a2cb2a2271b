use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::budget::LruEviction;
use super::snapshot::SnapshotCapturePoint;
use super::{CacheConfig, FeedSnapshot};
use kubeapi::ResourceVersion;

/// Snapshots kept for clients that page through a LIST, most recently used last; bounded by count and age.
///
/// Structural sharing makes one cost about the size of the changes since. The age counts from the first page,
/// regardless of later reads: the apiserver's continue tokens also expire while in use, and clients can handle that.
#[derive(Debug, Default)]
pub(super) struct PagingSnapshots {
    /// Each paging snapshot with the time at which it was first kept.
    snapshots: VecDeque<(FeedSnapshot, Instant)>,
    /// The oldest generation of the content that may be kept. A LIST takes its snapshot some time before it keeps it.
    oldest_content: u64,
}

impl PagingSnapshots {
    pub(super) fn keep(&mut self, snapshot: FeedSnapshot, now: Instant, config: &CacheConfig) {
        if snapshot.content() < self.oldest_content {
            return;
        }
        let since = self.take(snapshot.rv, now, config).map_or(now, |(_, since)| since);
        while self.snapshots.len() >= config.held_snapshots_max {
            self.snapshots.pop_front();
        }
        self.snapshots.push_back((snapshot, since));
    }

    pub(super) fn find(&mut self, rv: ResourceVersion, now: Instant, config: &CacheConfig) -> Option<FeedSnapshot> {
        let (snapshot, since) = self.take(rv, now, config)?;
        self.snapshots.push_back((snapshot.clone(), since));
        Some(snapshot)
    }

    fn take(&mut self, rv: ResourceVersion, now: Instant, config: &CacheConfig) -> Option<(FeedSnapshot, Instant)> {
        self.snapshots.retain(|(_, since)| now.duration_since(*since) < config.held_snapshot_age_max);
        let at = self.snapshots.iter().position(|(snapshot, _)| snapshot.rv == rv)?;
        self.snapshots.remove(at)
    }

    /// Returns the point at which the oldest paging snapshot was taken. That snapshot keeps the most memory alive.
    pub(super) fn first_taken(&self) -> Option<SnapshotCapturePoint> {
        self.snapshots.iter().map(|(snapshot, _)| snapshot.capture_point).min_by_key(|taken| taken.freed_bytes)
    }

    /// Drops all snapshots, and accepts none that is older than a generation of the content.
    pub(super) fn clear_before(&mut self, content: u64) {
        self.oldest_content = content;
        self.snapshots.clear();
    }
}

impl LruEviction for Mutex<PagingSnapshots> {
    fn oldest(&self) -> Option<Instant> {
        self.lock().snapshots.iter().map(|(_, since)| *since).min()
    }

    fn drop_oldest(&self) {
        let mut paging = self.lock();
        let oldest = paging.snapshots.iter().enumerate().min_by_key(|(_, (_, since))| *since).map(|(at, _)| at);
        // Dropped after the lock is released.
        let _dropped = oldest.and_then(|at| paging.snapshots.remove(at));
        drop(paging);
    }
}
