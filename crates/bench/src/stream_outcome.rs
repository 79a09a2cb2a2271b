use http::StatusCode;

use probe::LinkError;

/// How a stream ended.
#[derive(Debug)]
pub(super) enum StreamOutcome {
    /// The stream can resume at the last version.
    Clean,
    /// The last version has expired.
    Expired,
    Refused(StatusCode),
    Broken(String),
}

impl From<LinkError> for StreamOutcome {
    fn from(error: LinkError) -> Self {
        Self::Broken(error.to_string())
    }
}
