use std::sync::Arc;

use imbl::OrdMap;

use super::budget::FeedMemoryAccounts;
use super::snapshot::{ChunkIndex, RetainedSnapshotAccounting, SnapshotCapturePoint};
use super::{FeedEvent, FeedSnapshot, MemoryKind};
use crate::wire::ObjectRevision;
use kubeapi::{EventType, ObjectKey, ResourceVersion};

/// A feed's current objects, in key order. A snapshot only copies a pointer.
#[derive(Debug)]
pub(super) struct FeedObjectStore {
    pub(super) objects: OrdMap<ObjectKey, Arc<ObjectRevision>>,
    /// The number of bytes of the object bodies in the store.
    pub(super) bytes: usize,
    /// The number of bytes of bodies that have left the store since the feed began.
    left_bytes: u64,
    /// The generation of the content, which changes with each history and each time that bodies are re-encoded.
    pub(super) content: u64,
    /// The chunks of the current state.
    chunks: Arc<ChunkIndex>,
    /// The accounting of the memory that older states keep alive.
    states: Arc<RetainedSnapshotAccounting>,
}

impl FeedObjectStore {
    pub(super) fn new(accounts: &FeedMemoryAccounts) -> Self {
        Self {
            objects: OrdMap::new(),
            bytes: 0,
            left_bytes: 0,
            content: 0,
            chunks: Arc::default(),
            states: RetainedSnapshotAccounting::new(accounts.of(MemoryKind::States)),
        }
    }

    /// Replaces all objects with a listed state. Returns the previous objects.
    pub(super) fn restart(&mut self, list: FeedSnapshot) -> OrdMap<ObjectKey, Arc<ObjectRevision>> {
        self.content += 1;
        self.left_bytes += self.bytes as u64;
        self.bytes = list.iter().map(|object| object.body().len()).sum();
        let before = std::mem::replace(&mut self.objects, list.objects);
        self.leave_state();
        self.states.replaced(before.len());
        before
    }

    /// Applies an event to the stored objects.
    pub(super) fn apply(&mut self, event: &FeedEvent) {
        let left = event.previous.as_ref().map_or(0, |previous| previous.body().len());
        self.bytes = self.bytes.saturating_sub(left);
        self.left_bytes += left as u64;
        if event.event_type == EventType::Deleted {
            self.objects.remove(&event.object.key);
        } else {
            self.bytes += event.object.body().len();
            self.objects.insert(event.object.key.clone(), event.object.clone());
        }
        // Existing holders of the chunks have them for the state before this event.
        if self.chunks.is_made() || Arc::strong_count(&self.chunks) > 1 {
            self.leave_state();
        }
        self.states.changed(self.objects.len());
    }

    /// Replaces bodies with re-encoded ones of the same version. Returns the previous objects.
    pub(super) fn renew(&mut self, objects: Vec<Arc<ObjectRevision>>) -> Vec<Arc<ObjectRevision>> {
        let fits = |object: &Arc<ObjectRevision>| {
            self.objects
                .get(&object.key)
                .is_some_and(|current| current.rv == object.rv && current.body() != object.body())
        };
        let objects: Vec<_> = objects.into_iter().filter(fits).collect();
        if objects.is_empty() {
            return Vec::new();
        }
        self.content += 1;
        self.leave_state();
        let mut replaced = Vec::with_capacity(objects.len());
        for object in objects {
            self.bytes += object.body().len();
            if let Some(before) = self.objects.insert(object.key.clone(), object) {
                self.bytes -= before.body().len();
                self.left_bytes += before.body().len() as u64;
                replaced.push(before);
            }
            self.states.changed(self.objects.len());
        }
        replaced
    }

    /// Returns the current state under the version `rv`.
    pub(super) fn state(&self, rv: ResourceVersion) -> FeedSnapshot {
        let capture_point = SnapshotCapturePoint { freed_bytes: self.left_bytes, bytes: self.bytes };
        FeedSnapshot { rv, objects: self.objects.clone(), chunk_index: self.chunks.clone(), capture_point }
    }

    /// Returns an empty chunk index for a state that is no longer the current one.
    pub(super) fn chunks_of_past_state(&self) -> Arc<ChunkIndex> {
        let chunks = ChunkIndex::of_content(self.content);
        chunks.left(self.states.left());
        Arc::new(chunks)
    }

    /// Returns an upper bound of the bytes that only a state taken at `capture_point` keeps alive.
    pub(super) fn kept_by(&self, capture_point: SnapshotCapturePoint) -> usize {
        usize::try_from(self.left_bytes.saturating_sub(capture_point.freed_bytes))
            .unwrap_or(usize::MAX)
            .min(capture_point.bytes)
    }

    /// Marks the current state as a past one for all its holders, and starts the chunks of the next one.
    fn leave_state(&mut self) {
        if Arc::strong_count(&self.chunks) > 1 {
            self.chunks.left(self.states.left());
        }
        self.chunks = Arc::new(ChunkIndex::of_content(self.content));
    }
}
