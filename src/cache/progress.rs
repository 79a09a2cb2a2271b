use std::sync::atomic::AtomicU64;

use kubeapi::ResourceVersion;

/// A copy of [`Progress`] that is read without a lock.
#[derive(Debug, Default)]
pub(super) struct Reached {
    pub(super) rv: AtomicU64,
    pub(super) bookmarks: AtomicU64,
}

/// How far a feed is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Everything up to this version has been applied, and no more of it will come.
    pub rv: ResourceVersion,
    /// Bookmarks seen so far.
    pub bookmarks: u64,
}

/// When it is certain that no more events of a version will come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settling {
    Already,
    /// Soon: a moment of silence upstream is enough.
    Soon,
    /// When upstream says so: it has to be asked if it says nothing by itself.
    WhenToldSo,
}
