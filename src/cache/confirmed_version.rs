use super::Snapshot;
use kubeapi::ResourceVersion;

/// A version that upstream's stream has not reached yet, at which upstream had exactly the feed's objects
/// (R-VERSION-1).
///
/// It is the version of the state only. The stream may still deliver events below it, for an object that was created
/// and deleted in between. So lists and new watches get this version, but bookmarks of open watches do not. Events up
/// to this version that arrive later do not change the state that readers get.
#[derive(Debug)]
pub(super) struct ConfirmedVersion {
    pub(super) rv: ResourceVersion,
    /// The state at `rv`, if the stream has delivered an event of an earlier version since.
    kept: Option<Snapshot>,
}

impl ConfirmedVersion {
    pub(super) fn new(rv: ResourceVersion) -> Self {
        Self { rv, kept: None }
    }

    /// Returns the state at the confirmed version. `present` builds it from the feed's objects.
    pub(super) fn state(&self, present: impl FnOnce(ResourceVersion) -> Snapshot) -> Snapshot {
        self.kept.clone().unwrap_or_else(|| present(self.rv))
    }

    /// Saves the confirmed state, because the feed's objects are about to change.
    pub(super) fn keep(&mut self, present: impl FnOnce(ResourceVersion) -> Snapshot) {
        self.kept.get_or_insert_with(|| present(self.rv));
    }

    /// Returns whether the confirmed state may differ from the feed's objects.
    pub(super) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }
}
