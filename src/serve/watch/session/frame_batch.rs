use std::sync::Arc;

use bytes::Bytes;

use crate::cache::{CacheReader, Cursor, Snapshot, View};
use crate::listing::cost;
use crate::wire::{Object, TranscodeError};
use kubeapi::EventType;

/// The progress of a state that is sent in portions, each limited by the client's room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendProgress<T = ()> {
    /// More portions of the state follow.
    More,
    /// This was the last portion of the state.
    Last(T),
}

/// The batch that receives the frames of a state, and its limits.
pub(super) struct FrameBatch<'a> {
    pub(super) cursor: &'a Cursor,
    pub(super) reader: &'a CacheReader,
    pub(super) room: usize,
    /// The remaining budget for scanning objects.
    pub(super) scan_budget: &'a mut usize,
    pub(super) batch: &'a mut Vec<Bytes>,
}

impl FrameBatch<'_> {
    /// Puts the matching objects of a view as frames, from the key `start` on. If the room or the scan budget is used
    /// up, it returns the key to resume from. If the batch is empty, at least one frame is put, unless the scan budget
    /// is used up first.
    pub(super) fn put(
        &mut self,
        snapshot: &Snapshot,
        view: &View,
        start: &str,
        frame: impl Fn(&Self, &Arc<Object>) -> Result<Option<Bytes>, TranscodeError>,
    ) -> Result<Option<String>, TranscodeError> {
        let (mut bytes, is_expensive) = (self.batch.iter().map(Bytes::len).sum::<usize>(), view.is_expensive());
        let start = Some(start).filter(|start| !start.is_empty());
        for object in snapshot.looked_at(view, self.reader.namespaced(), start) {
            if *self.scan_budget == 0 || (!self.batch.is_empty() && bytes >= self.room) {
                return Ok(Some(object.key.as_str().to_owned()));
            }
            let matches = view.matches(object);
            if is_expensive || !matches {
                *self.scan_budget = self.scan_budget.saturating_sub(view.cost_of(object));
            }
            if !matches {
                continue;
            }
            if let Some(frame) = frame(self, object)? {
                if !self.cursor.renderer().is_verbatim() {
                    *self.scan_budget = self.scan_budget.saturating_sub(cost::DERIVED);
                }
                bytes += frame.len();
                self.batch.push(frame);
            }
        }
        Ok(None)
    }

    /// Returns an object as an ADDED event.
    pub(super) fn added(&self, object: &Arc<Object>) -> Result<Option<Bytes>, TranscodeError> {
        let renderer = self.cursor.renderer();
        Ok(Some(renderer.envelope().frame(EventType::Added, &self.reader.body(object, renderer)?)))
    }
}
