/// Why an answer broke off.
pub(super) type BodyError = Box<dyn std::error::Error + Send + Sync>;
