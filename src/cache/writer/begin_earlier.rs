//! Events from before the first list, put in front of the history.

use std::sync::Arc;

use super::CacheWriter;
use crate::cache::{BackfilledEvents, MissingPrevious};
use crate::wire::Object;
use kubeapi::ResourceVersion;

impl CacheWriter {
    /// Lets the history begin earlier. Returns false if the events do not join it any more, or the ring has no room for
    /// them: then nothing has changed. Readers that are there notice nothing.
    pub fn begin_earlier(&mut self, past: BackfilledEvents) -> bool {
        let refused = {
            let mut timeline = self.shared.timeline.write();
            let room = timeline.ring.room(&self.shared.config.get(), self.shared.alternate_bytes());
            timeline.begin_earlier(past, room).err()
        };
        self.enforce_budget();
        refused.is_none()
    }

    /// Notes what objects were before changes of which that was not known. These are all such changes behind `known`.
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
