/// How far something has come that is told in portions, each as large as the client has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Portion<T = ()> {
    /// More follows.
    More,
    /// This was the last portion.
    Last(T),
}
