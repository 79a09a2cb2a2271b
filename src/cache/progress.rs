use std::sync::atomic::AtomicU64;

use crate::kube::ResourceVersion;

/// [`Progress`], to be looked at.
#[derive(Debug, Default)]
pub(super) struct Reached {
    pub(super) rv: AtomicU64,
    pub(super) bookmarks: AtomicU64,
}

/// How far a feed is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Progress {
    /// Everything up to here has been applied, and no more of it will come.
    pub rv: ResourceVersion,
    /// Bookmarks seen so far.
    pub bookmarks: u64,
}

/// When no more events of a version will come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settling {
    Already,
    /// Upstream has only to be silent.
    Soon,
    /// Upstream has to be asked, if it says nothing by itself.
    WhenToldSo,
}
