use crate::wire::Representation;

/// Everything that decides what a chunk is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChunkFormat {
    /// [`Chunk::name`](super::Chunk::name), or [`joined_name`](super::Chunk::joined_name) of several.
    pub chunk: u128,
    pub representation: Representation,
    /// The release of the server as which it is written.
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
    /// A compressed piece of a list's items. It may refer to the chunk that it follows, whose name is `behind`; `None`
    /// at the beginning of the list.
    Deflated { behind: Option<u128>, piece: usize },
}
