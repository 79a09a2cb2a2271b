/// The progress of a state that is sent in portions, each limited by the client's room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Portion<T = ()> {
    /// More portions follow.
    More,
    /// This was the last portion.
    Last(T),
}
