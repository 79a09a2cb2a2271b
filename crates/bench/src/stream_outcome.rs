use http::StatusCode;

use probe::LinkError;

/// How a stream ended.
#[derive(Debug)]
pub(super) enum StreamOutcome {
    /// To be continued from the last version.
    Cleanly,
    /// The last version is gone.
    Expired,
    Refused(StatusCode),
    Broken(String),
}

impl From<LinkError> for StreamOutcome {
    fn from(error: LinkError) -> Self {
        Self::Broken(error.to_string())
    }
}
