/// The error of a request that exceeds the concurrency limit with this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many {0} in progress; try again")]
pub(crate) struct OverLimit(pub(crate) &'static str);
