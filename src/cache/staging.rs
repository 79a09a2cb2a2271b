use std::sync::Arc;

use imbl::OrdMap;

use super::Snapshot;
use super::shared::Shared;
use crate::wire::Object;
use base::Charge;
use kubeapi::{ObjectKey, ResourceVersion};

/// A state that is being gathered, within the memory of feeds. It counts beside what all of them hold.
#[derive(Debug)]
pub struct Staging {
    shared: Arc<Shared>,
    objects: OrdMap<ObjectKey, Arc<Object>>,
    /// The key that has come last.
    last: Option<ObjectKey>,
    /// Whether the next one is a second one, if it is behind the last.
    is_second: bool,
    /// Every second object of a run in the order of keys, put in later. What is only appended leaves each leaf of the
    /// map half full; these fill it.
    between: Vec<Object>,
    /// The charge for the page that is being read.
    page: Charge,
}

/// The feed does not fit into the memory that feeds may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it does not fit into the memory that feeds may take")]
pub struct OverBudget;

/// How many wait at most, so that the nodes which they fill are still in the processor's cache.
const BETWEEN_MAX: usize = 512;

impl Staging {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let page = shared.share.accounts.staged.charge(0);
        Self { shared, objects: OrdMap::new(), last: None, is_second: false, between: Vec::new(), page }
    }

    /// Notes that `bytes` of a page have come.
    pub fn page_grows_to(&mut self, bytes: usize) -> Result<(), OverBudget> {
        self.page.set(bytes);
        self.fits(0)
    }

    /// Notes that the page is complete, and about to be read into objects that take as much again.
    pub fn page_is_read(&mut self) -> Result<(), OverBudget> {
        self.fits(self.page.bytes())
    }

    /// Notes that the page has been dropped.
    pub fn page_is_over(&mut self) {
        self.page.set(0);
    }

    /// Adds one object. Of two with one key the later stays.
    pub fn push(&mut self, object: Object) -> Result<(), OverBudget> {
        let goes_on = self.last.as_ref().is_some_and(|last| *last < object.key);
        if !goes_on || self.between.len() >= BETWEEN_MAX {
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

    /// Returns the complete state.
    pub fn finish(mut self, rv: ResourceVersion) -> Snapshot {
        self.fill();
        Snapshot::new(rv, self.objects)
    }

    /// Puts the second ones between the others.
    fn fill(&mut self) {
        self.is_second = false;
        std::mem::take(&mut self.between).into_iter().for_each(|object| self.insert(object));
    }

    fn insert(&mut self, object: Object) {
        self.objects.insert(object.key.clone(), Arc::new(object));
    }

    fn fits(&self, more: usize) -> Result<(), OverBudget> {
        let share = &self.shared.share;
        if !share.outgrown.is_cancelled() && share.budget.has_room(more) {
            return Ok(());
        }
        // A feed that is listed anew holds both states until the new one takes the place of the old.
        share.weigh(more, self.shared.timeline.read().store.bytes());
        Err(OverBudget)
    }
}
