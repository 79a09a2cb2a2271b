use std::ops::Bound;
use std::sync::{Arc, OnceLock};

use imbl::OrdMap;
use tokio::sync::OnceCell;

use super::retained_snapshots::RetainedSnapshotGuard;
use super::{CollectionView, FeedEvent, ObjectChunk, ObjectChunkBuilder};
use crate::wire::ObjectRevision;
use kubeapi::{ObjectKey, ResourceVersion};

/// All objects of a feed at one version. Clones share the objects; later writes do not change a snapshot.
#[derive(Debug, Clone)]
pub struct FeedSnapshot {
    /// The resourceVersion of this state.
    pub rv: ResourceVersion,
    pub(super) objects: OrdMap<ObjectKey, Arc<ObjectRevision>>,
    /// The chunks of this state, shared by its clones.
    pub(super) chunk_index: Arc<ChunkIndex>,
    pub(super) capture_point: SnapshotCapturePoint,
}

/// The chunks of one state, computed at the first list and shared by all lists.
#[derive(Debug, Default)]
pub(super) struct ChunkIndex {
    content: u64,
    chunks: OnceCell<Arc<[ObjectChunk]>>,
    /// The registration as a past state, set once the state is no longer the current one.
    past: OnceLock<RetainedSnapshotGuard>,
}

/// The point at which a state was taken, from which the memory that only it keeps alive is computed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SnapshotCapturePoint {
    /// The number of bytes of bodies that had left the store since the feed began.
    pub(super) freed_bytes: u64,
    /// The number of bytes of the object bodies in this state.
    pub(super) bytes: usize,
}

/// The number of bytes compared between two yields to other tasks: about a tenth of a millisecond.
const COMPARED_AT_A_TIME: usize = 1 << 20;
/// The number of objects processed between two yields to other tasks: about half a millisecond.
const CUT_AT_A_TIME: usize = 2_048;

impl FeedSnapshot {
    pub fn new(rv: ResourceVersion, objects: OrdMap<ObjectKey, Arc<ObjectRevision>>) -> Self {
        Self { rv, objects, chunk_index: Arc::default(), capture_point: SnapshotCapturePoint::default() }
    }

    /// Returns the state before `events`, which must be the last events that led to this state.
    pub(super) fn without(mut self, events: &[Arc<FeedEvent>]) -> Self {
        for event in events.iter().rev() {
            let key = &event.object.key;
            match &event.previous {
                Some(previous) => drop(self.objects.insert(key.clone(), previous.clone())),
                None => drop(self.objects.remove(key)),
            }
        }
        self
    }

    /// Builds a state from listed objects. If a key occurs twice, the later object wins.
    pub fn from_objects(rv: ResourceVersion, objects: impl IntoIterator<Item = ObjectRevision>) -> Self {
        let objects = objects.into_iter().map(|object| (object.key.clone(), Arc::new(object))).collect();
        Self::new(rv, objects)
    }

    /// Returns the generation of the content that this is a state of.
    pub(super) fn content(&self) -> u64 {
        self.chunk_index.content
    }

    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<ObjectRevision>> {
        self.objects.get(key)
    }

    pub fn len(&self) -> usize {
        self.objects.len()
    }

    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Iterates over every object, in the apiserver's key order.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<ObjectRevision>> {
        self.objects.values()
    }

    /// Iterates over the objects after `key` in key order, or over all objects if it is `None`.
    pub fn after(&self, key: Option<&ObjectKey>) -> impl Iterator<Item = &Arc<ObjectRevision>> {
        let low = key.map_or(Bound::Unbounded, |key| Bound::Excluded(key.clone()));
        self.objects.range((low, Bound::Unbounded)).map(|(_, object)| object)
    }

    /// Returns the objects that `other` has at the same version as this state, but with different bytes. It yields to
    /// other tasks regularly.
    pub async fn with_different_bytes(&self, other: &Self) -> Vec<Arc<ObjectRevision>> {
        let (mut found, mut compared) = (Vec::new(), 0);
        for object in other.iter() {
            let other = self.get(&object.key).filter(|cached| cached.rv == object.rv && cached.body() != object.body());
            found.extend(other.map(|_| object.clone()));
            compared += object.body().len();
            if compared >= COMPARED_AT_A_TIME {
                compared = 0;
                tokio::task::yield_now().await;
            }
        }
        found
    }

    /// Returns all objects as chunks, computed once for all readers. It yields to other tasks regularly.
    pub async fn chunks(&self) -> Arc<[ObjectChunk]> {
        let cut = async || {
            let (mut chunker, mut chunks) = (self.chunker(), Vec::new());
            for (index, object) in self.iter().enumerate() {
                chunks.extend(chunker.push(object));
                if index % CUT_AT_A_TIME == CUT_AT_A_TIME - 1 {
                    tokio::task::yield_now().await;
                }
            }
            chunks.extend(chunker.end());
            chunks.into()
        };
        self.chunk_index.chunks.get_or_init(cut).await.clone()
    }

    /// Iterates over the state's objects that belong to a chunk.
    pub fn objects_of<'a>(&'a self, chunk: &ObjectChunk) -> impl Iterator<Item = &'a Arc<ObjectRevision>> + use<'a> {
        self.objects.range(chunk.first.clone()..).map(|(_, object)| object).take(chunk.lengths.items)
    }

    /// Returns a chunker for a subset of the state's objects.
    pub fn chunker(&self) -> ObjectChunkBuilder {
        ObjectChunkBuilder::new(self.content())
    }

    /// Iterates over the objects that match `view`, in key order, from the first key that is not before `start`
    /// (inclusive).
    pub fn select<'a>(
        &'a self,
        view: &'a CollectionView,
        namespaced: bool,
        start: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<ObjectRevision>> + use<'a> {
        self.scan_candidates(view, namespaced, start).filter(|object| view.matches(object))
    }

    /// Iterates over the objects to scan for those that match `view`, for callers that account for the cost.
    pub fn scan_candidates<'a>(
        &'a self,
        view: &CollectionView,
        namespaced: bool,
        start: Option<&str>,
    ) -> impl Iterator<Item = &'a Arc<ObjectRevision>> + use<'a> {
        let (low, high) = match (view.single(namespaced), view.namespace()) {
            // One object: the range from its key to the next possible key.
            (Some(key), _) => (key.as_str().to_owned(), Some(format!("{}\0", key.as_str()))),
            // A namespace: '0' is the character after '/'.
            (None, Some(namespace)) if namespaced => (format!("{namespace}/"), Some(format!("{namespace}0"))),
            _ => (String::new(), None),
        };
        let low = match start {
            Some(start) if start > low.as_str() => start.to_owned(),
            _ => low,
        };
        let empty = view.selector().is_contradictory() || high.as_ref().is_some_and(|high| *high <= low);
        let range = (Bound::Included(low), high.map_or(Bound::Unbounded, Bound::Excluded));
        let range = (as_key(range.0), as_key(range.1));
        let range = if empty { None } else { Some(self.objects.range(range)) };
        range.into_iter().flatten().map(|(_, object)| object)
    }
}

impl ChunkIndex {
    pub(super) fn of_content(content: u64) -> Self {
        Self { content, chunks: OnceCell::new(), past: OnceLock::new() }
    }

    /// Records that the state is no longer the current one.
    pub(super) fn left(&self, past: RetainedSnapshotGuard) {
        let _ = self.past.set(past);
    }

    pub(super) fn is_made(&self) -> bool {
        self.chunks.initialized()
    }
}

/// Converts string bounds to keys. The map compares keys bytewise as those strings.
fn as_key(bound: Bound<String>) -> Bound<ObjectKey> {
    match bound {
        Bound::Included(text) => Bound::Included(ObjectKey::from_path(&text)),
        Bound::Excluded(text) => Bound::Excluded(ObjectKey::from_path(&text)),
        Bound::Unbounded => Bound::Unbounded,
    }
}
