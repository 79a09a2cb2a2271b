use std::sync::atomic::AtomicU64;

use kubeapi::ResourceVersion;

/// A copy of [`Progress`] that is read without a lock.
#[derive(Debug, Default)]
pub(super) struct Reached {
    pub(super) rv: AtomicU64,
    pub(super) bookmarks: AtomicU64,
}

/// Progress of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Newest complete version: everything up to it has been applied, and no more events of it will come.
    pub rv: ResourceVersion,
    /// Number of bookmarks received.
    pub bookmarks: u64,
}

/// Condition under which a version is known to be complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settling {
    Already,
    /// After a short silence of upstream.
    Soon,
    /// After upstream confirms it; if upstream sends nothing, it must be asked.
    WhenToldSo,
}
