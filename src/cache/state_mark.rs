/// How far a feed's objects have come: between two equal marks they have not changed, and none was about to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateMark {
    /// The number of the history.
    pub history: u64,
    /// The `seq` of the next change. One that is told again is none.
    pub(super) next_seq: u64,
    /// Whether the state that readers see has all of it.
    pub(super) is_whole: bool,
}
