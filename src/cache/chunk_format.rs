use crate::wire::Representation;

/// Everything that decides what a chunk is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkFormat {
    /// [`Chunk::name`](super::Chunk::name), or [`joined_name`](super::Chunk::joined_name) of several.
    pub chunk: u128,
    pub representation: Representation,
    /// Of the server as which it is written.
    pub release: u32,
    pub part: ChunkPart,
}

/// What is made of each object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ChunkPart {
    /// Items of a list.
    Items,
    /// ADDED events.
    Added,
    /// A piece of the items of a list, compressed. It may refer to what it is `behind`, which is named as chunks are;
    /// `None` at the list's beginning.
    Deflated { behind: Option<u128>, piece: usize },
}
