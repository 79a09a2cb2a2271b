/// The reason why a body ended early.
pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;
