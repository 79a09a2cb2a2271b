use std::ops::Range;
use std::sync::Arc;

use crate::auth::ReadPermission;
use crate::cache::{CollectionView, FeedSnapshot, ObjectChunk, ObjectChunkBuilder};
use crate::wire::{ListItemLengths, ObjectRevision};

/// The objects of a page in key order: chunks that all lists share, and chunks of objects selected for this page alone.
#[derive(Debug)]
pub(crate) struct PageChunks {
    snapshot: FeedSnapshot,
    shared: Arc<[ObjectChunk]>,
    parts: Vec<PageChunk>,
    lengths: ListItemLengths,
}

#[derive(Debug)]
enum PageChunk {
    Shared(usize),
    Picked(ObjectChunk, Vec<Arc<ObjectRevision>>),
}

/// Consecutive objects that do not form a chunk yet.
#[derive(Debug)]
pub(crate) struct SelectedObjectRun {
    chunker: ObjectChunkBuilder,
    picked: Vec<Arc<ObjectRevision>>,
}

/// Consecutive chunks that are compressed together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkBatch {
    pub(crate) chunks: Range<usize>,
    /// A number that identifies the content of the batch.
    pub(crate) name: u128,
    /// Whether the batch has only chunks of the snapshot, whose bytes all lists share.
    pub(crate) is_shared: bool,
}

impl PageChunks {
    /// Creates an empty page. `shared` are the chunks of the snapshot, or empty if objects are selected one by one.
    pub(crate) fn new(snapshot: FeedSnapshot, shared: Arc<[ObjectChunk]>) -> Self {
        Self { snapshot, shared, parts: Vec::new(), lengths: ListItemLengths::default() }
    }

    /// Returns whether the objects of a view form whole chunks except at its edges.
    pub(crate) fn suit(view: &CollectionView) -> bool {
        view.selector().is_everything()
    }

    /// Appends the objects of a view that [`suit`](Self::suit) accepts, from `start` on, up to `limit` objects in all.
    /// Returns how many more there are.
    pub(crate) fn put_chunks(
        &mut self,
        permit: &ReadPermission,
        view: &CollectionView,
        namespaced: bool,
        start: Option<&str>,
        limit: usize,
    ) -> usize {
        let (shared, snapshot) = (self.shared.clone(), self.snapshot.clone());
        let namespace = view.namespace().filter(|_| namespaced);
        let prefix = namespace.map(|namespace| format!("{namespace}/")).unwrap_or_default();
        let start = start.unwrap_or_default().max(&prefix);
        let whole = shared.partition_point(|chunk| chunk.first.as_str() < start);
        // The rest of the chunk in whose middle the page starts.
        let end = shared.get(whole).map(|chunk| &chunk.first);
        let objects = snapshot.select(view, namespaced, Some(start).filter(|start| !start.is_empty()));
        let rest = objects.take_while(|object| end.is_none_or(|end| object.key < *end));
        let mut more = self.put(rest.filter(|object| permit.sees(object.key.namespace())), limit);
        for (index, chunk) in shared.iter().enumerate().skip(whole) {
            if !chunk.first.as_str().starts_with(&prefix) {
                break;
            }
            if !permit.sees(chunk.first.namespace()) {
                continue;
            }
            if chunk.lengths.items <= limit - self.lengths.items {
                self.lengths = self.lengths + chunk.lengths;
                self.parts.push(PageChunk::Shared(index));
            } else if self.lengths.items < limit {
                more += self.put(snapshot.objects_of(chunk), limit);
            } else {
                more += chunk.lengths.items;
            }
        }
        more
    }

    /// Starts to append objects one by one.
    pub(crate) fn picking(&self) -> SelectedObjectRun {
        SelectedObjectRun { chunker: self.snapshot.chunker(), picked: Vec::new() }
    }

    pub(crate) fn pick(&mut self, picking: &mut SelectedObjectRun, object: &Arc<ObjectRevision>) {
        if let Some(chunk) = picking.chunker.put(object) {
            self.put_picked(chunk, std::mem::take(&mut picking.picked));
        }
        picking.picked.push(object.clone());
    }

    pub(crate) fn end_picking(&mut self, picking: SelectedObjectRun) {
        if let Some(chunk) = picking.chunker.end() {
            self.put_picked(chunk, picking.picked);
        }
    }

    /// Appends objects to the page, up to `limit` in all. Returns how many more there are.
    pub(crate) fn put<'a>(
        &mut self,
        mut objects: impl Iterator<Item = &'a Arc<ObjectRevision>>,
        limit: usize,
    ) -> usize {
        let mut picking = self.picking();
        for object in objects.by_ref().take(limit - self.lengths.items) {
            self.pick(&mut picking, object);
        }
        self.end_picking(picking);
        objects.count()
    }

    fn put_picked(&mut self, chunk: ObjectChunk, objects: Vec<Arc<ObjectRevision>>) {
        self.lengths = self.lengths + chunk.lengths;
        self.parts.push(PageChunk::Picked(chunk, objects));
    }

    /// Returns the number of objects and their length in upstream's encoding.
    pub(crate) fn lengths(&self) -> ListItemLengths {
        self.lengths
    }

    /// Returns the number of chunks of the page.
    pub(crate) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Returns the chunk of the page at `index`.
    pub(crate) fn chunk(&self, index: usize) -> &ObjectChunk {
        match &self.parts[index] {
            PageChunk::Shared(chunk) => &self.shared[*chunk],
            PageChunk::Picked(chunk, _) => chunk,
        }
    }

    /// Returns whether a chunk is shared by all lists.
    pub(crate) fn is_whole(&self, index: usize) -> bool {
        matches!(self.parts[index], PageChunk::Shared(_))
    }

    /// Groups chunks, so that short chunks at the ends of namespaces are compressed together, about
    /// [`ObjectChunk::BYTES`] at a time. As for chunks, the boundaries of a batch depend only on its content.
    pub(crate) fn batches(&self) -> Vec<ChunkBatch> {
        let mut batches: Vec<ChunkBatch> = Vec::new();
        let (mut bytes, mut is_full) = (0, true);
        for index in 0..self.len() {
            let (chunk, is_shared) = (self.chunk(index), self.is_whole(index));
            bytes += chunk.lengths.bytes;
            match batches.last_mut().filter(|_| !is_full && bytes <= ObjectChunk::BYTES_MAX) {
                Some(batch) => {
                    batch.chunks.end = index + 1;
                    batch.name = ObjectChunk::joined_name(batch.name, chunk.name);
                    batch.is_shared &= is_shared;
                }
                None => {
                    batches.push(ChunkBatch { chunks: index..index + 1, name: chunk.name, is_shared });
                    bytes = chunk.lengths.bytes;
                }
            }
            is_full = chunk.is_full;
        }
        batches
    }

    pub(crate) fn objects(&self, index: usize) -> Vec<&Arc<ObjectRevision>> {
        match &self.parts[index] {
            PageChunk::Shared(chunk) => self.snapshot.objects_of(&self.shared[*chunk]).collect(),
            PageChunk::Picked(_, objects) => objects.iter().collect(),
        }
    }

    pub(crate) fn last(&self) -> Option<&ObjectRevision> {
        let last = self.parts.len().checked_sub(1)?;
        self.objects(last).last().map(|object| &***object)
    }
}
