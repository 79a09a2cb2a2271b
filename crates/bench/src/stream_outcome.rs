use http::StatusCode;

use probe::LinkError;

/// The reason that a watch stream ended.
#[derive(Debug)]
pub(super) enum StreamOutcome {
    /// The stream can resume at the last version.
    Clean,
    /// The last received resourceVersion has expired.
    Expired,
    Refused(StatusCode),
    Broken(String),
}

impl From<LinkError> for StreamOutcome {
    fn from(error: LinkError) -> Self {
        Self::Broken(error.to_string())
    }
}
