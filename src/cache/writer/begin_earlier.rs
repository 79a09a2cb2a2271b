//! Backfilled events: the writer puts events from before the first list in front of the history.

use std::sync::Arc;

use super::CacheWriter;
use crate::cache::{BackfilledEvents, MissingPrevious};
use crate::wire::Object;
use kubeapi::ResourceVersion;

impl CacheWriter {
    /// Extends the history backwards. Open watches are not affected. If the events no longer join the history or do not
    /// fit, it changes nothing and returns false.
    pub fn begin_earlier(&mut self, past: BackfilledEvents) -> bool {
        let refused = {
            let mut timeline = self.shared.timeline.write();
            let room = timeline.ring.room(&self.shared.config.get(), self.shared.alternate_bytes());
            timeline.begin_earlier(past, room).err()
        };
        self.enforce_budget();
        refused.is_none()
    }

    /// Adds the previous states of events for which they were unknown. `before` must contain all such events after
    /// `known`.
    pub fn explain(&mut self, known: ResourceVersion, before: Vec<(MissingPrevious, Arc<Object>)>) {
        let events = before.into_iter().map(|(change, before)| change.by(before)).collect();
        let gone = {
            let mut timeline = self.shared.timeline.write();
            if timeline.may_begin_earlier() { timeline.ring.explain(events, known) } else { Vec::new() }
        };
        drop(gone);
        self.enforce_budget();
    }
}
