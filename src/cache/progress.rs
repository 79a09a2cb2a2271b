use std::sync::atomic::AtomicU64;

use kubeapi::ResourceVersion;

/// A copy of [`Progress`] that is read without a lock.
#[derive(Debug, Default)]
pub(super) struct AtomicProgress {
    pub(super) rv: AtomicU64,
    pub(super) bookmarks: AtomicU64,
}

/// Progress of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Version up to which everything has been applied.
    pub rv: ResourceVersion,
    /// Number of bookmarks received.
    pub bookmarks: u64,
}
