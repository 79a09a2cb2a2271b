use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};

use tokio::sync::OnceCell;

use super::states::PastState;
use crate::wire::{Lengths, Object, Representation};
use kubeapi::ObjectKey;

/// Neighbouring objects of one namespace, about [`BYTES`](Self::BYTES) bytes of them: lists are made of chunks.
///
/// A chunk holds none of its objects, so it keeps nothing alive. Where it ends depends on its objects alone. So it is
/// the same in every state and every list that has all of them, and a change touches one chunk or two.
#[derive(Debug)]
pub struct Chunk {
    first: ObjectKey,
    lengths: Lengths,
    name: u128,
    /// Whether it ended because it is long enough, rather than at the end of its namespace.
    is_full: bool,
    /// A bit for each representation that all of its objects have been written in.
    written: AtomicU8,
}

/// The chunks of one state, cut when somebody lists it and shared by all who do.
#[derive(Debug, Default)]
pub(super) struct ChunkIndex {
    content: u64,
    chunks: OnceCell<Arc<[Chunk]>>,
    /// Set once the state is not the present one any more.
    past: OnceLock<PastState>,
}

/// Builds chunks, object by object.
#[derive(Debug)]
pub struct Chunker {
    /// Counts what the feed's versions have stood for: those of one history stand for nothing in another, and for other
    /// bytes once upstream is of another release.
    content: u64,
    chunk: Option<Chunk>,
    /// Whether the chunk ends with the object that was put last.
    ends: bool,
}

/// Objects that are cut between two yields to other tasks: half a millisecond.
const CUT_AT_A_TIME: usize = 2_048;
/// A secret, so that whoever chooses objects' names cannot foresee names of chunks.
static SEED: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Chunk {
    /// The average length, of bodies as they came: several TLS records, and a millisecond of compression.
    pub const BYTES: usize = 128 << 10;
    /// The largest length of a chunk that has more than one object.
    pub const BYTES_MAX: usize = 256 << 10;

    fn new(first: ObjectKey, content: u64) -> Self {
        let (name, written) = (u128::from(content), AtomicU8::new(0));
        Self { first, lengths: Lengths::default(), name, is_full: false, written }
    }

    /// The first key in it.
    pub fn first(&self) -> &ObjectKey {
        &self.first
    }

    /// How many objects it has, and how long they are as they came.
    pub fn lengths(&self) -> Lengths {
        self.lengths
    }

    /// A number that identifies the content: no other content has it.
    pub fn name(&self) -> u128 {
        self.name
    }

    /// The name of two chunks that follow each other.
    pub fn joined_name(first: u128, second: u128) -> u128 {
        (first.rotate_left(61) ^ second).wrapping_mul(MIX)
    }

    /// Whether it ended because it is long enough, rather than at the end of its namespace or of the list.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Whether all of it has been written in a representation: then it can be written so again.
    pub fn was_written(&self, representation: Representation) -> bool {
        self.written.load(Ordering::Relaxed) & (1 << representation.place()) != 0
    }

    /// Notes that all of it has been written in a representation.
    pub fn note_written(&self, representation: Representation) {
        self.written.fetch_or(1 << representation.place(), Ordering::Relaxed);
    }
}

impl Chunker {
    /// Takes the next object. Returns the chunk before it, if that chunk has ended.
    pub fn put(&mut self, object: &Object) -> Option<Chunk> {
        let (key, len, hash) = (&object.key, object.body().len(), SEED.hash_one(&object.key));
        let ended = self.chunk.take_if(|chunk| {
            chunk.is_full = self.ends || chunk.lengths.bytes + len > Chunk::BYTES_MAX;
            chunk.is_full || chunk.first.namespace() != key.namespace()
        });
        let chunk = self.chunk.get_or_insert_with(|| Chunk::new(key.clone(), self.content));
        chunk.lengths.add(len);
        // Each step is invertible, so contents that differ in one object have different names for certain.
        let part = u128::from(hash) << 64 | u128::from(object.rv.0);
        chunk.name = Chunk::joined_name(chunk.name, part);
        // The longer an object, the likelier a chunk ends with it. So chunks have about the same length whatever the
        // objects are.
        self.ends = hash % (Chunk::BYTES as u64) < len as u64;
        ended
    }

    /// Returns the last chunk.
    pub fn end(self) -> Option<Chunk> {
        self.chunk
    }
}

impl ChunkIndex {
    pub(super) fn of_content(content: u64) -> Self {
        Self { content, chunks: OnceCell::new(), past: OnceLock::new() }
    }

    /// Notes that the state is not the present one any more.
    pub(super) fn left(&self, past: PastState) {
        let _ = self.past.set(past);
    }

    pub(super) fn is_made(&self) -> bool {
        self.chunks.initialized()
    }

    pub(super) fn chunker(&self) -> Chunker {
        Chunker { content: self.content, chunk: None, ends: false }
    }

    /// The chunks of all objects of the state. It yields to other tasks now and then.
    pub(super) async fn chunks(&self, objects: impl Iterator<Item = &Arc<Object>>) -> Arc<[Chunk]> {
        let cut = async || {
            let (mut chunker, mut chunks) = (self.chunker(), Vec::new());
            for (index, object) in objects.enumerate() {
                chunks.extend(chunker.put(object));
                if index % CUT_AT_A_TIME == CUT_AT_A_TIME - 1 {
                    tokio::task::yield_now().await;
                }
            }
            chunks.extend(chunker.end());
            chunks.into()
        };
        self.chunks.get_or_init(cut).await.clone()
    }
}

/// Odd, so that multiplication by it is invertible; its bits are those of the golden ratio.
const MIX: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
