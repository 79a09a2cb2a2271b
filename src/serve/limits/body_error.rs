/// The reason why a body ended early.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;
