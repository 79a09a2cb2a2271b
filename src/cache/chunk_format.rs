use crate::wire::Representation;

/// The cache key of an encoded chunk: all properties that determine its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkFormat {
    /// The name of the encoded chunk: [`Chunk::name`](super::Chunk::name), or
    /// [`joined_name`](super::Chunk::joined_name) of several.
    pub chunk: u128,
    pub representation: Representation,
    /// The server release in whose output format the chunk is written.
    pub release: u32,
    pub part: ChunkPart,
}

/// The form in which a chunk's objects are encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChunkPart {
    /// The objects are encoded as items of a list.
    Items,
    /// The objects are encoded as ADDED events.
    Added,
    /// A compressed piece of a list's items. It may refer to the preceding chunk, whose name is `behind`; `None` at the
    /// beginning of the list.
    Deflated { behind: Option<u128>, piece: usize },
}
