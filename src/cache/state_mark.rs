/// A mark of a feed's objects: if two marks are equal, the objects did not change in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateMark {
    /// The number of the history, which increases when the feed starts a new one.
    pub history: u64,
    /// The `seq` of the next change. Duplicates do not count.
    pub(super) next_seq: u64,
}
