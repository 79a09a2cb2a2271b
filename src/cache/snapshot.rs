use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Bound;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use imbl::OrdMap;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::{CollectionView, FeedEvent};
use crate::wire::{ListItemLengths, ObjectRevision, Representation};
use base::{MemoryAccount, MemoryCharge};
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
        // The map compares keys bytewise as these strings.
        let high = high.map_or(Bound::Unbounded, |high| Bound::Excluded(ObjectKey::from_path(&high)));
        let range = (!empty).then(|| self.objects.range((Bound::Included(ObjectKey::from_path(&low)), high)));
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

/// Adjacent objects of one namespace, about [`BYTES`](Self::BYTES) bytes of them. Lists are assembled from chunks.
///
/// A chunk keeps none of its objects alive. Its boundaries depend only on its objects. So every state and every list
/// that contains all of its objects has the same chunk, and a change affects one or two chunks.
#[derive(Debug)]
pub struct ObjectChunk {
    pub(crate) first: ObjectKey,
    /// The number of its objects and their length in upstream's encoding.
    pub(crate) lengths: ListItemLengths,
    /// A number that identifies the content: no other content has it.
    pub(crate) name: u128,
    /// Whether it ended because of its length, rather than at the end of its namespace or of the list.
    pub(crate) is_full: bool,
    /// A bit for each representation in which all objects of the chunk have been written.
    written: AtomicU16,
}

/// Divides a sorted state into chunks, object by object.
#[derive(Debug)]
pub struct ObjectChunkBuilder {
    /// The generation of the feed's content. Equal versions mean different bytes in another history, or if upstream
    /// runs another release.
    content: u64,
    chunk: Option<ObjectChunk>,
    /// Whether the chunk ends with the last added object.
    ends: bool,
}

/// A secret seed, so that a client that chooses object names cannot predict chunk names.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl ObjectChunk {
    /// The average length of a chunk in bytes of upstream's encoding: several TLS records, and about a millisecond of
    /// compression.
    pub const BYTES: usize = 128 << 10;
    /// The maximum length in bytes of a chunk with more than one object.
    pub const BYTES_MAX: usize = 256 << 10;

    fn new(first: ObjectKey, content: u64) -> Self {
        let (name, written) = (u128::from(content), AtomicU16::new(0));
        Self { first, lengths: ListItemLengths::default(), name, is_full: false, written }
    }

    /// Returns the name of two consecutive chunks together.
    pub fn joined_name(first: u128, second: u128) -> u128 {
        (first.rotate_left(61) ^ second).wrapping_mul(MIX)
    }

    /// Returns whether the whole chunk has been written in a representation, so that writing it again cannot fail.
    pub fn is_encodable(&self, representation: Representation) -> bool {
        self.written.load(Ordering::Relaxed) & (1 << representation.index()) != 0
    }

    /// Records that the whole chunk has been written in a representation.
    pub fn set_encodable(&self, representation: Representation) {
        self.written.fetch_or(1 << representation.index(), Ordering::Relaxed);
    }
}

impl ObjectChunkBuilder {
    /// Returns a builder for objects of a content.
    fn new(content: u64) -> Self {
        Self { content, chunk: None, ends: false }
    }

    /// Adds the next object. If the object starts a new chunk, returns the completed one.
    pub fn push(&mut self, object: &ObjectRevision) -> Option<ObjectChunk> {
        let (key, len, hash) = (&object.key, object.body().len(), SEED.hash_one(&object.key));
        let ended = self.chunk.take_if(|chunk| {
            chunk.is_full = self.ends || chunk.lengths.bytes + len > ObjectChunk::BYTES_MAX;
            chunk.is_full || chunk.first.namespace() != key.namespace()
        });
        let chunk = self.chunk.get_or_insert_with(|| ObjectChunk::new(key.clone(), self.content));
        chunk.lengths.add(len);
        // Each step is invertible, so contents that differ in one object always have different names.
        let part = u128::from(hash) << 64 | u128::from(object.rv.0);
        chunk.name = ObjectChunk::joined_name(chunk.name, part);
        // The probability that a chunk ends with an object is proportional to the object's length. So chunks have about
        // the same length, whatever the objects are.
        self.ends = hash % (ObjectChunk::BYTES as u64) < len as u64;
        ended
    }

    /// Returns the last chunk of the state.
    pub fn end(self) -> Option<ObjectChunk> {
        self.chunk
    }
}

/// An odd multiplier, so that the multiplication is invertible. The bits are those of the golden ratio.
const MIX: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// Accounting of the map nodes that older states of one feed keep alive, in addition to their objects.
///
/// A change copies the nodes on the path to its object if an older state shares them. The old nodes stay alive as long
/// as that state. They are charged to the newest state that is older than the change. When that state is dropped, the
/// charge moves to the state before it, which may share the nodes. So the charge is never too small.
#[derive(Debug)]
pub(super) struct RetainedSnapshotAccounting {
    alive: Mutex<RetainedSnapshots>,
}

#[derive(Debug)]
struct RetainedSnapshots {
    /// The bytes of tree nodes that each past state keeps, in the order of the states.
    bytes: BTreeMap<u64, usize>,
    next: u64,
    charge: MemoryCharge,
}

/// A state that is no longer the current one, but still referenced.
#[derive(Debug)]
pub(super) struct RetainedSnapshotGuard {
    states: Arc<RetainedSnapshotAccounting>,
    id: u64,
}

/// The sizes in bytes of a tree leaf of sixteen objects, and of a branch of as many children.
const LEAF_BYTES: usize = 432;
const BRANCH_BYTES: usize = 464;
/// The bytes of an object's share in half-full tree nodes.
const NODE_BYTES_PER_OBJECT: usize = 64;

impl RetainedSnapshotAccounting {
    pub(super) fn new(account: &Arc<MemoryAccount>) -> Arc<Self> {
        let alive = RetainedSnapshots { bytes: BTreeMap::new(), next: 0, charge: account.charge(0) };
        Arc::new(Self { alive: Mutex::new(alive) })
    }

    /// Registers a referenced state that is about to become a past one.
    pub(super) fn left(self: &Arc<Self>) -> RetainedSnapshotGuard {
        let mut alive = self.alive.lock();
        let id = alive.next;
        alive.next += 1;
        alive.bytes.insert(id, 0);
        RetainedSnapshotGuard { states: self.clone(), id }
    }

    /// Records a change of one object in a state of `objects` objects.
    pub(super) fn changed(&self, objects: usize) {
        self.keep(path_bytes(objects), objects);
    }

    /// Records the replacement of all of `objects` objects.
    pub(super) fn replaced(&self, objects: usize) {
        self.keep(all_bytes(objects), objects);
    }

    fn keep(&self, bytes: usize, objects: usize) {
        let mut alive = self.alive.lock();
        if let Some(mut newest) = alive.bytes.last_entry() {
            let before = *newest.get();
            let after = (before + bytes).min(all_bytes(objects).max(before));
            newest.insert(after);
            let bytes = alive.charge.bytes() + after - before;
            alive.charge.set(bytes);
        }
    }
}

impl Drop for RetainedSnapshotGuard {
    fn drop(&mut self) {
        let mut alive = self.states.alive.lock();
        let Some(bytes) = alive.bytes.remove(&self.id) else { return };
        match alive.bytes.range_mut(..self.id).next_back() {
            Some((_, older)) => *older += bytes,
            None => {
                let left = alive.charge.bytes() - bytes;
                alive.charge.set(left);
            }
        }
    }
}

/// Returns the bytes of the tree nodes on the path to one of `objects` objects.
fn path_bytes(objects: usize) -> usize {
    let branches = objects.max(1).ilog(10) as usize;
    LEAF_BYTES + branches * BRANCH_BYTES
}

fn all_bytes(objects: usize) -> usize {
    LEAF_BYTES + objects * NODE_BYTES_PER_OBJECT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retained_nodes_are_charged_until_older_snapshots_drop() {
        let account = MemoryAccount::new();
        let states = RetainedSnapshotAccounting::new(&account);
        states.changed(1_000);
        assert_eq!(account.bytes(), 0, "there is no older state");
        let path = path_bytes(1_000);
        let (first, second) = (states.left(), states.left());
        states.changed(1_000);
        states.changed(1_000);
        assert_eq!(account.bytes(), 2 * path);
        drop(second);
        assert_eq!(account.bytes(), 2 * path, "the first state may share it");
        let third = states.left();
        states.changed(1_000);
        drop(first);
        assert_eq!(account.bytes(), path, "only the third state has the later nodes");
        drop(third);
        states.changed(1_000);
        assert_eq!(account.bytes(), 0);
    }

    #[test]
    fn snapshot_charge_is_capped_at_its_own_nodes() {
        let account = MemoryAccount::new();
        let states = RetainedSnapshotAccounting::new(&account);
        let _state = states.left();
        (0..1_000).for_each(|_| states.changed(100));
        assert_eq!(account.bytes(), all_bytes(100));
    }
}
