/// The limit of this name is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many {0} in progress; try again")]
pub(crate) struct OverLimit(pub(crate) &'static str);
