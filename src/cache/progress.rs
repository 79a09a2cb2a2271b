use std::sync::atomic::AtomicU64;

use kubeapi::ResourceVersion;

/// A copy of [`Progress`] that is read without a lock.
#[derive(Debug, Default)]
pub(super) struct AtomicProgress {
    pub(super) rv: AtomicU64,
    pub(super) bookmarks: AtomicU64,
}

/// The progress of a feed: the version that it has reached, and its count of bookmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// The version up to which everything has been applied.
    pub rv: ResourceVersion,
    /// The number of bookmarks that the feed has received.
    pub bookmarks: u64,
}
