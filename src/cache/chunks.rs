use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::wire::{ListItemLengths, ObjectRevision, Representation};
use kubeapi::ObjectKey;

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
    pub(super) fn new(content: u64) -> Self {
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
