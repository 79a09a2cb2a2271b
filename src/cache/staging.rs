use std::sync::Arc;

use imbl::OrdMap;

use super::shared::SharedFeedCache;
use super::{FeedSnapshot, MemoryKind};
use crate::wire::ObjectRevision;
use base::MemoryCharge;
use kubeapi::{ObjectKey, ResourceVersion};

/// A state that is being assembled from list pages, within the memory budget for feeds. It counts in addition to all
/// running feeds.
#[derive(Debug)]
pub struct SnapshotStaging {
    shared: Arc<SharedFeedCache>,
    objects: OrdMap<ObjectKey, Arc<ObjectRevision>>,
    /// The key of the last pushed object.
    last: Option<ObjectKey>,
    /// Whether the next object is added to `between`, if its key follows the last one.
    is_second: bool,
    /// Every second object of a run in key order, inserted later. Appending in order leaves each leaf of the map half
    /// full; these objects fill the leaves.
    between: Vec<ObjectRevision>,
    /// The memory charge for the page that is being received.
    page: MemoryCharge,
}

/// The feed does not fit into the memory limit of feeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the feed does not fit into the memory budget; raise feeds.memoryMebibytes")]
pub struct OverMemoryBudget;

/// The maximum length of `between`, so that the nodes to fill are still in the processor's cache.
const BETWEEN_MAX: usize = 512;

impl SnapshotStaging {
    pub(super) fn new(shared: Arc<SharedFeedCache>) -> Self {
        let page = shared.share.accounts.of(MemoryKind::Staged).charge(0);
        Self { shared, objects: OrdMap::new(), last: None, is_second: false, between: Vec::new(), page }
    }

    /// Records that `bytes` of a page have been received.
    ///
    /// # Errors
    /// The memory budget for feeds is used up.
    pub fn page_grows_to(&mut self, bytes: usize) -> Result<(), OverMemoryBudget> {
        self.page.set(bytes);
        self.fits(0)
    }

    /// Reserves memory for decoding the complete page into objects of about the same size.
    ///
    /// # Errors
    /// The memory budget for feeds is used up.
    pub fn page_is_read(&mut self) -> Result<(), OverMemoryBudget> {
        self.fits(self.page.bytes())
    }

    /// Records that the page has been dropped.
    pub fn page_done(&mut self) {
        self.page.set(0);
    }

    /// Adds one object to the new state. If a key occurs twice, the later object wins.
    ///
    /// # Errors
    /// The memory budget for feeds is used up.
    pub fn push(&mut self, object: ObjectRevision) -> Result<(), OverMemoryBudget> {
        let is_next = self.last.as_ref().is_some_and(|last| *last < object.key);
        if !is_next || self.between.len() >= BETWEEN_MAX {
            self.fill();
        }
        self.last = Some(object.key.clone());
        if self.is_second {
            self.between.push(object);
        } else {
            self.insert(object);
        }
        self.is_second = !self.is_second;
        self.fits(0)
    }

    /// Completes the new state, and returns it at version `rv`.
    pub fn finish(mut self, rv: ResourceVersion) -> FeedSnapshot {
        self.fill();
        FeedSnapshot::new(rv, self.objects)
    }

    /// Inserts the deferred objects into the new state.
    fn fill(&mut self) {
        self.is_second = false;
        std::mem::take(&mut self.between).into_iter().for_each(|object| self.insert(object));
    }

    fn insert(&mut self, object: ObjectRevision) {
        self.objects.insert(object.key.clone(), Arc::new(object));
    }

    fn fits(&self, more: usize) -> Result<(), OverMemoryBudget> {
        let share = &self.shared.share;
        if !share.over_budget.is_cancelled() && share.budget.has_room(more) {
            return Ok(());
        }
        // During a relist a feed holds both states until the new one replaces the old one.
        share.record_required(more, self.shared.timeline.read().store.bytes);
        Err(OverMemoryBudget)
    }
}
