use super::Snapshot;
use crate::kube::ResourceVersion;

/// A version at which upstream had exactly the objects of a feed whose stream has not come so far (R-VERSION-1).
///
/// It is the version of the state and says nothing of the history: an object may have come and gone in between, and the
/// stream has still to tell that. So states have this version, and bookmarks of open watches do not. Events up to this
/// version that the stream tells later do not change the state that is shown.
#[derive(Debug)]
pub(super) struct Confirmed {
    pub(super) rv: ResourceVersion,
    /// The state, once the stream has told an event of an earlier version.
    kept: Option<Snapshot>,
}

impl Confirmed {
    pub(super) fn new(rv: ResourceVersion) -> Self {
        Self { rv, kept: None }
    }

    /// The state at that version. `present` makes it of what the feed holds.
    pub(super) fn state(&self, present: impl FnOnce(ResourceVersion) -> Snapshot) -> Snapshot {
        self.kept.clone().unwrap_or_else(|| present(self.rv))
    }

    /// Keeps the state, because what the feed holds is about to change.
    pub(super) fn keep(&mut self, present: impl FnOnce(ResourceVersion) -> Snapshot) {
        self.kept.get_or_insert_with(|| present(self.rv));
    }

    /// Whether the state differs from what the feed holds.
    pub(super) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }
}
